#include "planner/coverage.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "planner/coverage_meeting.h"
#include "planner/coverage_pieces.h"
#include "planner/coverage_streams.h"
#include "planner/status.h"

namespace headrace {
namespace {

using Loops = absl::InlinedVector<CopyLoop, 2>;
using LoopStride = Index CopyLoop::*;

absl::Status Invalid(std::string message) {
  return Error(ErrorCode::kPlanInvalid, absl::StrCat("the plan is wrong: ", message,
                                                     ". This is a defect of the planner or a plan that was changed"));
}

std::string Name(const Manifest& m, int tensor) {
  return tensor == kZeroFill ? "the zero fill" : absl::StrCat("tensor \"", m.tensors[tensor].name, "\"");
}

std::string Name(const Buffer& b) { return absl::StrCat("rank ", b.rank, ", buffer \"", b.name, "\""); }

std::string Name(const Piece& p, size_t index) {
  return absl::StrCat("piece ", index,
                      p.kind == PieceKind::kTensor ? absl::StrCat(" (tensor \"", p.tensor, "\")")
                      : p.kind == PieceKind::kZero ? " (zero fill)"
                                                   : " (kept elements)");
}

bool IsEmpty(const Extents& shape) { return std::find(shape.begin(), shape.end(), 0) != shape.end(); }

absl::Status TooManyParts(const Buffer& b, absl::string_view why) {
  return Error(ErrorCode::kOutOfMemory, absl::StrCat("the proof of ", Name(b), " cuts its copies into more than ",
                                                     kMaxProofParts, " parts: ", why));
}

// Whether the runs of `run` bytes at first + sum(j * stride) all lie in [0, limit).
bool StaysInside(Index first, Index run, const Loops& loops, LoopStride stride, Index limit) {
  if (run <= 0 || run > limit || first < 0) return false;
  Index low = first, high = first, reach;
  for (const CopyLoop& l : loops) {
    if (l.extent <= 0 || __builtin_mul_overflow(l.extent - 1, l.*stride, &reach) ||
        __builtin_add_overflow(reach < 0 ? low : high, reach, reach < 0 ? &low : &high)) {
      return false;
    }
  }
  return low >= 0 && high <= limit - run;
}

// In elements, with steps that count up; nullopt when bytes are not whole elements. The numbers have passed
// StaysInside.
std::optional<Lattice> LatticeOf(Index place, Index position, Index run, const Loops& loops, LoopStride place_stride,
                                 LoopStride position_stride, Dtype dtype) {
  bool whole = true;
  auto elements = [&](Index bytes) {
    whole = whole && bytes % DtypeUnitBytes(dtype) == 0;
    return bytes / DtypeUnitBytes(dtype) * DtypeUnitElements(dtype);
  };
  Lattice lattice = {elements(place), elements(position), {}};
  for (const CopyLoop& l : loops) {
    if (l.extent == 1) continue;
    LatticeStep s = {l.extent, elements(l.*place_stride), elements(l.*position_stride)};
    if (s.number < 0) {
      lattice.place += (s.extent - 1) * s.place;
      lattice.number += (s.extent - 1) * s.number;
      s = {s.extent, -s.place, -s.number};
    }
    lattice.steps.push_back(s);
  }
  if (const Index extent = elements(run); extent > 1) lattice.steps.push_back({extent, 1, 1});
  return whole ? std::optional(std::move(lattice)) : std::nullopt;
}

class Proof {
 public:
  Proof(const Manifest& m, const Plan& plan) : m_(m), plan_(plan) {
    for (size_t t = 0; t < m.tensors.size(); ++t) tensors_.emplace(m.tensors[t].name, static_cast<int>(t));
  }

  absl::Status Run() {
    HR_RETURN_IF_ERROR(CheckIndices());
    if (absl::Status status = CheckEdges(m_, plan_); !status.ok()) return Invalid(std::string(status.message()));
    HR_RETURN_IF_ERROR(CheckStorages());
    HR_RETURN_IF_ERROR(CheckDestinations());
    return CheckSources();
  }

 private:
  absl::Status CheckIndices() {
    auto inside = [](int index, size_t size) { return index >= 0 && static_cast<size_t>(index) < size; };
    for (size_t i = 0; i < plan_.copies.size(); ++i) {
      const Copy& c = plan_.copies[i];
      if (!inside(c.tensor, m_.tensors.size()) || !inside(c.source, m_.source.size()) ||
          !inside(c.destination, m_.destination.size())) {
        return Invalid(absl::StrCat("copy ", i, " names a tensor or buffer that does not exist"));
      }
      if (c.loops.size() > kMaxCopyLoops) return Invalid(absl::StrCat("copy ", i, " has too many loops"));
    }
    for (const ZeroFill& z : plan_.zero_fills) {
      if (!inside(z.destination, m_.destination.size())) return Invalid("a zero fill names no buffer");
      if (z.loops.size() > kMaxCopyLoops) return Invalid("a zero fill has too many loops");
    }
    if (plan_.decisions.size() != m_.tensors.size()) return Invalid("it does not decide once for each tensor");
    return absl::OkStatus();
  }

