// Data that groups move, against plain copies: in one process, and between processes.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iostream>
#include <memory>
#include <random>
#include <sstream>
#include <thread>

#include "loader/testing/nccl_checker/checker_testing.h"
#include "loader/testing/nccl_checker/nccl_checker.h"

namespace headrace::nccl_checker {
namespace {

using Bytes = std::vector<unsigned char>;

Bytes RandomBytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint64_t> words(size / sizeof(uint64_t) + 1);
  for (uint64_t& word : words) word = random();
  Bytes bytes(size);
  if (size > 0) std::memcpy(bytes.data(), words.data(), size);
  return bytes;
}

// One send and its receive.
struct Message {
  int from, to;
  size_t at_source, at_target, bytes;
};

// A group: what each rank sends lies one behind the other, and what it receives too.
struct RandomGroup {
  RandomGroup(int ranks, uint64_t seed) : sent(ranks, 0), received(ranks, 0) {
    std::mt19937_64 random(seed);
    const int count = 1 + random() % 40;
    for (int i = 0; i < count; ++i) {
      const int from = random() % ranks, to = random() % ranks;
      const size_t bytes = random() % 4 == 0 ? random() % 200000 : random() % 700;
      messages.push_back({from, to, sent[from], received[to], bytes});
      sent[from] += bytes;
      received[to] += bytes;
    }
  }
  Bytes Source(int rank, uint64_t seed) const { return RandomBytes(sent[rank] + 1, seed * 64 + rank); }
  // By plain copies; the last byte is nobody's.
  Bytes Target(int rank, uint64_t seed) const {
    Bytes target(received[rank] + 1, 0xCB);
    std::vector<Bytes> sources;
    for (size_t i = 0; i < sent.size(); ++i) sources.push_back(Source(i, seed));
    for (const Message& message : messages) {
      if (message.to != rank) continue;
      const Bytes& source = sources[message.from];
      std::memcpy(target.data() + message.at_target, source.data() + message.at_source, message.bytes);
    }
    return target;
  }
  bool Has(int rank) const {
    for (const Message& message : messages) {
      if (message.from == rank || message.to == rank) return true;
    }
    return false;
  }

