#include "cli/demo/scenario.h"

#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr int kMegatronTp = 2;
constexpr int kMegatronDp = 3;
constexpr int kFsdpRanks = 5;
constexpr Index kVocabUnit = 192;

Index RoundUp(Index n, Index unit) { return (n + unit - 1) / unit * unit; }

uint64_t SplitMix64(uint64_t z) {
  z += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// The bits that a step flips.
uint16_t Flip(uint64_t generation) { return static_cast<uint16_t>((generation - 1) & 7); }

// The FP32 master of element `element` of the n-th tensor.
uint32_t Master(uint16_t bits, uint64_t generation, uint64_t n, uint64_t element) {
  const uint64_t mixed = SplitMix64((n << 40) + element);
  uint32_t low = static_cast<uint32_t>(mixed >> 48);
  if (mixed >> 56 < 16) low = 0x8000;      // a tie
  if ((bits & 0x7F80) == 0x7F80) low = 0;  // infinities and NaNs stay what they are
  return static_cast<uint32_t>(bits ^ Flip(generation)) << 16 | low;
}

// Calls f(memory element, tensor element) for the runs of a piece: `count` consecutive elements of both.
template <typename F>
void ForEachRun(const Buffer& buffer, const TensorSpec& tensor, const Piece& piece, F&& f) {
  const size_t axes = piece.shape.size();
  for (Index e : piece.shape) {
    if (e == 0) return;
  }
  Extents at(axes, 0);
  while (true) {
    Index place = 0, element = 0;
    for (size_t i = 0; i < axes; ++i) {
      place += (piece.buffer_offset[i] + at[i]) * buffer.strides[i];
      element = element * tensor.shape[i] + piece.tensor_offset[i] + at[i];
    }
    f(place, element, piece.shape[axes - 1]);
    size_t i = axes - 1;
    while (i > 0 && ++at[i - 1] == piece.shape[i - 1]) at[--i] = 0;
    if (i == 0) return;
  }
}

}  // namespace

absl::StatusOr<TrainerKind> TrainerKindFromName(const std::string& name) {
  if (name == "megatron") return TrainerKind::kMegatron;
  if (name == "fsdp") return TrainerKind::kFsdp;
  return Error(ErrorCode::kInvalidOption, absl::StrCat("no scenario \"", name, "\"; there are megatron and fsdp"));
}

std::string NameOf(TrainerKind kind) { return kind == TrainerKind::kMegatron ? "megatron" : "fsdp"; }

std::string Describe(TrainerKind kind) {
  return kind == TrainerKind::kMegatron ? "Megatron TP2 x DP3, QKV interleaved by group and cut inside a group"
                                        : "FSDP over 5 ranks, FP32 masters rounded to BF16 by the publishers";
}

absl::StatusOr<Scenario> MakeScenario(TrainerKind kind, const LlamaConfig& model) {
  if (DtypeBits(model.dtype) != 16) {
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat("the demo takes BF16 or F16 checkpoints, not ", DtypeName(model.dtype)));
  }
  if (kind == TrainerKind::kFsdp && model.dtype != Dtype::kBF16) {
    return Error(ErrorCode::kInvalidOption, "the fsdp scenario takes BF16 checkpoints");
  }
  Scenario s;
  s.kind = kind;
  s.model = model;
  s.trainers = kind == TrainerKind::kMegatron ? kMegatronTp * kMegatronDp : kFsdpRanks;
  s.trainer_vocab_rows = RoundUp(model.vocab, 128 * kMegatronTp);
  s.engine_vocab_rows = (model.vocab / kVocabUnit + 1) * kVocabUnit;
  absl::Status refused;
  for (int tp : {3, 2}) {
    refused = EngineBuffers(model, tp, 0, s.engine_vocab_rows).status();
    if (!refused.ok()) continue;
    s.engines = {tp, 1};
    return s;
  }
  return refused;
}

absl::StatusOr<Manifest> TrainerPart(const Scenario& scenario, int rank) {
  Manifest part;
  HR_ASSIGN_OR_RETURN(part.tensors, LlamaTensors(scenario.model));
  if (scenario.kind == TrainerKind::kMegatron) {
    HR_ASSIGN_OR_RETURN(part.source, MegatronTrainerBuffers(scenario.model, kMegatronTp, kMegatronDp, rank,
                                                            scenario.trainer_vocab_rows));
  } else {
    HR_ASSIGN_OR_RETURN(part.source, FsdpTrainerBuffers(scenario.model, kFsdpRanks, rank, Dtype::kF32));
  }
  for (Buffer& b : part.source) b.rank = rank;
  part.topology.source = {{rank, "localhost", "", ""}};
  return part;
}

