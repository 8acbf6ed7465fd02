#ifndef HEADRACE_LOADER_SESSION_ENGINE_VOTES_H_
#define HEADRACE_LOADER_SESSION_ENGINE_VOTES_H_

// One engine's votes: all workers yes, or the first no, decides a generation; all workers' commits end it. Generations
// are decided in the order in which they were announced. A worker that serves a generation already says yes to it at
// once.

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

  // Once, at first: where the workers stand, and the epoch's newest generation (0: none), which may be voted on where a
  // worker lacks it. Returns what that decides, to be told before that generation is announced: the commit of one that
  // was decided before or that all voted for, the abort of one that cannot be finished; and, to be told after it was
  // announced, its own abort where a worker has committed a newer one (kGenerationNotGrowing). A commit that is found
  // to be complete shows in committed().
  // `floor` is the newest generation that the engine is known to have committed, whatever became of its workers: it
  // takes none that is older.
  std::vector<Outcome> Resume(std::vector<proto::WorkerRun> runs, uint64_t newest, uint64_t floor, int64_t now_ns);
  // A generation that may be voted on, growing. Its abort, when a worker has left, or has committed a newer one
  // (kGenerationNotGrowing).
  std::optional<Outcome> Announce(uint64_t generation);
  // A worker's vote; the outcome when it decides. A vote that crossed an abort on its way is dropped without an error.
  // kMalformed: not the generation that is running, or a second vote.
  absl::StatusOr<std::optional<Outcome>> Vote(int worker, uint64_t generation, const absl::Status& verdict,
                                              int64_t now_ns);
  // True when all workers committed. kMalformed: the generation is not decided to commit, or a second time.
  absl::StatusOr<bool> Commit(int worker, uint64_t generation);
  // The bytes of a generation are going: its abort, where it is undecided.
  std::optional<Outcome> GiveUp(uint64_t generation, const absl::Status& why);
  // A worker left: whatever is undecided is given up, and so is all that comes.
  std::vector<Outcome> Leave(int worker);
  // A worker is lost: also what was decided is given up.
  std::vector<Outcome> Break(const absl::Status& why);
  // The engine waits for this worker's commit.
  bool OwesCommit(int worker) const { return committing_ != 0 && !done_.contains(worker); }
  bool committing() const { return committing_ != 0; }
  // Nothing is announced and undecided, or decided and not committed.
  bool idle() const { return committing_ == 0 && waiting_.empty(); }
  // Idle, or nobody voted yet.
  bool quiet() const { return committing_ == 0 && done_.empty(); }

  // Who lets the others wait, in words: "engine 0 worker 1 to vote on generation 5", or "to commit" it. Empty: nobody.
  std::string WaitingFor() const;
  // When votes or commits have waited too long; kNoDeadline when nobody waits.
  int64_t deadline_ns() const { return deadline_ns_; }
  // Call past the deadline: the abort of a generation that lacks votes (kDeadline), or kDeadline as an error where
  // commits are lacking; both name the workers.
  absl::StatusOr<Outcome> Expire();
  // Newest generation that all workers committed, 0: none; also where one of them came back without it since.
  uint64_t committed() const { return committed_; }

 private:
  Outcome AbortFront(absl::Status why);
  absl::Status NotGrowing(uint64_t generation) const;
  std::string Lacking() const;
  // Decides on what the workers run, in its order; corrects what they hold by that.
  std::vector<Outcome> ResumeRuns(std::vector<proto::WorkerRun>* runs, uint64_t newest, int64_t now_ns);
  void ResumeVotes(const std::vector<proto::WorkerRun>& runs, uint64_t generation, int64_t now_ns);
  bool FinishCommit();
  Outcome Decide(uint64_t generation, int64_t now_ns);

  std::string name_;
  int64_t decision_timeout_ns_;
  int64_t commit_timeout_ns_;
  std::deque<uint64_t> waiting_;      // announced, undecided; the first one is running
  std::vector<uint64_t> last_voted_;  // of each worker; 0: none
  uint64_t floor_ = 0;                // the newest that any worker ever served
  std::set<int> done_;                // who voted yes on the running one, or who committed `committing_`
  uint64_t aborted_ = 0;              // the newest aborted generation
  uint64_t committing_ = 0;           // decided, not committed by all; 0: none
  uint64_t committed_ = 0;
  int64_t deadline_ns_ = kNoDeadline;
  absl::Status left_;  // kAborted once a worker left
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_SESSION_ENGINE_VOTES_H_
