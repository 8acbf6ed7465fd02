#include "loader/epoch_plan.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/digest.h"
#include "planner/manifest_wire.h"
#include "planner/status.h"

namespace headrace {
namespace {

using TensorIndex = absl::flat_hash_map<std::string, size_t>;

// Where tensors of a fragment are known already, they must be the same.
absl::Status CheckTensors(const std::vector<TensorSpec>& declared, const std::string& who, const TensorIndex& index,
                          const std::vector<TensorSpec>& tensors) {
  for (const TensorSpec& t : declared) {
    const auto it = index.find(t.name);
    if (it == index.end()) continue;
    const TensorSpec& known = tensors[it->second];
    if (known.shape != t.shape) {
      return About(
          Error(ErrorCode::kShapeMismatch,
                absl::StrCat(who, " declares tensor \"", t.name, "\" with shape [", absl::StrJoin(t.shape, ", "),
                             "], another member with [", absl::StrJoin(known.shape, ", "), "]")),
          {.tensor = t.name, .peer = who});
    }
    if (known.dtype != t.dtype) {
      return About(Error(ErrorCode::kDtypeMismatch,
                         absl::StrCat(who, " declares tensor \"", t.name, "\" as ", DtypeName(t.dtype),
                                      ", another member as ", DtypeName(known.dtype))),
                   {.tensor = t.name, .peer = who});
    }
  }
  return absl::OkStatus();
}

template <typename T, typename Key>
void MergeOnce(const std::vector<T>& add, std::vector<T>* list, Key&& key) {
  for (const T& item : add) {
    if (std::none_of(list->begin(), list->end(), [&](const T& known) { return key(known) == key(item); })) {
      list->push_back(item);
    }
  }
}

}  // namespace

std::string EncodeFragment(const Manifest& part) { return ManifestToWire(part); }

absl::StatusOr<EpochPlan> EpochPlan::Make(const proto::EpochStart& epoch) {
  EpochPlan e;
  TensorIndex index;
  for (const proto::EpochStart::Member& member : epoch.members()) {
    const MemberKey key = MemberKey::From(member.id());
    const std::string who = NameOf(key);
    absl::StatusOr<Manifest> parsed = ParseManifestWire(member.layout().manifest_fragment());
    if (!parsed.ok()) {
      return WithMessage(parsed.status(), absl::StrCat("the layout of ", who, ": ", parsed.status().message()));
    }
    const Manifest& part = *parsed;
    const bool source = key.role == proto::PUBLISHER;
    const std::vector<Placement>& placed = source ? part.topology.source : part.topology.destination;
    const std::vector<Buffer>& buffers = source ? part.source : part.destination;
    const bool alone =
        (source ? part.destination : part.source).empty() && placed.size() == 1 &&
        std::all_of(buffers.begin(), buffers.end(), [&](const Buffer& b) { return b.rank == placed[0].rank; });
    if (!alone) {
      return Error(ErrorCode::kMalformed, absl::StrCat("the layout of ", who,
                                                       " must place exactly its own rank and "
                                                       "hold that rank's buffers alone"));
    }
    const int64_t rank = placed[0].rank;
    const bool fresh = source ? e.publishers_.emplace(rank, key.rank).second : e.receivers_.emplace(rank, key).second;
    if (!fresh) return Error(ErrorCode::kMalformed, absl::StrCat(who, " uses rank ", rank, " of another member"));
    HR_RETURN_IF_ERROR(CheckTensors(part.tensors, who, index, e.manifest_.tensors));
    if (source) {
      e.source_ranks_[key.rank] = rank;
      for (const TensorSpec& t : part.tensors) {
        if (index.emplace(t.name, e.manifest_.tensors.size()).second) e.manifest_.tensors.push_back(t);
      }
      e.manifest_.source.insert(e.manifest_.source.end(), part.source.begin(), part.source.end());
      e.manifest_.topology.source.push_back(placed[0]);
      MergeOnce(part.ignore, &e.manifest_.ignore, [](const std::string& s) { return s; });
      MergeOnce(part.coupled, &e.manifest_.coupled,
                [](const Coupling& c) { return std::tie(c.weight, c.scale, c.block); });
    } else {
      e.destination_ranks_[key] = rank;
      e.manifest_.destination.insert(e.manifest_.destination.end(), part.destination.begin(), part.destination.end());
      e.manifest_.topology.destination.push_back(placed[0]);
      e.manifest_.topology.destination.back().engine = absl::StrCat(key.engine);  // whatever its manifest calls it
    }
  }
  // Before an engine comes nobody wants anything, which is no mistake.
  if (e.destination_ranks_.empty()) {
    for (const TensorSpec& t : e.manifest_.tensors) e.manifest_.ignore.push_back(t.name);
    std::sort(e.manifest_.ignore.begin(), e.manifest_.ignore.end());
    e.manifest_.ignore.erase(std::unique(e.manifest_.ignore.begin(), e.manifest_.ignore.end()),
                             e.manifest_.ignore.end());
  }
  PlanOptions options;
  if (!epoch.policy().empty()) {
    HR_ASSIGN_OR_RETURN(options.policy, ParsePolicy(epoch.policy()));
  }
  HR_ASSIGN_OR_RETURN(e.plan_, BuildPlan(e.manifest_, options));
  return e;
}

absl::StatusOr<std::vector<ReplicaSum>> EpochPlan::ReplicasOf(int publisher) const {
  return FindReplicas(manifest_, SourceRank(publisher));
}

std::vector<proto::Replica> EpochPlan::Named(const std::vector<ReplicaSum>& replicas) const {
  std::vector<proto::Replica> named;
  for (const ReplicaSum& sum : replicas) {
    proto::Replica& replica = named.emplace_back();
    replica.set_id(sum.id);
    replica.set_tensor(manifest_.tensors[sum.tensor].name);
  }
  return named;
}

std::vector<Edge> EpochPlan::EdgesOf(const MemberKey& member) const {
  std::vector<Edge> out;
  for (const Edge& edge : plan_.edges) {
    const bool ends_here = member.role == proto::PUBLISHER ? edge.source_rank == SourceRank(member.rank)
                                                           : edge.destination_rank == DestinationRank(member);
    if (ends_here) out.push_back(edge);
  }
  return out;
}

std::vector<proto::Edge> EpochPlan::DigestsOf(const MemberKey& member) const {
  std::vector<proto::Edge> out;
  const std::vector<Edge> edges = EdgesOf(member);
  // All edges of a pair are neighbours.
  for (size_t first = 0, end; first < edges.size(); first = end) {
    std::vector<std::string> digests;
    for (end = first; end < edges.size() && edges[end].source_rank == edges[first].source_rank &&
                      edges[end].destination_rank == edges[first].destination_rank;
         ++end) {
      digests.push_back(EdgeDigest(manifest_, plan_, edges[end]));
    }
    const MemberKey receiver = ReceiverOf(edges[first].destination_rank);
    proto::Edge& digest = out.emplace_back();
    digest.set_publisher(PublisherOf(edges[first].source_rank));
    digest.set_engine(receiver.engine);
    digest.set_worker(receiver.rank);
    digest.set_digest(digests.size() == 1 ? digests[0] : Sha256(absl::StrJoin(digests, "")));
  }
  return out;
}

}  // namespace headrace
