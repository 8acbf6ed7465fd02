#include "planner/testing/element_oracle.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace headrace {
namespace {

constexpr Index kGuardBytes = 64;
constexpr uint8_t kNotOffered = 0x5C;

void SetBits(std::vector<uint8_t>& bytes, Index bit, int bits, uint64_t value) {
  if (bits % 8 == 0) {
    for (int i = 0; i < bits / 8; ++i) bytes[bit / 8 + i] = static_cast<uint8_t>(value >> (8 * i));
    return;
  }
  for (int i = 0; i < bits; ++i) {
    const Index at = bit + i;
    const uint8_t mask = static_cast<uint8_t>(1u << (at % 8));
    uint8_t& byte = bytes[at / 8];
    byte = (value >> i) & 1 ? byte | mask : byte & static_cast<uint8_t>(~mask);
  }
}

uint64_t GetBits(const std::vector<uint8_t>& bytes, Index bit, int bits) {
  uint64_t value = 0;
  for (int i = 0; i < bits; ++i) value |= static_cast<uint64_t>((bytes[(bit + i) / 8] >> ((bit + i) % 8)) & 1) << i;
  return value;
}

int TensorIndex(const Manifest& m, const std::string& name) {
  for (size_t t = 0; t < m.tensors.size(); ++t) {
    if (m.tensors[t].name == name) return static_cast<int>(t);
  }
  return -1;
}

Index Span(const Buffer& b) {
  Index last = 0;
  for (size_t i = 0; i < b.shape.size(); ++i) {
    if (b.shape[i] == 0) return 0;
    last += (b.shape[i] - 1) * b.strides[i];
  }
  return last + 1;
}

// Calls visit(index into the buffer's memory, element of the tensor) for each element of a piece; for fills the
// element is 0.
template <typename F>
void ForEachElement(const Manifest& m, const Buffer& b, const Piece& p, F&& visit) {
  const size_t axes = p.shape.size();
  Index count = 1;
  for (Index e : p.shape) count *= e;
  for (Index n = 0; n < count; ++n) {
    std::vector<Index> x(axes);
    Index rest = n;
    for (size_t i = axes; i-- > 0;) {
      x[i] = rest % p.shape[i];
      rest /= p.shape[i];
    }
    Index place = 0;
    for (size_t i = 0; i < axes; ++i) {
      const size_t along = p.axes.empty() ? i : static_cast<size_t>(p.axes[i]);
      place += (p.buffer_offset[along] + x[i]) * b.strides[along];
    }
    Index element = 0;
    if (p.kind == PieceKind::kTensor) {
      const Extents& counted = p.view ? *p.view : m.tensors[TensorIndex(m, p.tensor)].shape;
      for (size_t i = 0; i < axes; ++i) element = element * counted[i] + p.tensor_offset[i] + x[i];
    }
    visit(place, element);
  }
}

// A source buffer's snapshot as far as it holds one tensor (two names may stand for one memory).
struct SourceMemory {
  std::vector<uint8_t> bytes;
  std::vector<bool> offered;  // per byte
  bool contradicts = false;
};

SourceMemory FillSource(const Manifest& m, const Buffer& b, int tensor) {
  const int bits = DtypeBits(m.tensors[tensor].dtype);
  const Index span = Span(b);
  SourceMemory out;
  out.bytes.assign((span * bits + 7) / 8, kNotOffered);
  out.offered.assign(out.bytes.size(), false);
  std::vector<Index> holds(span, -1);
  for (const Piece& p : b.pieces) {
    if (p.kind != PieceKind::kTensor || p.tensor != m.tensors[tensor].name) continue;
    ForEachElement(m, b, p, [&](Index place, Index element) {
      out.contradicts |= holds[place] >= 0 && holds[place] != element;
      holds[place] = element;
      SetBits(out.bytes, place * bits, bits, PatternBits(tensor, element, bits));
      for (Index bit = place * bits; bit < (place + 1) * bits; ++bit) out.offered[bit / 8] = true;
    });
  }
  return out;
}

uint8_t TensorByte(const Manifest& m, int tensor, Index position) {
  const int bits = DtypeBits(m.tensors[tensor].dtype);
  if (bits % 8 == 0) {
    const Index width = bits / 8;
    return static_cast<uint8_t>(PatternBits(tensor, position / width, bits) >> (position % width * 8));
  }
  uint8_t byte = 0;
  for (int i = 0; i < 8; ++i) {
    const Index bit = position * 8 + i;
    byte |= static_cast<uint8_t>(((PatternBits(tensor, bit / bits, bits) >> (bit % bits)) & 1) << i);
  }
  return byte;
}

// Calls visit(source, destination, position) for each run of a copy, outermost loop first.
template <typename F>
void ForEachRun(absl::Span<const CopyLoop> loops, Index source, Index destination, Index position, F&& visit) {
  if (loops.empty()) return visit(source, destination, position);
  for (Index i = 0; i < loops[0].extent; ++i) {
    ForEachRun(loops.subspan(1), source + i * loops[0].source_stride, destination + i * loops[0].destination_stride,
               position + i * loops[0].position_stride, visit);
  }
}

// What is wrong with the edges; sets the edge of each copy.
std::string EdgeFault(const Manifest& m, const Plan& plan, std::vector<int>* edge_of) {
  edge_of->assign(plan.copies.size(), -1);
  std::map<std::tuple<int64_t, int64_t, int>, int> pairs;
  for (size_t n = 0; n < plan.edges.size(); ++n) {
    const Edge& e = plan.edges[n];
    if (++pairs[{e.source_rank, e.destination_rank, e.stream}] > 1) return "two edges of one pair of ranks and stream";
    if (e.stream < -1 || e.stream >= static_cast<int>(plan.streams.size())) return "an edge of no stream";
    if (e.count == 0 && e.stream < 0) return "an empty direct edge";
    for (size_t i = 0; i < e.count; ++i) {
      if (e.first + i >= plan.copies.size()) return "an edge past the copies";
      const Copy& c = plan.copies[e.first + i];
      if (m.source[c.source].rank != e.source_rank || m.destination[c.destination].rank != e.destination_rank) {
        return "a copy in an edge of other ranks";
      }
      int& edge = (*edge_of)[e.first + i];
      if (edge >= 0) return "a copy in two edges";
      edge = static_cast<int>(n);
      if ((c.part >= 0) != (e.stream >= 0)) return "a copy with a part, but not of a stream, or the reverse";
    }
  }
  for (int edge : *edge_of) {
    if (edge < 0) return "a copy in no edge";
  }
  for (size_t s = 0; s < plan.streams.size(); ++s) {
    for (int64_t rank : plan.streams[s].chain) {
      if (pairs.count({plan.streams[s].source_rank, rank, static_cast<int>(s)}) == 0) {
        return "a rank of a chain without an edge";
      }
    }
  }
  return "";
}

}  // namespace

