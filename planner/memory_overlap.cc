#include "planner/memory_overlap.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "planner/box.h"
#include "planner/lattice.h"
#include "planner/status.h"

namespace headrace {
namespace {

// Buffers of a storage whose ranges interleave are compared run by run up to this many runs, then pair by pair.
constexpr Index kMaxRuns = Index{1} << 20;

std::string Where(const Buffer& b) { return absl::StrCat("destination rank ", b.rank, ", buffer \"", b.name, "\""); }

Box LaidBox(const Piece& p) {
  Box box{Coords(p.buffer_offset.begin(), p.buffer_offset.end()), Coords(p.shape.begin(), p.shape.end())};
  for (size_t k = 0; k < p.axes.size(); ++k) box.extent[p.axes[k]] = p.shape[k];
  return box;
}

std::string Name(const Piece& p, size_t index) {
  return p.kind == PieceKind::kTensor ? absl::StrCat("piece ", index, " (tensor \"", p.tensor, "\")")
                                      : absl::StrCat("piece ", index, " (fill)");
}

absl::Status CheckPieces(const Buffer& b) {
  std::vector<std::pair<Box, size_t>> boxes;
  for (size_t i = 0; i < b.pieces.size(); ++i) {
    Box box = LaidBox(b.pieces[i]);
    if (Volume(box) > 0) boxes.emplace_back(std::move(box), i);
  }
  if (boxes.size() < 2) return absl::OkStatus();
  // Sweep along the axis on which the boxes differ most.
  size_t axis = 0, most = 0;
  for (size_t i = 0; i < b.shape.size(); ++i) {
    std::set<Index> starts;
    for (const auto& [box, piece] : boxes) starts.insert(box.start[i]);
    if (starts.size() > most) most = starts.size(), axis = i;
  }
  if (b.shape.empty()) {
    return About(Error(ErrorCode::kOverlap, absl::StrCat(Where(b), ": more than one piece for its single element")),
                 {.buffer = b.name, .rank = b.rank});
  }
  std::sort(boxes.begin(), boxes.end(), [&](const auto& x, const auto& y) {
    return std::tie(x.first.start[axis], x.second) < std::tie(y.first.start[axis], y.second);
  });
  for (size_t i = 0; i < boxes.size(); ++i) {
    const Box& a = boxes[i].first;
    for (size_t j = i + 1; j < boxes.size() && boxes[j].first.start[axis] < a.start[axis] + a.extent[axis]; ++j) {
      if (std::optional<Box> common = Intersection(a, boxes[j].first)) {
        const size_t p = boxes[i].second, q = boxes[j].second;
        return About(Error(ErrorCode::kOverlap, absl::StrCat(Where(b), ": ", Name(b.pieces[p], p), " and ",
                                                             Name(b.pieces[q], q), " both fill ", ToString(*common))),
                     {.tensor = b.pieces[p].tensor, .buffer = b.name, .rank = b.rank});
      }
    }
  }
  return absl::OkStatus();
}

// The buffer's axes of more than one element, as (stride, extent), ascending.
std::vector<std::pair<Index, Index>> Loops(const Buffer& b) {
  std::vector<std::pair<Index, Index>> loops;
  for (size_t i = 0; i < b.shape.size(); ++i) {
    if (b.shape[i] > 1) loops.emplace_back(b.strides[i], b.shape[i]);
  }
  std::sort(loops.begin(), loops.end());
  return loops;
}

absl::Status Undecided(const std::string& what) {
  return Error(ErrorCode::kOutOfMemory,
               absl::StrCat(what,
                            ": whether they share memory takes too long to find out; use strides that nest, or "
                            "separate storages"));
}

absl::Status CheckStrides(const Buffer& b) {
  if (SpanElements(b) == 0) return absl::OkStatus();
  const std::string what = absl::StrCat(Where(b), ": shape [", absl::StrJoin(b.shape, ", "), "] with strides [",
                                        absl::StrJoin(b.strides, ", "), "]");
  const auto loops = Loops(b);
  std::vector<Multiple> inner;  // differences of two elements' places along the loops so far
  Index reach = 0;
  for (auto [stride, extent] : loops) {
    // Two elements that differ along this loop, and not along those of larger strides.
    Sum meet = stride == 0 ? Sum::kFound : Sum::kNone;
    if (stride <= reach && meet == Sum::kNone) {
      inner.push_back({stride, 1, extent - 1});
      meet = FindZeroSum(0, inner, nullptr);
      inner.pop_back();
    }
    if (meet == Sum::kFound) return Error(ErrorCode::kOverlap, absl::StrCat(what, " puts two elements at one place"));
    if (meet == Sum::kUnknown) return Undecided(what);
    inner.push_back({stride, 1 - extent, extent - 1});
    reach += (extent - 1) * stride;
  }
  return absl::OkStatus();
}

// Runs of `run` bytes at `first` plus any multiple below extent of each stride; in bytes.
struct Nest {
  Index first = 0, run = 0;
  std::vector<std::pair<Index, Index>> loops;  // (stride, extent)
};

// Appends the elements at `place` plus loops[next..] as nests. Loops of sub-byte dtypes whose strides end inside a byte
// are taken apart by where in the byte they are.
void AppendNests(const Buffer& b, const std::vector<std::pair<Index, Index>>& loops, size_t next, Index place,
                 Index run, Nest nest, std::vector<Nest>* out) {
  const Index unit = DtypeUnitElements(b.dtype), unit_bytes = DtypeUnitBytes(b.dtype);
  if (next == loops.size()) {
    const Index whole = place / unit * unit_bytes, bits = DtypeBits(b.dtype);
    nest.first = b.storage->offset_bytes + whole + place % unit * bits / 8;
    nest.run = b.storage->offset_bytes + whole + DtypeBytes(place % unit + run, b.dtype) - nest.first;
    return out->push_back(std::move(nest));
  }
  const auto [stride, extent] = loops[next];
  const Index parts = stride % unit == 0 ? 1 : std::min(unit, extent);
  for (Index i = 0; i < parts; ++i) {
    Nest part = nest;
    const Index left = (extent - i + parts - 1) / parts;
    if (left > 1) part.loops.emplace_back(stride * parts / unit * unit_bytes, left);
    AppendNests(b, loops, next + 1, place + i * stride, run, std::move(part), out);
  }
}

std::vector<Nest> Nests(const Buffer& b) {
  const auto loops = Loops(b);
  size_t inner = 0;
  Index run = 1;
  while (inner < loops.size() && loops[inner].first == run) run *= loops[inner++].second;
  std::vector<Nest> nests;
  AppendNests(b, loops, inner, 0, run, {}, &nests);
  return nests;
}

// A buffer and the memory between its first and last byte.
struct Member {
  const Buffer* buffer;
  Index begin, end;
  std::vector<Nest> nests;

