#ifndef HEADRACE_LOADER_SESSION_TYPES_H_
#define HEADRACE_LOADER_SESSION_TYPES_H_

// Words that the three state machines share: identities, time limits, and what a machine asks its owner to do.
//
// The machines are pure: no sockets, threads, clock, environment or logging. Time comes in as `now_ns`, nanoseconds of
// any monotonic clock, never smaller than before. Each event appends to an actions struct; the owner sends the messages
// in order and acts on the effects in order. A machine is used by one thread at a time, which must not be away for
// longer than a heartbeat period, and which hands over the messages that have arrived before it ticks.

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "loader/session/message.pb.h"

namespace headrace {

inline constexpr int64_t kNoDeadline = std::numeric_limits<int64_t>::max();

// A value type of proto::MemberId. Ordered: coordinator, publishers by rank, receivers by engine and rank.
struct MemberKey {
  static constexpr int kFirstStandby = 1 << 20;  // ranks of trainers are smaller
  static constexpr int kMostEngines = 2000;

  proto::Role role = proto::ROLE_UNSPECIFIED;
  int engine = 0;  // receivers only
  int rank = 0;

  static MemberKey Coordinator() { return {proto::COORDINATOR, 0, 0}; }
  static MemberKey Publisher(int rank) { return {proto::PUBLISHER, 0, rank}; }
  static MemberKey Receiver(int engine, int rank) { return {proto::RECEIVER, engine, rank}; }
  // The publisher that an engine worker is when no trainer is left (loader/standby.h): 0 <= engine < kMostEngines,
  // 0 <= worker < kFirstStandby.
  static MemberKey Standby(int engine, int worker) { return Publisher(kFirstStandby * (engine + 1) + worker); }
  bool is_trainer() const { return role == proto::PUBLISHER && rank < kFirstStandby; }
  bool is_standby() const { return role == proto::PUBLISHER && rank >= kFirstStandby; }
  MemberKey worker_of_standby() const { return Receiver(rank / kFirstStandby - 1, rank % kFirstStandby); }
  static MemberKey From(const proto::MemberId& id) { return {id.role(), id.engine(), id.rank()}; }
  proto::MemberId ToProto() const;

