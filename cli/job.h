#ifndef HEADRACE_CLI_JOB_H_
#define HEADRACE_CLI_JOB_H_

// A model under a layout, as the commands that plan for clusters are told it.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/cluster/cluster.h"
#include "planner/cluster/job_layout.h"
#include "planner/models/model.h"

namespace headrace {

struct LayoutChoice {
  std::string model;   // a record's name, or a file with a record or a model of nccl_m2n's; empty: the layout's model
  std::string layout;  // a published layout's id, or a file with a layout, a system of nccl_m2n's or NeMo RL's config
  std::string gpu;     // the hardware, for files that do not name it (nccl_m2n, NeMo RL)
};

struct Job {
  Model model;
  JobLayout layout;
  Cluster cluster;
  // What a reader of its numbers must know: the layout's own note, and that the model is another than the layout's.
  std::vector<std::string> notes;
};

// Files are told from names by a "/" or the ending ".json" ("-" is standard input), and what is in them by their
// fields: a system of nccl_m2n's has "generation", NeMo RL's configuration "policy"; a record has "family". Their names
// are those of the files.
//   kIo, and what LayoutNamed, ParseLayout, ParseM2nSystem, ParseNemoConfig, ModelNamed, ParseModelRecord,
//   ParseM2nModel and BuildCluster refuse kInvalidOption: a gpu that is missing, or given though the layout names its
//   own
absl::StatusOr<Job> LoadJob(const LayoutChoice& options);

// "Megatron TP4 CP1 DP4 PP8 EP16 ETP1, 128 ranks"; "TP8 DP16, 128 ranks; TP4 DP2 EP4, 8 ranks".
std::string TrainerText(const JobLayout& layout);
std::string EngineText(const JobLayout& layout);

}  // namespace headrace

#endif  // HEADRACE_CLI_JOB_H_