uint64_t PatternBits(int tensor, Index element, int bits) {
  uint64_t z = (static_cast<uint64_t>(tensor) << 40) + static_cast<uint64_t>(element) + 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return (z ^ (z >> 31)) >> (64 - bits);
}

DestinationMemory::DestinationMemory(const Manifest& manifest) {
  std::map<std::pair<int64_t, std::string>, size_t> storages;
  std::vector<Index> sizes;
  for (const Buffer& b : manifest.destination) {
    Place place;
    place.bits = DtypeBits(b.dtype);
    place.size = (Span(b) * place.bits + 7) / 8;
    place.begin = kGuardBytes + (b.storage ? b.storage->offset_bytes : 0);
    place.region = sizes.size();
    if (b.storage) place.region = storages.try_emplace({b.rank, b.storage->id}, place.region).first->second;
    if (place.region == sizes.size()) sizes.push_back(0);
    sizes[place.region] = std::max(sizes[place.region], place.begin + place.size + kGuardBytes);
    places_.push_back(place);
  }
  for (Index size : sizes) {
    regions_.push_back({std::vector<uint8_t>(size, kPoison), std::vector<uint8_t>(size, 0)});
  }
}

uint64_t DestinationMemory::Element(int buffer, Index index) const {
  const Place& p = places_[buffer];
  return GetBits(regions_[p.region].bytes, p.begin * 8 + index * p.bits, p.bits);
}

void DestinationMemory::SetElement(int buffer, Index index, uint64_t value) {
  const Place& p = places_[buffer];
  Region& r = regions_[p.region];
  const Index bit = p.begin * 8 + index * p.bits;
  SetBits(r.bytes, bit, p.bits, value);
  for (Index byte = bit / 8; byte * 8 < bit + p.bits; ++byte) r.writes[byte] = 1;
}

