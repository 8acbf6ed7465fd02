#include "bench/calibration_lanes.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/rank_memory.h"
#include "bench/refit_model.h"
#include "loader/edge_stream.h"
#include "loader/executor.h"
#include "loader/sender.h"
#include "loader/shadow.h"
#include "loader/snapshot.h"
#include "loader/stream_tags.h"
#include "loader/transport/factory.h"
#include "planner/status.h"

namespace headrace::bench {
namespace {

constexpr uint64_t kIncarnation = 1, kGeneration = 1, kEpoch = 1;

absl::Time Soon() { return absl::Now() + absl::Minutes(2); }

const char* NameOfStep(LaneStep step) {
  switch (step) {
    case LaneStep::kSnapshot:
      return "snapshot";
    case LaneStep::kPack:
      return "pack";
    case LaneStep::kUnpack:
      return "unpack";
    case LaneStep::kReceive:
      return "receive";
    case LaneStep::kReceiveShadow:
      return "receive into shadow";
    case LaneStep::kCommit:
      return "commit";
  }
  return "";
}

struct Clocks {
  double seconds = MonotonicSeconds(), cpu = ProcessCpuSeconds();
  Json Since() const { return {{"seconds", MonotonicSeconds() - seconds}, {"cpu", ProcessCpuSeconds() - cpu}}; }
};

std::string Hex(absl::string_view bytes) { return absl::BytesToHexString(bytes); }
std::string Bytes(const Json& object, const char* field) {
  return absl::HexStringToBytes(object[field].get<std::string>());
}

class Trainer {
 public:
  static absl::StatusOr<std::shared_ptr<Trainer>> New(const Manifest& manifest, const Plan& plan, int rank, int workers,
                                                      const std::string& transport, int64_t chunk_bytes) {
    auto trainer = std::make_shared<Trainer>(plan, rank, workers, chunk_bytes);
    HR_ASSIGN_OR_RETURN(RankMemory memory, RankMemory::Allocate(manifest.source, rank));
    std::map<int, const std::byte*> weights;
    for (const auto& [i, first] : memory.first()) {
      FillRefit(manifest, manifest.source[i], kGeneration, first);
      weights[i] = first;
    }
    trainer->writer_ = std::make_unique<SnapshotWriter>(manifest, plan, rank, std::move(weights));
    HR_ASSIGN_OR_RETURN(trainer->transport_, NewTransport(transport));
    HR_ASSIGN_OR_RETURN(trainer->slot_, trainer->transport_->AllocateRegion(trainer->writer_->layout().bytes()));
    HR_ASSIGN_OR_RETURN(trainer->sums_, trainer->transport_->AllocateRegion(trainer->writer_->sums_layout().bytes()));
    return trainer;
  }
  Trainer(const Plan& plan, int rank, int workers, int64_t chunk_bytes)
      : plan_(plan), chunk_bytes_(chunk_bytes), chunk_(std::make_unique<std::byte[]>(chunk_bytes)) {
    for (const Edge& edge : plan.edges) {
      if (edge.source_rank == rank && edge.destination_rank < workers) streams_.emplace_back(plan, edge, chunk_bytes);
    }
  }

  absl::StatusOr<Json> Do(const std::string& what, const Json& order) {
    if (what == "describe") {
      Snapshot();
      return Json{{"address", Hex(transport_->address())}, {"slot", Hex(slot_->key())}, {"sums", Hex(sums_->key())}};
    }
    if (what == "connect") {
      HR_ASSIGN_OR_RETURN(sender_, Sender::Create(transport_.get(), chunk_bytes_, kStagingBytes));
      for (const Json& worker : order["workers"]) {
        HR_ASSIGN_OR_RETURN(peers_.emplace_back(), transport_->Connect(Bytes(worker, "address"), Soon()));
      }
      return Json::object();
    }
    const Clocks clocks;
    for (int i = 0; i < order["times"]; ++i) {
      if (what == NameOfStep(LaneStep::kSnapshot)) {
        Snapshot();
      } else if (what == NameOfStep(LaneStep::kPack)) {
        Pack();
      } else {
        Send();
      }
    }
    return clocks.Since();
  }

 private:
  absl::Span<std::byte> Sums() { return writer_->sums_layout().Of(0, sums_->bytes()); }
  absl::Span<const std::byte> SumsOf(const EdgeStream& stream) {
    return Sums().subspan(writer_->sums_layout().Offset(stream.edge()));
  }
  SourceOf Published() { return writer_->Published(slot_->bytes()); }

