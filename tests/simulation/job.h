#ifndef HEADRACE_TESTS_SIMULATION_JOB_H_
#define HEADRACE_TESTS_SIMULATION_JOB_H_

// Test only. A simulated job: the seats of all members, in each of which one process after another sits; the
// coordinator; the engines and their requests; and what all of them share.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "loader/epoch_plan.h"
#include "loader/session/receiver_session.h"
#include "loader/testing/side_memory.h"
#include "loader/transport/memory/memory.h"
#include "tests/simulation/channel.h"
#include "tests/simulation/layouts.h"
#include "tests/simulation/options.h"
#include "tests/simulation/world.h"

namespace headrace::simulation {

class CoordinatorProcess;
class Driver;
class MemberProcess;
class Trainer;
class Worker;

// What an engine serves.
struct Version {
  std::string incarnation;  // empty: the weights that were there at first
  uint64_t generation = 0;
  friend bool operator==(const Version&, const Version&) = default;
};

// Where one member's processes sit, one after another. Memory lives as long as the operating system's process, which
// may have several sessions.
struct Seat {
  virtual ~Seat() = default;
  virtual MemberProcess* process() = 0;
  virtual void Destroy() = 0;
  virtual void Start() = 0;
  virtual void ForgetMemory() = 0;
  virtual void AskToLeave() = 0;

  MemberKey key;
  int64_t rank = 0;  // in the manifest
  int64_t pid = 0;
  bool up = false;       // the operating system's process is there
  bool closing = false;  // leaves in order, for good
  uint64_t life = 0;
  absl::Status ended;  // the last session
};

struct TrainerSeat : Seat {
  TrainerSeat(class Job* job, int rank, int64_t source_rank);
  ~TrainerSeat() override;
  MemberProcess* process() override;
  void Destroy() override;
  void Start() override;
  void ForgetMemory() override {}
  void AskToLeave() override;

  class Job& job;
  const Manifest part;
  testing::SideMemory source;
  std::unique_ptr<Trainer> trainer;
};

struct WorkerSeat : Seat {
  WorkerSeat(class Job* job, int engine, int worker, int64_t destination_rank);
  ~WorkerSeat() override;
  MemberProcess* process() override;
  void Destroy() override;
  void Start() override;
  void ForgetMemory() override;
  void AskToLeave() override;
  // Empty: nothing.
  std::optional<Version> Serving() const;

  class Job& job;
  const Manifest part;
  std::unique_ptr<testing::SideMemory> live;
  ReceiverState carry;
  Version committed;   // last; of this process
  bool moved = false;  // the host has its buffers elsewhere
  std::unique_ptr<Worker> worker;
};

struct EngineSeat {
  std::vector<std::unique_ptr<WorkerSeat>> workers;
  std::unique_ptr<Driver> driver;
};

// What an engine served last, and by which processes.
struct Served {
  uint64_t generation = 0;
  int64_t coordinators = 0;  // until then
  std::vector<uint64_t> lives;
};

struct Counters {
  int64_t requests = 0, request_steps = 0;
  int64_t commits = 0, aborts = 0, epochs = 0, attempts_anew = 0;
  int64_t divergences = 0;  // slots that were written with another byte
  int64_t given_up = 0;     // generations of which replicas differed, as each worker heard
  int64_t unverified = 0, changed = 0, moved = 0, deadlines = 0, peers_lost = 0;  // verdicts
  int64_t crashes = 0, leaves = 0, coordinators = 0, runs = 0, sessions = 0, poisoned = 0;
  int64_t slowest_ns = 0;  // from the end of the faults until everybody had a new generation
  void Add(const Counters& other);
};

class Job {
 public:
  explicit Job(const SimulationOptions& options);
  ~Job();

  // Everyone starts.
  void Begin();
  void Crash(Seat* seat, bool silently, int64_t down_ns);
  void CrashCoordinator(int64_t down_ns);
  // The trainer starts again, counting from 1.
  void NewRun();
  // A process is over with its session: another session begins after a while, in the same process.
  void Reap(Seat* seat);
  // Everybody can speak with everybody, at once.
  void Heal();
  // All of a role leave in order and are not seen again.
  void Leave(proto::Role role);
  bool Left(proto::Role role);
  // Without a word.
  void DestroyAll();

  // Another stream to the coordinator, or none: nobody is there, or it is not reached.
  std::shared_ptr<Channel> Dial(MemberProcess* member);
  // What all members of an epoch make of it, made once.
  absl::StatusOr<std::shared_ptr<const EpochPlan>> PlanOf(const proto::EpochStart& start);
  // What a worker's memory must be.
  const testing::SideMemory& Wanted(const WorkerSeat& seat, const Version& version);
  // Tells generations of different incarnations apart.
  static uint64_t PaintOf(const Version& version);

  std::string incarnation() const;
  std::vector<Seat*> Seats();
  // Empty when every worker has committed `generation` of this incarnation, or a newer one; otherwise who has not.
  std::string WhoLacks(uint64_t generation) const;
  MemoryOptions FabricOptions(bool faults) const;

  const SimulationOptions options;
  World world;
  MemoryFabric fabric;
  JobLayout layout;
  Counters counters;
  uint64_t target = 0;  // the generation that the trainers are to publish
  bool training = true;
  bool faults_are_over = false;
  std::set<MemberKey> unreachable;
  std::vector<std::unique_ptr<TrainerSeat>> trainers;
  std::vector<EngineSeat> engines;
  std::unique_ptr<CoordinatorProcess> coordinator;
  std::vector<std::weak_ptr<Channel>> channels;
  std::vector<std::shared_ptr<const Mapping>> leaked;    // by a planted bug
  std::map<std::pair<int, std::string>, Served> served;  // by engine and incarnation

 private:
  void Train();
  void StartCoordinator();
  void WatchCoordinator();

  int run_ = 1;
  int64_t next_pid_ = 100;
  bool coordinator_comes_ = false;
  std::map<std::string, absl::StatusOr<std::shared_ptr<const EpochPlan>>> plans_;
  std::map<std::pair<int64_t, uint64_t>, std::unique_ptr<testing::SideMemory>> wanted_;
};

}  // namespace headrace::simulation

#endif  // HEADRACE_TESTS_SIMULATION_JOB_H_
