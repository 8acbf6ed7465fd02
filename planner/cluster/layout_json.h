#ifndef HEADRACE_PLANNER_CLUSTER_LAYOUT_JSON_H_
#define HEADRACE_PLANNER_CLUSTER_LAYOUT_JSON_H_

// Job layouts as JSON, and the published ones (data/layouts.json).
//
//   {"id": "mine", "model": "qwen3-4b", "gpu": "H100",
//    "train": {"gpus": 8, "tp": 2, "pp": 2},
//    "gen": {"gpus": 8, "tp": 4}}
//
//   id, model, gpu            required texts
//   train                     Megatron: gpus and tp; cp, pp, ep, etp, vpp (1 if left out), dp (checked),
//                             layers_first, layers_last. FSDP2: gpus and fsdp (shards); tp (1); the rest are replicas
//   gen                       gpus and tp; pp, ep (1 if left out), dp (checked), engine (a name). Or a list of such
//                             objects: engines of different layouts, whose GPUs follow each other
//   nvlink_domain_used        GPUs of an NVLink domain on each side, where it is not the hardware's; at most
//                             kMaxSideRanks
//   seconds_min, seconds_max  both or none
//   wire, method, scope, source, note, bulk_fraction, assumed; gpus_src in train and gen
//
// dp is what remains of the GPUs: gpus / (tp * cp * pp). A dp that says otherwise is replaced, and the layout's note
// says so. A number that is null was not published: an error, as a size is never guessed. In a layout with
// "assumed": true heads that TP does not divide are dealt out unevenly (EngineLayout::uneven_units).
//
// Pure and thread-safe.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/cluster/job_layout.h"

namespace headrace {

// One layout.
//   malformed       not JSON; a missing, unknown, repeated or null field, or one of another type. Names the field
//                   ("train.tp")
//   invalid_option  an unknown gpu; what FitMegatron and FitEngines refuse
//   shape_mismatch  what these refuse: numbers that do not make up the GPUs
//   out_of_bounds   more than kMaxSideRanks GPUs a side
absl::StatusOr<JobLayout> ParseLayout(absl::string_view json);

// A document {"layouts": [..], "assumed": [..]} of them, whatever else it has, in order. A layout that cannot be had is
// its error, under its id.
//   malformed  not JSON, no such lists, an entry without an id
using NamedLayout = std::pair<std::string, absl::StatusOr<JobLayout>>;
absl::StatusOr<std::vector<NamedLayout>> ParseLayouts(absl::string_view json);

// The published layouts, and some that were made up to fill their gaps (their ids begin with "assumed-"), by id.
//   invalid_option  an unknown id; says the known ones
//   what ParseLayout refuses of it
absl::StatusOr<JobLayout> LayoutNamed(absl::string_view id);
std::vector<std::string> LayoutIds();

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_LAYOUT_JSON_H_
