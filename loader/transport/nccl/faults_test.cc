// The transport on the checker, with what goes wrong: faults by seed, ends that come and go, processes that die, memory
// that is not there. Every operation completes, and both ends go on afterwards.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "loader/gpu/cuda_runtime.h"
#include "loader/testing/nccl_checker/checker_testing.h"
#include "loader/testing/nccl_checker/nccl_checker.h"
#include "loader/transport/nccl/link.h"
#include "loader/transport/nccl/nccl.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::headrace::nccl_checker::Child;
using ::headrace::nccl_checker::Outcome;
using ::headrace::nccl_checker::TestSeed;
using Bytes = std::vector<std::byte>;

absl::Time Soon() { return absl::Now() + absl::Minutes(3); }

std::unique_ptr<Transport> OnGpu(int gpu) {
  NcclOptions options;
  options.gpu = gpu;
  auto transport = NewNcclTransport(options);
  nccl_checker::Must(!transport.ok(), "NewNcclTransport");
  return *std::move(transport);
}

// For cases in processes, too, where a failure ends the process.
void Require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what.c_str());
  std::fflush(stderr);
  std::_Exit(4);
}

Bytes Content(uint64_t key, size_t bytes) {
  Bytes content(bytes);
  uint64_t x = key * 0x9E3779B97F4A7C15 + bytes;
  for (std::byte& byte : content) {
    x = x * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<std::byte>(x >> 56);
  }
  return content;
}

// An endpoint and its operations with one peer.
struct End {
  explicit End(std::unique_ptr<Transport> endpoint) : transport(std::move(endpoint)) {}
  void Connect(const std::string& address) {
    auto connected = transport->Connect(address, Soon());
    Require(connected.ok(), absl::StrCat("Connect: ", connected.status().ToString()));
    peer = *connected;
  }
  void Send(uint64_t tag, uint64_t key, size_t bytes) {
    auto memory = std::make_unique<Bytes>(Content(key, bytes));
    const absl::StatusOr<OpId> op = transport->Send(peer, tag, *memory);
    Posted(op, {std::move(memory), {}, absl::StrCat("send ", key, ", tag ", tag)});
  }
  // Of a message that Content makes.
  void Receive(uint64_t tag, uint64_t key, size_t bytes) {
    auto memory = std::make_unique<Bytes>(bytes);
    const absl::StatusOr<OpId> op = transport->Receive(peer, tag, absl::MakeSpan(*memory));
    Posted(op, {std::move(memory), Content(key, bytes), absl::StrCat("receive ", key, ", tag ", tag)});
  }
  void Poll(absl::Duration wait = absl::ZeroDuration()) {
    std::vector<Completion> completions;
    transport->Poll(wait, &completions);
    for (const Completion& completion : completions) {
      const auto op = pending.find(completion.op);
      Require(op != pending.end(), "a completion of nothing that is pending");
      if (!completion.status.ok()) {
        Fail(completion.status, op->second.what);
      } else if (op->second.wanted.has_value() && check) {
        Require(*op->second.memory == *op->second.wanted, "a receive got other bytes than were sent");
      }
      pending.erase(op);
    }
  }
  void Fail(const absl::Status& status, const std::string& what) {
    Require(HasCode(status, ErrorCode::kPeerLost) || HasCode(status, ErrorCode::kAborted) ||
                HasCode(status, ErrorCode::kTransport) || HasCode(status, ErrorCode::kOutOfMemory),
            absl::StrCat("an error of another kind: ", status.ToString()));
    Require(!status.message().empty(), "an error that says nothing");
    errors.push_back(status);
    failed.push_back(what);
  }

  struct Operation {
    std::unique_ptr<Bytes> memory;
    std::optional<Bytes> wanted;
    std::string what;
  };
  void Posted(const absl::StatusOr<OpId>& op, Operation operation) {
    if (op.ok()) {
      pending.emplace(*op, std::move(operation));
    } else {
      Fail(op.status(), operation.what);
    }
  }

