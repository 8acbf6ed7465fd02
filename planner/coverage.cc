#include "planner/coverage.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr int kZeroFill = -1;  // in place of a tensor
constexpr int kKept = -2;

// `bytes` contiguous bytes at `place` in a memory hold the bytes at `position` of a tensor (or a fill).
struct Run {
  Index place = 0;
  Index bytes = 0;
  int tensor = 0;
  Index position = 0;  // 0 for fills

  bool operator==(const Run&) const = default;
};

absl::Status Invalid(std::string message) {
  return Error(ErrorCode::kPlanInvalid, absl::StrCat("the plan is wrong: ", message,
                                                     ". This is a defect of the planner or a plan that was changed"));
}

std::string Name(const Manifest& m, int tensor) {
  if (tensor == kZeroFill) return "the zero fill";
  if (tensor == kKept) return "kept elements";
  return absl::StrCat("tensor \"", m.tensors[tensor].name, "\"");
}

std::string Name(const Buffer& b) { return absl::StrCat("rank ", b.rank, ", buffer \"", b.name, "\""); }

// Sorts by place and joins neighbours that continue each other.
void Canonicalize(std::vector<Run>* runs) {
  std::sort(runs->begin(), runs->end(),
            [](const Run& a, const Run& b) { return std::tie(a.place, a.position) < std::tie(b.place, b.position); });
  size_t kept = 0;
  for (const Run& run : *runs) {
    if (kept > 0) {
      Run& last = (*runs)[kept - 1];
      if (last.tensor == run.tensor && last.place + last.bytes == run.place &&
          (run.tensor < 0 || last.position + last.bytes == run.position)) {
        last.bytes += run.bytes;
        continue;
      }
    }
    (*runs)[kept++] = run;
  }
  runs->resize(kept);
}

constexpr Index kMaxRuns = Index{1} << 26;

absl::Status CheckCount(Index more, const std::vector<Run>& runs, const Buffer& b) {
  if (more <= kMaxRuns - static_cast<Index>(runs.size())) return absl::OkStatus();
  return Error(ErrorCode::kOutOfMemory,
               absl::StrCat(Name(b), " is filled or read in ", more, " contiguous runs; the proof of one buffer holds ",
                            kMaxRuns, " of ", sizeof(Run), " bytes; use strides that leave longer runs"));
}

// Lays a piece out: walks all axes but the innermost run of the box. Bit arithmetic, since dtypes may be sub-byte.
absl::Status LayPiece(const Manifest& m, const absl::flat_hash_map<absl::string_view, int>& tensors, const Buffer& b,
                      Dtype dtype, const Piece& p, std::vector<Run>* out) {
  const size_t axes = p.shape.size();
  const Index bits = DtypeBits(dtype);
  int tensor = p.kind == PieceKind::kZero ? kZeroFill : kKept;
  Extents numbering(axes, 0);  // tensor elements per step along each piece axis
  Index place = 0, position = 0;
  if (p.kind == PieceKind::kTensor) {
    tensor = tensors.at(p.tensor);
    const Extents& counted = p.view.has_value() ? *p.view : m.tensors[tensor].shape;
    Index step = 1;
    for (size_t i = axes; i-- > 0;) {
      numbering[i] = step;
      position += p.tensor_offset[i] * step;
      step *= counted[i];
    }
  }
  std::vector<std::tuple<Index, Index, Index>> steps;  // (extent, memory step, tensor step), in elements
  for (size_t i = 0; i < axes; ++i) {
    const size_t along = p.axes.empty() ? i : static_cast<size_t>(p.axes[i]);
    place += p.buffer_offset[i] * b.strides[i];
    if (p.shape[i] == 0) return absl::OkStatus();
    if (p.shape[i] > 1) steps.emplace_back(p.shape[i], b.strides[along], numbering[i]);
  }
  // The innermost run: an axis that is contiguous in memory, and in the tensor where there is one.
  Index run = 1;
  for (bool grew = true; grew;) {
    grew = false;
    for (auto it = steps.begin(); it != steps.end(); ++it) {
      auto [extent, memory, number] = *it;
      if (memory != run || (tensor >= 0 && number != run)) continue;
      run *= extent;
      steps.erase(it);
      grew = true;
      break;
    }
  }
  Index count = 1;
  for (const auto& [extent, memory, number] : steps) count *= extent;
  HR_RETURN_IF_ERROR(CheckCount(count, *out, b));
  std::vector<Index> at(steps.size(), 0);
  while (true) {
    out->push_back({place * bits / 8, run * bits / 8, tensor, tensor >= 0 ? position * bits / 8 : 0});
    size_t i = 0;
    for (; i < steps.size(); ++i) {
      auto [extent, memory, number] = steps[i];
      place += memory;
      position += number;
      if (++at[i] < extent) break;
      place -= extent * memory;
      position -= extent * number;
      at[i] = 0;
    }
    if (i == steps.size()) return absl::OkStatus();
  }
}

