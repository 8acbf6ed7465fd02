#include "tests/simulation/faults.h"

#include <functional>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "tests/simulation/coordinator_process.h"
#include "tests/simulation/trainer.h"
#include "tests/simulation/worker.h"

namespace headrace::simulation {
namespace {

constexpr int kMoments[] = {
    proto::Envelope::kWelcome,    proto::Envelope::kEpochStart, proto::Envelope::kPlanned,
    proto::Envelope::kEpochReady, proto::Envelope::kPublished,  proto::Envelope::kAnnounced,
    proto::Envelope::kStart,      proto::Envelope::kRelease,    proto::Envelope::kVote,
    proto::Envelope::kDecision,   proto::Envelope::kCommitted,  proto::Envelope::kEngineCommitted,
    proto::Envelope::kSuspended,  proto::Envelope::kLeft,       proto::Envelope::kLayout};

// The job is up by then, mostly.
constexpr int64_t kFirst = 500 * kMillisecond;

class Faults {
 public:
  explicit Faults(Job* job) : job_(*job), world_(job->world) {}

  void Schedule() {
    world_.on_heard = [this](Process* who, int what) { Heard(who, what); };
    const SimulationOptions& o = job_.options;
    Often(o.trainer_crashes, [this] { CrashMember(proto::PUBLISHER); });
    Often(o.worker_crashes, [this] { CrashMember(proto::RECEIVER); });
    Often(o.coordinator_crashes, [this] { job_.CrashCoordinator(Downtime()); });
    Often(o.leaves, [this] { Leave(); });
    Often(o.cuts, [this] { Cut(); });
    Often(o.half_opens, [this] { HalfOpen(); });
    Often(o.partitions, [this] { Partition(); });
    Often(o.stalls, [this] { Stall(); });
    Often(o.clock_jumps, [this] { JumpClock(); });
    Often(o.moves, [this] { Move(); });
    Often(o.new_runs, [this] { job_.NewRun(); });
    Often(o.early_writes, [this] { WriteEarly(); });
    Often(o.divergences, [this] { Diverge(); });
  }

 private:
  void Often(double rate, const std::function<void()>& fault) {
    for (; rate > 0; --rate) {
      if (rate < 1 && !world_.Happens(rate)) return;
      world_.At(world_.Draw(kFirst, job_.options.faults_ns), [this, fault] {
        if (!world_.Happens(job_.options.at_moments)) return fault();
        armed_.push_back(
            {kMoments[world_.Draw(0, std::size(kMoments) - 1)], static_cast<int>(world_.Draw(0, 5)), fault});
      });
    }
  }

  void Heard(Process* who, int what) {
    if (armed_.empty() || job_.faults_are_over) return;
    for (auto it = armed_.begin(); it != armed_.end(); ++it) {
      if (it->what != what || it->passes-- > 0) continue;
      world_.After(world_.Happens(0.5) ? 0 : world_.Draw(0, 20 * kMillisecond),
                   [this, name = who->name(), fault = it->fault] {
                     if (job_.faults_are_over) return;
                     near_ = nullptr;
                     for (Seat* seat : job_.Seats())
                       if (NameOf(seat->key) == name) near_ = seat;
                     fault();
                     near_ = nullptr;
                   });
      armed_.erase(it);
      return;
    }
  }

  int64_t Downtime() {
    return world_.Happens(0.7) ? world_.Draw(kMillisecond, kSecond)
                               : world_.Draw(kSecond, 2 * job_.options.timeouts.heartbeat_timeout_ns + 8 * kSecond);
  }
  int64_t Span() { return world_.Draw(10 * kMillisecond, 2 * job_.options.timeouts.heartbeat_timeout_ns); }

  Seat* Any() {
    if (near_ != nullptr && world_.Happens(0.7)) return near_;
    const std::vector<Seat*> seats = job_.Seats();
    return seats[world_.Draw(0, static_cast<int64_t>(seats.size()) - 1)];
  }

  void CrashMember(proto::Role role) {
    std::vector<Seat*> seats;
    for (Seat* seat : job_.Seats())
      if (seat->key.role == role && seat->up) seats.push_back(seat);
    if (seats.empty()) return;
    const bool near = near_ != nullptr && near_->up && near_->key.role == role && world_.Happens(0.7);
    Seat* const victim = near ? near_ : seats[world_.Draw(0, static_cast<int64_t>(seats.size()) - 1)];
    const bool silently = world_.Happens(0.3);
    // Now and then the whole engine, or all trainers.
    if (!world_.Happens(0.2)) return job_.Crash(victim, silently, Downtime());
    for (Seat* seat : seats)
      if (seat->key.engine == victim->key.engine) job_.Crash(seat, silently, Downtime());
  }

