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

absl::Status Malformed(absl::string_view text) { return Error(ErrorCode::kMalformed, text); }

}  // namespace

MemberSession::MemberSession(MemberOptions options) : options_(std::move(options)) {}

void MemberSession::Send(proto::Envelope message, MemberActions* actions) {
  message.set_job(options_.job);
  message.set_incarnation(incarnation_.empty() ? options_.incarnation : incarnation_);
  message.set_epoch(epoch_);
  *message.mutable_from() = options_.self.ToProto();
  if (!message.has_to()) *message.mutable_to() = MemberKey::Coordinator().ToProto();
  actions->messages.push_back(std::move(message));
}

void MemberSession::End(const absl::Status& status, MemberActions* actions) {
  if (phase_ == Phase::kEnded) return;
  status_ = HandleEnd(status);
  phase_ = Phase::kEnded;
  actions->effects.push_back(FailEffect{status_});
}

void MemberSession::Fail(const absl::Status& status, int64_t, MemberActions* actions) {
  if (phase_ == Phase::kEnded) return;
  if (phase_ != Phase::kNew) {
    proto::Envelope message;
    *message.mutable_failed()->mutable_why() = ToFault(status);
    Send(std::move(message), actions);
  }
  End(status, actions);
}

absl::Status MemberSession::Leave(int64_t, MemberActions* actions) {
  if (phase_ == Phase::kEnded) return status_;
  HR_RETURN_IF_ERROR(MayLeave());
  if (phase_ != Phase::kNew) {
    proto::Envelope message;
    message.mutable_bye();
    Send(std::move(message), actions);
  }
  status_ = HandleEnd(Error(ErrorCode::kAborted, absl::StrCat(NameOf(options_.self), " left the job")));
  phase_ = Phase::kEnded;
  return absl::OkStatus();
}

void MemberSession::OnConnected(int64_t now_ns, MemberActions* actions) {
  if (phase_ != Phase::kNew) return;
  phase_ = Phase::kHello;
  last_heard_ns_ = now_ns;
  next_heartbeat_ns_ = now_ns + options_.timeouts.heartbeat_period_ns;
  // The coordinator's own limits come first, since its message says whom it waits for.
  phase_deadline_ns_ = now_ns + options_.timeouts.join_ns + options_.timeouts.heartbeat_timeout_ns;
  proto::Envelope message;
  message.mutable_hello()->set_host(options_.host);
  message.mutable_hello()->set_pid(options_.pid);
  Send(std::move(message), actions);
}

void MemberSession::OnDisconnected(const absl::Status& reason, int64_t, MemberActions* actions) {
  if (HasCode(reason, ErrorCode::kUnauthenticated)) return End(reason, actions);
  End(Error(ErrorCode::kPeerLost, absl::StrCat("the coordinator at ", options_.coordinator_address, " is lost: ",
                                               reason.ok() ? "it closed the connection" : reason.message())),
      actions);
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
  if (phase_ != Phase::kHello && message.epoch() != epoch_)
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
  if (phase_ == Phase::kEnded || phase_ == Phase::kNew) return;
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
  phase_ = Phase::kLayoutSent;
  proto::Envelope layout;
  *layout.mutable_layout() = options_.layout;
  Send(std::move(layout), actions);
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
      if (phase_ != Phase::kReady)
        Fail(status, now_ns, actions);
      else
        actions->effects.push_back(RefusedEffect{status});
      return absl::OkStatus();
    }
    case proto::Envelope::kEpochStart:
      return HandleStart(message.epoch_start(), now_ns, actions);
    case proto::Envelope::kEpochReady: {
      if (phase_ != Phase::kPlanned) return Malformed("EpochReady came before Planned was sent, or twice");
      phase_ = Phase::kReady;
      phase_deadline_ns_ = kNoDeadline;
      EpochReadyEffect ready{message.epoch_ready().root()};
      for (const auto& regions : message.epoch_ready().regions()) {
        ready.region_keys.emplace_back(regions.keys().begin(), regions.keys().end());
      }
      actions->effects.push_back(std::move(ready));
      return absl::OkStatus();
    }
    default:
      if (phase_ != Phase::kReady)
        return Malformed(absl::StrCat("message ", BodyName(message), " came before EpochReady"));
      return HandleBody(message, now_ns, actions);
  }
}