  std::unique_ptr<Transport> transport;
  PeerId peer = 0;
  std::map<OpId, Operation> pending;
  std::vector<absl::Status> errors;
  std::vector<std::string> failed;
  bool check = true;
};

struct Ends {
  Ends() : a(OnGpu(0)), b(OnGpu(1)) {}
  void Connect() {
    a.Connect(b.transport->address());
    b.Connect(a.transport->address());
  }
  void Disconnect() {
    a.transport->Disconnect(a.peer);
    b.transport->Disconnect(b.peer);
    Forgotten(a);
    Forgotten(b);
  }
  // What was under way has ended by then.
  static void Forgotten(End& end) {
    end.Poll();
    Require(end.pending.empty(), absl::StrCat(end.pending.size(), " operations pending after Disconnect"));
    end.errors.clear();
  }
  void Poll() {
    a.Poll(absl::Milliseconds(1));
    b.Poll(absl::Milliseconds(1));
  }
  // Until both have nothing pending, or an operation failed. False: one failed.
  bool Settle() {
    const absl::Time deadline = Soon();
    while (!(a.pending.empty() && b.pending.empty()) && a.errors.empty() && b.errors.empty()) {
      Require(absl::Now() < deadline,
              absl::StrCat("operations that never end: ", a.pending.size(), " and ", b.pending.size()));
      Poll();
    }
    return a.errors.empty() && b.errors.empty();
  }
  End a, b;
};

size_t SomeBytes(std::mt19937_64& random, size_t least = 0) {
  constexpr size_t kSizes[] = {
      0, 1, nccl::Link::kInlineBytes, nccl::Link::kInlineBytes + 1, 257, 1000, 5000, 70000, 500000, 3000000};
  return std::max(least, kSizes[random() % std::size(kSizes)]);
}

// Messages both ways, whose keys begin with `key`.
void Exchange(Ends& ends, std::mt19937_64& random, uint64_t key, uint64_t tag, size_t messages, size_t least = 0) {
  for (size_t i = 0; i < messages; ++i) {
    const bool forth = random() % 2 == 0;
    End &from = forth ? ends.a : ends.b, &to = forth ? ends.b : ends.a;
    const uint64_t t = tag + random() % 3, k = key * 1000 + i;
    const size_t bytes = SomeBytes(random, least);
    if (random() % 2 == 0) {
      from.Send(t, k, bytes);
      to.Receive(t, k, bytes);
    } else {
      to.Receive(t, k, bytes);
      from.Send(t, k, bytes);
    }
    if (random() % 4 == 0) ends.Poll();
  }
}

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

std::vector<std::string> Variables(const std::vector<std::string>& more) {
  std::vector<std::string> variables = {absl::StrCat("HEADRACE_TEST_SEED=", TestSeed()),
                                        absl::StrCat("HEADRACE_NCCL=", nccl_checker::kLibraryPath)};
  variables.insert(variables.end(), more.begin(), more.end());
  return variables;
}

// Fewer where the sanitizers take their time.
int RoundsOf(int all) { return std::getenv("HEADRACE_TEST_SHARE") == nullptr ? all : std::max(all / 4, 2); }

void ExpectEndsWell(const std::string& name, const std::vector<std::string>& variables) {
  const Outcome outcome = Child(name, Variables(variables)).Wait();
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
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
    if (!ends.Settle()) {
      for (End* end : {&ends.a, &ends.b}) {
        for (const absl::Status& error : end->errors) Require(false, end->failed.back() + ": " + error.ToString());
      }
    }
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
  ends.a.Send(1, 1, nccl::Link::kInlineBytes);
  ends.a.Poll();
  ASSERT_TRUE(ends.a.pending.empty() && ends.a.errors.empty());
  ends.a.transport.reset();
  ends.b.Receive(1, 1, nccl::Link::kInlineBytes);
  ends.b.Receive(1, 2, nccl::Link::kInlineBytes);
  for (const absl::Time deadline = Soon(); !ends.b.pending.empty();) {
    ASSERT_LT(absl::Now(), deadline);
    ends.b.Poll(absl::Milliseconds(5));
  }
  ASSERT_EQ(ends.b.failed.size(), 1u);
  EXPECT_EQ(ends.b.failed[0], "receive 2, tag 1");
}

