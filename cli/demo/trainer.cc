// A trainer rank of the demo: holds its shard of a real checkpoint, takes a "training step" that changes every weight,
// and publishes.

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "cli/demo/gpu_mirror.h"
#include "cli/demo/rank.h"
#include "loader/control/coordinator_service.h"
#include "loader/publisher.h"
#include "loader/transport/factory.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

constexpr Index kAlignment = 256;  // as cudaMalloc's

// The rank's parameters, one behind the other; on a GPU where it has one.
class Weights {
 public:
  Weights(const Scenario& scenario, const Checkpoint& checkpoint, const Manifest& part)
      : scenario_(scenario), checkpoint_(checkpoint), buffers_(part.source) {
    Index bytes = 0;
    for (const Buffer& b : buffers_) {
      offsets_.push_back(bytes);
      bytes += (SpanBytes(b, b.dtype) + kAlignment - 1) / kAlignment * kAlignment;
    }
    memory_.resize(static_cast<size_t>(bytes));
  }

  absl::Status MoveToGpu(int number) {
    HR_ASSIGN_OR_RETURN(gpu_, GpuMirror::Create(number, absl::MakeSpan(memory_)));
    return absl::OkStatus();
  }

  // On a GPU it is under way on the stream when this returns.
  absl::Status Step(uint64_t generation) {
    if (gpu_ != nullptr) HR_RETURN_IF_ERROR(gpu_->Wait());  // the last step reads the mirror
    for (size_t i = 0; i < buffers_.size(); ++i) {
      WriteWeights(scenario_, checkpoint_, buffers_[i], generation, memory_.data() + offsets_[i]);
    }
    return gpu_ == nullptr ? absl::OkStatus() : gpu_->Upload();
  }

  std::map<std::string, const std::byte*> First() const {
    const std::byte* const memory = gpu_ == nullptr ? memory_.data() : gpu_->data();
    std::map<std::string, const std::byte*> first;
    for (size_t i = 0; i < buffers_.size(); ++i) first[buffers_[i].name] = memory + offsets_[i];
    return first;
  }
  std::optional<int> gpu() const { return gpu_ == nullptr ? std::nullopt : std::optional(gpu_->gpu()); }
  cuda::Stream stream() const { return gpu_ == nullptr ? nullptr : gpu_->stream(); }

 private:
  const Scenario& scenario_;
  const Checkpoint& checkpoint_;
  const std::vector<Buffer> buffers_;
  std::vector<Index> offsets_;
  std::vector<std::byte> memory_;
  std::unique_ptr<GpuMirror> gpu_;
};

absl::Status Train(RankPipe* pipe) {
  HR_ASSIGN_OR_RETURN(RankOrders orders, ReadOrders(pipe));
  const int rank = orders.raw["rank"];
  std::unique_ptr<CoordinatorService> coordinator;
  if (rank == 0) {  // the coordinator lives with the first publisher
    CoordinatorOptions options;
    options.job = orders.job.job;
    options.incarnation = orders.raw["incarnation"];
    options.publishers = orders.scenario.trainers;
    options.workers = orders.scenario.engines;
    ControlServerOptions server;
    server.token = orders.job.token;
    HR_ASSIGN_OR_RETURN(coordinator, CoordinatorService::Start(options, server));
    orders.job.coordinator = coordinator->address();
    pipe->Report({{"event", "coordinator"}, {"address", coordinator->address()}});
  }
  HR_ASSIGN_OR_RETURN(const Manifest part, TrainerPart(orders.scenario, rank));
  Weights weights(orders.scenario, *orders.checkpoint, part);
  if (orders.gpu) HR_RETURN_IF_ERROR(weights.MoveToGpu(rank));
  HR_RETURN_IF_ERROR(weights.Step(1));

  PublisherOptions options;
  options.job = orders.job;
  options.rank = rank;
  options.gpu = weights.gpu();
  TransportOptions transport_options;
  transport_options.gpu = rank;
  HR_ASSIGN_OR_RETURN(auto transport, NewTransport(orders.transport, transport_options));
  HR_ASSIGN_OR_RETURN(auto publisher, Publisher::Join(options, part, weights.First(), std::move(transport)));
  pipe->Report({{"event", "ready"}, {"plan_seconds", publisher->stats().plan_seconds}});

  while (true) {
    HR_ASSIGN_OR_RETURN(const std::optional<DemoJson> order, pipe->Next(absl::Milliseconds(50)));
    HR_RETURN_IF_ERROR(publisher->status());
    if (!order) continue;
    if (order->contains("quit")) break;
    const uint64_t generation = (*order)["publish"];
    HR_RETURN_IF_ERROR(weights.Step(generation));
    HR_RETURN_IF_ERROR(publisher->Publish(generation, absl::Now() + kPatience, weights.stream()));
    const PublisherStats stats = publisher->stats();
    pipe->Report({{"event", "published"},
                  {"generation", generation},
                  {"snapshot_seconds", stats.snapshot_seconds},
                  {"stall_seconds", stats.stall_seconds},
                  {"snapshot_bytes", stats.snapshot_bytes},
                  {"peak_staging_bytes", stats.peak_staging_bytes}});
  }
  return publisher->Close(absl::Now() + kPatience);
}

}  // namespace

int RunDemoTrainer() {
  RankPipe pipe;
  const absl::Status status = Train(&pipe);
  return status.ok() ? 0 : pipe.ReportError(status);
}

}  // namespace headrace