  Index Runs() const {
    Index runs = 0;
    for (const Nest& n : nests) {
      Index count = 1;
      for (auto [stride, extent] : n.loops) count = std::min(count * std::min(extent, kMaxRuns + 1), kMaxRuns + 1);
      runs += count;
    }
    return runs;
  }
};

absl::Status Shared(const Buffer& a, const Buffer& b, Index byte) {
  return About(Error(ErrorCode::kOverlap,
                     absl::StrCat(Where(a), " and \"", b.name, "\" share byte ", byte, " of storage \"", a.storage->id,
                                  "\"; declare one as alias_of the other if they are the same weight")),
               {.buffer = a.name, .rank = a.rank});
}

struct Run {
  Index begin = 0, end = 0;
  const Buffer* buffer = nullptr;
};

// Calls f(offset) for every combination of loops[from..].
template <typename F>
void ForEachOffset(const std::vector<std::pair<Index, Index>>& loops, size_t from, Index offset, F&& f) {
  if (from == loops.size()) return f(offset);
  for (Index i = 0; i < loops[from].second; ++i) ForEachOffset(loops, from + 1, offset + i * loops[from].first, f);
}

absl::Status CompareRuns(absl::Span<const Member> members) {
  std::vector<Run> runs;
  for (const Member& m : members) {
    for (const Nest& n : m.nests) {
      ForEachOffset(n.loops, 0, n.first, [&](Index first) { runs.push_back({first, first + n.run, m.buffer}); });
    }
  }
  std::sort(runs.begin(), runs.end(), [](const Run& x, const Run& y) { return x.begin < y.begin; });
  // The furthest end so far, and the furthest of any other buffer.
  Run furthest, other;
  for (const Run& r : runs) {
    const Run& before = r.buffer == furthest.buffer ? other : furthest;
    if (before.buffer != nullptr && r.begin < before.end) return Shared(*before.buffer, *r.buffer, r.begin);
    if (r.end <= furthest.end && furthest.buffer != nullptr) {
      if (r.buffer != furthest.buffer && r.end > other.end) other = r;
    } else {
      if (r.buffer != furthest.buffer) other = furthest;
      furthest = r;
    }
  }
  return absl::OkStatus();
}

// Two nests share a byte when a.first + u + sum(x * stride) == b.first + v + sum(y * stride). What has the same stride
// on both sides is one multiple, x - y: then columns of one pitched matrix are decided at once.
absl::Status CompareNests(const Buffer& a, const Nest& in_a, const Buffer& b, const Nest& in_b) {
  std::map<Index, Multiple> steps;
  auto add = [&](Index step, Index first, Index last) {
    Multiple& m = steps[step];
    m = {step, m.first + first, m.last + last};
  };
  add(1, 1 - in_b.run, in_a.run - 1);
  for (auto [stride, extent] : in_a.loops) add(stride, 0, extent - 1);
  for (auto [stride, extent] : in_b.loops) add(stride, 1 - extent, 0);
  std::vector<Multiple> multiples;
  for (const auto& [step, multiple] : steps) multiples.push_back(multiple);
  std::vector<Index> x;
  const Sum meet = FindZeroSum(in_a.first - in_b.first, multiples, &x);
  if (meet == Sum::kNone) return absl::OkStatus();
  if (meet == Sum::kUnknown) return Undecided(absl::StrCat(Where(a), " and \"", b.name, "\""));
  // The smallest x that leaves y >= 0 is in a's part, as differences of one step are all reached.
  Index byte = in_a.first;
  for (size_t i = 0; i < x.size(); ++i) byte += std::max<Index>(x[i], 0) * multiples[i].step;
  return Shared(a, b, byte);
}

absl::Status CompareMembers(const Member& a, const Member& b) {
  for (const Nest& in_a : a.nests) {
    for (const Nest& in_b : b.nests) HR_RETURN_IF_ERROR(CompareNests(*a.buffer, in_a, *b.buffer, in_b));
  }
  return absl::OkStatus();
}

absl::Status CheckStorage(const std::vector<const Buffer*>& buffers) {
  std::vector<Member> members;
  for (const Buffer* b : buffers) {
    const Index begin = b->storage->offset_bytes;
    members.push_back({b, begin, begin + SpanBytes(*b, b->dtype), Nests(*b)});
  }
  std::sort(members.begin(), members.end(), [](const Member& a, const Member& b) {
    return std::tie(a.begin, a.buffer->name) < std::tie(b.begin, b.buffer->name);
  });
  // Groups of buffers whose ranges touch each other.
  for (size_t i = 0; i < members.size();) {
    Index end = 0, runs = 0;
    size_t j = i;
    do {
      end = std::max(end, members[j].end);
      runs += members[j].Runs();
    } while (++j < members.size() && members[j].begin < end);
    if (j - i > 1 && runs <= kMaxRuns) {
      HR_RETURN_IF_ERROR(CompareRuns(absl::MakeConstSpan(members).subspan(i, j - i)));
    } else {
      for (size_t a = i; a < j; ++a) {
        for (size_t b = a + 1; b < j && members[b].begin < members[a].end; ++b) {
          HR_RETURN_IF_ERROR(CompareMembers(members[a], members[b]));
        }
      }
    }
    i = j;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckMemoryOverlap(const std::vector<Buffer>& destination) {
  std::map<std::pair<int64_t, std::string>, std::vector<const Buffer*>> storages;
  for (const Buffer& b : destination) {
    if (b.alias_of) continue;
    HR_RETURN_IF_ERROR(CheckPieces(b));
    HR_RETURN_IF_ERROR(CheckStrides(b));
    if (b.storage && SpanElements(b) > 0) storages[{b.rank, b.storage->id}].push_back(&b);
  }
  for (const auto& [key, buffers] : storages) HR_RETURN_IF_ERROR(CheckStorage(buffers));
  return absl::OkStatus();
}

}  // namespace headrace
