#include "loader/session/simulation.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "loader/session/coordinator.h"
#include "loader/session/publisher_session.h"
#include "loader/session/receiver_session.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr uint64_t kTorn = ~uint64_t{0};  // bytes of no generation

struct Node {
  MemberKey key;
  std::unique_ptr<MemberSession> session;
  PublisherSession* publisher = nullptr;
  ReceiverSession* receiver = nullptr;
  std::deque<proto::Envelope> up, down;
  bool alive = true;
  bool up_open = true;       // the coordinator still hears the stream
  bool down_open = true;     // the member still hears the stream
  bool down_closed = false;  // the coordinator closed it; what is in `down` still comes
  // Owner.
  bool must_plan = false;
  // Publisher's owner: the slots' bytes and what is to be done.
  std::vector<uint64_t> slots;
  uint64_t next_publish = 1;
  bool publishing = false;
  int write_slot = -1;
  uint64_t write_generation = 0;
  std::map<std::pair<MemberKey, uint64_t>, bool> sent;
  // Receiver's owner.
  uint64_t live = 0, shown = 0, before_commit = 0;
  std::deque<std::pair<uint64_t, std::vector<int>>> announced;
  std::vector<int> reading;  // slots of the generation that is read, by publisher
  int reads_left = -1;
  bool must_vote_no = false, must_stop = false, must_commit = false, committing = false, left = false;
};

