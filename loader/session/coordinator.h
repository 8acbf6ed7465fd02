#ifndef HEADRACE_LOADER_SESSION_COORDINATOR_H_
#define HEADRACE_LOADER_SESSION_COORDINATOR_H_

// One job: who is in it, whether their plans agree, which generation all publishers hold, how each engine decided. Soft
// state, which every epoch takes anew from its members' Planned; it never sees weights. See types.h for the contract of
// the machines.
//
//   joining -> planning -> ready -> (the membership changes) planning -> ready ...
//                  \-> suspended, while members are missing without whom no plan can be made -> planning
//
// The first epoch waits for all publishers and the engines of the options. From then on
//   - a publisher or an engine that comes is taken in when no engine votes or commits;
//   - one that is lost is left out at once, but for commits that are under way: where others hold what it offered, the
//     generation goes on with them, otherwise the job waits for it (rejoin_ns) and ends then;
//   - an engine that lacks a worker is in no epoch. Other engines go on.
//   - where no trainer is left, and an engine lacks the newest generation that others serve, the standbys of those are
//     the epoch's publishers (MemberKey::Standby); otherwise they are in no epoch.
//
// What a sender did wrong hurts the sender alone. Before its Welcome: Failed, and its stream is closed. Afterwards: the
// message is dropped and answered by Refused. A member that comes to a running job and makes a plan impossible is sent
// away (Failed). What makes the job impossible ends it for all by Failed, and so does every later Hello.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "loader/session/engine_votes.h"
#include "loader/session/plan_table.h"
#include "loader/session/publications.h"
#include "loader/session/types.h"

namespace headrace {

struct CoordinatorOptions {
  std::string job;
  std::string incarnation;  // a nonce of the trainer's start; not empty
  uint64_t epoch = 1;       // the first one's number at least; >= 1
  int publishers = 1;
  std::vector<int> workers;  // of each engine that the first epoch waits for
  std::string policy;        // opaque here: what the members plan by
  SessionTimeouts timeouts;
};

class Coordinator {
 public:
  enum class Phase { kJoining, kPlanning, kReady, kSuspended, kEnded };

  // The join deadline counts from `now_ns`.
  Coordinator(CoordinatorOptions options, int64_t now_ns);

  void OnConnected(ConnectionId connection, int64_t now_ns, CoordinatorActions* actions);
  void OnMessage(ConnectionId connection, const proto::Envelope& message, int64_t now_ns, CoordinatorActions* actions);
  // The stream broke or its outgoing queue overflowed; `reason` says which. Not called for streams that `close` named.
  void OnDisconnected(ConnectionId connection, const absl::Status& reason, int64_t now_ns, CoordinatorActions* actions);
  void OnTick(int64_t now_ns, CoordinatorActions* actions);
  int64_t NextDeadline() const;

  // Ends the job by `status` (not OK): every member is told.
  void End(const absl::Status& status, int64_t now_ns, CoordinatorActions* actions);

  Phase phase() const { return phase_; }
  uint64_t epoch() const { return epoch_; }
  // OK until the job ended; kAborted when it ended because all members left.
  const absl::Status& status() const { return status_; }
  const std::string& root() const { return root_; }
  uint64_t last_announced() const { return last_announced_; }
  // One more than the highest number of an engine that is or was there.
  int engines() const;
  // Newest generation that all workers of the engine committed, 0: none.
  uint64_t engine_committed(int engine) const;
  // In words, empty when the job waits for nothing: "publisher rank 2, engine 0 worker 1 to join"; "publisher rank 2 to
  // publish; engine 0 worker 1 to vote on generation 5". Engines whose workers have not voted are not waited for.
  std::string WaitingFor() const;

 private:
  struct Member {
    ConnectionId connection = 0;
    std::string host;
    int64_t pid = 0;
    int workers = 0;  // of a receiver's engine
    bool has_layout = false;
    bool in_epoch = false;
    bool settled = false;  // was in an epoch that was ready
    proto::Layout layout;
    uint64_t holds = 0;  // of a standby
    int64_t last_heard_ns = 0;
  };
  struct Connection {
    std::optional<MemberKey> member;
    int64_t hello_deadline_ns = kNoDeadline;  // until it is a member's
  };

  // coordinator.cc
  std::string Describe(const MemberKey& key) const;
  absl::Status CheckEnvelope(const MemberKey& from, const proto::Envelope& message) const;
  absl::Status Dispatch(const MemberKey& from, const proto::Envelope& message, int64_t now_ns,
                        CoordinatorActions* actions);
  // Completes the envelope and sends it; `from` is the coordinator unless it is set. Nothing for one that is not here.
  void Send(const MemberKey& to, proto::Envelope message, CoordinatorActions* actions) const;
  // To everyone of the epoch, or to everyone.
  void Broadcast(const proto::Envelope& message, CoordinatorActions* actions) const;
  void BroadcastToAll(const proto::Envelope& message, CoordinatorActions* actions) const;
  // A stream that is no member's.
  void Reject(ConnectionId connection, const absl::Status& status, CoordinatorActions* actions);
  // Sends a member away.
  void Dismiss(const MemberKey& key, const absl::Status& status, CoordinatorActions* actions);

