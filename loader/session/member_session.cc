#include "loader/session/member_session.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {
namespace {

bool IsRelayed(const proto::Envelope& message) {
  return message.has_start() || message.has_abort() || message.has_release();
}

// Whoever is in no epoch hears these too.
bool IsOfNoEpoch(const proto::Envelope& message) {
  return message.has_heartbeat() || message.has_failed() || message.has_refused() || message.has_suspended();
}

absl::Status Malformed(absl::string_view text) { return Error(ErrorCode::kMalformed, text); }

}  // namespace

MemberSession::MemberSession(MemberOptions options) : options_(std::move(options)) {}

void MemberSession::SendNow(proto::Envelope message, MemberActions* actions) {
  message.set_job(options_.job);
  message.set_incarnation(incarnation_.empty() ? options_.incarnation : incarnation_);
  message.set_epoch(message.has_hello() ? newest_epoch_ : epoch_);
  *message.mutable_from() = options_.self.ToProto();
  if (!message.has_to()) *message.mutable_to() = MemberKey::Coordinator().ToProto();
  actions->messages.push_back(std::move(message));
}

void MemberSession::Send(proto::Envelope message, MemberActions* actions) {
  if (phase_ == Phase::kReady) return SendNow(std::move(message), actions);
  if (phase_ == Phase::kPlanned) unsent_.push_back(std::move(message));
}

void MemberSession::End(const absl::Status& status, MemberActions* actions) {
  if (phase_ == Phase::kEnded) return;
  status_ = HandleEnd(status);
  phase_ = Phase::kEnded;
  actions->effects.push_back(FailEffect{status_});
}

void MemberSession::Fail(const absl::Status& status, int64_t, MemberActions* actions) {
  if (phase_ == Phase::kEnded) return;
  if (phase_ != Phase::kNew && phase_ != Phase::kLost) {
    proto::Envelope message;
    *message.mutable_failed()->mutable_why() = ToFault(status);
    SendNow(std::move(message), actions);
  }
  End(status, actions);
}

absl::Status MemberSession::Leave(int64_t, MemberActions* actions) {
  if (phase_ == Phase::kEnded) return status_;
  HR_RETURN_IF_ERROR(MayLeave());
  if (phase_ != Phase::kNew && phase_ != Phase::kLost) {
    proto::Envelope message;
    message.mutable_bye();
    SendNow(std::move(message), actions);
  }
  status_ = HandleEnd(Error(ErrorCode::kAborted, absl::StrCat(NameOf(options_.self), " left the job")));
  phase_ = Phase::kEnded;
  return absl::OkStatus();
}

void MemberSession::OnConnected(int64_t now_ns, MemberActions* actions) {
  if (phase_ != Phase::kNew && phase_ != Phase::kLost) return;
  last_heard_ns_ = now_ns;
  next_heartbeat_ns_ = now_ns + options_.timeouts.heartbeat_period_ns;
  // The coordinator's own limits come first, since its message says whom it waits for. One that comes back has the time
  // that is left.
  if (phase_ == Phase::kNew && !options_.self.is_standby())
    phase_deadline_ns_ = now_ns + options_.timeouts.join_ns + options_.timeouts.heartbeat_timeout_ns;
  phase_ = Phase::kHello;
  proto::Envelope message;
  message.mutable_hello()->set_host(options_.host);
  message.mutable_hello()->set_pid(options_.pid);
  message.mutable_hello()->set_workers(options_.workers);
  SendNow(std::move(message), actions);
}

void MemberSession::OnDisconnected(const absl::Status& reason, int64_t now_ns, MemberActions* actions) {
  if (HasCode(reason, ErrorCode::kUnauthenticated)) return End(reason, actions);
  Lose(reason.ok() ? "it closed the connection" : reason.message(), now_ns, actions);
}

void MemberSession::Lose(absl::string_view how, int64_t now_ns, MemberActions* actions) {
  if (phase_ == Phase::kEnded || phase_ == Phase::kLost) return;
  lost_ =
      Error(ErrorCode::kPeerLost, absl::StrCat("the coordinator at ", options_.coordinator_address, " is lost: ", how));
  if (rejoin_ns_ == 0) return End(lost_, actions);
  // A second loss before an epoch was ready again has no new time.
  if ((phase_ != Phase::kHello && phase_ != Phase::kWaiting) || phase_deadline_ns_ == kNoDeadline)
    phase_deadline_ns_ = now_ns + rejoin_ns_;
  phase_ = Phase::kLost;
  unsent_.clear();
  coordinator_waits_for_.clear();
  actions->effects.push_back(ReconnectEffect{phase_deadline_ns_});
}

