#ifndef HEADRACE_LOADER_SESSION_RECEIVER_SESSION_H_
#define HEADRACE_LOADER_SESSION_RECEIVER_SESSION_H_

// One engine worker's session: from an announced generation to the engine's commit.
//
//   SERVING(g-1) -> PLANNED -> STREAMING(g) -> VOTED(g) -> COMMITTING(g) -> COMMITTED(g) -> SERVING(g)
//                                   \-------------\-> ABORTED(g) -> SERVING(g-1), or POISONED where live bytes were
//                                                     touched, until a full generation commits
//
// Announced generations are taken in order, none is skipped, so that all workers of an engine vote on the same one.
// A worker that voted cannot abort alone: when the coordinator is lost before the decision, or no decision comes by
// the deadline, the others may have committed, so it is poisoned. A refusal by the live coordinator on the ordered
// stream is an abort: it keeps serving g-1 (unless live bytes were touched). The same holds between the decision
// and EngineCommitted, where nothing is served: a session that ends there leaves the worker poisoned.

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "loader/session/member_session.h"

namespace headrace {

struct ReceiverState {
  // What an earlier session left behind: the newest generation that the engine committed (0: none) and its
  // incarnation. Within one incarnation an announced generation must be above it.
  uint64_t committed_generation = 0;
  std::string committed_incarnation;
  bool poisoned = false;
};

class ReceiverSession : public MemberSession {
 public:
  enum class State { kServing, kPlanned, kStreaming, kVoted, kCommitting, kCommitted, kAborted, kPoisoned };

  // options.self is a receiver.
  ReceiverSession(MemberOptions options, ReceiverState initial);

  // Asks for WaitEndedEffect unless a generation that was not begun is known by `deadline_ns`. Ends at once with
  // kAborted where a member that is needed for further generations left.
  absl::Status ExpectGeneration(int64_t deadline_ns, int64_t now_ns, MemberActions* actions);
  // Reading of `generation` begins; `touches_live`: bytes go into live buffers (in_place). kMalformed: it is not the
  // oldest announced generation that is undecided, or another one is running. kAborted: a worker of this engine left.
  absl::Status Begin(uint64_t generation, bool touches_live);
  // Two-sided transports: orders `publisher` to send. Only between Begin and Vote. kMalformed: no edge to it.
  absl::Status RequestStart(int publisher, int64_t now_ns, MemberActions* actions);
  // The worker's verdict, after its own verification; not OK: why it gives up. It no longer reads the generation:
  // the lease is released. kMalformed: not streaming this generation.
  absl::Status Vote(uint64_t generation, const absl::Status& verdict, int64_t now_ns, MemberActions* actions);
  // Answers DiscardEffect of a generation that was being read: reading has stopped.
  absl::Status Stopped(uint64_t generation, int64_t now_ns, MemberActions* actions);
  // Answers CommitEffect. A commit that failed half way is reported with Fail(): the worker is then poisoned.
  absl::Status Committed(uint64_t generation, int64_t now_ns, MemberActions* actions);

  State state() const;
  // The generation of the live buffers that may be served: 0 for the weights that were there at first; nullopt when
  // nothing may be served.
  std::optional<uint64_t> serving() const;
  // The generation that is being read, voted on or committed; 0: none.
  uint64_t running() const { return running_; }
  // For the next session of this worker.
  ReceiverState Carry() const;

 protected:
  absl::Status HandleBody(const proto::Envelope& message, int64_t now_ns, MemberActions* actions) override;
  void HandleEpochStart() override {}
  void HandleTick(int64_t now_ns, MemberActions* actions) override;
  int64_t RoleDeadline() const override;
  absl::Status MayLeave() const override;
  absl::Status HandleEnd(const absl::Status& status, bool coordinator_alive) override;

 private:
  enum class Run { kIdle, kStreaming, kVoted, kCommitting, kCommitted, kAborted };

  absl::Status HandleAnnounced(const proto::Announced& announced, MemberActions* actions);
  absl::Status HandleDecision(const proto::Decision& decision, MemberActions* actions);
  absl::Status HandleEngineCommitted(const proto::EngineCommitted& committed, MemberActions* actions);
  void HandleLeft(const proto::Left& left, MemberActions* actions);
  void SendVote(uint64_t generation, const absl::Status& verdict, MemberActions* actions);
  void SendRelease(uint64_t generation, MemberActions* actions);
  // Nothing is running any more; live bytes that were touched are poison.
  void FinishRun();

  ReceiverState committed_;
  std::deque<uint64_t> announced_;  // not begun, growing
  uint64_t last_announced_ = 0;
  Run run_ = Run::kIdle;
  uint64_t running_ = 0;
  bool touches_live_ = false;
  bool voted_yes_ = false;
  std::set<uint64_t> voted_down_;  // announced but not growing: voted no at once, the decision is on its way
  int64_t decision_deadline_ns_ = kNoDeadline;
  int64_t expect_deadline_ns_ = kNoDeadline;
  bool expecting_ = false;
  absl::Status engine_left_;     // kAborted once a worker of this engine left
  absl::Status publisher_left_;  // kAborted once a publisher left
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_SESSION_RECEIVER_SESSION_H_
