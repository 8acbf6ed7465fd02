// The transport on the checker, with what goes wrong: faults by seed, ends that come and go, processes that die. Every
// operation completes, and both ends go on afterwards.

#include <gtest/gtest.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "loader/testing/nccl_checker/checker_testing.h"
#include "loader/testing/nccl_checker/nccl_checker.h"
#include "loader/transport/nccl/link.h"
#include "loader/transport/nccl/pair_testing.h"
#include "planner/status.h"

namespace headrace::nccl {
namespace {

using ::headrace::nccl_checker::Child;
using ::headrace::nccl_checker::TestSeed;

// Rounds of messages, each on a pair that was connected anew where the one before failed, until some went well.
void Faulty() {
  std::mt19937_64 random(TestSeed());
  Ends ends;
  ends.Connect();
  int good = 0, rounds = 0;
  for (; good < 2; ++rounds) {
    Require(rounds < 100, absl::StrCat("only ", good, " rounds of 100 went well"));
    Exchange(ends, random, rounds, 3 * rounds, 1 + random() % 12);
    if (ends.Settle()) {
      ++good;
    } else {
      ends.Disconnect();
      ends.Connect();
    }
  }
  std::fprintf(stderr, "%d rounds\n", rounds);
}

TEST(FaultsTest, BySeedEveryOperationEndsAndThePairGoesOn) {
  std::mt19937_64 random(TestSeed());
  for (const char* faults : {"delay", "short", "init", "async", "delay,short,init,async"}) {
    for (const char* loss : {"error", "silent"}) {
      SCOPED_TRACE(absl::StrCat(faults, ", ", loss));
      ExpectEndsWell("Faulty", {absl::StrCat(nccl_checker::kFaultsVariable, "=", faults),
                                absl::StrCat(nccl_checker::kPeerLossVariable, "=", loss),
                                absl::StrCat(nccl_checker::kSeedVariable, "=", random() % 1000000)});
    }
  }
}

// Ends that disconnect and connect at any moment, while messages travel.
void ComeAndGo() {
  std::mt19937_64 random(TestSeed());
  Ends ends;
  ends.Connect();
  const uint64_t rounds = RoundsOf(15);
  for (uint64_t round = 1; round <= rounds; ++round) {
    // Of before: whatever becomes of them, they end, and meet nothing of after. What travels with its offer stays
    // where it is, so that it has tags of its own.
    ends.a.check = ends.b.check = false;
    const uint64_t own_tags = 100 + 10 * round;
    Exchange(ends, random, 2 * round, random() % 2 == 0 ? 0 : own_tags, random() % 12, 257);
    Exchange(ends, random, 2 * round, own_tags, random() % 4);
    for (uint64_t i = random() % 4; i > 0; --i) {
      End &one = random() % 2 == 0 ? ends.a : ends.b, &other = &one == &ends.a ? ends.b : ends.a;
      one.transport->Disconnect(one.peer);
      Ends::Forgotten(one);
      for (uint64_t polls = random() % 4; polls > 0; --polls) other.Poll();
      one.Connect(other.transport->address());
      Exchange(ends, random, 2 * round, own_tags, random() % 8);
      for (uint64_t polls = random() % 4; polls > 0; --polls) ends.Poll();
    }
    const bool a_first = random() % 2 == 0;
    End &first = a_first ? ends.a : ends.b, &second = a_first ? ends.b : ends.a;
    first.transport->Disconnect(first.peer);
    Ends::Forgotten(first);
    if (random() % 2 == 0) first.Connect(second.transport->address());
    for (uint64_t polls = random() % 3; polls > 0; --polls) ends.Poll();
    second.transport->Disconnect(second.peer);
    Ends::Forgotten(second);
    ends.Connect();
    first.errors.clear();
    // Of after.
    ends.a.check = ends.b.check = true;
    Exchange(ends, random, 2 * round + 1, 0, random() % 20, 257);
    Exchange(ends, random, 2 * round + 1, own_tags + 5, random() % 6);
    ends.MustSettle();
  }
}

TEST(FaultsTest, EndsThatComeAndGo) {
  for (const char* faults : {"short", "delay,short"}) {
    for (const char* loss : {"error", "silent"}) {
      SCOPED_TRACE(absl::StrCat(faults, ", ", loss));
      ExpectEndsWell("ComeAndGo", {absl::StrCat(nccl_checker::kFaultsVariable, "=", faults),
                                   absl::StrCat(nccl_checker::kPeerLossVariable, "=", loss)});
    }
  }
}

// Sends and receives what the other one does, until it is killed.
void Hunted() {
  std::string address;
  std::getline(std::cin, address);
  End end(OnGpu(1));
  end.Connect(address);
  std::printf("%s\n", end.transport->address().c_str());
  std::fflush(stdout);
  std::mt19937_64 random(TestSeed());
  for (uint64_t i = 0;;) {
    for (; end.pending.size() < 16; ++i) {
      end.Send(i % 3, i, 100 + i * 7919 % 900000);
      end.Receive(i % 3, i, 100 + i * 7919 % 900000);
    }
    end.Poll(absl::Seconds(1));
  }
}

// Two ends in this process go on with each other all the time.
void Hunter() {
  std::mt19937_64 random(TestSeed());
  Ends ends;
  ends.Connect();
  End& a = ends.a;
  for (int round = 0; round < RoundsOf(6); ++round) {
    Child child("Hunted",
                Variables({absl::StrCat(nccl_checker::kPeerLossVariable, "=", random() % 2 == 0 ? "error" : "silent")}),
                a.transport->address());
    End hunted(nullptr);
    std::swap(hunted.transport, a.transport);
    hunted.Connect(child.ReadLine());
    const uint64_t until = random() % 60;
    uint64_t i = 0;
    bool killed = false;
    const absl::Time deadline = Soon();
    while (!killed || !hunted.pending.empty()) {
      Require(absl::Now() < deadline, absl::StrCat("operations that never end: ", hunted.pending.size()));
      for (; !killed && hunted.pending.size() < 16; ++i) {
        hunted.Send(i % 3, i, 100 + i * 7919 % 900000);
        hunted.Receive(i % 3, i, 100 + i * 7919 % 900000);
      }
      if (!killed && i >= until) {
        child.Kill();
        killed = true;
      }
      hunted.Poll(absl::Milliseconds(5));
    }
    Require(!hunted.errors.empty(), "nothing failed");
    for (const absl::Status& error : hunted.errors) {
      Require(HasCode(error, ErrorCode::kPeerLost), error.ToString());
    }
    hunted.transport->Disconnect(hunted.peer);
    std::swap(hunted.transport, a.transport);
    Exchange(ends, random, round, 1000, 6);
    Require(ends.Settle(), "the others failed, too");
  }
}

TEST(FaultsTest, PeersThatAreKilled) {
  for (const char* loss : {"error", "silent"}) {
    SCOPED_TRACE(loss);
    ExpectEndsWell("Hunter", {absl::StrCat(nccl_checker::kPeerLossVariable, "=", loss)});
  }
}

TEST(FaultsTest, EndpointsThatGoWhileMessagesTravel) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 30; ++round) {
    Ends ends;
    ends.Connect();
    Exchange(ends, random, round, 0, 12);
    for (uint64_t polls = random() % 8; polls > 0; --polls) ends.Poll();
    End& left = ends.a;
    ends.b.transport.reset();
    const absl::Time deadline = Soon();
    while (!left.pending.empty()) {
      ASSERT_LT(absl::Now(), deadline) << left.pending.size() << " operations never end";
      left.Poll(absl::Milliseconds(5));
    }
    for (const absl::Status& error : left.errors) EXPECT_TRUE(HasCode(error, ErrorCode::kPeerLost)) << error;
  }
}

