// What the transport takes, on the checker: memory that is not there, more peers than lanes may run, and that nothing
// is left of connections and endpoints that went.

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "loader/gpu/cuda_runtime.h"
#include "loader/testing/nccl_checker/checker_testing.h"
#include "loader/testing/nccl_checker/nccl_checker.h"
#include "loader/transport/nccl/link.h"
#include "loader/transport/nccl/pair_testing.h"
#include "planner/status.h"

namespace headrace::nccl {
namespace {

using ::headrace::nccl_checker::TestSeed;

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
  ends.a.Send(1, 2, Link::kInlineBytes);
  ends.b.Receive(1, 2, Link::kInlineBytes);
  Require(ends.Settle(), "small messages need no memory");
}

TEST(LimitsTest, NoMemoryForMessages) {
  ExpectEndsWell("NoMemory", {absl::StrCat(nccl_checker::kDeviceBytesVariable, "=100000")});
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

TEST(LimitsTest, AStarOfMorePeersThanLanesMayRun) {
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

TEST(LimitsTest, ConnectionsThatComeAndGoLeaveNothing) {
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

TEST(LimitsTest, EndpointsThatComeAndGoLeaveNothing) {
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
}  // namespace headrace::nccl

int main(int argc, char** argv) {
  return headrace::nccl::PairTestMain(argc, argv,
                                      {{"NoMemory", headrace::nccl::NoMemory}, {"Star", headrace::nccl::Star}});
}