  void Leave() {
    Seat* const seat = Any();
    ++job_.counters.leaves;
    seat->AskToLeave();
    if (seat->process() != nullptr) seat->process()->Poke();
  }

  Channel* ChannelOf(Seat* seat) { return seat->process() == nullptr ? nullptr : seat->process()->channel(); }

  void Cut() {
    if (Channel* channel = ChannelOf(Any())) channel->Break();
  }

  void HalfOpen() {
    Channel* const channel = ChannelOf(Any());
    if (channel == nullptr) return;
    channel->Block(world_.Happens(0.5) ? Channel::kMember : Channel::kCoordinator);
    if (world_.Happens(0.5)) return;  // until it breaks, or for ever
    world_.After(Span(), [weak = channel->weak_from_this()] {
      if (const auto still = weak.lock()) still->Unblock();
    });
  }

  void Partition() {
    const double share = world_.Happens(0.3) ? 1.0 : 0.4;
    std::vector<std::weak_ptr<Channel>> blocked;
    std::vector<MemberKey> keys;
    for (Seat* seat : job_.Seats()) {
      if (!world_.Happens(share)) continue;
      keys.push_back(seat->key);
      job_.unreachable.insert(seat->key);
      Channel* const channel = ChannelOf(seat);
      if (channel == nullptr) continue;
      channel->Block(Channel::kMember);
      channel->Block(Channel::kCoordinator);
      blocked.push_back(channel->weak_from_this());
    }
    world_.After(Span(), [this_job = &job_, keys, blocked] {
      for (const MemberKey& key : keys) this_job->unreachable.erase(key);
      for (const auto& weak : blocked)
        if (const auto channel = weak.lock()) channel->Unblock();
    });
  }

  void Stall() {
    const int64_t until = world_.now() + world_.Draw(kMillisecond, job_.options.max_stall_ns);
    if (world_.Happens(0.2)) {
      if (job_.coordinator != nullptr) job_.coordinator->Stall(until);
      return;
    }
    Seat* const seat = Any();
    if (seat->process() != nullptr) seat->process()->Stall(until);
  }

  void JumpClock() {
    const int64_t by = world_.Draw(kMillisecond, 2 * job_.options.timeouts.heartbeat_timeout_ns);
    if (world_.Happens(0.2)) {
      if (job_.coordinator == nullptr) return;
      job_.coordinator->JumpClock(by);
      job_.coordinator->ClockJumped();
      return;
    }
    Seat* const seat = Any();
    if (seat->process() == nullptr) return;
    seat->process()->JumpClock(by);
    seat->process()->ClockJumped();
  }

  void Move() {
    Seat* const seat = Any();
    if (seat->key.role != proto::RECEIVER) return;
    auto* const worker = static_cast<WorkerSeat*>(seat);
    worker->moved = true;
    world_.After(world_.Draw(kMillisecond, 3 * kSecond), [worker] { worker->moved = false; });
  }

  void WriteEarly() {
    Seat* const seat = Any();
    if (seat->key.role != proto::PUBLISHER) return;
    if (auto& trainer = static_cast<TrainerSeat*>(seat)->trainer) trainer->WriteEarly();
  }

  void Diverge() {
    TrainerSeat& seat = *job_.trainers[world_.Draw(0, static_cast<int64_t>(job_.trainers.size()) - 1)];
    if (seat.trainer != nullptr) seat.trainer->DivergeNext();
  }

  // One that waits for its moment.
  struct Armed {
    int what;
    int passes;  // not the first such message
    std::function<void()> fault;
  };

  Job& job_;
  World& world_;
  std::vector<Armed> armed_;
  Seat* near_ = nullptr;  // to whom it mostly happens
};

}  // namespace

void ScheduleFaults(Job* job) {
  auto faults = std::make_shared<Faults>(job);
  faults->Schedule();
  // It lives as long as the world, which tells it what is heard.
  job->world.on_heard = [faults, heard = job->world.on_heard](Process* who, int what) { heard(who, what); };
}

}  // namespace headrace::simulation
