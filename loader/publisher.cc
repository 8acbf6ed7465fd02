#include "loader/publisher.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "loader/edge_stream.h"
#include "loader/epoch_plan.h"
#include "loader/executor.h"
#include "loader/sender.h"
#include "loader/session/publisher_session.h"
#include "loader/snapshot.h"
#include "loader/stream_tags.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr absl::Duration kReconnectTimeout = absl::Seconds(5);

// What one epoch adds to the slots, which outlive it.
struct PublisherEpoch {
  explicit PublisherEpoch(EpochPlan plan) : plan(std::move(plan)) {}

  const EpochPlan plan;
  std::optional<SnapshotWriter> writer;
  std::unique_ptr<Region> sums;
  // Two-sided transports: what each receiver gets, its direct edge and streams.
  std::map<MemberKey, std::vector<EdgeStream>> streams;
  std::optional<StreamTags> tags;
  std::map<MemberKey, std::string> addresses;

  absl::Span<std::byte> SumsOf(int slot) const { return writer->sums_layout().Of(slot, sums->bytes()); }
};

class PublisherImpl final : public Publisher, private Member {
 public:
  PublisherImpl(const PublisherOptions& options, std::map<std::string, const std::byte*> memory,
                std::unique_ptr<Transport> transport, std::unique_ptr<MemberSession> session,
                std::unique_ptr<ControlClient> client)
      : Member(
            options.job, std::move(session), std::move(client), [this](const MemberEffect& e) { Record(e); },
            [this](const PlanEffect& e) { Plan(e); }),
        options_(options),
        memory_(std::move(memory)),
        transport_(std::move(transport)),
        two_sided_(!transport_->capabilities().map) {}

  ~PublisherImpl() override {
    Stop();
    stop_sending_ = true;
    if (sending_.joinable()) sending_.join();
  }

  absl::Status Start() {
    Begin();
    return Wait(absl::InfiniteFuture(), "joining", [&] { return ready_ != nullptr; });
  }

  absl::Status Publish(uint64_t generation, absl::Time deadline) override {
    const absl::Time begin = absl::Now();
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
    writing_->writer->Write(slots_[*write_slot_]->bytes(), writing_->SumsOf(*write_slot_),
                            IncarnationStamp(session().incarnation()), generation);
    const absl::Time end = absl::Now();
    absl::Status published = Step([&](int64_t now, MemberActions* actions) {
      writing_.reset();
      stats_.snapshot_seconds = absl::ToDoubleSeconds(end - copying);
      stats_.stall_seconds = absl::ToDoubleSeconds(end - begin);
      return publisher().Snapshotted(generation, now, actions);
    });
    return published;
  }