// Whether first, first + step, ... (extent numbers) all lie in [0, limit].
bool StaysInside(Index first, Index extent, Index step, Index limit) {
  Index reach, last;
  return first >= 0 && first <= limit && !__builtin_mul_overflow(extent - 1, step, &reach) &&
         !__builtin_add_overflow(first, reach, &last) && last >= 0 && last <= limit;
}

// Lays a copy out at its destination (or source) places in a memory of `limit` bytes. `left` says that it leaves the
// memory or its tensor, or that a number is absurd.
absl::Status LayCopy(const Copy& c, bool at_source, Index limit, Index tensor_bytes, const Buffer& b,
                     std::vector<Run>* out, const std::string& left) {
  const Index base = at_source ? c.source_offset : c.destination_offset;
  if (c.run_bytes <= 0 || c.run_bytes > limit || c.loops.size() > kMaxCopyLoops) return Invalid(left);
  Index count = 1;
  // Each loop alone must stay inside, so that sums of all of them cannot overflow.
  for (const CopyLoop& l : c.loops) {
    if (l.extent <= 0 || !StaysInside(base, l.extent, at_source ? l.source_stride : l.destination_stride, limit) ||
        !StaysInside(c.position, l.extent, l.position_stride, tensor_bytes) ||
        __builtin_mul_overflow(count, l.extent, &count)) {
      return Invalid(left);
    }
  }
  if (!StaysInside(base, 1, 0, limit) || !StaysInside(c.position, 1, 0, tensor_bytes)) return Invalid(left);
  if (!at_source && count > limit / c.run_bytes) return Invalid(left);
  HR_RETURN_IF_ERROR(CheckCount(count, *out, b));
  std::vector<Run> runs = {{base, c.run_bytes, c.tensor, c.position}};
  for (const CopyLoop& l : c.loops) {
    const Index step = at_source ? l.source_stride : l.destination_stride;
    std::vector<Run> grown;
    grown.reserve(runs.size() * static_cast<size_t>(l.extent));
    for (const Run& r : runs) {
      for (Index i = 0; i < l.extent; ++i) {
        grown.push_back({r.place + i * step, r.bytes, r.tensor, r.position + i * l.position_stride});
      }
    }
    runs = std::move(grown);
  }
  for (const Run& r : runs) {
    if (r.place < 0 || r.place > limit - r.bytes) return Invalid(left);
  }
  out->insert(out->end(), runs.begin(), runs.end());
  return absl::OkStatus();
}

class Proof {
 public:
  Proof(const Manifest& m, const Plan& plan) : m_(m), plan_(plan) {
    for (size_t t = 0; t < m.tensors.size(); ++t) tensors_.emplace(m.tensors[t].name, static_cast<int>(t));
  }

  absl::Status Run() {
    HR_RETURN_IF_ERROR(CheckIndices());
    HR_RETURN_IF_ERROR(CheckEdges());
    HR_RETURN_IF_ERROR(CheckDestinations());
    return CheckSources();
  }

 private:
  using Runs = std::vector<headrace::Run>;