  // --- memory

  // The units of `unit_bits` bits (1 or 8) that a buffer covers from a place on; runs that go on are one term.
  static Progression UnitsOf(const Buffer& b, Index first, Index unit_bits) {
    const Index element = DtypeBits(b.dtype) / unit_bits;
    std::vector<std::pair<Index, Index>> axes;
    for (size_t i = 0; i < b.shape.size(); ++i) {
      if (b.shape[i] > 1) axes.emplace_back(b.strides[i] * element, b.shape[i]);
    }
    std::sort(axes.begin(), axes.end());
    Progression units = {first, {{1, element}}};
    for (const auto& [stride, extent] : axes) {
      Term& inner = units.terms.back();
      if (stride == inner.step * inner.extent) {
        inner.extent *= extent;
      } else {
        units.terms.push_back({stride, extent});
      }
    }
    return units;
  }

  // Buffers of one storage share no bit. A byte that two share in halves cannot be written, since no run of whole bytes
  // of either's elements covers it.
  absl::Status CheckStorages() {
    std::map<std::pair<int64_t, absl::string_view>, std::vector<const Buffer*>> storages;
    for (const Buffer& b : m_.destination) {
      if (b.storage && !b.alias_of && !IsEmpty(b.shape)) storages[{b.rank, b.storage->id}].push_back(&b);
    }
    for (auto& [key, buffers] : storages) {
      std::sort(buffers.begin(), buffers.end(), [](const Buffer* a, const Buffer* b) {
        return std::tie(a->storage->offset_bytes, a->name) < std::tie(b->storage->offset_bytes, b->name);
      });
      // Bytes, unless a dtype needs bits: byte counts are known to fit.
      const bool sub_byte =
          std::any_of(buffers.begin(), buffers.end(), [](const Buffer* b) { return DtypeUnitElements(b->dtype) > 1; });
      const Index unit_bits = sub_byte ? 1 : 8;
      for (size_t i = 0; i < buffers.size();) {
        // Those whose ranges touch each other.
        Index end = 0;
        std::vector<PointSet> sets;
        size_t j = i;
        do {
          const Buffer& b = *buffers[j];
          end = std::max(end, b.storage->offset_bytes + SpanBytes(b, b.dtype));
          const Index place = b.storage->offset_bytes - buffers[i]->storage->offset_bytes;
          sets.push_back({UnitsOf(b, place * (8 / unit_bits), unit_bits)});
        } while (++j < buffers.size() && buffers[j]->storage->offset_bytes < end);
        if (sets.size() > 1) {
          const auto meeting = FindMeeting(sets);
          if (!meeting.ok()) return TooManyParts(*buffers[i], meeting.status().message());
          if (*meeting) {
            return Invalid(absl::StrCat("destinations ", Name(*buffers[i + (*meeting)->one]), " and ",
                                        Name(*buffers[i + (*meeting)->other]), " write the same byte ",
                                        (*meeting)->at[0] / 8, " of storage \"", key.second, "\""));
          }
        }
        i = j;
      }
    }
    return absl::OkStatus();
  }

  // Neither do elements of one buffer, nor its pieces.
  absl::Status CheckMemory(const Buffer& b) {
    Progression places;
    for (size_t i = 0; i < b.shape.size(); ++i) {
      if (b.shape[i] == 1) continue;
      if (b.strides[i] <= 0) return Invalid(absl::StrCat("destination ", Name(b), " has a stride of 0"));
      places.terms.push_back({b.strides[i], b.shape[i]});
    }
    const PointSet whole = {places};
    auto meeting = FindMeeting({&whole, 1});
    if (!meeting.ok()) return TooManyParts(b, meeting.status().message());
    if (*meeting) {
      return Invalid(absl::StrCat("destination ", Name(b), " has two elements at place ", (*meeting)->at[0]));
    }
    std::vector<PointSet> boxes;
    std::vector<size_t> pieces;
    for (size_t k = 0; k < b.pieces.size(); ++k) {
      const Piece& p = b.pieces[k];
      if (IsEmpty(p.shape)) continue;
      PointSet box(p.shape.size());
      for (size_t i = 0; i < p.shape.size(); ++i) {
        const size_t along = p.axes.empty() ? i : static_cast<size_t>(p.axes[i]);
        box[along] = {p.buffer_offset[along], {{1, p.shape[i]}}};
      }
      boxes.push_back(std::move(box));
      pieces.push_back(k);
    }
    meeting = FindMeeting(boxes);
    if (!meeting.ok()) return TooManyParts(b, meeting.status().message());
    if (!*meeting) return absl::OkStatus();
    const size_t one = pieces[(*meeting)->one], other = pieces[(*meeting)->other];
    return Invalid(absl::StrCat("destination ", Name(b), ": ", Name(b.pieces[one], one), " and ",
                                Name(b.pieces[other], other), " share memory"));
  }