bool DestinationMemory::WriteByte(int buffer, Index offset, uint8_t value) {
  const Place& p = places_[buffer];
  if (offset < 0 || offset >= p.size) return false;
  Region& r = regions_[p.region];
  r.bytes[p.begin + offset] = value;
  if (r.writes[p.begin + offset] < 255) ++r.writes[p.begin + offset];
  return true;
}

std::string DestinationMemory::Difference(const DestinationMemory& other) const {
  for (size_t b = 0; b < places_.size(); ++b) {
    const Region &x = regions_[places_[b].region], &y = other.regions_[places_[b].region];
    for (size_t i = 0; i < x.bytes.size(); ++i) {
      if (x.bytes[i] == y.bytes[i] && x.writes[i] == y.writes[i]) continue;
      return absl::StrCat("destination buffer ", b, ", byte ", static_cast<Index>(i) - places_[b].begin, ": ",
                          static_cast<int>(x.bytes[i]), " written ", static_cast<int>(x.writes[i]), " times, other ",
                          static_cast<int>(y.bytes[i]), " written ", static_cast<int>(y.writes[i]), " times");
    }
  }
  return "";
}

DestinationMemory ExpectedMemory(const Manifest& manifest) {
  DestinationMemory memory(manifest);
  for (size_t b = 0; b < manifest.destination.size(); ++b) {
    const Buffer& buffer = manifest.destination[b];
    const int bits = DtypeBits(buffer.dtype);
    for (const Piece& p : buffer.pieces) {
      if (p.kind == PieceKind::kKeep) continue;
      const int tensor = p.kind == PieceKind::kTensor ? TensorIndex(manifest, p.tensor) : -1;
      ForEachElement(manifest, buffer, p, [&](Index place, Index element) {
        memory.SetElement(static_cast<int>(b), place, tensor < 0 ? 0 : PatternBits(tensor, element, bits));
      });
    }
  }
  return memory;
}

namespace {

class Interpreter {
 public:
  Interpreter(const Manifest& m, const Plan& plan) : m_(m), plan_(plan), out_{DestinationMemory(m), ""} {}

  Interpretation Run() && {
    std::vector<int> edge_of;
    out_.fault = EdgeFault(m_, plan_, &edge_of);
    for (size_t s = 0; s < plan_.streams.size(); ++s) Send(s);
    for (size_t n = 0; n < plan_.copies.size(); ++n) {
      const int stream = edge_of[n] < 0 ? -1 : plan_.edges[edge_of[n]].stream;
      stream < 0 ? CopyDirect(n) : Unpack(n, stream);
    }
    for (const ZeroFill& z : plan_.zero_fills) {
      ForEachRun(z.loops, 0, z.destination_offset, 0, [&](Index, Index to, Index) {
        for (Index i = 0; i < z.run_bytes; ++i) {
          if (!out_.memory.WriteByte(z.destination, to + i, 0)) Fault("a zero fill outside of its destination", 0);
        }
      });
    }
    return std::move(out_);
  }

 private:
  struct Packed {
    std::vector<uint8_t> bytes;
    std::vector<size_t> begin;  // of each part
  };

  void Fault(absl::string_view what, size_t item) {
    if (out_.fault.empty()) out_.fault = absl::StrCat("copy or stream ", item, ": ", what);
  }

  uint8_t Read(int source, int tensor, Index at, size_t item) {
    auto [it, fresh] = sources_.try_emplace({source, tensor});
    if (fresh) it->second = FillSource(m_, m_.source[source], tensor);
    if (at < 0 || at >= static_cast<Index>(it->second.bytes.size())) {
      Fault("reads outside of its source", item);
      return kNotOffered;
    }
    if (!it->second.offered[at]) Fault("reads what the source does not offer", item);
    return it->second.bytes[at];
  }

  void Write(const Copy& c, Index to, Index position, uint8_t byte, size_t item) {
    Index tensor_bytes = DtypeBits(m_.tensors[c.tensor].dtype);
    for (Index e : m_.tensors[c.tensor].shape) tensor_bytes *= e;
    tensor_bytes /= 8;
    if (position < 0 || position >= tensor_bytes || TensorByte(m_, c.tensor, position) != byte) {
      Fault("states another position than that of its bytes", item);
    }
    if (!out_.memory.WriteByte(c.destination, to, byte)) Fault("writes outside of its destination", item);
  }