absl::Status MemberSession::CheckEnvelope(const proto::Envelope& message) const {
  if (message.job() != options_.job)
    return Error(ErrorCode::kWrongJob,
                 absl::StrCat("the coordinator at ", options_.coordinator_address, " serves job \"", message.job(),
                              "\", but ", NameOf(options_.self), " is of job \"", options_.job, "\""));
  const std::string& incarnation = incarnation_.empty() ? options_.incarnation : incarnation_;
  if (!incarnation.empty() && message.incarnation() != incarnation)
    return Error(ErrorCode::kWrongJob,
                 absl::StrCat("a message of incarnation \"", message.incarnation(), "\" of job \"", options_.job,
                              "\" reached ", NameOf(options_.self), " of incarnation \"", incarnation, "\""));
  // An epoch's first message tells its number, and it only grows.
  const bool later = message.epoch() > epoch_ && (message.has_epoch_start() || IsOfNoEpoch(message));
  if (phase_ != Phase::kHello && message.epoch() != epoch_ && !later)
    return Error(ErrorCode::kStaleEpoch, absl::StrCat("a message of epoch ", message.epoch(), " reached ",
                                                      NameOf(options_.self), " in epoch ", epoch_));
  if (MemberKey::From(message.to()) != options_.self)
    return Malformed(
        absl::StrCat("a message to ", NameOf(MemberKey::From(message.to())), " reached ", NameOf(options_.self)));
  if (!IsRelayed(message) && message.from().role() != proto::COORDINATOR)
    return Malformed(absl::StrCat(NameOf(MemberKey::From(message.from())), " sent ", NameOf(options_.self),
                                  " what only the coordinator may send"));
  return absl::OkStatus();
}

void MemberSession::OnMessage(const proto::Envelope& message, int64_t now_ns, MemberActions* actions) {
  if (phase_ == Phase::kEnded || phase_ == Phase::kNew || phase_ == Phase::kLost) return;
  last_heard_ns_ = now_ns;
  if (phase_ == Phase::kHello) return HandleHelloAnswer(message, actions);
  absl::Status status = CheckEnvelope(message);
  if (status.ok()) status = HandleMessage(message, now_ns, actions);
  if (status.ok()) return;
  HandleDropped(message, status, now_ns, actions);
  actions->effects.push_back(RefusedEffect{status});
}

void MemberSession::HandleHelloAnswer(const proto::Envelope& message, MemberActions* actions) {
  // A refusal comes from a coordinator of whatever job and epoch; it names them itself.
  if (message.has_failed()) return End(FromFault(message.failed().why()), actions);
  absl::Status status = CheckEnvelope(message);
  if (status.ok() && (!message.has_welcome() || message.incarnation().empty() || message.epoch() == 0))
    status = Malformed(absl::StrCat("the coordinator at ", options_.coordinator_address,
                                    " answered Hello with something else than a complete Welcome"));
  if (!status.ok()) {
    // Nothing has been shown yet; whoever this is, it learns no layout.
    return Fail(status, last_heard_ns_, actions);
  }
  incarnation_ = message.incarnation();
  epoch_ = message.epoch();
  rejoin_ns_ = message.welcome().rejoin_ns();
  phase_ = Phase::kWaiting;
  // It may never be needed.
  if (options_.self.is_standby()) phase_deadline_ns_ = kNoDeadline;
  proto::Envelope layout;
  *layout.mutable_layout() = options_.layout;
  SendNow(std::move(layout), actions);
  if (options_.self.is_standby()) SendHeartbeat(actions);
}

