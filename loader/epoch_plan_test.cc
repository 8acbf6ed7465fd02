#include "loader/epoch_plan.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/digest.h"
#include "planner/status.h"
#include "planner/testing/manifest_parts.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void Add(proto::EpochStart* epoch, const MemberKey& member, std::string fragment) {
  proto::EpochStart::Member* m = epoch->add_members();
  *m->mutable_id() = member.ToProto();
  m->mutable_layout()->set_manifest_fragment(std::move(fragment));
}

const TensorSpec kA{"a", {4, 3}, Dtype::kBF16};
const TensorSpec kB{"b", {5}, Dtype::kF32};

Manifest Source(int64_t rank, std::vector<TensorSpec> tensors, std::vector<Buffer> buffers) {
  Manifest part;
  part.tensors = std::move(tensors);
  part.source = std::move(buffers);
  part.topology.source = {{rank, "", "", ""}};
  return part;
}

Manifest Destination(int64_t rank, std::vector<Buffer> buffers, std::string engine = "") {
  Manifest part;
  part.destination = std::move(buffers);
  part.topology.destination = {{rank, "", "", std::move(engine)}};
  return part;
}

// Publishers of ranks 10 (a) and 20 (b); engine 0 with rank 5, engine 1 with rank 6; each wants all.
struct Parts {
  Manifest p0 = Source(10, {kA, kB}, {WholeBuffer(10, kA)});
  Manifest p1 = Source(20, {kB, kA}, {WholeBuffer(20, kB)});
  Manifest r0 = Destination(5, {WholeBuffer(5, kA), WholeBuffer(5, kB)}, "e0");
  Manifest r1 = Destination(6, {WholeBuffer(6, kA), WholeBuffer(6, kB)}, "e1");

  proto::EpochStart Epoch() const {
    proto::EpochStart epoch;
    Add(&epoch, MemberKey::Publisher(0), EncodeFragment(p0));
    Add(&epoch, MemberKey::Publisher(1), EncodeFragment(p1));
    Add(&epoch, MemberKey::Receiver(0, 0), EncodeFragment(r0));
    Add(&epoch, MemberKey::Receiver(1, 0), EncodeFragment(r1));
    return epoch;
  }
  absl::Status Status() const { return EpochPlan::Make(Epoch()).status(); }
};

void ExpectError(const absl::Status& status, ErrorCode code, const std::string& a, const std::string& b = "") {
  EXPECT_TRUE(HasCode(status, code)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(a), HasSubstr(b)));
}

TEST(EpochPlanTest, MergesFragmentsInTheOrderOfMembers) {
  const auto plan = EpochPlan::Make(Parts().Epoch());
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->manifest().tensors.size(), 2u);
  EXPECT_EQ(plan->manifest().tensors[0].name, "a");
  EXPECT_EQ(plan->manifest().source.size(), 2u);
  EXPECT_EQ(plan->manifest().destination.size(), 4u);
  EXPECT_EQ(plan->SourceRank(1), 20);
  EXPECT_EQ(plan->PublisherOf(10), 0);
  EXPECT_EQ(plan->DestinationRank(MemberKey::Receiver(1, 0)), 6);
  EXPECT_EQ(plan->ReceiverOf(5), MemberKey::Receiver(0, 0));
  EXPECT_EQ(plan->plan().edges.size(), 4u);
}

TEST(EpochPlanTest, EdgesAndDigestsAreTheSameAtBothEnds) {
  const Parts parts;
  const auto first = EpochPlan::Make(parts.Epoch()), again = EpochPlan::Make(parts.Epoch());
  ASSERT_TRUE(first.ok() && again.ok());
  EXPECT_EQ(PlanDigest(first->manifest(), first->plan()), PlanDigest(again->manifest(), again->plan()));
  std::map<std::string, std::string> at_publishers, at_receivers;
  const auto key = [](const proto::Edge& e) {
    return std::to_string(e.publisher()) + "/" + std::to_string(e.engine()) + "/" + std::to_string(e.worker());
  };
  for (int p : {0, 1}) {
    for (const proto::Edge& e : first->DigestsOf(MemberKey::Publisher(p))) at_publishers[key(e)] = e.digest();
  }
  for (int engine : {0, 1}) {
    for (const proto::Edge& e : again->DigestsOf(MemberKey::Receiver(engine, 0))) at_receivers[key(e)] = e.digest();
  }
  EXPECT_EQ(at_publishers.size(), 4u);
  EXPECT_EQ(at_publishers, at_receivers);
}