  absl::Status CheckIndices() {
    auto inside = [](int index, size_t size) { return index >= 0 && static_cast<size_t>(index) < size; };
    for (size_t i = 0; i < plan_.copies.size(); ++i) {
      const Copy& c = plan_.copies[i];
      if (!inside(c.tensor, m_.tensors.size()) || !inside(c.source, m_.source.size()) ||
          !inside(c.destination, m_.destination.size())) {
        return Invalid(absl::StrCat("copy ", i, " names a tensor or buffer that does not exist"));
      }
    }
    for (const ZeroFill& z : plan_.zero_fills) {
      if (!inside(z.destination, m_.destination.size())) return Invalid("a zero fill names no buffer");
    }
    if (plan_.decisions.size() != m_.tensors.size()) return Invalid("it does not decide once for each tensor");
    return absl::OkStatus();
  }

  Index TensorBytes(int tensor) const {
    Index bits = DtypeBits(m_.tensors[tensor].dtype);
    for (Index e : m_.tensors[tensor].shape) bits *= e;
    return bits / 8;
  }

  // Every copy is in exactly one edge, of its own ranks; each pair of ranks has one edge.
  absl::Status CheckEdges() {
    size_t next = 0;
    std::set<std::pair<int64_t, int64_t>> pairs;
    for (const Edge& e : plan_.edges) {
      if (e.first != next || e.count == 0 || e.count > plan_.copies.size() - next)
        return Invalid("edges do not tile the copies");
      if (!pairs.emplace(e.source_rank, e.destination_rank).second) return Invalid("two edges join the same ranks");
      for (next = e.first; next < e.first + e.count; ++next) {
        const Copy& c = plan_.copies[next];
        if (m_.source[c.source].rank != e.source_rank || m_.destination[c.destination].rank != e.destination_rank) {
          return Invalid(absl::StrCat("copy ", next, " is in an edge of other ranks"));
        }
      }
    }
    return next == plan_.copies.size() ? absl::OkStatus() : Invalid("edges do not tile the copies");
  }

  absl::Status CheckDestinations() {
    std::vector<Runs> writes(m_.destination.size());
    for (const Copy& c : plan_.copies) {
      const Buffer& b = m_.destination[c.destination];
      HR_RETURN_IF_ERROR(LayCopy(c, false, SpanBytes(b, b.dtype), TensorBytes(c.tensor), b, &writes[c.destination],
                                 absl::StrCat("a copy of ", Name(m_, c.tensor), " leaves the destination ", Name(b))));
    }
    for (const ZeroFill& z : plan_.zero_fills) {
      const Buffer& b = m_.destination[z.destination];
      Copy as_copy;
      as_copy.tensor = kZeroFill;
      as_copy.destination_offset = z.destination_offset;
      as_copy.run_bytes = z.run_bytes;
      as_copy.loops = z.loops;
      for (CopyLoop& l : as_copy.loops) l.position_stride = 0;
      HR_RETURN_IF_ERROR(LayCopy(as_copy, false, SpanBytes(b, b.dtype), 0, b, &writes[z.destination],
                                 absl::StrCat("a zero fill leaves the destination ", Name(b))));
    }
    std::map<std::pair<int64_t, std::string>, std::vector<std::pair<headrace::Run, size_t>>> storages;
    for (size_t b = 0; b < m_.destination.size(); ++b) {
      const Buffer& buffer = m_.destination[b];
      Runs expected;
      for (const Piece& p : buffer.pieces) {
        HR_RETURN_IF_ERROR(LayPiece(m_, tensors_, buffer, buffer.dtype, p, &expected));
      }
      Canonicalize(&expected);
      // Kept elements are expected and must not be written: they join the writes, so that one that meets them shows.
      for (const headrace::Run& r : expected) {
        if (r.tensor == kKept) writes[b].push_back(r);
      }
      Canonicalize(&writes[b]);
      HR_RETURN_IF_ERROR(CheckSame(buffer, writes[b], expected));
      if (!buffer.storage) continue;
      auto& storage = storages[{buffer.rank, buffer.storage->id}];
      for (headrace::Run r : writes[b]) {
        r.place += buffer.storage->offset_bytes;
        storage.emplace_back(r, b);
      }
    }
    for (auto& [key, runs] : storages) {
      std::sort(runs.begin(), runs.end(), [](const auto& a, const auto& b) { return a.first.place < b.first.place; });
      for (size_t i = 1; i < runs.size(); ++i) {
        if (runs[i - 1].first.place + runs[i - 1].first.bytes <= runs[i].first.place) continue;
        return Invalid(absl::StrCat("destinations ", Name(m_.destination[runs[i - 1].second]), " and ",
                                    Name(m_.destination[runs[i].second]), " write the same byte ", runs[i].first.place,
                                    " of storage \"", key.second, "\""));
      }
    }
    return absl::OkStatus();
  }