  // coordinator_members.cc: coming and going
  int WorkersOf(int engine) const;  // 0: not known
  bool IsExpected(const MemberKey& key) const;
  std::vector<MemberKey> FirstMembers() const;
  bool IsFirst(const MemberKey& key) const;  // whether the first epoch waits for it
  absl::Status CheckHello(const proto::Envelope& message) const;
  void HandleHello(ConnectionId connection, const proto::Envelope& message, int64_t now_ns,
                   CoordinatorActions* actions);
  absl::Status HandleLayout(const MemberKey& from, const proto::Layout& layout, int64_t now_ns,
                            CoordinatorActions* actions);
  void HandleHeartbeat(const MemberKey& from, const proto::Heartbeat& heartbeat, int64_t now_ns);
  void HandleBye(const MemberKey& from, int64_t now_ns, CoordinatorActions* actions);
  // A member is gone without leaving in order.
  void Lose(const MemberKey& key, absl::string_view how, int64_t now_ns, CoordinatorActions* actions);
  // A worker is missing: its engine is in no epoch.
  void BreakEngine(int engine, const absl::Status& why, CoordinatorActions* actions);

  // coordinator_epochs.cc: from one membership to the next
  // Asks for a new epoch: for members that came, that left, or (at once) that are lost.
  enum class Change { kNone, kCame, kLeft, kLost };
  void Ask(Change change, int64_t now_ns);
  // When the change that was asked for is due; kNoDeadline: when engines have got further, or never.
  int64_t ChangeDue() const;
  void ChangeIfDue(int64_t now_ns, CoordinatorActions* actions);
  bool AllPublishersHere() const;
  bool PublisherComes() const;
  bool EngineComplete(int engine) const;
  // Standbys of whole engines, as the publishers of an epoch without trainers; empty: nobody needs them, or can be
  // helped by them.
  std::set<MemberKey> Sources() const;
  std::vector<MemberKey> NextMembers() const;
  void StartEpoch(int64_t now_ns, CoordinatorActions* actions);
  static proto::Envelope SuspendedMessage(const absl::Status& why, bool engine_broken);
  void Suspend(const absl::Status& why, int64_t now_ns, CoordinatorActions* actions);
  absl::Status HandlePlanned(const MemberKey& from, const proto::Planned& planned, int64_t now_ns,
                             CoordinatorActions* actions);
  void PlanFailed(const absl::Status& why, int64_t now_ns, CoordinatorActions* actions);
  void MakeReady(int64_t now_ns, CoordinatorActions* actions);
  struct Decided {
    int engine = 0;
    EngineVotes::Outcome outcome;
  };
  std::vector<Decided> ResumeEngines(int64_t now_ns);
  // Tells what was decided, and announces the epoch's newest generation to those that lack it.
  void AnnounceNewest(const std::vector<Decided>& decided, CoordinatorActions* actions);

  // coordinator_generations.cc
  absl::Status HandlePublished(const MemberKey& from, const proto::Published& published, CoordinatorActions* actions);
  absl::Status HandleVoid(const MemberKey& from, const proto::Void& taken_back, CoordinatorActions* actions);
  void Announce(CoordinatorActions* actions);
  void SendVoid(CoordinatorActions* actions);
  absl::Status HandleRelease(const MemberKey& from, const proto::Release& release, CoordinatorActions* actions);
  absl::Status Relay(const MemberKey& from, const proto::Envelope& message, CoordinatorActions* actions);
  absl::Status HandleVote(const MemberKey& from, const proto::Vote& vote, int64_t now_ns, CoordinatorActions* actions);
  absl::Status HandleCommitted(const MemberKey& from, const proto::Committed& committed, CoordinatorActions* actions);
  static proto::Envelope DecisionMessage(int engine, const EngineVotes::Outcome& outcome);
  void SendDecision(int engine, const EngineVotes::Outcome& outcome, CoordinatorActions* actions);
  void SendToPublishers(const proto::Envelope& message, CoordinatorActions* actions) const;
  void TickEngines(int64_t now_ns, CoordinatorActions* actions);

  const CoordinatorOptions options_;
  Phase phase_ = Phase::kJoining;
  absl::Status status_;
  uint64_t epoch_;
  uint64_t newest_epoch_heard_ = 0;  // of members of an earlier coordinator
  bool numbered_ = false;            // an epoch of number epoch_ began
  bool started_ = false;             // an epoch was ready once
  int64_t phase_deadline_ns_;
  int64_t next_heartbeat_ns_;
  std::map<ConnectionId, Connection> connections_;
  std::map<MemberKey, Member> members_;        // who is here
  std::map<MemberKey, absl::Status> missing_;  // publishers that were here, and why they are not
  std::map<int, absl::Status> broken_;         // engines that lack a worker that was here
  int64_t missing_deadline_ns_ = kNoDeadline;  // of the first publisher that was lost
  absl::Status suspended_;                     // of kSuspended
  Change change_ = Change::kNone;
  int64_t change_asked_ns_ = 0;

  // Of the epoch.
  PlanTable plans_;
  std::map<MemberKey, proto::Planned> planned_;
  Publications publications_;
  std::map<int, EngineVotes> engines_;
  std::vector<MemberKey> past_reading_;  // workers that served its newest generation, or had voted for it, at first
  uint64_t last_announced_ = 0;
  std::string root_;

  std::map<int, uint64_t> committed_;  // by engine
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_SESSION_COORDINATOR_H_