  // --- elements

  Index TensorBytes(int tensor) const {
    Index elements = 1;
    for (Index e : m_.tensors[tensor].shape) elements *= e;
    return DtypeBytes(elements, m_.tensors[tensor].dtype);
  }

  void PlaceTensorPieces(const Buffer& b, std::vector<PlacedPiece>* out) const {
    for (size_t k = 0; k < b.pieces.size(); ++k) {
      const Piece& p = b.pieces[k];
      if (p.kind != PieceKind::kTensor || IsEmpty(p.shape)) continue;
      const int tensor = tensors_.at(p.tensor);
      out->push_back(PlaceTensorPiece(b, k, tensor, p.view ? *p.view : m_.tensors[tensor].shape));
    }
  }

  absl::Status CheckDestinations() {
    std::vector<std::vector<const Copy*>> copies(m_.destination.size());
    std::vector<std::vector<const ZeroFill*>> fills(m_.destination.size());
    for (const Copy& c : plan_.copies) copies[c.destination].push_back(&c);
    for (const ZeroFill& z : plan_.zero_fills) fills[z.destination].push_back(&z);
    for (size_t i = 0; i < m_.destination.size(); ++i) {
      HR_RETURN_IF_ERROR(CheckDestination(m_.destination[i], copies[i], fills[i]));
    }
    return absl::OkStatus();
  }

  absl::Status CheckDestination(const Buffer& b, const std::vector<const Copy*>& copies,
                                const std::vector<const ZeroFill*>& fills) {
    if (!IsEmpty(b.shape)) HR_RETURN_IF_ERROR(CheckMemory(b));
    std::vector<PlacedPiece> pieces;
    PlaceTensorPieces(b, &pieces);
    for (size_t k = 0; k < b.pieces.size(); ++k) {
      if (b.pieces[k].kind != PieceKind::kZero || IsEmpty(b.pieces[k].shape)) continue;
      if (!PlaceZeroPiece(b, k, &pieces)) return TooManyParts(b, "the strides of its zero fill do not nest");
    }
    const PieceIndex index(std::move(pieces));
    std::vector<std::vector<PointSet>> written(index.pieces().size());
    const Index limit = SpanBytes(b, b.dtype);
    Index parts = kMaxProofParts;
    // `lattice` is nullopt where bytes are not whole elements.
    auto write = [&](int tensor, Index offset, Index run, const std::optional<Lattice>& lattice) {
      Lattice stray;
      const Located located =
          !lattice ? Located::kNotHeld
                   : index.Locate(tensor, *lattice, &parts, &stray,
                                  [&](size_t piece, PointSet points) { written[piece].push_back(std::move(points)); });
      if (located == Located::kHeld) return absl::OkStatus();
      if (located == Located::kTooManyParts) return TooManyParts(b, "give its tensors fewer, larger pieces");
      return Invalid(absl::StrCat(
          "destination ", Name(b), " gets runs of ", run, " bytes from byte ", offset, " on of ", Name(m_, tensor),
          lattice ? absl::StrCat(", of which it does not want element ", stray.number, " at place ", stray.place)
                  : ", which are no whole elements"));
    };
    for (const Copy* c : copies) {
      if (!index.Has(c->tensor)) {
        return Invalid(
            absl::StrCat("destination ", Name(b), " gets ", Name(m_, c->tensor), ", which it does not want"));
      }
      if (!StaysInside(c->destination_offset, c->run_bytes, c->loops, &CopyLoop::destination_stride, limit) ||
          !StaysInside(c->position, c->run_bytes, c->loops, &CopyLoop::position_stride, TensorBytes(c->tensor))) {
        return Invalid(absl::StrCat("a copy of ", Name(m_, c->tensor), " leaves the destination ", Name(b)));
      }
      HR_RETURN_IF_ERROR(write(c->tensor, c->destination_offset, c->run_bytes,
                               LatticeOf(c->destination_offset, c->position, c->run_bytes, c->loops,
                                         &CopyLoop::destination_stride, &CopyLoop::position_stride, b.dtype)));
    }
    for (const ZeroFill* z : fills) {
      if (!StaysInside(z->destination_offset, z->run_bytes, z->loops, &CopyLoop::destination_stride, limit)) {
        return Invalid(absl::StrCat("a zero fill leaves the destination ", Name(b)));
      }
      HR_RETURN_IF_ERROR(write(kZeroFill, z->destination_offset, z->run_bytes,
                               LatticeOf(z->destination_offset, z->destination_offset, z->run_bytes, z->loops,
                                         &CopyLoop::destination_stride, &CopyLoop::destination_stride, b.dtype)));
    }
    for (size_t i = 0; i < written.size(); ++i) HR_RETURN_IF_ERROR(CheckOnce(b, index.pieces()[i], written[i]));
    return absl::OkStatus();
  }

