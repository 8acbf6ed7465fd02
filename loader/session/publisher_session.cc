#include "loader/session/publisher_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/status.h"

namespace headrace {
namespace {

absl::Status Malformed(absl::string_view text) { return Error(ErrorCode::kMalformed, text); }

}  // namespace

PublisherSession::PublisherSession(MemberOptions options) : MemberSession(std::move(options)) {
  slots_.resize(options_.layout.hold() ? 1 : std::max(1, options_.layout.slots()));
}

void PublisherSession::Describe(proto::Planned* planned) const {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (generation_in(static_cast<int>(i)) == 0) continue;
    proto::Held* held = planned->add_held();
    held->set_generation(slots_[i].generation);
    held->set_slot(static_cast<int>(i));
    held->mutable_sums()->Assign(slots_[i].sums.begin(), slots_[i].sums.end());
  }
  planned->mutable_replicas()->Assign(replicas_.begin(), replicas_.end());
  planned->set_last_published(last_published_);
}

void PublisherSession::Describe(proto::Heartbeat* heartbeat) const {
  if (options_.self.is_standby()) heartbeat->set_holds(generation_in(0));
}

void PublisherSession::HandleReady(const proto::EpochReady& ready, int64_t, MemberActions* actions) {
  const uint64_t newest = ready.newest();
  for (const proto::EngineCommitted& committed : ready.committed())
    actions->effects.push_back(EngineCommittedEffect{committed.engine(), committed.generation()});
  receivers_.clear();
  for (const proto::EpochStart::Member& member : members().members())
    if (member.id().role() == proto::RECEIVER) receivers_.insert(MemberKey::From(member.id()));
  last_announced_ = newest == 0 ? 0 : newest - 1;
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    slot.announced = false;
    // What is newer than the newest may still be completed by the others; what is older never.
    const bool wanted = slot.generation != 0 && (slot.generation == newest || slot.generation == last_published_);
    Leases leases = !slot.writing && wanted ? receivers_ : Leases();
    // Nobody waits for the weights to be read by those who have them. Should others complete that generation, after
    // all, everybody is told (HandleAnnounced).
    if (options_.layout.hold() && slot.generation > newest)
      for (const proto::EngineCommitted& committed : ready.committed())
        std::erase_if(leases, [&](const MemberKey& receiver) {
          return receiver.engine == committed.engine() && committed.generation() >= slot.generation;
        });
    SetLeases(i, std::move(leases), actions);
  }
  if (void_generation_ != 0) SendVoid(actions);
  GrantSlot(actions);
}

void PublisherSession::HandleSuspended(bool, MemberActions* actions) {
  receivers_.clear();
  for (size_t i = 0; i < slots_.size(); ++i) SetLeases(i, {}, actions);
  if (waiting_generation_ != 0 && HasCode(suspended(), ErrorCode::kAborted)) FailPublish(suspended(), actions);
}

void PublisherSession::SetLeases(size_t slot, Leases leases, MemberActions* actions) {
  const bool freed = !slots_[slot].leases.empty() && leases.empty();
  slots_[slot].leases = std::move(leases);
  if (freed) actions->effects.push_back(SlotFreeEffect{slots_[slot].generation, static_cast<int>(slot)});
}

bool PublisherSession::writing() const {
  return std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.writing; });
}

void PublisherSession::FailPublish(const absl::Status& status, MemberActions* actions) {
  actions->effects.push_back(PublishFailedEffect{waiting_generation_, status});
  waiting_generation_ = 0;
  waiting_deadline_ns_ = kNoDeadline;
}

absl::Status PublisherSession::Publish(uint64_t generation, int64_t deadline_ns, int64_t, MemberActions* actions) {
  HR_RETURN_IF_ERROR(CheckJoined("Publish()"));
  if (HasCode(suspended(), ErrorCode::kAborted)) return suspended();
  if (writing() || waiting_generation_ != 0) return Malformed("Publish() before the last one was finished");
  if (generation <= last_published_)
    return Error(ErrorCode::kGenerationNotGrowing,
                 absl::StrCat("publish(", generation, ") after generation ", last_published_, " at ",
                              NameOf(options_.self), "; a trainer that counts from 1 again is a new incarnation"));
  if (options_.layout.hold() && slots_[0].generation != 0)
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat("publish(", generation, ") while ", NameOf(options_.self), " holds generation ",
                              slots_[0].generation, ": wait for its release before the weights change"));
  waiting_generation_ = generation;
  waiting_deadline_ns_ = deadline_ns;
  GrantSlot(actions);
  return absl::OkStatus();
}

