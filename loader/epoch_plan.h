#ifndef HEADRACE_LOADER_EPOCH_PLAN_H_
#define HEADRACE_LOADER_EPOCH_PLAN_H_

// What every member makes of an epoch's start: the whole manifest, the plan, and who is who in it. A pure function of
// the message, so that all members of an epoch make the same one; the edges' digests prove that they did.

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "loader/session/types.h"
#include "planner/manifest.h"
#include "planner/plan.h"
#include "planner/replicas.h"

namespace headrace {

// Encodes a member's part of the manifest for Layout.manifest_fragment: its own buffers, its placement, whose rank they
// all carry, and (publishers) the tensors that it knows, what may be ignored and what is coupled.
std::string EncodeFragment(const Manifest& part);

class EpochPlan {
 public:
  // kMalformed and the other manifest errors: as ParseManifestWire and BuildPlan; fragments that declare one tensor
  // differently are kShapeMismatch or kDtypeMismatch, two members with one rank or another coupling of one weight
  // kMalformed. A fragment's error names its member.
  static absl::StatusOr<EpochPlan> Make(const proto::EpochStart& epoch);

  const Manifest& manifest() const { return manifest_; }
  const Plan& plan() const { return plan_; }

  // Manifest ranks of session members and back.
  int64_t SourceRank(int publisher) const { return source_ranks_.at(publisher); }
  int64_t DestinationRank(const MemberKey& receiver) const { return destination_ranks_.at(receiver); }
  int PublisherOf(int64_t source_rank) const { return publishers_.at(source_rank); }
  MemberKey ReceiverOf(int64_t destination_rank) const { return receivers_.at(destination_rank); }

  // What a publisher offers that is offered elsewhere too; and as Planned tells it.
  absl::StatusOr<std::vector<ReplicaSum>> ReplicasOf(int publisher) const;
  std::vector<proto::Replica> Named(const std::vector<ReplicaSum>& replicas) const;

  // The edges that end at a member, in plan order: direct ones and those of streams.
  std::vector<Edge> EdgesOf(const MemberKey& member) const;
  // One digest for each member that they join it to: of a pair with one edge that edge's, of one with several SHA-256
  // over their digests one behind the other, in plan order.
  std::vector<proto::Edge> DigestsOf(const MemberKey& member) const;

 private:
  Manifest manifest_;
  Plan plan_;
  std::map<int, int64_t> source_ranks_;
  std::map<MemberKey, int64_t> destination_ranks_;
  std::map<int64_t, int> publishers_;
  std::map<int64_t, MemberKey> receivers_;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_EPOCH_PLAN_H_
