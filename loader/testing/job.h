#ifndef HEADRACE_LOADER_TESTING_JOB_H_
#define HEADRACE_LOADER_TESTING_JOB_H_

// Test only. A whole job in one process: a coordinator on loopback, the publishers and receivers of a manifest, and the
// memory of both sides with what it must hold. Destinations start as 0xA5 bytes with guards on either side.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "loader/control/coordinator_service.h"
#include "loader/publisher.h"
#include "loader/receiver.h"
#include "loader/testing/side_memory.h"
#include "loader/transport/memory/memory.h"
#include "planner/manifest.h"

namespace headrace::testing {

// Far beyond what anything here takes.
inline absl::Time Soon() { return absl::Now() + absl::Minutes(3); }

// Runs f(0) to f(n - 1) at once, each in a thread, started in an order drawn from `seed`.
std::vector<absl::Status> ForAll(size_t n, const std::function<absl::Status(size_t)>& f, uint64_t seed = 0);
// OK when all are; otherwise the first that is not.
absl::Status FirstError(const std::vector<absl::Status>& statuses);

// Shuffles the order of the source buffers, and of each one's pieces.
void ShuffleSources(uint64_t seed, Manifest* manifest);

// What a test does to, and knows of, one endpoint.
struct TransportTap {
  std::atomic<bool> corrupt = false;  // flips a bit of every message that is received
  std::atomic<bool> hold = false;     // what arrived is not told before a Disconnect, or before this is false
  std::atomic<int> receives = 0;      // posted so far; notifies
};
// Forwards to another endpoint.
std::unique_ptr<Transport> NewTappedTransport(std::unique_ptr<Transport> inner, TransportTap* tap);

struct JobConfig {
  // Every member's endpoint; the default is a memory fabric of its own that can map.
  std::function<std::unique_ptr<Transport>()> transport;
  std::set<int> standing_by;                       // engines whose workers are sources when no trainer is left
  std::set<size_t> holding;                        // publishers that hold their weights
  std::vector<Shadow> shadow;                      // of each engine; kHost where it is too short
  std::set<std::pair<int, std::string>> not_live;  // by engine: buffers that it does not compute with
  int64_t chunk_bytes = 256;                       // small, so that there are many
  int64_t staging_bytes = 4096;
  absl::Duration transfer_timeout = absl::Seconds(60);
  std::string incarnation = "run-1";
  uint64_t seed = 1;  // of the order of joining
  int64_t rejoin_ns = 0;
  int64_t heartbeat_timeout_ns = 60'000'000'000;  // a busy machine is no death here
  std::string policy;
  std::set<int> late_engines;  // the coordinator is not told of them, and Join leaves them out
};

class Job {
 public:
  struct Worker {
    int engine = 0;
    int worker = 0;
    int64_t rank = 0;
  };

  Job(Manifest manifest, JobConfig config);
  // Members first: they leave a coordinator that still runs.
  ~Job();

  // All members join, each in a thread. One status per member, publishers first.
  std::vector<absl::Status> Join();
  // Paints the sources with the generation and publishes it at every publisher.
  absl::Status Publish(uint64_t generation);
  // All workers at once: NextGeneration, which must be `generation`, Stage, Commit. One status per worker; those that
  // are OK are expected to hold it from now on.
  std::vector<absl::Status> Take(uint64_t generation);
  // One worker's part of it, whole and in two.
  absl::Status TakeAt(size_t worker, uint64_t generation);
  absl::Status AwaitAt(size_t worker, uint64_t generation);
  absl::Status StageAndCommit(size_t worker, uint64_t generation);
  // Publish, Take, and the release of the weights.
  absl::Status Round(uint64_t generation);
  // Everyone leaves in order.
  absl::Status Close();
  // Members that die: their streams break without a word.
  void KillPublisher(size_t i) { publishers_[i].reset(); }
  void KillReceiver(size_t i) { receivers_[i].reset(); }
  // They come (again), one or a whole engine at once.
  absl::Status JoinPublisher(size_t i);
  absl::Status JoinReceiver(size_t worker);
  absl::Status JoinEngine(int engine);
  // The coordinator dies; another one takes its address.
  void RestartCoordinator();

  // Empty when all destinations, guards and gaps included, hold what they must.
  std::string Difference() const { return live_.Difference(wanted_); }
  // The worker's memory is expected to hold `generation`.
  void Expect(size_t worker, uint64_t generation) {
    PaintDestination(manifest_, workers_[worker].rank, generation, &wanted_);
  }

  const Manifest& manifest() const { return manifest_; }
  JobOptions Options() const;
  Manifest PublisherPart(size_t publisher) const;
  Manifest ReceiverPart(size_t worker) const;
  std::map<std::string, const std::byte*> PublisherMemory(size_t publisher);
  std::map<std::string, BufferMemory> ReceiverMemory(size_t worker);
  PublisherOptions OptionsOfPublisher(size_t publisher) const;
  ReceiverOptions OptionsOfReceiver(size_t worker) const;

  size_t publishers() const { return source_ranks_.size(); }
  const std::vector<Worker>& workers() const { return workers_; }
  Publisher& publisher(size_t i) { return *publishers_[i]; }
  Receiver& receiver(size_t i) { return *receivers_[i]; }
  CoordinatorService& coordinator() { return *coordinator_; }
  SideMemory& source() { return source_; }
  SideMemory& live() { return live_; }
  SideMemory& wanted() { return wanted_; }

  // Where the memory of a member is that has `host` as its mirror; absent: there.
  std::function<std::byte*(std::byte* host)> place;
  // For the next Join.
  std::function<std::unique_ptr<Transport>(size_t worker)> receiver_transport;
  std::function<void(size_t publisher, PublisherOptions*)> edit_publisher;
  std::function<void(size_t worker, ReceiverOptions*)> edit_receiver;
  // What a worker does between Stage and Commit.
  std::function<void(size_t worker)> before_commit;

 private:
  void StartCoordinator(int port);
  bool IsLate(size_t worker) const { return config_.late_engines.contains(workers_[worker].engine); }

  Manifest manifest_;
  JobConfig config_;
  std::unique_ptr<MemoryFabric> fabric_;
  std::vector<int64_t> source_ranks_;
  std::vector<Worker> workers_;
  std::vector<int> sizes_;  // of the engines
  SideMemory source_, live_, wanted_;
  std::unique_ptr<CoordinatorService> coordinator_;
  std::vector<std::unique_ptr<Publisher>> publishers_;
  std::vector<std::unique_ptr<Receiver>> receivers_;
};

}  // namespace headrace::testing

#endif  // HEADRACE_LOADER_TESTING_JOB_H_
