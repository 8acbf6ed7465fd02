#include "loader/transport/ucx/ucx.h"

#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/transport/conformance.h"
#include "loader/transport/ucx/address.h"
#include "loader/transport/ucx/devices.h"
#include "loader/transport/ucx/library.h"
#include "planner/status.h"

extern char** environ;

namespace headrace {
namespace {

using testing::HasSubstr;

constexpr int kCannotTest = 77;

// Runs main again in a process of its own; its exit code.
int RunAgain(std::string flag) {
  char name[] = "/proc/self/exe";
  char* argv[] = {name, flag.data(), nullptr};
  pid_t pid;
  EXPECT_EQ(posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, argv, environ), 0);
  int status;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(UcxAddress, RoundTrips) {
  const std::string worker("\0worker\xff", 8);
  uint32_t id = 0;
  std::string out;
  ASSERT_TRUE(ucx::ParseAddress(ucx::FormatAddress(0xDEADBEEF, worker), &id, &out).ok());
  EXPECT_EQ(id, 0xDEADBEEF);
  EXPECT_EQ(out, worker);
}

TEST(UcxAddress, EveryDamagedBitIsNoticed) {
  const std::string good = ucx::FormatAddress(1, "a worker address");
  uint32_t id;
  std::string out;
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] ^= 1 << (bit % 8);
    EXPECT_TRUE(HasCode(ucx::ParseAddress(bad, &id, &out), ErrorCode::kTransport)) << bit;
  }
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_TRUE(HasCode(ucx::ParseAddress(good.substr(0, size), &id, &out), ErrorCode::kTransport)) << size;
  }
}

TEST(Ucx, TransportsCanBeChosen) {
  auto transport = NewUcxTransport({.tls = "self,tcp", .devices = ""});
  EXPECT_TRUE(transport.ok()) << transport.status();
  const absl::Status none = NewUcxTransport({.tls = "no_such_transport", .devices = ""}).status();
  EXPECT_TRUE(HasCode(none, ErrorCode::kTransport)) << none;
  EXPECT_THAT(std::string(none.message()), HasSubstr("no_such_transport"));
}

// The ports at which this process listens, as the kernel shows them: hexadecimal addresses in network order.
std::set<std::string> ListeningAddresses() {
  std::set<std::string> sockets;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.rfind("socket:[", 0) == 0) sockets.insert(target.substr(8, target.size() - 9));
  }
  std::set<std::string> addresses;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::vector<std::string> word{std::istream_iterator<std::string>(words), {}};
      if (word.size() > 9 && word[3] == "0A" && sockets.count(word[9]) == 1) {
        addresses.insert(word[1].substr(0, word[1].find(':')));
      }
    }
  }
  return addresses;
}

TEST(Ucx, ListensOnLoopbackOnlyUnlessToldOtherwise) { EXPECT_EQ(RunAgain("--listening"), 0); }

TEST(Ucx, ADeviceThatIsNotHereIsNamed) {
  const absl::Status status = NewUcxTransport({.tls = "", .devices = "lo,nosuch0"}).status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kInvalidOption)) << status;
  EXPECT_THAT(std::string(status.message()), testing::AllOf(HasSubstr("'nosuch0'"), HasSubstr("lo (127.0.0.1")));
}

TEST(Ucx, AFullDevShmIsATypedErrorOrAvoided) {
  const int result = RunAgain("--full-dev-shm");
  if (result == kCannotTest) GTEST_SKIP() << "cannot mount here";
  EXPECT_EQ(result, 0);
}

TEST(Ucx, AMissingLibraryIsNamed) {
  const int result = RunAgain("--no-library");
  if (result == kCannotTest) GTEST_SKIP() << "cannot mount here";
  EXPECT_EQ(result, 0);
}

TEST(Ucx, HooksAndSignalHandlersAreOffUnlessSet) { EXPECT_EQ(RunAgain("--environment"), 0); }

TEST(Ucx, AddressSpaceLimitsAreTypedErrors) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer's own allocations meet the limit too, and end the process";
#endif
  EXPECT_EQ(RunAgain("--address-space"), 0);
}

// A mount namespace of our own. False where that is not allowed.
bool PrivateMounts() {
  if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  return mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

// In a process of its own: it changes the environment.
int TestListening() {
  unsetenv("UCX_NET_DEVICES");
  const std::string loopback = "0100007F";
  EXPECT_EQ(ListeningAddresses(), std::set<std::string>{});
  {
    auto transport = NewUcxTransport();
    EXPECT_TRUE(transport.ok()) << transport.status();
    EXPECT_EQ(ListeningAddresses(), std::set<std::string>{loopback});
  }
  EXPECT_EQ(ListeningAddresses(), std::set<std::string>{}) << "the port outlived its endpoint";

  std::string outward;
  for (const ucx::Device& device : ucx::DevicesHere()) {
    if (device.name != "lo" && device.what != "RDMA") outward = device.name;
  }
  if (!outward.empty()) {
    auto transport = NewUcxTransport({.tls = "tcp", .devices = outward});
    EXPECT_TRUE(transport.ok()) << transport.status();
    EXPECT_EQ(ListeningAddresses().size(), 1u);
    EXPECT_EQ(ListeningAddresses().count(loopback), 0u);
  }
  // What the user set counts, and what the code says counts more.
  setenv("UCX_NET_DEVICES", "nosuch0", 1);
  const absl::Status status = NewUcxTransport().status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kInvalidOption)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("UCX_NET_DEVICES"));
  EXPECT_TRUE(NewUcxTransport({.tls = "", .devices = "lo"}).ok());
  setenv("UCX_NET_DEVICES", "all", 1);
  auto all = NewUcxTransport({.tls = "tcp", .devices = ""});
  EXPECT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(ListeningAddresses().count(loopback), 1u);
  EXPECT_EQ(ListeningAddresses().size() > 1, !outward.empty());
  return testing::Test::HasFailure() ? 1 : 0;
}

