#include "loader/publisher.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "loader/message_outlet.h"
#include "loader/published_memory.h"
#include "loader/publisher_epoch.h"
#include "loader/region_keys.h"
#include "loader/ring_outlet.h"
#include "loader/sending.h"
#include "loader/session/publisher_session.h"
#include "loader/standby.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr absl::Duration kSettleTime = absl::Seconds(5);

// A trainer rank's, and an engine worker's as a source: the same session, of another rank.
class PublisherImpl final : public Publisher, public Standby, private Member {
 public:
  PublisherImpl(const PublisherOptions& options, std::unique_ptr<PublishedMemory> memory,
                std::unique_ptr<Transport> transport, std::unique_ptr<MemberSession> session,
                std::unique_ptr<ControlClient> client)
      : Member(
            options.job, std::move(session), std::move(client), [this](const MemberEffect& e) { Record(e); },
            [this](const PlanEffect& e) { Plan(e); }),
        options_(options),
        memory_(std::move(memory)),
        transport_(std::move(transport)),
        hold_(options.publishing == Publishing::kHold),
        standby_(self().is_standby()),
        maps_(transport_->capabilities().map) {}

  ~PublisherImpl() override {
    Stop();
    if (sending_ != nullptr) sending_->Stop();
  }

  absl::Status Start() {
    Begin();
    if (standby_) return absl::OkStatus();
    return Wait(absl::InfiniteFuture(), "joining", [&] { return ready_ != nullptr; });
  }

  absl::Status Publish(uint64_t generation, absl::Time deadline, cuda::Stream stream) override {
    const absl::Time begin = absl::Now();
    HR_RETURN_IF_ERROR(memory_->AwaitTrainer(stream, deadline));
    HR_RETURN_IF_ERROR(Step([&](int64_t now, MemberActions* actions) {
      write_slot_.reset();
      publish_failed_ = absl::OkStatus();
      // What an earlier trainer of this incarnation brought them says nothing of this one's.
      std::erase_if(committed_, [&](const auto& entry) { return entry.second >= generation; });
      const int64_t wait_ns = deadline == absl::InfiniteFuture()
                                  ? kNoDeadline
                                  : now + absl::ToInt64Nanoseconds(std::max(deadline - begin, absl::ZeroDuration()));
      return publisher().Publish(generation, wait_ns, now, actions);
    }));
    HR_RETURN_IF_ERROR(
        Wait(absl::InfiniteFuture(), "a free slot", [&] { return write_slot_.has_value() || !publish_failed_.ok(); }));
    if (!publish_failed_.ok()) return publish_failed_;
    HR_RETURN_IF_ERROR(AwaitSender(generation, *write_slot_, deadline));
    const absl::Time copying = absl::Now();
    // The epoch in which the slot was granted; another one that begins meanwhile sums anew.
    const absl::StatusOr<std::vector<uint64_t>> sums = [&] {
      std::lock_guard<std::mutex> lock(sums_mutex_);
      return writing_->writer->Write(slots_[*write_slot_]->bytes(), writing_->SumsOf(*write_slot_),
                                     IncarnationStamp(session().incarnation()), generation);
    }();
    if (!sums.ok()) {
      (void)AbandonSlot(generation);  // where the session is over too, this says more
      return sums.status();
    }
    const absl::Time end = absl::Now();
    absl::Status published = Step([&](int64_t now, MemberActions* actions) {
      writing_->replica_sums[*write_slot_] = *sums;
      writing_.reset();
      stats_.snapshot_seconds = absl::ToDoubleSeconds(end - copying);
      stats_.stall_seconds = absl::ToDoubleSeconds(end - begin);
      return publisher().Snapshotted(generation, now, actions, *sums);
    });
    return published;
  }

  absl::Status AwaitRelease(uint64_t generation, absl::Time deadline) override {
    if (!hold_) return absl::OkStatus();
    HR_RETURN_IF_ERROR(CheckHeld(generation));
    (void)Wait(deadline, "the release of the weights", [&] { return publisher().released(generation); });
    absl::Status taken = Step([&](int64_t, MemberActions* actions) {
      absl::Status taken = publisher().TakeBack(generation, actions);
      // From now on nothing begins to read, and whoever does not stop finds these stamps.
      if (publisher().generation_in(0) == 0 && !slots_.empty()) {
        taken.Update(OpenSlot(slots_[0]->bytes(), IncarnationStamp(session().incarnation()), 0));
      }
      return taken;
    });
    // Whoever released it has taken, or will drop, all that is under way to it.
    const absl::Time patience = absl::Now() + (taken.ok() ? kSettleTime : absl::ZeroDuration());
    for (bool dropped = false; !Quiet();) {
      if (!dropped && absl::Now() >= patience) {
        DropAll();
        dropped = true;
      }
      // Short, and whatever becomes of the session: these threads read the weights.
      absl::SleepFor(absl::Milliseconds(1));
    }
    return status().ok() ? taken : status();
  }

