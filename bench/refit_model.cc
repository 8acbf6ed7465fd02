#include "bench/refit_model.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace::bench {
namespace {

constexpr Index kWordElements = 4;  // of BF16 in a word

std::string Layer(Index layer, absl::string_view name) { return absl::StrCat("model.layers.", layer, ".", name); }

std::string Expert(Index layer, Index expert, absl::string_view name) {
  return Layer(layer, absl::StrCat("mlp.experts.", expert, ".", name, ".weight"));
}

std::vector<TensorSpec> Tensors(const RefitModel& m) {
  std::vector<TensorSpec> out;
  auto add = [&](std::string name, Extents shape) { out.push_back({std::move(name), std::move(shape), Dtype::kBF16}); };
  add("model.embed_tokens.weight", {m.vocab, m.hidden});
  for (Index l = 0; l < m.layers; ++l) {
    add(Layer(l, "input_layernorm.weight"), {m.hidden});
    add(Layer(l, "self_attn.q_proj.weight"), {m.heads * m.head_dim, m.hidden});
    add(Layer(l, "self_attn.k_proj.weight"), {m.kv_heads * m.head_dim, m.hidden});
    add(Layer(l, "self_attn.v_proj.weight"), {m.kv_heads * m.head_dim, m.hidden});
    add(Layer(l, "self_attn.o_proj.weight"), {m.hidden, m.heads * m.head_dim});
    add(Layer(l, "post_attention_layernorm.weight"), {m.hidden});
    add(Layer(l, "mlp.gate.weight"), {m.experts, m.hidden});
    for (Index e = 0; e < m.experts; ++e) {
      add(Expert(l, e, "gate_proj"), {m.intermediate, m.hidden});
      add(Expert(l, e, "up_proj"), {m.intermediate, m.hidden});
      add(Expert(l, e, "down_proj"), {m.hidden, m.intermediate});
    }
  }
  add("model.norm.weight", {m.hidden});
  add("lm_head.weight", {m.vocab, m.hidden});
  return out;
}

// The rank's ceil chunk of axis 0; without pieces when it is empty.
Buffer FsdpBuffer(const TensorSpec& tensor, Index ranks, Index rank) {
  const Index rows = tensor.shape[0], chunk = (rows + ranks - 1) / ranks;
  const Index first = std::min(rows, rank * chunk), count = std::min(rows - first, chunk);
  Buffer b;
  b.rank = rank;
  b.name = tensor.name;
  b.shape = tensor.shape;
  b.shape[0] = count;
  b.strides = RowMajorStrides(b.shape);
  if (count == 0) return b;
  Piece p;
  p.tensor = tensor.name;
  p.shape = b.shape;
  p.tensor_offset.assign(b.shape.size(), 0);
  p.buffer_offset = p.tensor_offset;
  p.tensor_offset[0] = first;
  b.pieces.push_back(std::move(p));
  return b;
}

Piece Box(std::string tensor, Extents tensor_offset, Extents shape, Extents buffer_offset) {
  Piece p;
  p.tensor = std::move(tensor);
  p.tensor_offset = std::move(tensor_offset);
  p.shape = std::move(shape);
  p.buffer_offset = std::move(buffer_offset);
  return p;
}

std::vector<Buffer> EngineBuffers(const RefitModel& m, Index rank) {
  std::vector<Buffer> out;
  auto add = [&](std::string name, Extents shape, std::vector<Piece> pieces) {
    Buffer b;
    b.rank = rank;
    b.name = std::move(name);
    b.strides = RowMajorStrides(shape);
    b.shape = std::move(shape);
    b.pieces = std::move(pieces);
    out.push_back(std::move(b));
  };
  auto rows = [&](const std::string& name, Index count, Index columns) {
    const Index mine = count / m.workers;
    add(name, {mine, columns}, {Box(name, {rank * mine, 0}, {mine, columns}, {0, 0})});
  };
  auto columns = [&](const std::string& name, Index count, Index width) {
    const Index mine = width / m.workers;
    add(name, {count, mine}, {Box(name, {0, rank * mine}, {count, mine}, {0, 0})});
  };
  auto whole = [&](const std::string& name, const Extents& shape) {
    const Extents origin(shape.size(), 0);
    add(name, shape, {Box(name, origin, shape, origin)});
  };

  const Index q = m.heads * m.head_dim / m.workers, kv = m.kv_heads * m.head_dim / m.workers;
  const Index half = m.intermediate / m.workers;
  rows("model.embed_tokens.weight", m.vocab, m.hidden);
  for (Index l = 0; l < m.layers; ++l) {
    whole(Layer(l, "input_layernorm.weight"), {m.hidden});
    add(Layer(l, "self_attn.qkv_proj.weight"), {q + 2 * kv, m.hidden},
        {Box(Layer(l, "self_attn.q_proj.weight"), {rank * q, 0}, {q, m.hidden}, {0, 0}),
         Box(Layer(l, "self_attn.k_proj.weight"), {rank * kv, 0}, {kv, m.hidden}, {q, 0}),
         Box(Layer(l, "self_attn.v_proj.weight"), {rank * kv, 0}, {kv, m.hidden}, {q + kv, 0})});
    columns(Layer(l, "self_attn.o_proj.weight"), m.hidden, m.heads * m.head_dim);
    whole(Layer(l, "post_attention_layernorm.weight"), {m.hidden});
    whole(Layer(l, "mlp.gate.weight"), {m.experts, m.hidden});
    std::vector<Piece> w13, w2;
    for (Index e = 0; e < m.experts; ++e) {
      // An expert is one step along the stack: its tensor seen with a leading axis of 1.
      w13.push_back(Box(Expert(l, e, "gate_proj"), {0, rank * half, 0}, {1, half, m.hidden}, {e, 0, 0}));
      w13.back().view = Extents{1, m.intermediate, m.hidden};
      w13.push_back(Box(Expert(l, e, "up_proj"), {0, rank * half, 0}, {1, half, m.hidden}, {e, half, 0}));
      w13.back().view = Extents{1, m.intermediate, m.hidden};
      w2.push_back(Box(Expert(l, e, "down_proj"), {0, 0, rank * half}, {1, m.hidden, half}, {e, 0, 0}));
      w2.back().view = Extents{1, m.hidden, m.intermediate};
    }
    add(Layer(l, "mlp.experts.w13_weight"), {m.experts, 2 * half, m.hidden}, std::move(w13));
    add(Layer(l, "mlp.experts.w2_weight"), {m.experts, m.hidden, half}, std::move(w2));
  }
  whole("model.norm.weight", {m.hidden});
  rows("lm_head.weight", m.vocab, m.hidden);
  return out;
}

// Calls f(tensor, first word of the row in the tensor, first byte of the row in the buffer, words) for each row of each
// piece of a row-major buffer of the refit.
template <typename F>
void ForEachRow(const Manifest& manifest, const Buffer& buffer, F&& f) {
  std::map<std::string, int> index;
  for (size_t t = 0; t < manifest.tensors.size(); ++t) index[manifest.tensors[t].name] = static_cast<int>(t);
  for (const Piece& p : buffer.pieces) {
    const int tensor = index.at(p.tensor);
    const Extents shape = p.view ? *p.view : manifest.tensors[tensor].shape;
    const Extents strides = RowMajorStrides(shape);
    const size_t last = shape.size() - 1;
    Index rows = 1;
    for (size_t i = 0; i < last; ++i) rows *= p.shape[i];
    for (Index r = 0; r < rows; ++r) {
      Index in_tensor = p.tensor_offset[last], in_buffer = p.buffer_offset[last];
      for (Index rest = r, i = static_cast<Index>(last) - 1; i >= 0; rest /= p.shape[i], --i) {
        in_tensor += (p.tensor_offset[i] + rest % p.shape[i]) * strides[i];
        in_buffer += (p.buffer_offset[i] + rest % p.shape[i]) * buffer.strides[i];
      }
      f(tensor, in_tensor / kWordElements, in_buffer * 2, p.shape[last] / kWordElements);
    }
  }
}

}  // namespace

