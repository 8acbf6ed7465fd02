#ifndef HEADRACE_LOADER_SESSION_MEMBER_SESSION_H_
#define HEADRACE_LOADER_SESSION_MEMBER_SESSION_H_

// What a publisher's and a receiver's session have in common: joining an epoch, agreeing on the plan, heartbeats,
// leaving, and the death of the coordinator.
//
//   OnConnected -> Hello -> (Welcome) -> Layout -> (EpochStart) PlanEffect -> Planned() -> (EpochReady)
//
// Every incoming message is checked for job and incarnation (kWrongJob, both named), epoch (kStaleEpoch), sender and
// state (kMalformed); what does not pass is dropped with a RefusedEffect. At Welcome a wrong job ends the session,
// before the layout is shown.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "loader/session/types.h"

namespace headrace {

struct MemberOptions {
  std::string job;
  // Empty: whichever the coordinator has. Otherwise another incarnation is refused with kWrongJob.
  std::string incarnation;
  MemberKey self;
  std::string host;
  int64_t pid = 0;
  proto::Layout layout;
  SessionTimeouts timeouts;
  // Where the coordinator is, for messages.
  std::string coordinator_address;
};

class MemberSession {
 public:
  enum class Phase { kNew, kHello, kLayoutSent, kPlanning, kPlanned, kReady, kEnded };

  virtual ~MemberSession() = default;
  MemberSession(const MemberSession&) = delete;
  MemberSession& operator=(const MemberSession&) = delete;

  // The stream to the coordinator stands. Once.
  void OnConnected(int64_t now_ns, MemberActions* actions);
  void OnMessage(const proto::Envelope& message, int64_t now_ns, MemberActions* actions);
  // The stream broke: the coordinator is lost (kPeerLost), unless the session was over.
  void OnDisconnected(const absl::Status& reason, int64_t now_ns, MemberActions* actions);
  // Call at NextDeadline() or earlier.
  void OnTick(int64_t now_ns, MemberActions* actions);
  // When the next tick is needed, kNoDeadline when never.
  int64_t NextDeadline() const;

  // Answers PlanEffect with every edge that ends here. kMalformed: an edge that does not end here, twice the same
  // edge, or a call in another phase.
  // A publisher adds the keys of its snapshot regions, by slot.
  absl::Status Planned(absl::Span<const proto::Edge> edges, int64_t now_ns, MemberActions* actions,
                       absl::Span<const std::string> region_keys = {});
  // Leaves in order (Bye); the session is over with kAborted. Receiver: kAborted while a decision is awaited, since a
  // worker that voted cannot go alone.
  absl::Status Leave(int64_t now_ns, MemberActions* actions);
  // Ends this session by the owner's own error, which the coordinator is told (and the others then learn).
  void Fail(const absl::Status& status, int64_t now_ns, MemberActions* actions);

  Phase phase() const { return phase_; }
  // OK until the session is over.
  const absl::Status& status() const { return status_; }
  const std::string& incarnation() const { return incarnation_; }
  uint64_t epoch() const { return epoch_; }
  // The members of the epoch, empty before PlanEffect.
  const proto::EpochStart& members() const { return members_; }
  // What the session waits for, in words, for a log line: "the coordinator waits for publisher rank 2, ...".
  std::string WaitingFor() const;

 protected:
  explicit MemberSession(MemberOptions options);

  // Bodies that the roles handle, once the epoch is ready; an error: the message is dropped.
  virtual absl::Status HandleBody(const proto::Envelope& message, int64_t now_ns, MemberActions* actions) = 0;
  // A message is dropped because of `why`, before its RefusedEffect.
  virtual void HandleDropped(const proto::Envelope&, const absl::Status& /*why*/, int64_t /*now_ns*/, MemberActions*) {}
  virtual void HandleEpochStart() = 0;
  virtual void HandleTick(int64_t now_ns, MemberActions* actions) = 0;
  virtual int64_t RoleDeadline() const = 0;
  virtual absl::Status MayLeave() const { return absl::OkStatus(); }
  // The session is about to end by `status`; returns the status to end with.
  virtual absl::Status HandleEnd(const absl::Status& status) = 0;

  // Completes the envelope around the body; `to` is the coordinator unless it is set.
  void Send(proto::Envelope message, MemberActions* actions);
  void End(const absl::Status& status, MemberActions* actions);
  // The session's status when it is over, kMalformed unless it is ready.
  absl::Status CheckReady(const char* what) const;

  const MemberOptions options_;

  struct EdgeTo {
    MemberKey peer;
    std::string digest;
  };
  // Edges of this member, by Planned().
  std::vector<EdgeTo> edges_;

 private:
  absl::Status CheckEnvelope(const proto::Envelope& message) const;
  void HandleHelloAnswer(const proto::Envelope& message, MemberActions* actions);
  absl::Status HandleMessage(const proto::Envelope& message, int64_t now_ns, MemberActions* actions);
  absl::Status HandleStart(const proto::EpochStart& start, int64_t now_ns, MemberActions* actions);

  Phase phase_ = Phase::kNew;
  absl::Status status_;
  std::string incarnation_;
  uint64_t epoch_ = 0;
  proto::EpochStart members_;
  int64_t phase_deadline_ns_ = kNoDeadline;
  int64_t last_heard_ns_ = 0;
  int64_t next_heartbeat_ns_ = kNoDeadline;
  std::string coordinator_waits_for_;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_SESSION_MEMBER_SESSION_H_
