// Data that groups move, against plain copies: in one process, and between processes.

#include <gtest/gtest.h>

#include <cstdio>
#include <iostream>
#include <random>

#include "loader/testing/nccl_checker/checker_testing.h"
#include "loader/testing/nccl_checker/nccl_checker.h"

namespace headrace::nccl_checker {
namespace {

using Bytes = std::vector<unsigned char>;

Bytes RandomBytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(size);
  for (unsigned char& byte : bytes) byte = random();
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
      const size_t bytes = random() % 4 == 0 ? random() % 300000 : random() % 700;
      messages.push_back({from, to, sent[from], received[to], bytes});
      sent[from] += bytes;
      received[to] += bytes;
    }
  }
  Bytes Source(int rank, uint64_t seed) const { return RandomBytes(sent[rank] + 1, seed * 64 + rank); }
  // By plain copies; the last byte is nobody's.
  Bytes Target(int rank, uint64_t seed) const {
    Bytes target(received[rank] + 1, 0xCB);
    for (const Message& message : messages) {
      if (message.to != rank) continue;
      const Bytes source = Source(message.from, seed);
      for (size_t i = 0; i < message.bytes; ++i) target[message.at_target + i] = source[message.at_source + i];
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

}  // namespace
}  // namespace headrace::nccl_checker

int main(int argc, char** argv) { return headrace::nccl_checker::CheckerTestMain(argc, argv, {}); }