// Room for the communicators' needs, not for the messages'.
void NoMemory() {
  Ends ends;
  ends.Connect();
  ends.a.Send(1, 1, 1000);
  ends.b.Receive(1, 1, 1000);
  Require(!ends.Settle(), "there was memory");
  // Both ends get to know.
  const absl::Time deadline = Soon();
  while (!(ends.a.pending.empty() && ends.b.pending.empty())) {
    Require(absl::Now() < deadline, "operations that never end");
    ends.Poll();
  }
  bool told = false;
  for (End* end : {&ends.a, &ends.b}) {
    for (const absl::Status& error : end->errors) told |= HasCode(error, ErrorCode::kOutOfMemory);
  }
  Require(told, "nobody said that memory is missing");
  ends.Disconnect();
  ends.Connect();
  ends.a.Send(1, 2, nccl::Link::kInlineBytes);
  ends.b.Receive(1, 2, nccl::Link::kInlineBytes);
  Require(ends.Settle(), "small messages need no memory");
}

TEST(FaultsTest, NoMemoryForMessages) {
  ExpectEndsWell("NoMemory", {absl::StrCat(nccl_checker::kDeviceBytesVariable, "=100000")});
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
  ends.a.Send(1, 2, nccl::Link::kInlineBytes);
  ends.b.Receive(1, 2, nccl::Link::kInlineBytes);
  ends.b.Send(1, 3, nccl::Link::kInlineBytes);
  ends.a.Receive(1, 3, nccl::Link::kInlineBytes);
  if (!ends.Settle()) {
    for (End* end : {&ends.a, &ends.b}) {
      for (const absl::Status& error : end->errors) Require(false, end->failed.back() + ": " + error.ToString());
    }
  }
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

// More lanes than may run at once; the checker counts the thread blocks of a device.
void Star() {
  constexpr int kPeers = 24;
  std::mt19937_64 random(TestSeed());
  const std::unique_ptr<Transport> hub = OnGpu(0);
  std::vector<std::unique_ptr<Transport>> rim;
  std::vector<PeerId> to_rim, to_hub;
  for (int i = 0; i < kPeers; ++i) {
    rim.push_back(OnGpu(i + 1));
    to_rim.push_back(hub->Connect(rim.back()->address(), Soon()).value());
    to_hub.push_back(rim.back()->Connect(hub->address(), Soon()).value());
  }
  struct Way {
    Bytes sent, received;
  };
  std::vector<Way> ways;
  ways.reserve(kPeers * 12);
  for (int m = 0; m < RoundsOf(6); ++m) {
    for (int i = 0; i < kPeers; ++i) {
      for (bool out : {false, true}) {
        const size_t bytes = SomeBytes(random, 300);
        Way& way = ways.emplace_back(Content(ways.size(), bytes), Bytes(bytes));
        Transport *from = out ? hub.get() : rim[i].get(), *to = out ? rim[i].get() : hub.get();
        Require(from->Send(out ? to_rim[i] : to_hub[i], m % 2, way.sent).ok(), "Send");
        Require(to->Receive(out ? to_hub[i] : to_rim[i], m % 2, absl::MakeSpan(way.received)).ok(), "Receive");
      }
    }
  }
  size_t done = 0;
  const absl::Time deadline = Soon();
  while (done < 2 * ways.size()) {
    Require(absl::Now() < deadline, "operations that never end");
    std::vector<Completion> completions;
    hub->Poll(absl::Milliseconds(1), &completions);
    for (auto& end : rim) end->Poll(absl::ZeroDuration(), &completions);
    for (const Completion& completion : completions) Require(completion.status.ok(), completion.status.ToString());
    done += completions.size();
  }
  for (const Way& way : ways) Require(way.sent == way.received, "other bytes");
}

TEST(FaultsTest, AStarOfMorePeersThanLanesMayRun) {
  for (const char* faults : {"short", "delay"}) {
    ExpectEndsWell("Star", {absl::StrCat(nccl_checker::kDevicesVariable, "=32"),
                            absl::StrCat(nccl_checker::kFaultsVariable, "=", faults)});
  }
}

struct Counts {
  int64_t descriptors = 0, threads = 0, maps = 0, device_bytes = 0;
  bool operator<=(const Counts& other) const {
    return descriptors <= other.descriptors && threads <= other.threads && maps <= other.maps &&
           device_bytes <= other.device_bytes;
  }
};

std::ostream& operator<<(std::ostream& out, const Counts& c) {
  return out << c.descriptors << " descriptors, " << c.threads << " threads, " << c.maps << " maps, " << c.device_bytes
             << " bytes of device memory";
}

int64_t FilesIn(const char* path) {
  return std::distance(std::filesystem::directory_iterator(path), std::filesystem::directory_iterator());
}

Counts CountAll() {
  Counts counts{FilesIn("/proc/self/fd"), FilesIn("/proc/self/task")};
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    counts.maps += line.find("headrace_nccl_checker_") != std::string::npos;
  }
  const CudaRuntime& cuda = **LoadCudaRuntime("");
  for (int device : {0, 1}) {
    const CurrentDevice current(cuda, device);
    size_t free = 0, total = 0;
    EXPECT_EQ(cuda.cudaMemGetInfo(&free, &total), cuda::kSuccess);
    counts.device_bytes += total - free;
  }
  return counts;
}

