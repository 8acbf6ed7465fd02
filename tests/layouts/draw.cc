#include "tests/layouts/draw.h"

#include <cstdlib>
#include <iostream>
#include <iterator>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "planner/layout/engines.h"
#include "planner/status.h"

namespace headrace {

int64_t Setting(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  int64_t value = otherwise;
  if (text != nullptr && !absl::SimpleAtoi(text, &value)) {
    std::cerr << name << " is '" << text << "': give a number\n";
    std::abort();
  }
  return value;
}

TrainerOptions DrawTrainer(Draw& draw) {
  TrainerOptions o;
  o.layout = draw.Layout(1 + draw.Below(kMaxRanks));
  o.vpp = o.layout.pp > 1 ? 1 + draw.Below(2) : 1;
  o.vocab_multiple = 1 + draw.Below(8);
  o.experts_stacked = draw.Coin();
  o.experts_turned = draw.Coin();
  o.flat = draw.Below(3) == 0;
  o.flat_start = 1 + draw.Below(4);
  return o;
}

EngineOptions DrawEngine(Draw& draw, Index max_ranks) {
  EngineOptions o;
  o.layout = draw.Layout(1 + draw.Below(max_ranks));
  o.vocab_multiple = 1 + draw.Below(8);
  o.expert_order = draw.Coin() ? ExpertOrder::kLinear : ExpertOrder::kRoundRobin;
  o.experts_stacked = draw.Coin();
  o.experts_turned = draw.Coin();
  o.gate_up_order = draw.Coin() ? GateUpOrder::kGateFirst : GateUpOrder::kUpFirst;
  o.gate_up_rows = draw.Coin() ? GateUpRows::kStacked : GateUpRows::kInterleaved;
  o.pad_multiple = 1 + draw.Below(4);
  o.mla_halves = draw.Coin();
  return o;
}

std::string Describe(const ParallelLayout& l) {
  return absl::StrCat("TP ", l.tp, " CP ", l.cp, " DP ", l.dp, " PP ", l.pp, " EP ", l.ep, " ETP ", l.etp,
                      l.data_outermost ? " dp outermost" : "");
}

absl::StatusOr<std::pair<Manifest, std::string>> DrawManifest(const TinyModel& model, Draw& draw) {
  const Checkpoint checkpoint(model);
  Manifest m;
  m.tensors = checkpoint.tensors();
  m.coupled = checkpoint.coupled();
  std::string what;
  std::vector<std::vector<Buffer>> trainer;
  if (draw.Below(3) == 0) {
    const Index a = 1 + draw.Below(4), b = 1 + draw.Below(4);
    what = absl::StrCat("placements over ", a, "x", b);
    HR_ASSIGN_OR_RETURN(trainer, PlacementSide(checkpoint, {{a, b}, {"dp", "tp"}},
                                               draw.Coin() ? Dtype::kF32 : Dtype::kBF16, draw.random()));
  } else {
    const TrainerOptions o = DrawTrainer(draw);
    what = absl::StrCat(Describe(o.layout), " VPP ", o.vpp, o.flat ? " flat" : "");
    HR_ASSIGN_OR_RETURN(trainer, TrainerSide(model, checkpoint, o));
  }
  for (std::vector<Buffer>& buffers : trainer) {
    m.source.insert(m.source.end(), std::make_move_iterator(buffers.begin()), std::make_move_iterator(buffers.end()));
  }
  const Index engines = 1 + draw.Below(3);
  for (Index e = 0; e < engines; ++e) {
    const EngineOptions o = DrawEngine(draw, kMaxRanks / engines);
    absl::StrAppend(&what, " -> ", Describe(o.layout));
    HR_ASSIGN_OR_RETURN(std::vector<std::vector<Buffer>> workers, EngineSide(model, checkpoint, o));
    HR_RETURN_IF_ERROR(AddEngine(m, absl::StrCat("engine ", e), std::move(workers)));
  }
  return std::make_pair(std::move(m), what);
}

}  // namespace headrace