  std::vector<Message> messages;
  std::vector<size_t> sent, received;
};

// Issues one rank's part of the group.
void Call(const RandomGroup& group, Rank& rank, int number, Buffer& source, Buffer& target) {
  for (const Message& message : group.messages) {
    if (message.from == number) {
      MUST(lib().ncclSend(source.data + message.at_source, message.bytes, nccl::kUint8, message.to, rank.comm,
                          rank.stream));
    }
    if (message.to == number) {
      MUST(lib().ncclRecv(target.data + message.at_target, message.bytes, nccl::kUint8, message.from, rank.comm,
                          rank.stream));
    }
  }
}

TEST(DataTest, RandomGroupsInOneProcess) {
  const int ranks = 3;
  std::vector<Rank> all = MakeRanks(ranks);
  for (int round = 0; round < 20; ++round) {
    const uint64_t seed = TestSeed() + round;
    const RandomGroup group(ranks, seed);
    std::vector<Buffer> sources, targets;
    for (int i = 0; i < ranks; ++i) {
      sources.emplace_back(i, group.sent[i] + 1);
      targets.emplace_back(i, group.received[i] + 1);
      sources[i].Set(group.Source(i, seed), all[i].stream);
    }
    for (int i = 0; i < ranks; ++i) {
      if (group.Has(i)) {
        ASSERT_EQ(all[i].Group([&] { Call(group, all[i], i, sources[i], targets[i]); }), nccl::kSuccess);
      }
    }
    for (int i = 0; i < ranks; ++i) EXPECT_TRUE(targets[i].Get(all[i].stream) == group.Target(i, seed)) << round;
  }
  FinishAll(&all);
}

// Many operations in groups under the cap, of sizes that differ.
TEST(DataTest, FourThousandUnevenOperationsInGroups) {
  constexpr int kOperations = 4096, kGroup = 1000;
  std::vector<Rank> all = MakeRanks(2);
  std::mt19937_64 random(TestSeed());
  std::vector<size_t> sizes, offsets;
  size_t end = 0;
  for (int i = 0; i < kOperations; ++i) {
    offsets.push_back(end);
    sizes.push_back(random() % 512);
    end += sizes.back();
  }
  Buffer source(0, end), target(1, end);
  const Bytes bytes = RandomBytes(end, TestSeed());
  source.Set(bytes, all[0].stream);
  for (int first = 0; first < kOperations; first += kGroup) {
    const int last = std::min(first + kGroup, kOperations);
    ASSERT_EQ(all[0].Group([&] {
      for (int i = first; i < last; ++i) {
        MUST(lib().ncclSend(source.data + offsets[i], sizes[i], nccl::kUint8, 1, all[0].comm, all[0].stream));
      }
    }),
              nccl::kSuccess);
    ASSERT_EQ(all[1].Group([&] {
      for (int i = first; i < last; ++i) {
        MUST(lib().ncclRecv(target.data + offsets[i], sizes[i], nccl::kUint8, 0, all[1].comm, all[1].stream));
      }
    }),
              nccl::kSuccess);
  }
  EXPECT_TRUE(target.Get(all[1].stream) == bytes);
  FinishAll(&all);
}

// Groups of one communicator in two streams: the second waits for the first, whose stream is held up.
TEST(DataTest, GroupsOfOneCommunicatorRunInOrderWhateverTheirStreams) {
  std::vector<Rank> all = MakeRanks(2);
  Rank other(0);
  Buffer a(0, 1), b(0, 1), c(1, 2);
  a.Set({1}, all[0].stream);
  b.Set({2}, all[0].stream);
  std::atomic<bool> open{false};
  MUST(lib().cudaLaunchHostFunc(
      all[0].stream, [](void* gate) { static_cast<std::atomic<bool>*>(gate)->wait(false); }, &open));
  ASSERT_EQ(all[0].Group([&] { MUST(lib().ncclSend(a.data, 1, 1, 1, all[0].comm, all[0].stream)); }), nccl::kSuccess);
  ASSERT_EQ(all[0].Group([&] { MUST(lib().ncclSend(b.data, 1, 1, 1, all[0].comm, other.stream)); }), nccl::kSuccess);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(all[1].Group([&] { MUST(lib().ncclRecv(c.data + i, 1, 1, 0, all[1].comm, all[1].stream)); }),
              nccl::kSuccess);
  }
  for (int i = 0; i < 10000; ++i) {  // time for the second to overtake
    ASSERT_EQ(lib().cudaStreamQuery(other.stream), cuda::kErrorNotReady);
    std::this_thread::yield();
  }
  open = true;
  open.notify_all();
  EXPECT_EQ(c.Get(all[1].stream), (Bytes{1, 2}));
  MUST(lib().cudaStreamSynchronize(other.stream));
  FinishAll(&all);
}

// One group whose operations are in two streams: both wait for its kernel.
TEST(DataTest, AGroupInTwoStreams) {
  std::vector<Rank> all = MakeRanks(2);
  Rank other(0);
  Buffer a(0, 1), b(0, 1), c(1, 2);
  a.Set({1}, all[0].stream);
  b.Set({2}, other.stream);
  ASSERT_EQ(all[0].Group([&] {
    MUST(lib().ncclSend(a.data, 1, 1, 1, all[0].comm, all[0].stream));
    MUST(lib().ncclSend(b.data, 1, 1, 1, all[0].comm, other.stream));
  }),
            nccl::kSuccess);
  EXPECT_EQ(lib().cudaStreamQuery(all[0].stream), cuda::kErrorNotReady);
  EXPECT_EQ(lib().cudaStreamQuery(other.stream), cuda::kErrorNotReady);
  ASSERT_EQ(all[1].Group([&] {
    for (int i = 0; i < 2; ++i) MUST(lib().ncclRecv(c.data + i, 1, 1, 0, all[1].comm, all[1].stream));
  }),
            nccl::kSuccess);
  EXPECT_EQ(c.Get(all[1].stream), (Bytes{1, 2}));
  MUST(lib().cudaStreamSynchronize(other.stream));
  FinishAll(&all);
}

