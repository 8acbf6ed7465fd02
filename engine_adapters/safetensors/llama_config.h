#ifndef HEADRACE_ENGINE_ADAPTERS_SAFETENSORS_LLAMA_CONFIG_H_
#define HEADRACE_ENGINE_ADAPTERS_SAFETENSORS_LLAMA_CONFIG_H_

// From a checkpoint directory's config.json to the model that the layout rules take, proven against the tensors. Field
// names and defaults are those of https://github.com/huggingface/transformers,
// models/{llama,mistral,qwen2,qwen3}/configuration_*.py.

#include "absl/status/statusor.h"
#include "engine_adapters/safetensors/checkpoint.h"
#include "planner/layout/llama_layout.h"

namespace headrace {

// The config of a checkpoint that holds exactly the tensors of LlamaTensors(config), with their shapes and dtypes.
// Thread-safe.
//   hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, vocab_size    must be there
//   num_key_value_heads    absent or null: num_attention_heads
//   head_dim               absent or null: hidden_size / num_attention_heads; 128 for qwen3
//   tie_word_embeddings    absent: false
//   attention_bias         absent: false; qwen2 always has the biases of q, k and v
//   torch_dtype, or dtype  (the newer name) absent or null: that of the embedding
// Errors:
//   io              config.json cannot be read, is no JSON object, lacks a field, or has one of a wrong type
//   invalid_option  a model_type without layout rules (the known ones are listed), an unknown dtype, a size that
//                   LlamaTensors refuses
//   shape_mismatch  heads that do not divide hidden_size where head_dim is not given, what LlamaTensors refuses, or a
//                   tensor of another shape
//   out_of_bounds   what LlamaTensors refuses
//   dtype_mismatch  a tensor of another dtype
//   uncovered       a tensor is missing
//   unwanted        a tensor that the model does not have (such as the lm_head.weight of a tied model)
absl::StatusOr<LlamaConfig> ReadLlamaConfig(const Checkpoint& checkpoint);

}  // namespace headrace

#endif  // HEADRACE_ENGINE_ADAPTERS_SAFETENSORS_LLAMA_CONFIG_H_
