#include "planner/layout/llama_layout.h"

#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/layout/case_share.h"
#include "planner/layout/oracle.h"
#include "planner/status.h"

namespace headrace {
namespace {

using oracle::Array;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const LlamaConfig kSmolLm2 = {.hidden = 576,
                              .intermediate = 1536,
                              .layers = 30,
                              .heads = 9,
                              .kv_heads = 3,
                              .head_dim = 64,
                              .vocab = 49152,
                              .tied = true};

const Buffer& Find(const std::vector<Buffer>& buffers, absl::string_view name) {
  for (const Buffer& b : buffers) {
    if (b.name == name) return b;
  }
  ADD_FAILURE() << "no buffer " << name;
  return buffers.at(0);
}

// "q 6+2 k 0+1": the rows of each piece, by the tensor's second to last name.
std::string RowsOf(const Buffer& b) {
  std::string rows;
  for (const Piece& p : b.pieces) {
    if (p.kind != PieceKind::kTensor) {
      absl::StrAppend(&rows, p.kind == PieceKind::kZero ? "zero " : "keep ", p.shape[0], " ");
      continue;
    }
    const std::string path = p.tensor.substr(0, p.tensor.rfind('.'));
    absl::StrAppend(&rows, path.substr(path.rfind('.') + 1), " ", p.tensor_offset[0], "+", p.shape[0], " ");
  }
  return rows;
}

TEST(LlamaTensors, SmolLm2) {
  const std::vector<TensorSpec> tensors = LlamaTensors(kSmolLm2).value();
  EXPECT_EQ(tensors.size(), 272u);
  EXPECT_TRUE(std::is_sorted(tensors.begin(), tensors.end(), [](auto& a, auto& b) { return a.name < b.name; }));
  Index parameters = 0;
  for (const TensorSpec& t : tensors) {
    parameters += oracle::SizeOf(t.shape);
    EXPECT_EQ(t.dtype, Dtype::kBF16);
  }
  EXPECT_EQ(parameters, 134515008);  // the published count
}

TEST(LlamaTensors, NamesOfOneLayer) {
  LlamaConfig c = kSmolLm2;
  c.layers = 1;
  c.tied = false;
  c.qk_norm = c.attention_bias = true;
  std::vector<std::string> names;
  const std::vector<TensorSpec> tensors = LlamaTensors(c).value();
  for (const TensorSpec& t : tensors) names.push_back(absl::StrCat(t.name, " ", testing::PrintToString(t.shape)));
  EXPECT_THAT(
      names,
      ElementsAre(
          "lm_head.weight { 49152, 576 }", "model.embed_tokens.weight { 49152, 576 }",
          "model.layers.0.input_layernorm.weight { 576 }", "model.layers.0.mlp.down_proj.weight { 576, 1536 }",
          "model.layers.0.mlp.gate_proj.weight { 1536, 576 }", "model.layers.0.mlp.up_proj.weight { 1536, 576 }",
          "model.layers.0.post_attention_layernorm.weight { 576 }", "model.layers.0.self_attn.k_norm.weight { 64 }",
          "model.layers.0.self_attn.k_proj.bias { 192 }", "model.layers.0.self_attn.k_proj.weight { 192, 576 }",
          "model.layers.0.self_attn.o_proj.weight { 576, 576 }", "model.layers.0.self_attn.q_norm.weight { 64 }",
          "model.layers.0.self_attn.q_proj.bias { 576 }", "model.layers.0.self_attn.q_proj.weight { 576, 576 }",
          "model.layers.0.self_attn.v_proj.bias { 192 }", "model.layers.0.self_attn.v_proj.weight { 192, 576 }",
          "model.norm.weight { 576 }"));
}

TEST(MegatronTrainerBuffers, SmolLm2Tp2Dp3) {
  std::vector<std::vector<Buffer>> ranks;
  for (Index r = 0; r < 6; ++r) ranks.push_back(MegatronTrainerBuffers(kSmolLm2, 2, 3, r, 49152).value());
  const std::string layer = "decoder.layers.7.";
  // 3 groups of 320 rows (192 q, 64 k, 64 v), cut at 480: inside the second group's q heads.
  EXPECT_EQ(RowsOf(Find(ranks[0], layer + "self_attention.linear_qkv.weight")),
            "q_proj 0+192 k_proj 0+64 v_proj 0+64 q_proj 192+160 ");
  EXPECT_EQ(RowsOf(Find(ranks[1], layer + "self_attention.linear_qkv.weight")),
            "q_proj 352+32 k_proj 64+64 v_proj 64+64 q_proj 384+192 k_proj 128+64 v_proj 128+64 ");
  EXPECT_EQ(RowsOf(Find(ranks[1], layer + "mlp.linear_fc1.weight")), "gate_proj 768+768 up_proj 768+768 ");
  const Buffer& fc2 = Find(ranks[1], layer + "mlp.linear_fc2.weight");
  EXPECT_THAT(fc2.shape, ElementsAre(576, 768));
  EXPECT_THAT(fc2.strides, ElementsAre(768, 1));
  ASSERT_EQ(fc2.pieces.size(), 1u);
  EXPECT_THAT(fc2.pieces[0].tensor_offset, ElementsAre(0, 768));
  EXPECT_EQ(RowsOf(Find(ranks[1], "embedding.word_embeddings.weight")), "embed_tokens 24576+24576 ");
  // DP replicas hold the same.
  for (size_t r = 2; r < 6; ++r) {
    ASSERT_EQ(ranks[r].size(), ranks[r % 2].size());
    for (size_t i = 0; i < ranks[r].size(); ++i) {
      EXPECT_EQ(ranks[r][i].rank, static_cast<Index>(r));
      EXPECT_EQ(ranks[r][i].name, ranks[r % 2][i].name);
      EXPECT_EQ(RowsOf(ranks[r][i]), RowsOf(ranks[r % 2][i]));
    }
  }
}

TEST(FsdpTrainerBuffers, SmolLm2OverFive) {
  const std::vector<Buffer> last = FsdpTrainerBuffers(kSmolLm2, 5, 4, Dtype::kF32).value();
  EXPECT_EQ(last.size(), 272u);
  EXPECT_EQ(RowsOf(Find(last, "model.embed_tokens.weight")), "embed_tokens 39324+9828 ");
  EXPECT_EQ(RowsOf(Find(last, "model.layers.0.self_attn.k_proj.weight")), "k_proj 156+36 ");
  for (const Buffer& b : last) {
    EXPECT_EQ(b.dtype, Dtype::kF32);
    EXPECT_TRUE(b.convert_rne);
  }
  const std::vector<Buffer> same_dtype = FsdpTrainerBuffers(kSmolLm2, 5, 0, Dtype::kBF16).value();
  for (const Buffer& b : same_dtype) EXPECT_FALSE(b.convert_rne);
  const std::vector<Buffer> many = FsdpTrainerBuffers(kSmolLm2, 1000, 999, Dtype::kBF16).value();
  const Buffer& empty = Find(many, "model.layers.0.self_attn.k_proj.weight");
  EXPECT_THAT(empty.shape, ElementsAre(0, 576));
  EXPECT_TRUE(empty.pieces.empty());
}

TEST(EngineBuffers, SmolLm2Tp3) {
  const std::vector<Buffer> rank = EngineBuffers(kSmolLm2, 3, 2, 49344).value();
  EXPECT_EQ(RowsOf(Find(rank, "model.layers.29.self_attn.qkv_proj.weight")),
            "q_proj 384+192 k_proj 128+64 v_proj 128+64 ");
  EXPECT_EQ(RowsOf(Find(rank, "model.layers.0.mlp.gate_up_proj.weight")), "gate_proj 1024+512 up_proj 1024+512 ");
  EXPECT_THAT(Find(rank, "model.layers.0.self_attn.o_proj.weight").shape, ElementsAre(576, 192));
  const Buffer& embedding = Find(rank, "model.embed_tokens.weight");
  EXPECT_THAT(embedding.shape, ElementsAre(16448, 576));
  EXPECT_EQ(RowsOf(embedding), "embed_tokens 32896+16256 zero 192 ");
  const Buffer& head = Find(rank, "lm_head.weight");
  EXPECT_EQ(head.alias_of, "model.embed_tokens.weight");
  EXPECT_EQ(head.shape, embedding.shape);
  EXPECT_EQ(head.strides, embedding.strides);
  EXPECT_TRUE(head.pieces.empty());
  ASSERT_TRUE(head.storage && embedding.storage);
  EXPECT_EQ(head.storage->id, embedding.storage->id);
  EXPECT_EQ(head.storage->offset_bytes, embedding.storage->offset_bytes);
}

TEST(EngineBuffers, MoreRanksThanKvHeads) {
  LlamaConfig c = kSmolLm2;
  c.heads = 12;
  c.kv_heads = 3;
  std::vector<std::string> rows;
  for (Index r = 0; r < 6; ++r) {
    rows.push_back(RowsOf(Find(EngineBuffers(c, 6, r, 49152).value(), "model.layers.0.self_attn.qkv_proj.weight")));
  }
  EXPECT_THAT(
      rows, ElementsAre("q_proj 0+128 k_proj 0+64 v_proj 0+64 ", "q_proj 128+128 k_proj 0+64 v_proj 0+64 ",
                        "q_proj 256+128 k_proj 64+64 v_proj 64+64 ", "q_proj 384+128 k_proj 64+64 v_proj 64+64 ",
                        "q_proj 512+128 k_proj 128+64 v_proj 128+64 ", "q_proj 640+128 k_proj 128+64 v_proj 128+64 "));
}

TEST(LlamaLayout, Errors) {
  auto message = [](const absl::Status& s) { return absl::StrCat(CodeOf(s), ": ", s.message()); };
  auto engine = [&](LlamaConfig c, Index tp, Index rank, Index vocab_rows) {
    return message(EngineBuffers(c, tp, rank, vocab_rows).status());
  };
  auto megatron = [&](Index tp, Index dp, Index rank, Index vocab_rows) {
    return message(MegatronTrainerBuffers(kSmolLm2, tp, dp, rank, vocab_rows).status());
  };
  EXPECT_THAT(engine(kSmolLm2, 2, 0, 49152), HasSubstr("shape_mismatch: TP 2 does not divide the query heads (9)"));
  EXPECT_THAT(engine(kSmolLm2, 3, 0, 49153), HasSubstr("pad the vocabulary to a multiple"));
  EXPECT_THAT(engine(kSmolLm2, 3, 3, 49152), HasSubstr("invalid_option: the engine has 3 ranks, not a rank 3"));
  EXPECT_THAT(engine(kSmolLm2, 0, 0, 49152), HasSubstr("invalid_option"));
  EXPECT_THAT(engine(kSmolLm2, 1, 0, 49151), HasSubstr("invalid_option: vocab_rows"));
  LlamaConfig c = kSmolLm2;
  c.heads = 36;
  c.kv_heads = 6;
  EXPECT_THAT(engine(c, 4, 0, 49152), HasSubstr("shape_mismatch: TP 4 and 6 KV heads"));
  c.kv_heads = 7;
  EXPECT_THAT(engine(c, 1, 0, 49152), HasSubstr("shape_mismatch: 36 query heads"));
  c = kSmolLm2;
  c.intermediate = 1537;
  EXPECT_THAT(engine(c, 3, 0, 49152), HasSubstr("shape_mismatch: TP 3 does not divide intermediate"));
  c = kSmolLm2;
  c.hidden = 0;
  EXPECT_THAT(engine(c, 1, 0, 49152), HasSubstr("invalid_option: hidden"));
  EXPECT_EQ(CodeOf(LlamaTensors(c).status()), "invalid_option");
  c.hidden = Index{1} << 50;
  EXPECT_THAT(engine(c, 1, 0, 49152), HasSubstr("out_of_bounds"));
  c = kSmolLm2;
  c.layers = -1;
  EXPECT_THAT(engine(c, 1, 0, 49152), HasSubstr("invalid_option: layers"));
  c.layers = 1;
  c.heads = c.kv_heads = 1 << 20;
  EXPECT_THAT(engine(c, 1, 0, 49152), HasSubstr("at most 65536"));
  EXPECT_THAT(megatron(7, 1, 0, 49154), HasSubstr("shape_mismatch: TP 7 does not divide the rows of linear_qkv (960)"));
  EXPECT_THAT(megatron(2, 1, 2, 49152), HasSubstr("invalid_option"));
  EXPECT_THAT(megatron(2, 0, 0, 49152), HasSubstr("invalid_option: the trainer's DP"));
  EXPECT_THAT(megatron(Index{1} << 40, Index{1} << 40, 0, 49152), HasSubstr("out_of_bounds"));
  EXPECT_EQ(CodeOf(FsdpTrainerBuffers(kSmolLm2, 5, 5, Dtype::kF32).status()), "invalid_option");
  EXPECT_EQ(CodeOf(FsdpTrainerBuffers(kSmolLm2, 0, 0, Dtype::kF32).status()), "invalid_option");
  EXPECT_EQ(CodeOf(FsdpTrainerBuffers(kSmolLm2, 5, 0, Dtype::kF8E4M3).status()), "dtype_mismatch");
}

// The whole model by its definitions, element by element: head by head and row by row.
class ModelOracle {
 public:
  explicit ModelOracle(const LlamaConfig& c) : c_(c), tensors_(LlamaTensors(c).value()) {}

