#include "loader/receiver.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "loader/epoch_plan.h"
#include "loader/executor.h"
#include "loader/incoming.h"
#include "loader/live_memory.h"
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
  LiveBuffers buffers;

  // Under the transport's lock.
  std::vector<int> publisher_of_edge;
  std::vector<ReceiverMeans> means_of_edge;
  std::unique_ptr<Executor> executor;  // none before the first generation of the epoch, and after it is over
};

class ReceiverImpl final : public Receiver, private Member {
 public:
  ReceiverImpl(const ReceiverOptions& options, std::unique_ptr<LiveMemory> live, std::unique_ptr<Transport> transport,
               std::unique_ptr<MemberSession> session, std::unique_ptr<ControlClient> client)
      : Member(
            options.job, std::move(session), std::move(client), [this](const MemberEffect& e) { Record(e); },
            [this](const PlanEffect& e) { Plan(e); }),
        options_(options),
        live_(std::move(live)),
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
                                                live_->first_bytes(), std::move(transport)));
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
    const absl::Status connected = [&] {
      std::lock_guard<std::mutex> transport_lock(transport_mutex_);
      return Connect(*epoch, region_keys);
    }();
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
    absl::Status verdict = live_->CheckUnmoved(memory);
    if (verdict.ok() && in_place) verdict = live_->AwaitSteps(stream, deadline);
    HR_RETURN_IF_ERROR(BeginStage(generation, /*touches_live=*/in_place && verdict.ok(), deadline));
    if (standby_ != nullptr && verdict.ok() && live_->StageWrites()) standby_->TakeBack();
    if (!verdict.ok()) DeclineTransfer(generation);
    TransferStats transfer;
    absl::Time voted;
    for (bool over = false; !over;) {
      Attempt attempt;
      if (verdict.ok()) verdict = NextAttempt(generation, deadline, &attempt);
      if (verdict.ok()) {
        transfer = {};
        verdict = Transfer(generation, deadline, attempt, &transfer);
        if (verdict.ok() && in_place) verdict = live_->FillLive(attempt.epoch->buffers);
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
    HR_RETURN_IF_ERROR(live_->AwaitSteps(stream, absl::Now() + options_.transfer_timeout));
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
    if (const absl::Status copied = live_->CopyToLive(epoch->buffers); !copied.ok()) {
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
    if (executing_ != nullptr) stats.streamed_bytes = StreamedBytes();
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
    if (const auto* plan = std::get_if<PlanEffect>(&effect)) {
      announced_.clear();
      staging_.reset();
      std::set<std::string> addresses;
      for (const auto& member : plan->start.members()) addresses.insert(member.layout().transport_address());
      Defer([this, addresses] { LetGoOfOthers(addresses); });
    } else if (const auto* ready = std::get_if<EpochReadyEffect>(&effect)) {
      ready_ = planned_;
      region_keys_ = ready->region_keys;
    } else if (std::holds_alternative<SuspendedEffect>(effect)) {
      announced_.clear();
      staging_.reset();
      Defer([this] { LetGoOfOthers({}); });
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
    HR_ASSIGN_OR_RETURN(epoch->buffers, live_->Prepare(epoch->plan.manifest(), epoch->plan.plan(),
                                                       epoch->plan.DestinationRank(self())));
    std::lock_guard<std::mutex> lock(mutex());
    stats_.plan_seconds = absl::ToDoubleSeconds(absl::Now() - begin);
    stats_.shadow_bytes = live_->shadow_bytes();
    stats_.pinned_bytes = live_->pinned_bytes();
    stats_.needed_bytes = 0;
    for (const Edge& edge : epoch->plan.EdgesOf(self())) {
      for (size_t i = 0; i < edge.count; ++i) stats_.needed_bytes += epoch->plan.plan().copies[edge.first + i].bytes();
    }
    return epoch;
  }

  bool IsReady(const ReceiverEpoch& epoch) const {
    std::lock_guard<std::mutex> lock(mutex());
    return session().phase() == MemberSession::Phase::kReady && session().epoch() == epoch.number;
  }

  // What is mapped keeps its owner's memory, and one that died may come again to a GPU which has no more. In the thread
  // that plans: a host stages again only when there is a generation.
  void LetGoOfOthers(const std::set<std::string>& addresses) {
    if (!transport_->capabilities().map) return;
    // A transfer of the epoch that is over ends at its next step.
    std::lock_guard<std::mutex> transport_lock(transport_mutex_);
    std::shared_ptr<ReceiverEpoch> executed, ready, planned;
    {
      std::lock_guard<std::mutex> lock(mutex());
      if (executing_ != nullptr) stats_.streamed_bytes = StreamedBytes();
      executed = std::move(executing_);
      ready = ready_;
      planned = planned_;
    }
    for (const auto& epoch : {executed, ready, planned}) {
      if (epoch != nullptr) epoch->executor.reset();
    }
    incoming_.Keep(addresses);
  }

  // Of the executor that ran last. Under the lock.
  int64_t StreamedBytes() const { return std::min(executing_->executor->streamed_bytes(), stats_.needed_bytes); }

  // Connects to the publishers that have bytes for us. Once for each epoch. Under the transport's lock.
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
    HR_ASSIGN_OR_RETURN(epoch.executor, Executor::Create(epoch.plan.manifest(), epoch.plan.plan(), transport_.get(),
                                                         std::move(edges), IncarnationStamp(session().incarnation()),
                                                         executor, &cancelled_, live_->work()));
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
      stats_.streamed_bytes = 0;
      return true;
    }));
    return given_up;
  }

  absl::Status Transfer(uint64_t generation, absl::Time deadline, const Attempt& attempt, TransferStats* stats) {
    ReceiverEpoch& epoch = *attempt.epoch;
    std::lock_guard<std::mutex> transport_lock(transport_mutex_);
    HR_RETURN_IF_ERROR(Connect(epoch, attempt.region_keys));
    {
      std::lock_guard<std::mutex> lock(mutex());
      executing_ = attempt.epoch;
    }
    Executor::Request request;
    request.generation = generation;
    for (int publisher : epoch.publisher_of_edge) request.slot_of_edge.push_back(attempt.announced.slots.at(publisher));
    request.destination = live_->Destination(epoch.buffers);
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

  // Peers may wait for what this worker would pass on.
  void DeclineTransfer(uint64_t generation) {
    if (transport_->capabilities().map) return;
    Attempt attempt;
    {
      std::lock_guard<std::mutex> lock(mutex());
      if (session().phase() != MemberSession::Phase::kReady) return;
      attempt = {ready_, region_keys_, {}};
    }
    std::lock_guard<std::mutex> transport_lock(transport_mutex_);
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

  absl::Status Interruption(uint64_t generation, const ReceiverEpoch& epoch) {
    std::lock_guard<std::mutex> lock(mutex());
    if (!session().status().ok()) return session().status();
    if (auto it = discarded_.find(generation); it != discarded_.end()) return it->second;
    // While the coordinator is lost the bytes go on; the next epoch counts them, or does not.
    if (session().epoch() != epoch.number) return Error(ErrorCode::kStaleEpoch, "the membership changed");
    return start_refused_;
  }

  const ReceiverOptions options_;
  const std::unique_ptr<LiveMemory> live_;
  std::mutex transport_mutex_;  // of the transport: between the thread that stages and the one that plans
  CancelledChunks cancelled_;
  const std::unique_ptr<Transport> transport_;
  std::optional<uint64_t> applied_;  // and not committed
  Incoming incoming_;
  std::unique_ptr<Standby> standby_;  // of the same thread; may be none

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

}  // namespace

absl::StatusOr<std::unique_ptr<Receiver>> Receiver::Join(const ReceiverOptions& options, const Manifest& part,
                                                         std::map<std::string, BufferMemory> memory,
                                                         std::unique_ptr<Transport> transport,
                                                         std::unique_ptr<Transport> standby) {
  HR_ASSIGN_OR_RETURN(auto live, LiveMemory::Create(options, part, std::move(memory), *transport, standby != nullptr));
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
  auto receiver = std::make_unique<ReceiverImpl>(options, std::move(live), std::move(transport), std::move(session),
                                                 std::move(client));
  HR_RETURN_IF_ERROR(receiver->Start());
  if (standby != nullptr) HR_RETURN_IF_ERROR(receiver->StandBy(part, std::move(standby)));
  return receiver;
}

}  // namespace headrace
