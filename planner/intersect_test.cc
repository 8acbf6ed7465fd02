#include "planner/intersect.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/status.h"
#include "planner/testing/manifest_parts.h"
#include "planner/testing/random_manifest.h"
#include "planner/validate.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Message(const Manifest& m, ErrorCode code) {
  EXPECT_TRUE(Validate(m).ok()) << Validate(m);
  const auto cells = Intersect(m);
  EXPECT_FALSE(cells.ok());
  EXPECT_EQ(CodeOf(cells.status()), CodeName(code)) << cells.status();
  return std::string(cells.status().message());
}

TEST(Intersect, ListsTheFirstMissingBoxAndTheTotal) {
  Manifest m = WholeManifest({{"a", {4, 6}, Dtype::kU8}, {"b", {4}, Dtype::kU8}});
  m.source[0] = BufferOf(2, "part", Dtype::kU8, {4, 4}, {PieceOf("a", {0, 0}, {4, 4}, {0, 0})});
  m.destination[0].rank = 5;
  EXPECT_THAT(Message(m, ErrorCode::kUncovered), AllOf(HasSubstr("\"a\""), HasSubstr("rank 5"), HasSubstr("[0:4, 4:6]"),
                                                       HasSubstr("8 elements"), Not(HasSubstr("\"b\""))));
}

TEST(Intersect, CountsOverAllTensorsAndRanks) {
  Manifest m = WholeManifest({{"a", {4, 6}, Dtype::kU8}, {"b", {4}, Dtype::kU8}});
  m.source.clear();
  m.destination.push_back(m.destination[1]);
  m.destination.back().rank = 1;
  EXPECT_THAT(Message(m, ErrorCode::kUncovered), AllOf(HasSubstr("first tensor \"a\""), HasSubstr("32 elements"),
                                                       HasSubstr("\"b\""), HasSubstr("rank 1")));
}

TEST(Intersect, DestinationElementsInNoPieceAreUncovered) {
  Manifest m = WholeManifest({{"a", {4}, Dtype::kU8}});
  m.destination[0].shape = {7};
  EXPECT_THAT(Message(m, ErrorCode::kUncovered),
              AllOf(HasSubstr("[4:7]"), HasSubstr("3 elements"), HasSubstr("\"a\"")));
  m.destination[0].pieces.push_back(FillOf(PieceKind::kKeep, {3}, {4}));
  EXPECT_TRUE(Intersect(m).ok());
  m.destination.push_back(BufferOf(0, "scalar", Dtype::kF32, {}, {}));
  EXPECT_THAT(Message(m, ErrorCode::kUncovered), HasSubstr("scalar"));
}

// However many places of the first ones there are, and buffers that nothing fills.
TEST(Intersect, NamesEveryMissingTensor) {
  std::vector<TensorSpec> tensors;
  for (int t = 0; t < 40; ++t) tensors.push_back({absl::StrCat("layer.", t, "."), {4}, Dtype::kU8});
  Manifest m = WholeManifest(tensors);
  const std::vector<Buffer> all = m.destination;
  for (int64_t r = 1; r < 9; ++r) {
    for (Buffer b : all) {
      b.rank = r;
      m.destination.push_back(std::move(b));
    }
  }
  for (int64_t r = 0; r < 9; ++r) m.destination.insert(m.destination.begin(), BufferOf(r, "bare", Dtype::kU8, {3}, {}));
  const std::vector<Buffer> sources = std::exchange(m.source, {});
  std::string message = Message(m, ErrorCode::kUncovered);
  for (const TensorSpec& t : m.tensors) EXPECT_THAT(message, HasSubstr(absl::StrCat("\"", t.name, "\"")));
  EXPECT_THAT(message,
              AllOf(HasSubstr("unfilled destination rank 8, buffer \"bare\""), HasSubstr("1467 elements in all")));
  m.destination.clear();
  m.source = sources;
  message = Message(m, ErrorCode::kUnwanted);
  for (const TensorSpec& t : m.tensors) EXPECT_THAT(message, HasSubstr(absl::StrCat("\"", t.name, "\"")));
}

TEST(Intersect, ThousandsOfNamesAreCounted) {
  std::vector<TensorSpec> tensors;
  for (int t = 0; t < 3000; ++t) tensors.push_back({absl::StrCat("t", t), {1}, Dtype::kU8});
  Manifest m = WholeManifest(tensors);
  m.source.clear();
  const std::string message = Message(m, ErrorCode::kUncovered);
  EXPECT_THAT(message,
              AllOf(HasSubstr("\"t299\" and 2700 more: first tensor \"t0\""), HasSubstr("3000 elements in all")));
  EXPECT_LT(message.size(), 10000u);
}

