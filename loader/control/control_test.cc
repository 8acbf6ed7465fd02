// The control service over real loopback sockets.
#include <poll.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/control/control_client.h"
#include "loader/control/control_server.h"
#include "loader/session/session_testing.h"

namespace headrace {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using Kind = ControlEvent::Kind;
using testing::From;

// Far beyond what anything here takes; nothing waits for it unless it fails.
absl::Time Soon() { return absl::Now() + absl::Minutes(3); }

ControlServerOptions ServerOptions() {
  ControlServerOptions options;
  options.token = "secret";
  return options;
}
ControlClientOptions ClientOptions(const std::string& address, const std::string& token = "secret") {
  ControlClientOptions options;
  options.address = address;
  options.token = token;
  return options;
}
proto::Envelope Text(size_t bytes) {
  proto::Envelope message = From(MemberKey::Publisher(0));
  message.mutable_layout()->set_manifest_fragment(std::string(bytes, 'x'));
  return message;
}
std::string CodeIn(const absl::Status& status) { return std::string(CodeOf(status)); }

struct Pair {
  explicit Pair(ControlServerOptions options = ServerOptions()) : Pair(options, ClientOptions("")) {}
  Pair(ControlServerOptions server_options, ControlClientOptions client_options) {
    auto started = ControlServer::Start(server_options, &events);
    EXPECT_TRUE(started.ok()) << started.status();
    server = *std::move(started);
    client_options.address = server->address();
    auto connected = ControlClient::Connect(client_options, Soon());
    EXPECT_TRUE(connected.ok()) << connected.status();
    client = *std::move(connected);
    const auto event = events.Pop(Soon());
    EXPECT_EQ(event->kind, Kind::kConnected);
    connection = event->connection;
  }
  EventQueue events;
  std::unique_ptr<ControlServer> server;
  std::unique_ptr<ControlClient> client;
  ConnectionId connection = 0;
};

TEST(ControlTest, CarriesMessagesBothWaysInOrder) {
  Pair pair;
  for (uint64_t i = 0; i < 300; ++i) {
    proto::Envelope message = From(MemberKey::Publisher(0));
    message.set_epoch(i);
    ASSERT_TRUE(pair.client->Send(message).ok());
    pair.server->Send(pair.connection, message);
  }
  for (uint64_t i = 0; i < 300; ++i) {
    const auto up = pair.events.Pop(Soon());
    ASSERT_EQ(up->kind, Kind::kMessage);
    EXPECT_EQ(up->connection, pair.connection);
    EXPECT_EQ(up->message.epoch(), i);
    const auto down = pair.client->events().Pop(Soon());
    ASSERT_EQ(down->kind, Kind::kMessage);
    EXPECT_EQ(down->message.epoch(), i);
  }
}

TEST(ControlTest, CarriesBigMessages) {
  Pair pair;
  ASSERT_TRUE(pair.client->Send(Text(40 << 20)).ok());
  EXPECT_EQ(pair.events.Pop(Soon())->message.layout().manifest_fragment().size(), size_t{40} << 20);
}

TEST(ControlTest, AWrongTokenIsRefusedBeforeAnythingIsRead) {
  EventQueue events;
  const auto server = *ControlServer::Start(ServerOptions(), &events);
  for (const char* token : {"secre", "secret1", "Secret"}) {
    const auto client = ControlClient::Connect(ClientOptions(server->address(), token), Soon());
    EXPECT_EQ(CodeIn(client.status()), "unauthenticated");
    EXPECT_THAT(client.status().message(), HasSubstr(server->address()));
  }
  EXPECT_EQ(server->refused(), 3);
  EXPECT_FALSE(events.Pop(absl::InfinitePast()).has_value());
}

TEST(ControlTest, TokensThatCannotTravelAreRefused) {
  EventQueue events;
  for (const std::string& token : {std::string(), std::string("a b"), std::string("a\n"), std::string(5000, 'a')}) {
    ControlServerOptions options = ServerOptions();
    options.token = token;
    EXPECT_EQ(CodeIn(ControlServer::Start(options, &events).status()), "invalid_option");
    EXPECT_EQ(CodeIn(ControlClient::Connect(ClientOptions("127.0.0.1:1", token), Soon()).status()), "invalid_option");
  }
}

TEST(ControlTest, APortInUseIsRefused) {
  EventQueue events;
  const auto first = *ControlServer::Start(ServerOptions(), &events);
  ControlServerOptions options = ServerOptions();
  options.port = first->port();
  const absl::Status status = ControlServer::Start(options, &events).status();
  EXPECT_EQ(CodeIn(status), "address_in_use");
  EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("127.0.0.1 port ", first->port())));
}

