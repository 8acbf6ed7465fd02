#include "bench/refit_model.h"

#include <cstring>
#include <functional>
#include <vector>

#include "gtest/gtest.h"
#include "planner/plan.h"
#include "planner/status.h"

namespace headrace::bench {
namespace {

// Rows do not divide by the trainers: chunks differ and some are empty.
RefitModel Small() {
  RefitModel m;
  m.layers = 2;
  m.hidden = 40;  // the norms alone divide: their chunks must be whole words
  m.experts = 3;
  m.intermediate = 40;
  m.heads = 4;
  m.kv_heads = 2;
  m.head_dim = 8;
  m.vocab = 62;
  m.trainers = 5;
  return m;
}

std::vector<std::vector<std::byte>> Memory(const std::vector<Buffer>& buffers) {
  std::vector<std::vector<std::byte>> memory;
  for (const Buffer& b : buffers) memory.emplace_back(SpanBytes(b, b.dtype));
  return memory;
}

void ForEachRun(const Copy& c, const std::function<void(Index, Index)>& f, size_t loop = 0, Index source = 0,
                Index destination = 0) {
  if (loop == c.loops.size()) return f(c.source_offset + source, c.destination_offset + destination);
  for (Index i = 0; i < c.loops[loop].extent; ++i) {
    ForEachRun(c, f, loop + 1, source + i * c.loops[loop].source_stride,
               destination + i * c.loops[loop].destination_stride);
  }
}

TEST(RefitModel, WhatTheTrainersFillIsWhatTheEngineChecks) {
  const absl::StatusOr<Manifest> manifest = RefitManifest(Small());
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  const absl::StatusOr<Plan> plan = BuildPlan(*manifest);
  ASSERT_TRUE(plan.ok()) << plan.status();
  auto source = Memory(manifest->source), destination = Memory(manifest->destination);
  for (size_t i = 0; i < source.size(); ++i) FillRefit(*manifest, manifest->source[i], 7, source[i].data());
  for (const Copy& c : plan->copies) {
    ForEachRun(c, [&](Index from, Index to) {
      std::memcpy(destination[c.destination].data() + to, source[c.source].data() + from, c.run_bytes);
    });
  }
  for (size_t i = 0; i < destination.size(); ++i) {
    const Buffer& b = manifest->destination[i];
    EXPECT_EQ(CheckRefit(*manifest, b, 7, destination[i].data()), 0) << b.name;
    EXPECT_EQ(CheckRefit(*manifest, b, 8, destination[i].data()), SpanElements(b) / 4) << b.name;
    destination[i].back() ^= std::byte{1};
    EXPECT_EQ(CheckRefit(*manifest, b, 7, destination[i].data()), 1) << b.name;
  }
}

TEST(RefitModel, TheFullSizeIsAboutTwoGib) {
  const absl::StatusOr<Manifest> manifest = RefitManifest({});
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  Index elements = 0;
  for (const TensorSpec& t : manifest->tensors) {
    Index n = 1;
    for (Index e : t.shape) n *= e;
    elements += n;
  }
  EXPECT_NEAR(static_cast<double>(elements * 2) / (1 << 30), 2.04, 0.01);
}

TEST(RefitModel, WorkersMustDivideTheModel) {
  RefitModel m;
  m.workers = 3;
  EXPECT_TRUE(HasCode(RefitManifest(m).status(), ErrorCode::kShapeMismatch));
}

TEST(RefitModelTest, BroadcastsEveryTensorToEveryWorker) {
  RefitModel model = Small();
  model.broadcast = true;
  const auto manifest = RefitManifest(model);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  const auto plan = BuildPlan(*manifest, {Policy::kHybrid});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const PlanFigures figures = Measure(*manifest, *plan);
  EXPECT_EQ(figures.reshard_bytes, 0);
  EXPECT_GT(figures.broadcast_bytes, 0);
  for (const Edge& edge : plan->edges) EXPECT_GE(edge.stream, 0);
}

}  // namespace
}  // namespace headrace::bench
