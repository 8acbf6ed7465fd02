#include "loader/testing/job.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "planner/status.h"

namespace headrace::testing {
namespace {

class TappedTransport final : public Transport {
 public:
  TappedTransport(std::unique_ptr<Transport> inner, TransportTap* tap) : inner_(std::move(inner)), tap_(tap) {}

  absl::string_view name() const override { return inner_->name(); }
  const Capabilities& capabilities() const override { return inner_->capabilities(); }
  std::string address() const override { return inner_->address(); }
  absl::StatusOr<std::unique_ptr<Region>> AllocateRegion(int64_t bytes) override {
    return inner_->AllocateRegion(bytes);
  }
  absl::StatusOr<PeerId> Connect(absl::string_view address, absl::Time deadline) override {
    return inner_->Connect(address, deadline);
  }
  void Disconnect(PeerId peer) override {
    inner_->Disconnect(peer);
    completed_.insert(completed_.end(), held_.begin(), held_.end());
    held_.clear();
  }
  absl::StatusOr<std::unique_ptr<Mapping>> Map(PeerId peer, absl::string_view key, absl::Time deadline) override {
    return inner_->Map(peer, key, deadline);
  }
  absl::StatusOr<OpId> Send(PeerId peer, uint64_t tag, absl::Span<const std::byte> message) override {
    return inner_->Send(peer, tag, message);
  }
  absl::StatusOr<OpId> Receive(PeerId peer, uint64_t tag, absl::Span<std::byte> message) override {
    HR_ASSIGN_OR_RETURN(OpId op, inner_->Receive(peer, tag, message));
    received_[op] = message;
    ++tap_->receives;
    tap_->receives.notify_all();
    return op;
  }
  void Poll(absl::Duration max_wait, std::vector<Completion>* completions) override {
    inner_->Poll(completed_.empty() ? max_wait : absl::ZeroDuration(), &completed_);
    for (Completion& c : completed_) {
      const auto it = received_.find(c.op);
      if (it != received_.end() && tap_->corrupt && c.status.ok()) it->second[it->second.size() / 2] ^= std::byte{16};
      (it != received_.end() && tap_->hold && c.status.ok() ? held_ : *completions).push_back(std::move(c));
      if (it != received_.end()) received_.erase(it);
    }
    completed_.clear();
    if (tap_->hold) return;
    completions->insert(completions->end(), held_.begin(), held_.end());
    held_.clear();
  }
  void Wake() override { inner_->Wake(); }
  void Abort(const absl::Status& reason) override { inner_->Abort(reason); }

 private:
  const std::unique_ptr<Transport> inner_;
  TransportTap* const tap_;
  std::map<OpId, absl::Span<std::byte>> received_;
  std::vector<Completion> completed_, held_;
};

}  // namespace

std::vector<absl::Status> ForAll(size_t n, const std::function<absl::Status(size_t)>& f, uint64_t seed) {
  std::vector<absl::Status> statuses(n);
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(seed);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<std::thread> threads;
  for (size_t i : order) threads.emplace_back([&statuses, &f, i] { statuses[i] = f(i); });
  for (std::thread& t : threads) t.join();
  return statuses;
}

absl::Status FirstError(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& s : statuses) HR_RETURN_IF_ERROR(s);
  return absl::OkStatus();
}

void ShuffleSources(uint64_t seed, Manifest* manifest) {
  std::mt19937_64 random(seed);
  std::shuffle(manifest->source.begin(), manifest->source.end(), random);
  for (Buffer& b : manifest->source) std::shuffle(b.pieces.begin(), b.pieces.end(), random);
}

std::unique_ptr<Transport> NewTappedTransport(std::unique_ptr<Transport> inner, TransportTap* tap) {
  return std::make_unique<TappedTransport>(std::move(inner), tap);
}

Job::Job(Manifest manifest, JobConfig config)
    : manifest_(std::move(manifest)),
      config_(std::move(config)),
      source_(manifest_.source),
      live_(manifest_.destination),
      wanted_(manifest_.destination) {
  if (!config_.transport) {
    fabric_ = std::make_unique<MemoryFabric>();
    config_.transport = [this] { return fabric_->NewEndpoint(); };
  }
  std::set<int64_t> sources;
  for (const Buffer& b : manifest_.source) sources.insert(b.rank);
  source_ranks_.assign(sources.begin(), sources.end());
  std::map<int64_t, std::string> engine_of;
  for (const Placement& p : manifest_.topology.destination) engine_of[p.rank] = p.engine;
  std::map<std::string, std::set<int64_t>> engines;
  for (const Buffer& b : manifest_.destination) engines[engine_of[b.rank]].insert(b.rank);
  for (const auto& [name, ranks] : engines) {
    const int engine = static_cast<int>(sizes_.size());
    for (int64_t rank : ranks) {
      const bool first = workers_.empty() || workers_.back().engine != engine;
      workers_.push_back({engine, first ? 0 : workers_.back().worker + 1, rank});
    }
    sizes_.push_back(static_cast<int>(ranks.size()));
  }
  StartCoordinator(0);
}