  const std::vector<TensorSpec>& tensors() const { return tensors_; }

  Array Tensor(const std::string& name) const {
    for (size_t t = 0; t < tensors_.size(); ++t) {
      if (tensors_[t].name == name) return oracle::Whole(tensors_[t].shape, static_cast<Index>(t));
    }
    ADD_FAILURE() << "no tensor " << name;
    return {};
  }

  Array Head(const std::string& name, Index head) const {
    std::vector<Index> rows;
    for (Index d = 0; d < c_.head_dim; ++d) rows.push_back(head * c_.head_dim + d);
    return oracle::Take(Tensor(name), 0, rows);
  }

  Array Interleaved(const std::string& suffix) const {
    std::vector<Array> heads;
    for (Index h = 0; h < c_.heads; ++h) {
      heads.push_back(Head("model.layers.0.self_attn.q_proj." + suffix, h));
      if ((h + 1) % (c_.heads / c_.kv_heads) != 0) continue;
      const Index kv = h / (c_.heads / c_.kv_heads);
      heads.push_back(Head("model.layers.0.self_attn.k_proj." + suffix, kv));
      heads.push_back(Head("model.layers.0.self_attn.v_proj." + suffix, kv));
    }
    return oracle::Concatenate(heads);
  }

  // q of the rank's heads and the KV heads that these attend with.
  Array EngineQkv(const std::string& suffix, Index tp, Index rank) const {
    std::vector<Array> q, k, v;
    std::map<Index, bool> seen;
    for (Index h = 0; h < c_.heads; ++h) {
      if (h * tp / c_.heads != rank) continue;
      q.push_back(Head("model.layers.0.self_attn.q_proj." + suffix, h));
      const Index kv = h / (c_.heads / c_.kv_heads);
      if (seen[kv]) continue;
      seen[kv] = true;
      k.push_back(Head("model.layers.0.self_attn.k_proj." + suffix, kv));
      v.push_back(Head("model.layers.0.self_attn.v_proj." + suffix, kv));
    }
    return oracle::Concatenate({oracle::Concatenate(q), oracle::Concatenate(k), oracle::Concatenate(v)});
  }

