#ifndef HEADRACE_PLANNER_CLUSTER_CLUSTER_REFERENCE_H_
#define HEADRACE_PLANNER_CLUSTER_CLUSTER_REFERENCE_H_

// Test only. What a rank of a cluster must hold, element by element: the unit's descriptors (models/model.h) followed
// by naive loops over arrays of identities (planner/layout/oracle.h). Uses none of the rules of planner/layout and
// planner/cluster.

#include <map>
#include <string>
#include <vector>

#include "planner/cluster/expand.h"
#include "planner/cluster/job_layout.h"
#include "planner/manifest.h"
#include "planner/models/model.h"

namespace headrace {

// The buffers' elements in memory order, by name. Element e of the tensor listed t-th in `tensors` is t * 2^40 + e.
std::map<std::string, std::vector<Index>> ReferenceRank(const Model& model, const JobLayout& layout, ClusterSide side,
                                                        Index rank, const std::vector<TensorSpec>& tensors);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_CLUSTER_REFERENCE_H_
