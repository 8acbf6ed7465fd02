// A small job that lives through hundreds of generations, with a failure in most of them, holds at the end what it held
// after the first hundred. HEADRACE_TEST_GENERATIONS sets how many generations, HEADRACE_TEST_SEED which failures.
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/testing/job.h"
#include "loader/testing/naive_copy.h"
#include "loader/testing/transports.h"
#include "loader/transport/factory.h"
#include "planner/status.h"
#include "planner/testing/manifest_parts.h"
#include "planner/testing/random_manifest.h"
#include "tests/endurance/usage.h"

namespace headrace {
namespace {

using testing::FirstError;
using testing::ForAll;
using testing::Job;
using testing::JobConfig;
using testing::OnTransport;
using testing::Soon;
using testing::Usage;
using testing::UsageNow;

int64_t Setting(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  int64_t value = otherwise;
  if (text != nullptr && (!absl::SimpleAtoi(text, &value) || value < 1)) {
    std::cerr << name << " is '" << text << "': give a number above 0\n";
    std::abort();
  }
  return value;
}

// Two publishers that each hold everything; engine "e0" of two workers, engine "e1" of one. A slot takes 24 KiB, so
// that one which leaks in every generation is 24 MB at the end.
Manifest Replicas() {
  const TensorSpec a{"a", {64, 96}, Dtype::kBF16}, b{"b", {3072}, Dtype::kF32};
  Manifest m;
  m.tensors = {a, b};
  m.source = {WholeBuffer(0, a), WholeBuffer(0, b), WholeBuffer(1, a), WholeBuffer(1, b)};
  for (int64_t r : {0, 1}) {
    m.destination.push_back(BufferOf(r, "a", a.dtype, {32, 96}, {PieceOf("a", {32 * r, 0}, {32, 96}, {0, 0})}));
    m.destination.push_back(WholeBuffer(r, b));
    m.topology.destination.push_back({r, "", "", "e0"});
  }
  m.destination.push_back(WholeBuffer(2, a));
  m.destination.push_back(WholeBuffer(2, b));
  m.topology.destination.push_back({2, "", "", "e1"});
  return m;
}

class Life {
 public:
  Life(std::function<std::unique_ptr<Transport>()> transport, uint64_t seed)
      : random_(seed), job_(Replicas(), [&] {
          JobConfig config;
          config.transport = std::move(transport);
          config.chunk_bytes = 2048;
          config.staging_bytes = 8192;
          config.rejoin_ns = 600'000'000'000;
          return config;
        }()) {}

  void Begin() { ASSERT_EQ(FirstError(job_.Join()), absl::OkStatus()); }

  // One to three generations.
  void Step() {
    const size_t what = Draw();
    SCOPED_TRACE(absl::StrCat("generation ", generation_ + 1, ", failure ", what));
    ++counts_[what];
    switch (what) {
      case 0:
        return Calm();
      case 1:
        return AVoteOfNo();
      case 2:
        return APublisherDies();
      case 3:
        return AnEngineDies();
      case 4:
        return AWorkerDies();
      case 5:
        return TheCoordinatorDies();
      default:
        return AnEngineIsSlow();
    }
  }

  // A generation without a failure.
  void Calm() {
    ASSERT_EQ(job_.Round(++generation_), absl::OkStatus());
    ASSERT_EQ(job_.Difference(), "");
  }

  uint64_t generation() const { return generation_; }
  std::string Counts() const {
    return absl::StrCat(counts_[0], " calm, ", counts_[1], " votes of no, ", counts_[2], " publishers and ", counts_[3],
                        " engines killed, ", counts_[4], " workers killed, ", counts_[5], " coordinators killed, ",
                        counts_[6], " slow engines");
  }

 private:
  std::vector<size_t> WorkersOf(int engine) const {
    return engine == 0 ? std::vector<size_t>{0, 1} : std::vector{size_t{2}};
  }

