// Who calls at an endpoint's port and is no peer, and peers that break the protocol: only their own link suffers.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "loader/testing/nccl_checker/checker_testing.h"
#include "loader/testing/nccl_checker/nccl_checker.h"
#include "loader/transport/nccl/address.h"
#include "loader/transport/nccl/connection.h"
#include "loader/transport/nccl/lane.h"
#include "loader/transport/nccl/library.h"
#include "loader/transport/nccl/link.h"
#include "loader/transport/nccl/nccl.h"
#include "planner/status.h"

namespace headrace::nccl {
namespace {

using ::headrace::nccl_checker::TestSeed;
using Bytes = std::vector<std::byte>;

absl::Time Soon() { return absl::Now() + absl::Minutes(3); }

std::unique_ptr<Transport> OnGpu(int gpu) {
  NcclOptions options;
  options.gpu = gpu;
  auto transport = NewNcclTransport(options);
  nccl_checker::Must(!transport.ok(), "NewNcclTransport");
  return *std::move(transport);
}

void Write(int socket, const std::string& text) {
  // Who is called may have hung up before all was said.
  (void)!send(socket, text.data(), text.size(), MSG_NOSIGNAL);
}

// Two endpoints that go on with each other, and who calls at the first of them.
class StrangersTest : public testing::Test {
 protected:
  StrangersTest() : a_(OnGpu(0)), b_(OnGpu(1)) {
    to_b_ = a_->Connect(b_->address(), Soon()).value();
    to_a_ = b_->Connect(a_->address(), Soon()).value();
    at_ = ParseAddress(a_->address()).value();
  }

  Descriptor Call() { return Dial(at_.ip, at_.port, Soon()).value(); }

  std::vector<Completion> PollBoth() {
    std::vector<Completion> completions;
    a_->Poll(absl::Milliseconds(1), &completions);
    std::vector<Completion> others;
    b_->Poll(absl::Milliseconds(1), &others);
    others_done_ += others.size();
    for (const Completion& completion : others) EXPECT_TRUE(completion.status.ok()) << completion.status;
    return completions;
  }

  // Messages between a and b arrive.
  void ExpectOthersGoOn() {
    const Bytes sent(300000, std::byte{7});
    Bytes received(sent.size());
    const OpId send = a_->Send(to_b_, 1, sent).value();
    others_done_ = 0;
    ASSERT_TRUE(b_->Receive(to_a_, 1, absl::MakeSpan(received)).ok());
    bool left = false;
    for (const absl::Time deadline = Soon(); !left || others_done_ == 0;) {
      ASSERT_LT(absl::Now(), deadline);
      for (const Completion& completion : PollBoth()) {
        EXPECT_TRUE(completion.status.ok()) << completion.status;
        left |= completion.op == send;
      }
    }
    EXPECT_TRUE(received == sent);
  }

  std::unique_ptr<Transport> a_, b_;
  PeerId to_a_ = 0, to_b_ = 0;
  Address at_;
  size_t others_done_ = 0;
};

TEST_F(StrangersTest, GarbageOfAllKinds) {
  std::mt19937_64 random(TestSeed());
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 200; ++i) {
    strangers.push_back(Call());
    wire::Frame hello;
    hello.mutable_hello()->set_cookie(std::string(i % 3 == 0 ? 32 : random() % 100, 'x'));
    hello.mutable_hello()->set_address(b_->address());
    std::string text;
    if (i % 2 == 0) {
      text = hello.SerializeAsString();
      text = std::string{static_cast<char>(text.size()), 0, 0, 0} + text;
      text.resize(random() % (text.size() + 1));
    } else {
      text.resize(random() % 200000);
      for (char& c : text) c = static_cast<char>(random());
    }
    Write(strangers.back().get(), text);
    if (random() % 8 == 0) strangers.back().Reset();
    if (random() % 8 == 0) PollBoth();
  }
  ExpectOthersGoOn();
}

// Speaks the protocol, badly.
class BadPeer {
 public:
  explicit BadPeer(const Address& to) : listener_(ListenOn("lo").value()) {
    out_ = std::make_unique<Connection>(Dial(to.ip, to.port, Soon()).value());
    wire::Frame hello;
    hello.mutable_hello()->set_cookie(to.cookie.data(), to.cookie.size());
    hello.mutable_hello()->set_address(address());
    hello.mutable_hello()->set_host("another");
    Say(hello);
  }
  std::string address() const { return FormatAddress({Cookie{}, listener_.ip, listener_.port}); }
  void Say(const wire::Frame& frame) {
    out_->Queue(frame);
    out_->Flush();
  }
  void Communicate() {
    UniqueId id;
    nccl_checker::Must((*LoadLibrary(""))->ncclGetUniqueId(&id), "ncclGetUniqueId");
    wire::Frame frame;
    frame.mutable_communicator()->set_id(id.internal, sizeof id.internal);
    Say(frame);
  }
  void AskFor(const std::vector<uint64_t>& offers) {
    wire::Frame frame;
    for (uint64_t offer : offers) frame.mutable_group()->add_offers(offer);
    Say(frame);
  }
  void Offer(uint64_t tag, const std::string& content) {
    wire::Frame frame;
    frame.mutable_offer()->set_tag(tag);
    frame.mutable_offer()->set_bytes(content.size());
    frame.mutable_offer()->set_content(content);
    Say(frame);
  }
  // Whether something waits for the kernel to take it.
  bool Talks() { return out_->Flush() && out_->unwritten(); }
  int socket() const { return out_->socket(); }

