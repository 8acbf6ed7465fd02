#include "planner/cluster/testing/carry_out.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "planner/testing/element_oracle.h"

namespace headrace {
namespace {

constexpr uint8_t kNotOffered = 0x5C;

using Bytes = std::vector<uint8_t>;
// Unit, index into the manifest's list; the instance or, of a stacked buffer, -1 and the layer.
using BufferKey = std::tuple<int, int, int, int>;
using Memory = std::map<BufferKey, Bytes>;

void SetBits(Bytes* bytes, Index bit, int bits, uint64_t value) {
  if (bits % 8 == 0) {
    for (int i = 0; i < bits / 8; ++i) (*bytes)[bit / 8 + i] = static_cast<uint8_t>(value >> (8 * i));
    return;
  }
  for (int i = 0; i < bits; ++i) {
    const uint8_t mask = static_cast<uint8_t>(1u << ((bit + i) % 8));
    uint8_t& byte = (*bytes)[(bit + i) / 8];
    byte = (value >> i) & 1 ? byte | mask : byte & static_cast<uint8_t>(~mask);
  }
}

class World {
 public:
  World(const Cluster& cluster, bool source) : cluster_(cluster), source_(source) {}

  BufferKey KeyOf(int unit, int buffer, int instance) const {
    const ClusterUnit& u = cluster_.units[unit];
    const UnitInstance& i = u.instances[instance];
    if (!(source_ ? u.source_stacked : u.destination_stacked)) return {unit, buffer, instance, 0};
    return {unit, buffer, -1, i.layer};
  }

  // Each rank's memory: everything that it has, or must have at the end; without `filled` as it is before.
  std::vector<Memory> Make(bool filled) const {
    std::vector<Memory> out(source_ ? cluster_.source.ranks : cluster_.destination.ranks);
    for (size_t u = 0; u < cluster_.units.size(); ++u) {
      const ClusterUnit& unit = cluster_.units[u];
      for (size_t i = 0; i < unit.instances.size(); ++i) {
        const RankGroup& group = source_ ? unit.source_groups[unit.instances[i].source_group]
                                         : unit.destination_groups[unit.instances[i].destination_group];
        for (size_t s = 0; s < group.shards.size(); ++s) {
          for (int32_t rank : group.shards[s]) {
            AddInstance(static_cast<int>(u), static_cast<int>(i), static_cast<int>(s), filled, &out[rank]);
          }
        }
      }
    }
    return out;
  }

 private:
  static int TensorIndex(const Manifest& m, const std::string& name) {
    int t = 0;
    while (m.tensors[t].name != name) ++t;
    return t;
  }

  void AddInstance(int u, int i, int shard, bool filled, Memory* memory) const {
    const ClusterUnit& unit = cluster_.units[u];
    const std::vector<Buffer>& buffers = source_ ? unit.manifest.source : unit.manifest.destination;
    const bool stacked = source_ ? unit.source_stacked : unit.destination_stacked;
    for (size_t n = 0; n < buffers.size(); ++n) {
      const Buffer& b = buffers[n];
      if (b.rank != shard || b.alias_of) continue;
      Dtype dtype = b.dtype;  // a snapshot has the tensor's
      for (const Piece& p : b.pieces) {
        if (p.kind == PieceKind::kTensor) dtype = unit.manifest.tensors[TensorIndex(unit.manifest, p.tensor)].dtype;
      }
      Index elements = SpanElements(b);
      Index place = 0;
      if (stacked) {
        const UnitInstance& instance = unit.instances[i];
        const RankGroup& group =
            source_ ? unit.source_groups[instance.source_group] : unit.destination_groups[instance.destination_group];
        place = source_ ? instance.source_expert : instance.destination_expert;
        if (!group.experts_before.empty()) place += group.experts_before[shard];
      }
      const Index first = place * elements;
      Bytes& bytes = (*memory)[KeyOf(u, static_cast<int>(n), i)];
      const size_t size = static_cast<size_t>((first + elements) * DtypeBits(dtype) + 7) / 8;
      if (bytes.size() < size) bytes.resize(size, source_ ? kNotOffered : kPoison);
      if (!filled) continue;
      for (const Piece& p : b.pieces) FillPiece(u, i, b, p, dtype, first, &bytes);
    }
  }

