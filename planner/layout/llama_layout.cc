#include "planner/layout/llama_layout.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/layout/placement.h"
#include "planner/layout/row_map.h"
#include "planner/status.h"

namespace headrace {
namespace {

// Far above any model; keeps a mistaken config from filling memory with pieces.
constexpr Index kMaxCount = 65536;

// Every extent, every fused extent and every product of two extents times 8 bytes stays below 2^63 once this passed,
// so that the rules below need no checks of their own.
absl::Status CheckConfig(const LlamaConfig& c, Index vocab_rows) {
  const std::pair<const char*, Index> sizes[] = {
      {"hidden", c.hidden},     {"intermediate", c.intermediate}, {"heads", c.heads},
      {"kv_heads", c.kv_heads}, {"head_dim", c.head_dim},         {"vocab", c.vocab},
  };
  for (const auto& [name, size] : sizes) {
    if (size < 1) return Error(ErrorCode::kInvalidOption, absl::StrCat(name, " is ", size, ": give at least 1"));
  }
  if (c.layers < 0 || c.layers > kMaxCount || c.heads > kMaxCount) {
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat("layers is ", c.layers, ", heads is ", c.heads, ": give at most ", kMaxCount,
                              " of each, and no negative number"));
  }
  if (c.heads % c.kv_heads != 0) {
    return Error(ErrorCode::kShapeMismatch, absl::StrCat(c.heads, " query heads do not divide into groups for ",
                                                         c.kv_heads, " KV heads: check heads and kv_heads"));
  }
  if (vocab_rows < c.vocab) {
    return Error(ErrorCode::kInvalidOption, absl::StrCat("vocab_rows is ", vocab_rows, " for a vocabulary of ", c.vocab,
                                                         ": give at least as many rows"));
  }
  constexpr Index kLimit = std::numeric_limits<Index>::max() / 8;
  auto fits = [](std::initializer_list<Index> factors) {
    Index product = 1;
    for (Index f : factors) {
      if (__builtin_mul_overflow(product, f, &product) || product > kLimit) return false;
    }
    return true;
  };
  if (!fits({3, c.heads, c.head_dim, c.hidden}) || !fits({2, c.intermediate, c.hidden}) ||
      !fits({vocab_rows, c.hidden})) {
    return Error(ErrorCode::kOutOfBounds, "a buffer of this model reaches 2^63 bytes: check the config's sizes");
  }
  return absl::OkStatus();
}

absl::Status CheckRank(absl::string_view system, Index rank, Index ranks) {
  if (rank >= 0 && rank < ranks) return absl::OkStatus();
  return Error(ErrorCode::kInvalidOption,
               absl::StrCat(system, " has ", ranks, " ranks, not a rank ", rank, ": count ranks from 0"));
}

absl::Status CheckSize(absl::string_view what, Index size) {
  if (size >= 1) return absl::OkStatus();
  return Error(ErrorCode::kInvalidOption, absl::StrCat(what, " is ", size, ": give at least 1"));
}

absl::Status CheckCut(absl::string_view what, Index size, Index tp) {
  if (size % tp == 0) return absl::OkStatus();
  return Error(ErrorCode::kShapeMismatch,
               absl::StrCat("TP ", tp, " does not divide ", what, " (", size, "): use a TP size that divides it",
                            what == "vocab_rows" ? ", or pad the vocabulary to a multiple of it" : ""));
}

Index QueryRows(const LlamaConfig& c) { return c.heads * c.head_dim; }
Index KvRows(const LlamaConfig& c) { return c.kv_heads * c.head_dim; }

std::string LayerName(Index layer, absl::string_view name) { return absl::StrCat("model.layers.", layer, ".", name); }

// The checkpoint's tensors in the model's order.
std::vector<TensorSpec> TensorsInModelOrder(const LlamaConfig& c) {
  std::vector<TensorSpec> tensors;
  auto add = [&](std::string name, Extents shape) { tensors.push_back({std::move(name), std::move(shape), c.dtype}); };
  add("model.embed_tokens.weight", {c.vocab, c.hidden});
  for (Index n = 0; n < c.layers; ++n) {
    add(LayerName(n, "input_layernorm.weight"), {c.hidden});
    add(LayerName(n, "self_attn.q_proj.weight"), {QueryRows(c), c.hidden});
    add(LayerName(n, "self_attn.k_proj.weight"), {KvRows(c), c.hidden});
    add(LayerName(n, "self_attn.v_proj.weight"), {KvRows(c), c.hidden});
    if (c.attention_bias) {
      add(LayerName(n, "self_attn.q_proj.bias"), {QueryRows(c)});
      add(LayerName(n, "self_attn.k_proj.bias"), {KvRows(c)});
      add(LayerName(n, "self_attn.v_proj.bias"), {KvRows(c)});
    }
    if (c.qk_norm) {
      add(LayerName(n, "self_attn.q_norm.weight"), {c.head_dim});
      add(LayerName(n, "self_attn.k_norm.weight"), {c.head_dim});
    }
    add(LayerName(n, "self_attn.o_proj.weight"), {c.hidden, QueryRows(c)});
    add(LayerName(n, "post_attention_layernorm.weight"), {c.hidden});
    add(LayerName(n, "mlp.gate_proj.weight"), {c.intermediate, c.hidden});
    add(LayerName(n, "mlp.up_proj.weight"), {c.intermediate, c.hidden});
    add(LayerName(n, "mlp.down_proj.weight"), {c.hidden, c.intermediate});
  }
  add("model.norm.weight", {c.hidden});
  if (!c.tied) add("lm_head.weight", {c.vocab, c.hidden});
  return tensors;
}

// Collects one rank's buffers; the rank is part number `part` of `parts` that cut a buffer.
class RankBuffers {
 public:
  RankBuffers(Index rank, Dtype dtype, Index parts, Index part)
      : rank_(rank), dtype_(dtype), mesh_{{parts}, {}}, coordinate_{part} {}

