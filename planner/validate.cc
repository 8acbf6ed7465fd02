#include "planner/validate.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/coupling.h"
#include "planner/memory_overlap.h"
#include "planner/status.h"

namespace headrace {
namespace {

using TensorIndex = absl::flat_hash_map<absl::string_view, const TensorSpec*>;

enum class Side { kSource, kDestination };

std::string Where(Side side, const Buffer& b) {
  return absl::StrCat(side == Side::kSource ? "source" : "destination", " rank ", b.rank, ", buffer \"", b.name, "\"");
}

std::string Where(Side side, const Buffer& b, size_t piece) {
  const Piece& p = b.pieces[piece];
  std::string what = p.kind == PieceKind::kTensor ? absl::StrCat(", tensor \"", p.tensor, "\"")
                     : p.kind == PieceKind::kZero ? ", fill \"zero\""
                                                  : ", fill \"keep\"";
  return absl::StrCat(Where(side, b), ", piece ", piece, what);
}

ErrorSubject Subject(const Buffer& b) { return {.buffer = b.name, .rank = b.rank}; }

std::string List(const Extents& e) { return absl::StrCat("[", absl::StrJoin(e, ", "), "]"); }

bool HasZero(const Extents& e) { return std::find(e.begin(), e.end(), 0) != e.end(); }

// Calls f(side, buffer) for every buffer until it fails.
template <typename F>
absl::Status ForEachBuffer(const Manifest& m, F&& f) {
  for (const Buffer& b : m.source) HR_RETURN_IF_ERROR(About(f(Side::kSource, b), Subject(b)));
  for (const Buffer& b : m.destination) HR_RETURN_IF_ERROR(About(f(Side::kDestination, b), Subject(b)));
  return absl::OkStatus();
}

// Calls f(side, buffer, piece index) for every piece until it fails.
template <typename F>
absl::Status ForEachPiece(const Manifest& m, F&& f) {
  return ForEachBuffer(m, [&](Side side, const Buffer& b) {
    for (size_t i = 0; i < b.pieces.size(); ++i) {
      HR_RETURN_IF_ERROR(About(f(side, b, i), {.tensor = b.pieces[i].tensor}));
    }
    return absl::OkStatus();
  });
}

// --- malformed

absl::Status CheckPlacements(const char* side, const std::vector<Placement>& placements,
                             const std::vector<Buffer>& buffers) {
  std::set<int64_t> placed;
  for (const Placement& p : placements) {
    if (!placed.insert(p.rank).second) {
      return Error(ErrorCode::kMalformed, absl::StrCat("topology places ", side, " rank ", p.rank, " twice"));
    }
  }
  if (placements.empty()) return absl::OkStatus();
  for (const Buffer& b : buffers) {
    if (!placed.contains(b.rank)) {
      return Error(ErrorCode::kMalformed, absl::StrCat("topology lacks ", side, " rank ", b.rank, ", which holds \"",
                                                       b.name, "\"; place every rank or leave the side out"));
    }
  }
  return absl::OkStatus();
}

// Strides of axes with one element, and all of an empty buffer, are never stepped.
bool SameStrides(const Buffer& a, const Buffer& b) {
  if (a.strides.size() != b.strides.size()) return false;
  if (HasZero(a.shape)) return true;
  for (size_t i = 0; i < a.shape.size() && i < a.strides.size(); ++i) {
    if (a.shape[i] != 1 && a.strides[i] != b.strides[i]) return false;
  }
  return true;
}

absl::Status CheckAlias(Side side, const Buffer& b, const Buffer* target) {
  auto malformed = [&](absl::string_view why) {
    return Error(ErrorCode::kMalformed, absl::StrCat(Where(side, b), ": alias of \"", *b.alias_of, "\": ", why));
  };
  if (target == nullptr) return malformed("the rank has no such buffer");
  if (target->alias_of) return malformed("that buffer is an alias itself; name the buffer that has the pieces");
  if (!b.pieces.empty()) return malformed("an alias has no pieces");
  if (b.shape != target->shape || !SameStrides(b, *target)) return malformed("shapes or strides differ");
  if (b.dtype != target->dtype) {
    return malformed(absl::StrCat("dtypes differ, ", DtypeName(b.dtype), " and ", DtypeName(target->dtype)));
  }
  if (b.storage.has_value() != target->storage.has_value() ||
      (b.storage &&
       (b.storage->id != target->storage->id || b.storage->offset_bytes != target->storage->offset_bytes))) {
    return malformed("storages differ");
  }
  return absl::OkStatus();
}

absl::Status CheckPieceForm(Side side, const Buffer& b, size_t i) {
  const Piece& p = b.pieces[i];
  if (side == Side::kSource && p.kind == PieceKind::kZero) {
    return Error(ErrorCode::kMalformed, absl::StrCat(Where(side, b, i),
                                                     ": a source cannot fill; say \"keep\" for "
                                                     "elements that it does not offer"));
  }
  if (p.axes.empty()) return absl::OkStatus();
  std::vector<int> sorted = p.axes;
  std::sort(sorted.begin(), sorted.end());
  for (size_t k = 0; k < sorted.size(); ++k) {
    if (sorted[k] != static_cast<int>(k) || sorted.size() != p.shape.size()) {
      return Error(ErrorCode::kMalformed, absl::StrCat(Where(side, b, i), ": axes [", absl::StrJoin(p.axes, ", "),
                                                       "] is no permutation of its ", p.shape.size(), " axes"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMalformed(const Manifest& m) {
  absl::flat_hash_set<absl::string_view> names;
  for (const TensorSpec& t : m.tensors) {
    if (!names.insert(t.name).second) {
      return Error(ErrorCode::kMalformed, absl::StrCat("tensor \"", t.name, "\" is declared twice"));
    }
  }
  absl::flat_hash_map<std::pair<int64_t, absl::string_view>, const Buffer*> buffers[2];
  HR_RETURN_IF_ERROR(ForEachBuffer(m, [&](Side side, const Buffer& b) {
    if (!buffers[static_cast<int>(side)].emplace(std::make_pair(b.rank, absl::string_view(b.name)), &b).second) {
      return Error(ErrorCode::kMalformed, absl::StrCat(Where(side, b), " is declared twice"));
    }
    return absl::OkStatus();
  }));
  HR_RETURN_IF_ERROR(ForEachBuffer(m, [&](Side side, const Buffer& b) {
    if (!b.alias_of) return absl::OkStatus();
    const auto& known = buffers[static_cast<int>(side)];
    auto it = known.find(std::make_pair(b.rank, absl::string_view(*b.alias_of)));
    return CheckAlias(side, b, it == known.end() ? nullptr : it->second);
  }));
  HR_RETURN_IF_ERROR(ForEachPiece(m, CheckPieceForm));
  HR_RETURN_IF_ERROR(CheckPlacements("source", m.topology.source, m.source));
  HR_RETURN_IF_ERROR(CheckPlacements("destination", m.topology.destination, m.destination));
  absl::flat_hash_set<absl::string_view> ignored;
  std::set<std::pair<absl::string_view, absl::string_view>> couplings;
  for (const std::string& name : m.ignore) {
    if (!ignored.insert(name).second) {
      return Error(ErrorCode::kMalformed, absl::StrCat("\"", name, "\" is twice in ignore"));
    }
  }
  for (const Coupling& c : m.coupled) {
    if (!couplings.emplace(c.weight, c.scale).second || c.weight == c.scale) {
      return Error(ErrorCode::kMalformed, absl::StrCat("coupled weight \"", c.weight, "\" and scale \"", c.scale,
                                                       c.weight == c.scale ? "\" are one tensor" : "\" stand twice"));
    }
    for (Index extent : c.block) {
      if (extent == 0) {
        return Error(ErrorCode::kMalformed, absl::StrCat("coupled weight \"", c.weight, "\": a block of 0 elements"));
      }
    }
  }
  return absl::OkStatus();
}

// --- unknown_tensor

absl::Status CheckNames(const Manifest& m, const TensorIndex& tensors) {
  HR_RETURN_IF_ERROR(ForEachPiece(m, [&](Side side, const Buffer& b, size_t i) {
    if (b.pieces[i].kind == PieceKind::kTensor && !tensors.contains(b.pieces[i].tensor)) {
      return Error(ErrorCode::kUnknownTensor, absl::StrCat(Where(side, b, i), ": the tensor is not in \"tensors\""));
    }
    return absl::OkStatus();
  }));
  auto known = [&](const char* list, const std::string& name) {
    if (tensors.contains(name)) return absl::OkStatus();
    return Error(ErrorCode::kUnknownTensor, absl::StrCat(list, ": tensor \"", name, "\" is not in \"tensors\""));
  };
  for (const std::string& name : m.ignore) HR_RETURN_IF_ERROR(known("ignore", name));
  for (const Coupling& c : m.coupled) {
    HR_RETURN_IF_ERROR(known("coupled", c.weight));
    HR_RETURN_IF_ERROR(known("coupled", c.scale));
  }
  return absl::OkStatus();
}

// --- shape_mismatch

// The product of extents that are not negative; nullopt past 2^63 - 1.
std::optional<Index> Product(const Extents& extents) {
  if (HasZero(extents)) return 0;  // however long the others
  Index product = 1;
  for (Index e : extents) {
    if (__builtin_mul_overflow(product, e, &product)) return std::nullopt;
  }
  return product;
}

bool HasNegative(const Extents& extents) {
  return std::any_of(extents.begin(), extents.end(), [](Index e) { return e < 0; });
}

absl::Status CheckShapes(const Manifest& m, const TensorIndex& tensors) {
  auto mismatch = [](std::string where, absl::string_view why) {
    return Error(ErrorCode::kShapeMismatch, absl::StrCat(where, ": ", why));
  };
  HR_RETURN_IF_ERROR(ForEachBuffer(m, [&](Side side, const Buffer& b) {
    if (b.strides.size() == b.shape.size()) return absl::OkStatus();
    return mismatch(Where(side, b), absl::StrCat(b.shape.size(), " axes, but ", b.strides.size(), " strides"));
  }));
  HR_RETURN_IF_ERROR(ForEachPiece(m, [&](Side side, const Buffer& b, size_t i) {
    const Piece& p = b.pieces[i];
    if (p.shape.size() != b.shape.size() || p.buffer_offset.size() != b.shape.size()) {
      return mismatch(Where(side, b, i),
                      absl::StrCat("shape ", List(p.shape), " and buffer_offset ", List(p.buffer_offset),
                                   " must have as many axes as the buffer ", List(b.shape)));
    }
    if (p.kind != PieceKind::kTensor) return absl::OkStatus();
    const TensorSpec& t = *tensors.at(p.tensor);
    const Extents& view = p.view ? *p.view : t.shape;
    if (p.tensor_offset.size() != view.size() || p.shape.size() != view.size()) {
      return mismatch(Where(side, b, i), absl::StrCat("tensor_offset ", List(p.tensor_offset), " and shape ",
                                                      List(p.shape), " must have as many axes as the tensor's ",
                                                      p.view ? "view " : "shape ", List(view)));
    }
    // Extents and tensors that do not fit are out_of_bounds, found later.
    if (!p.view || HasNegative(view) || HasNegative(t.shape)) return absl::OkStatus();
    const std::optional<Index> viewed = Product(view), whole = Product(t.shape);
    if (whole && viewed != whole) {
      return mismatch(Where(side, b, i),
                      absl::StrCat("the view ", List(view), " has ", viewed ? absl::StrCat(*viewed) : "2^63 or more",
                                   " elements, the tensor ", List(t.shape), " has ", *whole));
    }
    return absl::OkStatus();
  }));
  for (const Coupling& c : m.coupled) {
    const TensorSpec &weight = *tensors.at(c.weight), &scale = *tensors.at(c.scale);
    std::string where = absl::StrCat("coupled weight \"", c.weight, "\", scale \"", c.scale, "\"");
    if (c.block.size() != weight.shape.size() || scale.shape.size() != weight.shape.size()) {
      return mismatch(where, "weight, scale and block must have the same number of axes");
    }
    for (size_t i = 0; i < c.block.size(); ++i) {
      if (c.block[i] < 0 || weight.shape[i] < 0) continue;  // out_of_bounds, found later
      const Index blocks = weight.shape[i] / c.block[i] + (weight.shape[i] % c.block[i] != 0);
      if (scale.shape[i] != blocks) {
        return mismatch(where, absl::StrCat("the weight has ", blocks, " blocks along axis ", i, ", the scale ",
                                            scale.shape[i], " elements"));
      }
    }
  }
  return absl::OkStatus();
}

// --- out_of_bounds

absl::Status CheckExtents(const std::string& where, const char* what, const Extents& shape, Dtype dtype) {
  for (Index e : shape) {
    if (e < 0) {
      return Error(ErrorCode::kOutOfBounds,
                   absl::StrCat(where, ": ", what, " ", List(shape), " has a negative extent"));
    }
  }
  const std::optional<Index> elements = Product(shape);
  if (!elements || !CheckedDtypeBytes(*elements, dtype)) {
    return Error(ErrorCode::kOutOfBounds, absl::StrCat(where, ": ", what, " ", List(shape), " of ", DtypeName(dtype),
                                                       " is past 2^63 ", elements ? "bytes" : "elements"));
  }
  return absl::OkStatus();
}

// offset >= 0, extent >= 0 and offset + extent <= limit on each axis.
absl::Status CheckInside(const std::string& where, const char* what, const Extents& offset, const Extents& extent,
                         const Extents& limit) {
  for (size_t i = 0; i < offset.size(); ++i) {
    Index end;
    if (offset[i] < 0 || extent[i] < 0 || __builtin_add_overflow(offset[i], extent[i], &end) || end > limit[i]) {
      return Error(ErrorCode::kOutOfBounds,
                   absl::StrCat(where, ": box at ", List(offset), " of shape ", List(extent), " is not inside of the ",
                                what, " ", List(limit), " (axis ", i, ")"));
    }
  }
  return absl::OkStatus();
}

// Tensors are declared.
absl::Status CheckSpan(Side side, const Buffer& b, const TensorIndex& tensors) {
  Index last = 0, offset = b.storage ? b.storage->offset_bytes : 0;
  auto out = [&](absl::string_view why) {
    return Error(ErrorCode::kOutOfBounds, absl::StrCat(Where(side, b), ": ", why));
  };
  if (offset < 0) return out(absl::StrCat("storage offset ", offset, " is negative"));
  if (HasNegative(b.strides)) return out(absl::StrCat("strides ", List(b.strides), " are negative"));
  if (HasZero(b.shape)) return absl::OkStatus();
  const std::string form = absl::StrCat("shape ", List(b.shape), " with strides ", List(b.strides));
  for (size_t i = 0; i < b.shape.size(); ++i) {
    Index reach;
    if (__builtin_mul_overflow(b.shape[i] - 1, b.strides[i], &reach) || __builtin_add_overflow(last, reach, &last)) {
      return out(absl::StrCat(form, " is past 2^63 elements"));
    }
  }
  if (__builtin_add_overflow(last, 1, &last)) return out(absl::StrCat(form, " is past 2^63 elements"));
  auto fits = [&](Dtype dtype) {
    const std::optional<Index> bytes = CheckedDtypeBytes(last, dtype);
    Index end;
    return bytes && !__builtin_add_overflow(offset, *bytes, &end);
  };
  if (!fits(b.dtype)) {
    return out(absl::StrCat(form, " of ", DtypeName(b.dtype), " at byte ", offset, " is past 2^63 bytes"));
  }
  // Its snapshot holds the tensors' dtypes.
  for (const Piece& p : b.pieces) {
    if (p.kind != PieceKind::kTensor) continue;
    const Dtype dtype = tensors.at(p.tensor)->dtype;
    if (!fits(dtype)) {
      return out(absl::StrCat(form, " of tensor \"", p.tensor, "\", ", DtypeName(dtype), ", is past 2^63 bytes"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBounds(const Manifest& m, const TensorIndex& tensors) {
  for (const TensorSpec& t : m.tensors) {
    HR_RETURN_IF_ERROR(CheckExtents(absl::StrCat("tensor \"", t.name, "\""), "shape", t.shape, t.dtype));
  }
  HR_RETURN_IF_ERROR(ForEachBuffer(m, [&](Side side, const Buffer& b) {
    HR_RETURN_IF_ERROR(CheckExtents(Where(side, b), "shape", b.shape, b.dtype));
    return CheckSpan(side, b, tensors);
  }));
  HR_RETURN_IF_ERROR(ForEachPiece(m, [&](Side side, const Buffer& b, size_t i) {
    const Piece& p = b.pieces[i];
    const std::string where = Where(side, b, i);
    if (p.kind == PieceKind::kTensor) {
      const TensorSpec& t = *tensors.at(p.tensor);
      if (p.view) HR_RETURN_IF_ERROR(CheckExtents(where, "view", *p.view, t.dtype));
      HR_RETURN_IF_ERROR(
          CheckInside(where, p.view ? "view" : "tensor", p.tensor_offset, p.shape, p.view ? *p.view : t.shape));
    }
    Extents laid = p.shape;  // along the buffer's axes
    for (size_t k = 0; k < p.axes.size(); ++k) laid[p.axes[k]] = p.shape[k];
    return CheckInside(where, "buffer", p.buffer_offset, laid, b.shape);
  }));
  for (const Coupling& c : m.coupled) {
    for (Index extent : c.block) {
      if (extent < 0)
        return Error(ErrorCode::kOutOfBounds, absl::StrCat("coupled weight \"", c.weight, "\": a negative block"));
    }
  }
  return absl::OkStatus();
}

// --- dtype_mismatch

absl::Status CheckDtypes(const Manifest& m, const TensorIndex& tensors) {
  return ForEachPiece(m, [&](Side side, const Buffer& b, size_t i) {
    const Piece& p = b.pieces[i];
    if (p.kind != PieceKind::kTensor) return absl::OkStatus();
    const Dtype wanted = tensors.at(p.tensor)->dtype;
    const bool converts = side == Side::kSource && b.convert_rne;
    if (b.dtype == wanted || (converts && DtypeConvertible(b.dtype, wanted))) return absl::OkStatus();
    return Error(
        ErrorCode::kDtypeMismatch,
        absl::StrCat(Where(side, b, i), ": the buffer is ", DtypeName(b.dtype), ", the tensor ", DtypeName(wanted),
                     converts                ? "; there is no such conversion"
                     : side == Side::kSource ? "; say \"convert\": \"rne\" to have the publisher convert"
                                             : "; a destination holds the tensor's dtype"));
  });
}

}  // namespace

absl::Status Validate(const Manifest& manifest) {
  HR_RETURN_IF_ERROR(CheckMalformed(manifest));
  TensorIndex tensors;
  for (const TensorSpec& t : manifest.tensors) tensors.emplace(t.name, &t);
  HR_RETURN_IF_ERROR(CheckNames(manifest, tensors));
  HR_RETURN_IF_ERROR(CheckShapes(manifest, tensors));
  HR_RETURN_IF_ERROR(CheckBounds(manifest, tensors));
  HR_RETURN_IF_ERROR(CheckDtypes(manifest, tensors));
  HR_RETURN_IF_ERROR(CheckMemoryOverlap(manifest.destination));
  return CheckCouplings(manifest);
}

}  // namespace headrace