  // Both canonical. Writes that overlap cannot equal the expected runs, which do not.
  absl::Status CheckSame(const Buffer& b, const Runs& got, const Runs& wanted) {
    for (size_t i = 0; i < std::max(got.size(), wanted.size()); ++i) {
      if (i > 0 && i < got.size() && got[i - 1].place + got[i - 1].bytes > got[i].place) {
        return Invalid(absl::StrCat("destination ", Name(b), ", byte ", got[i].place, " is written twice, by ",
                                    Name(m_, got[i - 1].tensor), " and ", Name(m_, got[i].tensor)));
      }
      if (i < got.size() && i < wanted.size() && got[i] == wanted[i]) continue;
      auto describe = [&](const Runs& runs) {
        if (i >= runs.size()) return std::string("nothing");
        return absl::StrCat(runs[i].bytes, " bytes at ", runs[i].place, " from byte ", runs[i].position, " of ",
                            Name(m_, runs[i].tensor));
      };
      return Invalid(
          absl::StrCat("destination ", Name(b), " gets ", describe(got), " where it wants ", describe(wanted)));
    }
    return absl::OkStatus();
  }

  absl::Status CheckSources() {
    std::vector<std::vector<const Copy*>> by_source(m_.source.size());
    for (const Copy& c : plan_.copies) by_source[c.source].push_back(&c);
    for (size_t b = 0; b < m_.source.size(); ++b) {
      if (by_source[b].empty()) continue;
      const Buffer& buffer = m_.source[b];
      // A snapshot has the tensor's dtype; Validate made sure that there is one per buffer.
      const Dtype dtype = m_.tensors[by_source[b][0]->tensor].dtype;
      // Pieces may share elements in a source (two names for one weight): order by tensor, then by the distance of
      // memory from tensor, along which runs continue each other.
      auto key = [](const headrace::Run& r) { return std::make_tuple(r.tensor, r.place - r.position, r.place); };
      Runs offered;
      for (const Piece& p : buffer.pieces) {
        if (p.kind != PieceKind::kTensor) continue;
        HR_RETURN_IF_ERROR(LayPiece(m_, tensors_, buffer, dtype, p, &offered));
      }
      std::sort(offered.begin(), offered.end(), [&](const auto& x, const auto& y) { return key(x) < key(y); });
      Runs joined;
      for (const headrace::Run& r : offered) {
        if (!joined.empty() && joined.back().tensor == r.tensor &&
            joined.back().place - joined.back().position == r.place - r.position &&
            joined.back().place + joined.back().bytes >= r.place) {
          joined.back().bytes = std::max(joined.back().bytes, r.place + r.bytes - joined.back().place);
        } else {
          joined.push_back(r);
        }
      }
      for (const Copy* c : by_source[b]) {
        Runs reads;
        HR_RETURN_IF_ERROR(
            LayCopy(*c, true, SpanBytes(buffer, dtype), TensorBytes(c->tensor), buffer, &reads,
                    absl::StrCat("a copy of ", Name(m_, c->tensor), " reads outside of the source ", Name(buffer))));
        for (const headrace::Run& r : reads) {
          auto it = std::upper_bound(joined.begin(), joined.end(), r,
                                     [&](const auto& x, const auto& y) { return key(x) < key(y); });
          const bool found = it != joined.begin() && (--it)->tensor == r.tensor &&
                             it->place - it->position == r.place - r.position &&
                             r.place + r.bytes <= it->place + it->bytes;
          if (!found) {
            return Invalid(absl::StrCat("a copy reads ", r.bytes, " bytes at ", r.place, " of the source ",
                                        Name(buffer), " as byte ", r.position, " of ", Name(m_, r.tensor),
                                        ", which it does not hold there"));
          }
        }
      }
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