  void Hold(uint64_t generation) override {
    Step([&](int64_t, MemberActions* actions) {
      publisher().Hold(generation, actions);
      return 0;
    });
  }

  void TakeBack() override {
    uint64_t held;
    {
      std::lock_guard<std::mutex> lock(mutex());
      held = publisher().generation_in(0);
    }
    // Whom it interrupts is told.
    if (held != 0) (void)AwaitRelease(held, absl::Now());
  }

  absl::Status AwaitCommit(uint64_t generation, absl::Time deadline) override {
    absl::Status aborted;
    HR_RETURN_IF_ERROR(Wait(deadline, absl::StrCat("the engines' commit of generation ", generation), [&] {
      const auto given_up = given_up_.find(generation);
      aborted = absl::OkStatus();
      std::set<int> engines = engines_;
      for (const auto& [engine, why] : aborted_) engines.insert(engine);  // one that broke is in no epoch
      // What an engine committed counts, whether it is still there or not.
      bool any = std::any_of(committed_.begin(), committed_.end(),
                             [&](const auto& entry) { return entry.second >= generation; });
      for (int engine : engines) {
        const auto gave_up = aborted_.find(engine);
        const auto left = left_.find(engine);
        const auto committed = committed_.find(engine);
        if (committed != committed_.end() && committed->second >= generation) {
          any = true;
        } else if (given_up != given_up_.end()) {
          aborted = given_up->second;
        } else if (gave_up != aborted_.end() && gave_up->second.first >= generation) {
          aborted = gave_up->second.second;
        } else if (left != left_.end()) {
          aborted = Error(ErrorCode::kAborted, absl::StrCat(NameOf(left->second), " left; its engine does not commit ",
                                                            "generation ", generation));
        } else if (engines_.contains(engine)) {
          return false;
        }
      }
      // Nobody need be there to hear of it.
      if (!any && given_up != given_up_.end()) aborted = given_up->second;
      return any || !aborted.ok();
    }));
    return aborted;
  }

  absl::Status Close(absl::Time deadline) override {
    absl::Status released =
        Wait(deadline, "the release of the snapshots by every receiver", [&] { return publisher().busy_slots() == 0; });
    absl::Status left = Leave(deadline);
    return released.ok() ? left : released;
  }

  absl::Status status() const override { return Member::status(); }

  PublisherStats stats() const override {
    std::lock_guard<std::mutex> lock(mutex());
    PublisherStats stats = stats_;
    if (sending_ != nullptr) stats.peak_staging_bytes = sending_->peak_staging_bytes();
    return stats;
  }

 private:
  PublisherSession& publisher() { return static_cast<PublisherSession&>(session()); }
  MemberKey self() const { return MemberKey::Publisher(options_.rank); }