absl::Status MemberSession::HandleStart(const proto::EpochStart& start, int64_t now_ns, MemberActions* actions) {
  if (phase_ != Phase::kLayoutSent) return Malformed("EpochStart came a second time");
  std::set<MemberKey> keys;
  for (const proto::EpochStart::Member& member : start.members())
    if (!keys.insert(MemberKey::From(member.id())).second)
      return Malformed(absl::StrCat("EpochStart lists ", NameOf(MemberKey::From(member.id())), " twice"));
  if (!keys.contains(options_.self)) return Malformed(absl::StrCat("EpochStart lacks ", NameOf(options_.self)));
  phase_ = Phase::kPlanning;
  phase_deadline_ns_ = now_ns + options_.timeouts.plan_ns + options_.timeouts.heartbeat_timeout_ns;
  members_ = start;
  HandleEpochStart();
  actions->effects.push_back(PlanEffect{start});
  return absl::OkStatus();
}

absl::Status MemberSession::Planned(absl::Span<const proto::Edge> edges, int64_t, MemberActions* actions,
                                    absl::Span<const std::string> region_keys) {
  if (phase_ == Phase::kEnded) return status_;
  if (phase_ != Phase::kPlanning) return Malformed("Planned() answers PlanEffect, once");
  std::vector<EdgeTo> mine;
  std::set<MemberKey> peers;
  proto::Envelope message;
  message.mutable_planned();
  for (const proto::Edge& edge : edges) {
    const MemberKey publisher = MemberKey::Publisher(edge.publisher());
    const MemberKey receiver = MemberKey::Receiver(edge.engine(), edge.worker());
    if (publisher != options_.self && receiver != options_.self)
      return Malformed(absl::StrCat("the edge ", NameOf(publisher), " to ", NameOf(receiver), " does not end at ",
                                    NameOf(options_.self)));
    const MemberKey& peer = publisher == options_.self ? receiver : publisher;
    if (!peers.insert(peer).second) return Malformed(absl::StrCat("two edges to ", NameOf(peer)));
    mine.push_back({peer, edge.digest()});
    *message.mutable_planned()->add_edges() = edge;
  }
  for (const std::string& key : region_keys) message.mutable_planned()->add_region_keys(key);
  edges_ = std::move(mine);
  phase_ = Phase::kPlanned;
  Send(std::move(message), actions);
  return absl::OkStatus();
}

absl::Status MemberSession::CheckReady(const char* what) const {
  if (phase_ == Phase::kEnded) return status_;
  if (phase_ != Phase::kReady) return Malformed(absl::StrCat(what, " before the epoch is ready"));
  return absl::OkStatus();
}

void MemberSession::OnTick(int64_t now_ns, MemberActions* actions) {
  if (phase_ == Phase::kNew || phase_ == Phase::kEnded) return;
  if (now_ns >= last_heard_ns_ + options_.timeouts.heartbeat_timeout_ns)
    return End(Error(ErrorCode::kPeerLost,
                     absl::StrCat("the coordinator at ", options_.coordinator_address, " is lost: nothing heard for ",
                                  (now_ns - last_heard_ns_) / 1'000'000, " ms")),
               actions);
  if (now_ns >= phase_deadline_ns_)
    return Fail(Error(ErrorCode::kDeadline, absl::StrCat(NameOf(options_.self), " gave up: ", WaitingFor())), now_ns,
                actions);
  if (now_ns >= next_heartbeat_ns_) {
    next_heartbeat_ns_ = now_ns + options_.timeouts.heartbeat_period_ns;
    if (phase_ != Phase::kHello) {
      proto::Envelope message;
      message.mutable_heartbeat();
      Send(std::move(message), actions);
    }
  }
  if (phase_ == Phase::kReady) HandleTick(now_ns, actions);
}

int64_t MemberSession::NextDeadline() const {
  if (phase_ == Phase::kNew || phase_ == Phase::kEnded) return kNoDeadline;
  return std::min({last_heard_ns_ + options_.timeouts.heartbeat_timeout_ns, phase_deadline_ns_, next_heartbeat_ns_,
                   phase_ == Phase::kReady ? RoleDeadline() : kNoDeadline});
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
    case Phase::kLayoutSent:
      return absl::StrCat("the epoch has not started at ", coordinator, others);
    case Phase::kPlanning:
      return "the own plan is not made";
    case Phase::kPlanned:
      return absl::StrCat("the plans are not compared at ", coordinator, others);
    case Phase::kReady:
      return coordinator_waits_for_.empty() ? "a generation" : coordinator_waits_for_;
    case Phase::kEnded:
      return "";
  }
  return "";
}

}  // namespace headrace
