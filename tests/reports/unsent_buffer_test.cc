// vllm-project/vllm#44371: a scalar buffer that is never sent was overwritten by its default during a warm update
// (0.0188 became 1.0).
#include "tests/reports/report.h"

namespace headrace {
namespace {

using testing::Job;

constexpr uint64_t kScalar = 0x3C9A;  // BF16 0.018798828125

Manifest Model(PieceKind kind) {
  Manifest m = WholeManifest({{"w", {6}, Dtype::kBF16}});
  Buffer scalar = BufferOf(0, "layer_scalar", Dtype::kBF16, {}, {});
  if (kind == PieceKind::kKeep) scalar.pieces = {FillOf(PieceKind::kKeep, {}, {})};
  m.destination.push_back(std::move(scalar));
  return m;
}

TEST(UnsentBufferTest, IsBitIdenticalAfterBothGenerations) {
  testing::ForEachWay(Model(PieceKind::kKeep), [](Job& job) {
    const Buffer& scalar = job.manifest().destination[1];
    testing::SetBits(job.live().First(scalar), 0, 16, kScalar);
    testing::SetBits(job.wanted().First(scalar), 0, 16, kScalar);
    testing::ExpectTwoGenerations(job);
    EXPECT_EQ(testing::GetBits(job.live().First(scalar), 0, 16), kScalar);
  });
}

// A host that threw its buffers away must not be told that all is well.
TEST(UnsentBufferTest, ADiscardedBufferIsUncovered) {
  testing::ExpectRefusedAtJoin(Model(PieceKind::kTensor), ErrorCode::kUncovered, "layer_scalar");
}

}  // namespace
}  // namespace headrace
