#include "loader/publisher.h"

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
#include "loader/sender.h"
#include "loader/session/publisher_session.h"
#include "loader/snapshot.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr absl::Duration kReconnectTimeout = absl::Seconds(5);

class PublisherImpl final : public Publisher, private Member {
 public:
  PublisherImpl(const PublisherOptions& options, std::map<std::string, const std::byte*> memory,
                std::unique_ptr<Transport> transport, std::unique_ptr<MemberSession> session,
                std::unique_ptr<ControlClient> client)
      : Member(std::move(session), std::move(client), [this](const MemberEffect& e) { Record(e); }),
        options_(options),
        memory_(std::move(memory)),
        transport_(std::move(transport)) {}

  ~PublisherImpl() override {
    Stop();
    stop_sending_ = true;
    if (sending_.joinable()) sending_.join();
  }

  absl::Status Start() {
    Begin();
    HR_RETURN_IF_ERROR(Wait(absl::InfiniteFuture(), "joining", [&] { return epoch_.has_value(); }));
    absl::Status planned = MakePlan();
    if (!planned.ok()) {
      Fail(planned);
      return planned;
    }
    std::vector<std::string> keys;
    for (const auto& slot : slots_) keys.push_back(slot->key());
    HR_RETURN_IF_ERROR(Step([&](int64_t now, MemberActions* actions) {
      return session().Planned(plan_->DigestsOf(self()), now, actions, keys);
    }));
    return Wait(absl::InfiniteFuture(), "agreeing on the plan", [&] { return ready_; });
  }

