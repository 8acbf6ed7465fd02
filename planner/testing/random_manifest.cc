#include "planner/testing/random_manifest.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace headrace {
namespace {

constexpr std::array kDtypes = {Dtype::kBF16, Dtype::kF32,  Dtype::kF8E4M3, Dtype::kU8,
                                Dtype::kF64,  Dtype::kI16,  Dtype::kF4,     Dtype::kF6E2M3,
                                Dtype::kF16,  Dtype::kBool, Dtype::kF6E3M2, Dtype::kI64};

struct Region {
  Extents start, extent;
};

Index Product(const Extents& e) { return std::accumulate(e.begin(), e.end(), Index{1}, std::multiplies<>()); }

bool Chance(Random& random, int percent) { return Uniform(random, 1, 100) <= percent; }

// Axes counted by view or shape, in units along the last one, so that a cut never falls inside a byte.
Extents InUnits(Extents counted, Index unit) {
  if (!counted.empty()) counted.back() /= unit;
  return counted;
}

Region WholeRegion(const Extents& counted) { return {Extents(counted.size(), 0), counted}; }

// Cuts a region into up to `parts` boxes.
std::vector<Region> Cut(Random& random, const Region& whole, Index parts) {
  std::vector<Region> regions = {whole};
  while (static_cast<Index>(regions.size()) < parts && !whole.extent.empty()) {
    const size_t victim = static_cast<size_t>(Uniform(random, 0, static_cast<Index>(regions.size()) - 1));
    const size_t axis = static_cast<size_t>(Uniform(random, 0, static_cast<Index>(whole.extent.size()) - 1));
    if (regions[victim].extent[axis] < 2) {
      if (--parts < 1) break;
      continue;
    }
    Region low = regions[victim], high = regions[victim];
    low.extent[axis] = Uniform(random, 1, low.extent[axis] - 1);
    high.start[axis] += low.extent[axis];
    high.extent[axis] -= low.extent[axis];
    regions[victim] = low;
    regions.push_back(high);
  }
  return regions;
}

Region RandomRegion(Random& random, const Extents& counted) {
  Region r = WholeRegion(counted);
  for (size_t i = 0; i < counted.size(); ++i) {
    r.start[i] = counted[i] == 0 ? 0 : Uniform(random, 0, counted[i] - 1);
    r.extent[i] = counted[i] == 0 ? 0 : Uniform(random, 1, counted[i] - r.start[i]);
  }
  return r;
}

// A row-major reshape of a tensor, whose last extent is a multiple of the unit.
Extents RandomView(Random& random, const Extents& shape, Index unit) {
  Index rest = Product(shape) / unit;
  if (rest == 0) return {0};
  Extents view;
  const Index axes = Uniform(random, 1, 4);
  for (Index i = 1; i < axes; ++i) {
    std::vector<Index> divisors;
    for (Index d = 1; d <= rest; ++d) {
      if (rest % d == 0) divisors.push_back(d);
    }
    view.push_back(divisors[static_cast<size_t>(Uniform(random, 0, static_cast<Index>(divisors.size()) - 1))]);
    rest /= view.back();
  }
  view.push_back(rest);
  std::shuffle(view.begin(), view.end(), random);
  view.back() *= unit;
  return view;
}

class Generator {
 public:
  Generator(Random& random, const RandomManifestOptions& options) : random_(random), options_(options) {}

  Manifest Make() {
    const Index tensors = Uniform(random_, 1, options_.max_tensors);
    for (Index t = 0; t < tensors; ++t) AddTensor(t);
    for (bool source : {true, false}) {
      for (size_t t = 0; t < m_.tensors.size(); ++t) AddPieces(source, t);
      FlushAll(source);
    }
    ShareStorages();
    AddAlias();
    for (const TensorSpec& t : m_.tensors) {
      if (Chance(random_, 10)) m_.ignore.push_back(t.name);
    }
    const bool placed = Chance(random_, 20);
    if (placed || options_.max_hosts > 1) AddTopology();
    return std::move(m_);
  }

 private:
  struct Part {
    size_t tensor;
    Piece piece;     // in elements
    Extents extent;  // along the buffer's axes
  };

  static Index Unit(const TensorSpec& t) { return DtypeUnitElements(t.dtype); }

