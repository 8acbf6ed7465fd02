#include "loader/receiver.h"

#include <deque>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "loader/epoch_plan.h"
#include "loader/executor.h"
#include "loader/shadow.h"
#include "planner/status.h"

namespace headrace {
namespace {

class ReceiverImpl final : public Receiver, private Member {
 public:
  ReceiverImpl(const ReceiverOptions& options, std::map<std::string, BufferMemory> memory,
               std::unique_ptr<Transport> transport, std::unique_ptr<MemberSession> session,
               std::unique_ptr<ControlClient> client)
      : Member(std::move(session), std::move(client), [this](const MemberEffect& e) { Record(e); }),
        options_(options),
        memory_(std::move(memory)),
        transport_(std::move(transport)) {}

  ~ReceiverImpl() override { Stop(); }

  absl::Status Start() {
    Begin();
    HR_RETURN_IF_ERROR(Wait(absl::InfiniteFuture(), "joining", [&] { return epoch_.has_value(); }));
    absl::Status planned = MakePlan();
    if (!planned.ok()) {
      Fail(planned);
      return planned;
    }
    HR_RETURN_IF_ERROR(Step([&](int64_t now, MemberActions* actions) {
      return session().Planned(plan_->DigestsOf(self()), now, actions);
    }));
    HR_RETURN_IF_ERROR(Wait(absl::InfiniteFuture(), "agreeing on the plan", [&] { return ready_.has_value(); }));
    absl::Status connected = Connect();
    if (!connected.ok()) Fail(connected);
    return connected;
  }

  absl::StatusOr<uint64_t> NextGeneration(absl::Time deadline) override {
    HR_RETURN_IF_ERROR(Step([&](int64_t now, MemberActions* actions) {
      wait_ended_ = absl::OkStatus();
      const int64_t until =
          deadline == absl::InfiniteFuture()
              ? kNoDeadline
              : now + absl::ToInt64Nanoseconds(std::max(deadline - absl::Now(), absl::ZeroDuration()));
      return receiver().ExpectGeneration(until, now, actions);
    }));
    HR_RETURN_IF_ERROR(
        Wait(absl::InfiniteFuture(), "a generation", [&] { return !announced_.empty() || !wait_ended_.ok(); }));
    std::lock_guard<std::mutex> lock(mutex());
    if (announced_.empty()) return wait_ended_;
    return announced_.front().generation;
  }

  absl::Status Stage(uint64_t generation, const std::map<std::string, BufferMemory>& memory) override {
    const bool in_place = options_.shadow == Shadow::kOff;
    const absl::Status moved = CheckMemory(memory);
    Executor::Request request;
    // One step, so that a decision to give the generation up comes before it or during it, never between.
    HR_RETURN_IF_ERROR(Step([&](int64_t, MemberActions*) -> absl::Status {
      HR_RETURN_IF_ERROR(session().status());
      if (auto it = discarded_.find(generation); it != discarded_.end()) return it->second;
      if (announced_.empty() || announced_.front().generation != generation) {
        return Error(ErrorCode::kInvalidOption, absl::StrCat("generation ", generation, " is not the next one"));
      }
      HR_RETURN_IF_ERROR(receiver().Begin(generation, /*touches_live=*/in_place && moved.ok()));
      for (int publisher : publisher_of_edge_) request.slot_of_edge.push_back(announced_.front().slots[publisher]);
      announced_.pop_front();
      discarded_.erase(discarded_.begin(), discarded_.lower_bound(generation));
      commit_.reset();
      start_refused_ = absl::OkStatus();
      return absl::OkStatus();
    }));
    request.generation = generation;
    request.destination = in_place ? live_ : shadow_->buffers();
    request.deadline = absl::Now() + options_.transfer_timeout;
    request.interrupted = [&] { return Interruption(generation); };
    request.start = [&](size_t edge) {
      const absl::Status started = Step([&](int64_t now, MemberActions* actions) {
        return receiver().RequestStart(publisher_of_edge_[edge], now, actions);
      });
      // A generation that was given up meanwhile cannot be ordered: its own reason says more.
      if (absl::Status interrupted = Interruption(generation); !interrupted.ok()) return interrupted;
      return started;
    };
    TransferStats transfer;
    absl::Status verdict = moved.ok() ? executor_->Run(request, &transfer) : moved;
    if (verdict.ok() && in_place) commit_boxes_->Fill(live_);
    const absl::Time voted = absl::Now();
    HR_RETURN_IF_ERROR(Step([&](int64_t now, MemberActions* actions) {
      stats_.transfer_seconds = transfer.transfer_seconds;
      stats_.verify_seconds = transfer.verify_seconds;
      stats_.copies = transfer.copies;
      stats_.bytes = transfer.bytes;
      stats_.peak_staging_bytes = transfer.peak_staging_bytes;
      return discarded_.contains(generation) ? receiver().Stopped(generation, now, actions)
                                             : receiver().Vote(generation, verdict, now, actions);
    }));
    HR_RETURN_IF_ERROR(Wait(absl::InfiniteFuture(), "the decision",
                            [&] { return commit_ == generation || discarded_.contains(generation); }));
    std::lock_guard<std::mutex> lock(mutex());
    stats_.decision_seconds = absl::ToDoubleSeconds(absl::Now() - voted);
    if (commit_ == generation) return absl::OkStatus();
    return verdict.ok() ? discarded_.at(generation) : verdict;
  }

