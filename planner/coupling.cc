#include "planner/coupling.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "planner/lower.h"
#include "planner/status.h"

namespace headrace {
namespace {

std::string Where(const char* side, const Buffer& b, const std::string& tensor) {
  return absl::StrCat(side, " rank ", b.rank, ", buffer \"", b.name, "\", tensor \"", tensor, "\"");
}

// A rank's boxes of one tensor, on the tensor's own axes.
struct HeldBox {
  Box box;
  const Buffer* buffer;
  size_t piece;  // counted over the rank's pieces of the tensor
};
using Held = std::map<int64_t, std::vector<HeldBox>>;

constexpr size_t kMaxBoxes = size_t{1} << 22;

// A box on common axes that refine the tensor's, as boxes on the tensor's own axes: one, unless it takes a part of an
// inner axis at several places of an outer one. False when there are more than kMaxBoxes.
bool OnTensorAxes(const TensorSpec& t, const Extents& common, const Box& box, std::vector<Box>* out) {
  std::vector<Box> boxes = {Box{}};
  size_t next = 0;
  for (Index extent : t.shape) {
    std::vector<std::pair<Index, Index>> ranges = {{0, 1}};  // (first, count) along this axis, in units of `next`
    for (Index units = 1; units < extent; units *= common[next++]) {
      const bool whole = box.extent[next] == common[next];
      std::vector<std::pair<Index, Index>> finer;
      for (auto [first, count] : ranges) {
        if (whole || count == 1) {
          finer.emplace_back(first * common[next] + box.start[next], (count - 1) * common[next] + box.extent[next]);
          continue;
        }
        if (count > static_cast<Index>(kMaxBoxes)) return false;
        for (Index k = 0; k < count; ++k)
          finer.emplace_back((first + k) * common[next] + box.start[next], box.extent[next]);
      }
      if (finer.size() > kMaxBoxes) return false;
      ranges = std::move(finer);
    }
    if (boxes.size() * ranges.size() > kMaxBoxes) return false;
    std::vector<Box> grown;
    for (const Box& b : boxes) {
      for (auto [first, count] : ranges) {
        grown.push_back(b);
        grown.back().start.push_back(first);
        grown.back().extent.push_back(count);
      }
    }
    boxes = std::move(grown);
  }
  out->insert(out->end(), boxes.begin(), boxes.end());
  return out->size() <= kMaxBoxes;
}

struct HeldPiece {
  const Buffer* buffer = nullptr;
  const Piece* piece = nullptr;
};

// The destination's pieces of each coupled tensor, in the manifest's order: one pass, not one for each coupling.
using CoupledPieces = absl::flat_hash_map<absl::string_view, std::vector<HeldPiece>>;

CoupledPieces PiecesOfCoupled(const Manifest& m) {
  CoupledPieces pieces;
  for (const Coupling& c : m.coupled) pieces[c.weight], pieces[c.scale];
  if (pieces.empty()) return pieces;
  for (const Buffer& b : m.destination) {
    for (const Piece& p : b.pieces) {
      if (p.kind != PieceKind::kTensor) continue;
      if (const auto it = pieces.find(p.tensor); it != pieces.end()) it->second.push_back({&b, &p});
    }
  }
  return pieces;
}

absl::StatusOr<Held> HeldBoxes(const CoupledPieces& pieces, const TensorSpec& tensor) {
  Held held;
  if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) return held;
  for (const auto& [buffer, p] : pieces.at(tensor.name)) {
    const Buffer& b = *buffer;
    const CommonAxes axes(tensor.shape, p->view ? std::vector<Extents>{*p->view} : std::vector<Extents>{});
    HR_ASSIGN_OR_RETURN(std::vector<PlacedBox> placed, axes.Place(tensor, b, 0, *p));
    std::vector<Box> boxes;
    for (const PlacedBox& box : placed) {
      if (OnTensorAxes(tensor, axes.extents(), box.box, &boxes)) continue;
      return Error(ErrorCode::kOutOfMemory,
                   absl::StrCat(Where("destination", b, tensor.name), ": the view cuts the piece into more than ",
                                kMaxBoxes, " boxes on the tensor's axes"));
    }
    std::vector<HeldBox>& of_rank = held[b.rank];
    const size_t piece = of_rank.empty() ? 0 : of_rank.back().piece + 1;
    for (Box& box : boxes) of_rank.push_back({std::move(box), &b, piece});
  }
  return held;
}

// Boxes of one piece, for finding those near another box.
class NearBoxes {
 public:
  explicit NearBoxes(absl::Span<const HeldBox> boxes) {
    // Along the axis on which they differ most.
    size_t most = 0;
    for (size_t i = 0; i < boxes[0].box.start.size(); ++i) {
      std::set<Index> starts;
      for (const HeldBox& h : boxes) starts.insert(h.box.start[i]);
      if (starts.size() > most) most = starts.size(), axis_ = i;
    }
    for (const HeldBox& h : boxes) sorted_.push_back(h.box);
    std::sort(sorted_.begin(), sorted_.end(),
              [&](const Box& a, const Box& b) { return a.start[axis_] < b.start[axis_]; });
    for (const Box& b : sorted_) longest_ = std::max(longest_, b.extent[axis_]);
  }

