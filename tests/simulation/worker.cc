#include "tests/simulation/worker.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "planner/status.h"
#include "tests/simulation/checks.h"
#include "tests/simulation/driver.h"

namespace headrace::simulation {
namespace {

constexpr int64_t kExpect = 5 * kSecond;
constexpr int64_t kStepAtLeastEvery = 10 * kMillisecond;

proto::Layout LayoutOf(const WorkerSeat& seat, const Transport& transport) {
  proto::Layout layout;
  layout.set_manifest_fragment(EncodeFragment(seat.part));
  layout.set_transport(std::string(transport.name()));
  layout.set_transport_address(transport.address());
  layout.set_slots(kSnapshotSlots);
  layout.set_chunk_bytes(seat.job.options.chunk_bytes);
  return layout;
}

int WorkersOf(const WorkerSeat& seat) { return static_cast<int>(seat.job.layout.engines[seat.key.engine].size()); }

bool InPlace(const WorkerSeat& seat) {
  const std::vector<bool>& in_place = seat.job.options.in_place;
  return static_cast<size_t>(seat.key.engine) < in_place.size() && in_place[seat.key.engine];
}

}  // namespace

Worker::Worker(WorkerSeat* seat, std::unique_ptr<Transport> transport)
    : MemberProcess(&seat->job, seat,
                    std::make_unique<ReceiverSession>(
                        SessionOptions(seat->job, *seat, LayoutOf(*seat, *transport), WorkersOf(*seat)), seat->carry)),
      in_place_(InPlace(*seat)),
      transport_(std::move(transport)) {}

Worker::~Worker() { Kill(); }

Driver& Worker::driver() { return *job_.engines[self().engine].driver; }

bool Worker::deaf() const {
  return job_.options.bug == PlantedBug::kDeaf && self().engine == 0 && self().rank == 0 && ready_ != nullptr;
}

Task Worker::Run() {
  co_await Wait("joining", [this] { return ready_ != nullptr || over(); });
  while (!over()) {
    if (leaving_) {
      const absl::Status left =
          Step([&](int64_t now, MemberActions* actions) { return session().Leave(now, actions); });
      if (left.ok()) {
        job_.Reap(&seat_);
        co_return left;
      }
      co_await Sleep(kSecond);
      continue;
    }
    absl::Status taken = co_await TakeOne();
    driver().Resume(self().rank);
    if (!taken.ok()) co_await Sleep(10 * kMillisecond);
  }
  co_return session().status();
}

Task Worker::TakeOne() {
  wait_ended_ = absl::OkStatus();
  absl::Status asked = Step(
      [&](int64_t now, MemberActions* actions) { return receiver().ExpectGeneration(now + kExpect, now, actions); });
  if (!asked.ok()) co_return asked;
  co_await Wait("a generation",
                [this] { return over() || leaving_ || !announced_.empty() || !wait_ended_.ok() || !given_up_.ok(); });
  if (over()) co_return session().status();
  if (!given_up_.ok()) co_return std::exchange(given_up_, absl::OkStatus());
  if (announced_.empty()) co_return wait_ended_;
  const uint64_t generation = announced_.front().generation;
  if (in_place_) {
    absl::Status paused = co_await Pause();
    (void)paused;
  }
  absl::Status staged = co_await Stage(generation);
  if (!staged.ok()) co_return staged;
  // Host work between the decision and the pause.
  co_await Sleep(world().Draw(10 * kMicrosecond, 30 * kMillisecond));
  absl::Status paused = co_await Pause();
  (void)paused;
  absl::Status committed = co_await Commit(generation);
  if (committed.ok()) {
    worker_seat().committed = {session().incarnation(), generation};
    CheckCommitted(job_, worker_seat(), worker_seat().committed);
  }
  co_return committed;
}

Task Worker::Pause() {
  driver().Pause(self().rank);
  if (job_.options.bug == PlantedBug::kServeWhileApplying) co_return absl::OkStatus();
  co_await Wait("the end of the request that runs", [this] { return !driver().busy(); });
  co_return absl::OkStatus();
}

Task Worker::Stage(uint64_t generation) {
  const absl::Status moved =
      worker_seat().moved ? Error(ErrorCode::kDestinationMoved, "the host moved its buffers") : absl::OkStatus();
  const int64_t deadline = world().now() + job_.options.transfer_timeout_ns;
  absl::Status begun = co_await BeginStage(generation, in_place_ && moved.ok(), deadline);
  if (!begun.ok()) co_return begun;
  absl::Status verdict = moved;
  if (!moved.ok()) DeclineTransfer(generation);
  Attempt attempt;
  while (verdict.ok()) {
    verdict = co_await NextAttempt(generation, deadline, &attempt);
    if (!verdict.ok()) break;
    verdict = co_await Transfer(generation, deadline, &attempt);
    if (verdict.ok() && in_place_) attempt.epoch->commit_boxes->Fill(attempt.epoch->live);
    if (verdict.ok() && !IsToReadIn(*attempt.epoch)) break;
    if (verdict.ok()) {
      ++job_.counters.attempts_anew;
      continue;
    }
    const bool lost = HasCode(verdict, ErrorCode::kPeerLost);
    bool next = false;
    co_await Wait(
        "the loss of a peer to be told",
        [&] {
          next = session().epoch() != attempt.epoch->number && !discarded_.contains(generation);
          return over() || next || discarded_.contains(generation);
        },
        lost ? std::min(deadline, world().now() + 3 * job_.options.timeouts.heartbeat_timeout_ns) : world().now());
    if (!next || over()) break;
    ++job_.counters.attempts_anew;
    verdict = absl::OkStatus();
  }
  CountVerdict(verdict, &job_.counters);
  if (job_.options.bug == PlantedBug::kIgnoreSums && HasCode(verdict, ErrorCode::kVerificationFailed))
    verdict = absl::OkStatus();
  absl::Status answered = Step([&](int64_t now, MemberActions* actions) {
    return discarded_.contains(generation) ? receiver().Stopped(generation, now, actions)
                                           : receiver().Vote(generation, verdict, now, actions);
  });
  if (!answered.ok()) co_return answered;
  co_await Wait("the decision", [&] { return over() || commit_ == generation || discarded_.contains(generation); });
  if (over()) co_return session().status();
  if (!discarded_.contains(generation)) co_return absl::OkStatus();
  co_return verdict.ok() || HasCode(verdict, ErrorCode::kStaleEpoch) ? discarded_.at(generation) : verdict;
}

Task Worker::BeginStage(uint64_t generation, bool touches_live, int64_t deadline) {
  absl::Status begun;
  const bool asked = co_await Wait(
      "the epoch that announces the generation again",
      [&] {
        if (over()) return true;
        const bool announced = !announced_.empty() && announced_.front().generation == generation;
        if (auto it = discarded_.find(generation); it != discarded_.end() && !announced) {
          begun = it->second;
          return true;
        }
        const bool between = receiver().between_epochs() && session().suspended().ok();
        if (announced_.empty() && between) return false;
        if (!announced) {
          begun = Error(ErrorCode::kInvalidOption, absl::StrCat("generation ", generation, " is not the next one"));
          return true;
        }
        if (between) return false;
        begun = receiver().Begin(generation, touches_live);
        if (!begun.ok()) return true;
        staging_ = announced_.front();
        announced_.pop_front();
        discarded_.erase(discarded_.begin(), discarded_.upper_bound(generation));
        commit_.reset();
        start_refused_ = absl::OkStatus();
        return true;
      },
      deadline);
  if (over()) co_return session().status();
  if (!asked) co_return Error(ErrorCode::kDeadline, "no epoch announced the generation again in time");
  co_return begun;
}

Task Worker::NextAttempt(uint64_t generation, int64_t deadline, Attempt* attempt) {
  absl::Status given_up;
  const bool found = co_await Wait(
      "the next epoch",
      [&] {
        if (over()) return true;
        if (auto it = discarded_.find(generation); it != discarded_.end()) {
          given_up = it->second;
          return true;
        }
        if (session().phase() != MemberSession::Phase::kReady || !staging_) return false;
        *attempt = {ready_, region_keys_, *staging_};
        start_refused_ = absl::OkStatus();
        return true;
      },
      deadline);
  if (over()) co_return session().status();
  if (!found) co_return Error(ErrorCode::kDeadline, "the next epoch did not come in time");
  co_return given_up;
}

Task Worker::Transfer(uint64_t generation, int64_t deadline, Attempt* attempt) {
  const std::shared_ptr<Epoch> epoch = attempt->epoch;
  absl::Status connected = Connect(*epoch, attempt->region_keys);
  if (!connected.ok()) co_return connected;
  Executor::Request request;
  request.generation = generation;
  for (int publisher : epoch->publisher_of_edge) request.slot_of_edge.push_back(attempt->announced.slots.at(publisher));
  request.destination = in_place_ ? epoch->live : epoch->shadow;
  for (const MemberKey& absent : attempt->announced.absent) request.absent.insert(epoch->plan->DestinationRank(absent));
  request.deadline = absl::InfiniteFuture();  // the executor's clock is the real one: `interrupted` has ours
  // Not a share of the epoch, which owns the executor, which keeps the request.
  request.interrupted = [this, generation, deadline, epoch = epoch.get()] {
    return Interruption(generation, deadline, *epoch);
  };
  request.start = [this, generation, deadline, epoch = epoch.get()](size_t edge) {
    const absl::Status started = Step([&](int64_t, MemberActions* actions) {
      return receiver().RequestStart(epoch->publisher_of_edge[edge], {}, actions);
    });
    if (absl::Status interrupted = Interruption(generation, deadline, *epoch); !interrupted.ok()) return interrupted;
    return started;
  };
  epoch->executor->Begin(std::move(request));
  int64_t pause = job_.options.step_ns;
  int64_t streamed = 0;
  while (true) {
    std::optional<absl::Status> over = epoch->executor->Step(absl::ZeroDuration());
    peak_staging_bytes_ = std::max(peak_staging_bytes_, epoch->executor->stats().peak_staging_bytes);
    CheckBounds();
    if (over.has_value()) co_return *over;
    const bool moved = streamed != epoch->executor->streamed_bytes();
    streamed = epoch->executor->streamed_bytes();
    pause = moved ? job_.options.step_ns : std::min(pause + pause / 4, kStepAtLeastEvery);
    co_await Sleep(world().Draw(pause / 2, pause));
  }
}

Task Worker::Commit(uint64_t generation) {
  if (over()) co_return session().status();
  if (commit_ != generation) co_return Error(ErrorCode::kInvalidOption, "not staged");
  if (auto it = discarded_.find(generation); it != discarded_.end()) co_return it->second;
  const std::shared_ptr<Epoch> epoch = ready_;
  absl::Status begun = Step([&](int64_t, MemberActions*) { return receiver().BeginCommit(generation); });
  if (!begun.ok()) co_return begun;
  const bool stale = job_.options.bug == PlantedBug::kCommitStaleBytes && generation > 1;
  if (!in_place_ && !stale) epoch->commit_boxes->CopyAndFill(epoch->shadow, epoch->live);
  if (job_.options.bug == PlantedBug::kWriteGaps)
    worker_seat().live->First(worker_seat().part.destination.front())[-1] = std::byte{0};
  commit_.reset();
  co_await Sleep(world().Draw(10 * kMicrosecond, 50 * kMillisecond));  // what the host derives from the weights
  absl::Status committed = Step([&](int64_t now, MemberActions* actions) -> absl::Status {
    if (auto it = discarded_.find(generation); it != discarded_.end()) return it->second;
    return receiver().Committed(generation, now, actions);
  });
  if (!committed.ok()) co_return committed;
  co_await Wait("the engine's commit",
                [&] { return over() || engine_committed_ >= generation || discarded_.contains(generation); });
  if (engine_committed_ >= generation) co_return absl::OkStatus();
  co_return over() ? session().status() : discarded_.at(generation);
}

void Worker::Record(const MemberEffect& effect) {
  if (std::holds_alternative<PlanEffect>(effect) || std::holds_alternative<SuspendedEffect>(effect)) {
    announced_.clear();
    staging_.reset();
  } else if (const auto* ready = std::get_if<EpochReadyEffect>(&effect)) {
    ready_ = planned_;
    region_keys_ = ready->region_keys;
  } else if (const auto* announced = std::get_if<AnnouncedEffect>(&effect)) {
    if (receiver().state() == ReceiverSession::State::kStreaming && announced->generation == receiver().running()) {
      staging_ = *announced;
    } else {
      announced_.push_back(*announced);
    }
  } else if (const auto* given_up = std::get_if<GivenUpEffect>(&effect)) {
    given_up_ = given_up->status;
    ++job_.counters.given_up;
  } else if (const auto* ended = std::get_if<WaitEndedEffect>(&effect)) {
    wait_ended_ = ended->status;
  } else if (const auto* refused = std::get_if<StartRefusedEffect>(&effect)) {
    start_refused_ = refused->status;
  } else if (const auto* commit = std::get_if<CommitEffect>(&effect)) {
    commit_ = commit->generation;
  } else if (const auto* discard = std::get_if<DiscardEffect>(&effect)) {
    std::erase_if(announced_, [&](const AnnouncedEffect& a) { return a.generation == discard->generation; });
    discarded_[discard->generation] = discard->status;
  } else if (const auto* committed = std::get_if<EngineCommittedEffect>(&effect)) {
    if (committed->engine == self().engine) engine_committed_ = committed->generation;
    if (committed->engine == self().engine && self().rank == 0) ++job_.counters.commits;
  } else if (const auto* fail = std::get_if<FailEffect>(&effect)) {
    if (HasCode(fail->status, ErrorCode::kPoisoned)) ++job_.counters.poisoned;
  }
}

Task Worker::Plan(PlanEffect effect) {
  absl::StatusOr<std::shared_ptr<Epoch>> made = MakeEpoch(effect);
  absl::StatusOr<std::vector<proto::Edge>> edges = std::vector<proto::Edge>();
  if (!made.ok()) edges = made.status();
  if (made.ok()) edges = (*made)->plan->DigestsOf(self());
  co_return Step([&](int64_t now, MemberActions* actions) {
    absl::Status planned = session().Planned(effect.epoch, edges, now, actions);
    if (planned.ok() && made.ok()) planned_ = *made;
    return planned;
  });
}

absl::StatusOr<std::shared_ptr<Worker::Epoch>> Worker::MakeEpoch(const PlanEffect& effect) {
  auto epoch = std::make_shared<Epoch>();
  HR_ASSIGN_OR_RETURN(epoch->plan, job_.PlanOf(effect.start));
  epoch->number = effect.epoch;
  epoch->start = effect.start;
  const Manifest& manifest = epoch->plan->manifest();
  const int64_t rank = epoch->plan->DestinationRank(self());
  for (size_t i = 0; i < manifest.destination.size(); ++i) {
    const Buffer& b = manifest.destination[i];
    if (b.rank == rank && !b.alias_of) epoch->live[static_cast<int>(i)] = worker_seat().live->First(b);
  }
  epoch->commit_boxes.emplace(manifest, epoch->plan->plan(), rank);
  if (in_place_) return epoch;
  if (shadow_ == nullptr) {
    HR_ASSIGN_OR_RETURN(shadow_, ShadowMemory::Allocate(manifest, rank, {}));
    for (const auto& [index, data] : shadow_->buffers()) shadow_of_[manifest.destination[index].name] = data;
  }
  for (const auto& [index, _] : epoch->live) epoch->shadow[index] = shadow_of_.at(manifest.destination[index].name);
  return epoch;
}

absl::Status Worker::Connect(Epoch& epoch, const std::map<int, std::vector<std::string>>& region_keys) {
  if (epoch.executor != nullptr) return absl::OkStatus();
  std::vector<IncomingEdge> edges;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<const Mapping>> mappings;
  epoch.publisher_of_edge.clear();
  for (const Edge& edge : epoch.plan->EdgesOf(self())) {
    const MemberKey publisher = MemberKey::Publisher(epoch.plan->PublisherOf(edge.source_rank));
    const auto member = std::find_if(epoch.start.members().begin(), epoch.start.members().end(),
                                     [&](const auto& m) { return MemberKey::From(m.id()) == publisher; });
    IncomingEdge incoming;
    incoming.edge = edge;
    incoming.name = NameOf(publisher);
    incoming.address = member->layout().transport_address();
    if (edge.stream >= 0) incoming.chain = ChainOf(epoch, epoch.plan->plan().streams[edge.stream]);
    incoming.layout = std::make_shared<SlotLayout>(epoch.plan->manifest(), edge.source_rank);
    incoming.sums_layout = std::make_shared<SumsLayout>(epoch.plan->plan(), edge.source_rank);
    if (transport_->capabilities().map) {
      HR_ASSIGN_OR_RETURN(PeerId peer, transport_->Connect(incoming.address, absl::InfiniteFuture()));
      const std::vector<std::string>& keys = region_keys.at(publisher.rank);
      for (size_t i = 0; i < keys.size(); ++i) {
        std::shared_ptr<const Mapping>& mapping = mappings[{incoming.address, keys[i]}];
        if (const auto old = mappings_.find({incoming.address, keys[i]}); old != mappings_.end()) mapping = old->second;
        if (mapping == nullptr) {
          HR_ASSIGN_OR_RETURN(mapping, transport_->Map(peer, keys[i], absl::InfiniteFuture()));
        }
        if (i + 1 == keys.size())
          incoming.sums = mapping;
        else
          incoming.slots.push_back(mapping);
        if (job_.options.bug == PlantedBug::kLeakMappings && job_.leaked.empty()) job_.leaked.push_back(mapping);
      }
    }
    epoch.publisher_of_edge.push_back(publisher.rank);
    edges.push_back(std::move(incoming));
  }
  mappings_ = std::move(mappings);
  HR_ASSIGN_OR_RETURN(
      epoch.executor,
      Executor::Create(epoch.plan->manifest(), epoch.plan->plan(), transport_.get(), std::move(edges),
                       IncarnationStamp(session().incarnation()),
                       {job_.options.chunk_bytes, job_.options.staging_bytes, epoch.number}, &cancelled_));
  return absl::OkStatus();
}

std::vector<ChainMember> Worker::ChainOf(const Epoch& epoch, const Stream& stream) {
  std::vector<ChainMember> chain;
  for (int64_t rank : stream.chain) {
    const MemberKey key = epoch.plan->ReceiverOf(rank);
    const auto member = std::find_if(epoch.start.members().begin(), epoch.start.members().end(),
                                     [&](const auto& m) { return MemberKey::From(m.id()) == key; });
    chain.push_back({rank, NameOf(key), member->layout().transport_address()});
  }
  return chain;
}

void Worker::DeclineTransfer(uint64_t generation) {
  if (transport_->capabilities().map || session().phase() != MemberSession::Phase::kReady) return;
  const std::shared_ptr<Epoch> epoch = ready_;
  if (!Connect(*epoch, region_keys_).ok()) return;
  Executor::Request request;
  request.generation = generation;
  epoch->executor->Decline(request);
}

bool Worker::IsToReadIn(const Epoch& attempted) const {
  const bool told =
      session().phase() == MemberSession::Phase::kPlanned || session().phase() == MemberSession::Phase::kReady;
  return told && session().epoch() != attempted.number;
}

absl::Status Worker::Interruption(uint64_t generation, int64_t deadline, const Epoch& epoch) {
  if (!session().status().ok()) return session().status();
  if (auto it = discarded_.find(generation); it != discarded_.end()) return it->second;
  if (session().epoch() != epoch.number) return Error(ErrorCode::kStaleEpoch, "the membership changed");
  if (!start_refused_.ok()) return start_refused_;
  if (world().now() >= deadline) return Error(ErrorCode::kDeadline, "the transfer did not end in time");
  return absl::OkStatus();
}

void Worker::CheckBounds() {
  CheckWorkerMemory(job_, seat_,
                    {.staging_bytes = peak_staging_bytes_,
                     .mappings = static_cast<int64_t>(mappings_.size()),
                     .announced = static_cast<int64_t>(announced_.size())});
}

}  // namespace headrace::simulation
