// How communicators come and go: what is left of them, aborts at all times, peers that die.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <sstream>
#include <thread>
#include <utility>

#include "loader/testing/nccl_checker/checker_testing.h"
#include "loader/testing/nccl_checker/nccl_checker.h"

namespace headrace::nccl_checker {
namespace {

struct Counts {
  int64_t descriptors, threads, maps;
};

std::ostream& operator<<(std::ostream& out, const Counts& counts) {
  return out << counts.descriptors << " descriptors, " << counts.threads << " threads, " << counts.maps << " maps";
}

int64_t FilesIn(const char* path) {
  return std::distance(std::filesystem::directory_iterator(path), std::filesystem::directory_iterator());
}

// Only mappings of the checker's memory: the allocator's and the threads' stacks come and go.
int64_t CheckerMaps() {
  std::ifstream maps("/proc/self/maps");
  int64_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("headrace_nccl_checker_") != std::string::npos;
  return count;
}

Counts Now() { return {FilesIn("/proc/self/fd"), FilesIn("/proc/self/task"), CheckerMaps()}; }

// A thread that was joined, or that ends by itself, is gone from the kernel's list a moment later: `before` may still
// have counted one, too.
void ExpectBack(const Counts& before) {
  const auto is_back = [&](const Counts& now) {
    return now.descriptors <= before.descriptors && now.threads <= before.threads && now.maps <= before.maps;
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  Counts now = Now();
  for (; !is_back(now) && std::chrono::steady_clock::now() < deadline; now = Now()) std::this_thread::yield();
  EXPECT_PRED1(is_back, now) << "before: " << before;
}

nccl::UniqueId NewId() {
  nccl::UniqueId id;
  MUST(lib().ncclGetUniqueId(&id));
  return id;
}

void Exchange(std::vector<Rank>* ranks, std::vector<Buffer>* buffers) {
  for (int i : {0, 1}) {
    Rank& rank = (*ranks)[i];
    EXPECT_EQ(rank.Group([&] {
      MUST(lib().ncclSend((*buffers)[i].data, 32, nccl::kUint8, 1 - i, rank.comm, rank.stream));
      MUST(lib().ncclRecv((*buffers)[i].data + 32, 32, nccl::kUint8, 1 - i, rank.comm, rank.stream));
    }),
              nccl::kSuccess);
  }
}

std::vector<Buffer> TwoBuffers() {
  std::vector<Buffer> buffers;
  buffers.emplace_back(0, 64);
  buffers.emplace_back(1, 64);
  return buffers;
}

TEST(LifecycleTest, NothingIsLeftOfTwoHundredCommunicators) {
  std::mt19937_64 random(TestSeed());
  { std::vector<Rank> first = MakeRanks(2); }
  const Counts before = Now();
  for (int i = 0; i < 200; ++i) {
    const int end = random() % 5;
    if (end == 0) {  // aborted while it is being made
      Rank alone(NewId(), 0, 2, 0);
      continue;
    }
    std::vector<Buffer> buffers = TwoBuffers();
    std::vector<Rank> ranks = MakeRanks(2);
    if (end == 1) continue;  // aborted when it is ready
    Exchange(&ranks, &buffers);
    if (end == 2) {  // aborted while a kernel waits
      EXPECT_EQ(ranks[0].Group([&] {
        MUST(lib().ncclRecv(buffers[0].data, 64, nccl::kUint8, 1, ranks[0].comm, ranks[0].stream));
      }),
                nccl::kSuccess);
      ranks.clear();
      continue;
    }
    for (Rank& rank : ranks) MUST(lib().cudaStreamSynchronize(rank.stream));
    FinishAll(&ranks);
  }
  ExpectBack(before);
}

TEST(LifecycleTest, ABlockingCommunicatorInAGroup) {
  const nccl::UniqueId id = NewId();
  Rank zero(0), one(1);
  nccl::Config config;
  config.blocking = 1;
  config.max_ctas = 1;
  MUST(lib().ncclGroupStart());
  MUST(lib().cudaSetDevice(0));
  EXPECT_EQ(lib().ncclCommInitRankConfig(&zero.comm, 2, id, 0, &config), nccl::kSuccess);
  MUST(lib().cudaSetDevice(1));
  EXPECT_EQ(lib().ncclCommInitRankConfig(&one.comm, 2, id, 1, &config), nccl::kSuccess);
  EXPECT_EQ(lib().ncclGroupEnd(), nccl::kSuccess);
  Buffer a(0, 8), b(1, 8);
  EXPECT_EQ(lib().ncclSend(a.data, 8, nccl::kUint8, 1, zero.comm, zero.stream), nccl::kSuccess);
  EXPECT_EQ(lib().ncclRecv(b.data, 8, nccl::kUint8, 0, one.comm, one.stream), nccl::kSuccess);
  MUST(lib().cudaStreamSynchronize(zero.stream));
  MUST(lib().cudaStreamSynchronize(one.stream));
  EXPECT_EQ(lib().ncclCommDestroy(std::exchange(zero.comm, nullptr)), nccl::kSuccess);
  EXPECT_EQ(lib().ncclCommDestroy(std::exchange(one.comm, nullptr)), nccl::kSuccess);
}

TEST(LifecycleTest, FinalizeIsInProgressUntilAllHaveFinalized) {
  std::vector<Rank> ranks = MakeRanks(2);
  nccl::Result state;
  EXPECT_EQ(lib().ncclCommFinalize(ranks[0].comm), nccl::kInProgress);
  MUST(lib().ncclCommGetAsyncError(ranks[0].comm, &state));
  EXPECT_EQ(state, nccl::kInProgress);
  EXPECT_EQ(lib().ncclCommFinalize(ranks[1].comm), nccl::kInProgress);
  for (Rank& rank : ranks) {
    EXPECT_EQ(Settled(rank.comm), nccl::kSuccess);
  }
  for (Rank& rank : ranks) EXPECT_EQ(lib().ncclCommDestroy(std::exchange(rank.comm, nullptr)), nccl::kSuccess);
}

// Another process's rank 1: does as much as its input says (id, rounds), then waits to be killed.
void Peer() {
  std::string id;
  int rounds;
  std::cin >> id >> rounds;
  Rank rank(Unhex(id), 1, 2, 1);
  Must(Settled(rank.comm), "the init");
  Buffer buffer(1, 64);
  for (int i = 0; i < rounds; ++i) {
    MUST(rank.Group([&] {
      MUST(lib().ncclSend(buffer.data, 32, nccl::kUint8, 0, rank.comm, rank.stream));
      MUST(lib().ncclRecv(buffer.data + 32, 32, nccl::kUint8, 0, rank.comm, rank.stream));
    }));
  }
  MUST(lib().cudaStreamSynchronize(rank.stream));
  std::cout << "done" << std::endl;
  while (true) pause();
}

// Rank 0, whose peer is killed under its kernel. Its input: what the asynchronous error must become, and whether the
// peer dies before it has come.
void Survivor() {
  nccl::Result expected;
  bool in_init;
  std::cin >> expected >> in_init;
  { std::vector<Rank> first = MakeRanks(2); }
  const Counts before = Now();
  {
    const nccl::UniqueId id = NewId();
    Buffer buffer(0, 64);
    Rank rank(id, 0, in_init ? 3 : 2, 0);
    Child peer("Peer", {}, Hex(id) + (in_init ? " 0" : " 3"));
    if (!in_init) {
      Must(Settled(rank.comm), "the init");
      for (int i = 0; i < 4; ++i) {
        MUST(rank.Group([&] {
          MUST(lib().ncclSend(buffer.data, 32, nccl::kUint8, 1, rank.comm, rank.stream));
          MUST(lib().ncclRecv(buffer.data + 32, 32, nccl::kUint8, 1, rank.comm, rank.stream));
        }));
      }
      Must(peer.ReadLine() != "done", "the peer");
    }
    peer.Kill();
    peer.Wait();
    nccl::Result state = nccl::kSuccess;
    const auto enough = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
    const nccl::Result running = in_init ? nccl::kInProgress : nccl::kSuccess;
    do {
      MUST(lib().ncclCommGetAsyncError(rank.comm, &state));
    } while (state == running && (expected != nccl::kSuccess || std::chrono::steady_clock::now() < enough));
    Must(state != (expected == nccl::kSuccess ? running : expected), "the state");
    if (!in_init) Must(lib().cudaStreamQuery(rank.stream) != cuda::kErrorNotReady, "the kernel hangs until the abort");
    MUST(lib().ncclCommAbort(std::exchange(rank.comm, nullptr)));
    MUST(lib().cudaStreamSynchronize(rank.stream));
  }
  ExpectBack(before);
  Must(testing::Test::HasFailure(), "counts");
}

// Rank 0, whose peer is killed at random moments while groups run. Its input: a seed.
void Hunted() {
  uint64_t seed;
  std::cin >> seed;
  std::mt19937_64 random(seed);
  { std::vector<Rank> first = MakeRanks(2); }
  const Counts before = Now();
  for (int round = 0; round < 10; ++round) {
    const nccl::UniqueId id = NewId();
    Buffer buffer(0, 64);
    Rank rank(id, 0, 2, 0);
    Child peer("Peer", {}, Hex(id) + " 1000000");
    Must(Settled(rank.comm), "the init");
    const int until = random() % 200;
    nccl::Result state = nccl::kSuccess;
    for (int i = 0; state == nccl::kSuccess; ++i) {
      if (i == until) peer.Kill();
      state = rank.Group([&] {
        MUST(lib().ncclSend(buffer.data, 32, nccl::kUint8, 1, rank.comm, rank.stream));
        MUST(lib().ncclRecv(buffer.data + 32, 32, nccl::kUint8, 1, rank.comm, rank.stream));
      });
      while (state == nccl::kSuccess && lib().cudaStreamQuery(rank.stream) == cuda::kErrorNotReady) {
        MUST(lib().ncclCommGetAsyncError(rank.comm, &state));
      }
    }
    Must(state != nccl::kRemoteError, "the state");
    MUST(lib().ncclCommAbort(std::exchange(rank.comm, nullptr)));
    MUST(lib().cudaStreamSynchronize(rank.stream));
  }
  ExpectBack(before);
  Must(testing::Test::HasFailure(), "counts");
}

TEST(LifecycleTest, PeersKilledAtRandomMoments) {
  const Outcome outcome =
      Child("Hunted", {std::string(kPeerLossVariable) + "=error"}, std::to_string(TestSeed())).Wait();
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
}

void ExpectSurvivor(const std::string& loss, nccl::Result expected, bool in_init) {
  Child survivor("Survivor", {std::string(kPeerLossVariable) + "=" + loss, std::string(kStallMsVariable) + "=100"},
                 std::to_string(expected) + (in_init ? " 1" : " 0"));
  const Outcome outcome = survivor.Wait();
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
}

TEST(LifecycleTest, AKilledPeerIsARemoteError) { ExpectSurvivor("error", nccl::kRemoteError, false); }
TEST(LifecycleTest, AKilledPeerIsSilent) { ExpectSurvivor("silent", nccl::kSuccess, false); }

TEST(LifecycleTest, AnAbortedPeerIsSeen) {
  std::vector<Buffer> buffers = TwoBuffers();
  std::vector<Rank> ranks = MakeRanks(2);
  ASSERT_EQ(ranks[0].Group(
                [&] { MUST(lib().ncclRecv(buffers[0].data, 64, nccl::kUint8, 1, ranks[0].comm, ranks[0].stream)); }),
            nccl::kSuccess);
  MUST(lib().ncclCommAbort(std::exchange(ranks[1].comm, nullptr)));
  EXPECT_EQ(lib().cudaStreamQuery(ranks[0].stream), cuda::kErrorNotReady);
  MUST(lib().ncclCommAbort(std::exchange(ranks[0].comm, nullptr)));
  MUST(lib().cudaStreamSynchronize(ranks[0].stream));
}

// A peer that goes away while the communicator is being made.
TEST(LifecycleTest, AbortInInit) {
  const Counts before = Now();
  {
    const nccl::UniqueId id = NewId();
    Rank zero(id, 0, 3, 0), one(id, 1, 3, 1);
    MUST(lib().ncclCommAbort(std::exchange(one.comm, nullptr)));
    nccl::Result state;
    MUST(lib().ncclCommGetAsyncError(zero.comm, &state));
    EXPECT_TRUE(state == nccl::kInProgress || state == nccl::kRemoteError) << state;
  }
  ExpectBack(before);
}

// Inits and kernels that fail by seed: all that can happen is an error, and an abort ends it.
void Faulty() {
  int init_errors = 0, kernel_errors = 0;
  { Rank alone(NewId(), 0, 2, 0); }
  const Counts before = Now();
  for (int i = 0; i < 100; ++i) {
    std::vector<Buffer> buffers = TwoBuffers();
    const nccl::UniqueId id = NewId();
    std::vector<Rank> ranks;
    ranks.emplace_back(id, 0, 2, 0);
    ranks.emplace_back(id, 1, 2, 1);
    // Where one fails the other waits, or learns of it, or was ready before.
    bool failed = false, ready = false;
    while (!failed && !ready) {
      ready = true;
      for (Rank& rank : ranks) {
        nccl::Result state;
        MUST(lib().ncclCommGetAsyncError(rank.comm, &state));
        failed |= state != nccl::kSuccess && state != nccl::kInProgress;
        ready &= state == nccl::kSuccess;
      }
    }
    if (failed) {
      ++init_errors;
      continue;
    }
    for (int k : {0, 1}) {
      ranks[k].Group([&] {
        MUST(lib().ncclSend(buffers[k].data, 32, nccl::kUint8, 1 - k, ranks[k].comm, ranks[k].stream));
        MUST(lib().ncclRecv(buffers[k].data + 32, 32, nccl::kUint8, 1 - k, ranks[k].comm, ranks[k].stream));
      });
    }
    bool idle = false;
    while (!failed && !idle) {
      idle = true;
      for (Rank& rank : ranks) {
        nccl::Result state;
        MUST(lib().ncclCommGetAsyncError(rank.comm, &state));
        failed |= state == nccl::kSystemError;
        idle &= lib().cudaStreamQuery(rank.stream) == cuda::kSuccess;
      }
    }
    kernel_errors += failed;
    ranks.clear();
  }
  ExpectBack(before);
  Must(testing::Test::HasFailure(), "counts");
  Must(init_errors == 0 || kernel_errors == 0, "no faults");
}

TEST(LifecycleTest, FaultsBySeed) {
  Child child("Faulty", {std::string(kFaultsVariable) + "=init,async",
                         std::string(kSeedVariable) + "=" + std::to_string(TestSeed() % 1000)});
  const Outcome outcome = child.Wait();
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
}

void OnOneDevice() {
  std::vector<Rank> ranks = MakeRanks(2, [](int) { return 0; });
  std::vector<Buffer> buffers;
  buffers.emplace_back(0, 64);
  buffers.emplace_back(0, 64);
  Exchange(&ranks, &buffers);
  for (Rank& rank : ranks) MUST(lib().cudaStreamSynchronize(rank.stream));
  FinishAll(&ranks);
}

TEST(LifecycleTest, TwoRanksOnOneDeviceWhereAllowed) {
  const Outcome outcome = Child("OnOneDevice", {std::string(kMultiRankGpuVariable) + "=1"}).Wait();
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
}

TEST(LifecycleTest, AMalformedVariableEndsTheProcess) {
  for (const std::string& variable : {std::string(kDevicesVariable) + "=many", std::string(kFaultsVariable) + "=all",
                                      std::string(kRingBytesVariable) + "=5000"}) {
    const Outcome outcome = Child("OnOneDevice", {variable}).Wait();
    EXPECT_TRUE(WIFSIGNALED(outcome.status)) << outcome.status;
    EXPECT_NE(outcome.errors.find("malformed"), std::string::npos) << outcome.errors;
  }
}

}  // namespace

std::map<std::string, std::function<void()>> LifecycleProcesses() {
  return {{"Peer", Peer}, {"Survivor", Survivor}, {"Hunted", Hunted}, {"Faulty", Faulty}, {"OnOneDevice", OnOneDevice}};
}

}  // namespace headrace::nccl_checker

int main(int argc, char** argv) {
  return headrace::nccl_checker::CheckerTestMain(argc, argv, headrace::nccl_checker::LifecycleProcesses());
}
