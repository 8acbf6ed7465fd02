#include "loader/transport/conformance.h"

#include <dirent.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "loader/transport/conformance_internal.h"

namespace headrace {
namespace conformance {
namespace {

// The backend's; set once, before any test.
std::function<void(std::byte* to, const std::byte* from, size_t bytes)> copy_bytes = std::memcpy;

}  // namespace

void Write(const std::vector<std::byte>& bytes, absl::Span<std::byte> region) {
  ASSERT_EQ(bytes.size(), region.size());
  copy_bytes(region.data(), bytes.data(), bytes.size());
}

std::vector<std::byte> Contents(absl::Span<const std::byte> memory) {
  std::vector<std::byte> bytes(memory.size());
  copy_bytes(bytes.data(), memory.data(), memory.size());
  return bytes;
}

std::vector<std::byte> Pattern(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; i += 8) {
    const uint64_t word = random();
    std::memcpy(&bytes[i], &word, std::min<size_t>(8, size - i));
  }
  return bytes;
}

uint64_t TestSeed() {
  static const uint64_t seed = [] {
    uint64_t value = 0;
    const char* given = getenv("HEADRACE_TEST_SEED");
    if (given == nullptr || !absl::SimpleAtoi(given, &value)) value = std::random_device()();
    std::fprintf(stderr, "HEADRACE_TEST_SEED=%llu\n", static_cast<unsigned long long>(value));
    return value;
  }();
  return seed;
}

int Share(int count) {
  int percent = 100;
  if (const char* given = getenv("HEADRACE_TEST_SHARE"); given != nullptr) {
    EXPECT_TRUE(absl::SimpleAtoi(given, &percent)) << given;
  }
  return std::max(1, count * percent / 100);
}

Pair::Pair(const NewEndpoint& new_endpoint) : a(new_endpoint()), b(new_endpoint()) {
  auto to_b = a->Connect(b->address(), Soon());
  auto to_a = b->Connect(a->address(), Soon());
  EXPECT_TRUE(to_b.ok() && to_a.ok()) << to_b.status() << to_a.status();
  if (to_b.ok()) a_to_b = *to_b;
  if (to_a.ok()) b_to_a = *to_a;
}

std::map<std::pair<Transport*, OpId>, absl::Status> PollUntil(const std::vector<Transport*>& endpoints, size_t count) {
  std::map<std::pair<Transport*, OpId>, absl::Status> done;
  const absl::Time deadline = Soon();
  while (done.size() < count) {
    if (absl::Now() >= deadline) {
      ADD_FAILURE() << "only " << done.size() << " of " << count << " operations completed";
      break;
    }
    for (Transport* endpoint : endpoints) {
      std::vector<Completion> completions;
      endpoint->Poll(absl::Milliseconds(1), &completions);
      for (Completion& c : completions) {
        const bool first = done.emplace(std::make_pair(endpoint, c.op), std::move(c.status)).second;
        EXPECT_TRUE(first) << "operation " << c.op << " completed twice";
      }
    }
  }
  return done;
}

namespace {

// Names in a folder of /proc, without the descriptor that reads it.
int CountEntries(const char* folder) {
  DIR* dir = opendir(folder);
  int count = 0;
  while (readdir(dir) != nullptr) ++count;
  closedir(dir);
  return count;
}

bool UsesDevShm() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (absl::StrContains(line, "/dev/shm/")) return true;
  }
  bool found = false;
  DIR* dir = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(dir)) {
    char target[256] = {};
    if (readlinkat(dirfd(dir), entry->d_name, target, sizeof target - 1) < 0) continue;
    found |= absl::StrContains(target, "/dev/shm/");
  }
  closedir(dir);
  return found;
}

class ConformanceTest : public testing::Test {
 public:
  ConformanceTest(const ConformanceBackend& backend, const Case& test_case) : backend_(backend), case_(test_case) {}

  void TestBody() override {
    const int descriptors = CountEntries("/proc/self/fd");
    const int threads = CountEntries("/proc/self/task");
    {
      const NewEndpoint new_endpoint = backend_.new_world();
      EXPECT_EQ(new_endpoint()->name(), backend_.name);
      case_.body(new_endpoint);
      EXPECT_FALSE(UsesDevShm());
    }
    EXPECT_EQ(CountEntries("/proc/self/fd"), descriptors) << "descriptors leaked";
    // A thread that was joined may still be on its way out of the kernel.
    const absl::Time deadline = Soon();
    while (CountEntries("/proc/self/task") > threads && absl::Now() < deadline) sched_yield();
    EXPECT_LE(CountEntries("/proc/self/task"), threads) << "threads leaked";
  }

 private:
  const ConformanceBackend& backend_;
  const Case case_;
};

}  // namespace
}  // namespace conformance

int RunConformance(int argc, char** argv, const ConformanceBackend& backend) {
  using namespace conformance;
  if (backend.copy != nullptr) copy_bytes = backend.copy;
  if (argc > 1 && std::strcmp(argv[1], kPeerFlag) == 0) return RunPeerProcess(argc, argv, backend);
  testing::InitGoogleMock(&argc, argv);
  std::vector<Case> cases = GeneralCases();
  for (auto more : {MapCases, ReadCases, MessageCases}) {
    for (Case& c : more()) cases.push_back(std::move(c));
  }
  if (backend.across_processes) {
    for (Case& c : ProcessCases()) cases.push_back(std::move(c));
  }
  // The first thread brings a sanitizer's own one with it, which stays; and this first endpoint lets a library open
  // what it opens once and keeps. Neither is a leak.
  std::thread([] {}).join();
  const Capabilities capabilities = backend.new_world()()->capabilities();
  std::set<std::string> unknown = backend.opt_out;
  for (const Case& c : cases) {
    if (unknown.erase(c.name) != 0 || backend.opt_out.count(c.name) != 0) continue;
    if ((c.needs == Needs::kMap && !capabilities.map) || (c.needs == Needs::kRead && !capabilities.read) ||
        (c.needs == Needs::kTwoSided && !capabilities.two_sided)) {
      continue;
    }
    testing::RegisterTest("Conformance", c.name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                          [&backend, c]() -> testing::Test* { return new ConformanceTest(backend, c); });
  }
  for (const std::string& name : unknown) std::fprintf(stderr, "opt_out: no conformance test %s\n", name.c_str());
  if (!unknown.empty()) return 1;
  return RUN_ALL_TESTS();
}

}  // namespace headrace
