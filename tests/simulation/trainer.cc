#include "tests/simulation/trainer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "loader/message_outlet.h"
#include "planner/status.h"
#include "tests/simulation/checks.h"

namespace headrace::simulation {
namespace {

constexpr int64_t kPublishTimeout = 5 * kSecond;
constexpr int64_t kReleaseAtLeast = 1 * kMillisecond, kReleaseTimeout = 3 * kSecond;
constexpr int64_t kCloseTimeout = 20 * kSecond;
constexpr int64_t kSendEvery = 100 * kMicrosecond, kSendAtLeastEvery = 10 * kMillisecond;

// FP32 masters cannot be held; and through rings of mapped memory, which want threads of their own, nothing is sent
// here.
bool Holds(const TrainerSeat& seat) {
  const auto converts = [](const Buffer& b) { return b.convert_rne; };
  return seat.job.options.hold && !seat.job.options.map &&
         std::none_of(seat.part.source.begin(), seat.part.source.end(), converts);
}

proto::Layout LayoutOf(const TrainerSeat& seat, const Transport& transport) {
  proto::Layout layout;
  layout.set_hold(Holds(seat));
  layout.set_manifest_fragment(EncodeFragment(seat.part));
  layout.set_transport(std::string(transport.name()));
  layout.set_transport_address(transport.address());
  layout.set_slots(kSnapshotSlots);
  layout.set_chunk_bytes(seat.job.options.chunk_bytes);
  return layout;
}

}  // namespace

Trainer::Trainer(TrainerSeat* seat, std::unique_ptr<Transport> transport)
    : MemberProcess(
          &seat->job, seat,
          std::make_unique<PublisherSession>(SessionOptions(seat->job, *seat, LayoutOf(*seat, *transport), 0))),
      two_sided_(!transport->capabilities().map),
      hold_(Holds(*seat)),
      transport_(std::move(transport)) {}

Trainer::~Trainer() { Kill(); }

Task Trainer::Run() {
  co_await Wait("joining", [this] { return ready_ != nullptr || over(); });
  uint64_t last = 0;
  while (!over()) {
    co_await Wait("a trained step", [&] { return over() || leaving_ || (job_.training && job_.target > last); });
    if (leaving_ && !over()) {
      const bool released = co_await Wait(
          "the release of the snapshots", [this] { return over() || publisher().busy_slots() == 0; },
          world().now() + kCloseTimeout);
      if (!released && seat_.closing) CheckReleased(job_, seat_, publisher().busy_slots());
      if (!over()) (void)Step([&](int64_t now, MemberActions* actions) { return session().Leave(now, actions); });
      job_.Reap(&seat_);
      co_return absl::OkStatus();
    }
    if (over()) break;
    last = job_.target;
    absl::Status published = co_await Publish(last, world().now() + kPublishTimeout);
    (void)published;  // the trainer goes on training
    attempted_ = last;
    if (hold_) {
      absl::Status released =
          co_await AwaitRelease(last, world().now() + world().Draw(kReleaseAtLeast, kReleaseTimeout));
      (void)released;  // and changes its weights
    }
  }
  co_return session().status();
}

Task Trainer::Publish(uint64_t generation, int64_t deadline) {
  write_slot_.reset();
  publish_failed_ = absl::OkStatus();
  absl::Status asked = Step([&](int64_t now, MemberActions* actions) {
    return publisher().Publish(generation, now + kPublishTimeout, now, actions);
  });
  if (!asked.ok()) co_return asked;
  co_await Wait("a free slot", [this] { return write_slot_.has_value() || !publish_failed_.ok() || over(); });
  if (over()) co_return session().status();
  if (!publish_failed_.ok()) co_return publish_failed_;
  absl::Status idle = co_await AwaitSender(generation, *write_slot_, deadline);
  if (!idle.ok()) co_return idle;
  co_await Sleep(world().Draw(10 * kMicrosecond, 5 * kMillisecond));
  testing::PaintSource(trainer_seat().part, Job::PaintOf({session().incarnation(), generation}),
                       &trainer_seat().source);
  if (std::exchange(diverges_, false)) Diverge();
  std::vector<uint64_t> sums = *writing_->writer->Write(slots_[*write_slot_]->bytes(), writing_->SumsOf(*write_slot_),
                                                        IncarnationStamp(session().incarnation()), generation);
  if (job_.options.bug == PlantedBug::kEqualSums) std::fill(sums.begin(), sums.end(), 0);
  co_await Sleep(world().Draw(10 * kMicrosecond, 50 * kMillisecond));
  co_return Step([&](int64_t now, MemberActions* actions) {
    writing_->replica_sums[*write_slot_] = sums;
    writing_.reset();
    return publisher().Snapshotted(generation, now, actions, sums);
  });
}

Task Trainer::AwaitRelease(uint64_t generation, int64_t deadline) {
  co_await Wait(
      "the release of the weights", [&] { return over() || publisher().released(generation); }, deadline);
  const bool was_held = publisher().generation_in(0) == generation;
  absl::Status taken = Step([&](int64_t, MemberActions* actions) { return publisher().TakeBack(generation, actions); });
  if (was_held) OpenSlot(slots_[0]->bytes(), IncarnationStamp(session().incarnation()), 0).IgnoreError();
  orders_.push_back(Drop{});
  co_await Wait("the end of sending the weights", [&] { return orders_.empty() && !slot_is_read_[0]; });
  co_return taken;
}

Task Trainer::AwaitSender(uint64_t generation, int slot, int64_t deadline) {
  if (!two_sided_) co_return absl::OkStatus();
  const bool idle = co_await Wait(
      "the end of sending out of a slot", [&] { return over() || (orders_.empty() && !slot_is_read_[slot]); },
      deadline);
  if (over()) co_return session().status();
  if (idle) co_return absl::OkStatus();
  absl::Status given_up = Step([&](int64_t, MemberActions*) {
    writing_.reset();
    return publisher().AbandonSlot(generation);
  });
  (void)given_up;
  co_return Error(ErrorCode::kDeadline, "a slot is still sent from");
}

bool Trainer::WriteEarly() {
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    if (publisher().generation_in(static_cast<int>(slot)) == 0) continue;
    const absl::Span<std::byte> bytes = slots_[slot]->bytes();
    for (size_t i = sizeof(SlotHeader); i < bytes.size(); ++i) bytes[i] ^= std::byte{0x5A};
    return true;
  }
  return false;
}