// A group is on its way when ncclGroupEnd returns, also where it has nothing to wait for.
TEST(DataTest, ANonBlockingGroupIsInProgressUntilAsked) {
  std::vector<Rank> all = MakeRanks(1);
  Buffer a(0, 8), b(0, 8);
  MUST(lib().ncclGroupStart());
  MUST(lib().ncclGroupStart());
  EXPECT_EQ(lib().ncclSend(a.data, 8, 1, 0, all[0].comm, all[0].stream), nccl::kSuccess);
  EXPECT_EQ(lib().ncclGroupEnd(), nccl::kSuccess);
  EXPECT_EQ(lib().ncclRecv(b.data, 8, 1, 0, all[0].comm, all[0].stream), nccl::kSuccess);
  // Nothing is a message too.
  EXPECT_EQ(lib().ncclSend(nullptr, 0, 5, 0, all[0].comm, all[0].stream), nccl::kSuccess);
  EXPECT_EQ(lib().ncclRecv(nullptr, 0, 5, 0, all[0].comm, all[0].stream), nccl::kSuccess);
  EXPECT_EQ(lib().ncclGroupEnd(), nccl::kInProgress);
  EXPECT_EQ(Settled(all[0].comm), nccl::kSuccess);
  MUST(lib().cudaStreamSynchronize(all[0].stream));
  FinishAll(&all);
}

// A rank in a process of its own. Its input: id, rank, ranks, seed, rounds.
void Member() {
  std::string id;
  int number, ranks, rounds;
  uint64_t seed;
  std::cin >> id >> number >> ranks >> seed >> rounds;
  Rank rank(Unhex(id), number, ranks, number);
  Must(Settled(rank.comm), "the init");
  for (int round = 0; round < rounds; ++round, ++seed) {
    const RandomGroup group(ranks, seed);
    Buffer source(number, group.sent[number] + 1), target(number, group.received[number] + 1);
    source.Set(group.Source(number, seed), rank.stream);
    if (group.Has(number)) MUST(rank.Group([&] { Call(group, rank, number, source, target); }));
    Must(target.Get(rank.stream) != group.Target(number, seed), "the data");
  }
  std::vector<Rank> one;
  one.push_back(std::move(rank));
  FinishAll(&one);
}

void RunMembers(const std::vector<std::string>& environment, int rounds) {
  constexpr int kRanks = 3;
  nccl::UniqueId id;
  MUST(lib().ncclGetUniqueId(&id));
  std::vector<std::unique_ptr<Child>> members;
  for (int i = 0; i < kRanks; ++i) {
    std::ostringstream input;
    input << Hex(id) << " " << i << " " << kRanks << " " << TestSeed() << " " << rounds;
    members.push_back(std::make_unique<Child>("Member", environment, input.str()));
  }
  for (int i = 0; i < kRanks; ++i) {
    const Outcome outcome = members[i]->Wait();
    EXPECT_EQ(outcome.status, 0) << "rank " << i << ": " << outcome.errors;
  }
}

TEST(DataTest, RandomGroupsInThreeProcesses) { RunMembers({}, 20); }

TEST(DataTest, RandomGroupsInThreeProcessesWithDelaysAndShortPieces) {
  RunMembers({std::string(kFaultsVariable) + "=delay,short",
              std::string(kSeedVariable) + "=" + std::to_string(TestSeed()), std::string(kRingBytesVariable) + "=4096"},
             6);
}

}  // namespace
std::map<std::string, std::function<void()>> DataProcesses() { return {{"Member", Member}}; }
}  // namespace headrace::nccl_checker

int main(int argc, char** argv) {
  return headrace::nccl_checker::CheckerTestMain(argc, argv, headrace::nccl_checker::DataProcesses());
}
