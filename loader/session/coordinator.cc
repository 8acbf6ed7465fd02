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

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options, int64_t now_ns)
    : options_(std::move(options)),
      phase_deadline_ns_(now_ns + options_.timeouts.join_ns),
      next_heartbeat_ns_(now_ns + options_.timeouts.heartbeat_period_ns),
      publications_(options_.publishers) {
  for (size_t e = 0; e < options_.workers.size(); ++e)
    engines_.emplace_back(absl::StrCat("engine ", e), options_.workers[e], options_.timeouts.decision_ns,
                          options_.timeouts.commit_ns);
}

bool Coordinator::IsExpected(const MemberKey& key) const {
  if (key.role == proto::PUBLISHER) return key.engine == 0 && key.rank >= 0 && key.rank < options_.publishers;
  return key.role == proto::RECEIVER && key.engine >= 0 && key.engine < static_cast<int>(options_.workers.size()) &&
         key.rank >= 0 && key.rank < options_.workers[key.engine];
}

std::string Coordinator::Describe(const MemberKey& key) const {
  const auto it = members_.find(key);
  return it == members_.end() ? NameOf(key) : NameOf(key, it->second.host, it->second.pid);
}

std::vector<MemberKey> Coordinator::Everyone() const {
  std::vector<MemberKey> keys;
  for (int rank = 0; rank < options_.publishers; ++rank) keys.push_back(MemberKey::Publisher(rank));
  for (size_t engine = 0; engine < options_.workers.size(); ++engine)
    for (int worker = 0; worker < options_.workers[engine]; ++worker)
      keys.push_back(MemberKey::Receiver(static_cast<int>(engine), worker));
  return keys;
}

void Coordinator::Send(const MemberKey& to, proto::Envelope message, CoordinatorActions* actions) const {
  const auto it = members_.find(to);
  if (it == members_.end() || it->second.left) return;
  message.set_job(options_.job);
  message.set_incarnation(options_.incarnation);
  message.set_epoch(options_.epoch);
  if (!message.has_from()) *message.mutable_from() = MemberKey::Coordinator().ToProto();
  *message.mutable_to() = to.ToProto();
  actions->messages.push_back({it->second.connection, std::move(message)});
}

void Coordinator::Broadcast(const proto::Envelope& message, CoordinatorActions* actions,
                            const MemberKey& except) const {
  for (const auto& [key, _] : members_)
    if (key != except) Send(key, message, actions);
}

void Coordinator::Reject(ConnectionId connection, const absl::Status& status, CoordinatorActions* actions) {
  proto::Envelope message = FailedMessage(status);
  message.set_job(options_.job);
  *message.mutable_from() = MemberKey::Coordinator().ToProto();
  actions->messages.push_back({connection, std::move(message)});
  actions->close.push_back(connection);
  connections_.erase(connection);
}

void Coordinator::End(const absl::Status& status, int64_t, CoordinatorActions* actions) {
  if (phase_ == Phase::kEnded) return;
  phase_ = Phase::kEnded;
  phase_deadline_ns_ = kNoDeadline;
  status_ = status;
  Broadcast(FailedMessage(status), actions);
  for (const auto& [connection, state] : connections_)
    if (state.member.has_value()) actions->close.push_back(connection);
  std::erase_if(connections_, [](const auto& entry) { return entry.second.member.has_value(); });
}

void Coordinator::Lose(const MemberKey& key, absl::string_view how, int64_t now_ns, CoordinatorActions* actions) {
  Member& member = members_.at(key);
  connections_.erase(member.connection);
  member.left = true;  // nothing is sent to it any more
  const std::string who = Describe(key);
  End(About(Error(ErrorCode::kPeerLost, absl::StrCat(who, " ", how)), {.peer = who}), now_ns, actions);
}

void Coordinator::OnConnected(ConnectionId connection, int64_t now_ns, CoordinatorActions*) {
  connections_[connection].hello_deadline_ns = now_ns + options_.timeouts.heartbeat_timeout_ns;
}

void Coordinator::OnDisconnected(ConnectionId connection, const absl::Status& reason, int64_t now_ns,
                                 CoordinatorActions* actions) {
  const auto it = connections_.find(connection);
  if (it == connections_.end()) return;
  const std::optional<MemberKey> member = it->second.member;
  connections_.erase(it);
  if (!member.has_value()) return;
  Lose(*member, absl::StrCat("died: ", reason.ok() ? "connection closed" : reason.message()), now_ns, actions);
}