  // Under the lock.
  void Record(const MemberEffect& effect) {
    if (const auto* plan = std::get_if<PlanEffect>(&effect)) {
      engines_.clear();
      left_.clear();
      for (const auto& member : plan->start.members()) {
        if (member.id().role() == proto::RECEIVER) engines_.insert(member.id().engine());
      }
      // Whoever reads begins anew.
      if (sending_ != nullptr) sending_->Drop();
    } else if (std::holds_alternative<EpochReadyEffect>(effect)) {
      ready_ = planned_;
    } else if (const auto* suspended = std::get_if<SuspendedEffect>(&effect)) {
      for (int engine : engines_) {
        const auto committed = committed_.find(engine);
        if (committed == committed_.end() || committed->second < publisher().last_published()) {
          aborted_[engine] = {publisher().last_published(), suspended->status};
        }
      }
      if (sending_ != nullptr) sending_->Drop();
    } else if (const auto* slot = std::get_if<WriteSlotEffect>(&effect)) {
      write_slot_ = slot->slot;
      // Granted when the epoch became ready, or later.
      writing_ = planned_;
    } else if (const auto* failed = std::get_if<PublishFailedEffect>(&effect)) {
      publish_failed_ = failed->status;
    } else if (const auto* given_up = std::get_if<GivenUpEffect>(&effect)) {
      given_up_[given_up->generation] = given_up->status;
      // No more can be on their way at once.
      if (given_up_.size() > kSnapshotSlots) given_up_.erase(given_up_.begin());
    } else if (const auto* order = std::get_if<SendToEffect>(&effect)) {
      // An order that crossed the decision to give its generation up: nobody would take what is sent.
      auto it = aborted_.find(order->receiver.engine);
      if (sending_ != nullptr && (it == aborted_.end() || it->second.first < order->generation)) {
        sending_->Start(
            {*order, ready_, ready_->writer->Published(slots_[order->slot]->bytes()), absent_[order->generation]});
      }
    } else if (const auto* committed = std::get_if<EngineCommittedEffect>(&effect)) {
      committed_[committed->engine] = std::max(committed_[committed->engine], committed->generation);
    } else if (const auto* aborted = std::get_if<EngineAbortedEffect>(&effect)) {
      aborted_[aborted->engine] = {aborted->generation, aborted->status};
      if (sending_ != nullptr) sending_->Drop(aborted->engine);
    } else if (const auto* announced = std::get_if<AnnouncedEffect>(&effect)) {
      absent_.erase(absent_.begin(), absent_.lower_bound(announced->generation > 1 ? announced->generation - 1 : 0));
      std::set<int64_t>& absent = absent_[announced->generation];
      absent.clear();
      for (const MemberKey& worker : announced->absent) absent.insert(ready_->plan->DestinationRank(worker));
      // A new epoch is a new chance for what was given up.
      std::erase_if(aborted_, [&](const auto& entry) {
        return engines_.contains(entry.first) && entry.second.first == announced->generation;
      });
    } else if (const auto* left = std::get_if<LeftEffect>(&effect)) {
      if (left->member.role != proto::RECEIVER) return;
      left_.emplace(left->member.engine, left->member);
      if (sending_ != nullptr) sending_->Drop(left->member.engine, left->member.rank);
    }
  }

  // In the thread that plans.
  void Plan(const PlanEffect& effect) {
    absl::StatusOr<std::shared_ptr<PublisherEpoch>> made = MakeEpoch(effect);
    if (made.ok()) {
      // Sums are those of this plan, so no slot may be half written by another one's writer.
      const absl::Status idle = Wait(absl::InfiniteFuture(), "the end of a snapshot",
                                     [&] { return !publisher().writing() || session().epoch() != effect.epoch; });
      if (!idle.ok()) return;
      for (size_t slot = 0; slot < slots_.size(); ++slot) SumAgain(made->get(), static_cast<int>(slot));
    }
    absl::StatusOr<std::vector<proto::Edge>> edges = std::vector<proto::Edge>();
    if (!made.ok()) edges = made.status();
    std::vector<std::string> keys;
    if (made.ok()) {
      edges = (*made)->plan->DigestsOf(self());
      keys = ToList(KeysOf(**made, slots_));
    }
    for (bool again = true; again;) {
      // kStaleEpoch: another one began, whose turn is next.
      (void)Step([&](int64_t now, MemberActions* actions) {
        // A standby's worker may have committed something else meanwhile.
        again = standby_ && made.ok() && session().epoch() == effect.epoch &&
                publisher().generation_in(0) != (*made)->summed_generation;
        if (again) return absl::OkStatus();
        if (made.ok()) publisher().CompareBy((*made)->plan->Named((*made)->replicas), (*made)->replica_sums);
        absl::Status planned = session().Planned(effect.epoch, edges, now, actions, keys);
        if (planned.ok() && made.ok()) planned_ = *std::move(made);
        return planned;
      });
      if (again) SumAgain(made->get(), 0);
    }
  }

