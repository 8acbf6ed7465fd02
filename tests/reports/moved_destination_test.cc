// NVIDIA-NeMo/RL#3739: every refit after the first one writes expert weights into memory that nobody reads, since the
// engine rebinds its expert storage on the first forward.
#include <vector>

#include "tests/reports/report.h"

namespace headrace {
namespace {

using testing::Job;
using testing::SideMemory;

Manifest Experts() { return WholeManifest({{"experts.gate_up", {2, 4, 1}, Dtype::kBF16}}); }

TEST(MovedDestinationTest, AnyChangeIsNamedBeforeAByteIsWritten) {
  testing::ForEachWay(Experts(), [](Job& job) {
    ASSERT_EQ(testing::FirstError(job.Join()), absl::OkStatus());
    ASSERT_EQ(job.Round(1), absl::OkStatus());
    // The engine copies A to B and swaps.
    const BufferMemory a = job.ReceiverMemory(0).at("experts.gate_up");
    std::vector<std::byte> b(a.data, a.data + 16);
    BufferMemory moved = a, reshaped = a, restrided = a;
    moved.data = b.data();
    reshaped.shape = {4, 2, 1};
    restrided.strides = {1, 2, 8};
    uint64_t generation = 1;
    for (const BufferMemory& now : {moved, reshaped, restrided}) {
      const std::vector<std::byte> b_before = b;
      const SideMemory a_before(job.live());
      ASSERT_EQ(job.Publish(++generation), absl::OkStatus());
      ASSERT_TRUE(job.receiver(0).NextGeneration(testing::Soon()).ok());
      const absl::Status status = job.receiver(0).Stage(generation, {{"experts.gate_up", now}});
      EXPECT_TRUE(HasCode(status, ErrorCode::kDestinationMoved)) << status;
      EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("experts.gate_up"));
      EXPECT_EQ(b, b_before);
      EXPECT_EQ(job.live().Difference(a_before), "");
      EXPECT_EQ(job.receiver(0).serving(), 1u);
      const absl::Status told = job.publisher(0).AwaitCommit(generation, testing::Soon());
      EXPECT_TRUE(HasCode(told, ErrorCode::kDestinationMoved)) << told;
      EXPECT_THAT(std::string(told.message()), ::testing::HasSubstr("experts.gate_up"));
    }
    // Back where it was declared, it is written.
    ASSERT_EQ(job.Round(++generation), absl::OkStatus());
    EXPECT_EQ(job.Difference(), "");
  });
}

TEST(MovedDestinationTest, ABufferThatIsGone) {
  testing::ForEachWay(Experts(), [](Job& job) {
    ASSERT_EQ(testing::FirstError(job.Join()), absl::OkStatus());
    ASSERT_EQ(job.Publish(1), absl::OkStatus());
    ASSERT_TRUE(job.receiver(0).NextGeneration(testing::Soon()).ok());
    EXPECT_TRUE(HasCode(job.receiver(0).Stage(1, {}), ErrorCode::kDestinationMoved));
    EXPECT_EQ(job.Difference(), "");
  });
}

}  // namespace
}  // namespace headrace
