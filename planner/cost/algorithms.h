#ifndef HEADRACE_PLANNER_COST_ALGORITHMS_H_
#define HEADRACE_PLANNER_COST_ALGORITHMS_H_

// How other systems move a refit's bytes, as traffic for the simulator. Made of a cluster alone.
//
// Sources, read in November 2026:
//   NVIDIA/nccl-extensions, nccl_m2n: README.md; src/reshard_prepare.cc, reshard_loadbalance.cc (who sends what to
//     whom); benchmarks/reshard_model_bench.cu (all pipeline stages at a time, kind of tensor after kind of tensor)
//   NVIDIA-NeMo/RL, docs/design-docs/nccl-reshard-refit.md: FFN projections go by m2n, stage by stage over
//     NRL_REFIT_NUM_STREAMS = 2 streams, everything else by a packed broadcast after them;
//     nemo_rl/weight_sync/xferdtensor_python.py: what it does where m2n is not installed
//
// What a real system does tensor after tensor is one flow here for all tensors that take the same way; the number of
// operations and tensors that a rank goes through is counted beside it. So a time is that of the bytes, and whoever
// fits these systems adds a cost for each operation (bench/published_refits.cc).

#include <vector>

#include "absl/status/statusor.h"
#include "planner/cluster/cluster.h"
#include "planner/cost/flow.h"
#include "planner/manifest.h"

namespace headrace {

// Which tensors: NeMo RL's two paths.
enum class TensorPart {
  kAll,
  kBulk,  // gate_proj, up_proj and down_proj of dense MLPs and routed experts
  kMisc,  // all others
};

// Traffic that begins when that of the round before it has ended.
struct Round {
  Traffic traffic;
  // Tensors that the busiest communicator of the round goes through, one after the other; experts of a layer are one.
  Index operations = 0;
  // The same, as the busiest trainer rank has them: each of its experts counts (they are stacked before each refit).
  Index rank_tensors = 0;
};

enum class ReshardWay {
  kDirect,   // m2n's DIRECT: to each destination rank a message of its own, no relays
  kRing,     // m2n's RING
  kStriped,  // NeMo RL's Python fallback
};

// Point-to-point reshards. m2n: the replicas of a tensor's source shard share the replicas of its destination shard:
//   UNIFORM     each a run of destination replicas of equal length; where there are more sources than destinations,
//               one source for each of these, and the others send nothing
//   NODE_AWARE  each the destination replicas of a run of NVLink domains, at most one source for a domain
// DIRECT sends to each of them. RING sends to one replica in the first of their domains, the *leader* (the sources of a
// destination shard are dealt out over its replicas there), which puts the bytes to the shard's other replicas of its
// domain and to the leader of the next domain, chunk by chunk.
// The fallback cuts what the replicas of a destination shard want into as many stripes as there are replicas. Each gets
// one, from the source's replicas in turns, and they exchange them by an all-gather: a ring of all of them.
struct ReshardOptions {
  ReshardWay way = ReshardWay::kRing;  // NCCL_RESHARD_ALGORITHM: AUTO is RING
  bool node_aware = false;             // NCCL_RESHARD_LB_MODE: UNIFORM by default
  int streams = 2;                     // pipeline stages at a time; a round is that many. >= 1
  TensorPart part = TensorPart::kAll;
};
absl::StatusOr<std::vector<Round>> Reshard(const Cluster& cluster, const ReshardOptions& options);

// Whole tensors to everybody, in two rounds: every trainer rank gets every tensor (the gathers and pipeline broadcasts
// by which Megatron's weights become whole), then trainer rank 0 broadcasts to all engine ranks. Both as NCCL's rings
// do it: bytes go round inside an NVLink domain and enter the next domain at the same place, so that the broadcast
// leaves by all NICs of the root's domain.
absl::StatusOr<std::vector<Round>> GatherBroadcast(const Cluster& cluster, TensorPart part);

// The bytes of a model's tensors, each once, that `part` stands for.
absl::StatusOr<Index> PartBytes(const Cluster& cluster, TensorPart part);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_COST_ALGORITHMS_H_