  // The buffer whose rows are `map` and whose other axes, if any, are `columns` long.
  absl::Status Add(std::string name, const RowMap& map, const Extents& columns, const MeshPlacement& placement) {
    HR_ASSIGN_OR_RETURN(const Index rows, RowCount(map));
    Extents shape = {rows};
    shape.insert(shape.end(), columns.begin(), columns.end());
    HR_ASSIGN_OR_RETURN(auto segments, LocalSegments(shape, mesh_, {placement}, coordinate_));
    HR_ASSIGN_OR_RETURN(LocalPieces local, FusedPieces(map, 0, segments));
    Buffer& buffer = buffers_.emplace_back();
    buffer.rank = rank_;
    buffer.name = std::move(name);
    buffer.dtype = dtype_;
    buffer.strides = RowMajorStrides(local.shape);
    buffer.shape = std::move(local.shape);
    buffer.pieces = std::move(local.pieces);
    return absl::OkStatus();
  }

  // This rank's equal part of a tensor's rows.
  absl::StatusOr<RowMap> EqualRows(std::string tensor, Index rows) const {
    return CutRows(WholeRows(std::move(tensor), rows),
                   {ChunkOf(rows, mesh_.extents[0], coordinate_[0], ChunkRule::kEven)});
  }

  // [this rank's gate rows; its up rows].
  absl::Status AddGateUp(std::string name, const LlamaConfig& c, Index layer) {
    HR_ASSIGN_OR_RETURN(RowMap map, EqualRows(LayerName(layer, "mlp.gate_proj.weight"), c.intermediate));
    HR_ASSIGN_OR_RETURN(RowMap up, EqualRows(LayerName(layer, "mlp.up_proj.weight"), c.intermediate));
    AppendRows(map, std::move(up));
    return Add(std::move(name), map, {c.hidden}, Replicate{});
  }

  // A vocabulary of vocab_rows rows, padded.
  absl::Status AddVocabulary(std::string name, std::string tensor, const LlamaConfig& c, Index vocab_rows,
                             PieceKind padding) {
    RowMap map = WholeRows(std::move(tensor), c.vocab);
    AppendRows(map, {PaddingRows(padding, vocab_rows - c.vocab)});
    return Add(std::move(name), map, {c.hidden}, Shard{0, ChunkRule::kEven});
  }

  absl::Status AddWhole(std::string name, std::string tensor, Index length) {
    return Add(std::move(name), WholeRows(std::move(tensor), length), {}, Replicate{});
  }

  std::vector<Buffer>& buffers() { return buffers_; }

 private:
  const Index rank_;
  const Dtype dtype_;
  const Mesh mesh_;
  const Extents coordinate_;
  std::vector<Buffer> buffers_;
};

// The tensors of a fused qkv weight (or bias), and the columns of one.
struct QkvSource {
  std::string suffix;
  Extents columns;
};

std::vector<QkvSource> QkvSources(const LlamaConfig& c) {
  std::vector<QkvSource> sources = {{"weight", {c.hidden}}};
  if (c.attention_bias) sources.push_back({"bias", {}});
  return sources;
}

}  // namespace

absl::StatusOr<std::vector<TensorSpec>> LlamaTensors(const LlamaConfig& config) {
  HR_RETURN_IF_ERROR(CheckConfig(config, config.vocab));
  std::vector<TensorSpec> tensors = TensorsInModelOrder(config);
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return tensors;
}

