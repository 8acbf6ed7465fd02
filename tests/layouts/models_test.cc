// Whole tiny models between random trainers and engines of up to 16 ranks a side: each is planned, the plan proven, and
// executed on bytes. HEADRACE_LAYOUT_SEED (the first one) and HEADRACE_LAYOUT_CASES (of each model) run other ones.

#include <cstdlib>
#include <iostream>
#include <iterator>
#include <random>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "planner/layout/case_share.h"
#include "planner/layout/engines.h"
#include "planner/plan.h"
#include "planner/status.h"
#include "planner/testing/element_oracle.h"
#include "tests/layouts/reference.h"
#include "tests/layouts/sides.h"
#include "tests/layouts/tiny_model.h"

namespace headrace {
namespace {

constexpr Index kMaxRanks = 16;

int64_t Setting(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  int64_t value = otherwise;
  if (text != nullptr && !absl::SimpleAtoi(text, &value)) {
    std::cerr << name << " is '" << text << "': give a number\n";
    std::abort();
  }
  return value;
}

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  Index Below(Index n) { return static_cast<Index>(random_() % static_cast<uint64_t>(n)); }
  bool Coin() { return Below(2) == 0; }
  Index Divisor(Index n) {
    Index d = 1 + Below(n);
    while (n % d != 0) d = 1 + Below(n);
    return d;
  }
  std::mt19937_64& random() { return random_; }

  // A layout of exactly `ranks` ranks.
  ParallelLayout Layout(Index ranks) {
    ParallelLayout l;
    l.pp = Divisor(ranks);
    l.tp = Divisor(ranks / l.pp);
    l.cp = Divisor(ranks / l.pp / l.tp);
    l.dp = ranks / l.pp / l.tp / l.cp;
    l.ep = Divisor(ranks / l.pp);
    l.etp = Divisor(ranks / l.pp / l.ep);
    l.data_outermost = Coin();
    return l;
  }

 private:
  std::mt19937_64 random_;
};

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

// Compares the buffers of one rank, element by element, with what they must hold.
void ExpectHeld(const std::vector<Buffer>& buffers, const std::vector<ReferenceArray>& want,
                const std::vector<TensorSpec>& tensors, const std::string& what) {
  size_t i = 0;
  for (const Buffer& buffer : buffers) {
    if (buffer.alias_of) continue;
    ASSERT_LT(i, want.size()) << what << ": " << buffer.name;
    ASSERT_EQ(buffer.name, want[i].name) << what;
    ASSERT_EQ(buffer.dtype, want[i].dtype) << what << ": " << buffer.name;
    ASSERT_EQ(oracle::Expand(buffer.shape, buffer.pieces, tensors).values, want[i].array.values)
        << what << ": " << buffer.name;
    ++i;
  }
  ASSERT_EQ(i, want.size()) << what;
}

TEST(Models, EveryRankHoldsWhatTheFrameworkGivesIt) {
  const int64_t first_seed = Setting("HEADRACE_LAYOUT_SEED", 1);
  const int64_t seeds = Setting("HEADRACE_LAYOUT_CASES", 60);
  CaseShare share("sides of all models", static_cast<uint64_t>(first_seed));
  int compared = 0;
  for (const TinyModel& model : TinyModels()) {
    const Checkpoint checkpoint(model);
    for (int64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
      if (!share.Take()) continue;
      Draw draw(static_cast<uint64_t>(seed));
      const TrainerOptions trainer = DrawTrainer(draw);
      const EngineOptions engine = DrawEngine(draw, kMaxRanks);
      if (const auto side = TrainerSide(model, checkpoint, trainer); side.ok()) {
        for (size_t rank = 0; rank < side->size(); ++rank, ++compared) {
          ExpectHeld((*side)[rank], TrainerReference(model, checkpoint.tensors(), trainer, static_cast<Index>(rank)),
                     checkpoint.tensors(),
                     absl::StrCat(model.name, ", seed ", seed, ", trainer ", Describe(trainer.layout), " rank ", rank));
          if (HasFatalFailure()) return;
        }
      }
      if (const auto side = EngineSide(model, checkpoint, engine); side.ok()) {
        for (size_t rank = 0; rank < side->size(); ++rank, ++compared) {
          ExpectHeld((*side)[rank], EngineReference(model, checkpoint.tensors(), engine, static_cast<Index>(rank)),
                     checkpoint.tensors(),
                     absl::StrCat(model.name, ", seed ", seed, ", engine ", Describe(engine.layout), " rank ", rank));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  std::cout << compared << " ranks compared\n";
  EXPECT_GT(compared, 0);
}

// A manifest of a model, what it is, or an error of the rules: sizes that do not divide.
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

TEST(Models, RandomTrainersToRandomEngines) {
  const int64_t first_seed = Setting("HEADRACE_LAYOUT_SEED", 1);
  const int64_t seeds = Setting("HEADRACE_LAYOUT_CASES", 90);  // of each model; about two thirds can be laid out
  for (const TinyModel& model : TinyModels()) {
    CaseShare share(model.name, static_cast<uint64_t>(first_seed));
    int64_t planned = 0, refused = 0, copies = 0;
    for (int64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
      if (!share.Take()) continue;
      Draw draw(static_cast<uint64_t>(seed));
      const auto drawn = DrawManifest(model, draw);
      if (!drawn.ok()) {
        ASSERT_EQ(CodeOf(drawn.status()), "shape_mismatch")
            << model.name << ", seed " << seed << ": " << drawn.status();
        ++refused;
        continue;
      }
      const auto& [manifest, what] = *drawn;
      const absl::StatusOr<Plan> plan = BuildPlan(manifest);
      ASSERT_TRUE(plan.ok()) << model.name << ", seed " << seed << ", " << what << ": " << plan.status();
      ASSERT_EQ(CheckPlan(manifest, *plan), "") << model.name << ", seed " << seed << ", " << what;
      const PlanFigures figures = Measure(manifest, *plan);
      ASSERT_EQ(figures.wire_bytes, figures.needed_bytes) << model.name << ", seed " << seed << ", " << what;
      ++planned;
      copies += figures.copies;
    }
    std::cout << model.name << ": " << planned << " planned with " << copies << " copies, " << refused
              << " refused: sizes that do not divide\n";
    EXPECT_GE(planned, refused);
  }
}

}  // namespace
}  // namespace headrace
