#ifndef HEADRACE_PLANNER_BROADCAST_POLICY_H_
#define HEADRACE_PLANNER_BROADCAST_POLICY_H_

// Which tensors the policy `hybrid` broadcasts: a choice that a user makes by name, to get the division of work of the
// published M2N systems. Whether a tensor is broadcast or resharded never changes a byte of the result.
//
// NeMo RL's reshard refit (nemo_rl/weight_sync/nccl_reshard_utils.py) sends the projections of feed-forward layers and
// experts from shard to shard and broadcasts the rest, because fused QKV and Mamba buffers of the two sides lie in
// different orders that its reshard cannot express. Of that rest, `hybrid` broadcasts the two kinds that are large.
// Embeddings, norms, routers and output projections are plain copies here and stay with the reshard.
//
//   kind    a component of the name (between dots) is
//   QKV     q_proj k_proj v_proj qkv_proj qkv query_key_value linear_qkv c_attn wqkv Wqkv W_pack,
//           of MLA: q_a_proj q_b_proj kv_a_proj_with_mqa kv_b_proj linear_q_down_proj linear_q_up_proj
//           linear_kv_down_proj linear_kv_up_proj
//   Mamba   A_log D dt_bias conv1d in_proj dt_proj x_proj in_proj_qkvz in_proj_ba in_proj_qkv in_proj_z
//           in_proj_a in_proj_b,
//           under a component mixer, mamba, linear_attn, ssm or gated_delta_net
//
// What belongs to such a weight (bias, block scale) has the same component, and so goes the same way.

#include <string>

#include "absl/strings/string_view.h"

namespace headrace {

// "QKV (q_proj)" or "Mamba (mixer.in_proj)" for a tensor that `hybrid` broadcasts, otherwise empty.
std::string BroadcastKind(absl::string_view tensor);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_BROADCAST_POLICY_H_