int TestFullDevShm() {
  if (!PrivateMounts() || mount("none", "/dev/shm", "tmpfs", 0, "size=4k") != 0) return kCannotTest;
  const absl::Status full = NewUcxTransport({.tls = "self,posix", .devices = ""}).status();
  EXPECT_TRUE(HasCode(full, ErrorCode::kOutOfMemory)) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr("/dev/shm"));

  auto a = NewUcxTransport().value(), b = NewUcxTransport().value();
  const PeerId to_b = a->Connect(b->address(), absl::InfiniteFuture()).value();
  const PeerId to_a = b->Connect(a->address(), absl::InfiniteFuture()).value();
  const std::vector<std::byte> sent(4 << 20, std::byte{3});
  std::vector<std::byte> received(sent.size());
  EXPECT_TRUE(a->Send(to_b, 1, sent).ok());
  EXPECT_TRUE(b->Receive(to_a, 1, absl::MakeSpan(received)).ok());
  std::vector<Completion> completions;
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (completions.size() < 2 && absl::Now() < deadline) {
    a->Poll(absl::Milliseconds(1), &completions);
    b->Poll(absl::Milliseconds(1), &completions);
  }
  EXPECT_EQ(completions.size(), 2u);
  EXPECT_EQ(received, sent);
  EXPECT_TRUE(std::filesystem::is_empty("/dev/shm"));
  return testing::Test::HasFailure() ? 1 : 0;
}

int TestMissingLibrary() {
  if (!PrivateMounts()) return kCannotTest;
  // An empty file over the library: it is there, and cannot be loaded.
  bool hidden = false;
  for (const char* folder : {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"}) {
    std::error_code ignored;
    const auto path = std::filesystem::canonical(std::string(folder) + "/libucp.so.0", ignored);
    if (!ignored) hidden |= mount("/dev/null", path.c_str(), nullptr, MS_BIND, nullptr) == 0;
  }
  if (!hidden) return kCannotTest;
  const absl::Status status = NewUcxTransport().status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kTransport)) << status;
  EXPECT_THAT(std::string(status.message()), testing::AllOf(HasSubstr("libucp.so.0"), HasSubstr("libucx0")));
  return testing::Test::HasFailure() ? 1 : 0;
}

int TestEnvironment() {
  constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGHUP};
  std::vector<void (*)(int)> before, after;
  const auto handlers = [&](std::vector<void (*)(int)>* out) {
    for (int number : kSignals) {
      struct sigaction action;
      sigaction(number, nullptr, &action);
      out->push_back(action.sa_handler);
    }
  };
  setenv("UCX_MEM_EVENTS", "n", 1);
  unsetenv("UCX_MEM_MMAP_HOOK_MODE");
  setenv("UCX_VFS_ENABLE", "no", 1);  // the user's own spelling must stay
  handlers(&before);
  auto transport = NewUcxTransport();
  EXPECT_TRUE(transport.ok()) << transport.status();
  handlers(&after);
  EXPECT_EQ(before, after);
  EXPECT_STREQ(getenv("UCX_VFS_ENABLE"), "no");
  EXPECT_STREQ(getenv("UCX_MEM_MMAP_HOOK_MODE"), "none");
  EXPECT_STREQ(getenv("UCX_DEBUG_SIGNO"), "0");
  auto library = ucx::LoadLibrary();
  EXPECT_TRUE(library.ok() && (*library)->path.find("/libucp") != std::string::npos) << library.status();
  return testing::Test::HasFailure() ? 1 : 0;
}

int TestAddressSpace() {
  auto transport = NewUcxTransport().value();
  rlimit before;
  getrlimit(RLIMIT_AS, &before);
  const rlimit limit{1 << 20, before.rlim_max};  // below what is mapped already: nothing more can be
  setrlimit(RLIMIT_AS, &limit);
  const absl::Status status = transport->AllocateRegion(8 << 20).status();
  setrlimit(RLIMIT_AS, &before);
  EXPECT_TRUE(HasCode(status, ErrorCode::kOutOfMemory)) << status;
  EXPECT_THAT(std::string(status.message()), testing::AllOf(HasSubstr("8388608"), HasSubstr("1048576")));
  return testing::Test::HasFailure() ? 1 : 0;
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  const std::string flag = argc > 1 ? argv[1] : "";
  if (flag == "--full-dev-shm") {
    // UCX 1.13 leaks 600 bytes of its own when it cannot make a worker: no leak check for this process.
    const int result = headrace::TestFullDevShm();
    std::fflush(nullptr);
    _exit(result);
  }
  if (flag == "--listening") return headrace::TestListening();
  if (flag == "--no-library") return headrace::TestMissingLibrary();
  if (flag == "--environment") return headrace::TestEnvironment();
  if (flag == "--address-space") return headrace::TestAddressSpace();
  return headrace::RunConformance(argc, argv,
                                  {"ucx", [] { return [] { return headrace::NewUcxTransport().value(); }; }, true});
}