// A direct edge for what one worker wants alone, and one of a stream for what both of an engine on a host want; what an
// engine's manifest calls it is nobody's business.
TEST(EpochPlanTest, APairHasOneDigestHoweverManyEdges) {
  const TensorSpec own{"own", {7}, Dtype::kF32};
  Parts parts;
  parts.p0.tensors.push_back(own);
  parts.p0.source.push_back(WholeBuffer(10, own));
  parts.r0.destination.push_back(WholeBuffer(5, own));
  for (Manifest* p : {&parts.p0, &parts.p1}) p->topology.source[0].host = "s";
  for (Manifest* r : {&parts.r0, &parts.r1}) r->topology.destination[0].host = "d";
  parts.r0.topology.destination[0].engine = "a";
  parts.r1.topology.destination[0].engine = "b";
  proto::EpochStart epoch = parts.Epoch();
  epoch.mutable_members(3)->mutable_id()->set_engine(0);
  epoch.mutable_members(3)->mutable_id()->set_rank(1);
  const auto plan = EpochPlan::Make(epoch);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::vector<Edge> edges = plan->EdgesOf(MemberKey::Receiver(0, 0));
  ASSERT_EQ(edges.size(), 3u);
  ASSERT_EQ(edges[1].source_rank, 10);
  const auto digest = [&](size_t i) { return EdgeDigest(plan->manifest(), plan->plan(), edges[i]); };
  const std::vector<proto::Edge> digests = plan->DigestsOf(MemberKey::Receiver(0, 0));
  ASSERT_EQ(digests.size(), 2u);
  EXPECT_EQ(digests[0].publisher(), 0);
  EXPECT_EQ(digests[0].digest(), Sha256(digest(0) + digest(1)));
  EXPECT_EQ(digests[1].publisher(), 1);
  EXPECT_EQ(digests[1].digest(), digest(2));
  const std::vector<proto::Edge> at_publisher = plan->DigestsOf(MemberKey::Publisher(0));
  ASSERT_EQ(at_publisher.size(), 2u);
  EXPECT_EQ(at_publisher[0].engine(), 0);
  EXPECT_EQ(at_publisher[0].digest(), digests[0].digest());
}

TEST(EpochPlanTest, ADigestShowsAnotherLayout) {
  Parts parts;
  const auto before = EpochPlan::Make(parts.Epoch());
  parts.r0.destination[1] =
      BufferOf(5, "b", kB.dtype, {6}, {PieceOf("b", {0}, {5}, {1}), FillOf(PieceKind::kZero, {1}, {0})});
  const auto after = EpochPlan::Make(parts.Epoch());
  ASSERT_TRUE(before.ok() && after.ok());
  EXPECT_NE(before->DigestsOf(MemberKey::Receiver(0, 0))[1].digest(),
            after->DigestsOf(MemberKey::Receiver(0, 0))[1].digest());
}

TEST(EpochPlanTest, PublishersThatDeclareATensorDifferently) {
  Parts shape;
  shape.p1.tensors[1].shape = {4, 4};
  ExpectError(shape.Status(), ErrorCode::kShapeMismatch, "publisher rank 1", "\"a\"");
  Parts dtype;
  dtype.p1.tensors[1].dtype = Dtype::kF16;
  ExpectError(dtype.Status(), ErrorCode::kDtypeMismatch, "publisher rank 1", "\"a\"");
}