  absl::Status Apply(uint64_t generation) override {
    HR_RETURN_IF_ERROR(Step([&](int64_t, MemberActions*) -> absl::Status {
      HR_RETURN_IF_ERROR(session().status());
      if (commit_ != generation) {
        return Error(ErrorCode::kInvalidOption, absl::StrCat("generation ", generation, " is not staged"));
      }
      return receiver().BeginCommit(generation);
    }));
    const absl::Time begin = absl::Now();
    if (options_.shadow == Shadow::kHost) commit_boxes_->CopyAndFill(shadow_->buffers(), live_);
    std::lock_guard<std::mutex> lock(mutex());
    stats_.commit_seconds = absl::ToDoubleSeconds(absl::Now() - begin);
    commit_.reset();
    applied_ = generation;
    return session().status();
  }

  absl::Status Commit(uint64_t generation) override {
    if (applied_ != generation) {
      HR_RETURN_IF_ERROR(Apply(generation));
    }
    HR_RETURN_IF_ERROR(Step([&](int64_t now, MemberActions* actions) -> absl::Status {
      applied_.reset();
      return receiver().Committed(generation, now, actions);
    }));
    return Wait(absl::InfiniteFuture(), "the engine's commit", [&] { return engine_committed_ >= generation; });
  }

  void Abandon(const absl::Status& why) override {
    Step([&](int64_t now, MemberActions* actions) {
      receiver().Poison(why, now, actions);
      return 0;
    });
  }

  std::optional<uint64_t> serving() const override {
    std::lock_guard<std::mutex> lock(mutex());
    return static_cast<const ReceiverSession&>(session()).serving();
  }

  ReceiverState Carry() const override {
    std::lock_guard<std::mutex> lock(mutex());
    return static_cast<const ReceiverSession&>(session()).Carry();
  }

  absl::Status Close(absl::Time deadline) override { return Leave(deadline); }
  absl::Status status() const override { return Member::status(); }
  std::string WaitingFor() const override { return Member::WaitingFor(); }

  ReceiverStats stats() const override {
    std::lock_guard<std::mutex> lock(mutex());
    ReceiverStats stats = stats_;
    stats.streamed_bytes = std::min(executor_->streamed_bytes(), stats.needed_bytes);
    return stats;
  }

 private:
  ReceiverSession& receiver() { return static_cast<ReceiverSession&>(session()); }
  MemberKey self() const { return MemberKey::Receiver(options_.engine, options_.worker); }

  // Under the lock.
  void Record(const MemberEffect& effect) {
    if (const auto* plan = std::get_if<PlanEffect>(&effect)) {
      epoch_ = plan->epoch;
    } else if (const auto* ready = std::get_if<EpochReadyEffect>(&effect)) {
      ready_ = *ready;
    } else if (const auto* announced = std::get_if<AnnouncedEffect>(&effect)) {
      announced_.push_back(*announced);
    } else if (const auto* ended = std::get_if<WaitEndedEffect>(&effect)) {
      wait_ended_ = ended->status;
    } else if (const auto* refused = std::get_if<StartRefusedEffect>(&effect)) {
      start_refused_ = refused->status;
    } else if (const auto* commit = std::get_if<CommitEffect>(&effect)) {
      commit_ = commit->generation;
    } else if (const auto* discard = std::get_if<DiscardEffect>(&effect)) {
      // One that was not begun is over before it started.
      std::erase_if(announced_, [&](const AnnouncedEffect& a) { return a.generation == discard->generation; });
      discarded_[discard->generation] = discard->status;
    } else if (const auto* committed = std::get_if<EngineCommittedEffect>(&effect)) {
      if (committed->engine == options_.engine) engine_committed_ = committed->generation;
    }
  }

