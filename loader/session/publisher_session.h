#ifndef HEADRACE_LOADER_SESSION_PUBLISHER_SESSION_H_
#define HEADRACE_LOADER_SESSION_PUBLISHER_SESSION_H_

// One trainer rank's session: which snapshot slot may be written when, and whom to send to.
//
//   Publish(g) -> [all slots leased: waits] -> WriteSlotEffect -> Snapshotted(g) -> (Announced) AnnouncedEffect
//
// A slot's generation is leased by every receiver of the epoch from Snapshotted() until that receiver releases it or a
// newer one, or leaves. WriteSlotEffect names only slots without leases.

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "loader/session/member_session.h"

namespace headrace {

class PublisherSession : public MemberSession {
 public:
  // options.self is a publisher; options.layout.slots() >= 1.
  explicit PublisherSession(MemberOptions options);

  // Asks for a slot for `generation` >= 1, at the latest by `deadline_ns` (kNoDeadline: for ever). Answered by
  // WriteSlotEffect or PublishFailedEffect, at once or later. kGenerationNotGrowing: names both numbers. kMalformed:
  // the epoch is not ready, or the last Publish is not finished. kAborted: a publisher left.
  absl::Status Publish(uint64_t generation, int64_t deadline_ns, int64_t now_ns, MemberActions* actions);
  // The slot of WriteSlotEffect holds `generation`. kMalformed: no such slot is being written.
  absl::Status Snapshotted(uint64_t generation, int64_t now_ns, MemberActions* actions);
  // Gives up the slot of WriteSlotEffect: nothing was published. kMalformed: as Snapshotted.
  absl::Status AbandonSlot(uint64_t generation);

  // Slots that are leased by somebody or being written. Before Leave, wait until it is zero.
  int busy_slots() const;
  // The newest generation handed to Snapshotted, 0 before the first.
  uint64_t last_published() const { return last_published_; }

 protected:
  absl::Status HandleBody(const proto::Envelope& message, int64_t now_ns, MemberActions* actions) override;
  void HandleDropped(const proto::Envelope& message, const absl::Status& why, int64_t now_ns,
                     MemberActions* actions) override;
  void HandleEpochStart() override;
  void HandleTick(int64_t now_ns, MemberActions* actions) override;
  int64_t RoleDeadline() const override;
  absl::Status HandleEnd(const absl::Status& status) override { return status; }

 private:
  struct Slot {
    uint64_t generation = 0;  // 0: never written
    bool writing = false;
    bool announced = false;
    std::set<MemberKey> leases;
  };

  void GrantSlot(MemberActions* actions);
  void DropLeases(const MemberKey& receiver, uint64_t up_to, MemberActions* actions);
  absl::Status HandleAnnounced(const proto::Announced& announced, MemberActions* actions);
  absl::Status HandleOrder(const proto::Envelope& message, MemberActions* actions);
  void HandleLeft(const MemberKey& member, MemberActions* actions);
  Slot* WritingSlot(uint64_t generation);
  std::string LeaseList() const;

  std::vector<Slot> slots_;
  std::set<MemberKey> receivers_;  // those that have not left
  uint64_t last_published_ = 0;
  uint64_t last_announced_ = 0;
  uint64_t waiting_generation_ = 0;  // of a Publish without a slot; 0: none
  int64_t waiting_deadline_ns_ = kNoDeadline;
  absl::Status publisher_left_;  // kAborted once a publisher left
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_SESSION_PUBLISHER_SESSION_H_