  // The sums of what a slot holds, for a new epoch. What was damaged since the last one's were made must not be summed
  // anew: it is offered no more.
  void SumAgain(PublisherEpoch* epoch, int slot) {
    std::shared_ptr<PublisherEpoch> last;
    uint64_t generation;
    std::vector<uint64_t> replica_sums;
    {
      std::lock_guard<std::mutex> lock(mutex());
      generation = publisher().generation_in(slot);
      epoch->summed_generation = generation;
      if (generation == 0) return;
      last = planned_;
      replica_sums = last ? last->replica_sums[slot] : std::vector<uint64_t>();
      summing_ = true;
    }
    // What a standby holds was checked when its worker took it, and no sums were kept.
    std::unique_lock<std::mutex> sums_lock(sums_mutex_);
    absl::StatusOr<bool> agrees = true;
    if (!standby_) agrees = last->writer->Agrees(slots_[slot]->bytes(), last->SumsOf(slot), replica_sums);
    absl::StatusOr<std::vector<uint64_t>> sums = std::vector<uint64_t>();
    if (standby_) {
      sums = epoch->writer->Write(slots_[slot]->bytes(), epoch->SumsOf(slot), IncarnationStamp(session().incarnation()),
                                  generation);
    } else if (agrees.ok() && *agrees) {
      sums = epoch->writer->SumAgain(slots_[slot]->bytes(), epoch->SumsOf(slot));
    }
    sums_lock.unlock();
    const bool offered = agrees.ok() && *agrees && sums.ok();
    if (offered) epoch->replica_sums[slot] = *std::move(sums);
    (void)Step([&](int64_t, MemberActions*) {
      summing_ = false;
      return offered ? absl::OkStatus() : publisher().DropSlot(slot);
    });
    // A GPU that cannot sum what it holds cannot send it either.
    if (!agrees.ok()) Fail(agrees.status());
    if (!sums.ok()) Fail(sums.status());
  }

