#include "loader/testing/nccl_checker/checker_testing.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

#include "loader/testing/nccl_checker/nccl_checker.h"

extern char** environ;

namespace headrace::nccl_checker {

const Library& lib() {
  static const Library library = [] {
    void* handle = dlopen(kLibraryPath, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      std::abort();
    }
    Library l;
#define LOAD(name, parameters)                                       \
  l.name = reinterpret_cast<decltype(l.name)>(dlsym(handle, #name)); \
  Must(l.name == nullptr, "no " #name);
    HEADRACE_CUDA_FUNCTIONS(LOAD)
    HEADRACE_CUDA_DRIVER_FUNCTIONS(LOAD)
    HEADRACE_NCCL_FUNCTIONS(LOAD)
    HEADRACE_CUDA_TEXT_FUNCTIONS(LOAD)
    HEADRACE_NCCL_TEXT_FUNCTIONS(LOAD)
#undef LOAD
    Must(l.cuInit(0), "cuInit");
    return l;
  }();
  return library;
}

uint64_t TestSeed() {
  static const uint64_t seed = [] {
    const char* text = std::getenv("HEADRACE_TEST_SEED");
    const uint64_t made = text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device()();
    std::fprintf(stderr, "HEADRACE_TEST_SEED=%llu\n", static_cast<unsigned long long>(made));
    return made;
  }();
  return seed;
}

void Must(int result, const char* what) {
  if (result == 0) return;
  std::fprintf(stderr, "failed with %d: %s\n", result, what);
  std::fflush(stderr);
  _exit(3);
}

nccl::Result Settled(nccl::Comm comm) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  nccl::Result state = nccl::kInProgress;
  while (state == nccl::kInProgress && std::chrono::steady_clock::now() < deadline) {
    MUST(lib().ncclCommGetAsyncError(comm, &state));
    if (state == nccl::kInProgress) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return state;
}

Rank::Rank(int device) : device(device) {
  MUST(lib().cudaSetDevice(device));
  MUST(lib().cudaStreamCreateWithFlags(&stream, cuda::kStreamNonBlocking));
}

Rank::Rank(const nccl::UniqueId& id, int rank, int ranks, int device, int max_ctas) : Rank(device) {
  nccl::Config config;
  config.blocking = 0;
  config.max_ctas = max_ctas;
  const nccl::Result result = lib().ncclCommInitRankConfig(&comm, ranks, id, rank, &config);
  Must(result == nccl::kInProgress ? 0 : result, "ncclCommInitRankConfig");
}

Rank::Rank(Rank&& other) noexcept
    : device(other.device), comm(std::exchange(other.comm, nullptr)), stream(std::exchange(other.stream, nullptr)) {}

Rank::~Rank() {
  if (comm != nullptr) lib().ncclCommAbort(comm);
  if (stream != nullptr) lib().cudaStreamDestroy(stream);
}

nccl::Result Rank::Group(const std::function<void()>& calls) {
  MUST(lib().ncclGroupStart());
  calls();
  const nccl::Result result = lib().ncclGroupEnd();
  return result == nccl::kInProgress ? Settled(comm) : result;
}

std::vector<Rank> MakeRanks(int ranks, const std::function<int(int)>& device_of) {
  nccl::UniqueId id;
  MUST(lib().ncclGetUniqueId(&id));
  std::vector<Rank> made;
  for (int i = 0; i < ranks; ++i) made.emplace_back(id, i, ranks, device_of(i));
  for (Rank& rank : made) Must(Settled(rank.comm), "the init");
  return made;
}

void FinishAll(std::vector<Rank>* ranks) {
  for (Rank& rank : *ranks) {
    const nccl::Result result = lib().ncclCommFinalize(rank.comm);
    Must(result == nccl::kInProgress ? 0 : result, "ncclCommFinalize");
  }
  for (Rank& rank : *ranks) Must(Settled(rank.comm), "ncclCommFinalize");
  for (Rank& rank : *ranks) MUST(lib().ncclCommDestroy(std::exchange(rank.comm, nullptr)));
}

Buffer::Buffer(int device, size_t bytes) : bytes(bytes) {
  MUST(lib().cudaSetDevice(device));
  MUST(lib().cudaMalloc(reinterpret_cast<void**>(&data), bytes));
}

Buffer::Buffer(Buffer&& other) noexcept : data(std::exchange(other.data, nullptr)), bytes(other.bytes) {}

Buffer::~Buffer() {
  if (data != nullptr) lib().cudaFree(data);
}

void Buffer::Set(const std::vector<unsigned char>& from, cuda::Stream stream) {
  MUST(lib().cudaMemcpyAsync(data, from.data(), from.size(), cuda::kMemcpyHostToDevice, stream));
}

std::vector<unsigned char> Buffer::Get(cuda::Stream stream) const {
  std::vector<unsigned char> got(bytes);
  MUST(lib().cudaMemcpyAsync(got.data(), data, bytes, cuda::kMemcpyDeviceToHost, stream));
  return got;
}

cuda::AllocationProp PropOf(int device, int types) {
  return {cuda::kAllocationTypePinned, types, {cuda::kMemLocationDevice, device}, nullptr, {}};
}

Shareable::Shareable(int device, size_t bytes, int types) : bytes(bytes) {
  const cuda::AllocationProp prop = PropOf(device, types);
  MUST(lib().cuMemCreate(&handle, bytes, &prop, 0));
}

Shareable::~Shareable() {
  if (mapped) lib().cuMemUnmap(address, bytes);
  if (address != 0) lib().cuMemAddressFree(address, bytes);
  if (handle != 0) lib().cuMemRelease(handle);
}

void Shareable::Reserve() { MUST(lib().cuMemAddressReserve(&address, bytes, 0, 0, 0)); }

void Shareable::Map() {
  MUST(lib().cuMemMap(address, bytes, 0, handle, 0));
  mapped = true;
}

void Shareable::SetAccess(int device, int flags) {
  const cuda::AccessDesc access{{cuda::kMemLocationDevice, device}, flags};
  MUST(lib().cuMemSetAccess(address, bytes, &access, 1));
}

void Shareable::MapFor(int device) {
  Reserve();
  Map();
  SetAccess(device);
}

Child::Child(const std::string& name, const std::vector<std::string>& environment, const std::string& input) {
  int to_parent[2];
  MUST(pipe2(to_parent, O_CLOEXEC));
  const int in = memfd_create("input", MFD_CLOEXEC);
  errors_ = memfd_create("errors", MFD_CLOEXEC);
  Must(write(in, input.data(), input.size()) != static_cast<ssize_t>(input.size()), "write");
  lseek(in, 0, SEEK_SET);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in, 0);
  posix_spawn_file_actions_adddup2(&actions, to_parent[1], 1);
  posix_spawn_file_actions_adddup2(&actions, errors_, 2);
  std::vector<std::string> words{"/proc/self/exe", "--case=" + name}, variables = environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::strncmp(*variable, "HEADRACE_NCCL", 13) != 0) variables.emplace_back(*variable);
  }
  std::vector<char*> argv, envp;
  for (std::string& word : words) argv.push_back(word.data());
  for (std::string& variable : variables) envp.push_back(variable.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  MUST(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv.data(), envp.data()));
  posix_spawn_file_actions_destroy(&actions);
  close(in);
  close(to_parent[1]);
  out_ = to_parent[0];
}

Child::~Child() {
  if (pid_ > 0) {
    Kill();
    Wait();
  }
  close(out_);
  close(errors_);
}

std::string Child::ReadLine() {
  std::string line;
  char c;
  while (read(out_, &c, 1) == 1 && c != '\n') line.push_back(c);
  return line;
}

void Child::Kill() { kill(pid_, SIGKILL); }

Outcome Child::Wait() {
  Outcome outcome;
  waitpid(pid_, &outcome.status, 0);
  pid_ = -1;
  lseek(errors_, 0, SEEK_SET);
  char part[4096];
  for (ssize_t got; (got = read(errors_, part, sizeof(part))) > 0;) outcome.errors.append(part, got);
  return outcome;
}

int CheckerTestMain(int argc, char** argv, const std::map<std::string, std::function<void()>>& cases) {
  if (argc == 2 && std::strncmp(argv[1], "--case=", 7) == 0) {
    cases.at(argv[1] + 7)();
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

std::string Hex(const nccl::UniqueId& id) {
  std::string text;
  char digits[3];
  for (const char c : id.internal) {
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(c));
    text += digits;
  }
  return text;
}

nccl::UniqueId Unhex(const std::string& text) {
  nccl::UniqueId id;
  for (size_t i = 0; i < sizeof(id.internal); ++i) {
    id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return id;
}

}  // namespace headrace::nccl_checker
