// TLS of the control service over real loopback sockets.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/control/control_client.h"
#include "loader/control/control_server.h"
#include "loader/control/testing/certificates.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using Kind = ControlEvent::Kind;
using testing::CertificateAuthority;
using testing::CertificateFiles;

// Far beyond what anything here takes; nothing waits for it unless it fails.
absl::Time Soon() { return absl::Now() + absl::Minutes(3); }

std::string Contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class ControlTlsTest : public ::testing::Test {
 protected:
  void Start(const CertificateFiles& certificate, const std::string& client_ca = "",
             const std::string& host = "127.0.0.1") {
    ControlServerOptions options;
    options.host = host;
    options.token = "secret";
    options.tls = {
        .certificate_file = certificate.certificate, .key_file = certificate.key, .client_ca_file = client_ca};
    auto started = ControlServer::Start(options, &events_);
    ASSERT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
    address_ = server_->address();
  }
  // Without a certificate of its own, where none is given.
  absl::StatusOr<std::unique_ptr<ControlClient>> Connect(const CertificateAuthority& ca,
                                                         const CertificateFiles& own = {},
                                                         const std::string& server_name = "") {
    options_.address = address_;
    options_.tls = {
        .ca_file = ca.file(), .certificate_file = own.certificate, .key_file = own.key, .server_name = server_name};
    return ControlClient::Connect(options_, deadline_);
  }
  void ExpectWorks(const absl::StatusOr<std::unique_ptr<ControlClient>>& client) {
    ASSERT_TRUE(client.ok()) << client.status();
    ASSERT_EQ(events_.Pop(Soon())->kind, Kind::kConnected);
    proto::Envelope message;
    message.set_epoch(7);
    ASSERT_TRUE((*client)->Send(message).ok());
    EXPECT_EQ(events_.Pop(Soon())->message.epoch(), 7u);
  }
  // No stream, and no token, has come in.
  void ExpectNothingShown() {
    EXPECT_FALSE(events_.Pop(absl::InfinitePast()).has_value());
    EXPECT_EQ(server_->refused(), 0);
  }

  const CertificateAuthority ca_{::testing::TempDir(), "ca"};
  const CertificateAuthority stranger_{::testing::TempDir(), "stranger"};
  const CertificateFiles here_ = ca_.Issue("here", {"127.0.0.1", "::1"});
  EventQueue events_;
  std::unique_ptr<ControlServer> server_;
  std::string address_;
  ControlClientOptions options_{.address = "", .token = "secret", .tls = {}};
  absl::Time deadline_ = Soon();
};

TEST_F(ControlTlsTest, CarriesMessages) {
  Start(here_);
  ExpectWorks(Connect(ca_));
}

TEST_F(ControlTlsTest, CarriesMessagesOverIpv6) {
  Start(here_, "", "::1");
  EXPECT_EQ(address_, absl::StrCat("[::1]:", server_->port()));
  ExpectWorks(Connect(ca_));
}

TEST_F(ControlTlsTest, ACertificateForANameServesWhereTheNameIsGiven) {
  Start(ca_.Issue("named", {"trainer.example"}));
  ExpectWorks(Connect(ca_, {}, "trainer.example"));
}

TEST_F(ControlTlsTest, AWrongTokenIsStillRefused) {
  Start(here_, ca_.file());
  options_.token = "guess";
  const absl::Status status = Connect(ca_, ca_.Issue("member", {})).status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kUnauthenticated)) << status;
  EXPECT_EQ(server_->refused(), 1);
}

TEST_F(ControlTlsTest, AServerOfAnotherCaGetsNothing) {
  Start(here_);
  const absl::Status status = Connect(stranger_).status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kUnauthenticated)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(address_));
  EXPECT_THAT(std::string(status.message()), HasSubstr(stranger_.file()));
  ExpectNothingShown();
}

TEST_F(ControlTlsTest, AServerOfAnotherNameGetsNothing) {
  Start(ca_.Issue("named", {"trainer.example", "10.1.2.3"}));
  for (const char* name : {"", "engine.example", "10.1.2.4"}) {
    const absl::Status status = Connect(ca_, {}, name).status();
    EXPECT_TRUE(HasCode(status, ErrorCode::kUnauthenticated)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(*name == 0 ? "not for 127.0.0.1" : name));
  }
  ExpectNothingShown();
}

TEST_F(ControlTlsTest, ACertificateThatIsNotValidYetGetsNothing) {
  Start(ca_.Issue("early", {"127.0.0.1"}, absl::Hours(1), absl::Hours(2)));
  const absl::Status status = Connect(ca_).status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kUnauthenticated)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("time"));
  ExpectNothingShown();
}