  // Of a hundred steps 58 are calm; a coordinator's death, after which all connect again, takes longest.
  size_t Draw() {
    constexpr Index kWeights[7] = {58, 9, 8, 8, 7, 2, 8};
    Index left = Uniform(random_, 0, 99);
    size_t what = 0;
    while (left >= kWeights[what]) left -= kWeights[what++];
    return what;
  }

  // A moment later, drawn: no sleep, so that nothing depends on it.
  static void Dawdle(Index yields) {
    for (; yields > 0; --yields) std::this_thread::yield();
  }

  void Hear(const std::vector<size_t>& workers) {
    ASSERT_EQ(FirstError(ForAll(workers.size(),
                                [&](size_t i) { return job_.receiver(workers[i]).NextGeneration(Soon()).status(); })),
              absl::OkStatus());
  }

  void Take(const std::vector<size_t>& workers, uint64_t generation) {
    ASSERT_EQ(FirstError(ForAll(workers.size(), [&](size_t i) { return job_.TakeAt(workers[i], generation); })),
              absl::OkStatus());
    for (size_t w : workers) job_.Expect(w, generation);
  }

  // One worker says that its buffers moved: its engine keeps the old generation, the other takes the new one.
  void AVoteOfNo() {
    ASSERT_EQ(job_.Publish(++generation_), absl::OkStatus());
    const auto unlucky = static_cast<size_t>(Uniform(random_, 0, 2));
    Hear({0, 1, 2});  // before one gives it up
    const auto statuses = ForAll(3, [&](size_t w) -> absl::Status {
      if (w == unlucky) return job_.receiver(w).Stage(generation_, {});
      HR_RETURN_IF_ERROR(job_.receiver(w).Stage(generation_, job_.ReceiverMemory(w)));
      return job_.receiver(w).Commit(generation_);
    });
    for (size_t w = 0; w < 3; ++w) {
      if ((w == 2) == (unlucky == 2)) {
        ASSERT_TRUE(HasCode(statuses[w], ErrorCode::kDestinationMoved)) << statuses[w];
      } else {
        ASSERT_EQ(statuses[w], absl::OkStatus());
        job_.Expect(w, generation_);
      }
    }
    ASSERT_EQ(job_.Difference(), "");
    Calm();
  }

  // Its replica goes on, in the middle of a generation, and it comes back.
  void APublisherDies() {
    ASSERT_EQ(job_.Publish(++generation_), absl::OkStatus());
    const auto victim = static_cast<size_t>(Uniform(random_, 0, 1));
    const Index moment = Uniform(random_, 0, 300);
    const auto statuses = ForAll(4, [&](size_t i) {
      if (i < 3) return job_.TakeAt(i, generation_);
      Dawdle(moment);
      job_.KillPublisher(victim);
      return absl::OkStatus();
    });
    ASSERT_EQ(FirstError(statuses), absl::OkStatus());
    for (size_t w : {0, 1, 2}) job_.Expect(w, generation_);
    ASSERT_EQ(job_.Difference(), "");
    ASSERT_EQ(job_.publisher(1 - victim).AwaitCommit(generation_, Soon()), absl::OkStatus());
    ASSERT_EQ(job_.JoinPublisher(victim), absl::OkStatus());
    Calm();
  }

  // The other engine takes the generation; this one comes back and takes it, too.
  void AnEngineDies() {
    ASSERT_EQ(job_.Publish(++generation_), absl::OkStatus());
    const int engine = static_cast<int>(Uniform(random_, 0, 1));
    const std::vector<size_t> dead = WorkersOf(engine), others = WorkersOf(1 - engine);
    // Both workers hear, or neither: one that waits when the other one dies is told so.
    if (Uniform(random_, 0, 1) == 0) Hear(dead);
    ASSERT_EQ(FirstError(ForAll(3,
                                [&](size_t w) -> absl::Status {
                                  if (job_.workers()[w].engine != engine) return job_.TakeAt(w, generation_);
                                  job_.KillReceiver(w);
                                  return absl::OkStatus();
                                })),
              absl::OkStatus());
    for (size_t w : others) job_.Expect(w, generation_);
    ASSERT_EQ(job_.Difference(), "");
    ASSERT_EQ(job_.JoinEngine(engine), absl::OkStatus());
    Take(dead, generation_);
    ASSERT_EQ(job_.Difference(), "");
    Calm();
  }

