#include "loader/session/engine_votes.h"

#include <algorithm>
#include <limits>
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

EngineVotes::Outcome EngineVotes::Decide(uint64_t generation, int64_t now_ns) {
  committing_ = generation;
  done_.clear();
  deadline_ns_ = now_ns + commit_timeout_ns_;
  return Outcome{generation, true, absl::OkStatus()};
}

std::vector<EngineVotes::Outcome> EngineVotes::Resume(std::vector<proto::WorkerRun> runs, uint64_t newest,
                                                      uint64_t floor, int64_t now_ns) {
  uint64_t served = 0;
  floor_ = floor;
  for (const proto::WorkerRun& run : runs) {
    served = std::max<uint64_t>(served, run.holds());
    floor_ = std::max<uint64_t>(floor_, run.committed());
  }
  // What one worker serves, all committed; one that committed it has not heard of it.
  for (proto::WorkerRun& run : runs) {
    if (run.stage() != proto::WorkerRun::COMMITTED || run.running() > served) continue;
    run.set_holds(run.running());
    run.set_stage(proto::WorkerRun::IDLE);
  }
  committed_ = served;
  std::vector<Outcome> outcomes = ResumeRuns(&runs, newest, now_ns);
  uint64_t least = committing_ != 0 ? committing_ : std::numeric_limits<uint64_t>::max();
  if (committing_ == 0)
    for (const proto::WorkerRun& run : runs) least = std::min<uint64_t>(least, run.holds());
  if (newest > least) {
    if (newest < floor_)
      outcomes.push_back({newest, false, NotGrowing(newest)});
    else if (waiting_.empty())
      waiting_.push_back(newest);
  }
  return outcomes;
}

std::vector<EngineVotes::Outcome> EngineVotes::ResumeRuns(std::vector<proto::WorkerRun>* runs, uint64_t newest,
                                                          int64_t now_ns) {
  std::set<uint64_t> running;
  for (const proto::WorkerRun& run : *runs)
    if (run.stage() != proto::WorkerRun::IDLE) running.insert(run.running());
  std::vector<Outcome> outcomes;
  for (uint64_t generation : running) {
    std::vector<int> lacking;
    bool decided = false;
    for (size_t worker = 0; worker < runs->size(); ++worker) {
      const proto::WorkerRun& run = (*runs)[worker];
      const bool runs_it = run.stage() != proto::WorkerRun::IDLE && run.running() == generation;
      decided |= runs_it && run.stage() >= proto::WorkerRun::COMMITTING;
      if (!(runs_it && run.stage() >= proto::WorkerRun::VOTED) && run.holds() < generation)
        lacking.push_back(static_cast<int>(worker));
    }
    // All have said yes: it was decided, or is now.
    if (lacking.empty() && committing_ == 0) {
      const Outcome outcome = Decide(generation, now_ns);
      for (size_t worker = 0; worker < runs->size(); ++worker) {
        const proto::WorkerRun& run = (*runs)[worker];
        if (run.holds() >= generation || (run.stage() == proto::WorkerRun::COMMITTED && run.running() == generation))
          done_.insert(static_cast<int>(worker));
      }
      // The last commit came when nobody heard it.
      if (!FinishCommit()) {
        outcomes.push_back(outcome);
        continue;
      }
      for (proto::WorkerRun& run : *runs) run.set_holds(std::max<uint64_t>(run.holds(), generation));
      continue;
    }
    if (generation == newest && !decided && committing_ == 0) {
      ResumeVotes(*runs, generation, now_ns);
      continue;
    }
    outcomes.push_back(
        {generation, false,
         Error(ErrorCode::kAborted,
               decided ? absl::StrCat(name_, " worker ", absl::StrJoin(lacking, ", "), " came back without generation ",
                                      generation, ", which was decided")
                       : absl::StrCat("generation ", generation, " was given up by ", name_,
                                      ": when the membership changed, not all of its bytes were there any more"))});
    aborted_ = std::max(aborted_, generation);
    // Those that wrote live bytes are poisoned by that.
    for (proto::WorkerRun& run : *runs)
      if (run.stage() >= proto::WorkerRun::COMMITTING && run.running() == generation) run.set_holds(0);
  }
  return outcomes;
}