void Trainer::Diverge() {
  const Manifest& manifest = writing_->plan->manifest();
  std::vector<std::byte*> bytes;
  for (const ReplicaSum& sum : writing_->replicas) {
    for (const Copy& box : sum.boxes) {
      const Buffer& buffer = manifest.source[box.source];
      // What is rounded need not differ afterwards.
      if (buffer.dtype == manifest.tensors[sum.tensor].dtype)
        bytes.push_back(trainer_seat().source.First(buffer) + box.source_offset + box.run_bytes - 1);
    }
  }
  if (bytes.empty()) return;
  // Those that come apart at once must not be wrong alike.
  *bytes[world().Draw(0, static_cast<int64_t>(bytes.size()) - 1)] ^= std::byte{1} << (seat_.key.rank % 8);
  ++job_.counters.divergences;
}

void Trainer::Record(const MemberEffect& effect) {
  if (const auto* plan = std::get_if<PlanEffect>(&effect)) {
    engines_.clear();
    for (const auto& member : plan->start.members())
      if (member.id().role() == proto::RECEIVER) engines_.insert(member.id().engine());
    if (two_sided_) orders_.push_back(Drop{});
  } else if (std::holds_alternative<EpochReadyEffect>(effect)) {
    ready_ = planned_;
  } else if (std::holds_alternative<SuspendedEffect>(effect)) {
    if (two_sided_) orders_.push_back(Drop{});
  } else if (const auto* slot = std::get_if<WriteSlotEffect>(&effect)) {
    write_slot_ = slot->slot;
    writing_ = planned_;
  } else if (const auto* failed = std::get_if<PublishFailedEffect>(&effect)) {
    publish_failed_ = failed->status;
  } else if (const auto* order = std::get_if<SendToEffect>(&effect)) {
    const auto it = aborted_.find(order->receiver.engine);
    if (it == aborted_.end() || it->second < order->generation)
      orders_.push_back(Outlet::Order{*order, ready_, ready_->writer->Published(slots_[order->slot]->bytes()),
                                      absent_[order->generation]});
  } else if (const auto* aborted = std::get_if<EngineAbortedEffect>(&effect)) {
    ++job_.counters.aborts;
    aborted_[aborted->engine] = aborted->generation;
    if (two_sided_) orders_.push_back(Drop{aborted->engine});
  } else if (const auto* announced = std::get_if<AnnouncedEffect>(&effect)) {
    absent_.erase(absent_.begin(), absent_.lower_bound(announced->generation > 1 ? announced->generation - 1 : 0));
    std::set<int64_t>& absent = absent_[announced->generation];
    absent.clear();
    for (const MemberKey& worker : announced->absent) absent.insert(ready_->plan->DestinationRank(worker));
    std::erase_if(aborted_, [&](const auto& entry) {
      return engines_.contains(entry.first) && entry.second == announced->generation;
    });
  } else if (const auto* left = std::get_if<LeftEffect>(&effect)) {
    if (left->member.role != proto::RECEIVER) return;
    if (two_sided_) orders_.push_back(Drop{left->member.engine, left->member.rank});
  }
}

