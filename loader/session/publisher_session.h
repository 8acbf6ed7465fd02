#ifndef HEADRACE_LOADER_SESSION_PUBLISHER_SESSION_H_
#define HEADRACE_LOADER_SESSION_PUBLISHER_SESSION_H_

// One trainer rank's session: which snapshot slot may be written when, and whom to send to.
//
//   Publish(g) -> [all slots leased: waits] -> WriteSlotEffect -> Snapshotted(g) -> (Announced) AnnouncedEffect
//
// A publisher that holds (options.layout.hold()) has one slot, the weights themselves:
//
//   Publish(g) -> WriteSlotEffect -> (sums) Snapshotted(g) -> (Announced) ... released(g), or the trainer waits no
//   longer -> TakeBack(g), then the weights change -> Publish(g + 1)
//
// A generation of which replicas differ (GivenUpEffect) is in no slot any more: it is released, and there is nothing to
// take back.
//
// A slot's generation is leased by every receiver of the epoch from Snapshotted() until that receiver releases it or a
// newer one, or leaves. WriteSlotEffect names only slots without leases. A new epoch's receivers lease its newest
// generation and the last one that was published; nobody reads while there is no epoch.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "loader/session/member_session.h"

namespace headrace {

class PublisherSession : public MemberSession {
 public:
  // options.self is a publisher; options.layout.slots() >= 1.
  explicit PublisherSession(MemberOptions options);

  // Asks for a slot for `generation` >= 1, at the latest by `deadline_ns` (kNoDeadline: for ever). Answered by
  // WriteSlotEffect or PublishFailedEffect, at once or later: between two epochs it waits. kGenerationNotGrowing: names
  // both numbers. kMalformed: no epoch was ready yet, or the last Publish is not finished. kAborted: a publisher left
  // without whom none can be published. kInvalidOption: it holds a generation that was not taken back.
  absl::Status Publish(uint64_t generation, int64_t deadline_ns, int64_t now_ns, MemberActions* actions);
  // The slot of WriteSlotEffect holds `generation`; `sums` are those of the replicas of the epoch in which it was
  // granted. kMalformed: no such slot is being written.
  absl::Status Snapshotted(uint64_t generation, int64_t now_ns, MemberActions* actions,
                           absl::Span<const uint64_t> sums = {});
  // Gives up the slot of WriteSlotEffect: nothing was published. kMalformed: as Snapshotted.
  absl::Status AbandonSlot(uint64_t generation);
  // The generation in a slot, 0: none, or it is being written. A plan is made while none is being written.
  uint64_t generation_in(int slot) const { return slots_[slot].writing ? 0 : slots_[slot].generation; }
  bool writing() const;
  // Before Planned(): what is compared of this publisher in the new epoch, and the sums of each slot that holds a
  // generation, anew.
  void CompareBy(std::vector<proto::Replica> replicas, const std::map<int, std::vector<uint64_t>>& sums);
  // The slot does not hold its generation any more: nothing of it is offered. kMalformed: it is being written.
  absl::Status DropSlot(int slot);

  // Of a standby: its worker serves `generation` from now on, which its live buffers hold.
  void Hold(uint64_t generation, MemberActions* actions);
  // Of a publisher that holds: whether no receiver of the epoch reads `generation` any more. False between two epochs:
  // the next one's may.
  bool released(uint64_t generation) const;
  // The weights are about to change: `generation` is held no more. OK where it was released; otherwise it is void, as
  // the coordinator is told: kDeadline, naming those who had not released it.
  absl::Status TakeBack(uint64_t generation, MemberActions* actions);

  // Slots that are leased by somebody or being written. Before Leave, wait until it is zero.
  int busy_slots() const;
  // The newest generation handed to Snapshotted, 0 before the first.
  uint64_t last_published() const { return last_published_; }

 protected:
  absl::Status HandleBody(const proto::Envelope& message, int64_t now_ns, MemberActions* actions) override;
  void HandleDropped(const proto::Envelope& message, const absl::Status& why, int64_t now_ns,
                     MemberActions* actions) override;
  void HandleEpochStart(MemberActions*) override {}
  void Describe(proto::Planned* planned) const override;
  void Describe(proto::Heartbeat* heartbeat) const override;
  void HandleReady(const proto::EpochReady& ready, int64_t now_ns, MemberActions* actions) override;
  void HandleSuspended(bool engine_broken, MemberActions* actions) override;
  void HandleTick(int64_t now_ns, MemberActions* actions) override;
  int64_t RoleDeadline() const override;
  absl::Status HandleEnd(const absl::Status& status) override { return status; }

 private:
  using Leases = std::set<MemberKey>;
  struct Slot {
    uint64_t generation = 0;  // 0: never written
    bool writing = false;
    bool announced = false;
    Leases leases;
    std::vector<uint64_t> sums;  // of replicas_
  };

  void GrantSlot(MemberActions* actions);
  void DropLeases(const MemberKey& receiver, uint64_t up_to, MemberActions* actions);
  absl::Status HandleAnnounced(const proto::Announced& announced, MemberActions* actions);
  absl::Status HandleVoid(const proto::Void& message, MemberActions* actions);
  absl::Status HandleOrder(const proto::Envelope& message, MemberActions* actions);
  void HandleLeft(const MemberKey& member, MemberActions* actions);
  void SetLeases(size_t slot, Leases leases, MemberActions* actions);
  void SendVoid(MemberActions* actions);
  void FailPublish(const absl::Status& status, MemberActions* actions);
  Slot* WritingSlot(uint64_t generation);
  std::string LeaseList() const;

  std::vector<Slot> slots_;
  std::vector<proto::Replica> replicas_;
  Leases receivers_;  // of the epoch, those that have not left
  uint64_t last_published_ = 0;
  uint64_t last_announced_ = 0;
  uint64_t waiting_generation_ = 0;  // of a Publish without a slot; 0: none
  int64_t waiting_deadline_ns_ = kNoDeadline;
  // Taken back between two epochs, of which the next one may count on it: to be told when it is ready.
  uint64_t void_generation_ = 0;  // 0: none
  absl::Status void_why_;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_SESSION_PUBLISHER_SESSION_H_
