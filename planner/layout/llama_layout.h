#ifndef HEADRACE_PLANNER_LAYOUT_LLAMA_LAYOUT_H_
#define HEADRACE_PLANNER_LAYOUT_LLAMA_LAYOUT_H_

// Layout rules of the Llama family (Llama, SmolLM2, Qwen2 and Qwen3 dense: grouped-query attention, a gated MLP): what
// the ranks of three kinds of system hold. Tensors have their Hugging Face names
// (https://github.com/huggingface/transformers, models/llama/modeling_llama.py).
//
//   trainer, Megatron   https://github.com/NVIDIA/Megatron-LM, core/transformer/attention.py (linear_qkv: per KV group
//                       the group's q rows, k, v), mlp.py (linear_fc1: gate, up), core/tensor_parallel/layers.py
//   trainer, FSDP2      each tensor Shard(0) over all ranks
//   engine              https://github.com/vllm-project/vllm, model_executor/layers/linear.py (QKVParallelLinear,
//                       MergedColumnParallelLinear), vocab_parallel_embedding.py
//
// Every function gives one rank's buffers, row-major, in the model's order: embedding, layers, final norm, head. All
// shapes and rows count elements. Pure and thread-safe. All of them refuse
//   invalid_option  a size in the config that is below 1 (layers: below 0), more than 65536 layers or heads, a rank
//                   outside its system, a TP, DP or rank count below 1, fewer vocab_rows than the vocabulary
//   shape_mismatch  KV heads that do not divide the heads, and what each function adds
//   out_of_bounds   a buffer that reaches 2^63 bytes

#include <vector>

#include "absl/status/statusor.h"
#include "planner/dtype.h"
#include "planner/manifest.h"

namespace headrace {

struct LlamaConfig {
  Index hidden = 0;
  Index intermediate = 0;
  Index layers = 0;
  Index heads = 0;     // query heads
  Index kv_heads = 0;  // divides heads
  Index head_dim = 0;
  Index vocab = 0;
  bool tied = false;            // the output head is the embedding: no lm_head.weight
  bool qk_norm = false;         // q_norm and k_norm of one head's length (Qwen3)
  bool attention_bias = false;  // biases of q, k and v, not of o (Qwen2)
  Dtype dtype = Dtype::kBF16;   // of every tensor
};

// The checkpoint's tensors, sorted by name.
absl::StatusOr<std::vector<TensorSpec>> LlamaTensors(const LlamaConfig& config);

// A Megatron rank: dp_index * tp + tp_index. DP replicas hold the same.
//   embedding.word_embeddings.weight, output_layer.weight (untied)   rows, padded to vocab_rows by rows that stay
//   (keep) decoder.layers.N.self_attention.linear_qkv.{weight,bias}         rows of the interleaved groups, cut evenly
//     wherever the cut falls: SmolLM2's 3 groups of 3 q, k, v heads of 64 are 960 rows; TP 2 cuts the second group
//   decoder.layers.N.self_attention.linear_proj.weight, .mlp.linear_fc2.weight      columns
//   decoder.layers.N.mlp.linear_fc1.weight                           [rank's gate rows; rank's up rows]
//   norms: linear_qkv.layer_norm_weight, linear_fc1.layer_norm_weight, {q,k}_layernorm.weight, decoder.final_layernorm
//   shape_mismatch  TP that does not divide the interleaved rows, the heads' columns, intermediate or vocab_rows
absl::StatusOr<std::vector<Buffer>> MegatronTrainerBuffers(const LlamaConfig& config, Index tp, Index dp, Index rank,
                                                           Index vocab_rows);

// An FSDP2 rank: every tensor under its own name, Shard(0) by ceil chunks over `ranks`, in dtype `master` and converted
// when that is not the config's. A rank that gets no rows has a buffer [0, ...] without pieces.
//   dtype_mismatch  a master dtype that cannot be converted
absl::StatusOr<std::vector<Buffer>> FsdpTrainerBuffers(const LlamaConfig& config, Index ranks, Index rank,
                                                       Dtype master);

// A tensor-parallel engine's rank.
//   model.embed_tokens.weight, lm_head.weight    rows, padded to vocab_rows by zero rows, cut evenly; a tied lm_head is
//                                                an alias of the embedding, in the same storage
//   model.layers.N.self_attn.qkv_proj.{weight,bias}     [q; k; v] of the rank's heads; KV heads by KvHeadsOf
//   model.layers.N.self_attn.o_proj.weight, .mlp.down_proj.weight          columns
//   model.layers.N.mlp.gate_up_proj.weight              [rank's gate rows; rank's up rows]
//   norms                                               whole
//   shape_mismatch  TP that does not divide the heads, intermediate or vocab_rows, or that KvHeadsOf refuses
absl::StatusOr<std::vector<Buffer>> EngineBuffers(const LlamaConfig& config, Index tp, Index rank, Index vocab_rows);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_LAYOUT_LLAMA_LAYOUT_H_