  absl::Status Publish(uint64_t generation, absl::Time deadline) override {
    const absl::Time begin = absl::Now();
    HR_RETURN_IF_ERROR(Step([&](int64_t now, MemberActions* actions) {
      write_slot_.reset();
      publish_failed_ = absl::OkStatus();
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
    writer_->Write(slots_[*write_slot_]->bytes(), IncarnationStamp(session().incarnation()), generation);
    const absl::Time end = absl::Now();
    absl::Status published = Step([&](int64_t now, MemberActions* actions) {
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
      for (int engine : engines_) {
        if (committed_[engine] >= generation) continue;
        if (auto it = aborted_.find(engine); it != aborted_.end() && it->second.first >= generation) {
          aborted = it->second.second;
        } else if (auto left = left_.find(engine); left != left_.end()) {
          aborted = Error(ErrorCode::kAborted, absl::StrCat(NameOf(left->second),
                                                            " left; its engine does not commit "
                                                            "generation ",
                                                            generation));
        } else {
          return false;
        }
      }
      return true;
    }));
    return aborted;
  }

  absl::Status Close(absl::Time deadline) override {
    absl::Status idle = Wait(deadline, "the end of all reads", [&] { return publisher().busy_slots() == 0; });
    absl::Status left = Leave(deadline);
    return idle.ok() ? left : idle;
  }

  absl::Status status() const override { return Member::status(); }

  PublisherStats stats() const override {
    std::lock_guard<std::mutex> lock(mutex());
    return stats_;
  }

 private:
  PublisherSession& publisher() { return static_cast<PublisherSession&>(session()); }
  MemberKey self() const { return MemberKey::Publisher(options_.rank); }

  // Under the lock.
  void Record(const MemberEffect& effect) {
    if (const auto* plan = std::get_if<PlanEffect>(&effect)) {
      epoch_ = plan->epoch;
      for (const auto& member : plan->epoch.members()) {
        if (member.id().role() == proto::RECEIVER) engines_.insert(member.id().engine());
      }
    } else if (std::holds_alternative<EpochReadyEffect>(effect)) {
      ready_ = true;
    } else if (const auto* slot = std::get_if<WriteSlotEffect>(&effect)) {
      write_slot_ = slot->slot;
    } else if (const auto* failed = std::get_if<PublishFailedEffect>(&effect)) {
      publish_failed_ = failed->status;
    } else if (const auto* order = std::get_if<SendToEffect>(&effect)) {
      // An order that crossed the decision to give its generation up: nobody would take what is sent.
      auto it = aborted_.find(order->receiver.engine);
      if (it == aborted_.end() || it->second.first < order->generation) orders_.push_back(*order);
    } else if (const auto* committed = std::get_if<EngineCommittedEffect>(&effect)) {
      committed_[committed->engine] = std::max(committed_[committed->engine], committed->generation);
    } else if (const auto* aborted = std::get_if<EngineAbortedEffect>(&effect)) {
      aborted_[aborted->engine] = {aborted->generation, aborted->status};
      if (!transport_->capabilities().map) orders_.push_back(Drop{aborted->engine, std::nullopt});
    } else if (const auto* left = std::get_if<LeftEffect>(&effect)) {
      if (left->member.role != proto::RECEIVER) return;
      left_.emplace(left->member.engine, left->member);
      if (!transport_->capabilities().map) orders_.push_back(Drop{left->member.engine, left->member.rank});
    }
  }

  absl::Status MakePlan() {
    const absl::Time begin = absl::Now();
    HR_ASSIGN_OR_RETURN(EpochPlan plan, EpochPlan::Make(*epoch_));
    plan_.emplace(std::move(plan));
    const Manifest& manifest = plan_->manifest();
    const int64_t rank = plan_->SourceRank(options_.rank);
    std::map<int, const std::byte*> memory;
    for (size_t i = 0; i < manifest.source.size(); ++i) {
      const Buffer& b = manifest.source[i];
      if (b.rank != rank) continue;
      auto it = memory_.find(b.name);
      if (it != memory_.end() && it->second != nullptr) {
        memory[static_cast<int>(i)] = it->second;
      } else if (SpanElements(b) > 0 && !b.pieces.empty()) {
        return Error(ErrorCode::kInvalidOption, absl::StrCat("publisher rank ", options_.rank,
                                                             " was given no memory "
                                                             "for its buffer \"",
                                                             b.name, "\""));
      }
    }
    writer_.emplace(manifest, plan_->plan(), rank, std::move(memory));
    {
      std::lock_guard<std::mutex> lock(mutex());
      stats_.plan_seconds = absl::ToDoubleSeconds(absl::Now() - begin);
      stats_.snapshot_bytes = writer_->layout().bytes();
    }
    for (int i = 0; i < kSnapshotSlots; ++i) {
      HR_ASSIGN_OR_RETURN(slots_.emplace_back(), transport_->AllocateRegion(writer_->layout().bytes()));
    }
    return transport_->capabilities().map ? absl::OkStatus() : PrepareStreams();
  }

  absl::Status PrepareStreams() {
    HR_ASSIGN_OR_RETURN(sender_, Sender::Create(transport_.get(), options_.chunk_bytes, options_.staging_bytes));
    const absl::Time deadline = absl::Now() + options_.job.connect_timeout;
    for (const Edge& edge : plan_->EdgesOf(self())) {
      const MemberKey receiver = plan_->ReceiverOf(edge.destination_rank);
      for (const auto& member : epoch_->members()) {
        if (MemberKey::From(member.id()) != receiver) continue;
        const std::string& address = member.layout().transport_address();
        HR_ASSIGN_OR_RETURN(PeerId peer, transport_->Connect(address, deadline));
        streams_.emplace(
            receiver, Stream{address, peer, std::make_unique<EdgeStream>(plan_->plan(), edge, options_.chunk_bytes)});
      }
    }
    sending_ = std::thread([this] { SendOrders(); });
    return absl::OkStatus();
  }

  // The transport's thread on two-sided transports: does what receivers ordered.
  void SendOrders() {
    while (!stop_sending_) {
      std::deque<Order> orders;
      {
        std::lock_guard<std::mutex> lock(mutex());
        std::swap(orders, orders_);
        taking_orders_ = !orders.empty();
      }
      for (const Order& order : orders) {
        if (const auto* drop = std::get_if<Drop>(&order)) {
          for (const auto& [receiver, stream] : streams_) {
            if (receiver.engine == drop->engine && receiver.rank == drop->worker.value_or(receiver.rank)) {
              sender_->Drop(stream.peer);
            }
          }
        } else {
          StartSending(std::get<SendToEffect>(order));
        }
      }
      sender_->Progress(absl::Milliseconds(sender_->active() > 0 ? 1 : 5));
      bool awaited;
      {
        std::lock_guard<std::mutex> lock(mutex());
        stats_.peak_staging_bytes = sender_->peak_staging_bytes();
        taking_orders_ = false;
        for (size_t i = 0; i < slots_.size(); ++i) slot_is_read_[i] = sender_->Reads(slots_[i]->bytes());
        awaited = sender_awaited_;
      }
      if (awaited) Notify();
    }
  }

  void StartSending(const SendToEffect& order) {
    auto it = streams_.find(order.receiver);
    if (it == streams_.end()) return;  // no edge: the session refuses such orders
    Stream& to = it->second;
    if (sender_->TakeFailure(to.peer)) {
      transport_->Disconnect(to.peer);
      absl::StatusOr<PeerId> peer = transport_->Connect(to.address, absl::Now() + kReconnectTimeout);
      if (!peer.ok()) return;  // the receiver's own deadline, or its death, tells the job
      to.peer = *peer;
    }
    sender_->Start(to.peer, to.stream.get(), &writer_->layout(), slots_[order.slot]->bytes(), order.generation);
  }

  // A receiver that gave a generation up has released its slot, while the sending thread may still read it.
  absl::Status AwaitSender(uint64_t generation, int slot, absl::Time deadline) {
    if (sender_ == nullptr) return absl::OkStatus();
    absl::Status idle = Wait(deadline, "the end of sending out of a slot", [&] {
      sender_awaited_ = !orders_.empty() || taking_orders_ || slot_is_read_[slot];
      return !sender_awaited_;
    });
    if (idle.ok() || !status().ok()) return idle;
    HR_RETURN_IF_ERROR(Step([&](int64_t, MemberActions*) {
      sender_awaited_ = false;
      return publisher().AbandonSlot(generation);
    }));
    return idle;
  }

  // What the sending thread is asked to do, in this order.
  struct Drop {
    int engine = 0;             // gave a generation up, or
    std::optional<int> worker;  // this one of its workers left
  };
  using Order = std::variant<SendToEffect, Drop>;

  struct Stream {
    std::string address;
    PeerId peer;
    std::unique_ptr<EdgeStream> stream;
  };

  const PublisherOptions options_;
  const std::map<std::string, const std::byte*> memory_;
  std::optional<EpochPlan> plan_;
  std::optional<SnapshotWriter> writer_;
  std::vector<std::unique_ptr<Region>> slots_;
  std::map<MemberKey, Stream> streams_;
  std::unique_ptr<Sender> sender_;
  // Destroyed before the sender's chunks, which may be in flight.
  const std::unique_ptr<Transport> transport_;
  std::atomic<bool> stop_sending_ = false;
  std::thread sending_;

  // Under the lock.
  std::optional<proto::EpochStart> epoch_;
  bool ready_ = false;
  std::optional<int> write_slot_;
  absl::Status publish_failed_;
  std::deque<Order> orders_;
  bool taking_orders_ = false;
  bool sender_awaited_ = false;
  bool slot_is_read_[kSnapshotSlots] = {};  // by the sending thread
  std::set<int> engines_;
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
  HR_ASSIGN_OR_RETURN(auto client, Member::ConnectTo(options.job));
  auto session = std::make_unique<PublisherSession>(
      Member::SessionOptions(options.job, MemberKey::Publisher(options.rank), std::move(layout)));
  auto publisher = std::make_unique<PublisherImpl>(options, std::move(memory), std::move(transport), std::move(session),
                                                   std::move(client));
  HR_RETURN_IF_ERROR(publisher->Start());
  return publisher;
}

}  // namespace headrace