TEST(FaultsTest, ConnectionsThatComeAndGoLeaveNothing) {
  std::mt19937_64 random(TestSeed());
  Ends ends;
  Counts before;
  for (int round = 0; round < RoundsOf(200); ++round) {
    ends.Connect();
    Exchange(ends, random, round, 3 * round, 3);
    ASSERT_TRUE(round % 3 == 0 || ends.Settle());
    ends.Disconnect();
    if (round == 10) before = CountAll();
  }
  // A thread that was joined, or that ends by itself, is gone from the kernel's list a moment later.
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  const auto back = [&] {
    ends.Poll();
    return CountAll() <= before;
  };
  while (!back() && absl::Now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(back()) << CountAll() << "; before: " << before;
}

TEST(FaultsTest, EndpointsThatComeAndGoLeaveNothing) {
  std::mt19937_64 random(TestSeed());
  End stays(OnGpu(0));
  Counts before;
  for (int round = 0; round < 60; ++round) {
    End other(OnGpu(1));
    stays.Connect(other.transport->address());
    other.Connect(stays.transport->address());
    stays.Send(1, round, 5000);
    other.Receive(1, round, 5000);
    for (const absl::Time deadline = Soon(); round % 3 != 0 && !other.pending.empty();) {
      ASSERT_LT(absl::Now(), deadline);
      stays.Poll();
      other.Poll(absl::Milliseconds(1));
    }
    stays.transport->Disconnect(stays.peer);
    other.transport.reset();
    stays.Poll();
    ASSERT_TRUE(stays.pending.empty());
    if (round == 5) before = CountAll();
  }
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  const auto back = [&] {
    stays.Poll();
    return CountAll() <= before;
  };
  while (!back() && absl::Now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(back()) << CountAll() << "; before: " << before;
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  setenv("HEADRACE_CUDA_RUNTIME", headrace::nccl_checker::kLibraryPath, 0);
  setenv("HEADRACE_NCCL", headrace::nccl_checker::kLibraryPath, 0);
  return headrace::nccl_checker::CheckerTestMain(argc, argv,
                                                 {{"Faulty", headrace::Faulty},
                                                  {"ComeAndGo", headrace::ComeAndGo},
                                                  {"Hunted", headrace::Hunted},
                                                  {"Hunter", headrace::Hunter},
                                                  {"NoMemory", headrace::NoMemory},
                                                  {"UnseenLosses", headrace::UnseenLosses},
                                                  {"Star", headrace::Star}});
}
