// vllm-project/vllm#48284: reloading a state-space layer's own unchanged weights changes the output; in a sibling the
// load of D was dropped, and memory that nobody wrote was served.
#include "tests/reports/report.h"

namespace headrace {
namespace {

using testing::Job;

Manifest Layer() {
  Manifest m = WholeManifest({{"mixer.D", {8}, Dtype::kBF16},
                              {"mixer.dt_bias", {8}, Dtype::kBF16},
                              {"mixer.A_log", {8}, Dtype::kF32},
                              {"mixer.in_proj.weight", {20, 4}, Dtype::kBF16},
                              {"mixer.conv1d.weight", {12, 1, 4}, Dtype::kBF16}});
  return m;
}

TEST(UnchangedReloadTest, TheSameBytesAgainLeaveTheSameMemory) {
  testing::ForEachWay(Layer(), [](Job& job) {
    ASSERT_EQ(testing::FirstError(job.Join()), absl::OkStatus());
    testing::PaintSource(job.manifest(), 1, &job.source());
    for (uint64_t generation : {1, 2, 3}) {
      // Generations 2 and 3 publish generation 1's bytes.
      ASSERT_EQ(job.publisher(0).Publish(generation, testing::Soon()), absl::OkStatus());
      ASSERT_EQ(job.TakeAt(0, generation), absl::OkStatus());
      job.Expect(0, 1);
      EXPECT_EQ(job.Difference(), "");
      EXPECT_EQ(job.receiver(0).stats().bytes, 16 + 16 + 32 + 160 + 96);  // every owned byte counted as written
      EXPECT_EQ(job.receiver(0).serving(), generation);
    }
  });
}

// Poison that survives in D is no commit: what was read over is written again by each generation.
TEST(UnchangedReloadTest, ScribbledMemoryIsRestored) {
  testing::ForEachWay(Layer(), [](Job& job) {
    ASSERT_EQ(testing::FirstError(job.Join()), absl::OkStatus());
    ASSERT_EQ(job.Round(1), absl::OkStatus());
    std::byte* d = job.live().First(job.manifest().destination[0]);
    for (int i = 0; i < 16; ++i) d[i] = testing::kPoison;
    ASSERT_NE(job.Difference(), "");
    ASSERT_EQ(job.Round(2), absl::OkStatus());
    EXPECT_EQ(job.Difference(), "");
  });
}

TEST(UnchangedReloadTest, ADroppedLoadIsAnErrorBeforeAnyByteMoves) {
  Manifest dropped = Layer();
  dropped.source.erase(dropped.source.begin());  // nobody offers D
  testing::ExpectRefusedAtJoin(dropped, ErrorCode::kUncovered, "mixer.D");
  Manifest undeclared = Layer();
  undeclared.destination[0].pieces.clear();  // D's memory is in no piece
  testing::ExpectRefusedAtJoin(undeclared, ErrorCode::kUncovered, "mixer.D");
}

}  // namespace
}  // namespace headrace
