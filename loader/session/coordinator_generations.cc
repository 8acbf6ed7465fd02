// From Published to EngineCommitted.
#include <utility>

#include "absl/strings/str_cat.h"
#include "loader/session/coordinator.h"
#include "planner/status.h"

namespace headrace {

absl::Status Coordinator::HandlePublished(const MemberKey& from, const proto::Published& published,
                                          CoordinatorActions* actions) {
  HR_ASSIGN_OR_RETURN(const bool complete, publications_.Publish(from.rank, published));
  SendVoid(actions);
  // Engines that came wait for their epoch, which will announce it; a publisher that came would make it incomplete.
  if (complete && (change_ != Change::kCame || PublisherComes())) Announce(actions);
  return absl::OkStatus();
}

absl::Status Coordinator::HandleVoid(const MemberKey& from, const proto::Void& taken_back,
                                     CoordinatorActions* actions) {
  const bool announced = publications_.Withdraw(from.rank, taken_back.generation());
  SendVoid(actions);
  if (!announced) return absl::OkStatus();
  for (auto& [engine, votes] : engines_)
    if (const auto outcome = votes.GiveUp(taken_back.generation(), FromFault(taken_back.why())))
      SendDecision(engine, *outcome, actions);
  return absl::OkStatus();
}

void Coordinator::SendVoid(CoordinatorActions* actions) {
  for (const Publications::Void& of : publications_.TakeVoid()) {
    proto::Envelope message;
    message.mutable_void_()->set_generation(of.generation);
    if (of.why.ok()) {
      SendToPublishers(message, actions);
      continue;
    }
    *message.mutable_void_()->mutable_why() = ToFault(of.why);
    Broadcast(message, actions);
  }
}

void Coordinator::Announce(CoordinatorActions* actions) {
  last_announced_ = publications_.newest();
  proto::Envelope message;
  *message.mutable_announced() = publications_.Announcement();
  Broadcast(message, actions);
  for (auto& [engine, votes] : engines_)
    if (const auto outcome = votes.Announce(last_announced_)) SendDecision(engine, *outcome, actions);
}

absl::Status Coordinator::HandleRelease(const MemberKey& from, const proto::Release& release,
                                        CoordinatorActions* actions) {
  HR_RETURN_IF_ERROR(publications_.Release(from, release.generation()));
  proto::Envelope message;
  *message.mutable_from() = from.ToProto();
  *message.mutable_release() = release;
  SendToPublishers(message, actions);
  return absl::OkStatus();
}

absl::Status Coordinator::Relay(const MemberKey& from, const proto::Envelope& message, CoordinatorActions* actions) {
  const MemberKey to = MemberKey::From(message.to());
  const proto::Role role = from.role == proto::PUBLISHER ? proto::RECEIVER : proto::PUBLISHER;
  if (to.role != role || !IsExpected(to))
    return Error(ErrorCode::kMalformed,
                 absl::StrCat(NameOf(from), " sent a Start or Abort to ", NameOf(to), ", which takes none of it"));
  const auto it = members_.find(to);
  if (it != members_.end() && it->second.in_epoch) {
    Send(to, message, actions);
  } else if (message.has_start()) {
    // In the name of the one that left: the receiver must not wait for its bytes.
    proto::Envelope abort;
    *abort.mutable_from() = to.ToProto();
    abort.mutable_abort()->set_generation(message.start().generation());
    const auto missing = missing_.find(to);
    *abort.mutable_abort()->mutable_why() =
        ToFault(missing != missing_.end() ? missing->second
                                          : Error(ErrorCode::kAborted, absl::StrCat(Describe(to), " is not there")));
    Send(from, std::move(abort), actions);
  }
  return absl::OkStatus();
}

absl::Status Coordinator::HandleVote(const MemberKey& from, const proto::Vote& vote, int64_t now_ns,
                                     CoordinatorActions* actions) {
  const absl::Status verdict = vote.has_why_not() ? FromFault(vote.why_not()) : absl::OkStatus();
  HR_ASSIGN_OR_RETURN(const auto outcome, engines_.at(from.engine).Vote(from.rank, vote.generation(), verdict, now_ns));
  if (outcome.has_value()) SendDecision(from.engine, *outcome, actions);
  return absl::OkStatus();
}

absl::Status Coordinator::HandleCommitted(const MemberKey& from, const proto::Committed& committed,
                                          CoordinatorActions* actions) {
  HR_ASSIGN_OR_RETURN(const bool all, engines_.at(from.engine).Commit(from.rank, committed.generation()));
  if (!all) return absl::OkStatus();
  committed_[from.engine] = committed.generation();
  proto::Envelope message;
  message.mutable_engine_committed()->set_engine(from.engine);
  message.mutable_engine_committed()->set_generation(committed.generation());
  Broadcast(message, actions);
  return absl::OkStatus();
}

proto::Envelope Coordinator::DecisionMessage(int engine, const EngineVotes::Outcome& outcome) {
  proto::Envelope message;
  proto::Decision* decision = message.mutable_decision();
  decision->set_engine(engine);
  decision->set_generation(outcome.generation);
  decision->set_commit(outcome.commit);
  if (!outcome.commit) *decision->mutable_why_not() = ToFault(outcome.why);
  return message;
}

void Coordinator::SendDecision(int engine, const EngineVotes::Outcome& outcome, CoordinatorActions* actions) {
  const proto::Envelope message = DecisionMessage(engine, outcome);
  for (const auto& [key, member] : members_)
    if (member.in_epoch && key.role == proto::RECEIVER && key.engine == engine) Send(key, message, actions);
  if (!outcome.commit) SendToPublishers(message, actions);
}

void Coordinator::SendToPublishers(const proto::Envelope& message, CoordinatorActions* actions) const {
  for (const auto& [key, member] : members_)
    if (member.in_epoch && key.role == proto::PUBLISHER) Send(key, message, actions);
}

void Coordinator::TickEngines(int64_t now_ns, CoordinatorActions* actions) {
  std::vector<std::pair<int, absl::Status>> late;
  for (auto& [engine, votes] : engines_) {
    if (now_ns < votes.deadline_ns()) continue;
    const absl::StatusOr<EngineVotes::Outcome> outcome = votes.Expire();
    if (outcome.ok())
      SendDecision(engine, *outcome, actions);
    else
      late.push_back({engine, outcome.status()});
  }
  for (const auto& [engine, status] : late) {
    BreakEngine(engine, status, actions);
    Ask(Change::kLost, now_ns);
  }
}

}  // namespace headrace