void PublisherSession::GrantSlot(MemberActions* actions) {
  if (waiting_generation_ == 0 || phase() != Phase::kReady) return;
  Slot* best = nullptr;
  for (Slot& slot : slots_)
    if (slot.leases.empty() && (best == nullptr || slot.generation < best->generation)) best = &slot;
  if (best == nullptr) return;
  // From here on the old bytes are going; nobody may be sent to from this slot.
  *best = Slot{waiting_generation_, /*writing=*/true, /*announced=*/false, {}, {}};
  actions->effects.push_back(WriteSlotEffect{waiting_generation_, static_cast<int>(best - slots_.data())});
  waiting_generation_ = 0;
  waiting_deadline_ns_ = kNoDeadline;
}

PublisherSession::Slot* PublisherSession::WritingSlot(uint64_t generation) {
  for (Slot& slot : slots_)
    if (slot.writing && slot.generation == generation) return &slot;
  return nullptr;
}

absl::Status PublisherSession::Snapshotted(uint64_t generation, int64_t, MemberActions* actions,
                                           absl::Span<const uint64_t> sums) {
  HR_RETURN_IF_ERROR(CheckJoined("Snapshotted()"));
  Slot* slot = WritingSlot(generation);
  if (slot == nullptr) return Malformed(absl::StrCat("Snapshotted(", generation, "): no slot is being written for it"));
  slot->writing = false;
  if (phase() == Phase::kReady) slot->leases = receivers_;  // otherwise the next epoch's are set when it is ready
  last_published_ = generation;
  slot->sums.assign(sums.begin(), sums.end());
  proto::Envelope message;
  message.mutable_published()->set_generation(generation);
  message.mutable_published()->set_slot(static_cast<int>(slot - slots_.data()));
  message.mutable_published()->mutable_sums()->Assign(sums.begin(), sums.end());
  Send(std::move(message), actions);
  return absl::OkStatus();
}

absl::Status PublisherSession::AbandonSlot(uint64_t generation) {
  HR_RETURN_IF_ERROR(CheckJoined("AbandonSlot()"));
  Slot* slot = WritingSlot(generation);
  if (slot == nullptr) return Malformed(absl::StrCat("AbandonSlot(", generation, "): no slot is being written for it"));
  *slot = Slot{};
  return absl::OkStatus();
}

absl::Status PublisherSession::DropSlot(int slot) {
  if (slots_[slot].writing) return Malformed(absl::StrCat("DropSlot(", slot, ") while it is being written"));
  slots_[slot] = Slot{};
  return absl::OkStatus();
}

void PublisherSession::Hold(uint64_t generation, MemberActions* actions) {
  slots_[0] = Slot{};
  slots_[0].generation = generation;
  last_published_ = std::max(last_published_, generation);
  SendHeartbeat(actions);
}

bool PublisherSession::released(uint64_t generation) const {
  // In no epoch: nobody reads, and the next one takes no generation that was taken back.
  if (!suspended().ok() || (options_.self.is_standby() && phase() == Phase::kWaiting)) return true;
  return phase() == Phase::kReady && (generation_in(0) != generation || slots_[0].leases.empty());
}

