#include "bench/refit_processes.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/one_copy_floor.h"
#include "bench/rank_memory.h"
#include "bench/refit_model.h"
#include "loader/publisher.h"
#include "loader/receiver.h"
#include "loader/transport/factory.h"
#include "planner/status.h"

namespace headrace::bench {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(2);

// The engine of a destination rank, and which of its workers the rank is.
std::pair<int, int> EngineAndWorker(const Topology& topology, int rank) {
  std::map<std::string, std::pair<int, int>> engines;  // their numbers, and how many workers so far
  for (const Placement& p : topology.destination) {
    const auto engine = engines.emplace(p.engine, std::pair(static_cast<int>(engines.size()), 0)).first;
    if (p.rank == rank) return engine->second;
    ++engine->second.second;
  }
  return {0, rank};
}

JobOptions JobOf(const Json& order) {
  JobOptions job;
  job.job = "refit_bench";
  job.token = order["token"];
  job.coordinator = order["coordinator"];
  job.host = "localhost";
  job.timeouts = PatientTimeouts();
  return job;
}

class RankProcess {
 public:
  virtual ~RankProcess() = default;
  virtual absl::StatusOr<Json> Do(const std::string& what, const Json& order) = 0;
};

class PublisherProcess final : public RankProcess {
 public:
  PublisherProcess(const Manifest& manifest, int rank, std::string transport, RankMemory memory)
      : manifest_(manifest), rank_(rank), transport_(std::move(transport)), memory_(std::move(memory)) {}

  absl::StatusOr<Json> Do(const std::string& what, const Json& order) override {
    if (what == "join") return Join(order);
    if (what == "fill") {
      for (const auto& [i, first] : memory_.first()) {
        FillRefit(manifest_, manifest_.source[i], order["generation"], first);
      }
      return Json::object();
    }
    if (what == "refit") {
      const uint64_t generation = order["generation"];
      const double begun = MonotonicSeconds(), begin = ProcessCpuSeconds(), copying = ThreadCpuSeconds();
      HR_RETURN_IF_ERROR(publisher_->Publish(generation, absl::Now() + kPatience));
      const double copied = ThreadCpuSeconds(), published = MonotonicSeconds();
      HR_RETURN_IF_ERROR(publisher_->AwaitCommit(generation, absl::Now() + kPatience));
      return Json{{"cpu", ProcessCpuSeconds() - begin},
                  {"snapshot", copied - copying},
                  {"at", {begun, published, MonotonicSeconds()}}};
    }
    if (what == "close") {
      const PublisherStats stats = publisher_->stats();
      HR_RETURN_IF_ERROR(publisher_->Close(absl::Now() + kPatience));
      return Json{{"slot_bytes", stats.snapshot_bytes}, {"peak_staging_bytes", stats.peak_staging_bytes}};
    }
    return Error(ErrorCode::kInvalidOption, absl::StrCat("publishers do not ", what));
  }

 private:
  absl::StatusOr<Json> Join(const Json& order) {
    PublisherOptions options;
    options.job = JobOf(order);
    options.rank = rank_;
    Manifest part;
    part.tensors = manifest_.tensors;
    part.topology.source = {Placement{rank_, "", "", ""}};
    std::map<std::string, const std::byte*> memory;
    for (const auto& [i, first] : memory_.first()) {
      part.source.push_back(manifest_.source[i]);
      memory[manifest_.source[i].name] = first;
    }
    HR_ASSIGN_OR_RETURN(auto transport, NewTransport(transport_));
    HR_ASSIGN_OR_RETURN(publisher_, Publisher::Join(options, part, std::move(memory), std::move(transport)));
    return Json::object();
  }

  const Manifest& manifest_;
  const int rank_;
  const std::string transport_;
  const RankMemory memory_;
  std::unique_ptr<Publisher> publisher_;
};

class ReceiverProcess final : public RankProcess {
 public:
  ReceiverProcess(const Manifest& manifest, const Plan& plan, int rank, RefitOptions options, RankMemory memory)
      : manifest_(manifest), plan_(plan), rank_(rank), options_(std::move(options)), memory_(std::move(memory)) {}