  // Those that may touch `box`.
  absl::Span<const Box> Near(const Box& box) const {
    const auto first = std::lower_bound(sorted_.begin(), sorted_.end(), box.start[axis_] - longest_,
                                        [&](const Box& b, Index at) { return b.start[axis_] < at; });
    const auto last = std::lower_bound(first, sorted_.end(), box.start[axis_] + box.extent[axis_],
                                       [&](const Box& b, Index at) { return b.start[axis_] < at; });
    return absl::MakeConstSpan(sorted_).subspan(first - sorted_.begin(), last - first);
  }

 private:
  size_t axis_ = 0;
  std::vector<Box> sorted_;
  Index longest_ = 0;
};

// One piece: whole blocks as a set, though its view may cut it into boxes that are not.
absl::Status CheckBlocksOfPiece(const Coupling& c, const TensorSpec& weight, absl::Span<const HeldBox> boxes) {
  std::optional<NearBoxes> near;
  for (const HeldBox& h : boxes) {
    Box touched = h.box;  // the blocks that the box touches
    size_t cut = c.block.size();
    for (size_t i = c.block.size(); i-- > 0;) {
      const Index end = h.box.start[i] + h.box.extent[i];
      touched.start[i] -= h.box.start[i] % c.block[i];
      const Index behind = end % c.block[i] == 0 ? 0 : c.block[i] - end % c.block[i];
      touched.extent[i] = end + std::min(behind, weight.shape[i] - end) - touched.start[i];
      if (touched.start[i] != h.box.start[i] || touched.extent[i] != h.box.extent[i]) cut = i;
    }
    if (cut == c.block.size()) continue;
    if (!near) near.emplace(boxes);
    bool whole = true;
    Partition(touched, near->Near(touched),
              [&](const Box&, absl::Span<const int> holders) { whole = whole && !holders.empty(); });
    if (whole) continue;
    return About(
        Error(ErrorCode::kMisalignedBlock, absl::StrCat(Where("destination", *h.buffer, c.weight), ": box ",
                                                        ToString(h.box), " cuts a scale block of ", c.block[cut],
                                                        " along axis ", cut, "; shard at multiples of the block")),
        {.tensor = c.weight, .buffer = h.buffer->name, .rank = h.buffer->rank});
  }
  return absl::OkStatus();
}

absl::Status CheckBlocks(const Coupling& c, const TensorSpec& weight, const Held& held) {
  for (const auto& [rank, boxes] : held) {
    for (size_t i = 0; i < boxes.size();) {
      size_t end = i;
      while (end < boxes.size() && boxes[end].piece == boxes[i].piece) ++end;
      HR_RETURN_IF_ERROR(CheckBlocksOfPiece(c, weight, absl::MakeConstSpan(boxes).subspan(i, end - i)));
      i = end;
    }
  }
  return absl::OkStatus();
}

absl::Status CheckScales(const Coupling& c, const Held& weights, const Held& scales) {
  for (const auto& [rank, boxes] : weights) {
    std::vector<Box> offered;
    if (auto it = scales.find(rank); it != scales.end()) {
      for (const HeldBox& h : it->second) offered.push_back(h.box);
    }
    for (const HeldBox& h : boxes) {
      Box needed = h.box;  // in blocks
      for (size_t i = 0; i < c.block.size(); ++i) {
        const Index end = h.box.start[i] + h.box.extent[i];
        needed.start[i] = h.box.start[i] / c.block[i];
        needed.extent[i] = end / c.block[i] + (end % c.block[i] != 0) - needed.start[i];
      }
      absl::Status status;
      Partition(needed, offered, [&](const Box& cell, absl::Span<const int> holders) {
        if (!holders.empty() || !status.ok()) return;
        status = Error(ErrorCode::kConflict,
                       absl::StrCat(Where("destination", *h.buffer, c.weight), ": the rank holds the blocks ",
                                    ToString(cell), " without their scale \"", c.scale, "\""));
      });
      HR_RETURN_IF_ERROR(About(status, {.tensor = c.scale, .buffer = h.buffer->name, .rank = h.buffer->rank}));
    }
  }
  return absl::OkStatus();
}

// A box of a sub-byte dtype must be made of whole bytes in the tensor and in the buffer: its innermost axis is the
// innermost of both, and starts and ends at a byte.
absl::Status CheckWholeBytes(const char* side, const Buffer& b, const Piece& p, const TensorSpec& t) {
  const Index unit = DtypeUnitElements(t.dtype);
  if (unit == 1) return absl::OkStatus();
  auto error = [&](absl::string_view why) {
    return About(Error(ErrorCode::kMisalignedBlock, absl::StrCat(Where(side, b, t.name), ": ", DtypeName(t.dtype),
                                                                 " comes ", unit, " elements at a time, and ", why)),
                 {.tensor = t.name, .buffer = b.name, .rank = b.rank});
  };
  const Extents& view = p.view ? *p.view : t.shape;
  if (view.empty()) return error("a scalar is a part of a byte");
  if (std::find(p.shape.begin(), p.shape.end(), 0) != p.shape.end()) return absl::OkStatus();
  const size_t last = view.size() - 1;
  const size_t along = p.axes.empty() ? last : p.axes[last];
  if (b.strides[along] != 1) return error("the piece's innermost axis is not contiguous in the buffer");
  if (view[last] % unit || p.tensor_offset[last] % unit || p.shape[last] % unit || p.buffer_offset[along] % unit) {
    return error("the piece starts or ends inside a byte");
  }
  for (size_t i = 0; i < b.strides.size(); ++i) {
    if (i != along && b.shape[i] > 1 && b.strides[i] % unit) return error("a stride of the buffer ends inside a byte");
  }
  return absl::OkStatus();
}

// A zero fill of a sub-byte dtype must be made of whole bytes: contiguous along one axis that starts and ends at one.
absl::Status CheckWholeBytes(const Buffer& b, const Piece& fill) {
  const Index unit = DtypeUnitElements(b.dtype);
  if (unit == 1 || std::find(fill.shape.begin(), fill.shape.end(), 0) != fill.shape.end()) return absl::OkStatus();
  size_t along = fill.shape.size();
  bool whole = true;
  for (size_t i = 0; i < fill.shape.size(); ++i) {
    if (b.strides[i] == 1 && fill.shape[i] > 1) {
      along = i;
    } else {
      whole = whole && (b.strides[i] * fill.buffer_offset[i]) % unit == 0 &&
              (fill.shape[i] == 1 || b.strides[i] % unit == 0);
    }
  }
  if (whole && along < fill.shape.size() && fill.shape[along] % unit == 0 && fill.buffer_offset[along] % unit == 0) {
    return absl::OkStatus();
  }
  return About(Error(ErrorCode::kMisalignedBlock, absl::StrCat("destination rank ", b.rank, ", buffer \"", b.name,
                                                               "\", fill \"zero\": ", DtypeName(b.dtype), " comes ",
                                                               unit, " elements at a time, and the fill cuts a byte")),
               {.buffer = b.name, .rank = b.rank});
}

}  // namespace