  // One of two workers dies when it has staged a generation; the other one may not commit alone, and both start again.
  void AWorkerDies() {
    ASSERT_EQ(job_.Publish(++generation_), absl::OkStatus());
    Hear({0, 1, 2});
    const auto victim = static_cast<size_t>(Uniform(random_, 0, 1));
    const bool staged = Uniform(random_, 0, 1) == 0;
    const auto statuses = ForAll(3, [&](size_t w) -> absl::Status {
      if (w != victim) return job_.TakeAt(w, generation_);
      if (staged) HR_RETURN_IF_ERROR(job_.receiver(w).Stage(generation_, job_.ReceiverMemory(w)));
      job_.KillReceiver(w);
      return absl::OkStatus();
    });
    ASSERT_TRUE(HasCode(statuses[1 - victim], ErrorCode::kPeerLost)) << statuses[1 - victim];
    ASSERT_EQ(statuses[victim], absl::OkStatus());
    ASSERT_EQ(statuses[2], absl::OkStatus());
    job_.Expect(2, generation_);
    job_.KillReceiver(1 - victim);
    ASSERT_EQ(job_.JoinEngine(0), absl::OkStatus());
    Take({0, 1}, generation_);
    ASSERT_EQ(job_.Difference(), "");
    Calm();
  }

  // While a generation is read, voted on and committed.
  void TheCoordinatorDies() {
    ASSERT_EQ(job_.Publish(++generation_), absl::OkStatus());
    const Index moment = Uniform(random_, 0, 300);
    const auto statuses = ForAll(4, [&](size_t i) {
      if (i < 3) return job_.TakeAt(i, generation_);
      Dawdle(moment);
      job_.RestartCoordinator();
      return absl::OkStatus();
    });
    ASSERT_EQ(FirstError(statuses), absl::OkStatus());
    for (size_t w : {0, 1, 2}) job_.Expect(w, generation_);
    ASSERT_EQ(job_.Difference(), "");
    Calm();
  }

  // It holds both slots, is named, and catches up.
  void AnEngineIsSlow() {
    const uint64_t first = ++generation_, second = ++generation_;
    ASSERT_EQ(job_.Publish(first), absl::OkStatus());
    ASSERT_EQ(job_.Publish(second), absl::OkStatus());
    for (uint64_t g : {first, second}) Take({0, 1}, g);
    const absl::Status late = job_.publisher(0).Publish(second + 1, absl::Now());
    ASSERT_TRUE(HasCode(late, ErrorCode::kDeadline)) << late;
    ASSERT_THAT(std::string(late.message()), ::testing::HasSubstr("engine 1 worker 0"));
    for (uint64_t g : {first, second}) Take({2}, g);
    ASSERT_EQ(job_.Difference(), "");
    Calm();
  }