class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options) : options_(options), random_(options.seed) {
    publishers_ = Pick(1, 3);
    workers_ = {Pick(1, 3), Pick(1, 2)};
    generations_ = Pick(1, 5);
    two_sided_ = Chance(30);
    in_place_ = Chance(30);
    no_votes_ = Chance(50) ? 0 : 15;
    leavers_ = Chance(20);
    slots_ = Pick(1, 2);
    kill_step_ = options.kill ? Pick(1, 60 * (publishers_ + workers_[0] + workers_[1])) : -1;
    CoordinatorOptions coordinator;
    coordinator.job = "job";
    coordinator.incarnation = "run-1";
    coordinator.publishers = publishers_;
    coordinator.workers = workers_;
    coordinator_ = std::make_unique<Coordinator>(coordinator, now_);
    for (int rank = 0; rank < publishers_; ++rank) AddNode(MemberKey::Publisher(rank));
    for (int engine = 0; engine < 2; ++engine)
      for (int worker = 0; worker < workers_[engine]; ++worker) AddNode(MemberKey::Receiver(engine, worker));
  }

  SimulationResult Run() {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      CoordinatorActions actions;
      coordinator_->OnConnected(i, now_, &actions);
      MemberActions mine;
      nodes_[i].session->OnConnected(now_, &mine);
      Apply(nodes_[i], mine);
    }
    while (result_.violation.empty() && result_.steps < 200'000) {
      ++result_.steps;
      if (result_.steps == kill_step_) Kill();
      if (!Step() && !AdvanceTime()) break;
      Check();
    }
    if (result_.violation.empty()) CheckEnd();
    return result_;
  }

 private:
  int Pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool Chance(int percent) { return Pick(0, 99) < percent; }

  void AddNode(MemberKey key) {
    MemberOptions options;
    options.job = "job";
    options.self = key;
    options.host = "h";
    options.pid = 100 + static_cast<int64_t>(nodes_.size());
    options.coordinator_address = "c:1";
    options.layout.set_slots(slots_);
    Node node;
    node.key = key;
    if (key.role == proto::PUBLISHER) {
      auto session = std::make_unique<PublisherSession>(options);
      node.publisher = session.get();
      node.session = std::move(session);
      node.slots.assign(slots_, 0);
    } else {
      auto session = std::make_unique<ReceiverSession>(options, ReceiverState{});
      node.receiver = session.get();
      node.session = std::move(session);
    }
    nodes_.push_back(std::move(node));
  }

  void Violation(absl::string_view text) {
    if (result_.violation.empty()) result_.violation = absl::StrCat(text, " (seed ", options_.seed, ")");
  }

  // ---- Channels ----
  void Apply(const CoordinatorActions& actions) {
    for (const auto& outgoing : actions.messages) nodes_[outgoing.connection].down.push_back(outgoing.message);
    for (ConnectionId connection : actions.close) {
      nodes_[connection].down_closed = true;
      nodes_[connection].up_open = false;
      nodes_[connection].up.clear();
    }
  }

  void Apply(Node& node, const MemberActions& actions) {
    for (const proto::Envelope& message : actions.messages)
      if (node.up_open) node.up.push_back(message);
    for (const MemberEffect& effect : actions.effects) std::visit([&](const auto& e) { On(node, e); }, effect);
  }

  void Kill() {
    result_.killed = true;
    const int victim = Pick(0, static_cast<int>(nodes_.size()));
    const auto cut = [&](std::deque<proto::Envelope>& channel) {
      channel.resize(Pick(0, static_cast<int>(channel.size())));
    };
    if (victim == static_cast<int>(nodes_.size())) {
      result_.killed_coordinator = true;
      coordinator_ = nullptr;
      for (Node& node : nodes_) {
        node.up.clear();
        node.up_open = false;
        cut(node.down);
        node.down_closed = true;
      }
      return;
    }
    Node& node = nodes_[victim];
    node.alive = false;
    node.down.clear();
    node.down_open = false;
    cut(node.up);
  }

  // One thing that can happen now, by chance; false: nothing can, until time passes.
  bool Step() {
    std::vector<std::pair<int, int>> choices;  // (what, node)
    for (int i = 0; i < static_cast<int>(nodes_.size()); ++i) {
      const Node& node = nodes_[i];
      if (coordinator_ != nullptr && node.up_open && (!node.up.empty() || !node.alive)) choices.push_back({0, i});
      if (node.alive && node.down_open && (!node.down.empty() || node.down_closed)) choices.push_back({1, i});
      if (node.alive && HasWork(node)) choices.push_back({2, i});
    }
    if (choices.empty()) return false;
    if (Chance(3)) now_ += Pick(1, 50) * kMs;
    const auto [what, i] = choices[Pick(0, static_cast<int>(choices.size()) - 1)];
    Node& node = nodes_[i];
    if (what == 0) {
      CoordinatorActions actions;
      if (node.up.empty()) {
        node.up_open = false;
        coordinator_->OnDisconnected(i, Error(ErrorCode::kPeerLost, "connection closed"), now_, &actions);
      } else {
        const proto::Envelope message = std::move(node.up.front());
        node.up.pop_front();
        coordinator_->OnMessage(i, message, now_, &actions);
      }
      Apply(actions);
    } else if (what == 1) {
      Hear(node);
    } else {
      Work(node);
    }
    return true;
  }

  void Hear(Node& node) {
    MemberActions actions;
    if (!node.down.empty()) {
      const proto::Envelope message = std::move(node.down.front());
      node.down.pop_front();
      node.session->OnMessage(message, now_, &actions);
    } else {
      node.down_open = false;
      if (options_.bug == PlantedBug::kDeaf && node.receiver != nullptr) return;
      node.session->OnDisconnected(Error(ErrorCode::kPeerLost, "connection closed"), now_, &actions);
    }
    Apply(node, actions);
  }

  bool Idle(const Node& node) const { return !node.alive || node.session->phase() == MemberSession::Phase::kEnded; }

  // To the next deadline of anybody; false when nobody has one.
  bool AdvanceTime() {
    int64_t next = coordinator_ != nullptr ? coordinator_->NextDeadline() : kNoDeadline;
    for (const Node& node : nodes_)
      if (node.alive && !Deaf(node)) next = std::min(next, node.session->NextDeadline());
    const bool all_idle = std::all_of(nodes_.begin(), nodes_.end(), [&](const Node& node) { return Idle(node); });
    if (next == kNoDeadline || all_idle || now_ > 300'000 * kMs || Finished()) return false;
    now_ = std::max(now_, next);
    if (coordinator_ != nullptr) {
      CoordinatorActions actions;
      coordinator_->OnTick(now_, &actions);
      Apply(actions);
    }
    for (Node& node : nodes_) {
      if (!node.alive || Deaf(node)) continue;
      MemberActions actions;
      node.session->OnTick(now_, &actions);
      Apply(node, actions);
    }
    return true;
  }
  bool Deaf(const Node& node) const { return options_.bug == PlantedBug::kDeaf && node.receiver != nullptr; }

  // ---- Owners ----
  bool HasWork(const Node& node) const {
    if (node.session->phase() == MemberSession::Phase::kEnded) return false;
    if (node.must_plan) return true;
    if (node.session->phase() != MemberSession::Phase::kReady) return false;
    if (node.publisher != nullptr)
      return node.write_slot >= 0 || (!node.publishing && node.next_publish <= Generations()) ||
             (leavers_ && node.next_publish > Generations() && node.publisher->busy_slots() == 0 && Settled());
    return node.must_stop || node.must_commit || node.reads_left >= 0 ||
           (!node.announced.empty() && node.receiver->running() == 0) || (leavers_ && Settled());
  }
  uint64_t Generations() const { return static_cast<uint64_t>(generations_); }
  // All generations are decided everywhere.
  bool Settled() const {
    return std::all_of(nodes_.begin(), nodes_.end(), [&](const Node& node) {
      if (node.left || Idle(node)) return true;
      if (node.publisher != nullptr) return node.next_publish > Generations() && node.publisher->busy_slots() == 0;
      return node.announced.empty() && node.receiver->running() == 0;
    });
  }
  bool Finished() const {
    if (coordinator_ == nullptr || coordinator_->phase() != Coordinator::Phase::kReady || !Settled()) return false;
    return !leavers_ && std::all_of(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.alive; });
  }

  void Work(Node& node) {
    MemberActions actions;
    absl::Status status;
    if (node.must_plan) {
      node.must_plan = false;
      std::vector<proto::Edge> edges;
      for (const Node& other : nodes_) {
        if (other.key.role == node.key.role) continue;
        const MemberKey& p = node.publisher != nullptr ? node.key : other.key;
        const MemberKey& r = node.publisher != nullptr ? other.key : node.key;
        proto::Edge& edge = edges.emplace_back();
        edge.set_publisher(p.rank);
        edge.set_engine(r.engine);
        edge.set_worker(r.rank);
        edge.set_digest(absl::StrCat(p.rank, "-", r.engine, "-", r.rank));
      }
      status = node.session->Planned(edges, now_, &actions);
    } else if (node.publisher != nullptr) {
      status = WorkPublisher(node, &actions);
    } else {
      status = WorkReceiver(node, &actions);
    }
    if (!status.ok() && !HasCode(status, ErrorCode::kAborted))
      Violation(absl::StrCat("owner: ", NameOf(node.key), ": ", status.message()));
    Apply(node, actions);
  }

  absl::Status WorkPublisher(Node& node, MemberActions* actions) {
    if (node.write_slot >= 0) {
      uint64_t& bytes = node.slots[node.write_slot];
      if (bytes != kTorn) {
        bytes = kTorn;
        return absl::OkStatus();
      }
      bytes = node.write_generation;
      node.write_slot = -1;
      node.publishing = false;
      return node.publisher->Snapshotted(node.write_generation, now_, actions);
    }
    if (!node.publishing && node.next_publish <= Generations()) {
      node.publishing = true;
      return node.publisher->Publish(node.next_publish++, now_ + 100'000 * kMs, now_, actions);
    }
    node.left = true;
    return node.session->Leave(now_, actions);
  }

  absl::Status WorkReceiver(Node& node, MemberActions* actions) {
    ReceiverSession& session = *node.receiver;
    if (node.must_stop) {
      node.must_stop = false;
      node.reads_left = -1;
      return session.Stopped(session.running(), now_, actions);
    }
    if (node.must_commit && !node.committing) {
      node.committing = true;
      node.before_commit = node.live;
      HR_RETURN_IF_ERROR(session.BeginCommit(session.running()));
      if (!in_place_) node.live = kTorn;
      return absl::OkStatus();
    }
    if (node.must_commit) {
      node.must_commit = node.committing = false;
      node.live = !in_place_ && options_.bug == PlantedBug::kCommitStaleBytes ? node.before_commit : session.running();
      HR_RETURN_IF_ERROR(session.Committed(session.running(), now_, actions));
      if (options_.bug == PlantedBug::kServeAlone) {
        proto::Envelope alone;
        alone.set_job("job");
        alone.set_incarnation(session.incarnation());
        alone.set_epoch(session.epoch());
        *alone.mutable_from() = MemberKey::Coordinator().ToProto();
        *alone.mutable_to() = node.key.ToProto();
        alone.mutable_engine_committed()->set_engine(node.key.engine);
        alone.mutable_engine_committed()->set_generation(session.running());
        session.OnMessage(alone, now_, actions);
      }
      return absl::OkStatus();
    }
    if (node.reads_left > 0) {
      const int rank = Pick(0, publishers_ - 1);
      if (two_sided_ && !nodes_[rank].sent[{node.key, session.running()}] && !node.must_vote_no) {
        // Waits for the bytes; a publisher that died makes it give up.
        if (!nodes_[rank].alive) node.must_vote_no = true;
        return absl::OkStatus();
      }
      if (nodes_[rank].alive && !node.must_vote_no && nodes_[rank].slots[node.reading[rank]] != session.running())
        Violation(absl::StrCat("slots: ", NameOf(node.key), " reads generation ", session.running(), " at publisher ",
                               rank, " and finds ", nodes_[rank].slots[node.reading[rank]]));
      --node.reads_left;
      return absl::OkStatus();
    }
    if (node.reads_left == 0) {
      node.reads_left = -1;
      const bool no = node.must_vote_no || Chance(no_votes_);
      if (in_place_ && !no) node.live = session.running();
      return session.Vote(session.running(), no ? Error(ErrorCode::kVerificationFailed, "tile 3") : absl::OkStatus(),
                          now_, actions);
    }
    if (!node.announced.empty()) {
      const auto [generation, slots] = node.announced.front();
      node.announced.pop_front();
      HR_RETURN_IF_ERROR(session.Begin(generation, in_place_));
      node.reading = slots;
      node.reads_left = Pick(1, 6);
      node.must_vote_no = false;
      if (in_place_) node.live = kTorn;
      for (int rank = 0; two_sided_ && rank < publishers_; ++rank)
        HR_RETURN_IF_ERROR(session.RequestStart(rank, now_, actions));
      if (options_.bug == PlantedBug::kEarlyRelease) {
        proto::Envelope release = actions->messages.empty() ? proto::Envelope() : actions->messages.back();
        release.set_job("job");
        release.set_incarnation(session.incarnation());
        release.set_epoch(session.epoch());
        *release.mutable_from() = node.key.ToProto();
        *release.mutable_to() = MemberKey::Coordinator().ToProto();
        release.mutable_release()->set_generation(generation);
        actions->messages.push_back(release);
      }
      return absl::OkStatus();
    }
    node.left = true;
    return node.session->Leave(now_, actions);
  }

  void On(Node& node, const PlanEffect&) { node.must_plan = true; }
  void On(Node&, const EpochReadyEffect&) {}
  void On(Node& node, const WriteSlotEffect& effect) {
    node.write_slot = effect.slot;
    node.write_generation = effect.generation;
  }
  void On(Node& node, const PublishFailedEffect&) { node.publishing = false; }
  void On(Node& node, const AnnouncedEffect& effect) {
    if (node.receiver != nullptr) node.announced.push_back({effect.generation, effect.slots});
  }
  void On(Node& node, const SendToEffect& effect) {
    if (node.slots[effect.slot] != effect.generation)
      Violation(absl::StrCat("slots: ", NameOf(node.key), " sends from a slot of another generation"));
    node.sent[{effect.receiver, effect.generation}] = true;
  }
  void On(Node&, const SlotFreeEffect&) {}
  void On(Node& node, const StartRefusedEffect&) { node.must_vote_no = true; }
  void On(Node& node, const CommitEffect&) { node.must_commit = true; }
  void On(Node& node, const DiscardEffect& effect) {
    if (node.key.rank == 0) ++result_.aborted;
    if (node.receiver->state() == ReceiverSession::State::kAborted) node.must_stop = true;
    if (!node.announced.empty() && node.announced.front().first == effect.generation) node.announced.pop_front();
  }
  void On(Node&, const WaitEndedEffect&) {}
  void On(Node& node, const EngineCommittedEffect& effect) {
    if (node.receiver == nullptr) return;
    if (effect.engine != node.key.engine && options_.bug != PlantedBug::kAnyEngineCounts) return;
    if (effect.engine == node.key.engine) shown_[effect.engine] = effect.generation;
    if (effect.generation <= node.shown)
      Violation(absl::StrCat("monotonic: ", NameOf(node.key), " shows ", effect.generation, " after ", node.shown));
    node.shown = effect.generation;
    if (node.key.rank == 0) ++result_.committed;
  }
  void On(Node&, const EngineAbortedEffect&) {}
  void On(Node&, const LeftEffect&) {}
  void On(Node& node, const RefusedEffect& effect) {
    // Correct owners are never refused, except for what crossed a leave or an abort.
    if (options_.bug == PlantedBug::kNone && !leavers_ && !two_sided_)
      Violation(absl::StrCat("refused: ", NameOf(node.key), ": ", effect.status.message()));
  }
  void On(Node&, const FailEffect&) {}

  // ---- Checkers ----
  void Check() {
    for (int engine = 0; engine < 2; ++engine) {
      const Node* first = nullptr;
      for (const Node& node : nodes_) {
        if (node.receiver == nullptr || node.key.engine != engine || !node.alive || node.left) continue;
        const std::optional<uint64_t> serving = node.receiver->serving();
        if (!serving.has_value()) continue;
        if (node.live != *serving)
          Violation(absl::StrCat("agreement: ", NameOf(node.key), " serves ", *serving, " but holds ", node.live));
        if (first != nullptr && first->receiver->serving() != serving)
          Violation(absl::StrCat("agreement: ", NameOf(node.key), " serves ", *serving, " beside ",
                                 *first->receiver->serving()));
        first = &node;
      }
    }
  }

  void CheckEnd() {
    for (const Node& node : nodes_) {
      if (!node.alive) continue;
      if (node.receiver != nullptr && node.receiver->state() == ReceiverSession::State::kPoisoned) ++result_.poisoned;
      // What one worker may serve, all of its engine hold: whoever ends without it must serve nothing.
      const uint64_t shown = node.receiver != nullptr ? shown_[node.key.engine] : 0;
      if (node.receiver != nullptr && node.receiver->serving().value_or(shown) < shown)
        Violation(absl::StrCat("agreement: ", NameOf(node.key), " ends with generation ", *node.receiver->serving(),
                               ", but a worker of its engine serves ", shown));
      if (node.session->phase() == MemberSession::Phase::kEnded) {
        if (!result_.killed && !node.left)
          Violation(absl::StrCat("liveness: ", NameOf(node.key), " ended: ", node.session->status().message()));
        continue;
      }
      if (result_.killed && !Finished())
        Violation(absl::StrCat("liveness: ", NameOf(node.key), " waits for ever: ", node.session->WaitingFor()));
      if (!result_.killed && !Settled()) Violation(absl::StrCat("liveness: ", NameOf(node.key), " is not settled"));
    }
  }

  const SimulationOptions options_;
  std::mt19937_64 random_;
  int publishers_ = 0, generations_ = 0, no_votes_ = 0, slots_ = 0, kill_step_ = 0;
  std::vector<int> workers_;
  uint64_t shown_[2] = {0, 0};  // by engine: the newest generation that any of its workers may serve
  bool two_sided_ = false, in_place_ = false, leavers_ = false;
  int64_t now_ = 1'000'000'000;
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<Node> nodes_;
  SimulationResult result_;
};

}  // namespace

SimulationResult Simulate(const SimulationOptions& options) { return Simulation(options).Run(); }

}  // namespace headrace