absl::StatusOr<std::vector<Buffer>> MegatronTrainerBuffers(const LlamaConfig& config, Index tp, Index dp, Index rank,
                                                           Index vocab_rows) {
  const LlamaConfig& c = config;
  HR_RETURN_IF_ERROR(CheckConfig(c, vocab_rows));
  HR_RETURN_IF_ERROR(CheckSize("the trainer's TP", tp));
  HR_RETURN_IF_ERROR(CheckSize("the trainer's DP", dp));
  HR_ASSIGN_OR_RETURN(const Index ranks, MeshSize({{dp, tp}, {"dp", "tp"}}));
  HR_RETURN_IF_ERROR(CheckRank("the trainer", rank, ranks));
  HR_RETURN_IF_ERROR(CheckCut("the rows of linear_qkv", QueryRows(c) + 2 * KvRows(c), tp));
  HR_RETURN_IF_ERROR(CheckCut("the columns of linear_proj", QueryRows(c), tp));
  HR_RETURN_IF_ERROR(CheckCut("intermediate", c.intermediate, tp));
  HR_RETURN_IF_ERROR(CheckCut("vocab_rows", vocab_rows, tp));

  RankBuffers out(rank, c.dtype, tp, rank % tp);
  const MeshPlacement rows = Shard{0, ChunkRule::kEven};
  const MeshPlacement columns = Shard{1, ChunkRule::kEven};
  HR_RETURN_IF_ERROR(out.AddVocabulary("embedding.word_embeddings.weight", "model.embed_tokens.weight", c, vocab_rows,
                                       PieceKind::kKeep));
  for (Index n = 0; n < c.layers; ++n) {
    const std::string layer = absl::StrCat("decoder.layers.", n, ".");
    const std::string attention = absl::StrCat(layer, "self_attention.");
    HR_RETURN_IF_ERROR(
        out.AddWhole(attention + "linear_qkv.layer_norm_weight", LayerName(n, "input_layernorm.weight"), c.hidden));
    for (const auto& [suffix, other] : QkvSources(c)) {
      HR_ASSIGN_OR_RETURN(
          const RowMap map,
          GroupInterleavedRows({{LayerName(n, "self_attn.q_proj." + suffix), c.heads / c.kv_heads * c.head_dim},
                                {LayerName(n, "self_attn.k_proj." + suffix), c.head_dim},
                                {LayerName(n, "self_attn.v_proj." + suffix), c.head_dim}},
                               c.kv_heads));
      HR_RETURN_IF_ERROR(out.Add(attention + "linear_qkv." + suffix, map, other, rows));
    }
    if (c.qk_norm) {
      HR_RETURN_IF_ERROR(
          out.AddWhole(attention + "q_layernorm.weight", LayerName(n, "self_attn.q_norm.weight"), c.head_dim));
      HR_RETURN_IF_ERROR(
          out.AddWhole(attention + "k_layernorm.weight", LayerName(n, "self_attn.k_norm.weight"), c.head_dim));
    }
    HR_RETURN_IF_ERROR(out.Add(attention + "linear_proj.weight",
                               WholeRows(LayerName(n, "self_attn.o_proj.weight"), c.hidden), {QueryRows(c)}, columns));
    HR_RETURN_IF_ERROR(out.AddWhole(layer + "mlp.linear_fc1.layer_norm_weight",
                                    LayerName(n, "post_attention_layernorm.weight"), c.hidden));
    HR_RETURN_IF_ERROR(out.AddGateUp(layer + "mlp.linear_fc1.weight", c, n));
    HR_RETURN_IF_ERROR(out.Add(layer + "mlp.linear_fc2.weight",
                               WholeRows(LayerName(n, "mlp.down_proj.weight"), c.hidden), {c.intermediate}, columns));
  }
  HR_RETURN_IF_ERROR(out.AddWhole("decoder.final_layernorm.weight", "model.norm.weight", c.hidden));
  if (!c.tied) {
    HR_RETURN_IF_ERROR(out.AddVocabulary("output_layer.weight", "lm_head.weight", c, vocab_rows, PieceKind::kKeep));
  }
  return std::move(out.buffers());
}

