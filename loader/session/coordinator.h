#ifndef HEADRACE_LOADER_SESSION_COORDINATOR_H_
#define HEADRACE_LOADER_SESSION_COORDINATOR_H_

// One epoch of one job: who is in it, whether their plans agree, which generation all publishers hold, how each
// engine decided. Soft state; it never sees weights. See types.h for the contract of the machines.
//
// What a sender did wrong hurts the sender alone. Before its Welcome: Failed, and its stream is closed. Afterwards: the
// message is dropped and answered by Refused. What makes the epoch impossible (a member died, plans differ, options
// differ, a wait ended) ends it for all by Failed, and so does every later Hello.

#include <cstdint>
#include <map>
#include <optional>
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
  uint64_t epoch = 1;       // >= 1
  int publishers = 1;
  std::vector<int> workers;  // of each engine
  SessionTimeouts timeouts;
};

class Coordinator {
 public:
  enum class Phase { kJoining, kPlanning, kReady, kEnded };

  // The join deadline counts from `now_ns`.
  Coordinator(CoordinatorOptions options, int64_t now_ns);

  void OnConnected(ConnectionId connection, int64_t now_ns, CoordinatorActions* actions);
  void OnMessage(ConnectionId connection, const proto::Envelope& message, int64_t now_ns, CoordinatorActions* actions);
  // The stream broke or its outgoing queue overflowed; `reason` says which. Not called for streams that `close` named.
  void OnDisconnected(ConnectionId connection, const absl::Status& reason, int64_t now_ns, CoordinatorActions* actions);
  void OnTick(int64_t now_ns, CoordinatorActions* actions);
  int64_t NextDeadline() const;

  // Ends the epoch by `status` (not OK): every member is told.
  void End(const absl::Status& status, int64_t now_ns, CoordinatorActions* actions);

  Phase phase() const { return phase_; }
  // OK until the epoch ended; kAborted when it ended because all members left.
  const absl::Status& status() const { return status_; }
  const std::string& root() const { return root_; }
  uint64_t last_announced() const { return publications_.last_announced(); }
  // Newest generation that all workers of the engine committed, 0: none.
  uint64_t engine_committed(int engine) const { return engines_[engine].committed(); }
  // In words, empty when the epoch waits for nothing: "publisher rank 2 and engine 0 worker 1 to join".
  std::string WaitingFor() const;

 private:
  struct Member {
    ConnectionId connection = 0;
    std::string host;
    int64_t pid = 0;
    bool has_layout = false;
    bool left = false;
    proto::Layout layout;
    int64_t last_heard_ns = 0;
  };
  struct Connection {
    std::optional<MemberKey> member;
    int64_t hello_deadline_ns = kNoDeadline;  // until it is a member's
  };

  bool IsExpected(const MemberKey& key) const;
  std::string Describe(const MemberKey& key) const;
  // Every expected member in order: publishers by rank, then receivers by engine and rank.
  std::vector<MemberKey> Everyone() const;
  absl::Status CheckEnvelope(const MemberKey& from, const proto::Envelope& message) const;
  absl::Status Dispatch(const MemberKey& from, const proto::Envelope& message, int64_t now_ns,
                        CoordinatorActions* actions);
  // Completes the envelope and sends it; `from` is the coordinator unless it is set. Nothing for one that left.
  void Send(const MemberKey& to, proto::Envelope message, CoordinatorActions* actions) const;
  // To everyone but `except` who is here.
  void Broadcast(const proto::Envelope& message, CoordinatorActions* actions,
                 const MemberKey& except = MemberKey::Coordinator()) const;
  // A stream that is no member's.
  void Reject(ConnectionId connection, const absl::Status& status, CoordinatorActions* actions);
  // A member is gone without leaving in order: ends the epoch for the others.
  void Lose(const MemberKey& key, absl::string_view how, int64_t now_ns, CoordinatorActions* actions);

  // coordinator_members.cc
  absl::Status CheckHello(const proto::Envelope& message) const;
  void HandleHello(ConnectionId connection, const proto::Envelope& message, int64_t now_ns,
                   CoordinatorActions* actions);
  absl::Status HandleLayout(const MemberKey& from, const proto::Layout& layout, int64_t now_ns,
                            CoordinatorActions* actions);
  absl::Status HandlePlanned(const MemberKey& from, const proto::Planned& planned, int64_t now_ns,
                             CoordinatorActions* actions);
  void HandleBye(const MemberKey& from, int64_t now_ns, CoordinatorActions* actions);

  // coordinator_generations.cc
  absl::Status HandlePublished(const MemberKey& from, const proto::Published& published, CoordinatorActions* actions);
  absl::Status HandleRelease(const MemberKey& from, const proto::Release& release, CoordinatorActions* actions);
  absl::Status Relay(const MemberKey& from, const proto::Envelope& message, CoordinatorActions* actions);
  absl::Status HandleVote(const MemberKey& from, const proto::Vote& vote, int64_t now_ns, CoordinatorActions* actions);
  absl::Status HandleCommitted(const MemberKey& from, const proto::Committed& committed, CoordinatorActions* actions);
  void SendDecision(int engine, const EngineVotes::Outcome& outcome, CoordinatorActions* actions);
  void TickEngines(int64_t now_ns, CoordinatorActions* actions);

  const CoordinatorOptions options_;
  Phase phase_ = Phase::kJoining;
  absl::Status status_;
  int64_t phase_deadline_ns_;
  int64_t next_heartbeat_ns_;
  std::map<ConnectionId, Connection> connections_;
  std::map<MemberKey, Member> members_;
  absl::Status publisher_left_;  // kAborted once a publisher left
  PlanTable plans_;
  Publications publications_;
  std::vector<EngineVotes> engines_;
  std::string root_;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_SESSION_COORDINATOR_H_
