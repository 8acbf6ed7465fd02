// THUDM/slime#2151: no group can be made on IPv6 clusters, since a bare IPv6 address is glued to a port; in a sibling
// two look-ups give different spellings of one host, the keys made of them differ, and both sides wait.
#include <utility>
#include <vector>

#include "tests/reports/report.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using testing::Job;

ControlServerOptions At(const std::string& host) {
  ControlServerOptions server;
  server.token = "secret";
  server.host = host;
  return server;
}

CoordinatorOptions OneEngine() {
  CoordinatorOptions options;
  options.job = "job";
  options.incarnation = "run-1";
  options.workers = {1};
  return options;
}

// A publisher and a receiver that spell the coordinator's host in two ways are in one job, and a generation lands.
void ExpectMeet(const std::string& listen, const std::string& shown, const std::string& publisher_host,
                const std::string& receiver_host) {
  SCOPED_TRACE(listen + ": " + publisher_host + " and " + receiver_host);
  Job job(WholeManifest({{"w", {40}, Dtype::kBF16}}), {});  // its parts; the coordinator is another one
  const auto coordinator = CoordinatorService::Start(OneEngine(), At(listen));
  ASSERT_TRUE(coordinator.ok()) << coordinator.status();
  const std::string port = ":" + std::to_string((*coordinator)->port());
  EXPECT_EQ((*coordinator)->address(), shown + port);
  PublisherOptions publisher_options = job.OptionsOfPublisher(0);
  publisher_options.job.coordinator = publisher_host + port;
  ReceiverOptions receiver_options = job.OptionsOfReceiver(0);
  receiver_options.job.coordinator = receiver_host + port;
  MemoryFabric fabric;
  std::unique_ptr<Publisher> publisher;
  std::unique_ptr<Receiver> receiver;
  ASSERT_EQ(testing::FirstError(testing::ForAll(
                2,
                [&](size_t i) -> absl::Status {
                  if (i == 0) {
                    HR_ASSIGN_OR_RETURN(publisher, Publisher::Join(publisher_options, job.PublisherPart(0),
                                                                   job.PublisherMemory(0), fabric.NewEndpoint()));
                  } else {
                    HR_ASSIGN_OR_RETURN(receiver, Receiver::Join(receiver_options, job.ReceiverPart(0),
                                                                 job.ReceiverMemory(0), fabric.NewEndpoint()));
                  }
                  return absl::OkStatus();
                })),
            absl::OkStatus());
  testing::PaintSource(job.manifest(), 1, &job.source());
  ASSERT_EQ(publisher->Publish(1, testing::Soon()), absl::OkStatus());
  ASSERT_TRUE(receiver->NextGeneration(testing::Soon()).ok());
  ASSERT_EQ(receiver->Stage(1, job.ReceiverMemory(0)), absl::OkStatus());
  ASSERT_EQ(receiver->Commit(1), absl::OkStatus());
  job.Expect(0, 1);
  EXPECT_EQ(job.Difference(), "");
}

TEST(AddressesTest, OneHostInManySpellingsIsOneJob) {
  ExpectMeet("::1", "[::1]", "[::1]", "[0:0:0:0:0:0:0:1]");
  ExpectMeet("[::1]", "[::1]", "[0::1]", "[::1]");
  ExpectMeet("127.0.0.1", "127.0.0.1", "127.0.0.1", "127.0.0.1");
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "c-ares 1.18 leaks ten bytes whenever it resolves localhost";
#endif
  ExpectMeet("127.0.0.1", "127.0.0.1", "localhost", "127.0.0.1");
}

TEST(AddressesTest, WhereNothingCanListenTheHostIsNamed) {
  for (const char* host : {"fe80::1", "[fe80::1]", "2001:db8::7", "[2001:db8::7]", "203.0.113.7",
                           "no-such-host.invalid", "fe80::1", "[fe80::1]"}) {
    ControlServerOptions server = At(host);
    server.port = 29500;
    server.trust_network = true;
    const absl::Status status = CoordinatorService::Start(OneEngine(), server).status();
    EXPECT_TRUE(HasCode(status, ErrorCode::kInvalidOption)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(host));
  }
}

// A name that cannot be looked up, and an address that was glued to its port: an error that says which, by the
// deadline that was given.
TEST(AddressesTest, WhereNobodyCanBeReachedTheAddressIsNamed) {
  Job job(WholeManifest({{"w", {40}, Dtype::kBF16}}), {});
  MemoryFabric fabric;
  for (const char* address : {"no-such-host.invalid:29500", "::1:29500", "fe80::1:29500", "[fe80::1]:29500"}) {
    ReceiverOptions options = job.OptionsOfReceiver(0);
    options.job.coordinator = address;
    options.job.trust_network = true;
    options.job.connect_timeout = absl::Seconds(1);
    const absl::Status status =
        Receiver::Join(options, job.ReceiverPart(0), job.ReceiverMemory(0), fabric.NewEndpoint()).status();
    EXPECT_TRUE(HasCode(status, ErrorCode::kPeerLost) || HasCode(status, ErrorCode::kInvalidOption)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(address));
  }
}

}  // namespace
}  // namespace headrace
