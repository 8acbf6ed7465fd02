#ifndef HEADRACE_LOADER_SESSION_JOB_TESTING_H_
#define HEADRACE_LOADER_SESSION_JOB_TESTING_H_

// Test only: a coordinator, real sessions and owners that obey, step by step: what a test does not hold back arrives at
// once and in order.

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "loader/session/coordinator.h"
#include "loader/session/publisher_session.h"
#include "loader/session/receiver_session.h"
#include "loader/session/session_testing.h"
#include "planner/status.h"

namespace headrace::testing {

class Job : public ::testing::Test {
 protected:
  struct Node {
    std::unique_ptr<MemberSession> session;
    PublisherSession* publisher = nullptr;
    ReceiverSession* receiver = nullptr;
    std::optional<ConnectionId> connection;
    std::deque<proto::Envelope> down;
    bool deaf = false;  // what comes to it stays in `down`
    bool mute = false;  // what it says stays in `up`
    std::deque<proto::Envelope> up;
    std::vector<MemberEffect> effects;  // since Forget()
    std::optional<uint64_t> to_commit;
    int plans = 0;
  };

  // Every receiver gets bytes from every publisher of `needed_`, and a plan needs them all; so it does an engine that
  // is not in `bad_`.
  void Start(int publishers, std::vector<int> workers, int64_t rejoin_ns) {
    options_ = CoordinatorOptions();
    options_.job = "job";
    options_.incarnation = "run-1";
    options_.publishers = publishers;
    options_.workers = std::move(workers);
    options_.timeouts.rejoin_ns = rejoin_ns;
    needed_.clear();
    for (int rank = 0; rank < publishers; ++rank) needed_.insert(rank);
    nodes_.clear();
    coordinator_.emplace(options_, now_);
    for (int rank = 0; rank < publishers; ++rank) Come(MemberKey::Publisher(rank));
    for (size_t engine = 0; engine < options_.workers.size(); ++engine)
      for (int worker = 0; worker < options_.workers[engine]; ++worker)
        Come(MemberKey::Receiver(static_cast<int>(engine), worker));
  }
  // A new process with this identity; the one before, if any, must be dead.
  Node& Come(MemberKey key, int workers = 0, const ReceiverState& initial = {}) {
    MemberOptions options;
    options.job = "job";
    options.self = key;
    options.workers = workers;
    options.host = "a";
    options.pid = ++pid_;
    options.layout = LayoutOf(slots_);
    options.layout.set_hold(key.is_standby());
    options.timeouts.rejoin_ns = 0;  // the coordinator's counts
    options.coordinator_address = "c:1";
    Node& node = nodes_[key];
    node = Node();
    if (key.role == proto::PUBLISHER) {
      auto session = std::make_unique<PublisherSession>(options);
      node.publisher = session.get();
      node.session = std::move(session);
    } else {
      auto session = std::make_unique<ReceiverSession>(options, initial);
      node.receiver = session.get();
      node.session = std::move(session);
    }
    Connect(key);
    return node;
  }
  void Connect(const MemberKey& key) {
    Node& node = nodes_.at(key);
    node.connection = ++last_connection_;
    node.up.clear();
    node.down.clear();
    CoordinatorActions actions;
    coordinator_->OnConnected(*node.connection, now_, &actions);
    Do(&actions);
    MemberActions mine;
    node.session->OnConnected(now_, &mine);
    Do(key, &mine);
    Pump();
  }
  // The process is gone.
  void Die(const MemberKey& key) {
    const ConnectionId connection = *nodes_.at(key).connection;
    nodes_.erase(key);
    Hear(connection);
    Pump();
  }
  // Only its stream is, and both ends notice.
  void Cut(const MemberKey& key) {
    const ConnectionId connection = *nodes_.at(key).connection;
    LoseStream(key);
    Hear(connection);
    Pump();
  }
  // Another coordinator in its place; the members have yet to connect.
  void ReplaceCoordinator() {
    for (auto& [key, node] : nodes_) LoseStream(key);
    coordinator_.emplace(options_, now_);
  }
  void LoseStream(const MemberKey& key) {
    Node& node = nodes_.at(key);
    node.connection.reset();
    node.up.clear();
    node.down.clear();
    MemberActions actions;
    node.session->OnDisconnected(Error(ErrorCode::kPeerLost, "reset"), now_, &actions);
    Do(key, &actions);
  }
  void Hear(ConnectionId connection) {
    CoordinatorActions actions;
    coordinator_->OnDisconnected(connection, Error(ErrorCode::kPeerLost, "reset"), now_, &actions);
    Do(&actions);
  }
  void Leave(const MemberKey& key) {
    MemberActions actions;
    EXPECT_TRUE(nodes_.at(key).session->Leave(now_, &actions).ok());
    Do(key, &actions);
    Pump();
  }
  // In steps that no heartbeat misses.
  void Pass(int64_t ns) {
    for (const int64_t end = now_ + ns; now_ < end;) {
      now_ = std::min(end, now_ + kSecond / 2);
      CoordinatorActions actions;
      coordinator_->OnTick(now_, &actions);
      Do(&actions);
      for (auto& [key, node] : nodes_) {
        MemberActions mine;
        node.session->OnTick(now_, &mine);
        Do(key, &mine);
      }
      Pump();
    }
  }