Task Trainer::Plan(PlanEffect effect) {
  absl::StatusOr<std::shared_ptr<PublisherEpoch>> made = MakeEpoch(effect);
  if (made.ok()) {
    co_await Wait("the end of a snapshot",
                  [&] { return over() || !publisher().writing() || session().epoch() != effect.epoch; });
    if (over()) co_return session().status();
    for (int slot = 0; slot < static_cast<int>(slots_.size()); ++slot) {
      if (publisher().generation_in(slot) == 0) continue;
      // The CPU sums, which cannot fail.
      if (*planned_->writer->Agrees(slots_[slot]->bytes(), planned_->SumsOf(slot), planned_->replica_sums[slot]))
        (*made)->replica_sums[slot] = *(*made)->writer->SumAgain(slots_[slot]->bytes(), (*made)->SumsOf(slot));
      else
        (void)publisher().DropSlot(slot);
    }
  }
  absl::StatusOr<std::vector<proto::Edge>> edges = std::vector<proto::Edge>();
  if (!made.ok()) edges = made.status();
  std::vector<std::string> keys;
  if (made.ok()) {
    edges = (*made)->plan->DigestsOf(self());
    for (const auto& slot : slots_) keys.push_back(slot->key());
    keys.push_back((*made)->sums->key());
  }
  co_return Step([&](int64_t now, MemberActions* actions) {
    if (made.ok()) publisher().CompareBy((*made)->plan->Named((*made)->replicas), (*made)->replica_sums);
    absl::Status planned = session().Planned(effect.epoch, edges, now, actions, keys);
    if (planned.ok() && made.ok()) {
      planned_ = *made;
      epochs_.push_back(*made);
      if (job_.options.bug == PlantedBug::kKeepEpochs) kept_.push_back(*made);
    }
    return planned;
  });
}

absl::StatusOr<std::shared_ptr<PublisherEpoch>> Trainer::MakeEpoch(const PlanEffect& effect) {
  HR_ASSIGN_OR_RETURN(std::shared_ptr<const EpochPlan> plan, job_.PlanOf(effect.start));
  auto epoch = std::make_shared<PublisherEpoch>(seat_.key.rank, std::move(plan));
  const Manifest& manifest = epoch->plan->manifest();
  const int64_t rank = epoch->plan->SourceRank(seat_.key.rank);
  std::map<int, const std::byte*> memory;
  for (size_t i = 0; i < manifest.source.size(); ++i)
    if (manifest.source[i].rank == rank) memory[static_cast<int>(i)] = trainer_seat().source.First(manifest.source[i]);
  HR_ASSIGN_OR_RETURN(epoch->replicas, epoch->plan->ReplicasOf(seat_.key.rank));
  epoch->writer.emplace(manifest, epoch->plan->plan(), rank, std::move(memory), epoch->replicas, hold_);
  for (const auto& member : effect.start.members())
    epoch->addresses[MemberKey::From(member.id())] = member.layout().transport_address();
  if (two_sided_) {
    HR_ASSIGN_OR_RETURN(epoch->tags, StreamTags::Create(*transport_, epoch->plan->plan(), effect.epoch));
    for (const Edge& edge : epoch->plan->EdgesOf(self())) {
      epoch->streams[epoch->plan->ReceiverOf(edge.destination_rank)].emplace_back(epoch->plan->plan(), edge,
                                                                                  job_.options.chunk_bytes);
    }
  }
  while (slots_.size() < (hold_ ? 1 : kSnapshotSlots)) {
    HR_ASSIGN_OR_RETURN(slots_.emplace_back(), transport_->AllocateRegion(epoch->writer->layout().bytes()));
  }
  HR_ASSIGN_OR_RETURN(epoch->sums,
                      transport_->AllocateRegion(std::max<int64_t>(1, epoch->writer->sums_layout().bytes())));
  if (two_sided_ && outlet_ == nullptr) {
    HR_ASSIGN_OR_RETURN(outlet_,
                        MessageOutlet::Create(transport_.get(), job_.options.chunk_bytes, job_.options.staging_bytes));
    Spawn(SendOrders());
  }
  return epoch;
}

Task Trainer::SendOrders() {
  int64_t pause = kSendEvery;
  while (true) {
    std::deque<Order> orders;
    std::swap(orders, orders_);
    for (const Order& order : orders) {
      if (const auto* drop = std::get_if<Drop>(&order)) {
        outlet_->Drop(drop->engine, drop->worker);
      } else {
        outlet_->Start(std::get<Outlet::Order>(order));
      }
    }
    (void)outlet_->Progress(absl::ZeroDuration());  // the CPU packs
    for (int slot = 0; slot < kSnapshotSlots; ++slot) slot_is_read_[slot] = outlet_->Reads(slot);
    CheckBounds();
    Wake();
    pause = orders.empty() ? std::min(pause + pause / 4, kSendAtLeastEvery) : kSendEvery;
    const int64_t until = outlet_->active() > 0 ? world().now() + pause : kNoDeadline;
    co_await Wait(
        "an order to send", [this] { return !orders_.empty(); }, until);
  }
}

void Trainer::CheckBounds() {
  std::erase_if(epochs_, [](const auto& epoch) { return epoch.expired(); });
  CheckTrainerMemory(job_, seat_,
                     {.staging_bytes = outlet_ == nullptr ? 0 : outlet_->peak_staging_bytes(),
                      .epochs = static_cast<int64_t>(epochs_.size()),
                      .orders = static_cast<int64_t>(orders_.size()),
                      .slots = static_cast<int64_t>(slots_.size())});
}

}  // namespace headrace::simulation
