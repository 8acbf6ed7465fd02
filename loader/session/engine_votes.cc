#include "loader/session/engine_votes.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/status.h"

namespace headrace {

EngineVotes::EngineVotes(std::string name, int workers, int64_t decision_timeout_ns, int64_t commit_timeout_ns)
    : name_(std::move(name)),
      decision_timeout_ns_(decision_timeout_ns),
      commit_timeout_ns_(commit_timeout_ns),
      last_voted_(workers, 0) {}

std::optional<EngineVotes::Outcome> EngineVotes::Announce(uint64_t generation) {
  waiting_.push_back(generation);
  if (left_.ok()) return std::nullopt;
  return AbortFront(left_);
}

absl::StatusOr<std::optional<EngineVotes::Outcome>> EngineVotes::Vote(int worker, uint64_t generation,
                                                                      const absl::Status& verdict, int64_t now_ns) {
  const auto malformed = [&](absl::string_view why) {
    return Error(ErrorCode::kMalformed,
                 absl::StrCat(name_, " worker ", worker, " voted on generation ", generation, ": ", why));
  };
  uint64_t& last = last_voted_[worker];
  if (generation <= last) return malformed(absl::StrCat("its last vote was on generation ", last));
  if (generation <= aborted_) {
    last = generation;
    return std::nullopt;
  }
  if (committing_ != 0) return malformed(absl::StrCat("generation ", committing_, " is not committed by all yet"));
  if (waiting_.empty()) return malformed("no generation is announced and undecided");
  if (generation != waiting_.front()) return malformed(absl::StrCat("generation ", waiting_.front(), " is running"));
  last = generation;
  if (!verdict.ok())
    return AbortFront(WithMessage(
        verdict, absl::StrCat(name_, " worker ", worker, " gave generation ", generation, " up: ", verdict.message())));
  if (done_.empty()) deadline_ns_ = now_ns + decision_timeout_ns_;
  done_.insert(worker);
  if (done_.size() < last_voted_.size()) return std::nullopt;
  committing_ = generation;
  waiting_.pop_front();
  done_.clear();
  deadline_ns_ = now_ns + commit_timeout_ns_;
  return Outcome{generation, true, absl::OkStatus()};
}

absl::StatusOr<bool> EngineVotes::Commit(int worker, uint64_t generation) {
  if (committing_ == 0 || generation != committing_ || done_.contains(worker))
    return Error(ErrorCode::kMalformed, absl::StrCat(name_, " worker ", worker, " committed generation ", generation,
                                                     committing_ == 0         ? ", but none is decided"
                                                     : done_.contains(worker) ? " a second time"
                                                                              : ", which is not decided"));
  done_.insert(worker);
  if (done_.size() < last_voted_.size()) return false;
  committed_ = committing_;
  committing_ = 0;
  done_.clear();
  deadline_ns_ = kNoDeadline;
  return true;
}

std::vector<EngineVotes::Outcome> EngineVotes::Leave(int worker) {
  if (left_.ok()) left_ = Error(ErrorCode::kAborted, absl::StrCat(name_, " worker ", worker, " left"));
  std::vector<Outcome> outcomes;
  while (!waiting_.empty()) outcomes.push_back(AbortFront(left_));
  return outcomes;
}

absl::StatusOr<EngineVotes::Outcome> EngineVotes::Expire() {
  if (committing_ != 0)
    return Error(ErrorCode::kDeadline,
                 absl::StrCat(Lacking(), " did not commit generation ", committing_, " by the deadline"));
  return AbortFront(Error(ErrorCode::kDeadline, absl::StrCat(Lacking(), " did not vote on generation ",
                                                             waiting_.front(), " by the deadline")));
}

EngineVotes::Outcome EngineVotes::AbortFront(absl::Status why) {
  aborted_ = waiting_.front();
  waiting_.pop_front();
  // While an older generation commits, its deadline stands and done_ is its.
  if (committing_ == 0) {
    done_.clear();
    deadline_ns_ = kNoDeadline;
  }
  return Outcome{aborted_, false, std::move(why)};
}

std::string EngineVotes::Lacking() const {
  std::vector<int> lacking;
  for (int worker = 0; worker < static_cast<int>(last_voted_.size()); ++worker)
    if (!done_.contains(worker)) lacking.push_back(worker);
  return absl::StrCat(name_, " worker ", absl::StrJoin(lacking, ", "));
}

}  // namespace headrace