void Coordinator::OnMessage(ConnectionId connection, const proto::Envelope& message, int64_t now_ns,
                            CoordinatorActions* actions) {
  const auto it = connections_.find(connection);
  if (it == connections_.end()) return;
  if (!it->second.member.has_value()) return HandleHello(connection, message, now_ns, actions);
  const MemberKey from = *it->second.member;
  members_.at(from).last_heard_ns = now_ns;
  absl::Status status = CheckEnvelope(from, message);
  if (status.ok()) status = Dispatch(from, message, now_ns, actions);
  if (status.ok()) return;
  proto::Envelope refused;
  *refused.mutable_refused()->mutable_why() = ToFault(status);
  Send(from, std::move(refused), actions);
}

absl::Status Coordinator::CheckEnvelope(const MemberKey& from, const proto::Envelope& message) const {
  if (message.job() != options_.job || message.incarnation() != options_.incarnation)
    return Error(ErrorCode::kWrongJob, absl::StrCat(NameOf(from), " sent a message of job \"", message.job(),
                                                    "\" incarnation \"", message.incarnation(), "\" to job \"",
                                                    options_.job, "\" incarnation \"", options_.incarnation, "\""));
  if (message.epoch() != options_.epoch)
    return Error(ErrorCode::kStaleEpoch, absl::StrCat(NameOf(from), " sent a message of epoch ", message.epoch(),
                                                      " in epoch ", options_.epoch));
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
  if (phase_ != Phase::kReady) return malformed("the epoch is not ready");
  const bool publisher = from.role == proto::PUBLISHER;
  switch (message.body_case()) {
    case proto::Envelope::kPublished:
      return publisher ? HandlePublished(from, message.published(), actions) : malformed("not from a receiver");
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
  for (const auto& [key, member] : members_) {
    if (member.left || now_ns < member.last_heard_ns + options_.timeouts.heartbeat_timeout_ns) continue;
    const int64_t silent_ms = (now_ns - member.last_heard_ns) / 1'000'000;
    actions->close.push_back(member.connection);
    return Lose(key, absl::StrCat("died: no heartbeat for ", silent_ms, " ms"), now_ns, actions);
  }
  if (now_ns >= phase_deadline_ns_)
    return End(Error(ErrorCode::kDeadline, absl::StrCat("the epoch waited in vain for ", WaitingFor())), now_ns,
               actions);
  TickEngines(now_ns, actions);
  if (phase_ == Phase::kEnded || now_ns < next_heartbeat_ns_) return;
  next_heartbeat_ns_ = now_ns + options_.timeouts.heartbeat_period_ns;
  proto::Envelope heartbeat;
  heartbeat.mutable_heartbeat()->set_waiting_for(WaitingFor());
  Broadcast(heartbeat, actions);
}

int64_t Coordinator::NextDeadline() const {
  int64_t next = kNoDeadline;
  for (const auto& [_, connection] : connections_)
    if (!connection.member.has_value()) next = std::min(next, connection.hello_deadline_ns);
  if (phase_ == Phase::kEnded) return next;
  for (const auto& [_, member] : members_)
    if (!member.left) next = std::min(next, member.last_heard_ns + options_.timeouts.heartbeat_timeout_ns);
  for (const EngineVotes& engine : engines_) next = std::min(next, engine.deadline_ns());
  return std::min({next, phase_deadline_ns_, next_heartbeat_ns_});
}

std::string Coordinator::WaitingFor() const {
  std::vector<std::string> who;
  switch (phase_) {
    case Phase::kJoining:
      for (const MemberKey& key : Everyone()) {
        const auto it = members_.find(key);
        if (it == members_.end() || !it->second.has_layout) who.push_back(Describe(key));
      }
      return absl::StrCat(absl::StrJoin(who, ", "), " to join");
    case Phase::kPlanning:
      for (const MemberKey& key : Everyone())
        if (!plans_.Has(key)) who.push_back(Describe(key));
      return absl::StrCat(absl::StrJoin(who, ", "), " to plan");
    case Phase::kReady:
      for (const MemberKey& key : publications_.Lagging()) who.push_back(Describe(key));
      return who.empty() ? "" : absl::StrCat(absl::StrJoin(who, ", "), " to publish");
    case Phase::kEnded:
      return "";
  }
  return "";
}

}  // namespace headrace
