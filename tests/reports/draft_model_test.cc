// sgl-project/sglang#27718: a speculative draft keeps its initial weights for ever, since only the target model is
// updated and its mtp names are dropped.
#include "tests/reports/report.h"

namespace headrace {
namespace {

using testing::Job;

Manifest TargetAndDraft() { return WholeManifest({{"W", {4}, Dtype::kBF16}, {"mtp.W", {4}, Dtype::kBF16}}); }

TEST(DraftModelTest, TargetAndDraftAreUpdatedByOneReceive) {
  testing::ForEachWay(TargetAndDraft(), [](Job& job) {
    testing::ExpectTwoGenerations(job);
    EXPECT_EQ(job.receiver(0).stats().bytes, 16);
  });
}

// The draft is not trained: its memory is declared as kept, and the name may come without a consumer.
TEST(DraftModelTest, AFrozenDraftStaysAsItIs) {
  for (bool offered : {false, true}) {
    Manifest m = TargetAndDraft();
    m.destination[1].pieces = {FillOf(PieceKind::kKeep, {4}, {0})};
    if (offered) {
      m.ignore = {"mtp.W"};
    } else {
      m.source.pop_back();
    }
    testing::ForEachWay(m, testing::ExpectTwoGenerations);
  }
}

TEST(DraftModelTest, ANameWithoutAConsumerOrAnIgnoreRule) {
  Manifest m = TargetAndDraft();
  m.destination.pop_back();
  testing::ExpectRefusedAtJoin(m, ErrorCode::kUnwanted, "mtp.W");
}

TEST(DraftModelTest, ADraftThatNobodySends) {
  Manifest m = TargetAndDraft();
  m.source.pop_back();
  testing::ExpectRefusedAtJoin(m, ErrorCode::kUncovered, "mtp.W");
}

}  // namespace
}  // namespace headrace