absl::Status MemberSession::HandleMessage(const proto::Envelope& message, int64_t now_ns, MemberActions* actions) {
  switch (message.body_case()) {
    case proto::Envelope::kHeartbeat:
      coordinator_waits_for_ = message.heartbeat().waiting_for();
      return absl::OkStatus();
    case proto::Envelope::kFailed:
      End(FromFault(message.failed().why()), actions);
      return absl::OkStatus();
    case proto::Envelope::kRefused: {
      const absl::Status status = FromFault(message.refused().why());
      // Without that message the epoch cannot start; it would wait for it in vain.
      if (!joined_)
        Fail(status, now_ns, actions);
      else
        actions->effects.push_back(RefusedEffect{status});
      return absl::OkStatus();
    }
    case proto::Envelope::kEpochStart:
      return HandleStart(message, now_ns, actions);
    case proto::Envelope::kEpochReady: {
      if (phase_ != Phase::kPlanned) return Malformed("EpochReady came before Planned was sent, or twice");
      phase_ = Phase::kReady;
      phase_deadline_ns_ = kNoDeadline;
      joined_ = true;
      EpochReadyEffect ready{epoch_, message.epoch_ready().root()};
      for (const auto& regions : message.epoch_ready().regions()) {
        ready.region_keys[regions.publisher()].assign(regions.keys().begin(), regions.keys().end());
      }
      // What was given up for want of bytes may come again, under new leases.
      std::erase_if(unsent_, [&](const proto::Envelope& unsent) {
        return std::max(unsent.release().generation(), unsent.vote().generation()) > message.epoch_ready().newest();
      });
      HandleReady(message.epoch_ready(), now_ns, actions);
      actions->effects.push_back(std::move(ready));
      for (proto::Envelope& unsent : unsent_) SendNow(std::move(unsent), actions);
      unsent_.clear();
      return absl::OkStatus();
    }
    case proto::Envelope::kSuspended:
      if (phase_ == Phase::kHello) return Malformed("Suspended came before Welcome");
      phase_ = Phase::kWaiting;
      // The coordinator ends the job in time; this is for one that does not.
      phase_deadline_ns_ =
          now_ns + std::max(rejoin_ns_, options_.timeouts.join_ns) + 2 * options_.timeouts.heartbeat_timeout_ns;
      epoch_ = message.epoch();
      unsent_.clear();
      suspended_ = FromFault(message.suspended().why());
      // What left in order is not waited for: there is nothing to time.
      if (HasCode(suspended_, ErrorCode::kAborted)) phase_deadline_ns_ = kNoDeadline;
      HandleSuspended(message.suspended().engine_broken(), actions);
      actions->effects.push_back(SuspendedEffect{suspended_});
      return absl::OkStatus();
    default:
      if (phase_ != Phase::kReady)
        return Malformed(absl::StrCat("message ", BodyName(message), " came before EpochReady"));
      return HandleBody(message, now_ns, actions);
  }
}

absl::Status MemberSession::HandleStart(const proto::Envelope& message, int64_t now_ns, MemberActions* actions) {
  const proto::EpochStart& start = message.epoch_start();
  if (message.epoch() == epoch_ && phase_ != Phase::kWaiting) return Malformed("EpochStart came a second time");
  std::set<MemberKey> keys;
  for (const proto::EpochStart::Member& member : start.members())
    if (!keys.insert(MemberKey::From(member.id())).second)
      return Malformed(absl::StrCat("EpochStart lists ", NameOf(MemberKey::From(member.id())), " twice"));
  if (!keys.contains(options_.self)) return Malformed(absl::StrCat("EpochStart lacks ", NameOf(options_.self)));
  epoch_ = message.epoch();
  newest_epoch_ = std::max(newest_epoch_, epoch_);
  phase_ = Phase::kPlanning;
  phase_deadline_ns_ = now_ns + options_.timeouts.plan_ns + options_.timeouts.heartbeat_timeout_ns;
  members_ = start;
  suspended_ = absl::OkStatus();
  unsent_.clear();
  edges_.clear();
  HandleEpochStart(actions);
  actions->effects.push_back(PlanEffect{epoch_, start});
  return absl::OkStatus();
}