  absl::StatusOr<Json> Do(const std::string& what, const Json& order) override {
    if (what == "join") return Join(order);
    if (what == "refit") return Refit(order["generation"]);
    if (what == "floor" && order["how"] == "whole") {
      // Touched before it is measured, as everything is.
      if (whole_.empty()) whole_.resize(static_cast<size_t>(floor_->bytes_of_slots()), std::byte{1});
      const double begin = ThreadCpuSeconds();
      HR_RETURN_IF_ERROR(floor_->RunWhole(order["generation"], absl::MakeSpan(whole_)));
      return Json{{"cpu", ThreadCpuSeconds() - begin}};
    }
    if (what == "floor") {
      const double begin = ThreadCpuSeconds();
      HR_RETURN_IF_ERROR(floor_->Run(
          order["generation"], order["how"] == "memcpy" ? FloorCopy::kMemcpy : FloorCopy::kKernel, memory_.first()));
      return Json{{"cpu", ThreadCpuSeconds() - begin}};
    }
    if (what == "clear") {
      memory_.Clear();
      return Json::object();
    }
    if (what == "check") {
      int64_t wrong = 0;
      for (const auto& [i, first] : memory_.first()) {
        wrong += CheckRefit(manifest_, manifest_.destination[i], order["generation"], first);
      }
      return Json{{"wrong", wrong}};
    }
    if (what == "close") {
      const ReceiverStats stats = receiver_->stats();
      HR_RETURN_IF_ERROR(receiver_->Close(absl::Now() + kPatience));
      return Json{{"copies", stats.copies},
                  {"bytes", stats.bytes},
                  {"shadow_bytes", stats.shadow_bytes},
                  {"peak_staging_bytes", stats.peak_staging_bytes}};
    }
    return Error(ErrorCode::kInvalidOption, absl::StrCat("receivers do not ", what));
  }

 private:
  absl::StatusOr<Json> Join(const Json& order) {
    ReceiverOptions options;
    options.job = JobOf(order);
    std::tie(options.engine, options.worker) = EngineAndWorker(manifest_.topology, rank_);
    options.shadow = options_.shadow ? Shadow::kHost : Shadow::kOff;
    Manifest part;
    part.topology.destination = {Placement{rank_, "", "", ""}};
    for (const auto& [i, first] : memory_.first()) {
      const Buffer& b = manifest_.destination[i];
      part.destination.push_back(b);
      live_[b.name] = {first, b.shape, b.strides};
    }
    HR_ASSIGN_OR_RETURN(auto transport, NewTransport(options_.transport));
    HR_ASSIGN_OR_RETURN(receiver_, Receiver::Join(options, part, live_, KeepMappings(std::move(transport), &regions_)));
    floor_.emplace(manifest_, plan_, rank_, regions_);
    return Json::object();
  }

  absl::StatusOr<Json> Refit(uint64_t generation) {
    const double begin = ProcessCpuSeconds();
    HR_ASSIGN_OR_RETURN(const uint64_t next, receiver_->NextGeneration(absl::Now() + kPatience));
    if (next != generation) return Error(ErrorCode::kInternal, absl::StrCat("generation ", next, " was announced"));
    const double staging = ThreadCpuSeconds(), announced = MonotonicSeconds();
    HR_RETURN_IF_ERROR(receiver_->Stage(generation, live_));
    const double committing = ThreadCpuSeconds(), staged = MonotonicSeconds();
    HR_RETURN_IF_ERROR(receiver_->Commit(generation));
    const double end = ThreadCpuSeconds();
    // Stamps and sums are compared without waiting, so that the wall time of it is CPU time.
    const double verify = receiver_->stats().verify_seconds;
    return Json{{"cpu", ProcessCpuSeconds() - begin},
                {"transfer", committing - staging - verify},
                {"verify", verify},
                {"commit", end - committing},
                {"at", {announced, staged, MonotonicSeconds()}}};
  }

