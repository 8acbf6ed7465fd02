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
  HR_RETURN_IF_ERROR(CheckJoined("ExpectGeneration()"));
  if (!announced_.empty()) return absl::OkStatus();
  if (const absl::Status over = Over(); !over.ok()) {
    actions->effects.push_back(WaitEndedEffect{over});
    return absl::OkStatus();
  }
  expecting_ = true;
  expect_deadline_ns_ = deadline_ns;
  return absl::OkStatus();
}

absl::Status ReceiverSession::Over() const {
  if (!engine_left_.ok()) return engine_left_;
  if (!last_publisher_left_.ok()) return last_publisher_left_;
  return HasCode(suspended(), ErrorCode::kAborted) ? suspended() : absl::OkStatus();
}

uint64_t ReceiverSession::Floor() const {
  return committed_.committed_incarnation == incarnation() ? committed_.committed_generation : 0;
}

void ReceiverSession::EndWait(const absl::Status& why, MemberActions* actions) {
  if (!expecting_) return;
  expecting_ = false;
  expect_deadline_ns_ = kNoDeadline;
  actions->effects.push_back(WaitEndedEffect{why});
}

void ReceiverSession::GiveUp(const absl::Status& why, MemberActions* actions) {
  const uint64_t generation = running_;
  if (run_ == Run::kStreaming) {
    run_ = Run::kAborted;  // until the owner has stopped
  } else if (run_ == Run::kVoted || run_ == Run::kCommitting || run_ == Run::kCommitted) {
    FinishRun();
  } else {
    return;
  }
  actions->effects.push_back(DiscardEffect{generation, why});
}

void ReceiverSession::HandleEpochStart(MemberActions* actions) {
  announced_.clear();
  served_vote_ = 0;
  engine_left_ = last_publisher_left_ = absl::OkStatus();
  publishers_.clear();
  for (const proto::EpochStart::Member& member : members().members())
    if (member.id().role() == proto::PUBLISHER) publishers_.insert(MemberKey::From(member.id()));
  // A no that nobody has answered: the new epoch is a new chance, for all of the engine.
  if (run_ == Run::kVoted && !voted_yes_)
    GiveUp(Error(ErrorCode::kAborted, absl::StrCat(NameOf(options_.self), " gave generation ", running_, " up")),
           actions);
}

void ReceiverSession::Describe(proto::Planned* planned) const {
  proto::WorkerRun* run = planned->mutable_run();
  run->set_holds(Holds());
  run->set_committed(Floor());
  switch (run_) {
    case Run::kStreaming:
      run->set_stage(proto::WorkerRun::READING);
      break;
    case Run::kVoted:
      run->set_stage(proto::WorkerRun::VOTED);
      break;
    case Run::kCommitting:
      run->set_stage(proto::WorkerRun::COMMITTING);
      break;
    case Run::kCommitted:
      run->set_stage(proto::WorkerRun::COMMITTED);
      break;
    case Run::kIdle:
    case Run::kAborted:
      return;
  }
  run->set_running(running_);
}

void ReceiverSession::HandleReady(const proto::EpochReady& ready, int64_t now_ns, MemberActions* actions) {
  // The commit of its engine that this worker missed.
  for (const proto::EngineCommitted& committed : ready.committed())
    if (committed.engine() == options_.self.engine) TakeEngineCommit(committed.generation(), actions);
  const uint64_t newest = ready.newest();
  last_announced_ = newest;
  // What is served need not be read. It is announced only where a peer lacks it.
  if (newest != 0 && newest <= Holds()) SendRelease(newest, actions);
  announcement_due_ = newest > Holds();
  if (newest != 0) --last_announced_;
  if (run_ == Run::kVoted)
    decision_deadline_ns_ = now_ns + options_.timeouts.decision_ns + options_.timeouts.heartbeat_timeout_ns;
  if (run_ == Run::kCommitted)
    decision_deadline_ns_ = now_ns + options_.timeouts.commit_ns + options_.timeouts.heartbeat_timeout_ns;
}

void ReceiverSession::HandleSuspended(bool engine_broken, MemberActions* actions) {
  announced_.clear();
  served_vote_ = 0;
  const bool decided = run_ == Run::kCommitting || run_ == Run::kCommitted;
  if (!decided || engine_broken) GiveUp(suspended(), actions);
  if (HasCode(suspended(), ErrorCode::kAborted)) EndWait(suspended(), actions);
}