absl::Status MemberSession::Planned(uint64_t epoch, const absl::StatusOr<std::vector<proto::Edge>>& edges, int64_t,
                                    MemberActions* actions, absl::Span<const std::string> region_keys) {
  if (phase_ == Phase::kEnded) return status_;
  if (epoch != epoch_ || phase_ == Phase::kWaiting || phase_ == Phase::kHello || phase_ == Phase::kLost)
    return Error(ErrorCode::kStaleEpoch, absl::StrCat("epoch ", epoch, " is over"));
  if (phase_ != Phase::kPlanning) return Malformed("Planned() answers PlanEffect, once");
  std::vector<EdgeTo> mine;
  std::set<MemberKey> peers;
  proto::Envelope message;
  proto::Planned* planned = message.mutable_planned();
  if (!edges.ok()) *planned->mutable_why_not() = ToFault(edges.status());
  for (const proto::Edge& edge : edges.ok() ? *edges : std::vector<proto::Edge>()) {
    const MemberKey publisher = MemberKey::Publisher(edge.publisher());
    const MemberKey receiver = MemberKey::Receiver(edge.engine(), edge.worker());
    if (publisher != options_.self && receiver != options_.self)
      return Malformed(absl::StrCat("the edge ", NameOf(publisher), " to ", NameOf(receiver), " does not end at ",
                                    NameOf(options_.self)));
    const MemberKey& peer = publisher == options_.self ? receiver : publisher;
    if (!peers.insert(peer).second) return Malformed(absl::StrCat("two edges to ", NameOf(peer)));
    mine.push_back({peer, edge.digest()});
    *planned->add_edges() = edge;
  }
  for (const std::string& key : region_keys) planned->add_region_keys(key);
  Describe(planned);
  edges_ = std::move(mine);
  phase_ = Phase::kPlanned;
  SendNow(std::move(message), actions);
  return absl::OkStatus();
}

absl::Status MemberSession::CheckJoined(const char* what) const {
  if (phase_ == Phase::kEnded) return status_;
  if (!joined_) return Malformed(absl::StrCat(what, " before the epoch is ready"));
  return absl::OkStatus();
}

void MemberSession::OnTick(int64_t now_ns, MemberActions* actions) {
  if (phase_ == Phase::kNew || phase_ == Phase::kEnded) return;
  if (phase_ == Phase::kLost) {
    if (now_ns >= phase_deadline_ns_) return End(lost_, actions);
    return HandleTick(now_ns, actions);
  }
  if (now_ns >= last_heard_ns_ + options_.timeouts.heartbeat_timeout_ns)
    return Lose(absl::StrCat("nothing heard for ", (now_ns - last_heard_ns_) / 1'000'000, " ms"), now_ns, actions);
  if (now_ns >= phase_deadline_ns_)
    return Fail(Error(ErrorCode::kDeadline, absl::StrCat(NameOf(options_.self), " gave up: ", WaitingFor())), now_ns,
                actions);
  if (now_ns >= next_heartbeat_ns_) {
    next_heartbeat_ns_ = now_ns + options_.timeouts.heartbeat_period_ns;
    SendHeartbeat(actions);
  }
  HandleTick(now_ns, actions);
}

void MemberSession::SendHeartbeat(MemberActions* actions) {
  if (phase_ == Phase::kNew || phase_ == Phase::kHello || phase_ == Phase::kLost || phase_ == Phase::kEnded) return;
  proto::Envelope message;
  Describe(message.mutable_heartbeat());
  SendNow(std::move(message), actions);
}

int64_t MemberSession::NextDeadline() const {
  if (phase_ == Phase::kNew || phase_ == Phase::kEnded) return kNoDeadline;
  const int64_t mine = std::min(phase_deadline_ns_, RoleDeadline());
  if (phase_ == Phase::kLost) return mine;
  return std::min({last_heard_ns_ + options_.timeouts.heartbeat_timeout_ns, next_heartbeat_ns_, mine});
}

std::string MemberSession::WaitingFor() const {
  const std::string coordinator = absl::StrCat("the coordinator at ", options_.coordinator_address);
  const std::string others =
      coordinator_waits_for_.empty() ? "" : absl::StrCat(", which waits for ", coordinator_waits_for_);
  switch (phase_) {
    case Phase::kNew:
      return absl::StrCat("a connection to ", coordinator);
    case Phase::kHello:
      return absl::StrCat(coordinator, " has not answered Hello");
    case Phase::kWaiting:
      if (!suspended_.ok()) return std::string(suspended_.message());
      return absl::StrCat("the epoch has not started at ", coordinator, others);
    case Phase::kPlanning:
      return "the own plan is not made";
    case Phase::kPlanned:
      return absl::StrCat("the plans are not compared at ", coordinator, others);
    case Phase::kReady:
      return coordinator_waits_for_.empty() ? "a generation" : coordinator_waits_for_;
    case Phase::kLost:
      return absl::StrCat("another connection, since ", lost_.message());
    case Phase::kEnded:
      return "";
  }
  return "";
}

}  // namespace headrace