 private:
  Listener listener_;
  std::unique_ptr<Connection> out_;
};

TEST_F(StrangersTest, PeersThatBreakTheProtocol) {
  struct Case {
    const char* name;
    std::function<void(BadPeer&)> say;
  };
  const std::vector<Case> cases = {
      {"a group without a communicator", [](BadPeer& peer) { peer.AskFor({0}); }},
      {"offers that were not made",
       [](BadPeer& peer) {
         peer.Communicate();
         peer.AskFor({0, 77});
       }},
      {"an offer twice",
       [](BadPeer& peer) {
         peer.Communicate();
         peer.AskFor({1, 1});
       }},
      {"an empty group",
       [](BadPeer& peer) {
         peer.Communicate();
         peer.AskFor({});
       }},
      {"too many operations",
       [](BadPeer& peer) {
         peer.Communicate();
         peer.AskFor(std::vector<uint64_t>(Lane::kMaxOperations + 1, 0));
       }},
      {"a frame that is too long", [](BadPeer& peer) { peer.AskFor(std::vector<uint64_t>(1000000, 1)); }},
      {"too many bytes",
       [](BadPeer& peer) {
         peer.Communicate();
         peer.AskFor({0, 1});
       }},
      {"two communicators",
       [](BadPeer& peer) {
         peer.Communicate();
         peer.Communicate();
       }},
      {"a short id",
       [](BadPeer& peer) {
         wire::Frame frame;
         frame.mutable_communicator()->set_id("short");
         peer.Say(frame);
       }},
      {"more content than was said",
       [](BadPeer& peer) {
         wire::Frame frame;
         frame.mutable_offer()->set_bytes(3);
         frame.mutable_offer()->set_content("four");
         peer.Say(frame);
       }},
      {"less content than was said",
       [](BadPeer& peer) {
         wire::Frame frame;
         frame.mutable_offer()->set_bytes(3000);
         frame.mutable_offer()->set_content("four");
         peer.Say(frame);
       }},
      {"a second hello",
       [](BadPeer& peer) {
         wire::Frame frame;
         frame.mutable_hello();
         peer.Say(frame);
       }},
      {"nothing known", [](BadPeer& peer) { peer.Say(wire::Frame()); }},
      {"numbers out of range, then the end",
       [](BadPeer& peer) {
         wire::Frame frame;
         frame.set_refused(UINT64_MAX);
         peer.Say(frame);
         frame.set_dropped(UINT64_MAX);
         peer.Say(frame);
         frame.mutable_arrived()->set_groups(UINT64_MAX);
         peer.Say(frame);
         frame.set_gave_up_receiving(true);
         peer.Say(frame);
         frame.set_gave_up_sending(true);
         peer.Say(frame);
         shutdown(peer.socket(), SHUT_RDWR);
       }},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    BadPeer bad(at_);
    const PeerId peer = a_->Connect(bad.address(), Soon()).value();
    const Bytes message(3000000, std::byte{1});
    Bytes received(300);
    std::vector<OpId> ops = {a_->Send(peer, 1, message).value(), a_->Send(peer, 2, message).value(),
                             a_->Receive(peer, 3, absl::MakeSpan(received)).value()};
    one.say(bad);
    for (const absl::Time deadline = Soon(); !ops.empty();) {
      ASSERT_LT(absl::Now(), deadline) << ops.size() << " operations never end";
      for (const Completion& completion : PollBoth()) {
        EXPECT_EQ(std::erase(ops, completion.op), 1u);
        EXPECT_TRUE(HasCode(completion.status, ErrorCode::kTransport) ||
                    HasCode(completion.status, ErrorCode::kPeerLost))
            << completion.status;
      }
    }
    ExpectOthersGoOn();
    a_->Disconnect(peer);
  }
}

// As many as may wait do; one more is too many.
TEST_F(StrangersTest, MessagesWithoutEnd) {
  constexpr uint64_t kLastTag = 1 << 20;
  BadPeer bad(at_);
  const PeerId peer = a_->Connect(bad.address(), Soon()).value();
  const std::string content(Link::kInlineBytes, 'x');
  std::vector<Completion> done;
  const auto listen_until = [&](auto&& heard) {
    for (const absl::Time deadline = Soon(); !heard();) {
      ASSERT_LT(absl::Now(), deadline);
      for (Completion& completion : PollBoth()) done.push_back(std::move(completion));
    }
  };
  const auto talk = [&] { listen_until([&] { return !bad.Talks(); }); };
  for (uint64_t i = 1; i <= Link::kMaxWaiting; ++i) {
    bad.Offer(i % 2 == 0 ? 0 : i, content);
    if (i % 1000 == 0) talk();
  }
  // They are still told apart by tag, and make room.
  Bytes first(content.size()), last(content.size()), never(content.size());
  ASSERT_TRUE(a_->Receive(peer, kLastTag, absl::MakeSpan(last)).ok());
  bad.Offer(kLastTag, content);
  listen_until([&] { return done.size() == 1; });
  EXPECT_TRUE(done[0].status.ok()) << done[0].status;
  ASSERT_TRUE(a_->Receive(peer, 1, absl::MakeSpan(first)).ok());
  listen_until([&] { return done.size() == 2; });
  EXPECT_TRUE(done[1].status.ok()) << done[1].status;
  const OpId pending = a_->Receive(peer, kLastTag, absl::MakeSpan(never)).value();
  bad.Offer(1, content);  // takes the room
  bad.Offer(1, content);
  bad.Offer(kLastTag, content);
  listen_until([&] { return done.size() == 3; });
  EXPECT_EQ(done[2].op, pending);
  EXPECT_TRUE(HasCode(done[2].status, ErrorCode::kTransport)) << done[2].status;
  const Address at = ParseAddress(bad.address()).value();
  for (const std::string& part : {absl::StrCat(at.ip, " port ", at.port), absl::StrCat(Link::kMaxWaiting)}) {
    EXPECT_NE(done[2].status.message().find(part), std::string::npos) << done[2].status;
  }
  EXPECT_FALSE(a_->Receive(peer, kLastTag, absl::MakeSpan(never)).ok());
  ExpectOthersGoOn();
}

// An endpoint in a process that may open few descriptors; sends back what it gets.
void Echo() {
  std::string address;
  std::getline(std::cin, address);
  const rlimit few{100, 100};
  nccl_checker::Must(setrlimit(RLIMIT_NOFILE, &few), "setrlimit");
  const std::unique_ptr<Transport> endpoint = OnGpu(1);
  const PeerId peer = endpoint->Connect(address, Soon()).value();
  std::printf("%s\n", endpoint->address().c_str());
  std::fflush(stdout);
  Bytes message(100);
  endpoint->Receive(peer, 1, absl::MakeSpan(message)).value();
  while (true) {
    std::vector<Completion> completions;
    endpoint->Poll(absl::Seconds(1), &completions);
    for (const Completion& completion : completions) {
      nccl_checker::Must(!completion.status.ok(), "the message");
      endpoint->Send(peer, 2, message).value();
    }
  }
}

TEST(FloodTest, ThousandsWhoSayNothing) {
  const std::unique_ptr<Transport> endpoint = OnGpu(0);
  nccl_checker::Child child("Echo", {}, endpoint->address());
  const std::string address = child.ReadLine();
  const Address at = ParseAddress(address).value();
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 900; ++i) {
    absl::StatusOr<Descriptor> stranger = Dial(at.ip, at.port, Soon());
    ASSERT_TRUE(stranger.ok()) << stranger.status();
    strangers.push_back(*std::move(stranger));
  }
  const PeerId peer = endpoint->Connect(address, Soon()).value();
  const Bytes sent(100, std::byte{5});
  Bytes received(100);
  endpoint->Send(peer, 1, sent).value();
  endpoint->Receive(peer, 2, absl::MakeSpan(received)).value();
  std::vector<Completion> completions;
  // Of 900, those who wait are sent away a hundred at a time, not when their time is over.
  for (const absl::Time deadline = Soon(); completions.size() < 2 && absl::Now() < deadline;) {
    endpoint->Poll(absl::Seconds(1), &completions);
  }
  ASSERT_EQ(completions.size(), 2u);
  for (const Completion& completion : completions) EXPECT_TRUE(completion.status.ok()) << completion.status;
  EXPECT_TRUE(received == sent);
}

}  // namespace
}  // namespace headrace::nccl

int main(int argc, char** argv) {
  setenv("HEADRACE_CUDA_RUNTIME", headrace::nccl_checker::kLibraryPath, 0);
  setenv("HEADRACE_NCCL", headrace::nccl_checker::kLibraryPath, 0);
  return headrace::nccl_checker::CheckerTestMain(argc, argv, {{"Echo", headrace::nccl::Echo}});
}
