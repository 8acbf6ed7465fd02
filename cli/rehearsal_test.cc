#include "cli/rehearsal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "planner/status.h"
#include "planner/testing/manifest_parts.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

Buffer OnRank(int64_t rank, const std::string& name, Index bytes = 4) {
  return BufferOf(rank, name, Dtype::kU8, {bytes}, {PieceOf("t", {0}, {bytes}, {0})});
}

// Two tensors of 4 elements and sources on rank 3.
Manifest TwoTensors(std::vector<Buffer> source, Dtype dtype = Dtype::kU16) {
  Manifest m;
  m.tensors = {{"t", {4}, dtype}, {"u", {4}, dtype}};
  m.source = std::move(source);
  for (Buffer& b : m.source) b.rank = 3;
  return m;
}

Buffer Whole(const std::string& name, const std::string& tensor, Dtype dtype = Dtype::kU16) {
  return BufferOf(3, name, dtype, {4}, {PieceOf(tensor, {0}, {4}, {0})});
}

Buffer In(Buffer b, const std::string& storage, Index offset_bytes) {
  b.storage = Storage{storage, offset_bytes};
  return b;
}

// "code: message", or "ok".
std::string Outcome(const Manifest& m) {
  const absl::Status s = CheckSourcesAgree(m);
  return s.ok() ? "ok" : std::string(CodeOf(s)) + ": " + std::string(s.message());
}

TEST(CastOf, CountsPublishersByRankAndWorkersByEngineNameAndRank) {
  Manifest m;
  m.source = {OnRank(100, "a"), OnRank(2, "a"), OnRank(7, "a"), OnRank(2, "b")};
  m.destination = {OnRank(9, "a"), OnRank(40, "a"), OnRank(3, "a"), OnRank(3, "b"), OnRank(1000000000000, "a")};
  m.topology.destination = {{9, "", "", "small"}, {40, "", "", "big"}, {3, "", "", "small"}, {5, "", "", "nobody"}};
  m.topology.source = {{55, "", "", ""}};  // a placement alone is no member
  const Cast cast = CastOf(m);
  EXPECT_THAT(cast.publishers, ElementsAre(2, 7, 100));
  EXPECT_THAT(cast.engines, ElementsAre(ElementsAre(1000000000000), ElementsAre(40), ElementsAre(3, 9)));
}

TEST(CastOf, NoSourcesAreOnePublisherThatHoldsNothing) {
  Manifest m;
  m.destination = {OnRank(4, "a")};
  const Cast cast = CastOf(m);
  EXPECT_THAT(cast.publishers, ElementsAre(0));
  EXPECT_THAT(cast.engines, ElementsAre(ElementsAre(4)));
  EXPECT_THAT(CastOf(Manifest()).engines, ElementsAre());
}

std::vector<std::string> NamesOf(const std::vector<Buffer>& buffers) {
  std::vector<std::string> names;
  for (const Buffer& b : buffers) names.push_back(b.name);
  return names;
}

// Each rank's buffers have their own names; rank 2 is placed, rank 1 is not.
Manifest Parted() {
  Manifest m;
  m.tensors = {{"t", {4}, Dtype::kU8}, {"s", {1}, Dtype::kU8}};
  m.ignore = {"s"};
  m.coupled = {{"t", "s", {4}}};
  m.source = {OnRank(1, "s1"), OnRank(2, "s2"), OnRank(1, "s1 too")};
  m.destination = {OnRank(2, "d2"), OnRank(1, "d1"), OnRank(2, "d2 too")};
  m.topology.source = {{2, "host", "domain", ""}};
  m.topology.destination = {{2, "other", "far", "e"}};
  return m;
}