  void Publish(int rank, uint64_t generation) {
    MemberActions actions;
    const absl::Status status =
        nodes_.at(MemberKey::Publisher(rank)).publisher->Publish(generation, kNoDeadline, now_, &actions);
    EXPECT_TRUE(status.ok()) << status;
    Do(MemberKey::Publisher(rank), &actions);
    Pump();
  }
  void PublishAll(uint64_t generation) {
    for (int rank = 0; rank < options_.publishers; ++rank)
      if (nodes_.contains(MemberKey::Publisher(rank))) Publish(rank, generation);
  }
  void Begin(const MemberKey& key, uint64_t generation, bool live = false) {
    const absl::Status status = nodes_.at(key).receiver->Begin(generation, live);
    EXPECT_TRUE(status.ok()) << NameOf(key) << ": " << status;
  }
  void Vote(const MemberKey& key, uint64_t generation, const absl::Status& verdict = absl::OkStatus()) {
    MemberActions actions;
    const absl::Status status = nodes_.at(key).receiver->Vote(generation, verdict, now_, &actions);
    EXPECT_TRUE(status.ok()) << NameOf(key) << ": " << status;
    Do(key, &actions);
    Pump();
  }
  void Read(const MemberKey& key, uint64_t generation) {
    Begin(key, generation);
    Vote(key, generation);
  }
  // With hold_commits_: what CommitEffect asked for.
  void Commit(const MemberKey& key) {
    CommitNow(key);
    Pump();
  }
  void CommitNow(const MemberKey& key) {
    Node& node = nodes_.at(key);
    ASSERT_TRUE(node.to_commit.has_value()) << NameOf(key);
    MemberActions actions;
    EXPECT_TRUE(node.receiver->BeginCommit(*node.to_commit).ok());
    EXPECT_TRUE(node.receiver->Committed(*node.to_commit, now_, &actions).ok());
    node.to_commit.reset();
    Do(key, &actions);
  }

