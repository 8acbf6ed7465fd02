#include "loader/session/receiver_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {
namespace {

absl::Status Malformed(absl::string_view text) { return Error(ErrorCode::kMalformed, text); }

}  // namespace

ReceiverSession::ReceiverSession(MemberOptions options, ReceiverState initial)
    : MemberSession(std::move(options)), committed_(std::move(initial)) {}

ReceiverSession::State ReceiverSession::state() const {
  switch (run_) {
    case Run::kStreaming:
      return State::kStreaming;
    case Run::kVoted:
      return State::kVoted;
    case Run::kCommitting:
      return State::kCommitting;
    case Run::kCommitted:
      return State::kCommitted;
    case Run::kAborted:
      return State::kAborted;
    case Run::kIdle:
      break;
  }
  if (phase() != Phase::kEnded && !announced_.empty()) return State::kPlanned;
  return committed_.poisoned ? State::kPoisoned : State::kServing;
}

std::optional<uint64_t> ReceiverSession::serving() const {
  if (Carry().poisoned) return std::nullopt;
  return committed_.committed_generation;
}

// Asked for in the middle of a generation, it answers as if the session ended here.
ReceiverState ReceiverSession::Carry() const {
  ReceiverState state = committed_;
  if (run_ != Run::kIdle && touches_live_) state.poisoned = true;
  return state;
}

absl::Status ReceiverSession::ExpectGeneration(int64_t deadline_ns, int64_t, MemberActions* actions) {
  HR_RETURN_IF_ERROR(CheckReady("ExpectGeneration()"));
  if (!announced_.empty()) return absl::OkStatus();
  const absl::Status& left = engine_left_.ok() ? publisher_left_ : engine_left_;
  if (!left.ok()) {
    actions->effects.push_back(WaitEndedEffect{left});
    return absl::OkStatus();
  }
  expecting_ = true;
  expect_deadline_ns_ = deadline_ns;
  return absl::OkStatus();
}

absl::Status ReceiverSession::Begin(uint64_t generation, bool touches_live) {
  HR_RETURN_IF_ERROR(CheckReady("Begin()"));
  HR_RETURN_IF_ERROR(engine_left_);
  if (run_ != Run::kIdle)
    return Malformed(absl::StrCat("Begin(", generation, ") while generation ", running_, " is running"));
  if (announced_.empty() || announced_.front() != generation)
    return Malformed(absl::StrCat("Begin(", generation, "): ",
                                  announced_.empty() ? "no generation is announced"
                                                     : absl::StrCat("generation ", announced_.front(), " is next")));
  announced_.pop_front();
  run_ = Run::kStreaming;
  running_ = generation;
  touches_live_ = touches_live;
  return absl::OkStatus();
}

absl::Status ReceiverSession::RequestStart(int publisher, int64_t, MemberActions* actions) {
  HR_RETURN_IF_ERROR(CheckReady("RequestStart()"));
  if (run_ != Run::kStreaming) return Malformed("RequestStart() outside of Begin and Vote");
  const MemberKey key = MemberKey::Publisher(publisher);
  const auto edge = std::find_if(edges_.begin(), edges_.end(), [&](const EdgeTo& e) { return e.peer == key; });
  if (edge == edges_.end()) return Malformed(absl::StrCat("RequestStart(): there is no edge to ", NameOf(key)));
  proto::Envelope message;
  *message.mutable_to() = key.ToProto();
  message.mutable_start()->set_generation(running_);
  message.mutable_start()->set_digest(edge->digest);
  Send(std::move(message), actions);
  return absl::OkStatus();
}

void ReceiverSession::SendVote(uint64_t generation, const absl::Status& verdict, MemberActions* actions) {
  proto::Envelope message;
  message.mutable_vote()->set_generation(generation);
  if (!verdict.ok()) *message.mutable_vote()->mutable_why_not() = ToFault(verdict);
  Send(std::move(message), actions);
}

void ReceiverSession::SendRelease(uint64_t generation, MemberActions* actions) {
  proto::Envelope message;
  message.mutable_release()->set_generation(generation);
  Send(std::move(message), actions);
}

absl::Status ReceiverSession::Vote(uint64_t generation, const absl::Status& verdict, int64_t now_ns,
                                   MemberActions* actions) {
  HR_RETURN_IF_ERROR(CheckReady("Vote()"));
  if (run_ != Run::kStreaming || generation != running_)
    return Malformed(absl::StrCat("Vote(", generation, "): it is not being read"));
  run_ = Run::kVoted;
  voted_yes_ = verdict.ok();
  decision_deadline_ns_ = now_ns + options_.timeouts.decision_ns + options_.timeouts.heartbeat_timeout_ns;
  SendVote(generation, verdict, actions);
  SendRelease(generation, actions);
  return absl::OkStatus();
}