absl::Status ReceiverSession::Begin(uint64_t generation, bool touches_live) {
  HR_RETURN_IF_ERROR(CheckJoined("Begin()"));
  HR_RETURN_IF_ERROR(engine_left_);
  if (served_vote_ != 0)
    return Malformed(absl::StrCat("Begin(", generation, ") while a peer lacks generation ", served_vote_));
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

absl::Status ReceiverSession::RequestStart(int publisher, const ReceiverMeans& means, MemberActions* actions) {
  HR_RETURN_IF_ERROR(CheckJoined("RequestStart()"));
  if (run_ != Run::kStreaming) return Malformed("RequestStart() outside of Begin and Vote");
  const MemberKey key = MemberKey::Publisher(publisher);
  const auto edge = std::find_if(edges_.begin(), edges_.end(), [&](const EdgeTo& e) { return e.peer == key; });
  if (edge == edges_.end()) return Malformed(absl::StrCat("RequestStart(): there is no edge to ", NameOf(key)));
  proto::Envelope message;
  *message.mutable_to() = key.ToProto();
  message.mutable_start()->set_generation(running_);
  message.mutable_start()->set_digest(edge->digest);
  message.mutable_start()->set_ring_key(means.ring_key);
  message.mutable_start()->set_reads(means.reads);
  Send(std::move(message), actions);
  return absl::OkStatus();
}

void ReceiverSession::SendVote(uint64_t generation, const absl::Status& verdict, MemberActions* actions) {
  proto::Envelope message;
  message.mutable_vote()->set_generation(generation);
  if (!verdict.ok()) *message.mutable_vote()->mutable_why_not() = ToFault(verdict);
  Send(std::move(message), actions);
}

void ReceiverSession::VoteForServed(uint64_t generation, MemberActions* actions) {
  served_vote_ = generation;
  SendVote(generation, absl::OkStatus(), actions);
  SendRelease(generation, actions);
}

void ReceiverSession::SendCommitted(uint64_t generation, MemberActions* actions) {
  proto::Envelope message;
  message.mutable_committed()->set_generation(generation);
  Send(std::move(message), actions);
}

void ReceiverSession::SendRelease(uint64_t generation, MemberActions* actions) {
  // What this epoch did not announce is leased by nobody, or will be, when it does.
  if (generation > last_announced_) return;
  proto::Envelope message;
  message.mutable_release()->set_generation(generation);
  Send(std::move(message), actions);
}

absl::Status ReceiverSession::Vote(uint64_t generation, const absl::Status& verdict, int64_t now_ns,
                                   MemberActions* actions) {
  HR_RETURN_IF_ERROR(CheckJoined("Vote()"));
  if (run_ != Run::kStreaming || generation != running_)
    return Malformed(absl::StrCat("Vote(", generation, "): it is not being read"));
  run_ = Run::kVoted;
  voted_yes_ = verdict.ok();
  decision_deadline_ns_ = now_ns + options_.timeouts.decision_ns + options_.timeouts.heartbeat_timeout_ns;
  // Between two epochs nobody hears a no: the next one is a new chance, for all of the engine.
  if (!voted_yes_ && phase() != Phase::kReady && phase() != Phase::kPlanned) {
    GiveUp(verdict, actions);
    return absl::OkStatus();
  }
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
  HR_RETURN_IF_ERROR(CheckJoined("Stopped()"));
  if (run_ != Run::kAborted || generation != running_)
    return Malformed(absl::StrCat("Stopped(", generation, ") answers DiscardEffect of a generation that was read"));
  FinishRun();
  // A new epoch may have announced it again.
  if (announced_.empty() || announced_.front() != generation) SendRelease(generation, actions);
  return absl::OkStatus();
}

absl::Status ReceiverSession::BeginCommit(uint64_t generation) {
  HR_RETURN_IF_ERROR(CheckJoined("BeginCommit()"));
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
  HR_RETURN_IF_ERROR(CheckJoined("Committed()"));
  if (run_ != Run::kCommitting || generation != running_ || !touches_live_)
    return Malformed(absl::StrCat("Committed(", generation, ") comes after BeginCommit"));
  run_ = Run::kCommitted;
  decision_deadline_ns_ = now_ns + options_.timeouts.commit_ns + options_.timeouts.heartbeat_timeout_ns;
  SendCommitted(generation, actions);
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
    case proto::Envelope::kVoid:
      return HandleVoid(message.void_(), actions);
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
  announcement_due_ = false;
  if (generation == Holds()) {
    VoteForServed(generation, actions);
    return absl::OkStatus();
  }
  const bool again = run_ == Run::kStreaming && generation == running_;
  const bool needs = run_ == Run::kIdle      ? generation > Holds()
                     : run_ == Run::kAborted ? generation >= running_
                                             : generation > running_;
  if (!needs && !again) {
    SendRelease(generation, actions);
    return absl::OkStatus();
  }
  // What is older than what was served once may not come back; the coordinator gives it up as well.
  if (generation < Floor()) {
    SendRelease(generation, actions);
    return Error(ErrorCode::kGenerationNotGrowing,
                 absl::StrCat("generation ", generation, " was announced, but ", NameOf(options_.self),
                              " has committed ", "generation ", Floor(), " of this incarnation"));
  }
  if (needs) {
    announced_.push_back(generation);
    expecting_ = false;
    expect_deadline_ns_ = kNoDeadline;
  }
  actions->effects.push_back(AnnouncedOf(announced));
  return absl::OkStatus();
}

absl::Status ReceiverSession::HandleVoid(const proto::Void& message, MemberActions* actions) {
  if (!message.has_why()) return Malformed("a Void without an error is for publishers only");
  const uint64_t generation = message.generation();
  // One that was announced by an earlier epoch, which did not compare so much.
  if (generation <= Holds() || generation == running_) return absl::OkStatus();
  expecting_ = false;
  expect_deadline_ns_ = kNoDeadline;
  actions->effects.push_back(GivenUpEffect{generation, FromFault(message.why())});
  return absl::OkStatus();
}

absl::Status ReceiverSession::HandleDecision(const proto::Decision& decision, MemberActions* actions) {
  const uint64_t generation = decision.generation();
  if (decision.engine() != options_.self.engine)
    return Malformed(absl::StrCat("a decision of engine ", decision.engine(), " reached ", NameOf(options_.self)));
  if (decision.commit()) {
    // One that a new epoch repeats.
    if ((run_ == Run::kCommitting || run_ == Run::kCommitted) && generation == running_) return absl::OkStatus();
    if (generation <= Holds()) {
      if (generation == served_vote_) SendCommitted(generation, actions);
      return absl::OkStatus();
    }
    if (run_ != Run::kVoted || !voted_yes_ || generation != running_)
      return Malformed(absl::StrCat("a decision to commit generation ", generation, ", for which ",
                                    NameOf(options_.self), " has no vote that stands"));
    run_ = Run::kCommitting;
    decision_deadline_ns_ = kNoDeadline;
    actions->effects.push_back(CommitEffect{generation});
    return absl::OkStatus();
  }
  const absl::Status why = FromFault(decision.why_not());
  if (generation == served_vote_) {
    served_vote_ = 0;
  } else if (generation == running_ && run_ != Run::kIdle && run_ != Run::kAborted) {
    GiveUp(why, actions);
  } else if (const auto it = std::find(announced_.begin(), announced_.end(), generation); it != announced_.end()) {
    announced_.erase(it);
    SendRelease(generation, actions);
    actions->effects.push_back(DiscardEffect{generation, why});
  } else if (generation > last_announced_ && !announcement_due_) {
    return Malformed(absl::StrCat("a decision on generation ", generation, ", which is not undecided here"));
  }
  return absl::OkStatus();
}

absl::Status ReceiverSession::HandleEngineCommitted(const proto::EngineCommitted& committed, MemberActions* actions) {
  if (committed.engine() != options_.self.engine) {
    actions->effects.push_back(EngineCommittedEffect{committed.engine(), committed.generation()});
    return absl::OkStatus();
  }
  if (committed.generation() == served_vote_) served_vote_ = 0;
  if (committed.generation() <= Holds() || TakeEngineCommit(committed.generation(), actions)) return absl::OkStatus();
  return Malformed(absl::StrCat("the engine's commit of generation ", committed.generation(),
                                " came without the commit of ", NameOf(options_.self)));
}

bool ReceiverSession::TakeEngineCommit(uint64_t generation, MemberActions* actions) {
  if (run_ != Run::kCommitted || generation != running_) return false;
  committed_ = ReceiverState{running_, incarnation(), /*poisoned=*/false};
  touches_live_ = false;  // what was written is now what is served
  FinishRun();
  actions->effects.push_back(EngineCommittedEffect{options_.self.engine, generation});
  return true;
}

void ReceiverSession::HandleLeft(const proto::Left& left, MemberActions* actions) {
  const MemberKey member = MemberKey::From(left.member());
  actions->effects.push_back(LeftEffect{member});
  const absl::Status why =
      Error(ErrorCode::kAborted, absl::StrCat(NameOf(member), " left; no further generation can come"));
  if (member.role == proto::PUBLISHER) {
    publishers_.erase(member);
    if (!publishers_.empty()) return;
    last_publisher_left_ = why;
  } else if (member.engine == options_.self.engine) {
    engine_left_ = why;
  } else {
    return;
  }
  EndWait(why, actions);
}

void ReceiverSession::HandleTick(int64_t now_ns, MemberActions* actions) {
  // Without an epoch there is nobody who could decide; that has its own limit.
  if (phase() == Phase::kReady && now_ns >= decision_deadline_ns_)
    return Fail(Error(ErrorCode::kDeadline, absl::StrCat(NameOf(options_.self), " got no ",
                                                         run_ == Run::kVoted ? "decision" : "commit of its engine",
                                                         " on generation ", running_, " by the deadline")),
                now_ns, actions);
  if (!expecting_ || now_ns < expect_deadline_ns_) return;
  const std::string what = absl::StrCat("no generation above ", std::max(last_announced_, Holds()),
                                        " was announced by the deadline; waiting for ", WaitingFor());
  EndWait(suspended().ok() ? Error(ErrorCode::kDeadline, what) : WithMessage(suspended(), what), actions);
}

int64_t ReceiverSession::RoleDeadline() const {
  return phase() == Phase::kReady ? std::min(decision_deadline_ns_, expect_deadline_ns_) : expect_deadline_ns_;
}

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