  void FillPiece(int u, int i, const Buffer& b, const Piece& p, Dtype dtype, Index first, Bytes* bytes) const {
    if (p.kind == PieceKind::kKeep) return;
    const Manifest& m = cluster_.units[u].manifest;
    Index count = 1;
    for (Index e : p.shape) count *= e;
    const int t = p.kind == PieceKind::kTensor ? TensorIndex(m, p.tensor) : -1;
    const Extents& counted = t < 0 ? p.shape : p.view ? *p.view : m.tensors[t].shape;
    for (Index n = 0; n < count; ++n) {
      Index rest = n, place = first, element = 0, weight = 1;
      for (size_t a = p.shape.size(); a-- > 0;) {
        const Index x = rest % p.shape[a];
        rest /= p.shape[a];
        const size_t along = p.axes.empty() ? a : static_cast<size_t>(p.axes[a]);
        place += (p.buffer_offset[along] + x) * b.strides[along];
        if (t >= 0) element += (p.tensor_offset[a] + x) * weight;
        weight *= counted[a];
      }
      const int bits = DtypeBits(dtype);
      SetBits(bytes, place * bits, bits, t < 0 ? 0 : PatternBits(u * 10007 + i * 31 + t, element, bits));
    }
  }

  const Cluster& cluster_;
  const bool source_;
};

// visit(source offset, destination offset) of each run.
template <typename F>
void ForEachRun(absl::Span<const CopyLoop> loops, Index source, Index destination, F&& visit) {
  if (loops.empty()) return visit(source, destination);
  for (Index i = 0; i < loops[0].extent; ++i) {
    ForEachRun(loops.subspan(1), source + i * loops[0].source_stride, destination + i * loops[0].destination_stride,
               visit);
  }
}

class Job {
 public:
  Job(const Cluster& cluster, const std::vector<RankPlan>& senders, const std::vector<RankPlan>& receivers)
      : cluster_(cluster), source_(cluster, true), destination_(cluster, false) {
    for (const RankPlan& p : senders) plans_.push_back(&p);
    for (const RankPlan& p : receivers) plans_.push_back(&p);
    next_.assign(plans_.size(), 0);
  }

  std::string Run() {
    std::vector<Memory> sources = source_.Make(true);
    std::vector<Memory> destinations = destination_.Make(false);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t node = 0; node < plans_.size(); ++node) {
        const bool sends = static_cast<int32_t>(node) < cluster_.source.ranks;
        while (next_[node] < plans_[node]->passages.size()) {
          const Passage& p = plans_[node]->passages[next_[node]];
          Bytes message;
          if (sends) {
            message = Pack(*plans_[node], p, &sources[node]);
          } else {
            std::deque<Bytes>& queue = queues_[{p.from, static_cast<int>(node)}];
            if (queue.empty()) break;
            message = std::move(queue.front());
            queue.pop_front();
            Unpack(*plans_[node], p, message, &destinations[node - cluster_.source.ranks]);
          }
          if (static_cast<Index>(message.size()) != p.bytes) Fault(absl::StrCat("node ", node, ": another length"));
          if (!fault_.empty()) return fault_;
          for (int32_t to : {p.next_domain, p.next_inside}) {
            if (to >= 0) queues_[{static_cast<int>(node), to}].push_back(message);
          }
          ++next_[node];
          moved = true;
        }
      }
    }
    for (size_t node = 0; node < plans_.size(); ++node) {
      if (next_[node] < plans_[node]->passages.size()) return absl::StrCat("node ", node, " waits for ever");
      for (const RankFill& f : plans_[node]->fills) {
        Bytes& to =
            destinations[node - cluster_.source.ranks][destination_.KeyOf(f.unit, f.fill.destination, f.instance)];
        ForEachRun(f.fill.loops, 0, f.fill.destination_offset, [&](Index, Index at) {
          if (at < 0 || at + f.fill.run_bytes > static_cast<Index>(to.size())) return Fault("a fill leaves its buffer");
          std::fill_n(to.begin() + at, f.fill.run_bytes, 0);
        });
      }
    }
    for (const auto& [edge, queue] : queues_) {
      if (!queue.empty()) return absl::StrCat("node ", edge.second, " leaves what node ", edge.first, " sent it");
    }
    if (!fault_.empty()) return fault_;
    return Compare(destinations, destination_.Make(true));
  }

