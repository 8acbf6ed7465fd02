#ifndef HEADRACE_CLI_DEMO_SCENARIO_H_
#define HEADRACE_CLI_DEMO_SCENARIO_H_

// What the demo runs: a trainer in one of two layouts, two engines in two others, and what a training step does to the
// weights. tools/model/oracle.py says the same in numpy, on its own.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine_adapters/safetensors/checkpoint.h"
#include "loader/receiver.h"
#include "planner/layout/llama_layout.h"
#include "planner/manifest.h"

namespace headrace {

enum class TrainerKind {
  kMegatron,  // TP2 x DP3: QKV group-interleaved, cut inside a group; weights in the checkpoint's dtype
  kFsdp,      // 5 ranks: every tensor cut by rows; FP32 masters that the publisher converts
};

absl::StatusOr<TrainerKind> TrainerKindFromName(const std::string& name);
std::string NameOf(TrainerKind kind);    // "megatron", "fsdp": the oracle's scenario names
std::string Describe(TrainerKind kind);  // "Megatron TP2 x DP3, ..."

struct Scenario {
  TrainerKind kind = TrainerKind::kMegatron;
  LlamaConfig model;
  int trainers = 0;
  std::vector<int> engines;  // tensor-parallel size of each
  Index engine_vocab_rows = 0;
  Index trainer_vocab_rows = 0;
};

// The first engine has TP 3 (or 2 where the model's heads do not allow 3), the second TP 1. The engines' vocabulary is
// padded to the next multiple of 192 rows above it: 49,152 to 49,344. Only 16-bit checkpoints: kInvalidOption.
absl::StatusOr<Scenario> MakeScenario(TrainerKind kind, const LlamaConfig& model);

// One member's part of the manifest, with its placement. Destination ranks count through all engines.
absl::StatusOr<Manifest> TrainerPart(const Scenario& scenario, int rank);
absl::StatusOr<Manifest> WorkerPart(const Scenario& scenario, int engine, int worker);
// All of them.
absl::StatusOr<Manifest> WholeManifest(const Scenario& scenario);

// Where an engine of the demo has its shadow; kOff: in place. `wanted`: "host", "device", "off", or empty: a shadow, on
// the GPU where the weights are there (`gpu`) and `transport` brings them there without the host. kInvalidOption, with
// what to do: what the library refuses (loader/receiver.h), and "cuda" without `gpu`.
absl::StatusOr<Shadow> ChooseShadow(const std::string& wanted, const std::string& transport, bool gpu);
std::string NameOf(Shadow shadow);

// Writes a trainer rank's weights of `generation` (>= 1) into the memory of one of its buffers. Generation 1 is the
// checkpoint; every step changes every weight:
//   megatron  bits ^ (generation - 1), on the lowest three bits of the mantissa
//   fsdp      FP32 masters: the same bits above 16 fractional bits that make rounding matter, ties included
void WriteWeights(const Scenario& scenario, const Checkpoint& checkpoint, const Buffer& buffer, uint64_t generation,
                  std::byte* memory);

}  // namespace headrace

#endif  // HEADRACE_CLI_DEMO_SCENARIO_H_