  void AddTensor(Index t) {
    TensorSpec spec;
    spec.name = absl::StrCat("t", t);
    if (options_.broadcast_percent > 0 && Chance(random_, options_.broadcast_percent)) spec.name += ".q_proj";
    do {
      spec.dtype = kDtypes[static_cast<size_t>(Uniform(random_, 0, static_cast<Index>(kDtypes.size()) - 1))];
    } while (!options_.sub_byte && Unit(spec) > 1);
    do {
      spec.shape.clear();
      const Index axes = Uniform(random_, Unit(spec) > 1 ? 1 : 0, Chance(random_, 10) ? 5 : 3);
      for (Index i = 0; i < axes; ++i) {
        spec.shape.push_back(Chance(random_, 3) ? 0 : Uniform(random_, 1, options_.max_extent));
      }
      if (!spec.shape.empty()) spec.shape.back() *= Unit(spec);
    } while (Product(spec.shape) > options_.max_elements);
    m_.tensors.push_back(std::move(spec));
  }

  // One full cover by boxes, and further boxes on top.
  void AddPieces(bool source, size_t t) {
    const TensorSpec& spec = m_.tensors[t];
    const Index covers = Chance(random_, 30) ? 2 : 1;
    for (Index n = 0; n < covers; ++n) {
      std::optional<Extents> view;
      if (Chance(random_, 35)) view = RandomView(random_, spec.shape, Unit(spec));
      const Extents counted = InUnits(view ? *view : spec.shape, Unit(spec));
      std::vector<Region> regions = Cut(random_, WholeRegion(counted), Uniform(random_, 1, 6));
      if (Chance(random_, 30)) regions.push_back(RandomRegion(random_, counted));
      for (const Region& r : regions) AddPart(source, t, view, r);
    }
  }

  void AddPart(bool source, size_t t, const std::optional<Extents>& view, const Region& region) {
    const TensorSpec& spec = m_.tensors[t];
    Part part{t, {}, {}};
    part.piece.tensor = spec.name;
    part.piece.view = view;
    part.piece.tensor_offset = region.start;
    part.piece.shape = region.extent;
    const size_t axes = region.extent.size();
    if (axes > 0) {
      part.piece.tensor_offset.back() *= Unit(spec);
      part.piece.shape.back() *= Unit(spec);
    }
    part.extent = part.piece.shape;
    if (axes > 1 && Chance(random_, 30)) {
      part.piece.axes.resize(axes);
      std::iota(part.piece.axes.begin(), part.piece.axes.end(), 0);
      // Sub-byte pieces keep their innermost axis innermost.
      std::shuffle(part.piece.axes.begin(), part.piece.axes.end() - (Unit(spec) > 1 ? 1 : 0), random_);
      for (size_t i = 0; i < axes; ++i) part.extent[part.piece.axes[i]] = part.piece.shape[i];
    }
    const int64_t rank = Uniform(random_, 0, options_.max_ranks - 1);
    for (auto& group : groups_) {
      const Part& first = group.second.front();
      if (group.first == rank && m_.tensors[first.tensor].dtype == spec.dtype && first.extent.size() == axes &&
          Chance(random_, 50) && axes > 0) {
        group.second.push_back(std::move(part));
        return;
      }
    }
    groups_.push_back({rank, {std::move(part)}});
    if (groups_.size() > 8) Flush(source, 0);
  }

  void FlushAll(bool source) {
    while (!groups_.empty()) Flush(source, 0);
  }