  friend bool operator==(const MemberKey&, const MemberKey&) = default;
  friend auto operator<=>(const MemberKey&, const MemberKey&) = default;
};

// "coordinator", "publisher rank 3", "engine 0 worker 1".
std::string NameOf(const MemberKey& member);
// "publisher rank 3 (host a, pid 77)".
std::string NameOf(const MemberKey& member, const std::string& host, int64_t pid);

// An error as it travels, and back: code, message and subject survive.
proto::Fault ToFault(const absl::Status& status);
absl::Status FromFault(const proto::Fault& fault);

// The name of the message inside: "hello", "epoch_start"; "no body" where there is none (or one of a later version).
std::string BodyName(const proto::Envelope& message);

struct SessionTimeouts {
  int64_t heartbeat_period_ns = 500'000'000;
  int64_t heartbeat_timeout_ns = 6'000'000'000;
  // From the coordinator's start (a member's connection) to its first epoch's start.
  int64_t join_ns = 60'000'000'000;
  // From the epoch's start until all members planned and agreed.
  int64_t plan_ns = 60'000'000'000;
  // From an engine's first vote to the decision. A receiver waits heartbeat_timeout_ns longer, so that a live
  // coordinator's answer always comes first; so it does with commit_ns.
  int64_t decision_ns = 30'000'000'000;
  // From the decision to the engine's commit. The host has to bring its engine to a pause meanwhile, which may mean to
  // finish the requests that are running; a worker that is dead is noticed by its heartbeat.
  int64_t commit_ns = 600'000'000'000;
  // How long the job waits for a member that it lost, and members for a coordinator, before it is over. 0: not at all.
  // The coordinator's counts, and is told to all. Where others hold what a lost publisher offered, nobody waits.
  int64_t rejoin_ns = 0;
};

// How a receiver takes what a publisher holds, on transports that map (proto::Start).
struct ReceiverMeans {
  std::string ring_key = {};
  bool reads = false;
};

// ---- What a member's session asks of its owner -----------------------------------------------------------------

// A new epoch begins: stop what was read in the last one, make the plan, then call Planned(). A PlanEffect of a later
// epoch makes this one void.
struct PlanEffect {
  uint64_t epoch = 0;
  proto::EpochStart start = {};
};
// Both ends of every edge agree; generations may flow.
struct EpochReadyEffect {
  uint64_t epoch = 0;
  std::string root = {};
  std::map<int, std::vector<std::string>> region_keys = {};  // by publisher rank, as it gave them to Planned()
};
// The stream to the coordinator broke: connect again, by `deadline_ns`, and call OnConnected().
struct ReconnectEffect {
  int64_t deadline_ns = 0;
};
// Publisher: Publish(generation) has its slot: write the snapshot there, then call Snapshotted(generation).
struct WriteSlotEffect {
  uint64_t generation = 0;
  int slot = 0;
};
// Every publisher published `generation`, but replicas differ (kReplicaDivergence): it is never announced. Its slots
// are free. Not told to a worker that serves it, or that reads it since an earlier epoch, which hears of its end.
struct GivenUpEffect {
  uint64_t generation = 0;
  absl::Status status;
};
// Publisher: Publish(generation) found no free slot by its deadline (kDeadline, naming the receivers that hold the
// slots), or a member that it waited for left. The session goes on.
struct PublishFailedEffect {
  uint64_t generation = 0;
  absl::Status status;
};
// Every publisher published `generation`; publisher r's is in its slot slots[r]. Also for the generation that is being
// read, when the epoch changed: read it from the beginning.
struct AnnouncedEffect {
  uint64_t generation = 0;
  std::map<int, int> slots = {};
  // Workers that serve it already, or voted for it before the epoch, and neither read it nor pass it on.
  std::vector<MemberKey> absent = {};
};
AnnouncedEffect AnnouncedOf(const proto::Announced& announced);
// Publisher: send the edge's bytes of `generation`, which is in `slot`, to this receiver.
struct SendToEffect {
  MemberKey receiver;
  uint64_t generation = 0;
  int slot = 0;
  ReceiverMeans means = {};
};
// Publisher: no receiver reads `generation` any more, so its slot may be written again.
struct SlotFreeEffect {
  uint64_t generation = 0;
  int slot = 0;
};
// Receiver: publisher refused our Start; vote no.
struct StartRefusedEffect {
  int publisher = 0;
  uint64_t generation = 0;
  absl::Status status;
};
// Receiver: call BeginCommit(), copy the verified generation to the live buffers (in_place: they hold it), then
// call Committed().
struct CommitEffect {
  uint64_t generation = 0;
};
// Receiver: the engine gave `generation` up, also one that was to be committed (its worker is poisoned where live bytes
// were touched). If it is being read (begun, not voted on), stop and call Stopped().
struct DiscardEffect {
  uint64_t generation = 0;
  absl::Status status;
};
// Receiver: the wait set by ExpectGeneration ended without a generation (kDeadline, or kAborted naming the member
// that left). The session goes on.
struct WaitEndedEffect {
  absl::Status status;
};
// Every worker of `engine` committed `generation`. Sent to receivers of other engines too.
struct EngineCommittedEffect {
  int engine = 0;
  uint64_t generation = 0;
};
// Publisher: `engine` gave `generation` up; the status names the worker and its error.
struct EngineAbortedEffect {
  int engine = 0;
  uint64_t generation = 0;
  absl::Status status;
};
// A member left in order. Without a worker its engine can commit nothing; without a publisher the others go on where
// they hold all that it offered.
struct LeftEffect {
  MemberKey member;
};
// There is no epoch for this member until those are back who are missing; the status names them.
struct SuspendedEffect {
  absl::Status status;
};
// A message was dropped, ours at the coordinator or one that came in: for the log. Nothing changed.
struct RefusedEffect {
  absl::Status status;
};
// The session is over; nothing is sent any more and every later call returns this status. Close the stream.
struct FailEffect {
  absl::Status status;
};

using MemberEffect = std::variant<PlanEffect, EpochReadyEffect, ReconnectEffect, SuspendedEffect, WriteSlotEffect,
                                  PublishFailedEffect, GivenUpEffect, AnnouncedEffect, SendToEffect, SlotFreeEffect,
                                  StartRefusedEffect, CommitEffect, DiscardEffect, WaitEndedEffect,
                                  EngineCommittedEffect, EngineAbortedEffect, LeftEffect, RefusedEffect, FailEffect>;

struct MemberActions {
  std::vector<proto::Envelope> messages;  // to the coordinator, in order
  std::vector<MemberEffect> effects;
};

// ---- What the coordinator asks of its owner --------------------------------------------------------------------

// Names one stream; never used twice by one server.
using ConnectionId = uint64_t;

struct CoordinatorActions {
  struct Outgoing {
    ConnectionId connection = 0;
    proto::Envelope message;
  };
  std::vector<Outgoing> messages;   // in order
  std::vector<ConnectionId> close;  // after their messages are sent
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_SESSION_TYPES_H_
