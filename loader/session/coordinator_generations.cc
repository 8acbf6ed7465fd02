// From Published to EngineCommitted.
#include <utility>

#include "absl/strings/str_cat.h"
#include "loader/session/coordinator.h"
#include "planner/status.h"

namespace headrace {

absl::Status Coordinator::HandlePublished(const MemberKey& from, const proto::Published& published,
                                          CoordinatorActions* actions) {
  HR_RETURN_IF_ERROR(publisher_left_);
  HR_ASSIGN_OR_RETURN(const std::optional<proto::Announced> announced, publications_.Publish(from.rank, published));
  if (!announced.has_value()) return absl::OkStatus();
  proto::Envelope message;
  *message.mutable_announced() = *announced;
  Broadcast(message, actions);
  for (size_t engine = 0; engine < engines_.size(); ++engine)
    if (const auto outcome = engines_[engine].Announce(announced->generation()))
      SendDecision(static_cast<int>(engine), *outcome, actions);
  return absl::OkStatus();
}

absl::Status Coordinator::HandleRelease(const MemberKey& from, const proto::Release& release,
                                        CoordinatorActions* actions) {
  HR_RETURN_IF_ERROR(publications_.Release(from, release.generation()));
  proto::Envelope message;
  *message.mutable_from() = from.ToProto();
  *message.mutable_release() = release;
  for (int rank = 0; rank < options_.publishers; ++rank) Send(MemberKey::Publisher(rank), message, actions);
  return absl::OkStatus();
}

absl::Status Coordinator::Relay(const MemberKey& from, const proto::Envelope& message, CoordinatorActions* actions) {
  const MemberKey to = MemberKey::From(message.to());
  const proto::Role role = from.role == proto::PUBLISHER ? proto::RECEIVER : proto::PUBLISHER;
  if (to.role != role || !IsExpected(to))
    return Error(ErrorCode::kMalformed,
                 absl::StrCat(NameOf(from), " sent a Start or Abort to ", NameOf(to), ", which takes none of it"));
  if (!members_.at(to).left) {
    Send(to, message, actions);
  } else if (message.has_start()) {
    // In the name of the one that left: the receiver must not wait for its bytes.
    proto::Envelope abort;
    *abort.mutable_from() = to.ToProto();
    abort.mutable_abort()->set_generation(message.start().generation());
    *abort.mutable_abort()->mutable_why() = ToFault(Error(ErrorCode::kAborted, absl::StrCat(Describe(to), " left")));
    Send(from, std::move(abort), actions);
  }
  return absl::OkStatus();
}

absl::Status Coordinator::HandleVote(const MemberKey& from, const proto::Vote& vote, int64_t now_ns,
                                     CoordinatorActions* actions) {
  const absl::Status verdict = vote.has_why_not() ? FromFault(vote.why_not()) : absl::OkStatus();
  HR_ASSIGN_OR_RETURN(const auto outcome, engines_[from.engine].Vote(from.rank, vote.generation(), verdict, now_ns));
  if (outcome.has_value()) SendDecision(from.engine, *outcome, actions);
  return absl::OkStatus();
}

absl::Status Coordinator::HandleCommitted(const MemberKey& from, const proto::Committed& committed,
                                          CoordinatorActions* actions) {
  HR_ASSIGN_OR_RETURN(const bool all, engines_[from.engine].Commit(from.rank, committed.generation()));
  if (!all) return absl::OkStatus();
  proto::Envelope message;
  message.mutable_engine_committed()->set_engine(from.engine);
  message.mutable_engine_committed()->set_generation(committed.generation());
  Broadcast(message, actions);
  return absl::OkStatus();
}

void Coordinator::SendDecision(int engine, const EngineVotes::Outcome& outcome, CoordinatorActions* actions) {
  proto::Envelope message;
  proto::Decision* decision = message.mutable_decision();
  decision->set_engine(engine);
  decision->set_generation(outcome.generation);
  decision->set_commit(outcome.commit);
  if (!outcome.commit) *decision->mutable_why_not() = ToFault(outcome.why);
  for (int worker = 0; worker < options_.workers[engine]; ++worker)
    Send(MemberKey::Receiver(engine, worker), message, actions);
  if (outcome.commit) return;
  for (int rank = 0; rank < options_.publishers; ++rank) Send(MemberKey::Publisher(rank), message, actions);
}

void Coordinator::TickEngines(int64_t now_ns, CoordinatorActions* actions) {
  for (size_t engine = 0; engine < engines_.size(); ++engine) {
    if (now_ns < engines_[engine].deadline_ns()) continue;
    const absl::StatusOr<EngineVotes::Outcome> outcome = engines_[engine].Expire();
    if (!outcome.ok()) return End(outcome.status(), now_ns, actions);
    SendDecision(static_cast<int>(engine), *outcome, actions);
  }
}

}  // namespace headrace
