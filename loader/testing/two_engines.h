#ifndef HEADRACE_LOADER_TESTING_TWO_ENGINES_H_
#define HEADRACE_LOADER_TESTING_TWO_ENGINES_H_

// Test only. A small job with a bit of everything: three publishers, one of them with FP32 masters; engine "e0" of two
// workers with fused, pitched and padded buffers and one that nobody sends; engine "e1" of one worker, whole tensors,
// one transposed and one tied.

#include "planner/testing/manifest_parts.h"

namespace headrace::testing {

inline Manifest TwoEngines() {
  const TensorSpec q{"q", {8, 6}, Dtype::kBF16}, k{"k", {4, 6}, Dtype::kBF16}, o{"o", {6, 8}, Dtype::kBF16},
      norm{"norm", {6}, Dtype::kF32}, embed{"embed", {10, 6}, Dtype::kBF16};
  Manifest m;
  m.tensors = {q, k, o, norm, embed};
  Buffer masters = BufferOf(0, "q.lower", Dtype::kF32, {5, 6}, {PieceOf("q", {0, 0}, {5, 6}, {0, 0})});
  masters.convert_rne = true;
  m.source = {std::move(masters),
              WholeBuffer(0, k),
              BufferOf(1, "q.upper", q.dtype, {3, 6}, {PieceOf("q", {5, 0}, {3, 6}, {0, 0})}),
              BufferOf(1, "o.left", o.dtype, {6, 3}, {PieceOf("o", {0, 0}, {6, 3}, {0, 0})}),
              BufferOf(2, "o.right", o.dtype, {6, 5}, {PieceOf("o", {0, 3}, {6, 5}, {0, 0})}),
              WholeBuffer(2, norm),
              WholeBuffer(2, embed)};
  for (int64_t r : {0, 1}) {
    Buffer pitched = BufferOf(r, "o", o.dtype, {6, 4}, {PieceOf("o", {0, 4 * r}, {6, 4}, {0, 0})});
    pitched.strides = {5, 1};
    m.destination.push_back(
        BufferOf(r, "qk", q.dtype, {6, 6},
                 {PieceOf("q", {4 * r, 0}, {4, 6}, {0, 0}), PieceOf("k", {2 * r, 0}, {2, 6}, {4, 0})}));
    m.destination.push_back(std::move(pitched));
    m.destination.push_back(WholeBuffer(r, norm));
    m.destination.push_back(
        BufferOf(r, "embed", embed.dtype, {6, 6},
                 {PieceOf("embed", {5 * r, 0}, {5, 6}, {0, 0}), FillOf(PieceKind::kZero, {1, 6}, {5, 0})}));
    m.destination.push_back(BufferOf(r, "rotary", Dtype::kF32, {3}, {FillOf(PieceKind::kKeep, {3}, {0})}));
    m.topology.destination.push_back({r, "", "", "e0"});
  }
  Piece transposed = PieceOf("o", {0, 0}, {6, 8}, {0, 0});
  transposed.axes = {1, 0};
  m.destination.push_back(WholeBuffer(2, q));
  m.destination.push_back(WholeBuffer(2, k));
  m.destination.push_back(BufferOf(2, "o.t", o.dtype, {8, 6}, {transposed}));
  m.destination.push_back(WholeBuffer(2, norm));
  m.destination.push_back(WholeBuffer(2, embed));
  Buffer tied = WholeBuffer(2, embed);
  tied.name = "lm_head";
  tied.alias_of = "embed";
  tied.pieces.clear();
  m.destination.push_back(std::move(tied));
  m.topology.destination.push_back({2, "", "", "e1"});
  return m;
}

}  // namespace headrace::testing

#endif  // HEADRACE_LOADER_TESTING_TWO_ENGINES_H_
