// Coming and going.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "loader/session/coordinator.h"
#include "planner/status.h"

namespace headrace {

int Coordinator::WorkersOf(int engine) const {
  if (engine >= 0 && engine < static_cast<int>(options_.workers.size())) return options_.workers[engine];
  for (const auto& [key, member] : members_)
    if (key.role == proto::RECEIVER && key.engine == engine) return member.workers;
  return 0;
}

bool Coordinator::IsExpected(const MemberKey& key) const {
  if (key.is_standby()) return key.engine == 0;
  if (key.role == proto::PUBLISHER) return key.engine == 0 && key.rank >= 0 && key.rank < options_.publishers;
  return key.role == proto::RECEIVER && key.engine >= 0 && key.rank >= 0 && key.rank < WorkersOf(key.engine);
}

std::vector<MemberKey> Coordinator::FirstMembers() const {
  std::vector<MemberKey> keys;
  for (int rank = 0; rank < options_.publishers; ++rank) keys.push_back(MemberKey::Publisher(rank));
  for (size_t engine = 0; engine < options_.workers.size(); ++engine)
    for (int worker = 0; worker < options_.workers[engine]; ++worker)
      keys.push_back(MemberKey::Receiver(static_cast<int>(engine), worker));
  return keys;
}

bool Coordinator::IsFirst(const MemberKey& key) const {
  return key.is_trainer() || (key.role == proto::RECEIVER && key.engine < static_cast<int>(options_.workers.size()));
}

absl::Status Coordinator::CheckHello(const proto::Envelope& message) const {
  const MemberKey key = MemberKey::From(message.from());
  // Identity first, whatever the message is: a stranger learns nothing but that it is at the wrong door.
  if (message.job() != options_.job)
    return Error(ErrorCode::kWrongJob, absl::StrCat("this coordinator serves job \"", options_.job, "\", but ",
                                                    NameOf(key), " is of job \"", message.job(), "\""));
  if (!message.incarnation().empty() && message.incarnation() != options_.incarnation)
    return Error(ErrorCode::kWrongJob,
                 absl::StrCat("this is incarnation \"", options_.incarnation, "\" of job \"", options_.job, "\", but ",
                              NameOf(key), " is of incarnation \"", message.incarnation(), "\""));
  if (!message.has_hello())
    return Error(ErrorCode::kMalformed,
                 absl::StrCat("message ", BodyName(message), " of ", NameOf(key), " came before Hello"));
  if (phase_ == Phase::kEnded) return status_;
  const proto::Hello& hello = message.hello();
  const bool receiver = key.role == proto::RECEIVER && key.engine >= 0 && key.rank >= 0;
  const int workers = receiver ? WorkersOf(key.engine) : 0;
  if (receiver && workers != 0 && hello.workers() != 0 && hello.workers() != workers)
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat(NameOf(key), " is one of ", hello.workers(), " workers, but its engine has ", workers));
  if (!IsExpected(key) && !(receiver && workers == 0 && key.rank < hello.workers())) {
    std::string engines;
    for (int listed : options_.workers) absl::StrAppend(&engines, engines.empty() ? "" : " + ", listed);
    return Error(
        ErrorCode::kInvalidOption,
        absl::StrCat(NameOf(key), " is not expected: this job has ", options_.publishers, " publishers and ",
                     engines.empty() ? "no" : engines, " workers; a worker of an engine that comes later must ",
                     "say how many workers its engine has"));
  }
  const auto it = members_.find(key);
  if (it != members_.end() && (it->second.host != hello.host() || it->second.pid != hello.pid()))
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat(NameOf(key, hello.host(), hello.pid()), ": ", Describe(key), " has joined already"));
  return absl::OkStatus();
}

