#ifndef HEADRACE_PLANNER_CLUSTER_UNIT_RULES_H_
#define HEADRACE_PLANNER_CLUSTER_UNIT_RULES_H_

// The shards of one instance of a unit (planner/models/model.h) on a side: the buffers of every tensor-parallel (FSDP)
// rank, in the algebra of planner/layout. Buffer::rank is the shard. Names keep {layer} and {expert}.
//
//   engine (vLLM)   fused buffers, cut by units of the parts (heads, groups, single rows), fewer of them than ranks
//                   replicated beside others that divide: KV heads, B and C of Mamba. What the checkpoint has group by
//                   group stays so, and is cut by groups. Scales are cut with their weight, at whole blocks. The
//                   vocabulary is padded by zeros and cut
//   Megatron        fused buffers, part after part or group by group. Parts divide. Scales are buffers of their own,
//                   whole on every rank. The vocabulary's padding is not offered
//   FSDP2           every tensor is a buffer. TP cuts what has one part, plain rows or columns, by Shard; the rest is
//                   whole on its ranks. FSDP then cuts axis 0 of what is left, by ceil chunks
//
// A shard that holds nothing of a buffer lacks it. Pure and thread-safe.

#include <vector>

#include "absl/status/statusor.h"
#include "planner/cluster/job_layout.h"
#include "planner/manifest.h"
#include "planner/models/model.h"

namespace headrace {

// Buffers by shard, from 0 on, and how many shards there are.
struct UnitShards {
  Index shards = 1;
  std::vector<Buffer> buffers;
};

// As many shards as TP, of a unit of experts as expert TP; names of buffers that are stacked over experts have no
// {expert}. Errors name unit, tensor or buffer, side and sizes:
//   shape_mismatch    units that TP does not divide
//   misaligned_block  a cut, or a fused buffer's joint, that is inside a scale block
//   malformed         a unit that contradicts itself: indices, axes and views that do not fit
absl::StatusOr<UnitShards> EngineShards(const ModelUnit& unit, const EngineLayout& layout);
absl::StatusOr<UnitShards> TrainerShards(const ModelUnit& unit, const MegatronLayout& layout);
// shards * tp of them, shard s * tp + t. Of a unit that is stacked over experts: tp, since FSDP cuts the experts' axis.
absl::StatusOr<UnitShards> TrainerShards(const ModelUnit& unit, const FsdpLayout& layout);

// The manifest of one instance (ClusterUnit::manifest): the destination shards are those of each engine layout, one
// layout behind the other. Validated. Errors say which engine layout it is, where there are several.
absl::StatusOr<Manifest> UnitManifest(const ModelUnit& unit, const JobLayout& layout);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_UNIT_RULES_H_
