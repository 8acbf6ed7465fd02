#ifndef HEADRACE_LOADER_SESSION_COORDINATOR_TESTING_H_
#define HEADRACE_LOADER_SESSION_COORDINATOR_TESTING_H_

// Test only: a coordinator and the streams of its five members.

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/session/coordinator.h"
#include "loader/session/session_testing.h"

namespace headrace::testing {

// Two publishers, an engine of two workers and one of one worker, each on the connection of its place in this list.
inline const std::vector<MemberKey> kMembers = {MemberKey::Publisher(0), MemberKey::Publisher(1),
                                                MemberKey::Receiver(0, 0), MemberKey::Receiver(0, 1),
                                                MemberKey::Receiver(1, 0)};

class CoordinatorTest : public ::testing::Test {
 protected:
  CoordinatorTest() { Restart(Options()); }
  void Restart(const CoordinatorOptions& options) {
    machine_.emplace(options, now_);
    for (size_t c = 0; c < kMembers.size(); ++c) machine_->OnConnected(c, now_, &actions_);
  }

  static CoordinatorOptions Options() {
    CoordinatorOptions options;
    options.job = "job";
    options.incarnation = "run-1";
    options.publishers = 2;
    options.workers = {2, 1};
    return options;
  }
  static ConnectionId At(const MemberKey& key) {
    return std::find(kMembers.begin(), kMembers.end(), key) - kMembers.begin();
  }
  void Die(ConnectionId connection) {
    actions_ = {};
    machine_->OnDisconnected(connection, Error(ErrorCode::kPeerLost, "reset"), now_, &actions_);
  }

  CoordinatorActions& Tell(ConnectionId connection, const proto::Envelope& message) {
    actions_ = {};
    machine_->OnMessage(connection, message, now_, &actions_);
    return actions_;
  }
  CoordinatorActions& Tell(const proto::Envelope& message) {
    return Tell(At(MemberKey::From(message.from())), message);
  }
  CoordinatorActions& Tick(int64_t by_ns) {
    now_ += by_ns;
    actions_ = {};
    machine_->OnTick(now_, &actions_);
    return actions_;
  }
  // What went to one connection.
  std::vector<proto::Envelope> To(ConnectionId connection) const {
    std::vector<proto::Envelope> messages;
    for (const auto& outgoing : actions_.messages)
      if (outgoing.connection == connection) messages.push_back(outgoing.message);
    return messages;
  }
  // "code: message" of the Refused or Failed that went to the connection; nobody else got anything.
  std::string Refusal(ConnectionId connection) const {
    if (actions_.messages.size() != 1 || actions_.messages[0].connection != connection) return "";
    const proto::Envelope& message = actions_.messages[0].message;
    if (message.has_refused()) return message.refused().why().code() + ": " + message.refused().why().message();
    if (message.has_failed()) return message.failed().why().code() + ": " + message.failed().why().message();
    return "";
  }
  // The status of the Suspended or Failed that went to the connection last, OK where there is none.
  absl::Status Told(ConnectionId connection) const {
    absl::Status told;
    for (const proto::Envelope& message : To(connection)) {
      if (message.has_suspended()) told = FromFault(message.suspended().why());
      if (message.has_failed()) told = FromFault(message.failed().why());
    }
    return told;
  }
  // Everybody but `except` was told that the job is over.
  void ExpectEnded(const std::string& code, const std::string& text, int except = -1) {
    for (int c = 0; c < static_cast<int>(kMembers.size()); ++c) {
      if (c == except) continue;
      const std::vector<proto::Envelope> messages = To(c);
      ASSERT_FALSE(messages.empty()) << c;
      EXPECT_EQ(messages.back().failed().why().code(), code);
      EXPECT_THAT(messages.back().failed().why().message(), ::testing::HasSubstr(text));
      EXPECT_THAT(actions_.close, ::testing::Contains(c));
    }
    EXPECT_EQ(machine_->phase(), Coordinator::Phase::kEnded);
    EXPECT_EQ(CodeOf(machine_->status()), code);
  }

  void Join() {
    for (const MemberKey& key : kMembers) Tell(Hello(key));
    for (const MemberKey& key : kMembers) {
      proto::Envelope layout = From(key);
      *layout.mutable_layout() = LayoutOf();
      Tell(layout);
    }
  }
  proto::Envelope PlanOf(const MemberKey& key, const std::string& digest = "d") {
    proto::Envelope planned = From(key);
    planned.mutable_planned();
    for (int p = 0; p < 2; ++p)
      for (const MemberKey& r : {kMembers[2], kMembers[3], kMembers[4]})
        if (key == r || key == MemberKey::Publisher(p))
          *planned.mutable_planned()->add_edges() = EdgeOf(p, r.engine, r.rank, digest);
    return planned;
  }
  void MakeReady() {
    Join();
    for (const MemberKey& key : kMembers) Tell(PlanOf(key));
  }
  void Announce(uint64_t generation, int slot = 0) {
    Tell(PublishedOf(0, generation, slot));
    Tell(PublishedOf(1, generation, slot));
  }
  void Release(uint64_t generation) {
    for (int i = 2; i < 5; ++i) {
      proto::Envelope release = From(kMembers[i]);
      release.mutable_release()->set_generation(generation);
      Tell(release);
    }
  }

  int64_t now_ = 5 * kSecond;
  CoordinatorActions actions_;
  std::optional<Coordinator> machine_;
};

}  // namespace headrace::testing

#endif  // HEADRACE_LOADER_SESSION_COORDINATOR_TESTING_H_
