#include "planner/coverage.h"

#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "planner/layout/case_share.h"
#include "planner/status.h"
#include "planner/testing/element_oracle.h"
#include "planner/testing/manifest_parts.h"
#include "planner/testing/mutate_plan.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

constexpr uint64_t kSeed = 31337;

// Every kind of mutation of correct plans of random manifests, on one host and on several, without streams, with relays
// and with broadcasts. The naive interpreter decides whether a mutated plan is still right; each one that is not must
// be refused.
TEST(Coverage, EveryWrongMutationIsCaught) {
  struct Count {
    int caught = 0;
    int harmless_accepted = 0;
    int harmless_refused = 0;  // equal bytes by another plan than the form that the proof asks for
  };
  std::map<std::string, Count> counts;
  CaseShare share("random manifests", kSeed);
  for (uint64_t n = 0; n < 4500; ++n) {
    if (!share.Take()) continue;
    Random random(kSeed + n);
    RandomManifestOptions options;
    options.max_hosts = n % 3 == 1 ? 3 : 1;
    options.broadcast_percent = n % 3 == 2 ? 50 : 0;
    const Manifest m = RandomManifest(random, options);
    const auto plan = BuildPlan(m, {.policy = n % 3 == 2 ? Policy::kHybrid : Policy::kAuto});
    ASSERT_TRUE(plan.ok()) << "seed " << kSeed + n << ": " << plan.status();
    ASSERT_EQ(CheckPlan(m, *plan), "") << "seed " << kSeed + n;
    ForEachMutation(random, m, *plan, [&](const std::string& kind, const Plan& mutated) {
      const bool right = CheckPlan(m, mutated).empty();
      const absl::Status proof = ProveCoverage(m, mutated);
      Count& count = counts[kind];
      if (right) {
        ++(proof.ok() ? count.harmless_accepted : count.harmless_refused);
        return;
      }
      ASSERT_TRUE(HasCode(proof, ErrorCode::kPlanInvalid))
          << "seed " << kSeed + n << ", " << kind << ": " << CheckPlan(m, mutated) << "; proof: " << proof;
      ++count.caught;
    });
    if (HasFatalFailure()) return;
  }
  int total = 0;
  for (const auto& [kind, count] : counts) {
    std::cout << kind << ": " << count.caught << " caught, " << count.harmless_accepted << " harmless and accepted, "
              << count.harmless_refused << " harmless and refused\n";
    total += count.caught;
    EXPECT_GT(count.caught, 0) << kind;
  }
  std::cout << total << " wrong plans caught\n";
}

Manifest Small() {
  Manifest m = WholeManifest({{"a", {4, 6}, Dtype::kBF16}, {"b", {3}, Dtype::kF32}});
  m.destination[0].shape = {5, 6};
  m.destination[0].strides = {8, 1};
  m.destination[0].pieces.push_back(FillOf(PieceKind::kZero, {1, 6}, {4, 0}));
  return m;
}

void ExpectRefused(const std::function<void(Plan&)>& change) {
  const Manifest m = Small();
  Plan plan = *BuildPlan(m);
  ASSERT_TRUE(ProveCoverage(m, plan).ok());
  change(plan);
  EXPECT_TRUE(HasCode(ProveCoverage(m, plan), ErrorCode::kPlanInvalid)) << ProveCoverage(m, plan);
}

TEST(Coverage, AbsurdNumbersAreRefusedWithoutOverflow) {
  for (const Index absurd :
       {Index{-1}, INT64_MIN, INT64_MAX, INT64_MAX / 2, INT64_MIN / 2, Index{1} << 40, Index{-7}}) {
    ExpectRefused([&](Plan& p) { p.copies[0].source_offset = absurd; });
    ExpectRefused([&](Plan& p) { p.copies[0].destination_offset = absurd; });
    ExpectRefused([&](Plan& p) { p.copies[0].position = absurd; });
    ExpectRefused([&](Plan& p) { p.copies[0].run_bytes = absurd; });
    ExpectRefused([&](Plan& p) { p.copies[0].loops[0].extent = absurd; });
    ExpectRefused([&](Plan& p) { p.copies[0].loops[0].source_stride = absurd; });
    ExpectRefused([&](Plan& p) { p.copies[0].loops[0].destination_stride = absurd; });
    ExpectRefused([&](Plan& p) { p.copies[0].loops[0].position_stride = absurd; });
    ExpectRefused([&](Plan& p) { p.copies[0].loops.push_back({2, absurd, absurd, absurd}); });
    ExpectRefused([&](Plan& p) { p.zero_fills[0].destination_offset = absurd; });
    ExpectRefused([&](Plan& p) { p.zero_fills[0].run_bytes = absurd; });
    ExpectRefused([&](Plan& p) { p.zero_fills[0].loops.push_back({2, 0, absurd, 0}); });
  }
}