TEST(SourcePart, IsTheRanksBuffersAndAllThatTensorsSay) {
  const Manifest one = SourcePart(Parted(), 1), two = SourcePart(Parted(), 2);
  EXPECT_THAT(NamesOf(one.source), ElementsAre("s1", "s1 too"));
  EXPECT_THAT(NamesOf(two.source), ElementsAre("s2"));
  for (const Manifest* part : {&one, &two}) {
    EXPECT_EQ(part->tensors.size(), 2u);
    EXPECT_THAT(part->ignore, ElementsAre("s"));
    ASSERT_EQ(part->coupled.size(), 1u);
    EXPECT_EQ(part->coupled[0].scale, "s");
    EXPECT_THAT(NamesOf(part->destination), ElementsAre());
    EXPECT_EQ(part->topology.destination.size(), 0u);
    ASSERT_EQ(part->topology.source.size(), 1u);
  }
  EXPECT_EQ(one.topology.source[0].rank, 1);
  EXPECT_EQ(one.topology.source[0].host, "");
  EXPECT_EQ(two.topology.source[0].rank, 2);
  EXPECT_EQ(two.topology.source[0].host, "host");
  EXPECT_EQ(two.topology.source[0].domain, "domain");
}

TEST(DestinationPart, IsTheRanksBuffersAlone) {
  const Manifest one = DestinationPart(Parted(), 1), two = DestinationPart(Parted(), 2);
  EXPECT_THAT(NamesOf(one.destination), ElementsAre("d1"));
  EXPECT_THAT(NamesOf(two.destination), ElementsAre("d2", "d2 too"));
  for (const Manifest* part : {&one, &two}) {
    EXPECT_EQ(part->tensors.size() + part->source.size() + part->ignore.size() + part->coupled.size(), 0u);
    EXPECT_EQ(part->topology.source.size(), 0u);
    ASSERT_EQ(part->topology.destination.size(), 1u);
  }
  EXPECT_EQ(one.topology.destination[0].rank, 1);
  EXPECT_EQ(one.topology.destination[0].engine, "");
  EXPECT_EQ(two.topology.destination[0].rank, 2);
  EXPECT_EQ(two.topology.destination[0].engine, "e");
}

TEST(RehearsalBytes, CountsThreeOfASourceAndFourOfADestination) {
  Manifest m;
  EXPECT_EQ(RehearsalBytes(m), 0);
  m.source = {OnRank(0, "a", 10), In(OnRank(1, "a", 7), "s", 100)};
  EXPECT_EQ(RehearsalBytes(m), 3 * 10 + 3 * 107);
  m.destination = {OnRank(0, "a", 10), OnRank(5, "a", 1)};
  EXPECT_EQ(RehearsalBytes(m), 3 * 10 + 3 * 107 + 4 * 11);
}

TEST(RehearsalBytes, StopsAtTheLargestNumber) {
  // The last byte of a large storage.
  const auto sized = [](int64_t rank, int64_t bytes) { return In(OnRank(rank, "a", 1), "s", bytes - 1); };
  Manifest m;
  m.source = {sized(0, kMost / 3)};
  EXPECT_EQ(RehearsalBytes(m), kMost / 3 * 3);
  m.source = {sized(0, kMost / 3 + 1)};
  EXPECT_EQ(RehearsalBytes(m), kMost);  // the copies of one buffer
  m.destination = {OnRank(0, "a", 1)};
  EXPECT_EQ(RehearsalBytes(m), kMost);  // and it stays there
  m.source = {sized(0, kMost / 6), sized(1, kMost / 6), sized(2, kMost / 6)};
  m.destination.clear();
  EXPECT_EQ(RehearsalBytes(m), kMost);  // the sum
  m.source = {In(OnRank(0, "a", 2), "s", kMost - 1)};
  EXPECT_EQ(RehearsalBytes(m), kMost);  // the offset
  m.source.clear();
  m.destination = {sized(0, kMost / 4), sized(1, 1)};
  EXPECT_EQ(RehearsalBytes(m), kMost);
}