  // Stacks the parts of a group along one axis of a new buffer.
  void Flush(bool source, size_t index) {
    auto [rank, parts] = std::move(groups_[index]);
    groups_.erase(groups_.begin() + static_cast<ptrdiff_t>(index));
    const TensorSpec& spec = m_.tensors[parts.front().tensor];
    const Index unit = Unit(spec);
    const size_t axes = parts.front().extent.size();
    Buffer b;
    b.rank = rank;
    b.name = absl::StrCat("b", names_++);
    b.dtype = spec.dtype;
    b.shape.assign(axes, 0);
    const size_t along = axes == 0 ? 0 : static_cast<size_t>(Uniform(random_, 0, static_cast<Index>(axes) - 1));
    std::shuffle(parts.begin(), parts.end(), random_);
    for (Part& p : parts) {
      p.piece.buffer_offset.assign(axes, 0);
      if (axes == 0) break;
      p.piece.buffer_offset[along] = b.shape[along];
      b.shape[along] += p.extent[along];
      for (size_t i = 0; i < axes; ++i) {
        if (i != along) b.shape[i] = std::max(b.shape[i], p.extent[i]);
      }
    }
    const Index slack = axes > 0 && Chance(random_, 25) ? unit * Uniform(random_, 1, 2) : 0;  // at the end of `along`
    for (Part& p : parts) {
      // What the part leaves open across the stack, axis by axis.
      for (size_t i = 0; i < axes; ++i) {
        if (i == along || p.extent[i] == b.shape[i]) continue;
        Piece fill = Fill(source);
        fill.shape = p.extent;
        fill.buffer_offset = p.piece.buffer_offset;
        for (size_t k = 0; k < i; ++k) fill.shape[k] = k == along ? p.extent[k] : b.shape[k];
        fill.buffer_offset[i] = p.extent[i];
        fill.shape[i] = b.shape[i] - p.extent[i];
        if (!source || Chance(random_, 50)) b.pieces.push_back(std::move(fill));
      }
      b.pieces.push_back(std::move(p.piece));
    }
    if (slack > 0) {
      Piece fill = Fill(source);
      fill.shape = b.shape;
      fill.shape[along] = slack;
      fill.buffer_offset.assign(axes, 0);
      fill.buffer_offset[along] = b.shape[along];
      b.shape[along] += slack;
      b.pieces.push_back(std::move(fill));
    }
    SetStrides(&b, unit);
    if (source && unit == 1 && DtypeConvertible(Dtype::kF32, b.dtype) && Chance(random_, 40)) {
      b.dtype = Dtype::kF32;
      b.convert_rne = true;
    }
    (source ? m_.source : m_.destination).push_back(std::move(b));
  }

  Piece Fill(bool source) {
    Piece fill;
    fill.kind = source || Chance(random_, 40) ? PieceKind::kKeep : PieceKind::kZero;
    return fill;
  }

  // Row-major, or the axes in another order, with pitches.
  void SetStrides(Buffer* b, Index unit) {
    const size_t axes = b->shape.size();
    b->strides = RowMajorStrides(b->shape);
    if (axes == 0 || Chance(random_, 50)) return;
    std::vector<size_t> order(axes);
    std::iota(order.begin(), order.end(), 0);
    if (Chance(random_, 60)) std::shuffle(order.begin(), order.end() - (unit > 1 ? 1 : 0), random_);
    Index stride = unit == 1 && Chance(random_, 15) ? 2 : 1;
    for (size_t n = axes; n-- > 0;) {
      b->strides[order[n]] = stride;
      stride *= std::max<Index>(b->shape[order[n]], 1);
      if (Chance(random_, 25)) stride += unit * Uniform(random_, 1, 3);
      if (stride % unit != 0) stride += unit - stride % unit;
    }
  }

  // Puts buffers of one rank into one storage, one behind the other.
  void ShareStorages() {
    std::array<Index, 64> end{};
    for (Buffer& b : m_.destination) {
      if (!Chance(random_, 40)) continue;
      Index& next = end[static_cast<size_t>(b.rank)];
      next += Uniform(random_, 0, 3);
      b.storage = Storage{"s", next};
      next += SpanBytes(b, b.dtype);
    }
  }

  void AddAlias() {
    if (!Chance(random_, 20)) return;
    Buffer alias = m_.destination.front();
    alias.alias_of = alias.name;
    alias.name = "alias";
    alias.pieces.clear();
    m_.destination.push_back(std::move(alias));
  }

  void AddTopology() {
    const Index hosts = Uniform(random_, 1, options_.max_hosts);
    auto host = [&] { return absl::StrCat("h", Uniform(random_, 1, hosts)); };
    for (int64_t rank = 0; rank < options_.max_ranks; ++rank) {
      m_.topology.source.push_back({rank, host(), Chance(random_, 50) ? "d" : "", ""});
      m_.topology.destination.push_back({rank, host(), Chance(random_, 50) ? "d" : "", Chance(random_, 50) ? "e" : ""});
    }
    // A side may be left out: it is on the host "".
    if (hosts > 1 && Chance(random_, 10)) m_.topology.source.clear();
  }

  Random& random_;
  const RandomManifestOptions& options_;
  Manifest m_;
  std::vector<std::pair<int64_t, std::vector<Part>>> groups_;
  int names_ = 0;
};

}  // namespace

Index Uniform(Random& random, Index low, Index high) {
  return low + static_cast<Index>(random() % static_cast<uint64_t>(high - low + 1));
}

Manifest RandomManifest(Random& random, const RandomManifestOptions& options) {
  return Generator(random, options).Make();
}

}  // namespace headrace