absl::StatusOr<std::vector<Buffer>> FsdpTrainerBuffers(const LlamaConfig& config, Index ranks, Index rank,
                                                       Dtype master) {
  HR_RETURN_IF_ERROR(CheckConfig(config, config.vocab));
  HR_RETURN_IF_ERROR(CheckSize("the trainer's number of ranks", ranks));
  HR_RETURN_IF_ERROR(CheckRank("the trainer", rank, ranks));
  const bool convert = master != config.dtype;
  if (convert && !DtypeConvertible(master, config.dtype)) {
    return Error(ErrorCode::kDtypeMismatch,
                 absl::StrCat("masters in ", DtypeName(master), " cannot be converted to the model's ",
                              DtypeName(config.dtype), ": keep them in F32, or in the model's dtype"));
  }
  RankBuffers out(rank, master, ranks, rank);
  for (const TensorSpec& tensor : TensorsInModelOrder(config)) {
    HR_RETURN_IF_ERROR(out.Add(tensor.name, WholeRows(tensor.name, tensor.shape[0]),
                               Extents(tensor.shape.begin() + 1, tensor.shape.end()), Shard{0, ChunkRule::kCeil}));
  }
  for (Buffer& buffer : out.buffers()) buffer.convert_rne = convert;
  return std::move(out.buffers());
}

absl::StatusOr<std::vector<Buffer>> EngineBuffers(const LlamaConfig& config, Index tp, Index rank, Index vocab_rows) {
  const LlamaConfig& c = config;
  HR_RETURN_IF_ERROR(CheckConfig(c, vocab_rows));
  HR_RETURN_IF_ERROR(CheckSize("the engine's TP", tp));
  HR_RETURN_IF_ERROR(CheckRank("the engine", rank, tp));
  HR_RETURN_IF_ERROR(CheckCut("the query heads", c.heads, tp));
  HR_ASSIGN_OR_RETURN(const Segment kv_heads, KvHeadsOf(c.kv_heads, tp, rank));
  HR_RETURN_IF_ERROR(CheckCut("intermediate", c.intermediate, tp));
  HR_RETURN_IF_ERROR(CheckCut("vocab_rows", vocab_rows, tp));

  RankBuffers out(rank, c.dtype, tp, rank);
  const MeshPlacement columns = Shard{1, ChunkRule::kEven};
  const Segments kv_rows = {{kv_heads.first * c.head_dim, kv_heads.count * c.head_dim}};
  const std::string embedding = "model.embed_tokens.weight";
  HR_RETURN_IF_ERROR(out.AddVocabulary(embedding, embedding, c, vocab_rows, PieceKind::kZero));
  for (Index n = 0; n < c.layers; ++n) {
    auto add_whole = [&](absl::string_view name, Index length) {
      return out.AddWhole(LayerName(n, name), LayerName(n, name), length);
    };
    auto add_columns = [&](absl::string_view name, Index length) {
      return out.Add(LayerName(n, name), WholeRows(LayerName(n, name), c.hidden), {length}, columns);
    };
    HR_RETURN_IF_ERROR(add_whole("input_layernorm.weight", c.hidden));
    for (const auto& [suffix, other] : QkvSources(c)) {
      HR_ASSIGN_OR_RETURN(RowMap map, out.EqualRows(LayerName(n, "self_attn.q_proj." + suffix), QueryRows(c)));
      for (absl::string_view tensor : {"self_attn.k_proj.", "self_attn.v_proj."}) {
        HR_ASSIGN_OR_RETURN(RowMap part,
                            CutRows(WholeRows(LayerName(n, absl::StrCat(tensor, suffix)), KvRows(c)), kv_rows));
        AppendRows(map, std::move(part));
      }
      HR_RETURN_IF_ERROR(out.Add(LayerName(n, "self_attn.qkv_proj." + suffix), map, other, Replicate{}));
    }
    if (c.qk_norm) {
      HR_RETURN_IF_ERROR(add_whole("self_attn.q_norm.weight", c.head_dim));
      HR_RETURN_IF_ERROR(add_whole("self_attn.k_norm.weight", c.head_dim));
    }
    HR_RETURN_IF_ERROR(add_columns("self_attn.o_proj.weight", QueryRows(c)));
    HR_RETURN_IF_ERROR(add_whole("post_attention_layernorm.weight", c.hidden));
    HR_RETURN_IF_ERROR(out.AddGateUp(LayerName(n, "mlp.gate_up_proj.weight"), c, n));
    HR_RETURN_IF_ERROR(add_columns("mlp.down_proj.weight", c.intermediate));
  }
  HR_RETURN_IF_ERROR(out.AddWhole("model.norm.weight", "model.norm.weight", c.hidden));
  if (!c.tied) {
    HR_RETURN_IF_ERROR(out.AddVocabulary("lm_head.weight", "lm_head.weight", c, vocab_rows, PieceKind::kZero));
    return std::move(out.buffers());
  }
  Buffer& owner = out.buffers().front();
  owner.storage = Storage{embedding, 0};
  Buffer head = owner;
  head.name = "lm_head.weight";
  head.pieces.clear();
  head.alias_of = embedding;
  out.buffers().push_back(std::move(head));
  return std::move(out.buffers());
}

}  // namespace headrace
