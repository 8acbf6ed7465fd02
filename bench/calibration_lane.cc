#include "bench/calibration_lane.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
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
constexpr int64_t kStagingBytes = 64 << 20;

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

// The edge between both ranks. A lane's plan has no streams.
Edge EdgeOf(const Plan& plan) {
  return *std::find_if(plan.edges.begin(), plan.edges.end(),
                       [](const Edge& e) { return e.source_rank == 0 && e.destination_rank == 0; });
}

class Trainer {
 public:
  static absl::StatusOr<std::shared_ptr<Trainer>> New(const Manifest& manifest, const Plan& plan,
                                                      const std::string& transport, int64_t chunk_bytes) {
    auto trainer = std::make_shared<Trainer>(plan, chunk_bytes);
    HR_ASSIGN_OR_RETURN(RankMemory memory, RankMemory::Allocate(manifest.source, 0));
    std::map<int, const std::byte*> weights;
    for (const auto& [i, first] : memory.first()) {
      FillRefit(manifest, manifest.source[i], kGeneration, first);
      weights[i] = first;
    }
    trainer->writer_ = std::make_unique<SnapshotWriter>(manifest, plan, 0, std::move(weights));
    HR_ASSIGN_OR_RETURN(trainer->transport_, NewTransport(transport));
    HR_ASSIGN_OR_RETURN(trainer->slot_, trainer->transport_->AllocateRegion(trainer->writer_->layout().bytes()));
    HR_ASSIGN_OR_RETURN(trainer->sums_, trainer->transport_->AllocateRegion(trainer->writer_->sums_layout().bytes()));
    trainer->chunk_ = std::make_unique<std::byte[]>(chunk_bytes);
    return trainer;
  }
  Trainer(const Plan& plan, int64_t chunk_bytes)
      : plan_(plan), stream_(plan, EdgeOf(plan), chunk_bytes), chunk_bytes_(chunk_bytes) {}

  absl::StatusOr<Json> Do(const std::string& what, const Json& order) {
    if (what == "describe") {
      Snapshot();
      return Json{{"address", absl::BytesToHexString(transport_->address())},
                  {"slot", absl::BytesToHexString(slot_->key())},
                  {"sums", absl::BytesToHexString(sums_->key())}};
    }
    if (what == "connect") {
      HR_ASSIGN_OR_RETURN(sender_, Sender::Create(transport_.get(), chunk_bytes_, kStagingBytes));
      HR_ASSIGN_OR_RETURN(peer_,
                          transport_->Connect(absl::HexStringToBytes(order["address"].get<std::string>()), Soon()));
      return Json::object();
    }
    const Clocks clocks;
    for (int i = 0; i < order["times"]; ++i) {
      if (what == NameOfStep(LaneStep::kSnapshot)) {
        Snapshot();
      } else if (what == NameOfStep(LaneStep::kPack)) {
        for (int64_t m = 0; m < stream_.messages(); ++m) {
          stream_.Pack(m, SumsOfEdge(), Published(), {chunk_.get(), static_cast<size_t>(stream_.message_bytes(m))});
        }
      } else {
        Send();
      }
    }
    return clocks.Since();
  }

 private:
  absl::Span<std::byte> Sums() { return writer_->sums_layout().Of(0, sums_->bytes()); }
  absl::Span<const std::byte> SumsOfEdge() { return Sums().subspan(writer_->sums_layout().Offset(stream_.edge())); }
  SourceOf Published() { return writer_->Published(slot_->bytes()); }
  void Snapshot() { writer_->Write(slot_->bytes(), Sums(), kIncarnation, kGeneration); }
  void Send() {
    const uint64_t tag = StreamTags::Create(*transport_, plan_, kEpoch)->Of(stream_.edge(), kGeneration);
    sender_->Start(peer_, &stream_, Published(), /*slot=*/0, SumsOfEdge(), tag);
    while (sender_->active() > 0) sender_->Progress(absl::Milliseconds(1));
  }

  const Plan& plan_;
  const EdgeStream stream_;
  const int64_t chunk_bytes_;
  std::unique_ptr<SnapshotWriter> writer_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Region> slot_, sums_;
  std::unique_ptr<std::byte[]> chunk_;
  std::unique_ptr<Sender> sender_;
  PeerId peer_ = 0;
};

class Worker {
 public:
  static absl::StatusOr<std::shared_ptr<Worker>> New(const Manifest& manifest, const Plan& plan,
                                                     const std::string& transport, int64_t chunk_bytes) {
    auto worker = std::make_shared<Worker>(manifest, plan, chunk_bytes);
    HR_ASSIGN_OR_RETURN(RankMemory memory, RankMemory::Allocate(manifest.destination, 0));
    worker->live_ = memory.first();
    HR_ASSIGN_OR_RETURN(worker->shadow_, ShadowMemory::Allocate(manifest, 0, {}));
    HR_ASSIGN_OR_RETURN(worker->transport_, NewTransport(transport));
    worker->chunk_ = std::make_unique<std::byte[]>(chunk_bytes);
    return worker;
  }
  Worker(const Manifest& manifest, const Plan& plan, int64_t chunk_bytes)
      : manifest_(manifest),
        plan_(plan),
        stream_(plan, EdgeOf(plan), chunk_bytes),
        chunk_bytes_(chunk_bytes),
        commit_(manifest, plan, 0) {}