TEST_F(ControlTlsTest, ACertificateThatHasExpiredGetsNothing) {
  // A server that does not look at its own, as ours does.
  const CertificateFiles old = ca_.Issue("old", {"127.0.0.1"}, -absl::Hours(1), -absl::Minutes(1));
  grpc::SslServerCredentialsOptions credentials;
  credentials.pem_key_cert_pairs.push_back({Contents(old.key), Contents(old.certificate)});
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(credentials), &port);
  grpc::CallbackGenericService nothing;
  builder.RegisterCallbackGenericService(&nothing);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  address_ = absl::StrCat("127.0.0.1:", port);
  const absl::Status status = Connect(ca_).status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kUnauthenticated)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("not valid"));
  server->Shutdown();
}

TEST_F(ControlTlsTest, AMemberThatUsesTlsSendsNothingInClear) {
  ControlServerOptions options;
  options.token = "secret";
  server_ = *ControlServer::Start(options, &events_);
  address_ = server_->address();
  const absl::Status status = Connect(ca_).status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kTransport)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no TLS"));
  ExpectNothingShown();
}

// The next three wait for their deadline: whoever closes a connection at once may be a server that is still to come.
TEST_F(ControlTlsTest, AMemberWithoutTlsIsRefused) {
  Start(here_);
  options_.address = address_;
  const absl::Status status = ControlClient::Connect(options_, absl::Now() + absl::Seconds(2)).status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kPeerLost)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("does it use TLS"));
  ExpectNothingShown();
}

TEST_F(ControlTlsTest, AMemberWithoutACertificateIsRefusedWhereOneIsDemanded) {
  Start(here_, ca_.file());
  deadline_ = absl::Now() + absl::Seconds(2);
  const absl::Status status = Connect(ca_).status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kPeerLost)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("certificate"));
  ExpectNothingShown();
}

TEST_F(ControlTlsTest, AMemberOfAnotherCaIsRefused) {
  Start(here_, ca_.file());
  deadline_ = absl::Now() + absl::Seconds(2);
  const absl::Status status = Connect(ca_, stranger_.Issue("member", {})).status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kPeerLost)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("certificate"));
  ExpectNothingShown();
}

TEST_F(ControlTlsTest, AMemberOfTheRightCaIsWelcome) {
  Start(here_, ca_.file());
  ExpectWorks(Connect(ca_, ca_.Issue("member", {})));
}

TEST_F(ControlTlsTest, StrangersBytesHoldUpNobody) {
  Start(here_);
  std::vector<int> strangers;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(server_->port()));
  for (const std::string& bytes : {std::string(), std::string("GET / HTTP/1.1\r\n\r\n"), std::string(5000, '\x16'),
                                   std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")}) {
    const int fd = strangers.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  ExpectWorks(Connect(ca_));
  for (int fd : strangers) close(fd);
}

TEST_F(ControlTlsTest, AServersWordsAreNotTakenForAHandshake) {
  class Impostor final : public grpc::CallbackGenericService {
   public:
    grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
      class Reactor final : public grpc::ServerGenericBidiReactor {
       public:
        Reactor() { Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "certificate verify failed")); }
        void OnDone() override { delete this; }
      };
      return new Reactor;
    }
  };
  Impostor impostor;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&impostor);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  options_.address = absl::StrCat("127.0.0.1:", port);
  const absl::Status status = ControlClient::Connect(options_, absl::Now() + absl::Milliseconds(500)).status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kPeerLost)) << status;
}

TEST_F(ControlTlsTest, FilesThatDoNotServeAreNamedAtTheStart) {
  ControlServerOptions options;
  options.token = "secret";
  options.tls = {.certificate_file = here_.certificate, .key_file = ca_.file(), .client_ca_file = ""};
  const absl::Status status = ControlServer::Start(options, &events_).status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kInvalidOption)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(ca_.file()));
  address_ = "127.0.0.1:1";
  const absl::Status client = Connect(ca_, {.certificate = here_.certificate, .key = "/nowhere/at.all"}).status();
  EXPECT_TRUE(HasCode(client, ErrorCode::kIo)) << client;
  EXPECT_THAT(std::string(client.message()), HasSubstr("/nowhere/at.all"));
}

TEST_F(ControlTlsTest, ATokenNeverCrossesANetworkInClearUnasked) {
  ControlServerOptions options;
  options.token = "secret";
  options.host = "0.0.0.0";
  absl::Status status = ControlServer::Start(options, &events_).status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kInvalidOption)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("trust_network"));
  options.trust_network = true;
  server_ = *ControlServer::Start(options, &events_);

  // RFC 5737: nobody is there, and nobody is asked.
  for (const std::string& address : {std::string("203.0.113.7:1"), std::string("trainer.example:1"),
                                     absl::StrCat("ipv4:127.0.0.1:", server_->port(), ",203.0.113.7:1")}) {
    options_.address = address;
    status = ControlClient::Connect(options_, Soon()).status();
    EXPECT_TRUE(HasCode(status, ErrorCode::kInvalidOption)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(address));
  }
  ExpectNothingShown();
  options_.address = absl::StrCat("0.0.0.0:", server_->port());
  options_.trust_network = true;
  ExpectWorks(ControlClient::Connect(options_, Soon()));
}

}  // namespace
}  // namespace headrace