  // Everything that is not held back arrives.
  void Pump() {
    for (bool any = true; any;) {
      any = false;
      for (auto& [key, node] : nodes_) {
        while (!node.mute && !node.up.empty() && node.connection.has_value()) {
          any = true;
          const proto::Envelope message = node.up.front();
          node.up.pop_front();
          CoordinatorActions actions;
          coordinator_->OnMessage(*node.connection, message, now_, &actions);
          Do(&actions);
        }
        while (!node.deaf && !node.down.empty()) {
          any = true;
          const proto::Envelope message = node.down.front();
          node.down.pop_front();
          MemberActions actions;
          node.session->OnMessage(message, now_, &actions);
          Do(key, &actions);
        }
      }
    }
  }
  void Do(CoordinatorActions* actions) {
    for (auto& [connection, message] : actions->messages)
      for (auto& [key, node] : nodes_)
        if (node.connection == connection) node.down.push_back(message);
    for (const ConnectionId connection : actions->close)
      for (auto& [key, node] : nodes_)
        if (node.connection == connection && node.down.empty()) {
          node.connection.reset();  // one that was told why closes it itself
        }
  }
  void Do(const MemberKey& key, MemberActions* actions) {
    Node& node = nodes_.at(key);
    for (proto::Envelope& message : actions->messages) node.up.push_back(std::move(message));
    const std::vector<MemberEffect> effects = std::move(actions->effects);
    for (const MemberEffect& effect : effects) {
      node.effects.push_back(effect);
      MemberActions next;
      if (const auto* plan = std::get_if<PlanEffect>(&effect)) {
        ++node.plans;
        const absl::Status status = node.session->Planned(plan->epoch, PlanOf(key, plan->start), now_, &next);
        EXPECT_TRUE(status.ok()) << status;
      } else if (const auto* write = std::get_if<WriteSlotEffect>(&effect)) {
        if (!hold_writes_) {
          EXPECT_TRUE(node.publisher->Snapshotted(write->generation, now_, &next).ok());
        }
      } else if (const auto* commit = std::get_if<CommitEffect>(&effect)) {
        node.to_commit = commit->generation;
        if (!hold_commits_) CommitNow(key);
      } else if (const auto* discard = std::get_if<DiscardEffect>(&effect)) {
        if (node.receiver->state() == ReceiverSession::State::kAborted) {
          EXPECT_TRUE(node.receiver->Stopped(discard->generation, now_, &next).ok());
        }
      }
      if (!next.messages.empty() || !next.effects.empty()) Do(key, &next);
    }
  }
  absl::StatusOr<Edges> PlanOf(const MemberKey& key, const proto::EpochStart& start) const {
    std::set<int> here;
    for (const auto& member : start.members()) {
      if (member.id().role() == proto::PUBLISHER)
        here.insert(member.id().rank());
      else if (bad_.contains(member.id().engine()))
        return Error(ErrorCode::kShapeMismatch, absl::StrCat("engine ", member.id().engine(), " wants another shape"));
    }
    Edges edges;
    for (int rank : needed_)
      if (!here.contains(rank))
        return About(Error(ErrorCode::kUncovered, absl::StrCat("w", rank, " is not covered")),
                     {.tensor = absl::StrCat("w", rank)});
    for (const auto& member : start.members())
      for (int rank : here)
        if (member.id().role() == proto::RECEIVER &&
            (key == MemberKey::Publisher(rank) || key == MemberKey::From(member.id())))
          edges.push_back(EdgeOf(rank, member.id().engine(), member.id().rank()));
    return edges;
  }

  template <typename Effect>
  std::vector<Effect> Got(const MemberKey& key) const {
    MemberActions actions;
    actions.effects = nodes_.at(key).effects;
    return Effects<Effect>(actions);
  }
  void Forget() {
    for (auto& [_, node] : nodes_) node.effects.clear();
  }
  MemberSession& Session(const MemberKey& key) { return *nodes_.at(key).session; }
  ReceiverSession& Worker(const MemberKey& key) { return *nodes_.at(key).receiver; }
  // Nobody was refused anything since Forget().
  void ExpectNoRefusals() const {
    for (const auto& [key, _] : nodes_)
      for (const RefusedEffect& refused : Got<RefusedEffect>(key))
        ADD_FAILURE() << NameOf(key) << " has a message refused: " << refused.status;
  }

  int64_t now_ = 5 * kSecond;
  int slots_ = 2;
  int64_t pid_ = 100;
  ConnectionId last_connection_ = 0;
  CoordinatorOptions options_;
  std::optional<Coordinator> coordinator_;
  std::map<MemberKey, Node> nodes_;
  std::set<int> needed_;
  std::set<int> bad_;
  bool hold_commits_ = false, hold_writes_ = false;
};

}  // namespace headrace::testing

#endif  // HEADRACE_LOADER_SESSION_JOB_TESTING_H_