void Coordinator::HandleHello(ConnectionId connection, const proto::Envelope& message, int64_t now_ns,
                              CoordinatorActions* actions) {
  if (absl::Status status = CheckHello(message); !status.ok()) return Reject(connection, status, actions);
  const MemberKey key = MemberKey::From(message.from());
  // The same process: its old stream broke, and that was not heard yet.
  if (members_.contains(key)) {
    actions->close.push_back(members_.at(key).connection);
    Lose(key, "connected anew", now_ns, actions);
    if (phase_ == Phase::kEnded) return Reject(connection, status_, actions);
  }
  connections_[connection] = Connection{key, kNoDeadline};
  const int known = WorkersOf(key.engine);
  newest_epoch_heard_ = std::max(newest_epoch_heard_, message.epoch());
  Member& member = members_[key];
  member.connection = connection;
  member.host = message.hello().host();
  member.pid = message.hello().pid();
  member.workers = known != 0 ? known : message.hello().workers();
  member.last_heard_ns = now_ns;
  proto::Envelope welcome;
  welcome.mutable_welcome()->set_rejoin_ns(options_.timeouts.rejoin_ns);
  Send(key, std::move(welcome), actions);
  ChangeIfDue(now_ns, actions);
}

absl::Status Coordinator::HandleLayout(const MemberKey& from, const proto::Layout& layout, int64_t now_ns,
                                       CoordinatorActions* actions) {
  Member& member = members_.at(from);
  if (member.has_layout) return Error(ErrorCode::kMalformed, absl::StrCat(NameOf(from), " sent a second Layout"));
  if (layout.slots() < 1)
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat(NameOf(from), " has ", layout.slots(), " snapshot slots; at least 1 is needed"));
  // Both sides would otherwise wait for bytes that the other cuts differently.
  for (const auto& [key, other] : members_) {
    if (!other.has_layout) continue;
    const auto differs = [&](absl::string_view option, auto mine, auto theirs) {
      const absl::Status status = Error(
          ErrorCode::kInvalidOption, absl::StrCat(Describe(from), " has ", option, " = ", mine, ", but ", Describe(key),
                                                  " has ", theirs, "; set the same at all members of the job"));
      if (started_)
        Dismiss(from, status, actions);
      else
        End(status, now_ns, actions);
      return absl::OkStatus();
    };
    if (layout.transport() != other.layout.transport())
      return differs("transport", layout.transport(), other.layout.transport());
    if (layout.slots() != other.layout.slots()) return differs("slots", layout.slots(), other.layout.slots());
    if (layout.chunk_bytes() != other.layout.chunk_bytes())
      return differs("chunk_bytes", layout.chunk_bytes(), other.layout.chunk_bytes());
    break;  // those that are here agree already
  }
  member.layout = layout;
  member.has_layout = true;
  if (from.role == proto::PUBLISHER) missing_.erase(from);
  if (!started_) {
    const std::vector<MemberKey> first = FirstMembers();
    const bool complete = std::all_of(first.begin(), first.end(), [&](const MemberKey& key) {
      const auto it = members_.find(key);
      return it != members_.end() && it->second.has_layout;
    });
    if (complete) StartEpoch(now_ns, actions);
    return absl::OkStatus();
  }
  if (from.role == proto::RECEIVER && !EngineComplete(from.engine)) return absl::OkStatus();
  if (from.role == proto::RECEIVER) broken_.erase(from.engine);
  if (from.is_standby()) return absl::OkStatus();  // once it holds something
  // Who waits for a publisher learns of it; an engine cannot mend that.
  if (phase_ == Phase::kSuspended && from.role == proto::RECEIVER && Sources().empty()) {
    Send(from, SuspendedMessage(suspended_, /*engine_broken=*/false), actions);
    return absl::OkStatus();
  }
  Ask(Change::kCame, now_ns);
  return absl::OkStatus();
}

void Coordinator::HandleHeartbeat(const MemberKey& from, const proto::Heartbeat& heartbeat, int64_t now_ns) {
  if (!from.is_standby() || members_.at(from).holds == heartbeat.holds()) return;
  members_.at(from).holds = heartbeat.holds();
  // What it offers may be newer than what this epoch's sources did.
  const bool newer = phase_ == Phase::kSuspended || heartbeat.holds() > publications_.newest();
  if (started_ && newer && !Sources().empty()) Ask(Change::kCame, now_ns);
}

