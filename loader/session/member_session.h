#ifndef HEADRACE_LOADER_SESSION_MEMBER_SESSION_H_
#define HEADRACE_LOADER_SESSION_MEMBER_SESSION_H_

// What a publisher's and a receiver's session have in common: joining a job, the epochs, agreeing on the plan,
// heartbeats, leaving, and the loss of the coordinator.
//
//   OnConnected -> Hello -> (Welcome) -> Layout -> (EpochStart) PlanEffect -> Planned() -> (EpochReady)
//   EpochReadyEffect
//
// A membership that changes starts a new epoch, at any time: PlanEffect comes again. Planned() tells the coordinator
// all it has to know of this member, so that one that has just begun can go on with the job; what the member says
// between PlanEffect and Planned() is part of that, and what it says until EpochReady is sent then.
//
// Where a job waits for what it lost (Welcome's rejoin_ns), a broken stream does not end the session: ReconnectEffect.
//
// Every incoming message is checked for job and incarnation (kWrongJob, both named), epoch (kStaleEpoch), sender and
// state (kMalformed); what does not pass is dropped with a RefusedEffect. At Welcome a wrong job ends the session,
// before the layout is shown.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "loader/session/types.h"

namespace headrace {

struct MemberOptions {
  std::string job;
  // Empty: whichever the coordinator has. Otherwise another incarnation is refused with kWrongJob.
  std::string incarnation;
  MemberKey self;
  int workers = 0;  // of a receiver's engine; 0: as many as the coordinator was told
  std::string host;
  int64_t pid = 0;
  proto::Layout layout;
  SessionTimeouts timeouts;
  // Where the coordinator is, for messages.
  std::string coordinator_address;
};

class MemberSession {
 public:
  // kWaiting: of the job, in no epoch. kLost: the stream broke.
  enum class Phase { kNew, kHello, kWaiting, kPlanning, kPlanned, kReady, kLost, kEnded };

  virtual ~MemberSession() = default;
  MemberSession(const MemberSession&) = delete;
  MemberSession& operator=(const MemberSession&) = delete;

  // The stream to the coordinator stands: once at first, and after each ReconnectEffect.
  void OnConnected(int64_t now_ns, MemberActions* actions);
  void OnMessage(const proto::Envelope& message, int64_t now_ns, MemberActions* actions);
  // The stream broke: the coordinator is lost (kPeerLost), unless the session was over or the job waits for it.
  void OnDisconnected(const absl::Status& reason, int64_t now_ns, MemberActions* actions);
  // Call at NextDeadline() or earlier.
  void OnTick(int64_t now_ns, MemberActions* actions);
  // When the next tick is needed, kNoDeadline when never.
  int64_t NextDeadline() const;

  // Answers PlanEffect of `epoch` with every edge that ends here, or with why no plan can be made. kStaleEpoch: that
  // epoch is over. kMalformed: an edge that does not end here, twice the same edge, or a second call for an epoch.
  // A publisher adds the keys of its regions.
  absl::Status Planned(uint64_t epoch, const absl::StatusOr<std::vector<proto::Edge>>& edges, int64_t now_ns,
                       MemberActions* actions, absl::Span<const std::string> region_keys = {});
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
  // Not OK while there is no epoch for this member: who is missing.
  const absl::Status& suspended() const { return suspended_; }
  // What the session waits for, in words, for a log line: "the coordinator waits for publisher rank 2, ...".
  std::string WaitingFor() const;

 protected:
  explicit MemberSession(MemberOptions options);

  // Bodies that the roles handle, once the epoch is ready; an error: the message is dropped.
  virtual absl::Status HandleBody(const proto::Envelope& message, int64_t now_ns, MemberActions* actions) = 0;
  // A message is dropped because of `why`, before its RefusedEffect.
  virtual void HandleDropped(const proto::Envelope&, const absl::Status& /*why*/, int64_t /*now_ns*/, MemberActions*) {}
  // An epoch begins, before its PlanEffect.
  virtual void HandleEpochStart(MemberActions* actions) = 0;
  // Adds what the coordinator must know of one that is in no epoch.
  virtual void Describe(proto::Heartbeat*) const {}
  // Adds what the coordinator must know of this member.
  virtual void Describe(proto::Planned* planned) const = 0;
  // The epoch is ready, before its EpochReadyEffect and before what was said meanwhile is sent.
  virtual void HandleReady(const proto::EpochReady& ready, int64_t now_ns, MemberActions* actions) = 0;
  // suspended() is not OK from now on.
  virtual void HandleSuspended(bool engine_broken, MemberActions* actions) = 0;
  virtual void HandleTick(int64_t now_ns, MemberActions* actions) = 0;
  virtual int64_t RoleDeadline() const = 0;
  virtual absl::Status MayLeave() const { return absl::OkStatus(); }
  // The session is about to end by `status`; returns the status to end with.
  virtual absl::Status HandleEnd(const absl::Status& status) = 0;

  // Sends what the role has to say, when the coordinator can understand it (see above); `to` is the coordinator unless
  // it is set.
  void Send(proto::Envelope message, MemberActions* actions);
  void End(const absl::Status& status, MemberActions* actions);
  void SendHeartbeat(MemberActions* actions);
  // The session's status when it is over, kMalformed before the first epoch was ready.
  absl::Status CheckJoined(const char* what) const;

  const MemberOptions options_;

  struct EdgeTo {
    MemberKey peer;
    std::string digest;
  };
  // Edges of this member, by Planned().
  std::vector<EdgeTo> edges_;

 private:
  // Completes the envelope around the body and sends it now.
  void SendNow(proto::Envelope message, MemberActions* actions);
  absl::Status CheckEnvelope(const proto::Envelope& message) const;
  void HandleHelloAnswer(const proto::Envelope& message, MemberActions* actions);
  absl::Status HandleMessage(const proto::Envelope& message, int64_t now_ns, MemberActions* actions);
  absl::Status HandleStart(const proto::Envelope& message, int64_t now_ns, MemberActions* actions);
  void Lose(absl::string_view how, int64_t now_ns, MemberActions* actions);

  Phase phase_ = Phase::kNew;
  bool joined_ = false;  // an epoch was ready once
  absl::Status status_;
  absl::Status suspended_;
  absl::Status lost_;  // why the stream broke
  std::string incarnation_;
  uint64_t epoch_ = 0;
  uint64_t newest_epoch_ = 0;  // that it was ever in, under whatever coordinator
  int64_t rejoin_ns_ = 0;
  proto::EpochStart members_;
  std::vector<proto::Envelope> unsent_;  // said between Planned() and EpochReady
  int64_t phase_deadline_ns_ = kNoDeadline;
  int64_t last_heard_ns_ = 0;
  int64_t next_heartbeat_ns_ = kNoDeadline;
  std::string coordinator_waits_for_;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_SESSION_MEMBER_SESSION_H_