  Random random_;
  Job job_;
  uint64_t generation_ = 0;
  int counts_[7] = {};
};

// What ended is torn down by threads of gRPC's and the transports' own: waits until no more than `wanted` is left.
Usage Settled(const Usage& wanted) {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  Usage usage = UsageNow();
  while (absl::Now() < deadline && (usage.descriptors > wanted.descriptors || usage.threads > wanted.threads ||
                                    usage.named_threads > wanted.named_threads || usage.segments > wanted.segments ||
                                    usage.memfds > wanted.memfds)) {
    absl::SleepFor(absl::Milliseconds(20));
    usage = UsageNow();
  }
  return usage;
}

// What is held when nothing of it has changed for a while.
Usage Quiet() {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  Usage usage = UsageNow();
  for (int same = 0; same < 25 && absl::Now() < deadline;) {
    absl::SleepFor(absl::Milliseconds(10));
    const Usage now = UsageNow();
    same = now.descriptors == usage.descriptors && now.threads == usage.threads &&
                   now.named_threads == usage.named_threads && now.segments == usage.segments &&
                   now.memfds == usage.memfds
               ? same + 1
               : 0;
    usage = now;
  }
  return usage;
}

void Endure(const std::string& name, const std::function<std::unique_ptr<Transport>()>& transport, uint64_t generations,
            int64_t more_segments = 0) {
  // A worker keeps its connection to a publisher that died until it dies itself: some of the last deaths are seen.
  constexpr int64_t kMoreDescriptors = 10;
  // gRPC's pool grows and shrinks by the load. A thread that each of some failure leaks would be a hundred.
  constexpr int64_t kMoreNamedThreads = 16;
  // What the allocator keeps in pieces; 8 KiB for each generation.
  const int64_t more_bytes = (8 << 20) * (1 + more_segments);
  const auto seed = static_cast<uint64_t>(Setting("HEADRACE_TEST_SEED", 1));
  SCOPED_TRACE(absl::StrCat(name, ", HEADRACE_TEST_SEED=", seed));
  std::cout << name << ": " << generations << " generations, HEADRACE_TEST_SEED=" << seed << std::endl;
  Life life(transport, seed);
  life.Begin();
  const uint64_t warm = std::min<uint64_t>(100, generations / 2);
  while (life.generation() < warm && !::testing::Test::HasFailure()) life.Step();
  life.Calm();
  const Usage before = Quiet();
  while (life.generation() < generations && !::testing::Test::HasFailure()) life.Step();
  life.Calm();
  if (::testing::Test::HasFailure()) return;
  Usage wanted = before;
  wanted.descriptors += kMoreDescriptors;
  wanted.named_threads += kMoreNamedThreads;
  wanted.segments += more_segments;
  wanted.memfds += more_segments;
  const Usage after = Settled(wanted);
  std::cout << life.Counts() << "\n  after " << warm << ": " << ToString(before) << "\n  after " << life.generation()
            << ": " << ToString(after) << std::endl;
  EXPECT_LE(after.descriptors, before.descriptors + kMoreDescriptors);
  EXPECT_LE(after.threads, before.threads);
  EXPECT_LE(after.named_threads, before.named_threads + kMoreNamedThreads);
  EXPECT_LE(after.segments, wanted.segments);
  EXPECT_LE(after.memfds, wanted.memfds);
#ifndef __SANITIZE_ADDRESS__  // it keeps what is freed for a while
  EXPECT_LE(after.resident_bytes, before.resident_bytes + more_bytes);
#endif
}

uint64_t Generations(uint64_t otherwise) {
  return static_cast<uint64_t>(
      Setting("HEADRACE_TEST_GENERATIONS", std::max(1, testing::Share(static_cast<int>(otherwise)))));
}

TEST(EnduranceTest, OverMemory) {
  MemoryOptions memory;
  memory.map = false;
  auto fabric = std::make_shared<MemoryFabric>(memory);
  Endure(
      "memory", [fabric] { return fabric->NewEndpoint(); }, Generations(400));
}

TEST(EnduranceTest, OverHost) { Endure("host", OnTransport("host"), Generations(400)); }

TEST(EnduranceTest, OverUcx) {
  if (const auto there = NewTransport("ucx"); !there.ok()) GTEST_SKIP() << there.status();
  Endure("ucx", OnTransport("ucx"), Generations(100));
}

TEST(EnduranceTest, OverNccl) {
  // Its pool of staging buffers, which are segments here, grows with what is under way at once. A communicator that
  // each failure leaks would be a dozen.
  Endure("nccl", testing::OnNcclChecker(), Generations(100), /*more_segments=*/4);
}

}  // namespace
}  // namespace headrace