 private:
  void Fault(std::string what) {
    if (fault_.empty()) fault_ = std::move(what);
  }

  Bytes Pack(const RankPlan& plan, const Passage& p, Memory* memory) {
    Bytes out;
    for (uint32_t n = 0; n < p.copies; ++n) {
      const Copy& part = plan.copies[p.first_copy + n];
      const Bytes& from = (*memory)[source_.KeyOf(p.item.unit, part.source, p.item.instance)];
      ForEachRun(part.loops, part.source_offset, 0, [&](Index at, Index) {
        if (at < 0 || at + part.run_bytes > static_cast<Index>(from.size())) return Fault("a part leaves its buffer");
        out.insert(out.end(), from.begin() + at, from.begin() + at + part.run_bytes);
      });
    }
    return out;
  }

  // Copies of one part all begin where the part does.
  void Unpack(const RankPlan& plan, const Passage& p, const Bytes& message, Memory* memory) {
    Index part_begin = 0, end = 0;
    int part = 0;
    for (uint32_t n = 0; n < p.copies; ++n) {
      const Copy& copy = plan.copies[p.first_copy + n];
      if (copy.part != part) part_begin = end;
      part = copy.part;
      Bytes& to = (*memory)[destination_.KeyOf(p.item.unit, copy.destination, p.item.instance)];
      Index at = part_begin;
      ForEachRun(copy.loops, 0, copy.destination_offset, [&](Index, Index offset) {
        if (offset < 0 || offset + copy.run_bytes > static_cast<Index>(to.size()) ||
            at + copy.run_bytes > static_cast<Index>(message.size())) {
          return Fault("a copy leaves its buffer or its message");
        }
        std::copy_n(message.begin() + at, copy.run_bytes, to.begin() + offset);
        at += copy.run_bytes;
      });
      end = at;
    }
  }

  static std::string Compare(const std::vector<Memory>& have, const std::vector<Memory>& want) {
    for (size_t rank = 0; rank < want.size(); ++rank) {
      if (have[rank].size() != want[rank].size()) return absl::StrCat("receiver ", rank, " writes unknown buffers");
      for (const auto& [key, bytes] : want[rank]) {
        const Bytes& other = have[rank].at(key);
        if (other == bytes) continue;
        const size_t at = std::mismatch(bytes.begin(), bytes.end(), other.begin()).first - bytes.begin();
        return absl::StrCat("receiver ", rank, ", unit ", std::get<0>(key), ", buffer ", std::get<1>(key),
                            ", instance ", std::get<2>(key), ", byte ", at, ": ", other[at], " instead of ", bytes[at]);
      }
    }
    return "";
  }

  const Cluster& cluster_;
  World source_, destination_;
  std::vector<const RankPlan*> plans_;  // by node
  std::vector<size_t> next_;
  std::map<std::pair<int, int>, std::deque<Bytes>> queues_;
  std::string fault_;
};

}  // namespace

std::string CarryOut(const Cluster& cluster, const std::vector<RankPlan>& senders,
                     const std::vector<RankPlan>& receivers) {
  return Job(cluster, senders, receivers).Run();
}

}  // namespace headrace