TEST(EpochPlanTest, AReceiverThatDeclaresATensorDifferently) {
  Parts shape;
  shape.r1.tensors = {{"a", {3, 4}, Dtype::kBF16}};
  ExpectError(shape.Status(), ErrorCode::kShapeMismatch, "engine 1 worker 0", "\"a\"");
  Parts dtype;
  dtype.r1.tensors = {{"a", {4, 3}, Dtype::kF16}};
  ExpectError(dtype.Status(), ErrorCode::kDtypeMismatch, "engine 1 worker 0", "\"a\"");
  Parts same;
  same.r1.tensors = {kA};
  EXPECT_TRUE(same.Status().ok()) << same.Status();
}

TEST(EpochPlanTest, ForeignBuffersAndPlacements) {
  Parts rank;
  rank.r0.destination[0].rank = 6;
  ExpectError(rank.Status(), ErrorCode::kMalformed, "engine 0 worker 0");
  Parts side;
  side.r0.source = {WholeBuffer(5, kA)};
  ExpectError(side.Status(), ErrorCode::kMalformed, "engine 0 worker 0");
  Parts nowhere;
  nowhere.p0.topology.source.clear();
  ExpectError(nowhere.Status(), ErrorCode::kMalformed, "publisher rank 0");
  Parts twice;
  twice.p0.topology.source.push_back({11, "", "", ""});
  ExpectError(twice.Status(), ErrorCode::kMalformed, "publisher rank 0");
}

TEST(EpochPlanTest, TwoMembersWithOneRank) {
  Parts sources;
  sources.p1.topology.source[0].rank = sources.p1.source[0].rank = 10;
  ExpectError(sources.Status(), ErrorCode::kMalformed, "publisher rank 1", "rank 10");
  Parts destinations;
  destinations.r1 = Destination(5, {WholeBuffer(5, kA), WholeBuffer(5, kB)}, "e1");
  ExpectError(destinations.Status(), ErrorCode::kMalformed, "engine 1 worker 0", "rank 5");
}

TEST(EpochPlanTest, ALayoutThatIsNoManifestNamesItsMember) {
  for (const std::string& bytes : {std::string("\xff\x00garbage", 9), std::string(), std::string("\x80", 1)}) {
    proto::EpochStart epoch = Parts().Epoch();
    epoch.mutable_members(2)->mutable_layout()->set_manifest_fragment(bytes);
    ExpectError(EpochPlan::Make(epoch).status(), ErrorCode::kMalformed, "engine 0 worker 0");
  }
}

TEST(EpochPlanTest, CouplingsThatContradict) {
  Parts parts;
  const TensorSpec scale{"s", {2, 3}, Dtype::kF32}, other{"o", {2, 3}, Dtype::kF32};
  for (Manifest* p : {&parts.p0, &parts.p1}) p->tensors.insert(p->tensors.end(), {scale, other});
  parts.p0.source.push_back(WholeBuffer(10, scale));
  parts.p0.source.push_back(WholeBuffer(10, other));
  for (Manifest* r : {&parts.r0, &parts.r1}) {
    r->destination.push_back(WholeBuffer(r->topology.destination[0].rank, scale));
    r->destination.push_back(WholeBuffer(r->topology.destination[0].rank, other));
  }
  parts.p0.coupled = parts.p1.coupled = {{"a", "s", {2, 1}}};
  EXPECT_TRUE(parts.Status().ok()) << parts.Status();
  parts.p1.coupled = {{"a", "o", {2, 1}}};
  EXPECT_TRUE(parts.Status().ok()) << "a weight may have several scales: " << parts.Status();
  parts.p1.coupled = {{"a", "s", {1, 1}}};
  ExpectError(parts.Status(), ErrorCode::kMalformed, "\"a\"");
}

TEST(EpochPlanTest, PlannersErrorsComeAsTheyAre) {
  Parts uncovered;
  uncovered.p1.source.clear();
  ExpectError(uncovered.Status(), ErrorCode::kUncovered, "\"b\"");
  Parts unknown;
  unknown.r0.destination[0].pieces[0].tensor = "zzz";
  ExpectError(unknown.Status(), ErrorCode::kUnknownTensor, "\"zzz\"");
}

}  // namespace
}  // namespace headrace