  absl::StatusOr<Json> Do(const std::string& what, const Json& order) {
    if (what == "connect") return Connect(order);
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
  absl::StatusOr<Json> Connect(const Json& order) {
    const auto bytes = [&](const char* field) { return absl::HexStringToBytes(order[field].get<std::string>()); };
    IncomingEdge edge;
    edge.edge = stream_.edge();
    edge.name = "the trainer";
    edge.address = bytes("address");
    if (transport_->capabilities().map) {
      edge.layout = std::make_shared<SlotLayout>(manifest_, 0);
      edge.sums_layout = std::make_shared<SumsLayout>(plan_, 0);
      HR_ASSIGN_OR_RETURN(const PeerId peer, transport_->Connect(edge.address, Soon()));
      HR_ASSIGN_OR_RETURN(edge.slots.emplace_back(), transport_->Map(peer, bytes("slot"), Soon()));
      HR_ASSIGN_OR_RETURN(edge.sums, transport_->Map(peer, bytes("sums"), Soon()));
    }
    HR_ASSIGN_OR_RETURN(executor_, Executor::Create(manifest_, plan_, transport_.get(), {std::move(edge)}, kIncarnation,
                                                    {chunk_bytes_, kStagingBytes, kEpoch}));
    return Json{{"address", absl::BytesToHexString(transport_->address())}};
  }

  absl::Status Receive(const std::map<int, std::byte*>& destination) {
    Executor::Request request;
    request.generation = kGeneration;
    request.slot_of_edge = {0};
    request.destination = destination;
    request.deadline = Soon();
    request.start = [](size_t) { return absl::OkStatus(); };  // the trainer was told
    request.interrupted = [] { return absl::OkStatus(); };
    TransferStats stats;
    return executor_->Run(std::move(request), &stats);
  }

  void Unpack() {
    std::vector<uint64_t> wanted(stream_.boxes()), got(stream_.edge().count);
    for (int64_t m = 0; m < stream_.messages(); ++m) {
      stream_.Unpack(
          m, {chunk_.get(), static_cast<size_t>(stream_.message_bytes(m))}, [&](int b) { return live_.at(b); },
          absl::MakeSpan(wanted), absl::MakeSpan(got));
    }
  }

  const Manifest& manifest_;
  const Plan& plan_;
  const EdgeStream stream_;
  const int64_t chunk_bytes_;
  const CommitBoxes commit_;
  std::map<int, std::byte*> live_;
  std::unique_ptr<ShadowMemory> shadow_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<std::byte[]> chunk_;
  std::unique_ptr<Executor> executor_;
};

template <typename Rank>
absl::StatusOr<ForkedProcess> ForkRank(const char* name, const Manifest& manifest, const Plan& plan,
                                       const std::string& transport, int64_t chunk_bytes) {
  return ForkedProcess::Fork(name, [&]() -> absl::StatusOr<ForkedProcess::Obey> {
    HR_ASSIGN_OR_RETURN(std::shared_ptr<Rank> rank, Rank::New(manifest, plan, transport, chunk_bytes));
    return [rank](const std::string& what, const Json& order) { return rank->Do(what, order); };
  });
}

}  // namespace

absl::StatusOr<CalibrationLane> CalibrationLane::Fork(const Manifest& manifest, const Plan& plan,
                                                      const std::string& transport, int64_t chunk_bytes) {
  HR_ASSIGN_OR_RETURN(ForkedProcess trainer, ForkRank<Trainer>("the trainer", manifest, plan, transport, chunk_bytes));
  HR_ASSIGN_OR_RETURN(ForkedProcess worker, ForkRank<Worker>("the worker", manifest, plan, transport, chunk_bytes));
  return CalibrationLane(std::move(trainer), std::move(worker), transport != "host");
}

absl::Status CalibrationLane::Connect() const {
  HR_ASSIGN_OR_RETURN(Json keys, trainer_.Do({{"do", "describe"}}));
  keys["do"] = "connect";
  HR_ASSIGN_OR_RETURN(Json address, worker_.Do(keys));
  address["do"] = "connect";
  if (two_sided_) HR_RETURN_IF_ERROR(trainer_.Do(address).status());
  for (LaneStep step : {LaneStep::kReceiveShadow, LaneStep::kReceive}) {
    Begin(step, 1);
    HR_RETURN_IF_ERROR(End(step, 1).status());
  }
  return absl::OkStatus();
}

bool CalibrationLane::IsOfTrainer(LaneStep step) const {
  const bool transfer = step == LaneStep::kReceive || step == LaneStep::kReceiveShadow;
  return !IsOfWorker(step) || (transfer && two_sided_);
}

void CalibrationLane::Begin(LaneStep step, int times) const {
  const Json order{{"do", NameOfStep(step)}, {"times", times}};
  if (IsOfWorker(step)) worker_.Tell(order);
  if (IsOfTrainer(step)) trainer_.Tell(order);
}

absl::StatusOr<LaneTimes> CalibrationLane::End(LaneStep step, int times) const {
  LaneTimes result;
  const auto add = [&](const ForkedProcess& process, double* cpu) -> absl::Status {
    HR_ASSIGN_OR_RETURN(const Json answer, process.Hear());
    result.seconds = std::max(result.seconds, answer["seconds"].get<double>() / times);
    *cpu = answer["cpu"].get<double>() / times;
    return absl::OkStatus();
  };
  if (IsOfWorker(step)) HR_RETURN_IF_ERROR(add(worker_, &result.worker_cpu));
  if (IsOfTrainer(step)) HR_RETURN_IF_ERROR(add(trainer_, &result.trainer_cpu));
  return result;
}

}  // namespace headrace::bench
