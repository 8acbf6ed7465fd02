// vllm-project/vllm#40646: after a trainer's crash no connection can be made until the server restarts, since the dead
// one is not torn down; in a sibling half of it leaks. What a dead trainer sent: stale_messages_test.cc.
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "loader/testing/transports.h"
#include "loader/testing/two_engines.h"
#include "tests/reports/report.h"

namespace headrace {
namespace {

using testing::FirstError;
using testing::Job;

constexpr int64_t kMinute = 60'000'000'000;
constexpr int kCycles = 20;
constexpr int kWarm = 5;  // the cycle after which what stands is counted

size_t Count(const char* folder) {
  size_t n = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) n += entry.is_symlink() || entry.is_directory();
  return n;
}

// A stream that ended is torn down by threads of their own: waits for them.
size_t Settled(const char* folder, size_t wanted) {
  const absl::Time deadline = testing::Soon();
  while (Count(folder) > wanted && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
  return Count(folder);
}

std::function<std::unique_ptr<Transport>()> Memory(bool map) {
  MemoryOptions memory;
  memory.map = map;
  auto fabric = std::make_shared<MemoryFabric>(memory);
  return [fabric] { return fabric->NewEndpoint(); };
}

TEST(TrainerRestartTest, TwentyDeadTrainersAndTheEnginesGoOn) {
  const std::vector<std::pair<std::string, std::function<std::unique_ptr<Transport>()>>> ways = {
      {"memory", Memory(true)}, {"streams", Memory(false)}, {"nccl", testing::OnNcclChecker()}};
  for (const auto& [name, transport] : ways) {
    for (Shadow shadow : {Shadow::kHost, Shadow::kOff}) {
      SCOPED_TRACE(name + (shadow == Shadow::kHost ? ", shadow" : ", in place"));
      testing::JobConfig config;
      config.transport = transport;
      config.shadow = {shadow, shadow};
      config.rejoin_ns = 10 * kMinute;
      Job job(testing::TwoEngines(), config);
      ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
      size_t descriptors = 0, threads = 0;
      for (int cycle = 0; cycle < kCycles; ++cycle) {
        SCOPED_TRACE(::testing::Message() << "cycle " << cycle);
        // The first generation is published and not yet read when its source dies, or read, or half published.
        const uint64_t generation = 2 * cycle + 1;
        const size_t victim = cycle % job.publishers();
        if (cycle % 3 == 0) {
          ASSERT_EQ(job.Publish(generation), absl::OkStatus());
        } else if (cycle % 3 == 1) {
          ASSERT_EQ(job.Round(generation), absl::OkStatus());
        } else {
          testing::PaintSource(job.manifest(), generation, &job.source());
          ASSERT_EQ(job.publisher(victim).Publish(generation, testing::Soon()), absl::OkStatus());
        }
        job.KillPublisher(victim);
        ASSERT_EQ(job.JoinPublisher(victim), absl::OkStatus());
        ASSERT_EQ(job.Round(generation + 1), absl::OkStatus());
        ASSERT_EQ(job.Difference(), "");
        for (size_t w = 0; w < job.workers().size(); ++w) EXPECT_EQ(job.receiver(w).serving(), generation + 1);
        if (cycle == kWarm) {
          descriptors = Count("/proc/self/fd");
          threads = Count("/proc/self/task");
        }
      }
      // Half of what a leak of one per dead trainer would come to: gRPC keeps a pool of threads of its own, which grows
      // and shrinks with what there is to do.
      constexpr size_t kSlack = (kCycles - kWarm) / 2;
      EXPECT_LE(Settled("/proc/self/fd", descriptors + kSlack), descriptors + kSlack);
      EXPECT_LE(Settled("/proc/self/task", threads + kSlack), threads + kSlack);
      EXPECT_EQ(job.Close(), absl::OkStatus());
    }
  }
}

}  // namespace
}  // namespace headrace