void Coordinator::HandleBye(const MemberKey& from, int64_t now_ns, CoordinatorActions* actions) {
  const ConnectionId connection = members_.at(from).connection;
  const bool receiver = from.role == proto::RECEIVER;
  actions->close.push_back(connection);
  const auto votes = receiver ? engines_.find(from.engine) : engines_.end();
  if (votes != engines_.end() && votes->second.OwesCommit(from.rank))
    return Lose(from, "left between its engine's decision and its commit", now_ns, actions);
  const absl::Status why = Error(ErrorCode::kAborted, absl::StrCat(Describe(from), " left"));
  const bool was_in_epoch = members_.at(from).in_epoch;
  connections_.erase(connection);
  members_.erase(from);
  if (members_.empty()) return End(Error(ErrorCode::kAborted, "the job is over: all members left"), now_ns, actions);
  if (!started_) {
    if (IsFirst(from))
      return End(Error(ErrorCode::kAborted, absl::StrCat(why.message(), " before the epoch was ready")), now_ns,
                 actions);
    if (was_in_epoch) StartEpoch(now_ns, actions);
    return;
  }
  if (was_in_epoch && phase_ == Phase::kReady) {
    proto::Envelope left;
    *left.mutable_left()->mutable_member() = from.ToProto();
    Broadcast(left, actions);
  }
  if (!receiver) {
    if (!from.is_standby()) missing_[from] = why;
    if (phase_ != Phase::kSuspended) Ask(Change::kLeft, now_ns);
    return;
  }
  broken_[from.engine] = why;
  publications_.Leave(from);
  if (votes != engines_.end())
    for (const EngineVotes::Outcome& outcome : votes->second.Leave(from.rank))
      SendDecision(from.engine, outcome, actions);
  // An epoch that is being planned lacks it.
  if (phase_ == Phase::kPlanning && was_in_epoch) Ask(Change::kLost, now_ns);
}

void Coordinator::Lose(const MemberKey& key, absl::string_view how, int64_t now_ns, CoordinatorActions* actions) {
  const std::string who = Describe(key);
  const absl::Status status = About(Error(ErrorCode::kPeerLost, absl::StrCat(who, " ", how)), {.peer = who});
  const bool was_in_epoch = members_.at(key).in_epoch;
  connections_.erase(members_.at(key).connection);
  members_.erase(key);
  if (!started_ && !IsFirst(key)) {
    if (was_in_epoch) StartEpoch(now_ns, actions);
    return;
  }
  if (!started_) {
    if (options_.timeouts.rejoin_ns == 0) return End(status, now_ns, actions);
    // The first epoch waits for it again, as long as it would have.
    if (phase_ == Phase::kPlanning) phase_ = Phase::kJoining;
    return;
  }
  if (key.role == proto::RECEIVER) {
    BreakEngine(key.engine, status, actions);
    if (members_.empty()) return End(status, now_ns, actions);
  } else if (!key.is_standby()) {
    missing_[key] = status;
    missing_deadline_ns_ = std::min(missing_deadline_ns_, now_ns + options_.timeouts.rejoin_ns);
  } else if (members_.empty()) {
    return End(status, now_ns, actions);
  }
  if (was_in_epoch) Ask(Change::kLost, now_ns);
}

void Coordinator::BreakEngine(int engine, const absl::Status& why, CoordinatorActions* actions) {
  broken_[engine] = why;
  const auto votes = engines_.find(engine);
  if (votes != engines_.end()) {
    for (const EngineVotes::Outcome& outcome : votes->second.Break(why))
      SendToPublishers(DecisionMessage(engine, outcome), actions);
    engines_.erase(votes);
  }
  std::vector<MemberKey> others;
  for (auto& [key, member] : members_) {
    if (key.role != proto::RECEIVER || key.engine != engine) continue;
    others.push_back(key);
    member.in_epoch = false;
    publications_.Leave(key);
  }
  for (const MemberKey& other : others) {
    if (options_.timeouts.rejoin_ns == 0 && HasCode(why, ErrorCode::kPeerLost)) {
      Dismiss(other, why, actions);
      continue;
    }
    Send(other, SuspendedMessage(why, /*engine_broken=*/true), actions);
  }
}

}  // namespace headrace
