#include "planner/layout/experts.h"

#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/layout/case_share.h"
#include "planner/layout/oracle.h"
#include "planner/layout/parallel.h"

namespace headrace {
namespace {

constexpr Index kOut = 6;  // intermediate
constexpr Index kIn = 2;   // hidden

oracle::Array Expand(const PieceArray& array, const std::vector<TensorSpec>& tensors) {
  const Buffer buffer = ToBuffer(0, "x", Dtype::kBF16, array).value();
  return oracle::Expand(buffer.shape, buffer.pieces, tensors);
}

// Gate and up of all experts, as a checkpoint may have them.
struct Checkpoint {
  std::vector<TensorSpec> tensors;
  PieceArray gate, up;  // [experts, out, in] by the rules
  bool split = false;   // [experts, 1, out, in]: columns in turns are no box of three axes
  // The identity of element (e, o, i).
  std::function<Index(Index e, Index o, Index i)> gate_at, up_at;
};

Index Identity(size_t tensor, Index element) { return (static_cast<Index>(tensor) << 40) + element; }

std::vector<Checkpoint> Checkpoints(Index experts) {
  std::vector<Checkpoint> all(4);
  {  // one tensor per expert, gate and up
    Checkpoint& c = all[0];
    std::vector<TensorSpec> gates, ups;
    for (Index e = 0; e < experts; ++e) {
      gates.push_back({"gate" + std::to_string(e), {kOut, kIn}, Dtype::kBF16});
      ups.push_back({"up" + std::to_string(e), {kOut, kIn}, Dtype::kBF16});
      c.tensors.push_back(gates.back());
      c.tensors.push_back(ups.back());
    }
    c.gate = StackExperts(gates);
    c.up = StackExperts(ups);
    c.gate_at = [](Index e, Index o, Index i) { return Identity(2 * e, o * kIn + i); };
    c.up_at = [](Index e, Index o, Index i) { return Identity(2 * e + 1, o * kIn + i); };
  }
  {  // gate_up [experts, 2 * out, in]
    Checkpoint& c = all[1];
    c.tensors = {{"gate_up", {experts, 2 * kOut, kIn}, Dtype::kBF16}};
    c.gate = Take(Whole(c.tensors[0]), 1, {0, kOut});
    c.up = Take(Whole(c.tensors[0]), 1, {kOut, kOut});
    c.gate_at = [](Index e, Index o, Index i) { return Identity(0, (e * 2 * kOut + o) * kIn + i); };
    c.up_at = [](Index e, Index o, Index i) { return Identity(0, (e * 2 * kOut + kOut + o) * kIn + i); };
  }
  {  // gate_up [experts, in, 2 * out]
    Checkpoint& c = all[2];
    c.tensors = {{"gate_up", {experts, kIn, 2 * kOut}, Dtype::kBF16}};
    const PieceArray turned = Transpose(Whole(c.tensors[0]), {0, 2, 1});
    c.gate = Take(turned, 1, {0, kOut});
    c.up = Take(turned, 1, {kOut, kOut});
    c.gate_at = [](Index e, Index o, Index i) { return Identity(0, (e * kIn + i) * 2 * kOut + o); };
    c.up_at = [](Index e, Index o, Index i) { return Identity(0, (e * kIn + i) * 2 * kOut + kOut + o); };
  }
  {  // gate_up [experts, in, 2 * out], columns in turns (gpt-oss)
    Checkpoint& c = all[3];
    c.tensors = {{"gate_up", {experts, kIn, 2 * kOut}, Dtype::kBF16}};
    const PieceArray turned = Transpose(Whole(c.tensors[0], {experts, kIn, kOut, 2}), {0, 3, 2, 1});
    c.gate = Take(turned, 1, {0, 1});
    c.up = Take(turned, 1, {1, 1});
    c.split = true;
    c.gate_at = [](Index e, Index o, Index i) { return Identity(0, (e * kIn + i) * 2 * kOut + 2 * o); };
    c.up_at = [](Index e, Index o, Index i) { return Identity(0, (e * kIn + i) * 2 * kOut + 2 * o + 1); };
  }
  return all;
}

// Every EP x ETP of up to six ranks, both expert orders, every form of the buffers.
TEST(Experts, EveryFormFromEveryCheckpoint) {
  CaseShare share("checkpoints x experts x EP x ETP x order x form, all ranks each");
  for (Index experts = 1; experts <= 6; ++experts) {
    for (const Checkpoint& c : Checkpoints(experts)) {
      for (Index ep = 1; ep <= 6; ++ep) {
        for (Index etp = 1; ep * etp <= 6; ++etp) {
          for (ExpertOrder dealt : {ExpertOrder::kLinear, ExpertOrder::kRoundRobin}) {
            for (GateUpOrder order : {GateUpOrder::kGateFirst, GateUpOrder::kUpFirst}) {
              for (GateUpRows rows : {GateUpRows::kStacked, GateUpRows::kInterleaved}) {
                if (!share.Take()) continue;
                for (Index rank = 0; rank < ep * etp; ++rank) {
                  // By definition.
                  const Index e_rank = rank / etp, t_rank = rank % etp;
                  std::vector<Index> mine;
                  if (dealt == ExpertOrder::kLinear) {
                    mine = oracle::PositionsOf(experts, ep, e_rank, 1, ChunkRule::kEven);
                  } else {
                    for (Index e = 0; e < experts; ++e) {
                      if (e % ep == e_rank) mine.push_back(e);
                    }
                  }
                  const std::vector<Index> outs = oracle::PositionsOf(kOut, etp, t_rank, 1, ChunkRule::kEven);
                  const Index local = static_cast<Index>(outs.size());
                  const oracle::Array want =
                      oracle::Build({static_cast<Index>(mine.size()), 2 * local, kIn}, [&](const Extents& at) {
                        const bool stacked = rows == GateUpRows::kStacked;
                        const bool second = stacked ? at[1] >= local : at[1] % 2 == 1;
                        const Index o = outs[stacked ? at[1] % local : at[1] / 2];
                        const bool gate = second == (order == GateUpOrder::kUpFirst);
                        return (gate ? c.gate_at : c.up_at)(mine[at[0]], o, at[2]);
                      });
                  // By the rules.
                  const auto held = ExpertsOf(experts, ep, e_rank, dealt);
                  const Segment cut = ChunkOf(kOut, etp, t_rank, ChunkRule::kEven);
                  const int out = c.split ? 2 : 1;
                  const PieceArray gate = Take(Take(c.gate, 0, held), out, cut);
                  const PieceArray up = Take(Take(c.up, 0, held), out, cut);
                  PieceArray fused = FuseGateUp(gate, up, 1, order, c.split ? GateUpRows::kStacked : rows);
                  if (c.split && rows == GateUpRows::kInterleaved) fused = Transpose(fused, {0, 2, 1, 3});
                  ASSERT_TRUE(fused.status.ok()) << fused.status;
                  ASSERT_EQ(oracle::Reshape(Expand(fused, c.tensors), want.shape), want);
                  // Input-major, [experts, in, 2 * out].
                  const PieceArray turned =
                      fused.shape.size() == 3 ? Transpose(fused, {0, 2, 1}) : Transpose(fused, {0, 3, 1, 2});
                  const oracle::Array want_turned = oracle::Transpose(want, {0, 2, 1});
                  ASSERT_EQ(oracle::Reshape(Expand(turned, c.tensors), want_turned.shape), want_turned);
                  // One by one.
                  for (size_t e = 0; e < mine.size(); ++e) {
                    const oracle::Array one = oracle::Slice(want, 0, static_cast<Index>(e), 1);
                    ASSERT_EQ(Expand(OneExpert(fused, static_cast<Index>(e)), c.tensors).values, one.values);
                  }
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(Experts, OneExpertOfOneTensorEachIsThatTensor) {
  const Checkpoint c = Checkpoints(3)[0];
  const Buffer buffer = ToBuffer(0, "x", Dtype::kBF16, OneExpert(c.gate, 2)).value();
  ASSERT_EQ(buffer.pieces.size(), 1u);
  EXPECT_EQ(buffer.pieces[0].tensor, "gate2");
  EXPECT_FALSE(buffer.pieces[0].view.has_value());
  EXPECT_FALSE(OneExpert(c.gate, 3).status.ok());
}

}  // namespace
}  // namespace headrace
