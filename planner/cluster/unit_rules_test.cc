#include "planner/cluster/unit_rules.h"

#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/layout/oracle.h"
#include "planner/status.h"

namespace headrace {
namespace {

using oracle::Array;
using oracle::Concatenate;
using oracle::Reshape;
using oracle::Slice;
using ::testing::HasSubstr;

// What each buffer of a shard holds, by name.
std::map<std::string, Array> Held(const UnitShards& shards, const ModelUnit& unit, Index shard) {
  std::vector<TensorSpec> tensors;
  for (const UnitTensor& t : unit.tensors) tensors.push_back({t.name, t.shape, t.dtype});
  std::map<std::string, Array> held;
  for (const Buffer& buffer : shards.buffers) {
    if (buffer.rank == shard) held[buffer.name] = oracle::Expand(buffer.shape, buffer.pieces, tensors);
  }
  return held;
}

Array Tensor(const ModelUnit& unit, int t) { return oracle::Whole(unit.tensors[t].shape, t); }

// numpy.split(a, parts)[part] along an axis.
Array Split(const Array& a, int axis, Index parts, Index part) {
  const Index each = a.shape[axis] / parts;
  return Slice(a, axis, part * each, each);
}

EngineLayout Engine(Index tp) { return FitEngines(tp, tp, 1, 1).value(); }
MegatronLayout Megatron(Index tp) {
  MegatronLayout layout;
  layout.parallel.tp = layout.parallel.etp = tp;
  return layout;
}

JobLayout Job(const TrainerLayout& trainer, const EngineLayout& engine) {
  JobLayout layout;
  layout.trainer = trainer;
  layout.engines = {engine};
  return layout;
}

UnitTensor Whole(const std::string& name, const Extents& shape) {
  UnitTensor tensor;
  tensor.name = name;
  tensor.shape = shape;
  return tensor;
}

UnitTensor Cut(const std::string& name, const Extents& shape, int axis, const std::vector<RowPart>& parts,
               Index groups = 0) {
  UnitTensor tensor = Whole(name, shape);
  tensor.cut_axis = axis;
  tensor.parts = parts;
  tensor.groups = groups;
  return tensor;
}

ModelUnit Unit(const std::string& name, const std::vector<UnitTensor>& tensors,
               const std::vector<FusedBuffer>& engine = {}, const std::vector<FusedBuffer>& trainer = {}) {
  ModelUnit unit;
  unit.name = name;
  unit.tensors = tensors;
  unit.engine = engine;
  unit.trainer = trainer;
  return unit;
}

FusedBuffer Fused(const std::string& name, const std::vector<int>& tensors, Index groups = 0) {
  return {name, tensors, 0, groups};
}

ModelUnit Attention(Index heads, Index kv_heads, Index dim) {
  const Extents kv = {kv_heads * dim, 3};
  return Unit("attention",
              {Cut("q", {heads * dim, 3}, 0, {{heads, dim}}), Cut("k", kv, 0, {{kv_heads, dim}}),
               Cut("v", kv, 0, {{kv_heads, dim}}), Cut("o", {3, heads * dim}, 1, {{heads, dim}}), Whole("norm", {dim})},
              {Fused("qkv", {0, 1, 2})}, {Fused("linear_qkv", {0, 1, 2}, kv_heads)});
}

TEST(EngineShards, EachRankHasItsHeadsAndSharesKeyAndValueHeads) {
  const ModelUnit unit = Attention(8, 2, 2);
  const auto shards = EngineShards(unit, Engine(4));
  ASSERT_TRUE(shards.ok()) << shards.status();
  EXPECT_EQ(shards->shards, 4);
  for (Index r = 0; r < 4; ++r) {
    const auto held = Held(*shards, unit, r);
    ASSERT_EQ(held.size(), 3u);
    EXPECT_EQ(held.at("qkv").values,
              Concatenate({Slice(Tensor(unit, 0), 0, r * 4, 4), Slice(Tensor(unit, 1), 0, r / 2 * 2, 2),
                           Slice(Tensor(unit, 2), 0, r / 2 * 2, 2)})
                  .values);
    EXPECT_EQ(held.at("o"), Slice(Tensor(unit, 3), 1, r * 4, 4));
    EXPECT_EQ(held.at("norm"), Tensor(unit, 4));
  }
}

TEST(TrainerShards, MegatronsQkvIsGroupByGroupAndCutAnywhere) {
  const ModelUnit unit = Attention(8, 2, 2);
  const auto shards = TrainerShards(unit, Megatron(4));
  ASSERT_TRUE(shards.ok()) << shards.status();
  // np.concatenate([x.reshape(groups, -1, columns) for x in (q, k, v)], axis=1).reshape(-1, columns)
  std::vector<Array> by_group;
  for (const int t : {0, 1, 2}) by_group.push_back(Reshape(Tensor(unit, t), {2, unit.tensors[t].shape[0] / 2, 3}));
  const Array all = Reshape(Concatenate(by_group, 1), {24, 3});
  for (Index r = 0; r < 4; ++r) {
    const auto held = Held(*shards, unit, r);
    EXPECT_EQ(held.at("linear_qkv"), Split(all, 0, 4, r));
    EXPECT_EQ(held.at("o"), Split(Tensor(unit, 3), 1, 4, r));
  }
}

TEST(TrainerShards, GatesOfQueriesThatTheCheckpointHasHeadByHead) {
  ModelUnit unit = Attention(4, 2, 2);
  unit.tensors[0] = Cut("q", {16, 3}, 0, {{4, 2}, {4, 2}}, 4);
  const Array by_head = Reshape(Tensor(unit, 0), {4, 2, 2, 3});  // head, query or gate, row, column
  const Array queries = Slice(by_head, 1, 0, 1), gates = Slice(by_head, 1, 1, 1);
  const auto trainer = TrainerShards(unit, Megatron(2));
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  const auto engine = EngineShards(unit, Engine(2));
  ASSERT_TRUE(engine.ok()) << engine.status();
  for (Index r = 0; r < 2; ++r) {
    EXPECT_EQ(Held(*trainer, unit, r).at("linear_qkv").values,
              Concatenate({Reshape(Split(queries, 0, 2, r), {4, 3}), Reshape(Split(gates, 0, 2, r), {4, 3}),
                           Split(Tensor(unit, 1), 0, 2, r), Split(Tensor(unit, 2), 0, 2, r)})
                  .values);
    EXPECT_EQ(
        Held(*engine, unit, r).at("qkv").values,
        Concatenate({Split(Tensor(unit, 0), 0, 2, r), Split(Tensor(unit, 1), 0, 2, r), Split(Tensor(unit, 2), 0, 2, r)})
            .values);
  }
}

TEST(EngineShards, MambaPartsAreCutOnTheirOwnAndGroupsShared) {
  const ModelUnit unit = Unit("mamba", {Cut("in_proj", {12 + 12 + 6 + 6 + 4, 2}, 0,  // z x B C dt
                                            {{4, 3}, {4, 3}, {2, 3}, {2, 3}, {4, 1}}),
                                        Cut("A_log", {4}, 0, {{4, 1}})});
  const auto shards = EngineShards(unit, Engine(4));
  ASSERT_TRUE(shards.ok()) << shards.status();
  const Array all = Tensor(unit, 0);
  for (Index r = 0; r < 4; ++r) {
    const auto held = Held(*shards, unit, r);
    EXPECT_EQ(held.at("in_proj"),
              Concatenate({Slice(all, 0, r * 3, 3), Slice(all, 0, 12 + r * 3, 3), Slice(all, 0, 24 + r / 2 * 3, 3),
                           Slice(all, 0, 30 + r / 2 * 3, 3), Slice(all, 0, 36 + r, 1)}));
    EXPECT_EQ(held.at("A_log"), Slice(Tensor(unit, 1), 0, r, 1));
  }
  // Megatron wants groups that TP divides.
  EXPECT_EQ(CodeOf(TrainerShards(unit, Megatron(4)).status()), "shape_mismatch");
  EXPECT_TRUE(TrainerShards(unit, Megatron(2)).ok());
}

TEST(EngineShards, GroupsOfTheCheckpointStayAndTrainersHavePartAfterPart) {
  const ModelUnit unit =
      Unit("delta",
           {Cut("qkvz", {16, 2}, 0, {{2, 2}, {2, 2}, {4, 1}, {4, 1}}, 2), Cut("ba", {8, 2}, 0, {{4, 1}, {4, 1}}, 2)},
           {}, {Fused("in_proj", {0, 1})});
  const auto engine = EngineShards(unit, Engine(2));
  ASSERT_TRUE(engine.ok()) << engine.status();
  const auto trainer = TrainerShards(unit, Megatron(2));
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  const Array qkvz = Tensor(unit, 0), ba = Tensor(unit, 1);
  for (Index r = 0; r < 2; ++r) {
    EXPECT_EQ(Held(*engine, unit, r).at("qkvz"), Slice(qkvz, 0, r * 8, 8));
    // Group r: q 2, k 2, v 2, z 2 rows; b 2, a 2.
    EXPECT_EQ(Held(*trainer, unit, r).at("in_proj"), Concatenate({Slice(qkvz, 0, r * 8, 8), Slice(ba, 0, r * 4, 4)}));
  }
  EXPECT_EQ(CodeOf(EngineShards(unit, Engine(4)).status()), "shape_mismatch");
  const auto whole = TrainerShards(unit, Megatron(1));
  ASSERT_TRUE(whole.ok());
  std::vector<Array> rows;
  for (const Index part : {0, 2, 4, 6}) {
    for (const Index group : {0, 8}) rows.push_back(Slice(qkvz, 0, group + part, 2));
  }
  for (const Index part : {0, 2}) {
    for (const Index group : {0, 4}) rows.push_back(Slice(ba, 0, group + part, 2));
  }
  EXPECT_EQ(Held(*whole, unit, 0).at("in_proj"), Concatenate(rows));
}

TEST(EngineShards, ColumnsOfGateAndUpInTurns) {
  ModelUnit unit =
      Unit("expert", {Cut("experts.gate_up", {3, 8}, 1, {{4, 1}}), Cut("experts.down", {4, 3}, 0, {{4, 1}})});
  unit.tensors[0].view = {3, 4, 2};
  unit.layers = {0};
  unit.experts = 2;
  unit.stacked = true;
  const auto shards = EngineShards(unit, Engine(2));
  ASSERT_TRUE(shards.ok()) << shards.status();
  for (Index r = 0; r < 2; ++r) {
    const auto held = Held(*shards, unit, r);
    EXPECT_EQ(held.at("experts.gate_up").values, Slice(Tensor(unit, 0), 1, r * 4, 4).values);
    EXPECT_EQ(held.at("experts.down"), Slice(Tensor(unit, 1), 0, r * 2, 2));
  }
}

ModelUnit ScaledMlp(Index inter) {
  const Index blocks = (inter + 3) / 4;
  ModelUnit unit = Unit("mlp",
                        {Cut("gate.weight", {inter, 6}, 0, {{inter, 1}}), Whole("gate.weight_scale_inv", {blocks, 2}),
                         Cut("up.weight", {inter, 6}, 0, {{inter, 1}}), Whole("up.weight_scale_inv", {blocks, 2}),
                         Cut("down.weight", {6, inter}, 1, {{inter, 1}}), Whole("down.weight_scale_inv", {2, blocks})},
                        {Fused("gate_up.weight", {0, 2})}, {Fused("fc1", {0, 2})});
  for (const int weight : {0, 2, 4}) {
    unit.tensors[weight].dtype = Dtype::kF8E4M3;
    UnitTensor& scale = unit.tensors[weight + 1];
    scale.dtype = Dtype::kF32;
    scale.scale_of = weight;
    scale.block = {4, 4};
  }
  return unit;
}

TEST(EngineShards, ScalesAreCutWithTheirWeights) {
  const ModelUnit unit = ScaledMlp(16);
  const auto shards = EngineShards(unit, Engine(2));
  ASSERT_TRUE(shards.ok()) << shards.status();
  for (Index r = 0; r < 2; ++r) {
    const auto held = Held(*shards, unit, r);
    ASSERT_EQ(held.size(), 4u);
    const auto both = [&](int gate, int up, Index rows) {
      return Concatenate({Slice(Tensor(unit, gate), 0, r * rows, rows), Slice(Tensor(unit, up), 0, r * rows, rows)});
    };
    EXPECT_EQ(held.at("gate_up.weight"), both(0, 2, 8));
    EXPECT_EQ(held.at("gate_up.weight_scale_inv"), both(1, 3, 2));
    EXPECT_EQ(held.at("down.weight"), Slice(Tensor(unit, 4), 1, r * 8, 8));
    EXPECT_EQ(held.at("down.weight_scale_inv"), Slice(Tensor(unit, 5), 1, r * 2, 2));
  }
  const auto manifest = UnitManifest(unit, Job(Megatron(4), Engine(2)));
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->coupled.size(), 3u);
}

TEST(EngineShards, CutsInsideABlockAreRefused) {
  const auto cut = EngineShards(ScaledMlp(16), Engine(8));
  EXPECT_EQ(CodeOf(cut.status()), "misaligned_block");
  EXPECT_THAT(cut.status().message(), HasSubstr("unit \"mlp\", buffer \"gate_up.weight\", engine TP 8"));
  // As vLLM does: gate ends inside of a block, and up follows it.
  EXPECT_EQ(CodeOf(EngineShards(ScaledMlp(6), Engine(1)).status()), "misaligned_block");
  // A trainer has its scales whole.
  const auto trainer = TrainerShards(ScaledMlp(16), Megatron(8));
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  EXPECT_EQ(Held(*trainer, ScaledMlp(16), 7).at("up.weight_scale_inv"), Tensor(ScaledMlp(16), 3));
}

TEST(EngineShards, VocabulariesArePaddedByEachSidesMultiple) {
  ModelUnit unit = Unit("embedding", {Cut("e", {130, 2}, 0, {})});
  unit.place = UnitPlace::kFirst;
  unit.tensors[0].vocabulary = true;
  const auto engine = EngineShards(unit, Engine(4));
  ASSERT_TRUE(engine.ok()) << engine.status();
  const Array padded = Concatenate({Tensor(unit, 0), oracle::Filled({62, 2}, oracle::kZeroFill)});
  for (Index r = 0; r < 4; ++r) EXPECT_EQ(Held(*engine, unit, r).at("e"), Split(padded, 0, 4, r));
  EXPECT_EQ(CodeOf(EngineShards(unit, Engine(5)).status()), "shape_mismatch");
  const auto trainer = TrainerShards(unit, Megatron(2));
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  const Array kept = Concatenate({Tensor(unit, 0), oracle::Filled({126, 2}, oracle::kKeepFill)});
  for (Index r = 0; r < 2; ++r) EXPECT_EQ(Held(*trainer, unit, r).at("e"), Split(kept, 0, 2, r));
}

TEST(TrainerShards, FsdpCutsEveryTensorByCeilChunksOverWhatTpCuts) {
  const ModelUnit unit = Attention(4, 1, 5);  // q 20 rows, k and v 5, o 20 columns, norm 5
  const FsdpLayout layout = {.replicas = 2, .shards = 3, .tp = 2};
  const auto shards = TrainerShards(unit, layout);
  ASSERT_TRUE(shards.ok()) << shards.status();
  EXPECT_EQ(shards->shards, 6);
  for (Index s = 0; s < 3; ++s) {
    for (Index t = 0; t < 2; ++t) {
      const auto held = Held(*shards, unit, s * 2 + t);
      // TP leaves 10 rows of q: FSDP 4 4 2; of k 3 and 2 rows: 1 1 1 and 1 1 0; of o 10 columns and all 3 rows: 1 1 1.
      const Index rows = s < 2 ? 4 : 2;
      EXPECT_EQ(held.at("q"), Slice(Tensor(unit, 0), 0, t * 10 + s * 4, rows));
      if (t == 1 && s == 2) {
        EXPECT_FALSE(held.contains("k"));
      } else {
        EXPECT_EQ(held.at("k"), Slice(Tensor(unit, 1), 0, t * 3 + s, 1));
      }
      EXPECT_EQ(held.at("o"), Slice(Slice(Tensor(unit, 3), 0, s, 1), 1, t * 10, 10));
      EXPECT_EQ(held.at("norm"), Slice(Tensor(unit, 4), 0, s * 2, s < 2 ? 2 : 1));
    }
  }
}

TEST(EngineShards, HeadsThatDoNotDivideNameTheirPlace) {
  const auto shards = EngineShards(Attention(6, 2, 2), Engine(4));
  EXPECT_EQ(CodeOf(shards.status()), "shape_mismatch");
  EXPECT_THAT(shards.status().message(),
              HasSubstr("unit \"attention\", tensor \"q\", engine: 6 units of 2 along axis 0"));
  EXPECT_EQ(SubjectOf(shards.status()).tensor, "q");
  // Query heads may not be shared: o_proj would add them twice.
  EXPECT_EQ(CodeOf(EngineShards(Attention(2, 1, 2), Engine(4)).status()), "shape_mismatch");
  // What no engine does, a thought experiment may.
  EngineLayout uneven = Engine(4);
  uneven.uneven_units = true;
  const ModelUnit unit = Attention(6, 2, 2);
  const auto dealt = EngineShards(unit, uneven);
  ASSERT_TRUE(dealt.ok()) << dealt.status();
  EXPECT_EQ(Held(*dealt, unit, 0).at("o"), Slice(Tensor(unit, 3), 1, 0, 4));
  EXPECT_EQ(Held(*dealt, unit, 3).at("o"), Slice(Tensor(unit, 3), 1, 10, 2));
}

TEST(UnitManifest, OfFourThousandShardsHasABufferAndAPieceForEach) {
  const ModelUnit unit = Attention(64, 8, 128);
  const auto manifest = UnitManifest(unit, Job(FsdpLayout{.shards = 4096}, Engine(8)));
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_LE(manifest->source.size(), 4u * 4096u);
  for (const Buffer& buffer : manifest->source) ASSERT_EQ(buffer.pieces.size(), 1u);
}

TEST(UnitManifest, UnitsThatContradictThemselvesAreMalformed) {
  const JobLayout layout = Job(Megatron(1), Engine(1));
  const auto code = [&](const ModelUnit& unit) { return std::string(CodeOf(UnitManifest(unit, layout).status())); };
  ModelUnit unit = Attention(4, 2, 2);
  unit.tensors[0].cut_axis = 2;
  EXPECT_EQ(code(unit), "malformed");
  unit = Attention(4, 2, 2);
  unit.tensors[0].parts = {{4, 3}};
  EXPECT_EQ(code(unit), "malformed");
  unit = Attention(4, 2, 2);
  unit.engine[0].tensors = {0, 1, 9};
  EXPECT_EQ(code(unit), "malformed");
  unit = Attention(4, 2, 2);
  unit.tensors[4].scale_of = 7;
  EXPECT_EQ(code(unit), "malformed");
  unit = Attention(4, 2, 2);
  unit.trainer[0].axis = 1;
  EXPECT_EQ(code(unit), "malformed");
}

}  // namespace
}  // namespace headrace
