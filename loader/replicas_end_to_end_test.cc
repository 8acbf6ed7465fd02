// Publishers whose replicas differ, in whole jobs: nothing of that generation is committed, everybody learns why, and
// the next one goes its way.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/testing/job.h"
#include "loader/testing/transports.h"
#include "planner/plan.h"
#include "planner/status.h"
#include "planner/testing/manifest_parts.h"

namespace headrace {
namespace {

using testing::FirstError;
using ::testing::HasSubstr;
using testing::HasUcx;
using testing::Job;
using testing::JobConfig;
using testing::MakeTransport;
using testing::OnMemory;
using testing::OnNcclChecker;
using testing::OnTransport;
using testing::SideMemory;
using testing::Soon;

struct Way {
  std::string name;
  MakeTransport transport;
  Shadow shadow;
};

std::vector<Way> Ways() {
  std::vector<Way> ways = {{"mapped, shadow", OnMemory(true), Shadow::kHost},
                           {"streams, in place", OnMemory(false), Shadow::kOff},
                           {"host, in place", OnTransport("host"), Shadow::kOff},
                           {"nccl, in place", OnNcclChecker(), Shadow::kOff}};
  if (HasUcx()) ways.push_back({"ucx, shadow", OnTransport("ucx"), Shadow::kHost});
  return ways;
}

// What is wrong in a generation: `change` is given the painted sources. Empty `tensor`: nothing that anybody compares.
struct Fault {
  std::string name;
  std::function<void(const Manifest&, SideMemory*)> change;
  std::string tensor;
  int fewest = 0;    // the error's subject
  std::string side;  // the publishers that agree with each other
  std::string other_side;
};

absl::Status PublishAll(Job& job, uint64_t generation) {
  return FirstError(
      testing::ForAll(job.publishers(), [&](size_t p) { return job.publisher(p).Publish(generation, Soon()); }));
}

void ExpectDivergence(const absl::Status& status, const Fault& fault) {
  EXPECT_TRUE(HasCode(status, ErrorCode::kReplicaDivergence)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("tensor \"" + fault.tensor + "\" of publisher rank " + fault.side + " and of publisher rank " +
                        fault.other_side + "."));
  EXPECT_EQ(SubjectOf(status).tensor, fault.tensor);
  EXPECT_EQ(SubjectOf(status).rank, fault.fewest);
}

// What is released of the weights when everybody knows that `generation` is given up, or committed.
void ExpectReleased(Job& job, uint64_t generation, absl::Time deadline) {
  for (size_t p = 0; p < job.publishers(); ++p)
    EXPECT_EQ(job.publisher(p).AwaitRelease(generation, deadline), absl::OkStatus());
}

void RunFaults(const Manifest& m, const std::vector<Fault>& faults, const Way& way, bool hold) {
  JobConfig config;
  config.transport = way.transport;
  config.shadow = {way.shadow, way.shadow};
  config.chunk_bytes = 4096;
  config.staging_bytes = 65536;
  if (hold) {
    for (const Buffer& b : m.source) config.holding.insert(static_cast<size_t>(b.rank));
  }
  Job job(m, config);
  ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
  ASSERT_EQ(job.Round(1), absl::OkStatus());
  uint64_t generation = 1;
  for (const Fault& fault : faults) {
    SCOPED_TRACE(fault.name);
    const uint64_t good = generation++;
    testing::PaintSource(job.manifest(), generation, &job.source());
    fault.change(job.manifest(), &job.source());
    ASSERT_EQ(PublishAll(job, generation), absl::OkStatus());
    const std::vector<absl::Status> taken = job.Take(generation);
    for (const absl::Status& status : taken) {
      if (fault.tensor.empty())
        EXPECT_EQ(status, absl::OkStatus());
      else
        ExpectDivergence(status, fault);
    }
    for (size_t p = 0; p < job.publishers(); ++p) {
      const absl::Status status = job.publisher(p).AwaitCommit(generation, Soon());
      if (fault.tensor.empty())
        EXPECT_EQ(status, absl::OkStatus());
      else
        ExpectDivergence(status, fault);
    }
    // At once where they differ: nobody reads.
    ExpectReleased(job, generation, fault.tensor.empty() ? Soon() : absl::Now());
    EXPECT_EQ(job.Difference(), "");
    for (size_t w = 0; w < job.workers().size(); ++w)
      EXPECT_EQ(job.receiver(w).serving(), fault.tensor.empty() ? generation : good);
    ASSERT_EQ(job.Round(++generation), absl::OkStatus());
    ASSERT_EQ(job.Difference(), "");
  }
  EXPECT_EQ(job.Close(), absl::OkStatus());
}

// By snapshots, and with weights that are held, where none is converted.
void RunFaults(const Manifest& m, const std::vector<Fault>& faults) {
  const bool converts = std::any_of(m.source.begin(), m.source.end(), [](const Buffer& b) { return b.convert_rne; });
  for (const Way& way : Ways()) {
    for (bool hold : {false, true}) {
      if (hold && converts) continue;
      SCOPED_TRACE(way.name + (hold ? ", held" : ""));
      RunFaults(m, faults, way, hold);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

const Buffer& SourceOf(const Manifest& m, int64_t rank, const std::string& name) {
  return *std::find_if(m.source.begin(), m.source.end(),
                       [&](const Buffer& b) { return b.rank == rank && b.name == name; });
}

// Flips a bit of one element.
Fault Flip(std::string name, int64_t rank, std::string buffer, Index element, std::string tensor = "", int fewest = 0,
           std::string side = "0", std::string other_side = "1") {
  const auto change = [=](const Manifest& m, SideMemory* source) {
    const Buffer& b = SourceOf(m, rank, buffer);
    const int bits = DtypeBits(b.dtype);
    testing::SetBits(source->First(b), element, bits, testing::GetBits(source->First(b), element, bits) ^ 1);
  };
  return {std::move(name), change, std::move(tensor), fewest, std::move(side), std::move(other_side)};
}

// Two data-parallel ranks share the load: some bytes of each are sent and some are not.
TEST(ReplicasEndToEndTest, AByteThatIsSentOrNot) {
  const TensorSpec w{"w", {64, 128}, Dtype::kBF16}, v{"v", {40, 6}, Dtype::kF32};
  Manifest m = WholeManifest({w, v});
  m.destination.clear();
  for (const TensorSpec& t : {w, v}) m.source.push_back(WholeBuffer(1, t));
  for (int64_t rank : {0, 1}) {
    m.destination.push_back(BufferOf(rank, "w", w.dtype, {64, 64}, {PieceOf("w", {0, 64 * rank}, {64, 64}, {0, 0})}));
    m.destination.push_back(WholeBuffer(rank, v));
  }
  const auto plan = BuildPlan(m);
  ASSERT_TRUE(plan.ok()) << plan.status();
  // The first element of w that each of the two sends.
  std::vector<Index> sent(2, -1);
  for (const Copy& c : plan->copies)
    if (c.tensor == 0 && sent[m.source[c.source].rank] < 0) sent[m.source[c.source].rank] = c.source_offset / 2;
  ASSERT_GE(sent[0], 0);
  ASSERT_GE(sent[1], 0);
  RunFaults(m, {Flip("sent by 0", 0, "w", sent[0], "w"),
                Flip("not sent by 0", 0, "w", sent[1], "w"),
                Flip("sent by 1", 1, "w", sent[1], "w"),
                Flip("another tensor", 1, "v", 239, "v"),
                {"nothing", [](const Manifest&, SideMemory*) {}, "", 0, "", ""}});
}

// Shards of rows beside shards of columns beside all of it.
TEST(ReplicasEndToEndTest, ReplicasThatAreCutDifferently) {
  const TensorSpec w{"w", {12, 10}, Dtype::kBF16};
  Manifest m = WholeManifest({w});
  m.source[0].rank = 4;
  for (int64_t rank : {0, 1}) {
    m.source.push_back(BufferOf(rank, "rows", w.dtype, {6, 10}, {PieceOf("w", {6 * rank, 0}, {6, 10}, {0, 0})}));
    m.source.push_back(BufferOf(2 + rank, "columns", w.dtype, {12, 5}, {PieceOf("w", {0, 5 * rank}, {12, 5}, {0, 0})}));
  }
  m.destination.push_back(WholeBuffer(1, w));
  m.topology.destination = {{0, "", "", "e0"}, {1, "", "", "e1"}};
  // Each element lies at three publishers.
  RunFaults(m, {Flip("rows", 1, "rows", 59, "w", 1, "1", "3, 4"), Flip("columns", 2, "columns", 0, "w", 2, "0, 4", "2"),
                Flip("all", 4, "w", 61, "w", 4, "1, 2", "4")});
}

// Masters of FP32 are compared as what they are converted to; what nobody is to have is not compared.
TEST(ReplicasEndToEndTest, WhatDoesNotTravelMayDiffer) {
  const TensorSpec w{"w", {8, 6}, Dtype::kBF16}, unwanted{"extra", {5}, Dtype::kF32};
  Manifest m;
  m.tensors = {w, unwanted};
  m.ignore = {"extra"};
  for (int64_t rank : {0, 1}) {
    Buffer master = BufferOf(rank, "master", Dtype::kF32, {10, 6},
                             {PieceOf("w", {0, 0}, {8, 6}, {0, 0}), FillOf(PieceKind::kKeep, {2, 6}, {8, 0})});
    master.convert_rne = true;
    m.source.push_back(std::move(master));
    m.source.push_back(WholeBuffer(rank, unwanted));
  }
  m.destination = {WholeBuffer(0, w)};
  // A number, and one near it.
  const auto set = [](uint64_t bits) {
    return [bits](const Manifest& manifest, SideMemory* source) {
      for (int64_t rank : {0, 1}) {
        std::byte* const first = source->First(SourceOf(manifest, rank, "master"));
        testing::SetBits(first, 7, 32, rank == 0 ? 0x40490000 : bits);
      }
    };
  };
  RunFaults(m, {Flip("padding", 1, "master", 8 * 6 + 3),
                Flip("unwanted", 0, "extra", 2),
                {"rounded to another", set(0x40498001), "w", 0, "0", "1"}});
}

// A new epoch compares what its engines want, of what the slots hold.
TEST(ReplicasEndToEndTest, AnEngineThatComesLaterIsNotGivenWhatDiffers) {
  const TensorSpec w{"w", {6}, Dtype::kF32}, head{"head", {9}, Dtype::kF32};
  Manifest m = WholeManifest({w, head});
  m.ignore = {"head"};
  m.source[1] = WholeBuffer(0, head);
  m.source.push_back(WholeBuffer(1, w));
  m.source.push_back(WholeBuffer(1, head));
  m.destination = {WholeBuffer(0, w), WholeBuffer(1, w), WholeBuffer(1, head)};
  m.topology.destination = {{0, "", "", "e0"}, {1, "", "", "e1"}};
  for (bool hold : {false, true}) {
    SCOPED_TRACE(hold ? "held" : "snapshots");
    JobConfig config;
    if (hold) config.holding = {0, 1};
    config.transport = OnMemory(true);
    config.late_engines = {1};
    config.rejoin_ns = 60'000'000'000;
    Job job(m, config);
    for (const absl::Status& status : job.Join()) ASSERT_TRUE(status.ok()) << status;
    // Nobody wants the head yet.
    testing::PaintSource(job.manifest(), 1, &job.source());
    Flip("", 1, "head", 4).change(job.manifest(), &job.source());
    ASSERT_EQ(PublishAll(job, 1), absl::OkStatus());
    ASSERT_EQ(job.TakeAt(0, 1), absl::OkStatus());
    job.Expect(0, 1);
    ASSERT_EQ(job.JoinEngine(1), absl::OkStatus());
    const Fault head_differs{"", nullptr, "head", 0, "0", "1"};
    ExpectDivergence(job.TakeAt(1, 1), head_differs);
    EXPECT_EQ(job.Difference(), "");
    EXPECT_EQ(job.receiver(1).serving(), 0u);
    EXPECT_EQ(job.receiver(0).serving(), 1u);
    // Engine 0 had read it.
    ExpectReleased(job, 1, Soon());
    ASSERT_EQ(job.Publish(2), absl::OkStatus());
    ASSERT_EQ(FirstError(job.Take(2)), absl::OkStatus());
    EXPECT_EQ(job.Difference(), "");
    ExpectReleased(job, 2, Soon());
    EXPECT_EQ(job.Close(), absl::OkStatus());
  }
}

}  // namespace
}  // namespace headrace