TEST(ControlTest, AnAddressOfAnotherMachineIsRefused) {
  EventQueue events;
  ControlServerOptions options = ServerOptions();
  options.trust_network = true;
  for (const char* host : {"203.0.113.7", "2001:db8::7"}) {  // RFC 5737, 3849: nobody's
    options.host = host;
    const absl::Status status = ControlServer::Start(options, &events).status();
    EXPECT_EQ(CodeIn(status), "invalid_option");
    EXPECT_THAT(status.message(), HasSubstr(host));
    EXPECT_THAT(status.message(), HasSubstr("it has 127.0.0.1"));
  }
}

TEST(ControlTest, ListensWhereItIsTold) {
  for (const auto& [host, shown] : std::vector<std::pair<std::string, std::string>>{
           {"127.0.0.1", "127.0.0.1"}, {"127.0.0.2", "127.0.0.2"}, {"::1", "[::1]"}, {"[::1]", "[::1]"}}) {
    EventQueue events;
    ControlServerOptions options = ServerOptions();
    options.host = host;
    const auto server = *ControlServer::Start(options, &events);
    EXPECT_GT(server->port(), 0);
    EXPECT_EQ(server->address(), absl::StrCat(shown, ":", server->port()));
    const auto client = ControlClient::Connect(ClientOptions(server->address()), Soon());
    EXPECT_TRUE(client.ok()) << client.status();
  }
}

TEST(ControlTest, ANameOfThisMachineServes) {
  EventQueue events;
  ControlServerOptions options = ServerOptions();
  options.host = "localhost";
  const auto server = *ControlServer::Start(options, &events);
  EXPECT_TRUE(ControlClient::Connect(ClientOptions(server->address()), Soon()).ok());
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "c-ares 1.18 leaks ten bytes whenever it resolves localhost";
#endif
  EXPECT_TRUE(ControlClient::Connect(ClientOptions(absl::StrCat("localhost:", server->port())), Soon()).ok());
}

TEST(ControlTest, AServerThatStartsLateIsFound) {
  EventQueue events;
  ControlServerOptions options = ServerOptions();
  auto first = *ControlServer::Start(options, &events);
  options.port = first->port();
  const std::string address = first->address();
  first = nullptr;
  absl::Status connected = absl::UnknownError("");
  std::thread client([&] { connected = ControlClient::Connect(ClientOptions(address), Soon()).status(); });
  const auto second = ControlServer::Start(options, &events);
  client.join();
  EXPECT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(connected.ok()) << connected;
}

TEST(ControlTest, NobodyAtTheAddressIsPeerLost) {
  std::string address;
  {
    EventQueue events;
    address = (*ControlServer::Start(ServerOptions(), &events))->address();
  }
  const absl::Status status =
      ControlClient::Connect(ClientOptions(address), absl::Now() + absl::Milliseconds(50)).status();
  EXPECT_EQ(CodeIn(status), "peer_lost");
  EXPECT_THAT(status.message(), HasSubstr(address));
}

TEST(ControlTest, TheClientLearnsOfTheServersEnd) {
  Pair pair;
  pair.server = nullptr;
  const auto event = pair.client->events().Pop(Soon());
  EXPECT_EQ(event->kind, Kind::kDisconnected);
  EXPECT_EQ(CodeIn(event->status), "peer_lost");
  EXPECT_EQ(CodeIn(pair.client->Send(Text(1))), "peer_lost");
}

TEST(ControlTest, TheServerLearnsOfTheClientsEnd) {
  Pair pair;
  pair.client = nullptr;
  const auto event = pair.events.Pop(Soon());
  EXPECT_EQ(event->kind, Kind::kDisconnected);
  EXPECT_EQ(event->connection, pair.connection);
  EXPECT_EQ(CodeIn(event->status), "peer_lost");
}

