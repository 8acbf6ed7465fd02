#include "loader/session/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/status.h"

namespace headrace {
namespace {

proto::Envelope FailedMessage(const absl::Status& status) {
  proto::Envelope message;
  *message.mutable_failed()->mutable_why() = ToFault(status);
  return message;
}

// Valid whatever the epoch.
bool IsOfNoEpoch(const proto::Envelope& message) {
  return message.has_layout() || message.has_heartbeat() || message.has_failed() || message.has_bye();
}

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options, int64_t now_ns)
    : options_(std::move(options)),
      epoch_(options_.epoch),
      phase_deadline_ns_(now_ns + options_.timeouts.join_ns),
      next_heartbeat_ns_(now_ns + options_.timeouts.heartbeat_period_ns) {}

std::string Coordinator::Describe(const MemberKey& key) const {
  const auto it = members_.find(key);
  return it == members_.end() ? NameOf(key) : NameOf(key, it->second.host, it->second.pid);
}

int Coordinator::engines() const {
  const int late = committed_.empty() ? 0 : committed_.rbegin()->first + 1;
  return std::max(late, static_cast<int>(options_.workers.size()));
}

uint64_t Coordinator::engine_committed(int engine) const {
  const auto it = committed_.find(engine);
  return it == committed_.end() ? 0 : it->second;
}

void Coordinator::Send(const MemberKey& to, proto::Envelope message, CoordinatorActions* actions) const {
  const auto it = members_.find(to);
  if (it == members_.end()) return;
  message.set_job(options_.job);
  message.set_incarnation(options_.incarnation);
  message.set_epoch(epoch_);
  if (!message.has_from()) *message.mutable_from() = MemberKey::Coordinator().ToProto();
  *message.mutable_to() = to.ToProto();
  actions->messages.push_back({it->second.connection, std::move(message)});
}

void Coordinator::Broadcast(const proto::Envelope& message, CoordinatorActions* actions) const {
  for (const auto& [key, member] : members_)
    if (member.in_epoch) Send(key, message, actions);
}

void Coordinator::BroadcastToAll(const proto::Envelope& message, CoordinatorActions* actions) const {
  for (const auto& [key, _] : members_) Send(key, message, actions);
}

void Coordinator::Reject(ConnectionId connection, const absl::Status& status, CoordinatorActions* actions) {
  proto::Envelope message = FailedMessage(status);
  message.set_job(options_.job);
  *message.mutable_from() = MemberKey::Coordinator().ToProto();
  actions->messages.push_back({connection, std::move(message)});
  actions->close.push_back(connection);
  connections_.erase(connection);
}

void Coordinator::Dismiss(const MemberKey& key, const absl::Status& status, CoordinatorActions* actions) {
  Send(key, FailedMessage(status), actions);
  const ConnectionId connection = members_.at(key).connection;
  actions->close.push_back(connection);
  connections_.erase(connection);
  members_.erase(key);
}

void Coordinator::End(const absl::Status& status, int64_t, CoordinatorActions* actions) {
  if (phase_ == Phase::kEnded) return;
  phase_ = Phase::kEnded;
  phase_deadline_ns_ = kNoDeadline;
  change_ = Change::kNone;
  status_ = status;
  BroadcastToAll(FailedMessage(status), actions);
  for (const auto& [connection, state] : connections_)
    if (state.member.has_value()) actions->close.push_back(connection);
  std::erase_if(connections_, [](const auto& entry) { return entry.second.member.has_value(); });
  members_.clear();
}

void Coordinator::OnConnected(ConnectionId connection, int64_t now_ns, CoordinatorActions*) {
  connections_[connection].hello_deadline_ns = now_ns + options_.timeouts.heartbeat_timeout_ns;
}

void Coordinator::OnDisconnected(ConnectionId connection, const absl::Status& reason, int64_t now_ns,
                                 CoordinatorActions* actions) {
  const auto it = connections_.find(connection);
  if (it == connections_.end()) return;
  const std::optional<MemberKey> member = it->second.member;
  if (!member.has_value()) {
    connections_.erase(it);
    return;
  }
  Lose(*member, absl::StrCat("died: ", reason.ok() ? "connection closed" : reason.message()), now_ns, actions);
  ChangeIfDue(now_ns, actions);
}

void Coordinator::OnMessage(ConnectionId connection, const proto::Envelope& message, int64_t now_ns,
                            CoordinatorActions* actions) {
  const auto it = connections_.find(connection);
  if (it == connections_.end()) return;
  if (!it->second.member.has_value()) return HandleHello(connection, message, now_ns, actions);
  const MemberKey from = *it->second.member;
  members_.at(from).last_heard_ns = now_ns;
  // What crossed the start of an epoch is void, and no fault.
  if (message.epoch() != 0 && message.epoch() < epoch_ && !IsOfNoEpoch(message)) return;
  absl::Status status = CheckEnvelope(from, message);
  if (status.ok()) status = Dispatch(from, message, now_ns, actions);
  if (status.ok()) return ChangeIfDue(now_ns, actions);
  proto::Envelope refused;
  *refused.mutable_refused()->mutable_why() = ToFault(status);
  Send(from, std::move(refused), actions);
}

absl::Status Coordinator::CheckEnvelope(const MemberKey& from, const proto::Envelope& message) const {
  if (message.job() != options_.job || message.incarnation() != options_.incarnation)
    return Error(ErrorCode::kWrongJob, absl::StrCat(NameOf(from), " sent a message of job \"", message.job(),
                                                    "\" incarnation \"", message.incarnation(), "\" to job \"",
                                                    options_.job, "\" incarnation \"", options_.incarnation, "\""));
  if (message.epoch() != epoch_ && !IsOfNoEpoch(message))
    return Error(ErrorCode::kStaleEpoch,
                 absl::StrCat(NameOf(from), " sent a message of epoch ", message.epoch(), " in epoch ", epoch_));
  if (MemberKey::From(message.from()) != from)
    return Error(ErrorCode::kMalformed,
                 absl::StrCat(NameOf(from), " sent a message as ", NameOf(MemberKey::From(message.from()))));
  const bool relayed = message.has_start() || message.has_abort();
  if (!relayed && message.to().role() != proto::COORDINATOR)
    return Error(ErrorCode::kMalformed, absl::StrCat(NameOf(from), " sent ", NameOf(MemberKey::From(message.to())),
                                                     " what only the coordinator takes"));
  return absl::OkStatus();
}

absl::Status Coordinator::Dispatch(const MemberKey& from, const proto::Envelope& message, int64_t now_ns,
                                   CoordinatorActions* actions) {
  switch (message.body_case()) {
    case proto::Envelope::kHeartbeat:
      HandleHeartbeat(from, message.heartbeat(), now_ns);
      return absl::OkStatus();
    case proto::Envelope::kFailed:
      actions->close.push_back(members_.at(from).connection);
      Lose(from, absl::StrCat("failed: ", message.failed().why().code(), ": ", message.failed().why().message()),
           now_ns, actions);
      return absl::OkStatus();
    case proto::Envelope::kBye:
      HandleBye(from, now_ns, actions);
      return absl::OkStatus();
    case proto::Envelope::kLayout:
      return HandleLayout(from, message.layout(), now_ns, actions);
    case proto::Envelope::kPlanned:
      return HandlePlanned(from, message.planned(), now_ns, actions);
    default:
      break;
  }
  const auto malformed = [&](absl::string_view why) {
    return Error(ErrorCode::kMalformed, absl::StrCat(NameOf(from), " sent message ", BodyName(message), ": ", why));
  };
  // What crossed a Suspended is void, too.
  if (phase_ == Phase::kSuspended || (members_.at(from).settled && !members_.at(from).in_epoch))
    return absl::OkStatus();
  if (phase_ != Phase::kReady) return malformed("the epoch is not ready");
  if (!members_.at(from).in_epoch) return malformed("it is not in the epoch");
  const bool publisher = from.role == proto::PUBLISHER;
  // The engine may have been given up while the message was on its way.
  if (!publisher && !engines_.contains(from.engine)) return absl::OkStatus();
  switch (message.body_case()) {
    case proto::Envelope::kPublished:
      return publisher ? HandlePublished(from, message.published(), actions) : malformed("not from a receiver");
    case proto::Envelope::kVoid:
      return publisher ? HandleVoid(from, message.void_(), actions) : malformed("not from a receiver");
    case proto::Envelope::kStart:
      return publisher ? malformed("not from a publisher") : Relay(from, message, actions);
    case proto::Envelope::kAbort:
      return publisher ? Relay(from, message, actions) : malformed("not from a receiver");
    case proto::Envelope::kRelease:
      return publisher ? malformed("not from a publisher") : HandleRelease(from, message.release(), actions);
    case proto::Envelope::kVote:
      return publisher ? malformed("not from a publisher") : HandleVote(from, message.vote(), now_ns, actions);
    case proto::Envelope::kCommitted:
      return publisher ? malformed("not from a publisher") : HandleCommitted(from, message.committed(), actions);
    default:
      return malformed("not from a member, not twice, or not known here");
  }
}

void Coordinator::OnTick(int64_t now_ns, CoordinatorActions* actions) {
  std::vector<ConnectionId> silent;
  for (const auto& [connection, state] : connections_)
    if (!state.member.has_value() && now_ns >= state.hello_deadline_ns) silent.push_back(connection);
  for (ConnectionId connection : silent)
    Reject(connection, Error(ErrorCode::kDeadline, "no Hello came by the deadline"), actions);
  if (phase_ == Phase::kEnded) return;
  std::vector<std::pair<MemberKey, std::string>> dead;
  for (const auto& [key, member] : members_) {
    if (now_ns < member.last_heard_ns + options_.timeouts.heartbeat_timeout_ns) continue;
    dead.push_back({key, absl::StrCat("died: no heartbeat for ", (now_ns - member.last_heard_ns) / 1'000'000, " ms")});
  }
  if (now_ns >= phase_deadline_ns_ && phase_ == Phase::kPlanning && started_) {
    for (const auto& [key, member] : members_)
      if (member.in_epoch && !planned_.contains(key)) dead.push_back({key, "did not plan by the deadline"});
    phase_deadline_ns_ = kNoDeadline;
  }
  for (const auto& [key, how] : dead) {
    if (!members_.contains(key)) continue;  // went with another
    actions->close.push_back(members_.at(key).connection);
    Lose(key, how, now_ns, actions);
    if (phase_ == Phase::kEnded) return;
  }
  if (now_ns >= phase_deadline_ns_)
    return End(phase_ == Phase::kSuspended
                   ? WithMessage(suspended_, absl::StrCat("the job waited in vain: ", suspended_.message()))
                   : Error(ErrorCode::kDeadline, absl::StrCat("the epoch waited in vain for ", WaitingFor())),
               now_ns, actions);
  TickEngines(now_ns, actions);
  ChangeIfDue(now_ns, actions);
  if (phase_ == Phase::kEnded || now_ns < next_heartbeat_ns_) return;
  next_heartbeat_ns_ = now_ns + options_.timeouts.heartbeat_period_ns;
  proto::Envelope heartbeat;
  heartbeat.mutable_heartbeat()->set_waiting_for(WaitingFor());
  BroadcastToAll(heartbeat, actions);
}

int64_t Coordinator::NextDeadline() const {
  int64_t next = kNoDeadline;
  for (const auto& [_, connection] : connections_)
    if (!connection.member.has_value()) next = std::min(next, connection.hello_deadline_ns);
  if (phase_ == Phase::kEnded) return next;
  for (const auto& [_, member] : members_)
    next = std::min(next, member.last_heard_ns + options_.timeouts.heartbeat_timeout_ns);
  for (const auto& [_, engine] : engines_) next = std::min(next, engine.deadline_ns());
  return std::min({next, phase_deadline_ns_, next_heartbeat_ns_, ChangeDue()});
}

std::string Coordinator::WaitingFor() const {
  std::vector<std::string> who;
  switch (phase_) {
    case Phase::kJoining:
      for (const MemberKey& key : FirstMembers()) {
        const auto it = members_.find(key);
        if (it == members_.end() || !it->second.has_layout) who.push_back(Describe(key));
      }
      return absl::StrCat(absl::StrJoin(who, ", "), " to join");
    case Phase::kPlanning:
      for (const auto& [key, member] : members_)
        if (member.in_epoch && !planned_.contains(key)) who.push_back(Describe(key));
      return absl::StrCat(absl::StrJoin(who, ", "), " to plan");
    case Phase::kReady: {
      for (const MemberKey& key : publications_.Lagging()) who.push_back(Describe(key));
      std::vector<std::string> what;
      if (!who.empty()) what.push_back(absl::StrCat(absl::StrJoin(who, ", "), " to publish"));
      for (const auto& [_, engine] : engines_) {
        if (std::string waits = engine.WaitingFor(); !waits.empty()) what.push_back(std::move(waits));
      }
      return absl::StrJoin(what, "; ");
    }
    case Phase::kSuspended:
      return std::string(suspended_.message());
    case Phase::kEnded:
      return "";
  }
  return "";
}

}  // namespace headrace