void Job::StartCoordinator(int port) {
  CoordinatorOptions coordinator;
  coordinator.job = "job";
  coordinator.incarnation = config_.incarnation;
  coordinator.publishers = static_cast<int>(publishers());
  for (size_t engine = 0; engine < sizes_.size(); ++engine) {
    // Late ones are the last ones.
    if (!config_.late_engines.contains(static_cast<int>(engine))) coordinator.workers.push_back(sizes_[engine]);
  }
  coordinator.timeouts = Options().timeouts;
  coordinator.policy = config_.policy;
  ControlServerOptions server;
  server.token = "secret";
  server.port = port;
  auto service = CoordinatorService::Start(coordinator, server);
  EXPECT_TRUE(service.ok()) << service.status();
  coordinator_ = *std::move(service);
}

void Job::RestartCoordinator() {
  const int port = coordinator_->port();
  coordinator_->Kill();
  coordinator_.reset();
  StartCoordinator(port);
}

Job::~Job() {
  publishers_.clear();
  receivers_.clear();
}

JobOptions Job::Options() const {
  JobOptions job;
  job.job = "job";
  job.token = "secret";
  job.coordinator = coordinator_ == nullptr ? "" : coordinator_->address();
  job.host = "here";
  job.timeouts.heartbeat_timeout_ns = config_.heartbeat_timeout_ns;
  job.timeouts.rejoin_ns = config_.rejoin_ns;
  return job;
}

Manifest Job::PublisherPart(size_t publisher) const {
  const int64_t rank = source_ranks_[publisher];
  Manifest part;
  part.tensors = manifest_.tensors;
  part.ignore = manifest_.ignore;
  part.coupled = manifest_.coupled;
  for (const Buffer& b : manifest_.source) {
    if (b.rank == rank) part.source.push_back(b);
  }
  part.topology.source = {{rank, "", "", ""}};
  for (const Placement& p : manifest_.topology.source) {
    if (p.rank == rank) part.topology.source[0] = p;
  }
  return part;
}

Manifest Job::ReceiverPart(size_t worker) const {
  const int64_t rank = workers_[worker].rank;
  Manifest part;
  for (const Buffer& b : manifest_.destination) {
    if (b.rank == rank) part.destination.push_back(b);
  }
  part.topology.destination = {{rank, "", "", ""}};
  for (const Placement& p : manifest_.topology.destination) {
    if (p.rank == rank) part.topology.destination[0] = p;
  }
  return part;
}

std::map<std::string, const std::byte*> Job::PublisherMemory(size_t publisher) {
  std::map<std::string, const std::byte*> memory;
  for (const Buffer& b : manifest_.source) {
    if (b.rank == source_ranks_[publisher]) memory[b.name] = place ? place(source_.First(b)) : source_.First(b);
  }
  return memory;
}

std::map<std::string, BufferMemory> Job::ReceiverMemory(size_t worker) {
  std::map<std::string, BufferMemory> memory;
  for (const Buffer& b : manifest_.destination) {
    if (b.rank != workers_[worker].rank) continue;
    const bool live = !config_.not_live.contains({workers_[worker].engine, b.name});
    memory[b.name] = {place ? place(live_.First(b)) : live_.First(b), b.shape, b.strides, live};
  }
  return memory;
}

PublisherOptions Job::OptionsOfPublisher(size_t publisher) const {
  PublisherOptions options;
  options.job = Options();
  options.rank = static_cast<int>(publisher);
  options.publishing = config_.holding.contains(publisher) ? Publishing::kHold : Publishing::kSnapshot;
  options.chunk_bytes = config_.chunk_bytes;
  options.staging_bytes = config_.staging_bytes;
  return options;
}