  void Snapshot() { writer_->Write(slot_->bytes(), Sums(), kIncarnation, kGeneration); }
  void Pack() {
    for (const EdgeStream& stream : streams_) {
      for (int64_t m = 0; m < stream.messages(); ++m) {
        stream.Pack(m, SumsOf(stream), Published(), {chunk_.get(), static_cast<size_t>(stream.message_bytes(m))});
      }
    }
  }
  void Send() {
    const auto tags = StreamTags::Create(*transport_, plan_, kEpoch);
    for (const EdgeStream& stream : streams_) {
      sender_->Start(peers_[stream.edge().destination_rank], &stream, Published(), /*slot=*/0, SumsOf(stream),
                     tags->Of(stream.edge(), kGeneration));
    }
    while (sender_->active() > 0) (void)sender_->Progress(absl::Milliseconds(1));  // the CPU packs
  }

  const Plan& plan_;
  const int64_t chunk_bytes_;
  const std::unique_ptr<std::byte[]> chunk_;
  std::vector<EdgeStream> streams_;
  std::unique_ptr<SnapshotWriter> writer_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Region> slot_, sums_;
  std::unique_ptr<Sender> sender_;
  std::vector<PeerId> peers_;  // by worker
};

class Worker {
 public:
  static absl::StatusOr<std::shared_ptr<Worker>> New(const Manifest& manifest, const Plan& plan, int rank, int,
                                                     const std::string& transport, int64_t chunk_bytes) {
    auto worker = std::make_shared<Worker>(manifest, plan, rank, chunk_bytes);
    HR_ASSIGN_OR_RETURN(RankMemory memory, RankMemory::Allocate(manifest.destination, rank));
    worker->live_ = memory.first();
    HR_ASSIGN_OR_RETURN(worker->shadow_, ShadowMemory::Allocate(manifest, rank, {}));
    HR_ASSIGN_OR_RETURN(worker->transport_, NewTransport(transport));
    return worker;
  }
  Worker(const Manifest& manifest, const Plan& plan, int rank, int64_t chunk_bytes)
      : manifest_(manifest),
        plan_(plan),
        chunk_bytes_(chunk_bytes),
        chunk_(std::make_unique<std::byte[]>(chunk_bytes)),
        commit_(manifest, plan, rank) {
    for (const Edge& edge : plan.edges) {
      if (edge.destination_rank == rank) streams_.emplace_back(plan, edge, chunk_bytes);
    }
  }

  absl::StatusOr<Json> Do(const std::string& what, const Json& order) {
    if (what == "connect") return Connect(order["trainers"]);
    const Clocks clocks;
    for (int i = 0; i < order["times"]; ++i) {
      if (what == NameOfStep(LaneStep::kReceive)) {
        HR_RETURN_IF_ERROR(Receive(live_));
      } else if (what == NameOfStep(LaneStep::kReceiveShadow)) {
        HR_RETURN_IF_ERROR(Receive(shadow_->buffers()));
      } else if (what == NameOfStep(LaneStep::kUnpack)) {
        Unpack();
      } else {
        commit_.CopyAndFill(shadow_->buffers(), live_);
      }
    }
    return clocks.Since();
  }

 private:
  absl::StatusOr<Json> Connect(const Json& trainers) {
    std::vector<IncomingEdge> edges;
    for (const EdgeStream& stream : streams_) {
      const Json& trainer = trainers[stream.edge().source_rank];
      IncomingEdge edge;
      edge.edge = stream.edge();
      edge.name = absl::StrCat("trainer ", stream.edge().source_rank);
      edge.address = Bytes(trainer, "address");
      if (transport_->capabilities().map) {
        edge.layout = std::make_shared<SlotLayout>(manifest_, stream.edge().source_rank);
        edge.sums_layout = std::make_shared<SumsLayout>(plan_, stream.edge().source_rank);
        HR_ASSIGN_OR_RETURN(const PeerId peer, transport_->Connect(edge.address, Soon()));
        HR_ASSIGN_OR_RETURN(edge.slots.emplace_back(), transport_->Map(peer, Bytes(trainer, "slot"), Soon()));
        HR_ASSIGN_OR_RETURN(edge.sums, transport_->Map(peer, Bytes(trainer, "sums"), Soon()));
      }
      edges.push_back(std::move(edge));
    }
    HR_ASSIGN_OR_RETURN(executor_, Executor::Create(manifest_, plan_, transport_.get(), std::move(edges), kIncarnation,
                                                    {chunk_bytes_, kStagingBytes, kEpoch}, &cancelled_));
    return Json{{"address", Hex(transport_->address())}};
  }

  absl::Status Receive(const std::map<int, std::byte*>& destination) {
    Executor::Request request;
    request.generation = kGeneration;
    request.slot_of_edge.assign(streams_.size(), 0);
    request.destination = destination;
    request.deadline = Soon();
    request.start = [](size_t) { return absl::OkStatus(); };  // the trainers were told
    request.interrupted = [] { return absl::OkStatus(); };
    TransferStats stats;
    return executor_->Run(std::move(request), &stats);
  }