TEST(Coverage, IndicesAndListsMustFit) {
  for (int index : {-1, 2, 1 << 30}) {
    ExpectRefused([&](Plan& p) { p.copies[0].tensor = index; });
    ExpectRefused([&](Plan& p) { p.copies[0].source = index; });
    ExpectRefused([&](Plan& p) { p.copies[0].destination = index; });
    ExpectRefused([&](Plan& p) { p.zero_fills[0].destination = index; });
  }
  ExpectRefused([](Plan& p) { p.decisions.pop_back(); });
  ExpectRefused([](Plan& p) { p.copies.clear(); });
  ExpectRefused([](Plan& p) { p.zero_fills.clear(); });
  ExpectRefused([](Plan& p) { p.copies[0].loops.resize(kMaxCopyLoops + 1, CopyLoop{1, 0, 0, 0}); });
}

TEST(Coverage, EdgesTileTheCopiesOncePerPairOfRanks) {
  ExpectRefused([](Plan& p) { p.edges.clear(); });
  ExpectRefused([](Plan& p) { p.edges.push_back(p.edges[0]); });
  ExpectRefused([](Plan& p) { p.edges[0].source_rank = 1; });
  ExpectRefused([](Plan& p) { p.edges[0].destination_rank = 1; });
  ExpectRefused([](Plan& p) { p.edges[0].first = 1; });
  ExpectRefused([](Plan& p) { p.edges[0].count = 1; });
  ExpectRefused([](Plan& p) { p.edges[0].count = SIZE_MAX; });
  ExpectRefused([](Plan& p) { p.edges.push_back({0, 0, 2, 0}); });
  ExpectRefused([](Plan& p) {
    p.edges[0].count = 1;
    p.edges.push_back({0, 0, 1, 1});
  });
}

// --- plans of so many elements that a proof which looks at each of them could not end

constexpr double kTooManyToVisit = 1e10;

double Elements(const Manifest& m) {
  double total = 0;
  for (const TensorSpec& t : m.tensors) {
    double elements = 1;
    for (Index e : t.shape) elements *= static_cast<double>(e);
    total += elements;
  }
  return total;
}

// Contiguous runs of all copies.
double Runs(const Plan& plan) {
  double total = 0;
  for (const Copy& c : plan.copies) {
    double runs = 1;
    for (const CopyLoop& l : c.loops) runs *= static_cast<double>(l.extent);
    total += runs;
  }
  return total;
}

void ExpectCaught(const Manifest& m, const Plan& mutated, const std::string& what) {
  const absl::Status proof = ProveCoverage(m, mutated);
  EXPECT_TRUE(HasCode(proof, ErrorCode::kPlanInvalid)) << what << ": " << proof;
}

// Every loop, offset and run of a copy (of each, or of eight) spoiled by one element or one step, and the copy left
// out. No source here offers an element twice, so none of these leaves a right plan.
void ExpectAllMutantsCaught(const Manifest& m, const Plan& plan) {
  const size_t step = std::max<size_t>(1, plan.copies.size() / 8);
  for (size_t n = 0; n < plan.copies.size(); n += step) {
    const Index width = DtypeBits(m.tensors[plan.copies[n].tensor].dtype) / 8;
    auto caught = [&](const std::string& what, const std::function<void(Copy&)>& change) {
      Plan mutated = plan;
      change(mutated.copies[n]);
      ExpectCaught(m, mutated, "copy " + std::to_string(n) + ", " + what);
    };
    for (const Index by : {width, -width}) {
      caught("shift the source", [&](Copy& c) { c.source_offset += by; });
      caught("shift the destination", [&](Copy& c) { c.destination_offset += by; });
      caught("shift the position", [&](Copy& c) { c.position += by; });
      caught("shift source and position", [&](Copy& c) { c.source_offset += by, c.position += by; });
      caught("shift all", [&](Copy& c) { c.source_offset += by, c.destination_offset += by, c.position += by; });
      caught("change the run", [&](Copy& c) { c.run_bytes += by; });
    }
    for (size_t l = 0; l < plan.copies[n].loops.size(); ++l) {
      for (const Index by : {Index{1}, Index{-1}}) {
        caught("change an extent", [&](Copy& c) { c.loops[l].extent += by; });
        caught("change a source stride", [&](Copy& c) { c.loops[l].source_stride += by * width; });
        caught("change a destination stride", [&](Copy& c) { c.loops[l].destination_stride += by * width; });
        caught("change a position stride", [&](Copy& c) { c.loops[l].position_stride += by * width; });
      }
      caught("halve an extent", [&](Copy& c) { c.loops[l].extent /= 2; });
      for (size_t k = 0; k < l; ++k) {
        auto swapped = [&](const char* what, Index CopyLoop::*field) {
          if (plan.copies[n].loops[k].*field == plan.copies[n].loops[l].*field) return;
          caught(what, [&](Copy& c) { std::swap(c.loops[k].*field, c.loops[l].*field); });
        };
        swapped("swap two extents", &CopyLoop::extent);
        swapped("swap two source strides", &CopyLoop::source_stride);
        swapped("swap two destination strides", &CopyLoop::destination_stride);
        swapped("swap two position strides", &CopyLoop::position_stride);
      }
    }
    Plan without = plan;
    without.copies.erase(without.copies.begin() + static_cast<ptrdiff_t>(n));
    for (size_t e = 0; e < without.edges.size(); ++e) {
      Edge& edge = without.edges[e];
      if (edge.first > n)
        --edge.first;
      else if (n < edge.first + edge.count)
        --edge.count;
    }
    std::erase_if(without.edges, [](const Edge& e) { return e.count == 0; });
    ExpectCaught(m, without, "drop copy " + std::to_string(n));
  }
}