ReceiverOptions Job::OptionsOfReceiver(size_t worker) const {
  const Worker& w = workers_[worker];
  ReceiverOptions options;
  options.job = Options();
  options.engine = w.engine;
  options.worker = w.worker;
  options.workers = sizes_[w.engine];
  options.shadow = static_cast<size_t>(w.engine) < config_.shadow.size() ? config_.shadow[w.engine] : Shadow::kHost;
  options.chunk_bytes = config_.chunk_bytes;
  options.staging_bytes = config_.staging_bytes;
  options.transfer_timeout = config_.transfer_timeout;
  return options;
}

absl::Status Job::JoinPublisher(size_t i) {
  PublisherOptions options = OptionsOfPublisher(i);
  if (edit_publisher) edit_publisher(i, &options);
  HR_ASSIGN_OR_RETURN(publishers_[i],
                      Publisher::Join(options, PublisherPart(i), PublisherMemory(i), config_.transport()));
  return absl::OkStatus();
}

absl::Status Job::JoinReceiver(size_t worker) {
  ReceiverOptions options = OptionsOfReceiver(worker);
  if (edit_receiver) edit_receiver(worker, &options);
  std::unique_ptr<Transport> transport = receiver_transport ? receiver_transport(worker) : nullptr;
  if (transport == nullptr) transport = config_.transport();
  HR_ASSIGN_OR_RETURN(receivers_[worker],
                      Receiver::Join(options, ReceiverPart(worker), ReceiverMemory(worker), std::move(transport),
                                     config_.standing_by.contains(options.engine) ? config_.transport() : nullptr));
  return absl::OkStatus();
}

absl::Status Job::JoinEngine(int engine) {
  std::vector<size_t> mine;
  for (size_t w = 0; w < workers_.size(); ++w) {
    if (workers_[w].engine == engine) mine.push_back(w);
  }
  return FirstError(ForAll(mine.size(), [&](size_t i) { return JoinReceiver(mine[i]); }));
}

std::vector<absl::Status> Job::Join() {
  publishers_.resize(publishers());
  receivers_.resize(workers_.size());
  return ForAll(
      publishers() + workers_.size(),
      [&](size_t i) -> absl::Status {
        if (i < publishers()) return JoinPublisher(i);
        i -= publishers();
        return IsLate(i) ? absl::OkStatus() : JoinReceiver(i);
      },
      config_.seed);
}

absl::Status Job::Publish(uint64_t generation) {
  PaintSource(manifest_, generation, &source_);
  return FirstError(ForAll(publishers(), [&](size_t i) { return publisher(i).Publish(generation, Soon()); }));
}

absl::Status Job::AwaitAt(size_t worker, uint64_t generation) {
  HR_ASSIGN_OR_RETURN(uint64_t next, receiver(worker).NextGeneration(Soon()));
  if (next != generation) {
    return Error(ErrorCode::kInternal, absl::StrCat("generation ", next, " came, not ", generation));
  }
  return absl::OkStatus();
}

absl::Status Job::StageAndCommit(size_t worker, uint64_t generation) {
  HR_RETURN_IF_ERROR(receiver(worker).Stage(generation, ReceiverMemory(worker)));
  if (before_commit) before_commit(worker);
  return receiver(worker).Commit(generation);
}

absl::Status Job::TakeAt(size_t worker, uint64_t generation) {
  HR_RETURN_IF_ERROR(AwaitAt(worker, generation));
  return StageAndCommit(worker, generation);
}

std::vector<absl::Status> Job::Take(uint64_t generation) {
  // All know of it before one can give it up.
  auto statuses = ForAll(
      workers_.size(), [&](size_t i) { return AwaitAt(i, generation); }, generation);
  const auto taken = ForAll(
      workers_.size(), [&](size_t i) { return statuses[i].ok() ? StageAndCommit(i, generation) : statuses[i]; },
      generation);
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (taken[i].ok()) Expect(i, generation);
  }
  return taken;
}

absl::Status Job::Round(uint64_t generation) {
  HR_RETURN_IF_ERROR(Publish(generation));
  HR_RETURN_IF_ERROR(FirstError(Take(generation)));
  return FirstError(ForAll(publishers(), [&](size_t i) {
    const absl::Status committed = publisher(i).AwaitCommit(generation, Soon());
    return committed.ok() ? publisher(i).AwaitRelease(generation, Soon()) : committed;
  }));
}

absl::Status Job::Close() {
  HR_RETURN_IF_ERROR(FirstError(ForAll(workers_.size(), [&](size_t i) { return receiver(i).Close(Soon()); })));
  return FirstError(ForAll(publishers(), [&](size_t i) { return publisher(i).Close(Soon()); }));
}

}  // namespace headrace::testing