  // Whoever reads another generation goes on.
  absl::Status CheckHeld(uint64_t generation) {
    std::lock_guard<std::mutex> lock(mutex());
    const uint64_t held = publisher().generation_in(0);
    if (held == 0 || held == generation) return absl::OkStatus();
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat("release of generation ", generation, " while publisher rank ", options_.rank,
                              " holds generation ", held, ": wait for that one before the weights change"));
  }

  // The thread that plans may only now be making the one that sends.
  void DropAll() {
    std::lock_guard<std::mutex> lock(mutex());
    if (sending_ != nullptr) sending_->Drop();
  }

  // Whether none of our threads reads the weights that are held.
  bool Quiet() {
    std::lock_guard<std::mutex> lock(mutex());
    return !summing_ && (sending_ == nullptr || sending_->IsIdle(0));
  }

  static RegionKeys KeysOf(const PublisherEpoch& epoch, const std::vector<std::unique_ptr<Region>>& slots) {
    RegionKeys keys;
    for (const auto& slot : slots) keys.slots.push_back(slot->key());
    keys.sums = epoch.sums->key();
    for (const auto& [receiver, ring] : epoch.rings) keys.rings[receiver] = ring->key();
    for (const auto& [buffer, memory] : epoch.registrations) keys.memory[buffer] = memory ? memory->key() : "";
    return keys;
  }

  absl::StatusOr<std::shared_ptr<PublisherEpoch>> MakeEpoch(const PlanEffect& effect) {
    const absl::Time begin = absl::Now();
    HR_ASSIGN_OR_RETURN(EpochPlan plan, EpochPlan::Make(effect.start));
    auto epoch = std::make_shared<PublisherEpoch>(options_.rank, std::make_shared<const EpochPlan>(std::move(plan)));
    const Manifest& manifest = epoch->plan->manifest();
    const int64_t rank = epoch->plan->SourceRank(options_.rank);
    HR_ASSIGN_OR_RETURN(const auto memory, memory_->Of(manifest, rank));
    HR_ASSIGN_OR_RETURN(epoch->replicas, epoch->plan->ReplicasOf(options_.rank));
    epoch->writer.emplace(manifest, epoch->plan->plan(), rank, memory, epoch->replicas, hold_,
                          memory_->MeansFor(manifest, memory));
    for (const auto& member : effect.start.members()) {
      epoch->addresses[MemberKey::From(member.id())] = member.layout().transport_address();
    }
    {
      std::lock_guard<std::mutex> lock(mutex());
      stats_.plan_seconds = absl::ToDoubleSeconds(absl::Now() - begin);
      stats_.snapshot_bytes = epoch->writer->layout().bytes();
    }
    std::lock_guard<std::mutex> lock(transport_mutex_);
    while (slots_.size() < (hold_ ? 1 : kSnapshotSlots)) {
      HR_ASSIGN_OR_RETURN(auto slot, transport_->AllocateRegion(epoch->writer->layout().bytes()));
      auto pinned = memory_->PinSlot(slot->bytes());
      std::lock_guard<std::mutex> lock(mutex());
      if (pinned != nullptr) stats_.pinned_bytes += static_cast<int64_t>(slot->bytes().size());
      slots_.push_back(std::move(slot));
      pinned_.push_back(std::move(pinned));
    }
    HR_ASSIGN_OR_RETURN(epoch->sums, RegionOfSums(epoch->writer->sums_layout().bytes()));
    if (!maps_) {
      HR_RETURN_IF_ERROR(PrepareMessages(effect.epoch, epoch.get()));
    } else if (hold_) {
      HR_RETURN_IF_ERROR(PrepareRings(memory, epoch.get()));
    }
    return epoch;
  }

  // Three from the beginning, since a GPU may be full later: the last epoch that was ready has one, one that was
  // planned since and is over before it is ready may have another, and the next one takes the third.
  absl::StatusOr<std::shared_ptr<Region>> RegionOfSums(int64_t bytes) {
    constexpr int64_t kLeastBytes = int64_t{1} << 20;  // for plans that need more than this one
    const auto is_free = [](const std::shared_ptr<Region>& region) { return region.use_count() == 1; };
    const auto fits = [&](const auto& region) { return static_cast<int64_t>(region->bytes().size()) >= bytes; };
    std::erase_if(sums_, [&](const auto& region) { return is_free(region) && !fits(region); });
    while (sums_.size() < 3 || std::none_of(sums_.begin(), sums_.end(), is_free)) {
      HR_ASSIGN_OR_RETURN(auto region, transport_->AllocateRegion(std::max(bytes, kLeastBytes)));
      sums_.push_back(std::move(region));
    }
    return *std::find_if(sums_.begin(), sums_.end(), is_free);
  }

  void StartSending(std::unique_ptr<Outlet> outlet) {
    std::lock_guard<std::mutex> lock(mutex());
    sending_ = std::make_unique<Sending>(
        std::move(outlet), [this] { Notify(); }, [this](const absl::Status& failed) { Fail(failed); });
  }

  absl::Status PrepareMessages(uint64_t number, PublisherEpoch* epoch) {
    HR_ASSIGN_OR_RETURN(epoch->tags, StreamTags::Create(*transport_, epoch->plan->plan(), number));
    for (const Edge& edge : epoch->plan->EdgesOf(self())) {
      epoch->streams[epoch->plan->ReceiverOf(edge.destination_rank)].emplace_back(epoch->plan->plan(), edge,
                                                                                  options_.chunk_bytes);
    }
    if (sending_ != nullptr) return absl::OkStatus();
    HR_ASSIGN_OR_RETURN(auto outlet, MessageOutlet::Create(transport_.get(), options_.chunk_bytes,
                                                           options_.staging_bytes, memory_->packing()));
    StartSending(std::move(outlet));
    return absl::OkStatus();
  }

  absl::Status PrepareRings(const std::map<int, const std::byte*>& memory, PublisherEpoch* epoch) {
    const PackRingOptions ring = PackRingOptions::OfChunks(options_.chunk_bytes);
    const std::set<MemberKey> receivers = ReceiversOf(*epoch->plan, options_.rank);
    const int64_t needed = static_cast<int64_t>(receivers.size()) * ring.slots * ring.slot_bytes;
    if (needed > options_.staging_bytes) {
      return Error(ErrorCode::kStagingTooSmall,
                   absl::StrCat("publisher rank ", options_.rank, " packs for ", receivers.size(), " receivers, which ",
                                "takes ", needed, " bytes; staging_bytes is ", options_.staging_bytes,
                                ". Raise it, or lower chunk_bytes at all members"));
    }
    for (const MemberKey& receiver : receivers) {
      HR_ASSIGN_OR_RETURN(epoch->rings[receiver], PackRingWriter::Create(transport_.get(), ring));
    }
    const Manifest& manifest = epoch->plan->manifest();
    for (const int buffer : BuffersReadOf(*epoch->plan, options_.rank)) {
      std::unique_ptr<Registration>& registration = epoch->registrations[buffer];
      if (!transport_->capabilities().read) continue;
      const Buffer& b = manifest.source[buffer];
      HR_ASSIGN_OR_RETURN(registration,
                          transport_->Register({memory.at(buffer), static_cast<size_t>(SpanBytes(b, b.dtype))}));
    }
    if (sending_ != nullptr) return absl::OkStatus();
    auto outlet = std::make_unique<RingOutlet>(transport_.get(), &transport_mutex_, options_.chunk_bytes);
    StartSending(std::move(outlet));
    return absl::OkStatus();
  }

  // A receiver that gave a generation up has released its slot, while the sending thread may still read it.
  absl::Status AwaitSender(uint64_t generation, int slot, absl::Time deadline) {
    if (sending_ == nullptr) return absl::OkStatus();
    absl::Status idle = Wait(deadline, "the end of sending out of a slot", [&] { return sending_->IsIdle(slot); });
    if (idle.ok() || !status().ok()) return idle;
    HR_RETURN_IF_ERROR(AbandonSlot(generation));
    return idle;
  }

  absl::Status AbandonSlot(uint64_t generation) {
    return Step([&](int64_t, MemberActions*) {
      writing_.reset();
      return publisher().AbandonSlot(generation);
    });
  }

  const PublisherOptions options_;
  const std::unique_ptr<PublishedMemory> memory_;
  std::unique_ptr<Sending> sending_;
  // Destroyed before the messages of the sending thread, which may be in flight.
  const std::unique_ptr<Transport> transport_;
  const bool hold_;
  const bool standby_;
  const bool maps_;
  // Of what sums: the thread that plans an epoch which is over already may do so while another generation is written.
  std::mutex sums_mutex_;
  std::mutex transport_mutex_;  // transports that map: between the thread that plans and the one that sends
  // Written by the thread that plans, under the lock.
  std::vector<std::unique_ptr<Region>> slots_;
  std::vector<std::unique_ptr<PinnedMemory>> pinned_;  // of each slot; null: none
  std::vector<std::shared_ptr<Region>> sums_;          // of epochs, the thread's that plans

  // Under the lock.
  std::shared_ptr<PublisherEpoch> planned_;  // of the newest epoch that was planned
  std::shared_ptr<PublisherEpoch> ready_;    // of the newest one that was ready
  std::shared_ptr<PublisherEpoch> writing_;  // in which the slot that is being written was granted
  std::optional<int> write_slot_;
  absl::Status publish_failed_;
  bool summing_ = false;                          // the thread that plans reads a slot
  std::map<uint64_t, std::set<int64_t>> absent_;  // by generation: destination ranks that take no part
  std::set<int> engines_;                         // of the epoch
  std::map<int, uint64_t> committed_;
  std::map<int, std::pair<uint64_t, absl::Status>> aborted_;
  std::map<uint64_t, absl::Status> given_up_;  // the newest generations of which replicas differed
  std::map<int, MemberKey> left_;              // by engine: its first worker that left
  PublisherStats stats_;
};

