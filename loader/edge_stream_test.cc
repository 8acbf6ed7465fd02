#include "loader/edge_stream.h"

#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/sum.h"
#include "loader/lowering.h"
#include "loader/part_box.h"
#include "loader/testing/naive_copy.h"
#include "loader/testing/side_memory.h"
#include "planner/testing/element_oracle.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

using testing::SideMemory;
using testing::VisitCopy;

void CheckEdge(const Manifest& m, const Plan& plan, const Edge& edge, SideMemory* source, int64_t chunk_bytes) {
  // What the edge does, byte by byte.
  SideMemory wanted(m.destination), got(m.destination);
  // Of the boxes: the edge's copies, or the stream's parts, which may be wanted by other ranks alone.
  std::vector<uint64_t> sums, of_copies;
  int64_t bytes = 0;
  for (size_t i = 0; i < edge.count; ++i) {
    const Copy& c = plan.copies[edge.first + i];
    uint64_t sum = 0;
    VisitCopy(c, [&](Index s, Index d, Index p) {
      const std::byte* from = source->First(m.source[c.source]) + s;
      wanted.First(m.destination[c.destination])[d] = *from;
      sum += kernels::SumRun(TensorKey(c.tensor), p, from, 1);
      ++bytes;
    });
    of_copies.push_back(sum);
  }
  if (edge.stream < 0) {
    sums = of_copies;
  } else {
    bytes = 0;
    for (const Part& part : plan.streams[edge.stream].parts) {
      uint64_t sum = 0;
      VisitCopy(SourceBoxOf(part), [&](Index s, Index, Index p) {
        sum += kernels::SumRun(TensorKey(part.tensor), p, source->First(m.source[part.source]) + s, 1);
        ++bytes;
      });
      sums.push_back(sum);
    }
    for (size_t i = 0; i < edge.count; ++i) ASSERT_EQ(of_copies[i], sums[plan.copies[edge.first + i].part]);
  }
  const EdgeStream stream(plan, edge, chunk_bytes);
  ASSERT_EQ(stream.boxes(), sums.size());
  std::vector<uint64_t> received(sums.size()), computed(edge.count);
  int64_t total = 0;
  bool sums_are_over = false;
  for (int64_t message = 0; message < stream.messages(); ++message) {
    const int64_t size = stream.message_bytes(message);
    ASSERT_GE(size, 1);
    ASSERT_LE(size, chunk_bytes);
    ASSERT_FALSE(sums_are_over && stream.is_sums(message));
    sums_are_over = !stream.is_sums(message);
    total += size;
    std::vector<std::byte> chunk(static_cast<size_t>(size), testing::kPoison);
    stream.Pack(
        message, {reinterpret_cast<const std::byte*>(sums.data()), sums.size() * 8},
        [&](const Copy& copy) { return source->First(m.source[copy.source]); }, absl::MakeSpan(chunk));
    stream.Unpack(
        message, absl::MakeConstSpan(chunk), [&](int buffer) { return got.First(m.destination[buffer]); },
        absl::MakeSpan(received), absl::MakeSpan(computed));
  }
  EXPECT_EQ(total, bytes + static_cast<int64_t>(sums.size()) * 8);
  ASSERT_EQ(received, sums);
  ASSERT_EQ(computed, of_copies);
  ASSERT_EQ(got.Difference(wanted), "");
}

TEST(EdgeStreamTest, UnpackingWhatWasPackedIsTheCopy) {
  for (int seed = 0; seed < testing::Share(60); ++seed) {
    Random random(seed);
    RandomManifestOptions options;
    options.max_hosts = 1 + seed % 3;
    options.broadcast_percent = 30;
    Manifest m = RandomManifest(random, options);
    for (Buffer& b : m.source) {  // conversion happens before
      if (b.convert_rne)
        b.dtype = m.tensors[testing::TensorIndex(m,
                                                 [&] {
                                                   for (const Piece& p : b.pieces)
                                                     if (p.kind == PieceKind::kTensor) return p.tensor;
                                                   return std::string();
                                                 }())]
                      .dtype;
    }
    if (SourcesContradict(m)) continue;
    const auto plan = BuildPlan(m, {.policy = seed % 2 == 0 ? Policy::kAuto : Policy::kHybrid});
    ASSERT_TRUE(plan.ok()) << plan.status();
    SideMemory source(m.source);
    testing::PaintSource(m, 1, &source);
    for (const Edge& edge : plan->edges) {
      for (int64_t chunk = 8; chunk < 260; chunk += chunk < 40 ? 1 : 17) {
        SCOPED_TRACE(::testing::Message() << "seed " << seed << ", edge " << edge.source_rank << " -> "
                                          << edge.destination_rank << ", chunks of " << chunk);
        CheckEdge(m, *plan, edge, &source, chunk);
        if (HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace headrace