TEST(CheckSourcesAgree, AcceptsWhatHoldsOneValueEverywhere) {
  EXPECT_EQ(Outcome(TwoTensors({})), "ok");
  EXPECT_EQ(Outcome(TwoTensors({Whole("a", "t"), Whole("b", "u")})), "ok");
  Buffer twice = Whole("a", "t");
  twice.pieces.push_back(PieceOf("t", {1}, {2}, {1}));
  EXPECT_EQ(Outcome(TwoTensors({twice})), "ok");
  EXPECT_EQ(Outcome(TwoTensors({In(Whole("a", "t"), "s", 0), In(Whole("b", "t"), "s", 0)})), "ok");
  EXPECT_EQ(Outcome(TwoTensors({In(Whole("a", "t"), "s", 0), In(Whole("b", "u"), "s", 8)})), "ok");
  Buffer one = BufferOf(3, "a", Dtype::kU16, {4}, {PieceOf("t", {2}, {1}, {0})});
  one.strides = {0};
  EXPECT_EQ(Outcome(TwoTensors({one})), "ok");
}

TEST(CheckSourcesAgree, RefusesTwoTensorsOnOnePlace) {
  Buffer both = Whole("a", "t");
  both.pieces.push_back(PieceOf("u", {3}, {1}, {2}));
  EXPECT_THAT(Outcome(TwoTensors({Whole("fine", "t"), both})),
              AllOf(HasSubstr("conflict: source rank 3, buffer \"a\", tensor \"t\""), HasSubstr("other elements")));
}

TEST(CheckSourcesAgree, RefusesTwoElementsOfOneTensorOnOnePlace) {
  Buffer both = Whole("a", "t");
  both.pieces.push_back(PieceOf("t", {0}, {2}, {1}));
  EXPECT_THAT(Outcome(TwoTensors({both})), HasSubstr("conflict: source rank 3, buffer \"a\", tensor \"t\""));
}

TEST(CheckSourcesAgree, RefusesStridesThatMeet) {
  Manifest m = TwoTensors({BufferOf(3, "a", Dtype::kU16, {2, 2}, {PieceOf("t", {0, 0}, {2, 2}, {0, 0})})});
  m.tensors[0].shape = {2, 2};
  EXPECT_EQ(Outcome(m), "ok");
  m.source[0].strides = {1, 1};
  EXPECT_THAT(Outcome(m), HasSubstr("conflict: source rank 3, buffer \"a\", tensor \"t\""));
  m.source[0].strides = {0, 1};
  EXPECT_THAT(Outcome(m), HasSubstr("conflict: source rank 3, buffer \"a\", tensor \"t\""));
}

TEST(CheckSourcesAgree, RefusesBuffersThatShareAStorageForDifferentElements) {
  EXPECT_THAT(Outcome(TwoTensors({In(Whole("a", "t"), "s", 0), In(Whole("b", "u"), "s", 6)})),
              HasSubstr("conflict: source rank 3, buffer \"a\", tensor \"t\""));
  EXPECT_THAT(Outcome(TwoTensors({In(Whole("a", "t"), "s", 0), In(Whole("b", "t"), "s", 2)})),
              HasSubstr("conflict: source rank 3, buffer \"a\", tensor \"t\""));
  Manifest apart = TwoTensors({In(Whole("a", "t"), "s", 0), In(Whole("b", "u"), "s", 0)});
  apart.source[1].rank = 4;  // the same name on another rank is other memory
  EXPECT_EQ(Outcome(apart), "ok");
}

TEST(CheckSourcesAgree, RefusesAConversionBetweenFloatsOfWhichNeitherHoldsTheOther) {
  EXPECT_THAT(Outcome(TwoTensors({Whole("a", "u", Dtype::kF16)}, Dtype::kBF16)),
              AllOf(HasSubstr("dtype_mismatch: source rank 3, buffer \"a\", tensor \"u\": F16 and BF16"),
                    HasSubstr("cannot tell")));
  EXPECT_THAT(Outcome(TwoTensors({Whole("a", "u", Dtype::kBF16)}, Dtype::kF16)), HasSubstr("BF16 and F16"));
  EXPECT_EQ(Outcome(TwoTensors({Whole("a", "u", Dtype::kF32)}, Dtype::kBF16)), "ok");
  EXPECT_EQ(Outcome(TwoTensors({Whole("a", "u", Dtype::kF16)}, Dtype::kF64)), "ok");
}

}  // namespace
}  // namespace headrace