void ExpectProvenAndGuarded(const Manifest& m, double least_runs) {
  ASSERT_GT(Elements(m), kTooManyToVisit);
  const auto plan = BuildPlan(m);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_GE(Runs(*plan), least_runs);
  const absl::Status proof = ProveCoverage(m, *plan);
  EXPECT_TRUE(proof.ok()) << proof;
  ExpectAllMutantsCaught(m, *plan);
}

TEST(Coverage, HugeColumnMajorSource) {
  Manifest m = WholeManifest({{"w", {1 << 18, 100000}, Dtype::kBF16}});
  m.source[0].strides = {1, 1 << 18};
  ExpectProvenAndGuarded(m, kTooManyToVisit);
}

TEST(Coverage, HugeColumnMajorDestination) {
  Manifest m = WholeManifest({{"w", {1 << 18, 100000}, Dtype::kU8}});
  m.destination[0].strides = {1, 1 << 18};
  ExpectProvenAndGuarded(m, kTooManyToVisit);
}

TEST(Coverage, HugeTransposedDestinationOfTwoShards) {
  Manifest m = WholeManifest({{"w", {300000, 80000}, Dtype::kF32}});
  m.source[0] = BufferOf(0, "w", Dtype::kF32, {100000, 80000}, {PieceOf("w", {0, 0}, {100000, 80000}, {0, 0})});
  m.source.push_back(
      BufferOf(1, "w", Dtype::kF32, {200000, 80000}, {PieceOf("w", {100000, 0}, {200000, 80000}, {0, 0})}));
  Piece transposed = PieceOf("w", {0, 0}, {300000, 80000}, {0, 0});
  transposed.axes = {1, 0};
  m.destination[0] =
      BufferOf(0, "w", Dtype::kF32, {80064, 300000}, {transposed, FillOf(PieceKind::kZero, {64, 300000}, {80000, 0})});
  ExpectProvenAndGuarded(m, kTooManyToVisit);
}

TEST(Coverage, HugePitchedBuffers) {
  Manifest m = WholeManifest({{"w", {Index{1} << 28, 100}, Dtype::kU8}});
  m.source[0].strides = {128, 1};
  m.destination[0].strides = {112, 1};
  ExpectProvenAndGuarded(m, 1e8);
}

TEST(Coverage, HugeBufferOfFiveTurnedAxes) {
  Manifest m = WholeManifest({{"w", {129, 257, 65, 129, 100}, Dtype::kBF16}});
  // From the innermost out: axes 2, 4, 0, 3, 1, with a pitch.
  m.destination[0].strides = {65 * 100, 65 * 100 * 130 * 129, 1, 65 * 100 * 130, 65};
  ExpectProvenAndGuarded(m, kTooManyToVisit);
}

