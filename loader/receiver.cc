#include "loader/receiver.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "loader/epoch_plan.h"
#include "loader/executor.h"
#include "loader/gpu/gpu_box_work.h"
#include "loader/gpu/gpu_copies.h"
#include "loader/gpu/gpu_memory.h"
#include "loader/incoming.h"
#include "loader/shadow.h"
#include "loader/standby.h"
#include "planner/status.h"

namespace headrace {
namespace {

// What one epoch adds to the worker's buffers, which outlive it.
struct ReceiverEpoch {
  ReceiverEpoch(uint64_t number, EpochPlan plan) : number(number), plan(std::move(plan)) {}

  const uint64_t number;
  const EpochPlan plan;
  proto::EpochStart start;
  std::optional<CommitBoxes> commit_boxes;
  // By index in manifest.destination: live buffers of the host, those on the GPU, and the shadow of both.
  std::map<int, std::byte*> live, on_gpu, shadow;
  GpuCopies::Uploaded commit_on_gpu;  // kDevice

  // Of the thread that stages.
  std::vector<int> publisher_of_edge;
  std::vector<ReceiverMeans> means_of_edge;
  std::unique_ptr<Executor> executor;  // none before the first generation of the epoch
};

// A GPU's work where bytes are streamed into its memory; all null where they are not.
struct GpuUnpacking {
  std::unique_ptr<BoxWork> work;
  std::unique_ptr<GpuCopies> commits;  // kDevice
};

class ReceiverImpl final : public Receiver, private Member {
 public:
  ReceiverImpl(const ReceiverOptions& options, std::map<std::string, BufferMemory> memory, GpuMemory gpu_memory,
               GpuUnpacking gpu_unpacking, std::unique_ptr<Transport> transport, std::unique_ptr<MemberSession> session,
               std::unique_ptr<ControlClient> client)
      : Member(
            options.job, std::move(session), std::move(client), [this](const MemberEffect& e) { Record(e); },
            [this](const PlanEffect& e) { Plan(e); }),
        options_(options),
        memory_(std::move(memory)),
        gpu_memory_(std::move(gpu_memory)),
        gpu_unpacking_(std::move(gpu_unpacking)),
        transport_(std::move(transport)),
        incoming_(transport_.get()) {}

  ~ReceiverImpl() override { Stop(); }

  // After Start.
  absl::Status StandBy(const Manifest& part, std::unique_ptr<Transport> transport) {
    StandbyOptions standby;
    standby.job = options_.job;
    standby.engine = options_.engine;
    standby.worker = options_.worker;
    standby.chunk_bytes = options_.chunk_bytes;
    standby.staging_bytes = options_.staging_bytes;
    std::map<std::string, const std::byte*> memory;
    for (const auto& [name, buffer] : memory_) memory[name] = buffer.data;
    std::shared_ptr<ReceiverEpoch> epoch;
    ReceiverState served;
    std::string incarnation;
    {
      std::lock_guard<std::mutex> lock(mutex());
      epoch = ready_;
      served = static_cast<const ReceiverSession&>(session()).Carry();
      incarnation = session().incarnation();
    }
    standby.job.incarnation = incarnation;
    HR_ASSIGN_OR_RETURN(standby_, Standby::Join(standby, SourcePartOf(standby, part, epoch->plan.manifest()),
                                                std::move(memory), std::move(transport)));
    if (!served.poisoned && served.committed_incarnation == incarnation && served.committed_generation != 0) {
      standby_->Hold(served.committed_generation);
    }
    return absl::OkStatus();
  }