absl::StatusOr<Manifest> RefitManifest(const RefitModel& m) {
  for (Index count : {m.heads, m.kv_heads, m.intermediate, m.vocab}) {
    if (count % m.workers == 0) continue;
    return Error(ErrorCode::kShapeMismatch, absl::StrCat(m.workers, " workers do not divide ", count));
  }
  Manifest manifest;
  manifest.tensors = Tensors(m);
  for (Index rank = 0; rank < m.trainers; ++rank) {
    for (const TensorSpec& t : manifest.tensors) manifest.source.push_back(FsdpBuffer(t, m.trainers, rank));
    manifest.topology.source.push_back({rank, "", "", ""});
  }
  for (Index rank = 0; rank < m.workers; ++rank) {
    for (Buffer& b : EngineBuffers(m, rank)) manifest.destination.push_back(std::move(b));
    manifest.topology.destination.push_back({rank, "", "", ""});
  }
  if (m.broadcast) {
    const std::string prefix = "qkv.";
    for (TensorSpec& t : manifest.tensors) t.name = prefix + t.name;
    for (auto* side : {&manifest.source, &manifest.destination}) {
      for (Buffer& b : *side) {
        for (Piece& p : b.pieces) p.tensor = prefix + p.tensor;
      }
    }
  }
  return manifest;
}

uint64_t RefitWord(int tensor, Index word, uint64_t generation) {
  // splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
  uint64_t z =
      (static_cast<uint64_t>(tensor) << 40) + static_cast<uint64_t>(word) + (generation << 56) + 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

void FillRefit(const Manifest& manifest, const Buffer& buffer, uint64_t generation, std::byte* memory) {
  ForEachRow(manifest, buffer, [&](int tensor, Index first, Index byte, Index words) {
    for (Index i = 0; i < words; ++i) {
      const uint64_t word = RefitWord(tensor, first + i, generation);
      std::memcpy(memory + byte + i * 8, &word, 8);
    }
  });
}

int64_t CheckRefit(const Manifest& manifest, const Buffer& buffer, uint64_t generation, const std::byte* memory) {
  int64_t wrong = 0;
  ForEachRow(manifest, buffer, [&](int tensor, Index first, Index byte, Index words) {
    for (Index i = 0; i < words; ++i) {
      uint64_t word;
      std::memcpy(&word, memory + byte + i * 8, 8);
      wrong += word != RefitWord(tensor, first + i, generation);
    }
  });
  return wrong;
}

}  // namespace headrace::bench