TEST(Coverage, HugeInterleavedGroupsOutOfColumnMajor) {
  // Groups of [3 q heads; k] by views, from a column-major source that counts rows.
  const Index groups = 64, head = 4096, columns = 100000;
  Manifest m;
  m.tensors = {{"q", {groups * 3 * head, columns}, Dtype::kU8}, {"k", {groups * head, columns}, Dtype::kU8}};
  for (const TensorSpec& t : m.tensors) {
    m.source.push_back(WholeBuffer(0, t));
    m.source.back().strides = {1, t.shape[0]};
  }
  m.destination.push_back(
      BufferOf(0, "qk", Dtype::kU8, {groups, 4, head, columns},
               {ViewPiece("q", {groups, 3, head, columns}, {0, 0, 0, 0}, {groups, 3, head, columns}, {0, 0, 0, 0}),
                ViewPiece("k", {groups, 1, head, columns}, {0, 0, 0, 0}, {groups, 1, head, columns}, {0, 3, 0, 0})}));
  ExpectProvenAndGuarded(m, kTooManyToVisit);
}

// Each source rank holds every n-th row, so that the copies of one piece interleave.
TEST(Coverage, ManyCopiesOfOnePieceThatInterleave) {
  const Index ranks = 3000, rows = ranks * 4096, columns = 1000;
  Manifest m = WholeManifest({{"w", {rows, columns}, Dtype::kU8}});
  m.source.clear();
  for (Index r = 0; r < ranks; ++r) {
    m.source.push_back(
        BufferOf(r, "w", Dtype::kU8, {rows / ranks, 1, columns},
                 {ViewPiece("w", {rows / ranks, ranks, columns}, {0, r, 0}, {rows / ranks, 1, columns}, {0, 0, 0})}));
  }
  ASSERT_GT(Elements(m), kTooManyToVisit);
  const auto plan = BuildPlan(m);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->copies.size(), static_cast<size_t>(ranks));
  Plan mutated = *plan;
  mutated.copies[1000].loops[0].extent -= 1;
  ExpectCaught(m, mutated, "drop a row");
  mutated = *plan;
  mutated.copies[1000].destination_offset += columns;
  mutated.copies[1000].position += columns;
  ExpectCaught(m, mutated, "take another rank's rows");
}

// One source buffer whose pieces are single rows in another order, into flat shards that cut the rows.
TEST(Coverage, ManyPiecesAndFlatShards) {
  const Index rows = 4096, columns = 4000000, shards = 37;
  Manifest m = WholeManifest({{"w", {rows, columns}, Dtype::kU8}});
  m.source[0].pieces.clear();
  for (Index r = 0; r < rows; ++r) m.source[0].pieces.push_back(PieceOf("w", {r ^ 1, 0}, {1, columns}, {r, 0}));
  m.destination.clear();
  const Index total = rows * columns, chunk = (total + shards - 1) / shards;
  for (Index s = 0; s < shards; ++s) {
    const Index first = s * chunk, count = std::min(chunk, total - first);
    m.destination.push_back(BufferOf(s, "flat", Dtype::kU8, {count}, {ViewPiece("w", {total}, {first}, {count}, {0})}));
  }
  ASSERT_GT(Elements(m), kTooManyToVisit);
  const auto plan = BuildPlan(m);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_GT(plan->copies.size(), static_cast<size_t>(rows));
  for (const Index by : {Index{1}, Index{-1}}) {
    Plan mutated = *plan;
    mutated.copies[2000].run_bytes += by;
    ExpectCaught(m, mutated, "change a run");
    mutated = *plan;
    mutated.copies[2000].source_offset += by;
    ExpectCaught(m, mutated, "shift the source");
  }
}

// A run that the builder joined goes on through many pieces of both sides.
TEST(Coverage, OneRunThroughManyPieces) {
  const Index rows = 6000, columns = 2000000;
  Manifest m = WholeManifest({{"w", {rows, columns}, Dtype::kU8}});
  for (auto [buffer, step] : {std::pair(&m.source[0], Index{2}), std::pair(&m.destination[0], Index{3})}) {
    buffer->pieces.clear();
    for (Index r = 0; r < rows; r += step) {
      buffer->pieces.push_back(PieceOf("w", {r, 0}, {step, columns}, {r, 0}));
    }
  }
  ASSERT_GT(Elements(m), kTooManyToVisit);
  const auto plan = BuildPlan(m);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->copies.size(), 1u);
  ExpectAllMutantsCaught(m, *plan);
  // A piece in the middle wants another row.
  std::swap(m.destination[0].pieces[1000].tensor_offset, m.destination[0].pieces[1001].tensor_offset);
  ExpectCaught(m, *plan, "two pieces trade places");
}

