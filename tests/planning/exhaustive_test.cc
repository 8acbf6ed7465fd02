// Small worlds, whole: layouts of both sides crossed, each plan executed on bytes and compared element by element.

#include <cstdlib>
#include <iostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "planner/layout/case_share.h"
#include "planner/layout/enumerate.h"
#include "planner/plan.h"
#include "planner/testing/element_oracle.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

std::string Describe(const Extents& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

// Plans and checks every byte.
void ExpectExact(const Manifest& m, const std::string& what, Policy policy = Policy::kAuto) {
  const absl::StatusOr<Plan> plan = BuildPlan(m, {.policy = policy});
  ASSERT_TRUE(plan.ok()) << what << ": " << plan.status();
  ASSERT_EQ(CheckPlan(m, *plan), "") << what;
}

// One side's layouts of a tensor, of which no two hand out the same parts, as buffers.
struct Side {
  std::vector<Layout> layouts;
  std::vector<std::vector<Buffer>> buffers;
};

Side DistinctSides(const TensorSpec& tensor) {
  Side side;
  side.layouts = DistinctLayouts(tensor.shape);
  for (const Layout& layout : side.layouts) side.buffers.push_back(BuffersOf("b", tensor, layout));
  return side;
}

// All crossings, which take much longer: for once, not for every run.
bool AllCrossings() { return std::getenv("HEADRACE_TEST_ALL_CROSSINGS") != nullptr; }

// Crossing all distinct layouts of a shape with each other is complete for one and two axes. For three axes the
// layouts are products over axes, as those of fewer axes are: each source layout meets every kth destination layout,
// at an offset that moves with the shape, so that each pair of axes' cuts meets. With HEADRACE_TEST_ALL_CROSSINGS each
// meets all.
TEST(Exhaustive, DistinctLayoutsOfBothSidesCrossed) {
  constexpr size_t kCrossings = 40;  // of a source layout of three axes
  CaseShare share("placements crossed");
  size_t distinct = 0, turn = 0;
  for (const Extents& shape : SmallShapes()) {
    const TensorSpec tensor{"t", shape, Dtype::kU16};
    const Side side = DistinctSides(tensor);
    distinct += side.layouts.size();
    const size_t n = side.layouts.size();
    const size_t step = shape.size() < 3 || n <= kCrossings || AllCrossings() ? 1 : n / kCrossings;
    for (size_t s = 0; s < n; ++s) {
      for (size_t d = ++turn % step; d < n; d += step) {
        if (!share.Take()) continue;
        Manifest m;
        m.tensors = {tensor};
        m.source = side.buffers[s];
        m.destination = side.buffers[d];
        ExpectExact(m,
                    absl::StrCat(Describe(shape), " ", Describe(side.layouts[s]), " -> ", Describe(side.layouts[d])));
        if (HasFatalFailure()) return;
      }
    }
  }
  std::cout << distinct << " distinct one-side layouts of " << SmallShapes().size() << " shapes\n";
}

// Every mesh with every combination of placements, not only distinct ones, gathered on one rank; with up to two axes
// also handed out from it.
TEST(Exhaustive, EveryPlacementOntoOneRankAndBack) {
  CaseShare share("placements to and from one rank");
  const Layout one{{{1}, {}}, {Replicate{}}};
  for (const Extents& shape : SmallShapes()) {
    const TensorSpec tensor{"t", shape, Dtype::kU16};
    const std::vector<Buffer> whole = BuffersOf("w", tensor, one);
    ForEachLayout(static_cast<int>(shape.size()), {}, [&](const Layout& layout) {
      if (!share.Take() || testing::Test::HasFatalFailure()) return;
      Manifest m;
      m.tensors = {tensor};
      m.source = BuffersOf("b", tensor, layout);
      m.destination = whole;
      ExpectExact(m, absl::StrCat(Describe(shape), " ", Describe(layout), " -> one"));
      if (shape.size() > 2) return;
      std::swap(m.source, m.destination);
      ExpectExact(m, absl::StrCat(Describe(shape), " one -> ", Describe(layout)));
    });
    if (HasFatalFailure()) return;
  }
}

// Shapes of one and two axes, with ranks on one to four hosts: workers in turn or in blocks, trainers on hosts of their
// own or among the workers. By both policies, which the tensor's name allows.
TEST(Exhaustive, HostsAndPoliciesCrossed) {
  CaseShare share("hosts and policies crossed");
  size_t turn = 0;
  for (const Extents& shape : SmallShapes()) {
    if (shape.size() > 2) continue;
    const TensorSpec tensor{"q_proj", shape, Dtype::kU16};
    const Side side = DistinctSides(tensor);
    const size_t n = side.layouts.size();
    for (size_t s = 0; s < n; ++s) {
      for (size_t d = 0; d < n; ++d) {
        const Index hosts = static_cast<Index>(++turn % 4) + 1;
        const bool in_turn = turn % 8 < 4, apart = turn % 3 > 0;
        if ((!AllCrossings() && turn % 11 != 0) || !share.Take()) continue;
        Manifest m;
        m.tensors = {tensor};
        m.source = side.buffers[s];
        // Two engines, so that every byte is wanted twice.
        for (int64_t engine : {0, 1}) {
          for (Buffer b : side.buffers[d]) {
            b.rank += 100 * engine;
            m.destination.push_back(std::move(b));
          }
        }
        auto place = [&](const std::vector<Buffer>& buffers, const char* prefix, std::vector<Placement>* placements) {
          std::set<int64_t> ranks;
          for (const Buffer& b : buffers) ranks.insert(b.rank);
          int64_t i = 0;
          for (int64_t rank : ranks) {
            const int64_t host = in_turn ? i % hosts : i * hosts / static_cast<int64_t>(ranks.size());
            placements->push_back({rank, absl::StrCat(prefix, host), i % 3 ? "" : "d", ""});
            ++i;
          }
        };
        place(m.source, apart ? "t" : "h", &m.topology.source);
        place(m.destination, "h", &m.topology.destination);
        const std::string what =
            absl::StrCat(Describe(shape), " ", Describe(side.layouts[s]), " -> twice ", Describe(side.layouts[d]),
                         " on ", hosts, " hosts", in_turn ? " in turn" : " in blocks", apart ? ", apart" : "");
        ExpectExact(m, what + ", auto");
        ExpectExact(m, what + ", hybrid", Policy::kHybrid);
        if (HasFatalFailure()) return;
        const PlanFigures f = Measure(m, *BuildPlan(m));
        ASSERT_EQ(f.host_wire_bytes, f.distinct_host_bytes) << what;
        ASSERT_EQ(f.wire_bytes, f.needed_bytes) << what;
      }
    }
  }
}

// Group-interleaved QKV, cut along rows and columns anywhere, onto fused and plain destinations.
TEST(Exhaustive, InterleavedQkvCrossed) {
  CaseShare share("interleaved QKV crossed");
  for (const Interleaving& interleaving : SmallInterleavings()) {
    const Index columns = 3;
    const RowMap map = RowsOf(interleaving);
    const std::vector<TensorSpec> tensors = TensorsOf(interleaving, {columns}, Dtype::kU16);
    Index rows = 0;
    for (const RowRun& run : map) rows += run.count;
    const std::vector<Layout> layouts = DistinctLayouts({rows, columns});
    std::vector<std::vector<Buffer>> fused;
    for (const Layout& layout : layouts) fused.push_back(FusedBuffersOf("qkv", map, {columns}, Dtype::kU16, layout));
    for (size_t s = 0; s < layouts.size(); ++s) {
      for (size_t d = 0; d < layouts.size(); ++d) {
        if ((!AllCrossings() && (s * 7 + d) % 5 != 0) || !share.Take()) continue;
        Manifest m;
        m.tensors = tensors;
        m.source = fused[s];
        m.destination = fused[d];
        ExpectExact(m, absl::StrCat("qkv ", Describe(layouts[s]), " -> ", Describe(layouts[d])));
        if (HasFatalFailure()) return;
      }
      if (!share.Take()) continue;
      Manifest m;  // onto q, k and v each on its own, over TP1 to TP6 by the layout's own placements
      m.tensors = tensors;
      m.source = fused[s];
      for (const TensorSpec& t : tensors) {
        for (Buffer& b : BuffersOf(t.name, t, layouts[s])) m.destination.push_back(std::move(b));
      }
      ExpectExact(m, absl::StrCat("qkv ", Describe(layouts[s]), " -> parts"));
      if (HasFatalFailure()) return;
    }
  }
}

// Larger shapes and meshes, random placements on both sides, several destinations of different layouts at once.
TEST(Random, PlacementsOfBothSides) {
  const uint64_t seed = 8128;
  CaseShare share("random placements", seed);
  for (uint64_t n = 0; n < 8000; ++n) {
    if (!share.Take()) continue;
    Random random(seed + n);
    Extents shape;
    const int axes = static_cast<int>(Uniform(random, 1, 4));
    for (int i = 0; i < axes; ++i) shape.push_back(Uniform(random, 0, axes < 3 ? 24 : 8));
    const TensorSpec tensor{"t", shape, Dtype::kU16};
    auto random_layout = [&] {
      Layout layout;
      const Index dimensions = Uniform(random, 1, 3);
      const std::vector<MeshPlacement> placements = SmallPlacements(axes);
      for (Index i = 0; i < dimensions; ++i) {
        layout.mesh.extents.push_back(Uniform(random, 1, 4));
        layout.placements.push_back(
            placements[static_cast<size_t>(Uniform(random, 0, static_cast<Index>(placements.size()) - 1))]);
      }
      return layout;
    };
    Manifest m;
    m.tensors = {tensor};
    m.source = BuffersOf("b", tensor, random_layout());
    for (Index engine = Uniform(random, 1, 2); engine > 0; --engine) {
      for (Buffer& b : BuffersOf(absl::StrCat("b", engine), tensor, random_layout())) {
        b.rank += 100 * engine;
        m.destination.push_back(std::move(b));
      }
    }
    ExpectExact(m, absl::StrCat("seed ", seed + n, ", ", Describe(shape)));
    if (HasFatalFailure()) return;
  }
}

TEST(Random, ManifestsWithViewsFillsAndStorages) {
  const uint64_t seed = 600000;
  CaseShare share("random manifests", seed);
  RandomManifestOptions large;
  large.max_tensors = 6;
  large.max_extent = 9;
  large.max_elements = 1000;
  large.max_ranks = 8;
  for (uint64_t n = 0; n < 10000; ++n) {
    if (!share.Take()) continue;
    Random random(seed + n);
    large.max_hosts = static_cast<int>(n % 4) + 1;
    large.broadcast_percent = n % 8 < 4 ? 30 : 0;
    ExpectExact(RandomManifest(random, large), absl::StrCat("seed ", seed + n),
                n % 8 < 4 ? Policy::kHybrid : Policy::kAuto);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace headrace