TEST(FaultsTest, WhatWasSentArrivesFromAnEndpointThatIsGone) {
  Ends ends;
  ends.Connect();
  ends.a.Send(1, 1, Link::kInlineBytes);
  ends.a.Poll();
  ASSERT_TRUE(ends.a.pending.empty() && ends.a.errors.empty());
  ends.a.transport.reset();
  ends.b.Receive(1, 1, Link::kInlineBytes);
  ends.b.Receive(1, 2, Link::kInlineBytes);
  for (const absl::Time deadline = Soon(); !ends.b.pending.empty();) {
    ASSERT_LT(absl::Now(), deadline);
    ends.b.Poll(absl::Milliseconds(5));
  }
  ASSERT_EQ(ends.b.failed.size(), 1u);
  EXPECT_EQ(ends.b.failed[0], "receive 2, tag 1");
}

// One end lost the link and came again; the other did not look since, and comes again.
void UnseenLoss(bool seen_before) {
  Ends ends;
  ends.Connect();
  if (seen_before) {
    ends.b.Send(0, 0, 1);
    ends.a.Receive(0, 0, 1);
    Require(ends.Settle(), "small messages need no memory");
  }
  ends.a.Send(1, 1, 1000);
  ends.b.Receive(1, 1, 1000);
  const absl::Time deadline = Soon();
  // The receiver needs memory first.
  while (ends.b.errors.empty()) {
    Require(absl::Now() < deadline, "no error");
    ends.b.Poll(absl::Milliseconds(1));
  }
  ends.b.transport->Disconnect(ends.b.peer);
  ends.b.Connect(ends.a.transport->address());
  ends.a.transport->Disconnect(ends.a.peer);
  ends.a.Connect(ends.b.transport->address());
  ends.a.Poll();
  ends.a.errors.clear();
  ends.b.errors.clear();
  ends.a.Send(1, 2, Link::kInlineBytes);
  ends.b.Receive(1, 2, Link::kInlineBytes);
  ends.b.Send(1, 3, Link::kInlineBytes);
  ends.a.Receive(1, 3, Link::kInlineBytes);
  ends.MustSettle();
}

void UnseenLosses() {
  for (bool seen_before : {false, true}) UnseenLoss(seen_before);
}

TEST(FaultsTest, ALossThatWasNotSeenDoesNotOutliveConnect) {
  ExpectEndsWell("UnseenLosses", {absl::StrCat(nccl_checker::kDeviceBytesVariable, "=100000")});
}

TEST(FaultsTest, WakeEndsAPollAfterAbort) {
  const std::unique_ptr<Transport> endpoint = OnGpu(0);
  endpoint->Abort(absl::CancelledError("enough"));
  std::thread other([&] { endpoint->Wake(); });
  std::vector<Completion> completions;
  endpoint->Poll(absl::InfiniteDuration(), &completions);
  other.join();
}

}  // namespace
}  // namespace headrace::nccl

int main(int argc, char** argv) {
  return headrace::nccl::PairTestMain(argc, argv,
                                      {{"Faulty", headrace::nccl::Faulty},
                                       {"ComeAndGo", headrace::nccl::ComeAndGo},
                                       {"Hunted", headrace::nccl::Hunted},
                                       {"Hunter", headrace::nccl::Hunter},
                                       {"UnseenLosses", headrace::nccl::UnseenLosses}});
}
