// Whole tiny models between random trainers and engines of up to 16 ranks a side: each is planned, the plan proven, and
// executed on bytes. HEADRACE_LAYOUT_SEED (the first one) and HEADRACE_LAYOUT_CASES (of each model) run other ones.

#include <iostream>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "planner/layout/case_share.h"
#include "planner/plan.h"
#include "planner/status.h"
#include "planner/testing/element_oracle.h"
#include "tests/layouts/draw.h"
#include "tests/layouts/reference.h"
#include "tests/layouts/sides.h"
#include "tests/layouts/tiny_model.h"

namespace headrace {
namespace {

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
  const int64_t seeds = Setting("HEADRACE_LAYOUT_CASES", 40);
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

TEST(Models, RandomTrainersToRandomEngines) {
  const int64_t first_seed = Setting("HEADRACE_LAYOUT_SEED", 1);
  const int64_t seeds = Setting("HEADRACE_LAYOUT_CASES", 45);  // of each model; about two thirds can be laid out
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