  absl::Status Start() {
    Begin();
    HR_RETURN_IF_ERROR(Wait(absl::InfiniteFuture(), "joining", [&] { return ready_ != nullptr; }));
    std::shared_ptr<ReceiverEpoch> epoch;
    std::map<int, std::vector<std::string>> region_keys;
    {
      std::lock_guard<std::mutex> lock(mutex());
      epoch = ready_;
      region_keys = region_keys_;
    }
    absl::Status connected = Connect(*epoch, region_keys);
    // Where the epoch is over already, what went wrong may be its end.
    if (!connected.ok() && IsReady(*epoch)) {
      Fail(connected);
      return connected;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> NextGeneration(absl::Time deadline) override {
    while (true) {
      HR_RETURN_IF_ERROR(Step([&](int64_t now, MemberActions* actions) {
        wait_ended_ = absl::OkStatus();
        const int64_t until =
            deadline == absl::InfiniteFuture()
                ? kNoDeadline
                : now + absl::ToInt64Nanoseconds(std::max(deadline - absl::Now(), absl::ZeroDuration()));
        return receiver().ExpectGeneration(until, now, actions);
      }));
      HR_RETURN_IF_ERROR(Wait(absl::InfiniteFuture(), "a generation",
                              [&] { return !announced_.empty() || given_up_ != 0 || !receiver().expecting(); }));
      std::lock_guard<std::mutex> lock(mutex());
      if (given_up_ != 0 && (announced_.empty() || given_up_ < announced_.front().generation)) {
        return expected_ = given_up_;
      }
      if (!announced_.empty()) return expected_ = announced_.front().generation;
      if (!wait_ended_.ok()) return wait_ended_;
      // One was announced and given up before this thread looked: the wait goes on, to the same deadline.
    }
  }

  absl::Status Stage(uint64_t generation, const std::map<std::string, BufferMemory>& memory,
                     cuda::Stream stream) override {
    const bool in_place = options_.shadow == Shadow::kOff;
    const absl::Time deadline = absl::Now() + options_.transfer_timeout;
    absl::Status verdict = CheckMemory(memory);
    if (verdict.ok() && in_place) verdict = AwaitStream(gpu_memory_, stream, deadline);
    HR_RETURN_IF_ERROR(BeginStage(generation, /*touches_live=*/in_place && verdict.ok(), deadline));
    if (standby_ != nullptr && verdict.ok() && StageWritesMemory()) standby_->TakeBack();
    if (!verdict.ok()) DeclineTransfer(generation);
    TransferStats transfer;
    absl::Time voted;
    for (bool over = false; !over;) {
      Attempt attempt;
      if (verdict.ok()) verdict = NextAttempt(generation, deadline, &attempt);
      if (verdict.ok()) {
        transfer = {};
        verdict = Transfer(generation, deadline, attempt, &transfer);
        if (verdict.ok() && in_place) verdict = FillLive(*attempt.epoch);
        // A membership that changed ends what it interrupted; the next epoch may have all bytes.
        if (!verdict.ok() && AwaitNextEpoch(generation, *attempt.epoch, verdict, deadline)) {
          verdict = absl::OkStatus();
          continue;
        }
      }
      voted = absl::Now();
      HR_RETURN_IF_ERROR(Step([&](int64_t now, MemberActions* actions) {
        // In the epoch that begins its peers wait for what it passes on.
        over = !verdict.ok() || discarded_.contains(generation) || !IsToReadIn(*attempt.epoch);
        if (!over) return absl::OkStatus();
        stats_.transfer_seconds = transfer.transfer_seconds;
        stats_.verify_seconds = transfer.verify_seconds;
        stats_.copies = transfer.copies;
        stats_.bytes = transfer.bytes;
        stats_.peak_staging_bytes = transfer.peak_staging_bytes;
        return discarded_.contains(generation) ? receiver().Stopped(generation, now, actions)
                                               : receiver().Vote(generation, verdict, now, actions);
      }));
    }
    HR_RETURN_IF_ERROR(Wait(absl::InfiniteFuture(), "the decision",
                            [&] { return commit_ == generation || discarded_.contains(generation); }));
    std::lock_guard<std::mutex> lock(mutex());
    stats_.decision_seconds = absl::ToDoubleSeconds(absl::Now() - voted);
    if (!discarded_.contains(generation)) return absl::OkStatus();
    // A transfer that the change of an epoch ended did nothing wrong itself.
    return verdict.ok() || HasCode(verdict, ErrorCode::kStaleEpoch) ? discarded_.at(generation) : verdict;
  }

  absl::Status Apply(uint64_t generation, cuda::Stream stream) override {
    HR_RETURN_IF_ERROR(AwaitStream(gpu_memory_, stream, absl::Now() + options_.transfer_timeout));
    std::shared_ptr<ReceiverEpoch> epoch;
    HR_RETURN_IF_ERROR(Step([&](int64_t, MemberActions*) -> absl::Status {
      HR_RETURN_IF_ERROR(session().status());
      if (commit_ != generation) {
        return Error(ErrorCode::kInvalidOption, absl::StrCat("generation ", generation, " is not staged"));
      }
      // Decided, and given up since: the engine lost a worker.
      if (auto it = discarded_.find(generation); it != discarded_.end()) return it->second;
      epoch = ready_;
      return receiver().BeginCommit(generation);
    }));
    if (standby_ != nullptr) standby_->TakeBack();
    const absl::Time begin = absl::Now();
    if (const absl::Status copied = CopyToLive(*epoch); !copied.ok()) {
      Abandon(copied);
      return copied;
    }
    std::lock_guard<std::mutex> lock(mutex());
    stats_.commit_seconds = absl::ToDoubleSeconds(absl::Now() - begin);
    commit_.reset();
    applied_ = generation;
    return session().status();
  }

  absl::Status Commit(uint64_t generation, cuda::Stream stream) override {
    if (applied_ != generation) {
      HR_RETURN_IF_ERROR(Apply(generation, stream));
    }
    HR_RETURN_IF_ERROR(Step([&](int64_t now, MemberActions* actions) -> absl::Status {
      applied_.reset();
      if (auto it = discarded_.find(generation); it != discarded_.end()) return it->second;
      return receiver().Committed(generation, now, actions);
    }));
    HR_RETURN_IF_ERROR(Wait(absl::InfiniteFuture(), "the engine's commit",
                            [&] { return engine_committed_ >= generation || discarded_.contains(generation); }));
    {
      std::lock_guard<std::mutex> lock(mutex());
      if (engine_committed_ < generation) return discarded_.at(generation);
    }
    if (standby_ != nullptr) standby_->Hold(generation);
    return absl::OkStatus();
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

  absl::Status Close(absl::Time deadline) override {
    standby_.reset();
    return Leave(deadline);
  }
  absl::Status status() const override { return Member::status(); }
  std::string WaitingFor() const override { return Member::WaitingFor(); }

  ReceiverStats stats() const override {
    std::lock_guard<std::mutex> lock(mutex());
    ReceiverStats stats = stats_;
    if (executing_ != nullptr) {
      stats.streamed_bytes = std::min(executing_->executor->streamed_bytes(), stats.needed_bytes);
    }
    return stats;
  }

 private:
  // One try to bring a generation in: in an epoch, out of these slots.
  struct Attempt {
    std::shared_ptr<ReceiverEpoch> epoch;
    std::map<int, std::vector<std::string>> region_keys;
    AnnouncedEffect announced;
  };

  ReceiverSession& receiver() { return static_cast<ReceiverSession&>(session()); }
  MemberKey self() const { return MemberKey::Receiver(options_.engine, options_.worker); }

  // Under the lock.
  void Record(const MemberEffect& effect) {
    if (std::holds_alternative<PlanEffect>(effect)) {
      announced_.clear();
      staging_.reset();
    } else if (const auto* ready = std::get_if<EpochReadyEffect>(&effect)) {
      ready_ = planned_;
      region_keys_ = ready->region_keys;
    } else if (std::holds_alternative<SuspendedEffect>(effect)) {
      announced_.clear();
      staging_.reset();
    } else if (const auto* announced = std::get_if<AnnouncedEffect>(&effect)) {
      if (receiver().state() == ReceiverSession::State::kStreaming && announced->generation == receiver().running()) {
        staging_ = *announced;
      } else {
        announced_.push_back(*announced);
      }
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
    } else if (const auto* given_up = std::get_if<GivenUpEffect>(&effect)) {
      // The host learns of it by Stage. One that it did not ask for in time is forgotten.
      if (given_up_ != expected_) discarded_.erase(given_up_);
      given_up_ = given_up->generation;
      discarded_[given_up_] = given_up->status;
    } else if (const auto* committed = std::get_if<EngineCommittedEffect>(&effect)) {
      if (committed->engine == options_.engine) engine_committed_ = committed->generation;
    }
  }

  // In the thread that plans.
  void Plan(const PlanEffect& effect) {
    absl::StatusOr<std::shared_ptr<ReceiverEpoch>> made = MakeEpoch(effect);
    absl::StatusOr<std::vector<proto::Edge>> edges = std::vector<proto::Edge>();
    if (!made.ok()) edges = made.status();
    if (made.ok()) edges = (*made)->plan.DigestsOf(self());
    // kStaleEpoch: another one began, whose turn is next.
    (void)Step([&](int64_t now, MemberActions* actions) {
      absl::Status planned = session().Planned(effect.epoch, edges, now, actions);
      if (planned.ok() && made.ok()) planned_ = *std::move(made);
      return planned;
    });
  }

  absl::StatusOr<std::shared_ptr<ReceiverEpoch>> MakeEpoch(const PlanEffect& effect) {
    const absl::Time begin = absl::Now();
    HR_ASSIGN_OR_RETURN(EpochPlan plan, EpochPlan::Make(effect.start));
    auto epoch = std::make_shared<ReceiverEpoch>(effect.epoch, std::move(plan));
    epoch->start = effect.start;
    const Manifest& manifest = epoch->plan.manifest();
    const int64_t rank = epoch->plan.DestinationRank(self());
    for (size_t i = 0; i < manifest.destination.size(); ++i) {
      const Buffer& b = manifest.destination[i];
      if (b.rank != rank || b.alias_of) continue;
      (gpu_memory_.has(b.name) ? epoch->on_gpu : epoch->live)[static_cast<int>(i)] = memory_.at(b.name).data;
    }
    epoch->commit_boxes.emplace(manifest, epoch->plan.plan(), rank);
    if (options_.shadow != Shadow::kOff) {
      if (shadow_ == nullptr) HR_RETURN_IF_ERROR(MakeShadow(*epoch));
      for (const auto* buffers : {&epoch->live, &epoch->on_gpu}) {
        for (const auto& [index, data] : *buffers) {
          epoch->shadow[index] = shadow_of_.at(manifest.destination[index].name);
        }
      }
    }
    if (options_.shadow == Shadow::kDevice) {
      HR_ASSIGN_OR_RETURN(epoch->commit_on_gpu, gpu_unpacking_.commits->Upload(
                                                    epoch->commit_boxes->CopiesOnGpu(epoch->shadow, epoch->on_gpu)));
    }
    std::lock_guard<std::mutex> lock(mutex());
    stats_.plan_seconds = absl::ToDoubleSeconds(absl::Now() - begin);
    stats_.shadow_bytes = shadow_ == nullptr ? 0 : shadow_->bytes();
    stats_.pinned_bytes = pinned_ == nullptr ? 0 : shadow_->bytes();
    stats_.needed_bytes = 0;
    for (const Edge& edge : epoch->plan.EdgesOf(self())) {
      for (size_t i = 0; i < edge.count; ++i) stats_.needed_bytes += epoch->plan.plan().copies[edge.first + i].bytes();
    }
    return epoch;
  }

  absl::Status MakeShadow(const ReceiverEpoch& epoch) {
    const Manifest& manifest = epoch.plan.manifest();
    const int64_t rank = epoch.plan.DestinationRank(self());
    const bool on_gpu = options_.shadow == Shadow::kDevice;
    std::map<int, std::byte*> unserved;
    for (const auto& [index, data] : on_gpu ? epoch.on_gpu : epoch.live) {
      if (!memory_.at(manifest.destination[index].name).live) unserved[index] = data;
    }
    if (on_gpu) {
      HR_ASSIGN_OR_RETURN(shadow_, ShadowMemory::AllocateOnGpu(manifest, rank, unserved, gpu_unpacking_.commits->cuda(),
                                                               *options_.gpu));
    } else {
      HR_ASSIGN_OR_RETURN(shadow_, ShadowMemory::Allocate(manifest, rank, unserved));
      if (!epoch.on_gpu.empty()) pinned_ = gpu_memory_.copies->Pin(shadow_->memory());
    }
    for (const auto& [index, data] : shadow_->buffers()) shadow_of_[manifest.destination[index].name] = data;
    return absl::OkStatus();
  }

  // What a generation that was streamed into the live buffers lacks.
  absl::Status FillLive(const ReceiverEpoch& epoch) {
    epoch.commit_boxes->Fill(epoch.live);
    return epoch.on_gpu.empty() ? absl::OkStatus() : epoch.commit_boxes->Fill(epoch.on_gpu, gpu_memory_.copies.get());
  }

  absl::Status CopyToLive(const ReceiverEpoch& epoch) {
    switch (options_.shadow) {
      case Shadow::kOff:
        return absl::OkStatus();
      case Shadow::kDevice:
        HR_RETURN_IF_ERROR(gpu_unpacking_.commits->Run(epoch.commit_on_gpu));
        return epoch.commit_boxes->Fill(epoch.on_gpu, gpu_memory_.copies.get());
      case Shadow::kHost:
        break;
    }
    epoch.commit_boxes->CopyAndFill(epoch.shadow, epoch.live);
    if (epoch.on_gpu.empty()) return absl::OkStatus();
    return epoch.commit_boxes->CopyAndFill(epoch.shadow, epoch.on_gpu, gpu_memory_.copies.get());
  }

  bool IsReady(const ReceiverEpoch& epoch) const {
    std::lock_guard<std::mutex> lock(mutex());
    return session().phase() == MemberSession::Phase::kReady && session().epoch() == epoch.number;
  }

  // Connects to the publishers that have bytes for us. Once for each epoch.
  absl::Status Connect(ReceiverEpoch& epoch, const std::map<int, std::vector<std::string>>& region_keys) {
    if (epoch.executor != nullptr) return absl::OkStatus();
    HR_ASSIGN_OR_RETURN(std::vector<ConnectedEdge> connected,
                        incoming_.Connect(epoch.plan, epoch.start, self(), region_keys, options_.chunk_bytes,
                                          absl::Now() + options_.job.connect_timeout));
    std::vector<IncomingEdge> edges;
    epoch.publisher_of_edge.clear();
    epoch.means_of_edge.clear();
    for (ConnectedEdge& edge : connected) {
      epoch.publisher_of_edge.push_back(edge.publisher);
      epoch.means_of_edge.push_back(std::move(edge.means));
      edges.push_back(std::move(edge.edge));
    }
    ExecutorOptions executor{options_.chunk_bytes, options_.staging_bytes, epoch.number};
    HR_ASSIGN_OR_RETURN(epoch.executor,
                        Executor::Create(epoch.plan.manifest(), epoch.plan.plan(), transport_.get(), std::move(edges),
                                         IncarnationStamp(session().incarnation()), executor,
                                         gpu_unpacking_.work == nullptr ? OnCpu() : gpu_unpacking_.work.get()));
    return absl::OkStatus();
  }

  // Until the generation is the next one to be read, which the change of an epoch may put off, and begins it. One step,
  // so that a decision to give it up comes before it or during it, never between.
  absl::Status BeginStage(uint64_t generation, bool touches_live, absl::Time deadline) {
    absl::Status begun;
    HR_RETURN_IF_ERROR(Wait(deadline, absl::StrCat("the epoch that announces generation ", generation, " again"), [&] {
      const bool announced = !announced_.empty() && announced_.front().generation == generation;
      // What was given up may have been announced again.
      if (auto it = discarded_.find(generation); it != discarded_.end() && !announced) {
        begun = it->second;
        if (given_up_ == generation) {
          given_up_ = 0;
          discarded_.erase(it);
        }
        return true;
      }
      const bool between = receiver().between_epochs() && session().suspended().ok();
      if (announced_.empty() && between) return false;
      if (!announced) {
        begun = NotOffered(generation);
        return true;
      }
      if (between) return false;
      begun = receiver().Begin(generation, touches_live);
      if (!begun.ok()) return true;
      staging_ = announced_.front();
      announced_.pop_front();
      discarded_.erase(discarded_.begin(), discarded_.upper_bound(generation));
      if (given_up_ <= generation) given_up_ = 0;
      commit_.reset();
      start_refused_ = absl::OkStatus();
      return true;
    }));
    return begun;
  }

  // Under the lock. Why a generation that is not announced cannot be staged.
  absl::Status NotOffered(uint64_t generation) const {
    if (generation != expected_) {
      return Error(ErrorCode::kInvalidOption, absl::StrCat("generation ", generation, " is not the next one"));
    }
    if (!session().suspended().ok()) return session().suspended();
    return Error(ErrorCode::kAborted, absl::StrCat("generation ", generation, " was announced, but after a change of ",
                                                   "the membership not all publishers have it"));
  }

  absl::Status NextAttempt(uint64_t generation, absl::Time deadline, Attempt* attempt) {
    absl::Status given_up;
    HR_RETURN_IF_ERROR(Wait(deadline, "the next epoch", [&] {
      if (auto it = discarded_.find(generation); it != discarded_.end()) {
        given_up = it->second;
        return true;
      }
      if (session().phase() != MemberSession::Phase::kReady || !staging_) return false;
      *attempt = {ready_, region_keys_, *staging_};
      start_refused_ = absl::OkStatus();
      executing_.reset();
      return true;
    }));
    return given_up;
  }

  absl::Status Transfer(uint64_t generation, absl::Time deadline, const Attempt& attempt, TransferStats* stats) {
    ReceiverEpoch& epoch = *attempt.epoch;
    HR_RETURN_IF_ERROR(Connect(epoch, attempt.region_keys));
    {
      std::lock_guard<std::mutex> lock(mutex());
      executing_ = attempt.epoch;
    }
    Executor::Request request;
    request.generation = generation;
    for (int publisher : epoch.publisher_of_edge) request.slot_of_edge.push_back(attempt.announced.slots.at(publisher));
    request.destination = epoch.shadow;
    if (options_.shadow == Shadow::kOff) request.destination = gpu_unpacking_.work ? epoch.on_gpu : epoch.live;
    for (const MemberKey& absent : attempt.announced.absent) {
      request.absent.insert(epoch.plan.DestinationRank(absent));
    }
    request.deadline = deadline;
    request.interrupted = [&] { return Interruption(generation, epoch); };
    request.start = [&](size_t edge) {
      const absl::Status started = Step([&](int64_t, MemberActions* actions) {
        return receiver().RequestStart(epoch.publisher_of_edge[edge], epoch.means_of_edge[edge], actions);
      });
      // A generation that was given up meanwhile cannot be ordered: its own reason says more.
      if (absl::Status interrupted = Interruption(generation, epoch); !interrupted.ok()) return interrupted;
      return started;
    };
    return epoch.executor->Run(request, stats);
  }

  // Whether Stage writes buffers that a standby offers: live ones, or those that have no second copy in a shadow.
  bool StageWritesMemory() const {
    return options_.shadow == Shadow::kOff ||
           std::any_of(memory_.begin(), memory_.end(), [](const auto& buffer) { return !buffer.second.live; });
  }

  // Peers may wait for what this worker would pass on.
  void DeclineTransfer(uint64_t generation) {
    if (transport_->capabilities().map) return;
    Attempt attempt;
    {
      std::lock_guard<std::mutex> lock(mutex());
      if (session().phase() != MemberSession::Phase::kReady) return;
      attempt = {ready_, region_keys_, {}};
    }
    if (!Connect(*attempt.epoch, attempt.region_keys).ok()) return;
    Executor::Request request;
    request.generation = generation;
    attempt.epoch->executor->Decline(request);
  }

  // Whether the try that failed with `status` in `epoch` is to be followed by another one. A peer that is lost is seen
  // here before the coordinator has told: it may take a heartbeat's timeout to notice, and another one for engines that
  // commit; a third one has its answer always come first.
  bool AwaitNextEpoch(uint64_t generation, const ReceiverEpoch& epoch, const absl::Status& status,
                      absl::Time deadline) {
    const absl::Duration patience = 3 * absl::Nanoseconds(options_.job.timeouts.heartbeat_timeout_ns);
    const absl::Time until =
        HasCode(status, ErrorCode::kPeerLost) ? std::min(deadline, absl::Now() + patience) : absl::Now();
    bool next = false;
    (void)Wait(until, "the loss of a peer to be told", [&] {
      next = session().epoch() != epoch.number && !discarded_.contains(generation);
      return next || discarded_.contains(generation);
    });
    return next;
  }

  // Under the lock: whether an epoch after `attempted` was told that this worker reads.
  bool IsToReadIn(const ReceiverEpoch& attempted) const {
    const bool told =
        session().phase() == MemberSession::Phase::kPlanned || session().phase() == MemberSession::Phase::kReady;
    return told && session().epoch() != attempted.number;
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

  absl::Status Interruption(uint64_t generation, const ReceiverEpoch& epoch) {
    std::lock_guard<std::mutex> lock(mutex());
    if (!session().status().ok()) return session().status();
    if (auto it = discarded_.find(generation); it != discarded_.end()) return it->second;
    // While the coordinator is lost the bytes go on; the next epoch counts them, or does not.
    if (session().epoch() != epoch.number) return Error(ErrorCode::kStaleEpoch, "the membership changed");
    return start_refused_;
  }

  const ReceiverOptions options_;
  const std::map<std::string, BufferMemory> memory_;
  const GpuMemory gpu_memory_;
  const GpuUnpacking gpu_unpacking_;
  const std::unique_ptr<Transport> transport_;
  std::optional<uint64_t> applied_;  // and not committed
  // Of the thread that plans.
  std::unique_ptr<ShadowMemory> shadow_;
  std::unique_ptr<PinnedMemory> pinned_;         // the shadow; may be none
  std::map<std::string, std::byte*> shadow_of_;  // by buffer
  Incoming incoming_;                            // of the thread that stages
  std::unique_ptr<Standby> standby_;             // of the same thread; may be none

  // Under the lock.
  std::shared_ptr<ReceiverEpoch> planned_;    // the newest epoch that was planned
  std::shared_ptr<ReceiverEpoch> ready_;      // the newest one that was ready
  std::shared_ptr<ReceiverEpoch> executing_;  // whose executor ran last
  std::map<int, std::vector<std::string>> region_keys_;
  std::deque<AnnouncedEffect> announced_;
  uint64_t expected_ = 0;                   // what NextGeneration returned last
  std::optional<AnnouncedEffect> staging_;  // of the generation that is staged, in the epoch
  absl::Status wait_ended_;
  absl::Status start_refused_;
  std::optional<uint64_t> commit_;              // decided, not applied
  uint64_t given_up_ = 0;                       // the newest of which replicas differ, until Stage has told it; 0: none
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

// What cannot be with buffers on a GPU, or a shadow there.
absl::Status CheckGpuMemory(const ReceiverOptions& options, const std::vector<Buffer>& buffers,
                            const GpuMemory& gpu_memory, const Transport& transport, bool standby) {
  const std::string worker = absl::StrCat("engine ", options.engine, " worker ", options.worker);
  const auto refuse = [&](const Buffer& b, const std::string& why) {
    return About(
        Error(ErrorCode::kInvalidOption,
              absl::StrCat(worker, ", buffer \"", b.name, "\" is in ",
                           gpu_memory.has(b.name) ? absl::StrCat("the memory of GPU ", *options.gpu) : "host memory",
                           why)),
        {.buffer = b.name, .rank = options.worker});
  };
  if (options.shadow == Shadow::kDevice && !options.gpu.has_value()) {
    return Error(ErrorCode::kInvalidOption, absl::StrCat(worker, ": a shadow on a GPU, and no GPU was named: name it"));
  }
  const bool streams =
      options.shadow == Shadow::kDevice || (options.shadow == Shadow::kOff && !gpu_memory.buffers.empty());
  for (const Buffer& b : buffers) {
    const bool on_gpu = gpu_memory.has(b.name);
    if (SpanElements(b) == 0) continue;
    if (on_gpu && standby)
      return refuse(b, ", which other engines cannot read: it can be no standby. Join without one");
    if (!streams) continue;
    if (!on_gpu)
      return refuse(b, ": bytes are streamed into a GPU for all buffers or for none. Take a shadow in host memory");
    if (transport.capabilities().map) {
      return refuse(b, absl::StrCat(", into which the transport ", transport.name(), " streams nothing: take a shadow ",
                                    "in host memory, or a transport of messages"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<GpuUnpacking> MakeGpuUnpacking(const ReceiverOptions& options, const GpuMemory& gpu_memory,
                                              const Transport& transport) {
  GpuUnpacking unpacking;
  if (options.shadow == Shadow::kHost) return unpacking;
  if (options.shadow == Shadow::kOff && gpu_memory.buffers.empty()) return unpacking;
  HR_ASSIGN_OR_RETURN(unpacking.work,
                      GpuBoxWork::Create(*options.gpu, transport, options.chunk_bytes, options.staging_bytes));
  if (options.shadow == Shadow::kDevice) {
    HR_ASSIGN_OR_RETURN(unpacking.commits, GpuCopies::Create(*options.gpu));
  }
  return unpacking;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Receiver>> Receiver::Join(const ReceiverOptions& options, const Manifest& part,
                                                         std::map<std::string, BufferMemory> memory,
                                                         std::unique_ptr<Transport> transport,
                                                         std::unique_ptr<Transport> standby) {
  HR_RETURN_IF_ERROR(CheckDeclared(options, part, memory));
  std::map<std::string, const std::byte*> first;
  for (const auto& [name, buffer] : memory) first[name] = buffer.data;
  HR_ASSIGN_OR_RETURN(GpuMemory gpu_memory, FindGpuMemory(options.gpu, part.destination, first));
  HR_RETURN_IF_ERROR(CheckGpuMemory(options, part.destination, gpu_memory, *transport, standby != nullptr));
  HR_ASSIGN_OR_RETURN(GpuUnpacking gpu_unpacking, MakeGpuUnpacking(options, gpu_memory, *transport));
  proto::Layout layout;
  layout.set_manifest_fragment(EncodeFragment(part));
  layout.set_transport(std::string(transport->name()));
  layout.set_transport_address(transport->address());
  layout.set_slots(kSnapshotSlots);
  layout.set_chunk_bytes(options.chunk_bytes);
  HR_ASSIGN_OR_RETURN(auto client, Member::Connect(options.job, absl::Now() + options.job.connect_timeout));
  auto session = std::make_unique<ReceiverSession>(
      Member::SessionOptions(options.job, MemberKey::Receiver(options.engine, options.worker), std::move(layout),
                             options.workers),
      options.carried);
  auto receiver =
      std::make_unique<ReceiverImpl>(options, std::move(memory), std::move(gpu_memory), std::move(gpu_unpacking),
                                     std::move(transport), std::move(session), std::move(client));
  HR_RETURN_IF_ERROR(receiver->Start());
  if (standby != nullptr) HR_RETURN_IF_ERROR(receiver->StandBy(part, std::move(standby)));
  return receiver;
}

}  // namespace headrace