TEST(Coverage, HugeViewsThatDoNotNest) {
  const Index a = 6000, b = 10000, c = 200;
  Manifest m = WholeManifest({{"w", {a, b * c}, Dtype::kU8}});
  m.source[0].strides = {b * c + 8, 1};
  m.destination[0] = BufferOf(0, "w", Dtype::kU8, {7500, 8000 * c},
                              {ViewPiece("w", {7500, 8000 * c}, {0, 0}, {7500, 8000 * c}, {0, 0})});
  m.destination[0].strides = {8000 * c + 16, 1};
  ASSERT_GT(Elements(m), kTooManyToVisit);
  const auto plan = BuildPlan(m);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_GT(plan->copies.size(), 7500u);
  Plan mutated = *plan;
  mutated.copies[5000].run_bytes -= 1;
  ExpectCaught(m, mutated, "shorten a run");
}

// --- memory that is shared

TEST(Coverage, PiecesOfOneBufferMustNotMeet) {
  Manifest m = WholeManifest({{"a", {4, 6}, Dtype::kU8}, {"b", {4, 6}, Dtype::kU8}});
  m.destination.pop_back();
  m.destination[0] = BufferOf(0, "ab", Dtype::kU8, {8, 6},
                              {PieceOf("a", {0, 0}, {4, 6}, {0, 0}), PieceOf("b", {0, 0}, {4, 6}, {4, 0})});
  Plan plan = *BuildPlan(m);
  m.destination[0].pieces[1].buffer_offset = {3, 0};
  for (Copy& c : plan.copies) {
    if (c.tensor == 1) c.destination_offset -= 6;
  }
  ExpectCaught(m, plan, "each piece is written rightly");
  m.destination[0].pieces[1] = FillOf(PieceKind::kKeep, {4, 6}, {3, 0});
  plan.copies.pop_back();
  plan.edges[0].count = 1;
  ExpectCaught(m, plan, "kept elements under a tensor");
}

TEST(Coverage, StridesThatPutTwoElementsAtOnePlace) {
  Manifest m = WholeManifest({{"a", {3, 2}, Dtype::kU8}});
  m.destination[0].strides = {2, 3};  // 0 3 2 5 4 7: do not nest, do not meet
  Plan plan = *BuildPlan(m);
  EXPECT_TRUE(ProveCoverage(m, plan).ok());
  m.destination[0].strides = {1, 1};
  for (CopyLoop& l : plan.copies[0].loops) l.destination_stride = 1;
  ExpectCaught(m, plan, "elements meet");
}

TEST(Coverage, ZeroFillsWhoseStridesDoNotNest) {
  Manifest m = WholeManifest({{"a", {3, 2}, Dtype::kU8}});
  m.destination[0].shape = {6, 2};
  m.destination[0].strides = {4, 7};
  m.destination[0].pieces.push_back(FillOf(PieceKind::kZero, {3, 2}, {3, 0}));
  const Plan plan = *BuildPlan(m);
  EXPECT_TRUE(ProveCoverage(m, plan).ok());
  Plan mutated = plan;
  mutated.zero_fills[0].destination_offset += 4;
  ExpectCaught(m, mutated, "shift the fill");
}

TEST(Coverage, InterleavedBuffersOfOneStorage) {
  // Column blocks of one pitched matrix of 2^40 rows.
  Manifest m = WholeManifest({{"a", {Index{1} << 40, 4}, Dtype::kU8}, {"b", {4, 4}, Dtype::kU8}});
  m.destination[0].strides = {10, 1};
  m.destination[0].storage = Storage{"m", 0};
  m.destination[1].strides = {10, 1};
  Plan plan = *BuildPlan(m);
  for (Index offset = 0; offset < 20; ++offset) {
    m.destination[1].storage = Storage{"m", (Index{1} << 33) * 10 + offset};
    const bool apart = offset % 10 >= 4 && offset % 10 <= 6;
    EXPECT_EQ(ProveCoverage(m, plan).ok(), apart) << offset << ": " << ProveCoverage(m, plan);
  }
}

TEST(Coverage, BuffersOfOneStorageMustNotMeet) {
  Manifest m = WholeManifest({{"a", {4}, Dtype::kU8}, {"b", {4}, Dtype::kU8}});
  m.destination[0].storage = Storage{"m", 0};
  m.destination[1].storage = Storage{"m", 4};
  const Plan plan = *BuildPlan(m);
  m.destination[1].storage->offset_bytes = 3;
  EXPECT_TRUE(HasCode(ProveCoverage(m, plan), ErrorCode::kPlanInvalid));
}

}  // namespace
}  // namespace headrace