  // The points, all of them in the piece, are the piece, each once.
  absl::Status CheckOnce(const Buffer& b, const PlacedPiece& p, const std::vector<PointSet>& points) {
    const auto meeting = FindMeeting(points);
    if (!meeting.ok()) return TooManyParts(b, meeting.status().message());
    if (*meeting) {
      return Invalid(absl::StrCat("destination ", Name(b), ", ", Name(b.pieces[p.piece], p.piece), ": element ",
                                  p.NumberOf((*meeting)->at), " of ", Name(m_, p.tensor), " is written twice"));
    }
    Index elements = 0;  // no overflow: different elements of the piece
    for (const PointSet& set : points) {
      Index product = 1;
      for (const Progression& axis : set) {
        for (const Term& t : axis.terms) product *= t.extent;
      }
      elements += product;
    }
    if (elements == p.Volume()) return absl::OkStatus();
    return Invalid(absl::StrCat("destination ", Name(b), ", ", Name(b.pieces[p.piece], p.piece), ": of ", p.Volume(),
                                " elements of ", Name(m_, p.tensor), " only ", elements, " are written"));
  }

  absl::Status CheckSources() {
    std::vector<std::vector<const Copy*>> copies(m_.source.size());
    for (const Copy& c : plan_.copies) copies[c.source].push_back(&c);
    for (size_t i = 0; i < m_.source.size(); ++i) {
      if (!copies[i].empty()) HR_RETURN_IF_ERROR(CheckSource(m_.source[i], copies[i]));
    }
    return absl::OkStatus();
  }

  absl::Status CheckSource(const Buffer& b, const std::vector<const Copy*>& copies) {
    std::vector<PlacedPiece> pieces;
    PlaceTensorPieces(b, &pieces);
    const PieceIndex index(std::move(pieces));
    Index parts = kMaxProofParts;
    for (const Copy* c : copies) {
      if (!index.Has(c->tensor)) {
        return Invalid(absl::StrCat("a copy reads ", Name(m_, c->tensor), " from the source ", Name(b),
                                    ", which does not hold it"));
      }
      // A snapshot has the tensor's dtype.
      const Dtype dtype = m_.tensors[c->tensor].dtype;
      if (!StaysInside(c->source_offset, c->run_bytes, c->loops, &CopyLoop::source_stride, SpanBytes(b, dtype))) {
        return Invalid(absl::StrCat("a copy of ", Name(m_, c->tensor), " reads outside of the source ", Name(b)));
      }
      const std::optional<Lattice> lattice = LatticeOf(c->source_offset, c->position, c->run_bytes, c->loops,
                                                       &CopyLoop::source_stride, &CopyLoop::position_stride, dtype);
      Lattice stray;
      const Located located =
          !lattice ? Located::kNotHeld : index.Locate(c->tensor, *lattice, &parts, &stray, [](size_t, PointSet) {});
      if (located == Located::kHeld) continue;
      if (located == Located::kTooManyParts) return TooManyParts(b, "give its tensors fewer, larger pieces");
      return Invalid(absl::StrCat("a copy reads runs of ", c->run_bytes, " bytes from byte ", c->source_offset,
                                  " on of the source ", Name(b),
                                  lattice ? absl::StrCat(", as element ", stray.number, " of ", Name(m_, c->tensor),
                                                         " at place ", stray.place, ", which it does not hold there")
                                          : absl::StrCat(", which are no whole elements of ", Name(m_, c->tensor))));
    }
    return absl::OkStatus();
  }

  const Manifest& m_;
  const Plan& plan_;
  absl::flat_hash_map<absl::string_view, int> tensors_;
};

}  // namespace

absl::Status ProveCoverage(const Manifest& manifest, const Plan& plan) { return Proof(manifest, plan).Run(); }

}  // namespace headrace
