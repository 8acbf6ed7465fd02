#ifndef HEADRACE_LOADER_SESSION_ENGINE_VOTES_H_
#define HEADRACE_LOADER_SESSION_ENGINE_VOTES_H_

// One engine's votes: all workers yes, or the first no, decides a generation; all workers' commits end it. Generations
// are decided in the order in which they were announced.

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "loader/session/types.h"

namespace headrace {

class EngineVotes {
 public:
  struct Outcome {
    uint64_t generation = 0;
    bool commit = false;
    absl::Status why;  // of an abort: names the worker
  };

  // `name` is the engine's, for messages: "engine 0". The timeouts: from the first vote to the decision, and from the
  // decision to the last commit.
  EngineVotes(std::string name, int workers, int64_t decision_timeout_ns, int64_t commit_timeout_ns);

  // A generation that may be voted on, growing. Its abort, when a worker has left.
  std::optional<Outcome> Announce(uint64_t generation);
  // A worker's vote; the outcome when it decides. A vote that crossed an abort on its way is dropped without an error.
  // kMalformed: not the generation that is running, or a second vote.
  absl::StatusOr<std::optional<Outcome>> Vote(int worker, uint64_t generation, const absl::Status& verdict,
                                              int64_t now_ns);
  // True when all workers committed. kMalformed: the generation is not decided to commit, or a second time.
  absl::StatusOr<bool> Commit(int worker, uint64_t generation);
  // A worker left: whatever is undecided is given up, and so is all that comes.
  std::vector<Outcome> Leave(int worker);
  // The engine waits for this worker's commit.
  bool OwesCommit(int worker) const { return committing_ != 0 && !done_.contains(worker); }

  // When votes or commits have waited too long; kNoDeadline when nobody waits.
  int64_t deadline_ns() const { return deadline_ns_; }
  // Call past the deadline: the abort of a generation that lacks votes (kDeadline), or kDeadline as an error where
  // commits are lacking; both name the workers.
  absl::StatusOr<Outcome> Expire();
  // Newest generation that all workers committed, 0: none.
  uint64_t committed() const { return committed_; }

 private:
  Outcome AbortFront(absl::Status why);
  std::string Lacking() const;

  std::string name_;
  int64_t decision_timeout_ns_;
  int64_t commit_timeout_ns_;
  std::deque<uint64_t> waiting_;      // announced, undecided; the first one is running
  std::vector<uint64_t> last_voted_;  // of each worker; 0: none
  std::set<int> done_;                // who voted yes on the running one, or who committed `committing_`
  uint64_t aborted_ = 0;              // the newest aborted generation
  uint64_t committing_ = 0;           // decided, not committed by all; 0: none
  uint64_t committed_ = 0;
  int64_t deadline_ns_ = kNoDeadline;
  absl::Status left_;  // kAborted once a worker left
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_SESSION_ENGINE_VOTES_H_
