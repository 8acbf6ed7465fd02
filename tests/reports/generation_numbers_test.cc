// The trainer restarts with generation numbers from 1 again.
#include "tests/reports/report.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using testing::FirstError;
using ::testing::HasSubstr;
using testing::Job;
using testing::JobConfig;

Manifest Model() { return WholeManifest({{"w", {40}, Dtype::kBF16}}); }

TEST(GenerationNumbersTest, APublisherThatDoesNotGrowIsToldBothNumbers) {
  testing::ForEachWay(Model(), [](Job& job) {
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    ASSERT_EQ(job.Round(5), absl::OkStatus());
    for (uint64_t stale : {5, 4, 1, 0}) {
      const absl::Status status = job.publisher(0).Publish(stale, testing::Soon());
      EXPECT_TRUE(HasCode(status, ErrorCode::kGenerationNotGrowing)) << status;
      EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("(" + std::to_string(stale) + ")"), HasSubstr("5")));
    }
    ASSERT_EQ(job.Round(6), absl::OkStatus());
    EXPECT_EQ(job.Difference(), "");
  });
}

// A trainer that starts again in the same incarnation meets workers that remember.
TEST(GenerationNumbersTest, ANewSessionOfTheSameIncarnationRefusesOldNumbers) {
  for (Shadow shadow : {Shadow::kHost, Shadow::kOff}) {
    JobConfig config;
    config.shadow = {shadow};
    Job job(Model(), config);
    job.edit_receiver = [](size_t, ReceiverOptions* options) { options->carried = {5, "run-1", false}; };
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    ASSERT_EQ(job.Publish(1), absl::OkStatus());
    const absl::Status status = job.publisher(0).AwaitCommit(1, testing::Soon());
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("generation 1 "), HasSubstr("generation 5 ")));
    EXPECT_EQ(job.receiver(0).serving(), 5u);
    EXPECT_EQ(job.Difference(), "");
    ASSERT_EQ(job.Round(6), absl::OkStatus());
    EXPECT_EQ(job.Difference(), "");
  }
}

TEST(GenerationNumbersTest, ANewIncarnationCountsFromOneAgain) {
  ReceiverState carried;
  {
    Job job(Model(), {});
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    ASSERT_EQ(job.Round(5), absl::OkStatus());
    carried = job.receiver(0).Carry();
    EXPECT_EQ(carried.committed_generation, 5u);
    EXPECT_EQ(carried.committed_incarnation, "run-1");
  }
  JobConfig config;
  config.incarnation = "run-2";
  Job job(Model(), config);
  job.edit_receiver = [&](size_t, ReceiverOptions* options) { options->carried = carried; };
  ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
  EXPECT_EQ(job.receiver(0).serving(), 5u);
  ASSERT_EQ(job.Round(1), absl::OkStatus());
  EXPECT_EQ(job.receiver(0).serving(), 1u);
  EXPECT_EQ(job.Difference(), "");
}

TEST(GenerationNumbersTest, AMemberOfAnotherIncarnationIsRefused) {
  Job job(Model(), {});
  PublisherOptions options = job.OptionsOfPublisher(0);
  options.job.incarnation = "run-0";
  MemoryFabric fabric;
  const absl::Status status =
      Publisher::Join(options, job.PublisherPart(0), job.PublisherMemory(0), fabric.NewEndpoint()).status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kWrongJob)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("run-0"), HasSubstr("run-1")));
}

// A worker whose live weights were torn serves nothing until a full generation lands, whatever session it is in.
TEST(GenerationNumbersTest, PoisonOutlivesTheSession) {
  Job job(Model(), {});
  job.edit_receiver = [](size_t, ReceiverOptions* options) { options->carried = {5, "run-1", true}; };
  ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
  EXPECT_EQ(job.receiver(0).serving(), std::nullopt);
  ASSERT_EQ(job.Round(6), absl::OkStatus());
  EXPECT_EQ(job.receiver(0).serving(), 6u);
  EXPECT_EQ(job.Difference(), "");
}

}  // namespace
}  // namespace headrace
