#ifndef HEADRACE_LOADER_SESSION_RECEIVER_SESSION_H_
#define HEADRACE_LOADER_SESSION_RECEIVER_SESSION_H_

// One engine worker's session: from an announced generation to the engine's commit.
//
//   SERVING(g-1) -> PLANNED -> STREAMING(g) -> VOTED(g) -> COMMITTING(g) -> COMMITTED(g) -> SERVING(g)
//                                   \-------------\-> ABORTED(g) -> SERVING(g-1), or POISONED where live bytes were
//                                                     touched, until a full generation commits
//
// Announced generations are taken in order, none is skipped, so that all workers of an engine vote on the same one.
// Only a new epoch forgets those that were not begun, and announces its newest one: to a worker that reads that one
// already, again, since the publishers may be others. A worker that serves it says yes and commits at once, for a peer
// that came back without it. A vote that was given stands over the change of an epoch, and so does a decision. No
// worker serves g before EngineCommitted, and that needs the commit of every worker. So a worker that has not begun to
// write live bytes knows that nobody serves g, and goes on serving g-1 whatever becomes of the session, even after its
// vote and the decision. Once live bytes may have changed (in_place from Begin on, else from BeginCommit on) a session
// that ends before EngineCommitted leaves the worker poisoned: it serves nothing.

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
  // kAborted where a member that is needed for further generations left: a worker of this engine, the last publisher,
  // or one without whom no epoch can be.
  absl::Status ExpectGeneration(int64_t deadline_ns, int64_t now_ns, MemberActions* actions);
  // Reading of `generation` begins (kStreaming until Vote or Stopped); `touches_live`: bytes go into live buffers
  // (in_place). kMalformed: it is not the oldest announced generation that is undecided, or another one is running.
  // kAborted: a worker of this engine left.
  absl::Status Begin(uint64_t generation, bool touches_live);
  // Orders `publisher` to send; `means`: where it holds and the transport maps. Only between Begin and Vote.
  // kMalformed: no edge to it.
  absl::Status RequestStart(int publisher, const ReceiverMeans& means, MemberActions* actions);
  // The worker's verdict, after its own verification; not OK: why it gives up. It no longer reads the generation:
  // the lease is released. kMalformed: not streaming this generation.
  absl::Status Vote(uint64_t generation, const absl::Status& verdict, int64_t now_ns, MemberActions* actions);
  // Answers DiscardEffect of a generation that was being read: reading has stopped.
  absl::Status Stopped(uint64_t generation, int64_t now_ns, MemberActions* actions);
  // After CommitEffect: live bytes may change from now on. kMalformed: no CommitEffect of this generation stands.
  absl::Status BeginCommit(uint64_t generation);
  // The live bytes hold the generation, after BeginCommit. A commit that failed half way is reported with Poison().
  absl::Status Committed(uint64_t generation, int64_t now_ns, MemberActions* actions);

  // Live bytes were written and are no whole generation: ends the session by `status`, which the others learn, and
  // leaves the worker poisoned. When the session is over already, the worker is poisoned all the same.
  void Poison(const absl::Status& status, int64_t now_ns, MemberActions* actions);

  State state() const;
  // ExpectGeneration's wait goes on: no generation was announced since, and it did not end.
  bool expecting() const { return expecting_; }
  // The epoch is not ready, or has not announced its newest generation yet, or a peer still lacks the one that this
  // worker serves: the next one cannot be begun yet.
  bool between_epochs() const { return phase() != Phase::kReady || announcement_due_ || served_vote_ != 0; }
  // The generation of the live buffers that may be served: 0 for the weights that were there at first; nullopt when
  // nothing may be served.
  std::optional<uint64_t> serving() const;
  // The generation that is being read, voted on or committed; 0: none.
  uint64_t running() const { return running_; }
  // For the next session of this worker.
  ReceiverState Carry() const;

 protected:
  absl::Status HandleBody(const proto::Envelope& message, int64_t now_ns, MemberActions* actions) override;
  void HandleEpochStart(MemberActions* actions) override;
  void Describe(proto::Planned* planned) const override;
  void HandleReady(const proto::EpochReady& ready, int64_t now_ns, MemberActions* actions) override;
  void HandleSuspended(bool engine_broken, MemberActions* actions) override;
  void HandleTick(int64_t now_ns, MemberActions* actions) override;
  int64_t RoleDeadline() const override;
  absl::Status MayLeave() const override;
  absl::Status HandleEnd(const absl::Status& status) override;

 private:
  enum class Run { kIdle, kStreaming, kVoted, kCommitting, kCommitted, kAborted };

  absl::Status HandleAnnounced(const proto::Announced& announced, MemberActions* actions);
  absl::Status HandleVoid(const proto::Void& message, MemberActions* actions);
  absl::Status HandleDecision(const proto::Decision& decision, MemberActions* actions);
  absl::Status HandleEngineCommitted(const proto::EngineCommitted& committed, MemberActions* actions);
  // True where this worker had committed it and waited for its engine.
  bool TakeEngineCommit(uint64_t generation, MemberActions* actions);
  void HandleLeft(const proto::Left& left, MemberActions* actions);
  // Says yes to the generation that is served, and no more.
  void VoteForServed(uint64_t generation, MemberActions* actions);
  void SendVote(uint64_t generation, const absl::Status& verdict, MemberActions* actions);
  void SendCommitted(uint64_t generation, MemberActions* actions);
  void SendRelease(uint64_t generation, MemberActions* actions);
  // The newest generation of this incarnation that was ever committed, and the one that is served; 0: none.
  uint64_t Floor() const;
  uint64_t Holds() const { return committed_.poisoned ? 0 : Floor(); }
  // Nothing is running any more; live bytes that were touched are poison.
  void FinishRun();
  // The engine gives the running generation up.
  void GiveUp(const absl::Status& why, MemberActions* actions);
  void EndWait(const absl::Status& why, MemberActions* actions);
  // kAborted where no further generation can come.
  absl::Status Over() const;

  ReceiverState committed_;
  std::deque<uint64_t> announced_;  // not begun, growing
  uint64_t last_announced_ = 0;
  bool announcement_due_ = false;  // the epoch has a newest generation, which comes next
  Run run_ = Run::kIdle;
  uint64_t running_ = 0;
  bool touches_live_ = false;
  bool voted_yes_ = false;
  uint64_t served_vote_ = 0;  // the generation of VoteForServed that is undecided or not committed by all; 0: none
  int64_t decision_deadline_ns_ = kNoDeadline;
  int64_t expect_deadline_ns_ = kNoDeadline;
  bool expecting_ = false;
  absl::Status engine_left_;          // kAborted once a worker of this engine left
  std::set<MemberKey> publishers_;    // of the epoch, those that have not left
  absl::Status last_publisher_left_;  // kAborted once they all left
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_SESSION_RECEIVER_SESSION_H_