absl::StatusOr<Manifest> WorkerPart(const Scenario& scenario, int engine, int worker) {
  int64_t rank = worker;
  for (int e = 0; e < engine; ++e) rank += scenario.engines[e];
  Manifest part;
  HR_ASSIGN_OR_RETURN(part.destination,
                      EngineBuffers(scenario.model, scenario.engines[engine], worker, scenario.engine_vocab_rows));
  for (Buffer& b : part.destination) b.rank = rank;
  part.topology.destination = {{rank, "localhost", "", absl::StrCat("e", engine)}};
  return part;
}

absl::StatusOr<Manifest> WholeManifest(const Scenario& scenario) {
  Manifest whole;
  for (int r = 0; r < scenario.trainers; ++r) {
    HR_ASSIGN_OR_RETURN(Manifest part, TrainerPart(scenario, r));
    whole.tensors = part.tensors;
    whole.source.insert(whole.source.end(), part.source.begin(), part.source.end());
    whole.topology.source.push_back(part.topology.source[0]);
  }
  for (size_t e = 0; e < scenario.engines.size(); ++e) {
    for (int w = 0; w < scenario.engines[e]; ++w) {
      HR_ASSIGN_OR_RETURN(Manifest part, WorkerPart(scenario, static_cast<int>(e), w));
      whole.destination.insert(whole.destination.end(), part.destination.begin(), part.destination.end());
      whole.topology.destination.push_back(part.topology.destination[0]);
    }
  }
  return whole;
}

absl::StatusOr<Shadow> ChooseShadow(const std::string& wanted, const std::string& transport, bool gpu) {
  const auto refuse = [](absl::string_view what) { return Error(ErrorCode::kInvalidOption, what); };
  if (transport == "cuda" && !gpu) return refuse("the transport cuda maps GPU memory: add --gpu");
  const bool into_gpu = gpu && transport != "host";  // host maps the memory of processes alone
  const std::string name = !wanted.empty() ? wanted : into_gpu ? "device" : "host";
  if (name == "host") {
    if (transport != "cuda") return Shadow::kHost;
    return refuse("over the transport cuda all bytes stay on the GPUs: take --shadow device or off");
  }
  if (name == "device") {
    if (into_gpu) return Shadow::kDevice;
    if (!gpu) return refuse("a shadow in GPU memory needs weights there: add --gpu");
  } else if (name == "off") {
    if (into_gpu || !gpu) return Shadow::kOff;
  } else {
    return refuse(absl::StrCat("no shadow \"", name, "\"; there are host, device and off"));
  }
  return refuse("the transport host does not reach GPU memory: take --shadow host, or --transport cuda, nccl or ucx");
}

std::string NameOf(Shadow shadow) {
  return shadow == Shadow::kHost ? "host" : shadow == Shadow::kDevice ? "device" : "off";
}

void WriteWeights(const Scenario& scenario, const Checkpoint& checkpoint, const Buffer& buffer, uint64_t generation,
                  std::byte* memory) {
  for (const Piece& piece : buffer.pieces) {
    if (piece.kind != PieceKind::kTensor) continue;
    const CheckpointTensor* tensor = checkpoint.Find(piece.tensor);
    const uint64_t n = static_cast<uint64_t>(tensor - checkpoint.tensors().data());
    ForEachRun(buffer, tensor->spec, piece, [&](Index place, Index element, Index count) {
      const std::byte* from = tensor->bytes.data() + element * 2;
      for (Index i = 0; i < count; ++i) {
        uint16_t bits;
        std::memcpy(&bits, from + i * 2, sizeof bits);
        if (scenario.kind == TrainerKind::kMegatron) {
          bits ^= Flip(generation);
          std::memcpy(memory + (place + i) * 2, &bits, sizeof bits);
        } else {
          const uint32_t master = Master(bits, generation, n, static_cast<uint64_t>(element + i));
          std::memcpy(memory + (place + i) * 4, &master, sizeof master);
        }
      }
    });
  }
}

}  // namespace headrace