absl::Status PublisherSession::TakeBack(uint64_t generation, MemberActions* actions) {
  if (generation_in(0) != generation) return absl::OkStatus();
  const bool was_released = released(generation);
  // What was not announced in this epoch the coordinator counts on.
  const bool counted_on = phase() == Phase::kReady && !slots_[0].announced;
  void_why_ =
      Error(ErrorCode::kDeadline,
            absl::StrCat(NameOf(options_.self), " took generation ", generation, " back, since its weights change: ",
                         phase() == Phase::kReady ? LeaseList() : absl::StrCat("no epoch is ready, ", WaitingFor())));
  slots_[0] = Slot{};
  if (options_.self.is_standby()) SendHeartbeat(actions);
  const absl::Status result = was_released ? absl::OkStatus() : void_why_;
  if (!status().ok() || (was_released && !counted_on)) return result;
  void_generation_ = generation;
  if (phase() == Phase::kReady) SendVoid(actions);
  return result;
}

void PublisherSession::SendVoid(MemberActions* actions) {
  proto::Envelope message;
  message.mutable_void_()->set_generation(std::exchange(void_generation_, 0));
  *message.mutable_void_()->mutable_why() = ToFault(void_why_);
  Send(std::move(message), actions);
}

void PublisherSession::CompareBy(std::vector<proto::Replica> replicas,
                                 const std::map<int, std::vector<uint64_t>>& sums) {
  replicas_ = std::move(replicas);
  for (const auto& [slot, of] : sums) slots_[slot].sums = of;
}

int PublisherSession::busy_slots() const {
  return static_cast<int>(std::count_if(slots_.begin(), slots_.end(),
                                        [](const Slot& slot) { return slot.writing || !slot.leases.empty(); }));
}

absl::Status PublisherSession::HandleBody(const proto::Envelope& message, int64_t, MemberActions* actions) {
  switch (message.body_case()) {
    case proto::Envelope::kAnnounced:
      return HandleAnnounced(message.announced(), actions);
    case proto::Envelope::kStart:
      return HandleOrder(message, actions);
    case proto::Envelope::kRelease: {
      const MemberKey receiver = MemberKey::From(message.from());
      if (!receivers_.contains(receiver))
        return Malformed(absl::StrCat("a Release of ", NameOf(receiver), ", which is not in the epoch"));
      DropLeases(receiver, message.release().generation(), actions);
      return absl::OkStatus();
    }
    case proto::Envelope::kDecision: {
      const proto::Decision& decision = message.decision();
      if (decision.commit()) return Malformed("a decision to commit is for workers only");
      actions->effects.push_back(
          EngineAbortedEffect{decision.engine(), decision.generation(), FromFault(decision.why_not())});
      return absl::OkStatus();
    }
    case proto::Envelope::kEngineCommitted:
      actions->effects.push_back(
          EngineCommittedEffect{message.engine_committed().engine(), message.engine_committed().generation()});
      return absl::OkStatus();
    case proto::Envelope::kVoid:
      return HandleVoid(message.void_(), actions);
    case proto::Envelope::kLeft:
      HandleLeft(MemberKey::From(message.left().member()), actions);
      return absl::OkStatus();
    default:
      return Malformed(absl::StrCat("message ", BodyName(message), " is not for a publisher"));
  }
}

absl::Status PublisherSession::HandleAnnounced(const proto::Announced& announced, MemberActions* actions) {
  const uint64_t generation = announced.generation();
  if (generation <= last_announced_)
    return Error(ErrorCode::kGenerationNotGrowing,
                 absl::StrCat("generation ", generation, " was announced after generation ", last_announced_));
  if (options_.layout.hold() && generation_in(0) == 0 && generation <= last_published_) {
    last_announced_ = generation;  // it crossed what took it back
    return absl::OkStatus();
  }
  AnnouncedEffect effect = AnnouncedOf(announced);
  const auto mine = effect.slots.find(options_.self.rank);
  const int slot = mine == effect.slots.end() ? -1 : mine->second;
  if (slot < 0 || slot >= static_cast<int>(slots_.size()) || slots_[slot].writing ||
      slots_[slot].generation != generation)
    return Malformed(absl::StrCat("generation ", generation, " was announced in slot ", slot, " of ",
                                  NameOf(options_.self), ", which does not hold it"));
  last_announced_ = generation;
  slots_[slot].announced = true;
  if (options_.layout.hold()) slots_[slot].leases = receivers_;
  actions->effects.push_back(std::move(effect));
  return absl::OkStatus();
}