  void Unpack() {
    for (const EdgeStream& stream : streams_) {
      std::vector<uint64_t> wanted(stream.boxes()), got(stream.edge().count);
      for (int64_t m = 0; m < stream.messages(); ++m) {
        stream.Unpack(
            m, {chunk_.get(), static_cast<size_t>(stream.message_bytes(m))}, [&](int b) { return live_.at(b); },
            absl::MakeSpan(wanted), absl::MakeSpan(got));
      }
    }
  }

  const Manifest& manifest_;
  const Plan& plan_;
  const int64_t chunk_bytes_;
  const std::unique_ptr<std::byte[]> chunk_;
  const CommitBoxes commit_;
  std::vector<EdgeStream> streams_;
  std::map<int, std::byte*> live_;
  std::unique_ptr<ShadowMemory> shadow_;
  CancelledChunks cancelled_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Executor> executor_;
};

template <typename Rank>
absl::StatusOr<ForkedProcess> ForkRank(const char* name, const Manifest& manifest, const Plan& plan, int rank,
                                       int workers, const std::string& transport, int64_t chunk_bytes) {
  return ForkedProcess::Fork(absl::StrCat(name, rank), [&]() -> absl::StatusOr<ForkedProcess::Obey> {
    HR_ASSIGN_OR_RETURN(std::shared_ptr<Rank> made, Rank::New(manifest, plan, rank, workers, transport, chunk_bytes));
    return [made](const std::string& what, const Json& order) { return made->Do(what, order); };
  });
}

}  // namespace

absl::StatusOr<CalibrationLanes> CalibrationLanes::Fork(const Manifest& manifest, const Plan& plan, int workers,
                                                        const std::string& transport, int64_t chunk_bytes) {
  CalibrationLanes lanes(transport != "host");
  for (int rank = 0; rank < static_cast<int>(manifest.topology.source.size()); ++rank) {
    HR_ASSIGN_OR_RETURN(ForkedProcess forked,
                        ForkRank<Trainer>("trainer ", manifest, plan, rank, workers, transport, chunk_bytes));
    lanes.trainers_.push_back(std::move(forked));
  }
  for (int rank = 0; rank < workers; ++rank) {
    HR_ASSIGN_OR_RETURN(ForkedProcess forked,
                        ForkRank<Worker>("worker ", manifest, plan, rank, workers, transport, chunk_bytes));
    lanes.workers_.push_back(std::move(forked));
  }
  return lanes;
}

absl::Status CalibrationLanes::Connect() const {
  Json trainers = Json::array(), workers = Json::array();
  for (const ForkedProcess& trainer : trainers_) trainer.Tell({{"do", "describe"}});
  for (const ForkedProcess& trainer : trainers_) {
    HR_ASSIGN_OR_RETURN(Json described, trainer.Hear());
    trainers.push_back(std::move(described));
  }
  for (const ForkedProcess& worker : workers_) {
    HR_ASSIGN_OR_RETURN(Json connected, worker.Do({{"do", "connect"}, {"trainers", trainers}}));
    workers.push_back(std::move(connected));
  }
  if (two_sided_) {
    for (const ForkedProcess& trainer : trainers_) {
      HR_RETURN_IF_ERROR(trainer.Do({{"do", "connect"}, {"workers", workers}}).status());
    }
  }
  for (LaneStep step : {LaneStep::kReceiveShadow, LaneStep::kReceive}) {
    Begin(step, 1);
    HR_RETURN_IF_ERROR(End(step, 1).status());
  }
  return absl::OkStatus();
}

bool CalibrationLanes::IsOfTrainers(LaneStep step) const {
  const bool transfer = step == LaneStep::kReceive || step == LaneStep::kReceiveShadow;
  return !IsOfWorkers(step) || (transfer && two_sided_);
}

void CalibrationLanes::Begin(LaneStep step, int times) const {
  const Json order{{"do", NameOfStep(step)}, {"times", times}};
  if (IsOfWorkers(step)) {
    for (const ForkedProcess& worker : workers_) worker.Tell(order);
  }
  if (IsOfTrainers(step)) {
    for (const ForkedProcess& trainer : trainers_) trainer.Tell(order);
  }
}

absl::StatusOr<LaneTimes> CalibrationLanes::End(LaneStep step, int times) const {
  LaneTimes result;
  const auto add = [&](const std::vector<ForkedProcess>& processes, double* cpu) -> absl::Status {
    for (const ForkedProcess& process : processes) {
      HR_ASSIGN_OR_RETURN(const Json answer, process.Hear());
      result.seconds = std::max(result.seconds, answer["seconds"].get<double>() / times);
      *cpu += answer["cpu"].get<double>() / times;
    }
    return absl::OkStatus();
  };
  if (IsOfWorkers(step)) HR_RETURN_IF_ERROR(add(workers_, &result.worker_cpu));
  if (IsOfTrainers(step)) HR_RETURN_IF_ERROR(add(trainers_, &result.trainer_cpu));
  return result;
}

}  // namespace headrace::bench