TEST(Intersect, MissingBoxesCountInTheTensorsAxes) {
  Manifest m = WholeManifest({{"w", {1, 17}, Dtype::kU8}});
  m.source[0] = BufferOf(0, "s", Dtype::kU8, {1, 9}, {PieceOf("w", {0, 0}, {1, 9}, {0, 0})});
  EXPECT_THAT(Message(m, ErrorCode::kUncovered), AllOf(HasSubstr("at [0:1, 9:17];"), HasSubstr("8 elements")));
  // Flat shards of [3, 4].
  m = WholeManifest({{"w", {3, 4}, Dtype::kU8}});
  m.source[0] = BufferOf(0, "s", Dtype::kU8, {4}, {ViewPiece("w", {12}, {0}, {4}, {0})});
  m.destination[0] = BufferOf(0, "d", Dtype::kU8, {12}, {ViewPiece("w", {12}, {0}, {12}, {0})});
  EXPECT_THAT(Message(m, ErrorCode::kUncovered), HasSubstr("at [1:3, 0:4];"));
  m.source[0] = BufferOf(0, "s", Dtype::kU8, {6}, {ViewPiece("w", {12}, {0}, {6}, {0})});
  EXPECT_THAT(Message(m, ErrorCode::kUncovered), HasSubstr("at elements 6:12;"));
}

TEST(Intersect, UncoveredAlsoListsTheUnwanted) {
  Manifest m = WholeManifest({{"a", {4}, Dtype::kU8}, {"b", {3}, Dtype::kU8}});
  m.source.erase(m.source.begin());
  m.destination.erase(m.destination.begin() + 1);
  EXPECT_THAT(Message(m, ErrorCode::kUncovered),
              AllOf(HasSubstr("\"a\""), HasSubstr("\"b\""), HasSubstr("3 elements")));
}

TEST(Intersect, UnwantedUnlessIgnored) {
  Manifest m = WholeManifest({{"a", {4}, Dtype::kU8}, {"b", {3}, Dtype::kU8}});
  m.destination[1] = BufferOf(0, "b", Dtype::kU8, {2}, {PieceOf("b", {0}, {2}, {0})});
  EXPECT_THAT(Message(m, ErrorCode::kUnwanted), AllOf(HasSubstr("\"b\""), HasSubstr("[2:3]"), HasSubstr("1 elements")));
  m.ignore = {"a"};
  EXPECT_THAT(Message(m, ErrorCode::kUnwanted), HasSubstr("\"b\""));
  m.ignore = {"b"};
  EXPECT_TRUE(Intersect(m).ok());
  // What a source keeps is not offered.
  m.ignore.clear();
  m.source[1].pieces = {PieceOf("b", {0}, {2}, {0}), FillOf(PieceKind::kKeep, {1}, {2})};
  EXPECT_TRUE(Intersect(m).ok());
}

TEST(Intersect, EmptyTensorsNeedNoSource) {
  Manifest m = WholeManifest({{"a", {0, 3}, Dtype::kU8}, {"b", {2}, Dtype::kU8}});
  m.source.erase(m.source.begin());
  const auto cells = Intersect(m);
  ASSERT_TRUE(cells.ok()) << cells.status();
  EXPECT_TRUE((*cells)[0].cells.empty());
  EXPECT_EQ((*cells)[1].cells.size(), 1u);
}

// Cells of a destination box are disjoint, exactly that box, and list all sources that hold them.
TEST(Intersect, RandomCellsTileTheDestinations) {
  const uint64_t seed = 1234;
  for (uint64_t n = 0; n < 2000; ++n) {
    SCOPED_TRACE(testing::Message() << "seed " << seed + n);
    Random random(seed + n);
    const auto tensors = Intersect(RandomManifest(random));
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    for (const TensorCells& cut : *tensors) {
      std::map<std::pair<int, Index>, int> times;  // (destination box, element) -> cells
      auto for_each = [&](const Box& box, auto&& visit) {
        for (Index k = 0; k < Volume(box); ++k) {
          Index rest = k, element = 0;
          for (size_t i = box.start.size(); i-- > 0;) {
            element += (box.start[i] + rest % box.extent[i]) * cut.axis_strides[i];
            rest /= box.extent[i];
          }
          visit(element);
        }
      };
      for (const Cell& cell : cut.cells) {
        ASSERT_TRUE(Contains(cut.destination[cell.destination_box].box, cell.box));
        for_each(cell.box, [&](Index element) { ++times[{cell.destination_box, element}]; });
        std::vector<int> holders;
        for (size_t s = 0; s < cut.source.size(); ++s) {
          if (Contains(cut.source[s].box, cell.box))
            holders.push_back(static_cast<int>(s));
          else
            ASSERT_FALSE(Intersection(cut.source[s].box, cell.box).has_value());
        }
        ASSERT_THAT(cell.sources, testing::UnorderedElementsAreArray(holders));
        ASSERT_FALSE(holders.empty());
      }
      for (size_t d = 0; d < cut.destination.size(); ++d) {
        for_each(cut.destination[d].box, [&](Index element) { ASSERT_EQ((times[{static_cast<int>(d), element}]), 1); });
      }
    }
  }
}

}  // namespace
}  // namespace headrace