  const Manifest& manifest_;
  const Plan& plan_;
  const int rank_;
  const RefitOptions options_;
  const RankMemory memory_;
  std::map<std::string, BufferMemory> live_;
  MappedRegions regions_;  // before the receiver, whose transport refers to it
  std::unique_ptr<Receiver> receiver_;
  std::optional<OneCopyFloor> floor_;
  std::vector<std::byte> whole_;  // where RunWhole copies to
};

absl::StatusOr<std::unique_ptr<RankProcess>> NewRank(const Manifest& manifest, const Plan& plan, bool publisher,
                                                     int rank, const RefitOptions& options) {
  HR_ASSIGN_OR_RETURN(RankMemory memory,
                      RankMemory::Allocate(publisher ? manifest.source : manifest.destination, rank));
  if (publisher) return std::make_unique<PublisherProcess>(manifest, rank, options.transport, std::move(memory));
  return std::make_unique<ReceiverProcess>(manifest, plan, rank, options, std::move(memory));
}

// Writes more than a core's caches hold.
void Chill() {
  static std::vector<char> memory(16 << 20);
  for (size_t i = 0; i < memory.size(); i += 64) ++memory[i];
}

}  // namespace

SessionTimeouts PatientTimeouts() {
  SessionTimeouts timeouts;
  for (int64_t* ns : {&timeouts.heartbeat_timeout_ns, &timeouts.join_ns, &timeouts.plan_ns, &timeouts.decision_ns}) {
    *ns = absl::ToInt64Nanoseconds(kPatience);
  }
  return timeouts;
}

absl::StatusOr<RefitProcesses> RefitProcesses::Fork(const Manifest& manifest, const Plan& plan,
                                                    const RefitOptions& options) {
  RefitProcesses processes;
  const auto fork = [&](bool publisher, int64_t rank) {
    return ForkedProcess::Fork(absl::StrCat(publisher ? "publisher rank " : "worker ", rank),
                               [&, publisher, rank]() -> absl::StatusOr<ForkedProcess::Obey> {
                                 HR_ASSIGN_OR_RETURN(
                                     std::shared_ptr<RankProcess> process,
                                     NewRank(manifest, plan, publisher, static_cast<int>(rank), options));
                                 return [process](const std::string& what, const Json& order) -> absl::StatusOr<Json> {
                                   if (what != "chill") return process->Do(what, order);
                                   Chill();
                                   return Json::object();
                                 };
                               });
  };
  for (const Placement& p : manifest.topology.source) {
    HR_ASSIGN_OR_RETURN(ForkedProcess forked, fork(true, p.rank));
    processes.publishers_.push_back(std::move(forked));
  }
  for (const Placement& p : manifest.topology.destination) {
    HR_ASSIGN_OR_RETURN(ForkedProcess forked, fork(false, p.rank));
    processes.receivers_.push_back(std::move(forked));
  }
  return processes;
}

double RefitProcesses::CpuSeconds() const {
  double seconds = 0;
  for (const auto* side : {&publishers_, &receivers_}) {
    for (const ForkedProcess& process : *side) seconds += process.CpuSeconds();
  }
  return seconds;
}

absl::StatusOr<std::vector<Json>> RefitProcesses::Order(To to, const Json& order) {
  std::vector<const ForkedProcess*> addressed;
  if (to != To::kReceivers) {
    for (const ForkedProcess& process : publishers_) addressed.push_back(&process);
  }
  if (to != To::kPublishers) {
    for (const ForkedProcess& process : receivers_) addressed.push_back(&process);
  }
  for (const ForkedProcess* process : addressed) process->Tell(order);
  std::vector<Json> answers;
  for (const ForkedProcess* process : addressed) {
    HR_ASSIGN_OR_RETURN(Json answer, process->Hear());
    answers.push_back(std::move(answer));
  }
  return answers;
}

}  // namespace headrace::bench
