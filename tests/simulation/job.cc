#include "tests/simulation/job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "planner/status.h"
#include "tests/simulation/checks.h"
#include "tests/simulation/coordinator_process.h"
#include "tests/simulation/driver.h"
#include "tests/simulation/trainer.h"
#include "tests/simulation/worker.h"

namespace headrace::simulation {

TrainerSeat::TrainerSeat(Job* job, int rank, int64_t source_rank)
    : job(*job), part(PublisherPart(job->layout.manifest, source_rank)), source(part.source) {
  key = MemberKey::Publisher(rank);
  this->rank = source_rank;
}
TrainerSeat::~TrainerSeat() = default;
MemberProcess* TrainerSeat::process() { return trainer.get(); }
void TrainerSeat::Destroy() { trainer.reset(); }
void TrainerSeat::AskToLeave() {
  if (trainer != nullptr) trainer->AskToLeave();
}
void TrainerSeat::Start() {
  trainer = std::make_unique<Trainer>(this, job.fabric.NewEndpoint());
  trainer->Begin();
}

WorkerSeat::WorkerSeat(Job* job, int engine, int worker, int64_t destination_rank)
    : job(*job), part(ReceiverPart(job->layout.manifest, destination_rank)) {
  key = MemberKey::Receiver(engine, worker);
  rank = destination_rank;
  ForgetMemory();
}
WorkerSeat::~WorkerSeat() = default;
MemberProcess* WorkerSeat::process() { return worker.get(); }
void WorkerSeat::Destroy() {
  if (worker == nullptr) return;
  carry = worker->Carry();
  worker.reset();
  job.engines[key.engine].driver->Resume(key.rank);
}
void WorkerSeat::Start() {
  if (job.options.bug == PlantedBug::kRollBack && !carry.poisoned && carry.committed_generation > 1) {
    --carry.committed_generation;
    testing::PaintDestination(job.layout.manifest, rank,
                              Job::PaintOf({carry.committed_incarnation, carry.committed_generation}), live.get());
  }
  worker = std::make_unique<Worker>(this, job.fabric.NewEndpoint());
  worker->Begin();
}
void WorkerSeat::AskToLeave() {
  if (worker != nullptr) worker->AskToLeave();
}
void WorkerSeat::ForgetMemory() {
  live = std::make_unique<testing::SideMemory>(part.destination);
  carry = {};
  committed = {};
  moved = false;
}
std::optional<Version> WorkerSeat::Serving() const {
  const ReceiverState state = worker == nullptr ? carry : worker->Carry();
  if (state.poisoned) return std::nullopt;
  return Version{state.committed_generation == 0 ? "" : state.committed_incarnation, state.committed_generation};
}

void Counters::Add(const Counters& other) {
  requests += other.requests;
  request_steps += other.request_steps;
  commits += other.commits;
  aborts += other.aborts;
  epochs += other.epochs;
  attempts_anew += other.attempts_anew;
  divergences += other.divergences;
  given_up += other.given_up;
  unverified += other.unverified;
  changed += other.changed;
  moved += other.moved;
  deadlines += other.deadlines;
  peers_lost += other.peers_lost;
  crashes += other.crashes;
  leaves += other.leaves;
  coordinators += other.coordinators;
  runs += other.runs;
  sessions += other.sessions;
  poisoned += other.poisoned;
}

Job::Job(const SimulationOptions& o) : options(o), world(o.seed), fabric(FabricOptions(true)), layout(MakeLayout(o)) {
  for (size_t i = 0; i < layout.publishers.size(); ++i)
    trainers.push_back(std::make_unique<TrainerSeat>(this, static_cast<int>(i), layout.publishers[i]));
  for (size_t e = 0; e < layout.engines.size(); ++e) {
    EngineSeat& engine = engines.emplace_back();
    for (size_t w = 0; w < layout.engines[e].size(); ++w)
      engine.workers.push_back(
          std::make_unique<WorkerSeat>(this, static_cast<int>(e), static_cast<int>(w), layout.engines[e][w]));
    engine.driver = std::make_unique<Driver>(this, static_cast<int>(e));
  }
}

Job::~Job() { DestroyAll(); }

MemoryOptions Job::FabricOptions(bool faults) const {
  MemoryOptions fabric;
  fabric.map = options.map;
  fabric.two_sided = true;
  fabric.seed = options.seed;
  if (!faults) return fabric;
  fabric.reorder_completions = options.fabric_reorder;
  fabric.delay_probability = options.fabric_delay;
  fabric.max_delay_steps = options.fabric_delay_steps;
  fabric.drop_probability = options.fabric_drop;
  fabric.corrupt_probability = options.fabric_corrupt;
  return fabric;
}

std::string Job::incarnation() const { return absl::StrCat("run-", run_); }

uint64_t Job::PaintOf(const Version& version) {
  absl::string_view name = version.incarnation;
  uint64_t run = 0;
  if (absl::ConsumePrefix(&name, "run-")) (void)absl::SimpleAtoi(name, &run);
  return run * 1'000'000 + version.generation;
}

std::vector<Seat*> Job::Seats() {
  std::vector<Seat*> seats;
  for (const auto& seat : trainers) seats.push_back(seat.get());
  for (const auto& engine : engines)
    for (const auto& seat : engine.workers) seats.push_back(seat.get());
  return seats;
}

void Job::Begin() {
  StartCoordinator();
  const size_t late = std::min<size_t>(options.late_engines, engines.size() - 1);
  for (Seat* seat : Seats()) {
    const bool comes_late =
        seat->key.role == proto::RECEIVER && static_cast<size_t>(seat->key.engine) >= engines.size() - late;
    const int64_t when = comes_late ? world.Draw(0, options.faults_ns) : world.Draw(0, 200 * kMillisecond);
    world.At(when, [this, seat] {
      seat->pid = next_pid_++;
      seat->up = true;
      seat->Start();
    });
  }
  for (EngineSeat& engine : engines) engine.driver->Begin();
  world.After(kSecond, [this] { Train(); });
  WatchCoordinator();
}

void Job::Train() {
  if (options.lockstep && !std::all_of(trainers.begin(), trainers.end(), [&](const auto& seat) {
        return seat->trainer == nullptr || !seat->trainer->trains() || seat->trainer->attempted() >= target;
      })) {
    if (training) world.After(20 * kMillisecond, [this] { Train(); });
    return;
  }
  ++target;
  for (const auto& seat : trainers)
    if (seat->trainer != nullptr) seat->trainer->Poke();
  if (training) world.After(world.Draw(options.publish_period_ns / 2, options.publish_period_ns), [this] { Train(); });
}

void Job::StartCoordinator() {
  CoordinatorOptions c;
  c.job = "job";
  c.incarnation = incarnation();
  c.publishers = static_cast<int>(trainers.size());
  const size_t late = std::min<size_t>(options.late_engines, engines.size() - 1);
  for (size_t e = 0; e + late < engines.size(); ++e) c.workers.push_back(static_cast<int>(engines[e].workers.size()));
  c.timeouts = options.timeouts;
  c.policy = std::string(PolicyName(options.hybrid ? Policy::kHybrid : Policy::kAuto));
  ++counters.coordinators;
  coordinator = std::make_unique<CoordinatorProcess>(this, c);
}

// Whoever started the job starts it again when it is over.
void Job::WatchCoordinator() {
  if (coordinator != nullptr && coordinator->coordinator().phase() == Coordinator::Phase::kEnded && training)
    CrashCoordinator(world.Draw(10 * kMillisecond, kSecond));
  world.After(500 * kMillisecond, [this] { WatchCoordinator(); });
}

void Job::CrashCoordinator(int64_t down_ns) {
  if (coordinator_comes_) return;
  coordinator_comes_ = true;
  coordinator.reset();
  world.After(down_ns, [this] {
    coordinator_comes_ = false;
    StartCoordinator();
  });
}

void Job::NewRun() {
  if (coordinator_comes_) return;
  ++counters.runs;
  ++run_;
  target = 0;
  for (const auto& seat : trainers) Crash(seat.get(), false, world.Draw(100 * kMillisecond, 2 * kSecond));
  CrashCoordinator(world.Draw(10 * kMillisecond, kSecond));
}

void Job::Crash(Seat* seat, bool silently, int64_t down_ns) {
  if (!seat->up || seat->closing) return;
  ++counters.crashes;
  ++seat->life;
  seat->up = false;
  if (seat->process() != nullptr) seat->process()->Hang(silently);
  seat->Destroy();
  seat->ForgetMemory();
  world.After(down_ns, [this, seat, life = seat->life] {
    if (seat->up || seat->closing || seat->life != life) return;
    seat->pid = next_pid_++;
    seat->up = true;
    seat->Start();
  });
}

void Job::Reap(Seat* seat) {
  MemberProcess* const process = seat->process();
  world.After(world.Draw(kMillisecond, 50 * kMillisecond), [this, seat, process] {
    if (seat->process() != process || process == nullptr) return;
    seat->ended = process->session().status();
    seat->Destroy();
    if (seat->closing) return;
    world.After(world.Draw(10 * kMillisecond, kSecond), [seat] {
      if (seat->up && !seat->closing && seat->process() == nullptr) seat->Start();
    });
  });
}

std::shared_ptr<Channel> Job::Dial(MemberProcess* member) {
  if (coordinator == nullptr || unreachable.contains(member->seat().key)) return nullptr;
  auto channel = std::make_shared<Channel>(&world, options.max_delay_ns, options.trace);
  std::erase_if(channels, [](const auto& old) { return old.expired(); });
  channels.push_back(channel);
  coordinator->Accept(channel);
  return channel;
}

void Job::Heal() {
  faults_are_over = true;
  unreachable.clear();
  for (const auto& weak : channels)
    if (const auto channel = weak.lock()) channel->Unblock();
  for (const auto& engine : engines)
    for (const auto& seat : engine.workers) seat->moved = false;
  fabric.SetFaults(FabricOptions(false));
}

void Job::Leave(proto::Role role) {
  training = false;
  for (Seat* seat : Seats()) {
    if (seat->key.role != role) continue;
    seat->closing = true;
    seat->AskToLeave();
    if (seat->process() != nullptr) seat->process()->Poke();
  }
}

bool Job::Left(proto::Role role) {
  for (Seat* seat : Seats())
    if (seat->key.role == role && seat->process() != nullptr) return false;
  return true;
}

void Job::DestroyAll() {
  for (Seat* seat : Seats()) seat->Destroy();
  for (EngineSeat& engine : engines) engine.driver.reset();
  coordinator.reset();
}

absl::StatusOr<std::shared_ptr<const EpochPlan>> Job::PlanOf(const proto::EpochStart& start) {
  const std::string key = start.SerializeAsString();
  // Now and then a member makes its own: the edges' digests show that it is the same.
  const auto it = plans_.find(key);
  if (it != plans_.end() && !world.Happens(0.5 / start.members_size())) return it->second;
  absl::StatusOr<EpochPlan> made = EpochPlan::Make(start);
  absl::StatusOr<std::shared_ptr<const EpochPlan>> plan = std::shared_ptr<const EpochPlan>();
  if (made.ok())
    plan = std::make_shared<const EpochPlan>(*std::move(made));
  else
    plan = made.status();
  if (plans_.size() > 4) plans_.clear();
  plans_.insert_or_assign(key, plan);
  return plan;
}

const testing::SideMemory& Job::Wanted(const WorkerSeat& seat, const Version& version) {
  if (wanted_.size() > 64 + 4 * Seats().size()) wanted_.clear();
  auto& wanted = wanted_[{seat.rank, PaintOf(version)}];
  if (wanted == nullptr) {
    wanted = std::make_unique<testing::SideMemory>(seat.part.destination);
    if (version.generation != 0) testing::PaintDestination(layout.manifest, seat.rank, PaintOf(version), wanted.get());
  }
  return *wanted;
}

std::string Job::WhoLacks(uint64_t generation) const {
  std::string who;
  for (const EngineSeat& engine : engines) {
    for (const auto& seat : engine.workers) {
      if (seat->up && seat->committed.incarnation == incarnation() && seat->committed.generation >= generation)
        continue;
      absl::StrAppend(&who, who.empty() ? "" : ", ", NameOf(seat->key), " (", seat->committed.generation, " of \"",
                      seat->committed.incarnation, "\")");
    }
  }
  return who;
}

}  // namespace headrace::simulation
