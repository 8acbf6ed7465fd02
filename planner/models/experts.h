#ifndef HEADRACE_PLANNER_MODELS_EXPERTS_H_
#define HEADRACE_PLANNER_MODELS_EXPERTS_H_

// Feed-forward layers: dense ones, routers, and experts, one by one or stacked. `pre` is the module's prefix.

#include <string>

#include "planner/models/unit_builder.h"

namespace headrace {

// gate and up (`inter` rows of `hidden`), and down.
void AddGatedMlp(UnitBuilder& u, const std::string& pre, Index hidden, Index inter);
// up and down.
void AddMlp(UnitBuilder& u, const std::string& pre, Index hidden, Index inter);

// gate.weight, and gate.e_score_correction_bias.
void AddRouter(UnitBuilder& u, const std::string& pre, Index experts, Index hidden, bool score_bias);

// Names of an expert's matrices; gate may be empty.
struct ExpertNames {
  std::string gate = "gate_proj";
  std::string up = "up_proj";
  std::string down = "down_proj";
};

// A unit "expert", whose tensors are `pre`experts.{expert}.*.
UnitBuilder ExpertUnit(const Site& site, LinearFormat format, const std::string& pre, Index experts, Index hidden,
                       Index inter, const ExpertNames& names);

// A unit "expert" of stacked tensors: `pre`experts.gate_up_proj [experts, gate and up, hidden], .down_proj.
UnitBuilder StackedExpertUnit(const Site& site, const std::string& pre, Index experts, Index hidden, Index inter);

// gpt-oss: gate and up in turns, biases; input first as BF16, output first as MXFP4 (`inter` a multiple of kMxValues).
UnitBuilder GptOssExpertUnit(const Site& site, const std::string& pre, Index experts, Index hidden, Index inter,
                             bool mxfp4);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_MODELS_EXPERTS_H_