absl::Status CheckCouplings(const Manifest& manifest) {
  absl::flat_hash_map<absl::string_view, const TensorSpec*> tensors;
  for (const TensorSpec& t : manifest.tensors) tensors.emplace(t.name, &t);
  auto whole_bytes = [&](const char* side, const std::vector<Buffer>& buffers) {
    for (const Buffer& b : buffers) {
      for (const Piece& p : b.pieces) {
        if (p.kind == PieceKind::kTensor) HR_RETURN_IF_ERROR(CheckWholeBytes(side, b, p, *tensors.at(p.tensor)));
        if (p.kind == PieceKind::kZero) HR_RETURN_IF_ERROR(CheckWholeBytes(b, p));
      }
    }
    return absl::OkStatus();
  };
  struct Coupled {
    const Coupling* coupling;
    Held weights, scales;
  };
  std::vector<Coupled> coupled;
  const CoupledPieces pieces = PiecesOfCoupled(manifest);
  for (const Coupling& c : manifest.coupled) {
    HR_ASSIGN_OR_RETURN(Held weights, HeldBoxes(pieces, *tensors.at(c.weight)));
    HR_ASSIGN_OR_RETURN(Held scales, HeldBoxes(pieces, *tensors.at(c.scale)));
    HR_RETURN_IF_ERROR(CheckBlocks(c, *tensors.at(c.weight), weights));
    coupled.push_back({&c, std::move(weights), std::move(scales)});
  }
  HR_RETURN_IF_ERROR(whole_bytes("source", manifest.source));
  HR_RETURN_IF_ERROR(whole_bytes("destination", manifest.destination));
  for (const Coupled& c : coupled) HR_RETURN_IF_ERROR(CheckScales(*c.coupling, c.weights, c.scales));
  return absl::OkStatus();
}

}  // namespace headrace