// Joins, and waits for its first epoch unless it is a standby.
absl::StatusOr<std::unique_ptr<PublisherImpl>> MakePublisher(const PublisherOptions& options, const Manifest& part,
                                                             std::map<std::string, const std::byte*> memory,
                                                             std::unique_ptr<Transport> transport) {
  proto::Layout layout;
  layout.set_manifest_fragment(EncodeFragment(part));
  layout.set_transport(std::string(transport->name()));
  layout.set_transport_address(transport->address());
  layout.set_slots(kSnapshotSlots);
  layout.set_chunk_bytes(options.chunk_bytes);
  layout.set_hold(options.publishing == Publishing::kHold);
  HR_ASSIGN_OR_RETURN(auto published, PublishedMemory::Create(options, part, std::move(memory), *transport));
  HR_ASSIGN_OR_RETURN(auto client, Member::Connect(options.job, absl::Now() + options.job.connect_timeout));
  auto session = std::make_unique<PublisherSession>(
      Member::SessionOptions(options.job, MemberKey::Publisher(options.rank), std::move(layout)));
  auto publisher = std::make_unique<PublisherImpl>(options, std::move(published), std::move(transport),
                                                   std::move(session), std::move(client));
  HR_RETURN_IF_ERROR(publisher->Start());
  return publisher;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Publisher>> Publisher::Join(const PublisherOptions& options, const Manifest& part,
                                                           std::map<std::string, const std::byte*> memory,
                                                           std::unique_ptr<Transport> transport) {
  return MakePublisher(options, part, std::move(memory), std::move(transport));
}

absl::StatusOr<std::unique_ptr<Standby>> Standby::Join(const StandbyOptions& options, const Manifest& source_part,
                                                       std::map<std::string, const std::byte*> memory,
                                                       std::unique_ptr<Transport> transport) {
  PublisherOptions publisher;
  publisher.job = options.job;
  publisher.rank = MemberKey::Standby(options.engine, options.worker).rank;
  publisher.publishing = Publishing::kHold;
  publisher.chunk_bytes = options.chunk_bytes;
  publisher.staging_bytes = options.staging_bytes;
  return MakePublisher(publisher, source_part, std::move(memory), std::move(transport));
}

}  // namespace headrace