  absl::Status MakePlan() {
    const absl::Time begin = absl::Now();
    HR_ASSIGN_OR_RETURN(EpochPlan plan, EpochPlan::Make(*epoch_));
    plan_.emplace(std::move(plan));
    const Manifest& manifest = plan_->manifest();
    const int64_t rank = plan_->DestinationRank(self());
    for (size_t i = 0; i < manifest.destination.size(); ++i) {
      const Buffer& b = manifest.destination[i];
      if (b.rank == rank && !b.alias_of) live_[static_cast<int>(i)] = memory_.at(b.name).data;
    }
    commit_boxes_.emplace(manifest, plan_->plan(), rank);
    if (options_.shadow == Shadow::kHost) {
      std::map<int, std::byte*> unserved;
      for (const auto& [index, data] : live_) {
        if (!memory_.at(manifest.destination[index].name).live) unserved[index] = data;
      }
      HR_ASSIGN_OR_RETURN(shadow_, ShadowMemory::Allocate(manifest, rank, unserved));
    }
    std::lock_guard<std::mutex> lock(mutex());
    stats_.plan_seconds = absl::ToDoubleSeconds(absl::Now() - begin);
    stats_.shadow_bytes = shadow_ == nullptr ? 0 : shadow_->bytes();
    stats_.needed_bytes = 0;
    for (const Edge& edge : plan_->EdgesOf(self())) {
      for (size_t i = 0; i < edge.count; ++i) stats_.needed_bytes += plan_->plan().copies[edge.first + i].bytes();
    }
    return absl::OkStatus();
  }

  // Maps every slot of the publishers that have bytes for us, or prepares to receive streams.
  absl::Status Connect() {
    const absl::Time deadline = absl::Now() + options_.job.connect_timeout;
    std::vector<IncomingEdge> edges;
    for (const Edge& edge : plan_->EdgesOf(self())) {
      const int publisher = plan_->PublisherOf(edge.source_rank);
      const proto::EpochStart::Member& member = epoch_->members(publisher);  // publishers come first, by rank
      IncomingEdge incoming;
      incoming.edge = edge;
      incoming.name = NameOf(MemberKey::Publisher(publisher), member.host(), member.pid());
      incoming.address = member.layout().transport_address();
      incoming.layout = std::make_shared<SlotLayout>(plan_->manifest(), plan_->plan(), edge.source_rank);
      if (transport_->capabilities().map) {
        HR_ASSIGN_OR_RETURN(PeerId peer, transport_->Connect(incoming.address, deadline));
        for (const std::string& key : ready_->region_keys[publisher]) {
          HR_ASSIGN_OR_RETURN(std::shared_ptr<const Mapping> slot, transport_->Map(peer, key, deadline));
          if (static_cast<int64_t>(slot->bytes().size()) < incoming.layout->bytes()) {
            return Error(ErrorCode::kTransport,
                         absl::StrCat("the slot of ", incoming.name, " has ", slot->bytes().size(),
                                      " bytes, the plan needs ", incoming.layout->bytes()));
          }
          incoming.slots.push_back(std::move(slot));
        }
      }
      publisher_of_edge_.push_back(publisher);
      edges.push_back(std::move(incoming));
    }
    ExecutorOptions executor{options_.chunk_bytes, options_.staging_bytes};
    HR_ASSIGN_OR_RETURN(executor_,
                        Executor::Create(plan_->manifest(), plan_->plan(), transport_.get(), std::move(edges),
                                         IncarnationStamp(session().incarnation()), executor));
    return absl::OkStatus();
  }

  // The host's buffers are where, and what, they were at Join.
  absl::Status CheckMemory(const std::map<std::string, BufferMemory>& now) const {
    for (const auto& [name, was] : memory_) {
      auto moved = [&, &name = name](absl::string_view how) {
        return About(
            Error(ErrorCode::kDestinationMoved,
                  absl::StrCat("engine ", options_.engine, " worker ", options_.worker, ", buffer \"", name, "\" ", how,
                               " since it was declared. Nothing was written; declare the buffers anew")),
            {.buffer = name, .rank = options_.worker});
      };
      auto it = now.find(name);
      if (it == now.end()) return moved("is gone");
      if (it->second.data != was.data) return moved("moved to another address");
      if (it->second.shape != was.shape) return moved("has another shape");
      if (it->second.strides != was.strides) return moved("has other strides");
    }
    return absl::OkStatus();
  }