void ReceiverSession::FinishRun() {
  if (touches_live_) committed_.poisoned = true;
  run_ = Run::kIdle;
  running_ = 0;
  touches_live_ = false;
  decision_deadline_ns_ = kNoDeadline;
}

absl::Status ReceiverSession::Stopped(uint64_t generation, int64_t, MemberActions* actions) {
  HR_RETURN_IF_ERROR(CheckReady("Stopped()"));
  if (run_ != Run::kAborted || generation != running_)
    return Malformed(absl::StrCat("Stopped(", generation, ") answers DiscardEffect of a generation that was read"));
  FinishRun();
  SendRelease(generation, actions);
  return absl::OkStatus();
}

absl::Status ReceiverSession::BeginCommit(uint64_t generation) {
  HR_RETURN_IF_ERROR(CheckReady("BeginCommit()"));
  if (run_ != Run::kCommitting || generation != running_)
    return Malformed(absl::StrCat("BeginCommit(", generation, ") answers CommitEffect"));
  touches_live_ = true;
  return absl::OkStatus();
}

void ReceiverSession::Poison(const absl::Status& status, int64_t now_ns, MemberActions* actions) {
  committed_.poisoned = true;
  Fail(status, now_ns, actions);
}

absl::Status ReceiverSession::Committed(uint64_t generation, int64_t now_ns, MemberActions* actions) {
  HR_RETURN_IF_ERROR(CheckReady("Committed()"));
  if (run_ != Run::kCommitting || generation != running_ || !touches_live_)
    return Malformed(absl::StrCat("Committed(", generation, ") comes after BeginCommit"));
  run_ = Run::kCommitted;
  decision_deadline_ns_ = now_ns + options_.timeouts.commit_ns + options_.timeouts.heartbeat_timeout_ns;
  proto::Envelope message;
  message.mutable_committed()->set_generation(generation);
  Send(std::move(message), actions);
  return absl::OkStatus();
}

absl::Status ReceiverSession::HandleBody(const proto::Envelope& message, int64_t, MemberActions* actions) {
  switch (message.body_case()) {
    case proto::Envelope::kAnnounced:
      return HandleAnnounced(message.announced(), actions);
    case proto::Envelope::kAbort: {
      if (message.from().role() != proto::PUBLISHER || run_ != Run::kStreaming ||
          message.abort().generation() != running_)
        return Malformed("an Abort that answers no Start");
      actions->effects.push_back(StartRefusedEffect{message.from().rank(), running_, FromFault(message.abort().why())});
      return absl::OkStatus();
    }
    case proto::Envelope::kDecision:
      return HandleDecision(message.decision(), actions);
    case proto::Envelope::kEngineCommitted:
      return HandleEngineCommitted(message.engine_committed(), actions);
    case proto::Envelope::kLeft:
      HandleLeft(message.left(), actions);
      return absl::OkStatus();
    default:
      return Malformed(absl::StrCat("message ", BodyName(message), " is not for a receiver"));
  }
}

absl::Status ReceiverSession::HandleAnnounced(const proto::Announced& announced, MemberActions* actions) {
  const uint64_t generation = announced.generation();
  if (generation <= last_announced_)
    return Error(ErrorCode::kGenerationNotGrowing,
                 absl::StrCat("generation ", generation, " was announced after generation ", last_announced_));
  last_announced_ = generation;
  if (committed_.committed_incarnation == incarnation() && generation <= committed_.committed_generation) {
    const absl::Status status =
        Error(ErrorCode::kGenerationNotGrowing,
              absl::StrCat("generation ", generation, " was announced, but ", NameOf(options_.self), " has committed ",
                           "generation ", committed_.committed_generation, " of this incarnation"));
    // Its engine must not wait for this worker.
    voted_down_.insert(generation);
    SendVote(generation, status, actions);
    SendRelease(generation, actions);
    return status;
  }
  announced_.push_back(generation);
  expecting_ = false;
  expect_deadline_ns_ = kNoDeadline;
  actions->effects.push_back(AnnouncedEffect{generation, {announced.slots().begin(), announced.slots().end()}});
  return absl::OkStatus();
}