TEST(ControlTest, AnOrderlyEndLosesNothing) {
  Pair pair;
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(pair.client->Send(Text(100'000)).ok());
  // A message of the server's that nobody takes must not hold it up.
  pair.server->Send(pair.connection, Text(10));
  pair.client->Finish(absl::Now());
  for (int i = 0; i < 20; ++i) EXPECT_EQ(pair.events.Pop(Soon())->kind, Kind::kMessage);
  const auto event = pair.events.Pop(Soon());
  EXPECT_EQ(event->kind, Kind::kDisconnected);
  EXPECT_TRUE(event->status.ok()) << event->status;
  pair.client->Finish(Soon());
}

TEST(ControlTest, CloseSendsWhatIsQueued) {
  Pair pair;
  for (int i = 0; i < 20; ++i) pair.server->Send(pair.connection, Text(100'000));
  pair.server->Close(pair.connection);
  for (int i = 0; i < 20; ++i) ASSERT_EQ(pair.client->events().Pop(Soon())->kind, Kind::kMessage);
  const auto event = pair.client->events().Pop(Soon());
  EXPECT_EQ(event->kind, Kind::kDisconnected);
  EXPECT_TRUE(event->status.ok()) << event->status;
}

TEST(ControlTest, OversizeMessagesAreRefusedAtBothEnds) {
  ControlServerOptions server = ServerOptions();
  server.max_message_bytes = 1000;
  {
    ControlClientOptions client = ClientOptions("");
    client.max_message_bytes = 1000;
    Pair pair(server, client);
    EXPECT_EQ(CodeIn(pair.client->Send(Text(2000))), "invalid_option");
    ASSERT_TRUE(pair.client->Send(Text(100)).ok());  // the stream lives
    EXPECT_EQ(pair.events.Pop(Soon())->kind, Kind::kMessage);
    pair.server->Send(pair.connection, Text(2000));
    const auto event = pair.events.Pop(Soon());
    EXPECT_EQ(event->kind, Kind::kDisconnected);
    EXPECT_EQ(CodeIn(event->status), "invalid_option");
    EXPECT_EQ(pair.client->events().Pop(Soon())->kind, Kind::kDisconnected);
  }
  // A client that keeps to no limit of its own.
  Pair pair(server, ClientOptions(""));
  ASSERT_TRUE(pair.client->Send(Text(2000)).ok());
  EXPECT_EQ(pair.events.Pop(Soon())->kind, Kind::kDisconnected);
  const auto event = pair.client->events().Pop(Soon());
  EXPECT_EQ(event->kind, Kind::kDisconnected);
  EXPECT_THAT(CodeIn(event->status), AnyOf("invalid_option", "peer_lost"));
}

TEST(ControlTest, AMemberThatDoesNotReadIsCutAndHoldsUpNobody) {
  ControlServerOptions options = ServerOptions();
  options.max_queued_bytes = 8 << 20;
  Pair pair(options);
  const auto other = *ControlClient::Connect(ClientOptions(pair.server->address()), Soon());
  const ConnectionId other_connection = pair.events.Pop(Soon())->connection;
  // The first client pops nothing, so that its window fills up.
  for (int i = 0; i < 64; ++i) pair.server->Send(pair.connection, Text(1 << 20));
  pair.server->Send(other_connection, Text(1));
  EXPECT_EQ(other->events().Pop(Soon())->kind, Kind::kMessage);
  const auto event = pair.events.Pop(Soon());
  EXPECT_EQ(event->kind, Kind::kDisconnected);
  EXPECT_EQ(event->connection, pair.connection);
  EXPECT_THAT(std::string(event->status.message()), HasSubstr("does not read"));
}

TEST(ControlTest, TheEventDescriptorSaysWhenThereIsSomething) {
  Pair pair;
  pollfd descriptor = {pair.client->events().event_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&descriptor, 1, 0), 0);
  pair.server->Send(pair.connection, Text(1));
  EXPECT_EQ(poll(&descriptor, 1, 60'000), 1);
  EXPECT_TRUE(pair.client->events().Pop(absl::InfinitePast()).has_value());
  EXPECT_EQ(poll(&descriptor, 1, 0), 0);
  pair.client->events().Wake();
  EXPECT_EQ(poll(&descriptor, 1, 0), 1);
  EXPECT_FALSE(pair.client->events().Pop(Soon()).has_value());
}

}  // namespace
}  // namespace headrace