  absl::Status AwaitCommit(uint64_t generation, absl::Time deadline) override {
    absl::Status aborted;
    HR_RETURN_IF_ERROR(Wait(deadline, absl::StrCat("the engines' commit of generation ", generation), [&] {
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
        } else if (gave_up != aborted_.end() && gave_up->second.first >= generation) {
          aborted = gave_up->second.second;
        } else if (left != left_.end()) {
          aborted = Error(ErrorCode::kAborted, absl::StrCat(NameOf(left->second), " left; its engine does not commit ",
                                                            "generation ", generation));
        } else if (engines_.contains(engine)) {
          return false;
        }
      }
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
    return stats_;
  }

 private:
  // What the sending thread is asked to do, in this order.
  struct Drop {
    std::optional<int> engine;  // gave a generation up (none: the epoch is over, for all), or
    std::optional<int> worker;  // this one of its workers left
  };
  struct Send {
    SendToEffect order;
    std::shared_ptr<PublisherEpoch> epoch;
    std::set<int64_t> absent;  // destination ranks that take no part
  };
  using Order = std::variant<Send, Drop>;

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
      if (two_sided_) orders_.push_back(Drop{});
    } else if (std::holds_alternative<EpochReadyEffect>(effect)) {
      ready_ = planned_;
    } else if (const auto* suspended = std::get_if<SuspendedEffect>(&effect)) {
      for (int engine : engines_) {
        const auto committed = committed_.find(engine);
        if (committed == committed_.end() || committed->second < publisher().last_published()) {
          aborted_[engine] = {publisher().last_published(), suspended->status};
        }
      }
      if (two_sided_) orders_.push_back(Drop{});
    } else if (const auto* slot = std::get_if<WriteSlotEffect>(&effect)) {
      write_slot_ = slot->slot;
      // Granted when the epoch became ready, or later.
      writing_ = planned_;
    } else if (const auto* failed = std::get_if<PublishFailedEffect>(&effect)) {
      publish_failed_ = failed->status;
    } else if (const auto* order = std::get_if<SendToEffect>(&effect)) {
      // An order that crossed the decision to give its generation up: nobody would take what is sent.
      auto it = aborted_.find(order->receiver.engine);
      if (it == aborted_.end() || it->second.first < order->generation)
        orders_.push_back(Order{Send{*order, ready_, absent_[order->generation]}});
    } else if (const auto* committed = std::get_if<EngineCommittedEffect>(&effect)) {
      committed_[committed->engine] = std::max(committed_[committed->engine], committed->generation);
    } else if (const auto* aborted = std::get_if<EngineAbortedEffect>(&effect)) {
      aborted_[aborted->engine] = {aborted->generation, aborted->status};
      if (two_sided_) orders_.push_back(Drop{aborted->engine, std::nullopt});
    } else if (const auto* announced = std::get_if<AnnouncedEffect>(&effect)) {
      absent_.erase(absent_.begin(), absent_.lower_bound(announced->generation > 1 ? announced->generation - 1 : 0));
      std::set<int64_t>& absent = absent_[announced->generation];
      absent.clear();
      for (const MemberKey& worker : announced->absent) absent.insert(ready_->plan.DestinationRank(worker));
      // A new epoch is a new chance for what was given up.
      std::erase_if(aborted_, [&](const auto& entry) {
        return engines_.contains(entry.first) && entry.second.first == announced->generation;
      });
    } else if (const auto* left = std::get_if<LeftEffect>(&effect)) {
      if (left->member.role != proto::RECEIVER) return;
      left_.emplace(left->member.engine, left->member);
      if (two_sided_) orders_.push_back(Drop{left->member.engine, left->member.rank});
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
      for (int slot = 0; slot < kSnapshotSlots; ++slot) SumAgain(**made, slot);
    }
    absl::StatusOr<std::vector<proto::Edge>> edges = std::vector<proto::Edge>();
    if (!made.ok()) edges = made.status();
    std::vector<std::string> keys;
    if (made.ok()) {
      edges = (*made)->plan.DigestsOf(self());
      for (const auto& slot : slots_) keys.push_back(slot->key());
      keys.push_back((*made)->sums->key());
    }
    // kStaleEpoch: another one began, whose turn is next.
    (void)Step([&](int64_t now, MemberActions* actions) {
      absl::Status planned = session().Planned(effect.epoch, edges, now, actions, keys);
      if (planned.ok() && made.ok()) planned_ = *std::move(made);
      return planned;
    });
  }

  // The sums of what a slot holds, for a new epoch. What was damaged since the last one's were made must not be summed
  // anew: it is offered no more.
  void SumAgain(const PublisherEpoch& epoch, int slot) {
    std::shared_ptr<PublisherEpoch> last;
    {
      std::lock_guard<std::mutex> lock(mutex());
      if (publisher().generation_in(slot) == 0) return;
      last = planned_;
    }
    if (last->writer->Agrees(slots_[slot]->bytes(), last->SumsOf(slot))) {
      epoch.writer->SumAgain(slots_[slot]->bytes(), epoch.SumsOf(slot));
      return;
    }
    (void)Step([&](int64_t, MemberActions*) { return publisher().DropSlot(slot); });
  }

  absl::StatusOr<std::shared_ptr<PublisherEpoch>> MakeEpoch(const PlanEffect& effect) {
    const absl::Time begin = absl::Now();
    HR_ASSIGN_OR_RETURN(EpochPlan plan, EpochPlan::Make(effect.start));
    auto epoch = std::make_shared<PublisherEpoch>(std::move(plan));
    const Manifest& manifest = epoch->plan.manifest();
    const int64_t rank = epoch->plan.SourceRank(options_.rank);
    std::map<int, const std::byte*> memory;
    for (size_t i = 0; i < manifest.source.size(); ++i) {
      const Buffer& b = manifest.source[i];
      if (b.rank != rank) continue;
      auto it = memory_.find(b.name);
      if (it != memory_.end() && it->second != nullptr) {
        memory[static_cast<int>(i)] = it->second;
      } else if (SpanElements(b) > 0 && !b.pieces.empty()) {
        return Error(ErrorCode::kInvalidOption, absl::StrCat("publisher rank ", options_.rank,
                                                             " was given no memory for its buffer \"", b.name, "\""));
      }
    }
    epoch->writer.emplace(manifest, epoch->plan.plan(), rank, std::move(memory));
    for (const auto& member : effect.start.members()) {
      epoch->addresses[MemberKey::From(member.id())] = member.layout().transport_address();
    }
    if (two_sided_) {
      HR_ASSIGN_OR_RETURN(epoch->tags, StreamTags::Create(*transport_, epoch->plan.plan(), effect.epoch));
      for (const Edge& edge : epoch->plan.EdgesOf(self())) {
        epoch->streams[epoch->plan.ReceiverOf(edge.destination_rank)].emplace_back(epoch->plan.plan(), edge,
                                                                                   options_.chunk_bytes);
      }
    }
    {
      std::lock_guard<std::mutex> lock(mutex());
      stats_.plan_seconds = absl::ToDoubleSeconds(absl::Now() - begin);
      stats_.snapshot_bytes = epoch->writer->layout().bytes();
    }
    while (slots_.size() < kSnapshotSlots) {
      HR_ASSIGN_OR_RETURN(slots_.emplace_back(), transport_->AllocateRegion(epoch->writer->layout().bytes()));
    }
    HR_ASSIGN_OR_RETURN(epoch->sums, transport_->AllocateRegion(epoch->writer->sums_layout().bytes()));
    if (two_sided_ && sender_ == nullptr) {
      HR_ASSIGN_OR_RETURN(sender_, Sender::Create(transport_.get(), options_.chunk_bytes, options_.staging_bytes));
      sending_ = std::thread([this] { SendOrders(); });
    }
    return epoch;
  }

  // The transport's thread on two-sided transports: does what receivers ordered.
  void SendOrders() {
    std::shared_ptr<PublisherEpoch> sending;  // whose streams the sender refers to
    while (!stop_sending_) {
      std::deque<Order> orders;
      {
        std::lock_guard<std::mutex> lock(mutex());
        std::swap(orders, orders_);
        taking_orders_ = !orders.empty();
      }
      for (const Order& order : orders) {
        if (const auto* drop = std::get_if<Drop>(&order)) {
          DropPeers(*drop);
          continue;
        }
        const Send& send = std::get<Send>(order);
        if (send.epoch != sending) {
          DropPeers(Drop{});
          sending = send.epoch;
        }
        StartSending(send);
      }
      sender_->Progress(absl::Milliseconds(sender_->active() > 0 ? 1 : 5));
      bool awaited;
      {
        std::lock_guard<std::mutex> lock(mutex());
        stats_.peak_staging_bytes = sender_->peak_staging_bytes();
        taking_orders_ = false;
        for (int i = 0; i < kSnapshotSlots; ++i) {
          slot_is_read_[i] = sender_->active() > 0 && sender_->Reads(slots_[i]->bytes());
        }
        awaited = sender_awaited_;
      }
      if (awaited) Notify();
    }
  }

  void StartSending(const Send& send) {
    const SendToEffect& order = send.order;
    const auto streams = send.epoch->streams.find(order.receiver);
    if (streams == send.epoch->streams.end()) return;  // nothing is sent to it: it does not order
    const std::string& address = send.epoch->addresses.at(order.receiver);
    auto peer = peers_.find(order.receiver);
    if (peer != peers_.end() && (peer->second.address != address || sender_->TakeFailure(peer->second.id))) {
      transport_->Disconnect(peer->second.id);
      peers_.erase(peer);
      peer = peers_.end();
    }
    if (peer == peers_.end()) {
      absl::StatusOr<PeerId> id = transport_->Connect(address, absl::Now() + kReconnectTimeout);
      if (!id.ok()) return;  // the receiver's own deadline, or its death, tells the job
      peer = peers_.emplace(order.receiver, Peer{address, *id}).first;
    }
    const SnapshotWriter& writer = *send.epoch->writer;
    for (const EdgeStream& stream : streams->second) {
      const Edge& edge = stream.edge();
      // The others of a chain pass it on.
      const bool first = edge.stream < 0 || FirstOf(send.epoch->plan.plan().streams[edge.stream].chain, send.absent) ==
                                                edge.destination_rank;
      if (!first) continue;
      sender_->Start(peer->second.id, &stream, &writer.layout(), slots_[order.slot]->bytes(),
                     absl::MakeConstSpan(send.epoch->SumsOf(order.slot)).subspan(writer.sums_layout().Offset(edge)),
                     send.epoch->tags->Of(edge, order.generation));
    }
  }

  // A receiver that gave a generation up has released its slot, while the sending thread may still read it.
  absl::Status AwaitSender(uint64_t generation, int slot, absl::Time deadline) {
    if (!two_sided_) return absl::OkStatus();
    absl::Status idle = Wait(deadline, "the end of sending out of a slot", [&] {
      sender_awaited_ = !orders_.empty() || taking_orders_ || slot_is_read_[slot];
      return !sender_awaited_;
    });
    if (idle.ok() || !status().ok()) return idle;
    HR_RETURN_IF_ERROR(Step([&](int64_t, MemberActions*) {
      sender_awaited_ = false;
      writing_.reset();
      return publisher().AbandonSlot(generation);
    }));
    return idle;
  }

  void DropPeers(const Drop& drop) {
    for (const auto& [receiver, peer] : peers_) {
      if (receiver.engine == drop.engine.value_or(receiver.engine) &&
          receiver.rank == drop.worker.value_or(receiver.rank)) {
        sender_->Drop(peer.id);
      }
    }
  }

  struct Peer {
    std::string address;
    PeerId id;
  };

  const PublisherOptions options_;
  const std::map<std::string, const std::byte*> memory_;
  std::vector<std::unique_ptr<Region>> slots_;
  std::map<MemberKey, Peer> peers_;  // of the sending thread
  std::unique_ptr<Sender> sender_;
  // Destroyed before the sender's chunks, which may be in flight.
  const std::unique_ptr<Transport> transport_;
  const bool two_sided_;
  std::atomic<bool> stop_sending_ = false;
  std::thread sending_;

  // Under the lock.
  std::shared_ptr<PublisherEpoch> planned_;  // of the newest epoch that was planned
  std::shared_ptr<PublisherEpoch> ready_;    // of the newest one that was ready
  std::shared_ptr<PublisherEpoch> writing_;  // in which the slot that is being written was granted
  std::optional<int> write_slot_;
  absl::Status publish_failed_;
  std::deque<Order> orders_;
  bool taking_orders_ = false;
  bool sender_awaited_ = false;
  bool slot_is_read_[kSnapshotSlots] = {};        // by the sending thread
  std::map<uint64_t, std::set<int64_t>> absent_;  // by generation: destination ranks that take no part
  std::set<int> engines_;                         // of the epoch
  std::map<int, uint64_t> committed_;
  std::map<int, std::pair<uint64_t, absl::Status>> aborted_;
  std::map<int, MemberKey> left_;  // by engine: its first worker that left
  PublisherStats stats_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Publisher>> Publisher::Join(const PublisherOptions& options, const Manifest& part,
                                                           std::map<std::string, const std::byte*> memory,
                                                           std::unique_ptr<Transport> transport) {
  proto::Layout layout;
  layout.set_manifest_fragment(EncodeFragment(part));
  layout.set_transport(std::string(transport->name()));
  layout.set_transport_address(transport->address());
  layout.set_slots(kSnapshotSlots);
  layout.set_chunk_bytes(options.chunk_bytes);
  HR_ASSIGN_OR_RETURN(auto client, Member::Connect(options.job, absl::Now() + options.job.connect_timeout));
  auto session = std::make_unique<PublisherSession>(
      Member::SessionOptions(options.job, MemberKey::Publisher(options.rank), std::move(layout)));
  auto publisher = std::make_unique<PublisherImpl>(options, std::move(memory), std::move(transport), std::move(session),
                                                   std::move(client));
  HR_RETURN_IF_ERROR(publisher->Start());
  return publisher;
}

}  // namespace headrace
