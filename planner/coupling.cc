#include "planner/coupling.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
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
};
using Held = std::map<int64_t, std::vector<HeldBox>>;

// On the tensor's own axes, with extents of one kept.
Box OnTensorAxes(const TensorSpec& t, const Box& common) {
  Box out;
  size_t next = 0;
  for (Index extent : t.shape) {
    const bool kept = extent != 1;
    out.start.push_back(kept ? common.start[next] : 0);
    out.extent.push_back(kept ? common.extent[next] : 1);
    next += kept;
  }
  return out;
}

absl::StatusOr<Held> HeldBoxes(const Manifest& m, const TensorSpec& tensor) {
  Held held;
  if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) return held;
  const CommonAxes axes(tensor.shape, {});
  for (const Buffer& b : m.destination) {
    for (const Piece& p : b.pieces) {
      if (p.kind != PieceKind::kTensor || p.tensor != tensor.name) continue;
      HR_ASSIGN_OR_RETURN(std::vector<PlacedBox> boxes, axes.Place(tensor, b, 0, p));
      for (const PlacedBox& placed : boxes) held[b.rank].push_back({OnTensorAxes(tensor, placed.box), &b});
    }
  }
  return held;
}

absl::Status CheckBlocks(const Coupling& c, const TensorSpec& weight, const Held& held) {
  for (const auto& [rank, boxes] : held) {
    for (const HeldBox& h : boxes) {
      for (size_t i = 0; i < c.block.size(); ++i) {
        const Index end = h.box.start[i] + h.box.extent[i];
        if (h.box.start[i] % c.block[i] == 0 && (end % c.block[i] == 0 || end == weight.shape[i])) continue;
        return Error(ErrorCode::kMisalignedBlock,
                     absl::StrCat(Where("destination", *h.buffer, c.weight), ": box ", ToString(h.box),
                                  " cuts a scale block of ", c.block[i], " along axis ", i,
                                  "; shard at multiples of the block"));
      }
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
        needed.extent[i] = (end + c.block[i] - 1) / c.block[i] - needed.start[i];
      }
      absl::Status status;
      Partition(needed, offered, [&](const Box& cell, absl::Span<const int> holders) {
        if (!holders.empty() || !status.ok()) return;
        status = Error(ErrorCode::kConflict,
                       absl::StrCat(Where("destination", *h.buffer, c.weight), ": the rank holds the blocks ",
                                    ToString(cell), " without their scale \"", c.scale, "\""));
      });
      HR_RETURN_IF_ERROR(status);
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
    return Error(ErrorCode::kMisalignedBlock, absl::StrCat(Where(side, b, t.name), ": ", DtypeName(t.dtype), " comes ",
                                                           unit, " elements at a time, and ", why));
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

}  // namespace

absl::Status CheckCouplings(const Manifest& manifest) {
  absl::flat_hash_map<absl::string_view, const TensorSpec*> tensors;
  for (const TensorSpec& t : manifest.tensors) tensors.emplace(t.name, &t);
  auto whole_bytes = [&](const char* side, const std::vector<Buffer>& buffers) {
    for (const Buffer& b : buffers) {
      for (const Piece& p : b.pieces) {
        if (p.kind == PieceKind::kTensor) HR_RETURN_IF_ERROR(CheckWholeBytes(side, b, p, *tensors.at(p.tensor)));
      }
    }
    return absl::OkStatus();
  };
  struct Coupled {
    const Coupling* coupling;
    Held weights, scales;
  };
  std::vector<Coupled> coupled;
  for (const Coupling& c : manifest.coupled) {
    HR_ASSIGN_OR_RETURN(Held weights, HeldBoxes(manifest, *tensors.at(c.weight)));
    HR_ASSIGN_OR_RETURN(Held scales, HeldBoxes(manifest, *tensors.at(c.scale)));
    HR_RETURN_IF_ERROR(CheckBlocks(c, *tensors.at(c.weight), weights));
    coupled.push_back({&c, std::move(weights), std::move(scales)});
  }
  HR_RETURN_IF_ERROR(whole_bytes("source", manifest.source));
  HR_RETURN_IF_ERROR(whole_bytes("destination", manifest.destination));
  for (const Coupled& c : coupled) HR_RETURN_IF_ERROR(CheckScales(*c.coupling, c.weights, c.scales));
  return absl::OkStatus();
}

}  // namespace headrace