absl::Status ReceiverSession::HandleDecision(const proto::Decision& decision, MemberActions* actions) {
  const uint64_t generation = decision.generation();
  if (decision.engine() != options_.self.engine)
    return Malformed(absl::StrCat("a decision of engine ", decision.engine(), " reached ", NameOf(options_.self)));
  if (decision.commit()) {
    if (run_ != Run::kVoted || !voted_yes_ || generation != running_)
      return Malformed(absl::StrCat("a decision to commit generation ", generation, ", for which ",
                                    NameOf(options_.self), " has no vote that stands"));
    run_ = Run::kCommitting;
    decision_deadline_ns_ = kNoDeadline;
    actions->effects.push_back(CommitEffect{generation});
    return absl::OkStatus();
  }
  if (voted_down_.erase(generation) != 0) return absl::OkStatus();
  if (generation == running_ && run_ == Run::kStreaming) {
    run_ = Run::kAborted;
  } else if (generation == running_ && run_ == Run::kVoted) {
    FinishRun();
  } else if (!announced_.empty() && generation == announced_.front()) {
    announced_.pop_front();
    SendRelease(generation, actions);
  } else {
    return Malformed(absl::StrCat("a decision on generation ", generation, ", which is not undecided here"));
  }
  actions->effects.push_back(DiscardEffect{generation, FromFault(decision.why_not())});
  return absl::OkStatus();
}

absl::Status ReceiverSession::HandleEngineCommitted(const proto::EngineCommitted& committed, MemberActions* actions) {
  if (committed.engine() == options_.self.engine) {
    if (run_ != Run::kCommitted || committed.generation() != running_)
      return Malformed(absl::StrCat("the engine's commit of generation ", committed.generation(),
                                    " came without the commit of ", NameOf(options_.self)));
    committed_ = ReceiverState{running_, incarnation(), /*poisoned=*/false};
    touches_live_ = false;  // what was written is now what is served
    FinishRun();
  }
  actions->effects.push_back(EngineCommittedEffect{committed.engine(), committed.generation()});
  return absl::OkStatus();
}

void ReceiverSession::HandleLeft(const proto::Left& left, MemberActions* actions) {
  const MemberKey member = MemberKey::From(left.member());
  actions->effects.push_back(LeftEffect{member});
  const absl::Status why =
      Error(ErrorCode::kAborted, absl::StrCat(NameOf(member), " left; no further generation can come"));
  if (member.role == proto::PUBLISHER)
    publisher_left_ = why;
  else if (member.engine == options_.self.engine)
    engine_left_ = why;
  else
    return;
  if (!expecting_) return;
  expecting_ = false;
  expect_deadline_ns_ = kNoDeadline;
  actions->effects.push_back(WaitEndedEffect{why});
}

void ReceiverSession::HandleTick(int64_t now_ns, MemberActions* actions) {
  if (now_ns >= decision_deadline_ns_)
    return Fail(Error(ErrorCode::kDeadline, absl::StrCat(NameOf(options_.self), " got no ",
                                                         run_ == Run::kVoted ? "decision" : "commit of its engine",
                                                         " on generation ", running_, " by the deadline")),
                now_ns, actions);
  if (!expecting_ || now_ns < expect_deadline_ns_) return;
  expecting_ = false;
  expect_deadline_ns_ = kNoDeadline;
  actions->effects.push_back(WaitEndedEffect{
      Error(ErrorCode::kDeadline,
            absl::StrCat("no generation above ", std::max(last_announced_, committed_.committed_generation),
                         " was announced by the deadline; waiting for ", WaitingFor()))});
}

int64_t ReceiverSession::RoleDeadline() const { return std::min(decision_deadline_ns_, expect_deadline_ns_); }

absl::Status ReceiverSession::MayLeave() const {
  if (run_ != Run::kCommitting && run_ != Run::kCommitted && !(run_ == Run::kVoted && voted_yes_))
    return absl::OkStatus();
  return Error(ErrorCode::kAborted, absl::StrCat(NameOf(options_.self), " voted for generation ", running_,
                                                 " and cannot leave before its engine committed or gave it up"));
}

absl::Status ReceiverSession::HandleEnd(const absl::Status& status) {
  const uint64_t generation = running_;
  const bool torn = run_ != Run::kIdle && touches_live_;
  announced_.clear();
  expecting_ = false;
  FinishRun();
  if (!torn) return status;
  return About(Error(ErrorCode::kPoisoned,
                     absl::StrCat(NameOf(options_.self), " serves nothing until a full generation commits: its live ",
                                  "weights were written with generation ", generation,
                                  ", which its engine had not committed; ", CodeOf(status), ": ", status.message())),
               SubjectOf(status));
}

}  // namespace headrace
