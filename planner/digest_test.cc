#include "planner/digest.h"

#include <algorithm>
#include <set>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"
#include "planner/testing/manifest_parts.h"

namespace headrace {
namespace {

std::string Hex(absl::string_view bytes) { return absl::BytesToHexString(bytes); }

// Two trainer ranks with two rows each, one engine rank with a row of padding and a pitch.
Manifest SmallManifest() {
  Manifest m;
  m.tensors = {{"w \"1\"", {4, 2}, Dtype::kBF16}};
  for (Index r = 0; r < 2; ++r) {
    m.source.push_back(BufferOf(r, "s", Dtype::kBF16, {2, 2}, {PieceOf("w \"1\"", {2 * r, 0}, {2, 2}, {0, 0})}));
  }
  m.destination = {BufferOf(3, "d", Dtype::kBF16, {5, 2},
                            {PieceOf("w \"1\"", {0, 0}, {4, 2}, {0, 0}), FillOf(PieceKind::kZero, {1, 2}, {4, 0})})};
  m.destination[0].strides = {3, 1};
  return m;
}

TEST(Digest, Sha256KnownVectors) {
  EXPECT_EQ(Hex(Sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Hex(Sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Hex(Sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Hex(Sha256(std::string(1000000, 'a'))), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Digest, CanonicalTextOfASmallPlan) {
  const Manifest m = SmallManifest();
  const auto plan = BuildPlan(m);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(CanonicalText(m, *plan),
            "edge 0 -> 3\n"
            "\"w \\\"1\\\"\" \"s\"+0 -> \"d\"+0 @0 run 4 2x4,6,4\n"
            "edge 1 -> 3\n"
            "\"w \\\"1\\\"\" \"s\"+0 -> \"d\"+12 @8 run 4 2x4,6,4\n"
            "zero 3 \"d\"+24 run 4\n");
  EXPECT_EQ(CanonicalText(m, *plan, plan->edges[1]),
            "edge 1 -> 3\n\"w \\\"1\\\"\" \"s\"+0 -> \"d\"+12 @8 run 4 2x4,6,4\n");
}

TEST(Digest, IsThatOfTheCanonicalText) {
  const Manifest m = SmallManifest();
  const auto plan = BuildPlan(m);
  ASSERT_TRUE(plan.ok());
  std::vector<std::string> leaves;
  for (const Edge& e : plan->edges) {
    EXPECT_EQ(EdgeDigest(m, *plan, e), Sha256(CanonicalText(m, *plan, e)));
    leaves.push_back(EdgeDigest(m, *plan, e));
  }
  EXPECT_EQ(PlanDigest(m, *plan), MerkleRoot(leaves));
}

TEST(Digest, ChangesWithEveryNumberAndName) {
  const Manifest m = SmallManifest();
  const auto plan = BuildPlan(m);
  ASSERT_TRUE(plan.ok());
  std::set<std::string> digests = {PlanDigest(m, *plan)};
  auto expect_new = [&](const char* what, const Manifest& manifest, const Plan& changed) {
    EXPECT_TRUE(digests.insert(PlanDigest(manifest, changed)).second) << what;
  };
  for (size_t i = 0; i < plan->copies.size(); ++i) {
    Index* (*const numbers[])(Copy&) = {[](Copy& c) { return &c.source_offset; },
                                        [](Copy& c) { return &c.destination_offset; },
                                        [](Copy& c) { return &c.position; },
                                        [](Copy& c) { return &c.run_bytes; },
                                        [](Copy& c) { return &c.loops[0].extent; },
                                        [](Copy& c) { return &c.loops[0].source_stride; },
                                        [](Copy& c) { return &c.loops[0].position_stride; },
                                        [](Copy& c) { return &c.loops[0].destination_stride; }};
    for (auto number : numbers) {
      Plan changed = *plan;
      ++*number(changed.copies[i]);
      expect_new("a number of a copy", m, changed);
    }
    Plan changed = *plan;
    changed.copies[i].loops.push_back({2, 0, 0, 0});
    expect_new("a loop more", m, changed);
  }
  Plan changed = *plan;
  std::swap(changed.edges[0], changed.edges[1]);
  expect_new("order of edges", m, changed);
  changed = *plan;
  ++changed.edges[0].source_rank;
  expect_new("source rank", m, changed);
  changed = *plan;
  ++changed.edges[0].destination_rank;
  expect_new("destination rank", m, changed);
  Manifest renamed = m;
  renamed.source[0].name = "s2";
  expect_new("source name", renamed, *plan);
  renamed = m;
  renamed.destination[0].name = "d2";
  expect_new("destination name", renamed, *plan);
  renamed = m;
  renamed.tensors[0].name = "w2";
  expect_new("tensor name", renamed, *plan);
}

// One trainer rank, an engine of two workers on another host that both want everything, one of them pitched.
Manifest StreamManifest() {
  Manifest m;
  m.tensors = {{"w", {4, 2}, Dtype::kBF16}};
  m.source = {WholeBuffer(0, m.tensors[0])};
  m.destination = {WholeBuffer(1, m.tensors[0]), WholeBuffer(2, m.tensors[0])};
  m.destination[1].strides = {3, 1};
  m.topology.source = {{0, "s", "", ""}};
  m.topology.destination = {{1, "d", "", ""}, {2, "d", "", ""}};
  return m;
}

TEST(Digest, EveryEdgeOfAStreamSealsAllOfIt) {
  const Manifest m = StreamManifest();
  const auto plan = BuildPlan(m);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::string name = m.source[0].name;
  const std::string stream = "stream 0: 0 -> 1 -> 2\npart \"w\" \"" + name + "\"+0 @0 run 4 4x4,4\n";
  EXPECT_EQ(CanonicalText(m, *plan), "edge 0 -> 1\n" + stream + "\"w\" \"" + name + "\"+0 -> \"" +
                                         m.destination[0].name + "\"+0 @0 run 4 4x4,4,4 part 0\n" + "edge 0 -> 2\n" +
                                         stream + "\"w\" \"" + name + "\"+0 -> \"" + m.destination[1].name +
                                         "\"+0 @0 run 4 4x4,6,4 part 0\n");
  std::set<std::string> seen[2] = {{EdgeDigest(m, *plan, plan->edges[0])}, {EdgeDigest(m, *plan, plan->edges[1])}};
  auto expect_new = [&](const char* what, const Plan& changed) {
    for (int e = 0; e < 2; ++e) {
      EXPECT_TRUE(seen[e].insert(EdgeDigest(m, changed, changed.edges[e])).second) << what << ", edge " << e;
    }
  };
  auto with = [&](const char* what, auto&& change) {
    Plan changed = *plan;
    change(changed.streams[0]);
    expect_new(what, changed);
  };
  with("source rank", [](Stream& s) { ++s.source_rank; });
  with("order of the chain", [](Stream& s) { std::swap(s.chain[0], s.chain[1]); });
  with("a rank more", [](Stream& s) { s.chain.push_back(7); });
  with("a part more", [](Stream& s) { s.parts.push_back(Part(s.parts[0])); });
  with("source offset", [](Stream& s) { ++s.parts[0].source_offset; });
  with("position", [](Stream& s) { ++s.parts[0].position; });
  with("run", [](Stream& s) { ++s.parts[0].run_bytes; });
  with("extent", [](Stream& s) { ++s.parts[0].loops[0].extent; });
  with("source stride", [](Stream& s) { ++s.parts[0].loops[0].source_stride; });
  with("position stride", [](Stream& s) { ++s.parts[0].loops[0].position_stride; });
  Plan changed = *plan;
  changed.copies[0].part = changed.copies[1].part = 1;
  expect_new("the copies' part", changed);
  changed = *plan;
  for (Edge& e : changed.edges) e.stream = -1;
  expect_new("direct edges", changed);
}

TEST(Digest, NamesCannotForgeText) {
  Manifest m = SmallManifest();
  const auto plan = BuildPlan(m);
  ASSERT_TRUE(plan.ok());
  m.source[0].name = "s\"+0 -> \"d\"+0 @0 run 4\n";
  const std::string text = CanonicalText(m, *plan, plan->edges[0]);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
}

TEST(MerkleRoot, ShapeOfTheTree) {
  auto leaf = [](absl::string_view s) { return Sha256(std::string(1, '\0') + std::string(s)); };
  auto node = [](const std::string& a, const std::string& b) { return Sha256("\x01" + a + b); };
  EXPECT_EQ(MerkleRoot({}), Sha256(""));
  EXPECT_EQ(MerkleRoot({"a"}), leaf("a"));
  EXPECT_EQ(MerkleRoot({"a", "b"}), node(leaf("a"), leaf("b")));
  EXPECT_EQ(MerkleRoot({"a", "b", "c"}), node(node(leaf("a"), leaf("b")), leaf("c")));
  EXPECT_EQ(MerkleRoot({"a", "b", "c", "d", "e"}),
            node(node(node(leaf("a"), leaf("b")), node(leaf("c"), leaf("d"))), leaf("e")));
  EXPECT_NE(MerkleRoot({"a", "b"}), MerkleRoot({"b", "a"}));
}

}  // namespace
}  // namespace headrace