  // The source rank packs the parts; the bytes walk down the chain, where each rank keeps them.
  void Send(size_t s) {
    const Stream& stream = plan_.streams[s];
    Packed packed;
    for (const Part& p : stream.parts) {
      packed.begin.push_back(packed.bytes.size());
      if (m_.source[p.source].rank != stream.source_rank) Fault("a part of another source rank", s);
      std::vector<CopyLoop> loops;
      for (const PartLoop& l : p.loops) loops.push_back({l.extent, l.source_stride, 0, l.position_stride});
      ForEachRun(loops, p.source_offset, 0, 0, [&](Index from, Index, Index) {
        for (Index i = 0; i < p.run_bytes; ++i) packed.bytes.push_back(Read(p.source, p.tensor, from + i, s));
      });
    }
    packed.begin.push_back(packed.bytes.size());
    for (int64_t rank : stream.chain) {
      if (!arrived_.try_emplace({s, rank}, packed).second) Fault("passes twice through one rank", s);
    }
  }

  void CopyDirect(size_t n) {
    const Copy& c = plan_.copies[n];
    ForEachRun(c.loops, c.source_offset, c.destination_offset, c.position, [&](Index from, Index to, Index position) {
      for (Index i = 0; i < c.run_bytes; ++i) {
        Write(c, to + i, position + i, Read(c.source, c.tensor, from + i, n), n);
      }
    });
  }

  // Takes the runs of its part in their order; where the bytes lie in the source plays no role.
  void Unpack(size_t n, int stream) {
    const Copy& c = plan_.copies[n];
    const auto it = arrived_.find({static_cast<size_t>(stream), m_.destination[c.destination].rank});
    if (it == arrived_.end()) return Fault("of a rank that the stream does not reach", n);
    const Packed& packed = it->second;
    if (c.part < 0 || c.part + 1 >= static_cast<int>(packed.begin.size())) return Fault("of no part", n);
    size_t at = packed.begin[c.part];
    ForEachRun(c.loops, 0, c.destination_offset, c.position, [&](Index, Index to, Index position) {
      for (Index i = 0; i < c.run_bytes; ++i, ++at) {
        if (at >= packed.begin[c.part + 1]) return Fault("takes more than its part", n);
        Write(c, to + i, position + i, packed.bytes[at], n);
      }
    });
    if (at != packed.begin[c.part + 1]) Fault("takes less than its part", n);
  }

  const Manifest& m_;
  const Plan& plan_;
  Interpretation out_;
  std::map<std::pair<int, int>, SourceMemory> sources_;
  std::map<std::pair<size_t, int64_t>, Packed> arrived_;
};

}  // namespace

Interpretation Interpret(const Manifest& manifest, const Plan& plan) { return Interpreter(manifest, plan).Run(); }

std::string CheckPlan(const Manifest& manifest, const Plan& plan) {
  const Interpretation got = Interpret(manifest, plan);
  return got.fault.empty() ? got.memory.Difference(ExpectedMemory(manifest)) : got.fault;
}

bool SourcesContradict(const Manifest& manifest) {
  for (const Buffer& b : manifest.source) {
    for (size_t t = 0; t < manifest.tensors.size(); ++t) {
      bool holds = false;
      for (const Piece& p : b.pieces) holds |= p.kind == PieceKind::kTensor && p.tensor == manifest.tensors[t].name;
      if (holds && FillSource(manifest, b, static_cast<int>(t)).contradicts) return true;
    }
  }
  return false;
}

double TotalElements(const Manifest& manifest) {
  double total = 0;
  for (const TensorSpec& t : manifest.tensors) {
    double elements = 1;
    for (Index e : t.shape) elements *= static_cast<double>(e);
    total += elements;
  }
  for (const auto* side : {&manifest.source, &manifest.destination}) {
    for (const Buffer& b : *side) {
      double span = 1;
      for (size_t i = 0; i < b.shape.size(); ++i) {
        span += static_cast<double>(std::max<Index>(b.shape[i], 1)) * static_cast<double>(b.strides[i]);
      }
      total += span + (b.storage ? static_cast<double>(b.storage->offset_bytes) : 0);
      for (const Piece& p : b.pieces) {
        double elements = 1;
        for (Index e : p.shape) elements *= static_cast<double>(e);
        total += elements;
      }
    }
  }
  return total;
}

}  // namespace headrace