  Array GateUp(Index tp, Index rank) const {
    return oracle::Concatenate({Cut(Tensor("model.layers.0.mlp.gate_proj.weight"), 0, tp, rank),
                                Cut(Tensor("model.layers.0.mlp.up_proj.weight"), 0, tp, rank)});
  }

  Array Vocabulary(const std::string& name, Index rows, Index fill, Index tp, Index rank) const {
    Array a = Tensor(name);
    a.shape[0] = rows;
    a.values.resize(oracle::SizeOf(a.shape), fill);
    return Cut(a, 0, tp, rank);
  }

  static Array Cut(const Array& a, int axis, Index parts, Index part) {
    return oracle::Local(a, {{parts}, {}}, {Shard{axis}}, {part});
  }

 private:
  const LlamaConfig c_;
  const std::vector<TensorSpec> tensors_;
};

TEST(LlamaLayout, ExhaustivelyEqualsTheDefinitions) {
  CaseShare share("configs x sides x parallel sizes, all ranks and buffers each");
  std::vector<LlamaConfig> configs;
  for (Index kv = 1; kv <= 3; ++kv) {
    for (Index per_group = 1; per_group <= 3; ++per_group) {
      for (Index dim = 1; dim <= 3; ++dim) {
        for (Index intermediate = 1; intermediate <= 6; ++intermediate) {
          for (int bits = 0; bits < 8; ++bits) {
            configs.push_back({.hidden = 2,
                               .intermediate = intermediate,
                               .layers = 1,
                               .heads = kv * per_group,
                               .kv_heads = kv,
                               .head_dim = dim,
                               .vocab = 5,
                               .tied = (bits & 1) != 0,
                               .qk_norm = (bits & 2) != 0,
                               .attention_bias = (bits & 4) != 0});
          }
        }
      }
    }
  }
  const Index vocab_rows = 12;
  const std::string hf = "model.layers.0.";
  const std::string mcore = "decoder.layers.0.";
  for (const LlamaConfig& c : configs) {
    const ModelOracle model(c);
    using Wanted = std::map<std::string, Array>;
    auto check = [&](const absl::StatusOr<std::vector<Buffer>>& got, const Wanted& want, absl::string_view side,
                     Index parts, Index rank) {
      ASSERT_TRUE(got.ok()) << got.status();
      size_t aliases = 0;
      for (const Buffer& b : *got) {
        ASSERT_EQ(b.rank, rank);
        if (b.alias_of) {
          ++aliases;
          continue;
        }
        ASSERT_EQ(want.count(b.name), 1u) << b.name;
        ASSERT_EQ(b.strides, RowMajorStrides(b.shape));
        ASSERT_EQ(oracle::Expand(b.shape, b.pieces, model.tensors()), want.at(b.name))
            << side << " " << b.name << " rank " << rank << " of " << parts << ", " << c.heads << " heads, "
            << c.kv_heads << " KV heads of " << c.head_dim << ", intermediate " << c.intermediate;
      }
      ASSERT_EQ(got->size() - aliases, want.size());
    };
    for (Index parts = 1; parts <= 6; ++parts) {
      const Index q_rows = c.heads * c.head_dim;
      const bool mlp = c.intermediate % parts == 0 && vocab_rows % parts == 0;
      if (share.Take()) {
        const Index dp = parts <= 3 ? 2 : 1;
        const bool cuts = mlp && q_rows % parts == 0 && (q_rows + 2 * c.kv_heads * c.head_dim) % parts == 0;
        for (Index rank = 0; rank < parts * dp; ++rank) {
          const auto got = MegatronTrainerBuffers(c, parts, dp, rank, vocab_rows);
          if (!cuts) {
            ASSERT_EQ(CodeOf(got.status()), "shape_mismatch");
            continue;
          }
          const Index r = rank % parts;
          Wanted want = {
              {"embedding.word_embeddings.weight",
               model.Vocabulary("model.embed_tokens.weight", vocab_rows, oracle::kKeepFill, parts, r)},
              {mcore + "self_attention.linear_qkv.layer_norm_weight", model.Tensor(hf + "input_layernorm.weight")},
              {mcore + "self_attention.linear_qkv.weight", model.Cut(model.Interleaved("weight"), 0, parts, r)},
              {mcore + "self_attention.linear_proj.weight",
               model.Cut(model.Tensor(hf + "self_attn.o_proj.weight"), 1, parts, r)},
              {mcore + "mlp.linear_fc1.layer_norm_weight", model.Tensor(hf + "post_attention_layernorm.weight")},
              {mcore + "mlp.linear_fc1.weight", model.GateUp(parts, r)},
              {mcore + "mlp.linear_fc2.weight", model.Cut(model.Tensor(hf + "mlp.down_proj.weight"), 1, parts, r)},
              {"decoder.final_layernorm.weight", model.Tensor("model.norm.weight")}};
          if (c.attention_bias) {
            want[mcore + "self_attention.linear_qkv.bias"] = model.Cut(model.Interleaved("bias"), 0, parts, r);
          }
          if (c.qk_norm) {
            want[mcore + "self_attention.q_layernorm.weight"] = model.Tensor(hf + "self_attn.q_norm.weight");
            want[mcore + "self_attention.k_layernorm.weight"] = model.Tensor(hf + "self_attn.k_norm.weight");
          }
          if (!c.tied) {
            want["output_layer.weight"] = model.Vocabulary("lm_head.weight", vocab_rows, oracle::kKeepFill, parts, r);
          }
          check(got, want, "Megatron", parts, rank);
        }
      }
      if (share.Take()) {
        for (Index rank = 0; rank < parts; ++rank) {
          Wanted want;
          for (const TensorSpec& t : model.tensors()) want[t.name] = model.Cut(model.Tensor(t.name), 0, parts, rank);
          check(FsdpTrainerBuffers(c, parts, rank, Dtype::kF32), want, "FSDP", parts, rank);
        }
      }
      if (share.Take()) {
        const bool cuts = mlp && c.heads % parts == 0 && (c.kv_heads % parts == 0 || parts % c.kv_heads == 0);
        for (Index rank = 0; rank < parts; ++rank) {
          const auto got = EngineBuffers(c, parts, rank, vocab_rows);
          if (!cuts) {
            ASSERT_EQ(CodeOf(got.status()), "shape_mismatch");
            continue;
          }
          Wanted want = {
              {"model.embed_tokens.weight",
               model.Vocabulary("model.embed_tokens.weight", vocab_rows, oracle::kZeroFill, parts, rank)},
              {hf + "self_attn.qkv_proj.weight", model.EngineQkv("weight", parts, rank)},
              {hf + "self_attn.o_proj.weight", model.Cut(model.Tensor(hf + "self_attn.o_proj.weight"), 1, parts, rank)},
              {hf + "mlp.gate_up_proj.weight", model.GateUp(parts, rank)},
              {hf + "mlp.down_proj.weight", model.Cut(model.Tensor(hf + "mlp.down_proj.weight"), 1, parts, rank)}};
          if (c.attention_bias) want[hf + "self_attn.qkv_proj.bias"] = model.EngineQkv("bias", parts, rank);
          for (const TensorSpec& t : model.tensors()) {
            if (absl::StrContains(t.name, "norm")) want[t.name] = model.Tensor(t.name);
          }
          if (!c.tied) {
            want["lm_head.weight"] = model.Vocabulary("lm_head.weight", vocab_rows, oracle::kZeroFill, parts, rank);
          }
          check(got, want, "engine", parts, rank);
        }
      }
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace headrace
