#ifndef HEADRACE_LOADER_SESSION_ENGINE_VOTES_H_
#define HEADRACE_LOADER_SESSION_ENGINE_VOTES_H_

// One engine's votes: all workers yes, or the first no, decides a generation; all workers' commits end it. Generations
// are decided in the order in which they were announced.

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
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

  EngineVotes(int workers, int64_t timeout_ns) : workers_(workers), timeout_ns_(timeout_ns) {}

  void Announce(uint64_t generation) { waiting_.push_back(generation); }
  // A worker's vote; the outcome when it decides. `who` names the worker for messages. A vote that crossed an abort on
  // its way is dropped without an error. kMalformed: not the generation that is running, a second vote, an unknown
  // worker.
  absl::StatusOr<std::optional<Outcome>> Vote(int worker, const std::string& who, uint64_t generation,
                                              const absl::Status& verdict, int64_t now_ns);
  // True when all workers committed. kMalformed: the generation is not decided to commit, or a second time.
  absl::StatusOr<bool> Commit(int worker, uint64_t generation);
  // A worker left: an undecided generation that somebody may be reading is given up, and no later one is decided.
  std::optional<Outcome> Leave(int worker, const std::string& who);

  // When votes or commits have waited too long: kNoDeadline when nobody waits.
  int64_t deadline_ns() const { return deadline_ns_; }
  // Past the deadline: the abort of a generation that lacks votes, or nullopt where commits are lacking (then the
  // epoch must end).
  std::optional<Outcome> Expire();
  bool committing() const { return committing_ != 0; }
  uint64_t committed() const { return committed_; }
  // Workers that have not voted, or not committed, for the generation that runs; all where none voted.
  std::vector<int> Lacking() const;

 private:
  Outcome Abort(absl::Status why);

  int workers_;
  int64_t timeout_ns_;
  std::deque<uint64_t> waiting_;  // announced, undecided; the first one runs
  std::set<int> voted_;           // yes votes of the one that runs
  uint64_t aborted_ = 0;          // the newest aborted generation, and who voted on it
  std::set<int> aborted_voted_;
  uint64_t committing_ = 0;
  std::set<int> done_;
  uint64_t committed_ = 0;
  int64_t deadline_ns_ = kNoDeadline;
  std::set<int> left_;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_SESSION_ENGINE_VOTES_H_