absl::Status PublisherSession::HandleVoid(const proto::Void& message, MemberActions* actions) {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].generation != message.generation() || slots_[i].announced || slots_[i].writing) continue;
    SetLeases(i, {}, actions);
    if (message.has_why()) slots_[i] = Slot{};
  }
  if (message.has_why()) actions->effects.push_back(GivenUpEffect{message.generation(), FromFault(message.why())});
  GrantSlot(actions);
  return absl::OkStatus();
}

absl::Status PublisherSession::HandleOrder(const proto::Envelope& message, MemberActions* actions) {
  const MemberKey receiver = MemberKey::From(message.from());
  const uint64_t generation = message.start().generation();
  const auto edge = std::find_if(edges_.begin(), edges_.end(), [&](const EdgeTo& e) { return e.peer == receiver; });
  const std::string what =
      absl::StrCat("Start of ", NameOf(receiver), " for generation ", generation, " at ", NameOf(options_.self), ": ");
  if (edge == edges_.end()) return Malformed(absl::StrCat(what, "there is no edge between the two"));
  if (edge->digest != message.start().digest())
    return Error(ErrorCode::kPlanMismatch, absl::StrCat(what, "the edge's digest differs"));
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.generation != generation || !slot.announced || !slot.leases.contains(receiver)) continue;
    actions->effects.push_back(
        SendToEffect{receiver, generation, static_cast<int>(i), {message.start().ring_key(), message.start().reads()}});
    return absl::OkStatus();
  }
  return Error(ErrorCode::kGenerationChanged, absl::StrCat(what, "no slot holds it under a lease of this receiver"));
}

void PublisherSession::HandleDropped(const proto::Envelope& message, const absl::Status& why, int64_t,
                                     MemberActions* actions) {
  // A receiver that waits for bytes must hear that they do not come.
  if (!message.has_start() || message.from().role() != proto::RECEIVER) return;
  proto::Envelope abort;
  *abort.mutable_to() = message.from();
  abort.mutable_abort()->set_generation(message.start().generation());
  *abort.mutable_abort()->mutable_why() = ToFault(why);
  Send(std::move(abort), actions);
}

void PublisherSession::HandleLeft(const MemberKey& member, MemberActions* actions) {
  actions->effects.push_back(LeftEffect{member});
  if (member.role != proto::RECEIVER) return;
  receivers_.erase(member);
  DropLeases(member, std::numeric_limits<uint64_t>::max(), actions);
}

void PublisherSession::DropLeases(const MemberKey& receiver, uint64_t up_to, MemberActions* actions) {
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.generation > up_to || slot.leases.erase(receiver) == 0 || !slot.leases.empty()) continue;
    actions->effects.push_back(SlotFreeEffect{slot.generation, static_cast<int>(i)});
  }
  GrantSlot(actions);
}

std::string PublisherSession::LeaseList() const {
  std::vector<std::string> lines;
  for (size_t i = 0; i < slots_.size(); ++i) {
    std::vector<std::string> holders;
    for (const MemberKey& receiver : slots_[i].leases) holders.push_back(NameOf(receiver));
    lines.push_back(absl::StrCat("slot ", i, " holds generation ", slots_[i].generation, ", leased by ",
                                 absl::StrJoin(holders, ", ")));
  }
  return absl::StrJoin(lines, "; ");
}

void PublisherSession::HandleTick(int64_t now_ns, MemberActions* actions) {
  if (waiting_generation_ == 0 || now_ns < waiting_deadline_ns_) return;
  const std::string what = absl::StrCat("publish(", waiting_generation_, ") ");
  FailPublish(phase() == Phase::kReady
                  ? Error(ErrorCode::kDeadline, absl::StrCat(what, "found no free snapshot slot: ", LeaseList()))
              : suspended().ok()
                  ? Error(ErrorCode::kDeadline, absl::StrCat(what, "found no epoch that is ready: ", WaitingFor()))
                  : WithMessage(suspended(), absl::StrCat(what, "waited in vain: ", suspended().message())),
              actions);
}

int64_t PublisherSession::RoleDeadline() const { return waiting_deadline_ns_; }

}  // namespace headrace