  absl::Status Interruption(uint64_t generation) {
    std::lock_guard<std::mutex> lock(mutex());
    if (!session().status().ok()) return session().status();
    if (auto it = discarded_.find(generation); it != discarded_.end()) return it->second;
    return start_refused_;
  }

  const ReceiverOptions options_;
  const std::map<std::string, BufferMemory> memory_;
  const std::unique_ptr<Transport> transport_;
  std::optional<EpochPlan> plan_;
  std::optional<CommitBoxes> commit_boxes_;
  std::unique_ptr<ShadowMemory> shadow_;
  std::map<int, std::byte*> live_;  // by index in manifest.destination
  std::vector<int> publisher_of_edge_;
  std::unique_ptr<Executor> executor_;
  std::optional<uint64_t> applied_;  // and not committed

  // Under the lock.
  std::optional<proto::EpochStart> epoch_;
  std::optional<EpochReadyEffect> ready_;
  std::deque<AnnouncedEffect> announced_;
  absl::Status wait_ended_;
  absl::Status start_refused_;
  std::optional<uint64_t> commit_;              // decided, not applied
  std::map<uint64_t, absl::Status> discarded_;  // by generation, from the last staged one on
  uint64_t engine_committed_ = 0;
  ReceiverStats stats_;
};

absl::Status CheckDeclared(const ReceiverOptions& options, const Manifest& part,
                           const std::map<std::string, BufferMemory>& memory) {
  for (const Buffer& b : part.destination) {
    auto it = memory.find(b.name);
    const bool right = it != memory.end() && it->second.shape == b.shape && it->second.strides == b.strides &&
                       (it->second.data != nullptr || SpanElements(b) == 0);
    if (right) continue;
    return About(
        Error(ErrorCode::kDestinationMoved,
              absl::StrCat("engine ", options.engine, " worker ", options.worker, ", buffer \"", b.name,
                           "\" is declared with shape [", absl::StrJoin(b.shape, ", "), "] and ",
                           it == memory.end() ? "has no memory" : "its memory has another shape, strides or none")),
        {.buffer = b.name, .rank = b.rank});
  }
  // Bytes that are written through one name must be those that are read through another.
  std::map<std::string, std::pair<std::string, const std::byte*>> storages;
  for (const Buffer& b : part.destination) {
    auto apart = [&](const std::string& other) {
      return About(Error(ErrorCode::kDestinationMoved,
                         absl::StrCat("engine ", options.engine, " worker ", options.worker, ", buffer \"", b.name,
                                      "\" is declared to share the memory of \"", other, "\" but lies elsewhere")),
                   {.buffer = b.name, .rank = b.rank});
    };
    const std::byte* first = memory.at(b.name).data;
    if (b.alias_of && memory.contains(*b.alias_of) && memory.at(*b.alias_of).data != first) return apart(*b.alias_of);
    if (!b.storage || SpanElements(b) == 0) continue;
    const std::byte* storage = first - b.storage->offset_bytes;
    const auto [it, fresh] = storages.emplace(b.storage->id, std::make_pair(b.name, storage));
    if (!fresh && it->second.second != storage) return apart(it->second.first);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Receiver>> Receiver::Join(const ReceiverOptions& options, const Manifest& part,
                                                         std::map<std::string, BufferMemory> memory,
                                                         std::unique_ptr<Transport> transport) {
  HR_RETURN_IF_ERROR(CheckDeclared(options, part, memory));
  proto::Layout layout;
  layout.set_manifest_fragment(EncodeFragment(part));
  layout.set_transport(std::string(transport->name()));
  layout.set_transport_address(transport->address());
  layout.set_slots(kSnapshotSlots);
  layout.set_chunk_bytes(options.chunk_bytes);
  HR_ASSIGN_OR_RETURN(auto client, Member::ConnectTo(options.job));
  auto session = std::make_unique<ReceiverSession>(
      Member::SessionOptions(options.job, MemberKey::Receiver(options.engine, options.worker), std::move(layout)),
      options.carried);
  auto receiver = std::make_unique<ReceiverImpl>(options, std::move(memory), std::move(transport), std::move(session),
                                                 std::move(client));
  HR_RETURN_IF_ERROR(receiver->Start());
  return receiver;
}

}  // namespace headrace
