// Two jobs, one address: a receiver of job A is given job B's publisher.
#include "tests/reports/report.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using testing::FirstError;
using ::testing::HasSubstr;
using testing::Job;

TEST(ForeignJobTest, IsRefusedByItsIdentityAndTheJobGoesOn) {
  testing::ForEachWay(WholeManifest({{"w", {40}, Dtype::kBF16}}), [](Job& job) {
    MemoryFabric fabric;
    ReceiverOptions receiver = job.OptionsOfReceiver(0);
    receiver.job.job = "job-a";
    const absl::Status refused =
        Receiver::Join(receiver, job.ReceiverPart(0), job.ReceiverMemory(0), fabric.NewEndpoint()).status();
    EXPECT_TRUE(HasCode(refused, ErrorCode::kWrongJob)) << refused;
    EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("job-a"), HasSubstr("\"job\"")));
    EXPECT_EQ(job.Difference(), "");
    PublisherOptions publisher = job.OptionsOfPublisher(0);
    publisher.job.job = "job-a";
    EXPECT_TRUE(
        HasCode(Publisher::Join(publisher, job.PublisherPart(0), job.PublisherMemory(0), fabric.NewEndpoint()).status(),
                ErrorCode::kWrongJob));
    // Their places are still free.
    testing::ExpectTwoGenerations(job);
  });
}

}  // namespace
}  // namespace headrace
