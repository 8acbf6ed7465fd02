#ifndef HEADRACE_BENCH_REFIT_MODEL_H_
#define HEADRACE_BENCH_REFIT_MODEL_H_

// The model that refit_bench moves: a mixture-of-experts transformer of about 2 GiB in BF16, its experts one tensor
// each under their Hugging Face names in the trainer, stacked and fused in the engine.
//
//   trainer   `trainers` FSDP ranks; every tensor Shard(0) by ceil chunks
//   engine    `workers` tensor-parallel ranks; names and shapes as vLLM's FusedMoE and QKVParallelLinear have them:
//     model.embed_tokens.weight, lm_head.weight          rows cut evenly
//     model.layers.N.self_attn.qkv_proj.weight           [q; k; v] of the worker's heads
//     model.layers.N.self_attn.o_proj.weight             columns
//     model.layers.N.mlp.gate.weight (router), norms     whole
//     model.layers.N.mlp.experts.w13_weight              [experts, 2 * intermediate / workers, hidden]: gate, then up
//     model.layers.N.mlp.experts.w2_weight               [experts, hidden, intermediate / workers]

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "planner/manifest.h"

namespace headrace::bench {

struct RefitModel {
  Index layers = 8;
  Index hidden = 1024;
  Index experts = 32;
  Index intermediate = 1280;
  Index heads = 16;
  Index kv_heads = 4;
  Index head_dim = 64;
  Index vocab = 32768;
  Index trainers = 4;
  Index workers = 2;
  bool broadcast = false;  // every tensor has a name that the policy hybrid broadcasts: "qkv." before its own
};

// Source ranks are 0 to trainers - 1, destination ranks 0 to workers - 1. kShapeMismatch when the workers do not divide
// heads, KV heads, intermediate size and vocabulary.
absl::StatusOr<Manifest> RefitManifest(const RefitModel& model);

// What element words of a generation hold: `word` counts groups of four elements in the tensor's row-major order.
uint64_t RefitWord(int tensor, Index word, uint64_t generation);

// Writes `generation` into a source buffer of the refit, or checks a destination buffer of it. Both walk the pieces of
// the manifest and know nothing of plans; every row of a piece is a multiple of four elements long and aligned to it.
void FillRefit(const Manifest& manifest, const Buffer& buffer, uint64_t generation, std::byte* memory);
// The number of wrong words.
int64_t CheckRefit(const Manifest& manifest, const Buffer& buffer, uint64_t generation, const std::byte* memory);

}  // namespace headrace::bench

#endif  // HEADRACE_BENCH_REFIT_MODEL_H_
