#ifndef HEADRACE_TESTS_LAYOUTS_SIDES_H_
#define HEADRACE_TESTS_LAYOUTS_SIDES_H_

// Test only. What the ranks of a trainer and of an engine hold of a tiny model, as frameworks lay it out: expressions
// of planner/layout, no knowledge of their own about pieces.

#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/layout/experts.h"
#include "planner/layout/parallel.h"
#include "planner/manifest.h"
#include "tests/layouts/tiny_model.h"

namespace headrace {

struct TrainerOptions {
  ParallelLayout layout;
  Index vpp = 1;
  Index vocab_multiple = 1;     // padded to vocab_multiple * tp
  bool experts_stacked = true;  // one buffer, or one per expert
  bool experts_turned = false;  // [E, in, out]
  bool flat = false;            // the optimizer's flat shards instead of the weights
  Index flat_start = 1;         // where a tensor begins in a bucket
};

struct EngineOptions {
  ParallelLayout layout;
  Index vocab_multiple = 1;
  ExpertOrder expert_order = ExpertOrder::kLinear;
  bool experts_stacked = true;
  bool experts_turned = false;
  GateUpOrder gate_up_order = GateUpOrder::kGateFirst;
  GateUpRows gate_up_rows = GateUpRows::kStacked;
  Index pad_multiple = 1;   // of an expert's intermediate shard, where there are no scales
  bool mla_halves = false;  // kv_b as W_UK and W_UV, where there are no scales
};

// One list of buffers per rank. Errors: what the rules refuse, mostly sizes that do not divide (shape_mismatch) and
// scale blocks that are cut (misaligned_block).
absl::StatusOr<std::vector<std::vector<Buffer>>> TrainerSide(const TinyModel& model, const Checkpoint& checkpoint,
                                                             const TrainerOptions& options);
absl::StatusOr<std::vector<std::vector<Buffer>>> EngineSide(const TinyModel& model, const Checkpoint& checkpoint,
                                                            const EngineOptions& options);

// A trainer that shards every tensor by torch's placements, chosen at random per tensor, over a mesh; `master` is F32
// (converted) or BF16 for tensors that are BF16.
absl::StatusOr<std::vector<std::vector<Buffer>>> PlacementSide(const Checkpoint& checkpoint, const Mesh& mesh,
                                                               Dtype master, std::mt19937_64& random);

}  // namespace headrace

#endif  // HEADRACE_TESTS_LAYOUTS_SIDES_H_