void EngineVotes::ResumeVotes(const std::vector<proto::WorkerRun>& runs, uint64_t generation, int64_t now_ns) {
  waiting_.push_back(generation);
  for (size_t worker = 0; worker < runs.size(); ++worker) {
    if (runs[worker].stage() != proto::WorkerRun::VOTED || runs[worker].running() != generation) continue;
    done_.insert(static_cast<int>(worker));
    last_voted_[worker] = generation;
    deadline_ns_ = now_ns + decision_timeout_ns_;
  }
}

absl::Status EngineVotes::NotGrowing(uint64_t generation) const {
  return Error(ErrorCode::kGenerationNotGrowing,
               absl::StrCat("generation ", generation, " was published, but ", name_, " has committed generation ",
                            floor_, " of this incarnation"));
}

std::optional<EngineVotes::Outcome> EngineVotes::Announce(uint64_t generation) {
  waiting_.push_back(generation);
  absl::Status why = left_;
  if (why.ok() && generation <= floor_) why = NotGrowing(generation);
  if (why.ok()) return std::nullopt;
  // An older one may still be undecided.
  waiting_.pop_back();
  aborted_ = std::max(aborted_, generation);
  return Outcome{generation, false, why};
}

absl::StatusOr<std::optional<EngineVotes::Outcome>> EngineVotes::Vote(int worker, uint64_t generation,
                                                                      const absl::Status& verdict, int64_t now_ns) {
  const auto malformed = [&](absl::string_view why) {
    return Error(ErrorCode::kMalformed,
                 absl::StrCat(name_, " worker ", worker, " voted on generation ", generation, ": ", why));
  };
  uint64_t& last = last_voted_[worker];
  if (generation <= last) return malformed(absl::StrCat("its last vote was on generation ", last));
  const bool waits = std::find(waiting_.begin(), waiting_.end(), generation) != waiting_.end();
  if (!waits && generation <= std::max(aborted_, committed_)) {
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
  waiting_.pop_front();
  return Decide(generation, now_ns);
}

absl::StatusOr<bool> EngineVotes::Commit(int worker, uint64_t generation) {
  if (committing_ == 0 || generation != committing_ || done_.contains(worker))
    return Error(ErrorCode::kMalformed, absl::StrCat(name_, " worker ", worker, " committed generation ", generation,
                                                     committing_ == 0         ? ", but none is decided"
                                                     : done_.contains(worker) ? " a second time"
                                                                              : ", which is not decided"));
  done_.insert(worker);
  return FinishCommit();
}

bool EngineVotes::FinishCommit() {
  if (done_.size() < last_voted_.size()) return false;
  committed_ = committing_;
  floor_ = std::max(floor_, committed_);
  committing_ = 0;
  done_.clear();
  deadline_ns_ = kNoDeadline;
  return true;
}

std::optional<EngineVotes::Outcome> EngineVotes::GiveUp(uint64_t generation, const absl::Status& why) {
  const auto it = std::find(waiting_.begin(), waiting_.end(), generation);
  if (it == waiting_.end()) return std::nullopt;
  if (it == waiting_.begin()) return AbortFront(why);
  waiting_.erase(it);
  aborted_ = std::max(aborted_, generation);
  return Outcome{generation, false, why};
}

std::vector<EngineVotes::Outcome> EngineVotes::Leave(int worker) {
  if (left_.ok()) left_ = Error(ErrorCode::kAborted, absl::StrCat(name_, " worker ", worker, " left"));
  std::vector<Outcome> outcomes;
  while (!waiting_.empty()) outcomes.push_back(AbortFront(left_));
  return outcomes;
}

std::vector<EngineVotes::Outcome> EngineVotes::Break(const absl::Status& why) {
  std::vector<Outcome> outcomes;
  if (committing_ != 0) outcomes.push_back({committing_, false, why});
  committing_ = 0;
  while (!waiting_.empty()) outcomes.push_back(AbortFront(why));
  return outcomes;
}

absl::StatusOr<EngineVotes::Outcome> EngineVotes::Expire() {
  if (committing_ != 0)
    return Error(ErrorCode::kDeadline,
                 absl::StrCat(Lacking(), " did not commit generation ", committing_, " by the deadline"));
  return AbortFront(Error(ErrorCode::kDeadline, absl::StrCat(Lacking(), " did not vote on generation ",
                                                             waiting_.front(), " by the deadline")));
}

std::string EngineVotes::WaitingFor() const {
  if (committing_ != 0) return absl::StrCat(Lacking(), " to commit generation ", committing_);
  return quiet() ? "" : absl::StrCat(Lacking(), " to vote on generation ", waiting_.front());
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
