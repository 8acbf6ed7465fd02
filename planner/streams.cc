#include "planner/streams.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "planner/copy_nest.h"
#include "planner/stripe.h"

namespace headrace {
namespace {

Part PartOf(const Copy& c) {
  Part part{c.tensor, c.source, c.source_offset, c.position, c.run_bytes, {}};
  for (const CopyLoop& l : c.loops) part.loops.push_back({l.extent, l.source_stride, l.position_stride});
  return part;
}

}  // namespace

std::vector<int64_t> StreamBuilder::InOrder(std::vector<int64_t> ranks) const {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  if (hosts_.AllOne()) return ranks;
  std::stable_sort(ranks.begin(), ranks.end(), [&](int64_t a, int64_t b) {
    auto key = [&](int64_t rank) { return std::pair(hosts_.OfDestination(rank), hosts_.DomainOfDestination(rank)); };
    return key(a) < key(b);
  });
  return ranks;
}

std::vector<int64_t> StreamBuilder::BroadcastChain(int64_t source_rank, int tensor, absl::string_view engine) {
  if (ordered_tensor_ != tensor || ordered_engine_ != engine) {
    std::vector<int64_t> ranks;
    for (const PlacedBox& b : tensors_[tensor].destination) {
      const int64_t rank = manifest_.destination[b.buffer].rank;
      if (hosts_.EngineOfDestination(rank) == engine) ranks.push_back(rank);
    }
    ordered_ = InOrder(std::move(ranks));
    ordered_tensor_ = tensor;
    ordered_engine_ = engine;
  }
  std::vector<int64_t> chain = ordered_;
  const absl::string_view home = hosts_.OfSource(source_rank);
  std::stable_partition(chain.begin(), chain.end(), [&](int64_t rank) { return hosts_.OfDestination(rank) == home; });
  return chain;
}

void StreamBuilder::Add(TransferKind transfer, int tensor, const Box& box, int source,
                        absl::InlinedVector<int, 2> destinations) {
  const TensorCells& cut = tensors_[tensor];
  Key key{manifest_.source[cut.source[source].buffer].rank, transfer, {}};
  if (transfer == TransferKind::kBroadcast) {
    const int64_t any = manifest_.destination[cut.destination[destinations[0]].buffer].rank;
    key.chain = BroadcastChain(key.source_rank, tensor, hosts_.EngineOfDestination(any));
  } else {
    for (int d : destinations) key.chain.push_back(manifest_.destination[cut.destination[d].buffer].rank);
    key.chain = InOrder(std::move(key.chain));
  }
  loads_[std::move(key)].push_back({tensor, box, source, std::move(destinations)});
}

Index StreamBuilder::BytesOf(const Load& load) const {
  return DtypeBytes(Volume(load.box), manifest_.tensors[load.tensor].dtype);
}

void StreamBuilder::Emit(int64_t source_rank, std::vector<int64_t> chain, std::vector<Load> loads,
                         StreamCopies* out) const {
  Stream stream{source_rank, std::move(chain), {}};
  std::vector<Copy> copies;
  for (const Load& load : loads) {
    const size_t first = copies.size(), sides = load.destinations.size();
    LowerBox(manifest_.tensors[load.tensor], load.tensor, tensors_[load.tensor], load.box, load.source,
             load.destinations, &copies);
    for (size_t i = first; i < copies.size(); ++i) {
      if ((i - first) % sides == 0) stream.parts.push_back(PartOf(copies[i]));
      copies[i].part = static_cast<int>(stream.parts.size()) - 1;
    }
  }
  std::sort(copies.begin(), copies.end(), [&](const Copy& a, const Copy& b) {
    auto key = [&](const Copy& c) {
      return std::make_tuple(manifest_.destination[c.destination].rank, c.part, c.destination, c.destination_offset);
    };
    return key(a) < key(b);
  });
  out->streams.push_back(std::move(stream));
  out->copies.push_back(std::move(copies));
}

std::vector<std::vector<StreamBuilder::Load>> StreamBuilder::Split(std::vector<Load> loads,
                                                                   absl::Span<const Stripe> stripes) const {
  std::vector<std::vector<Load>> out(1);
  Index room = stripes[0].bytes;
  auto next_stripe = [&] {
    room += stripes[out.size()].bytes;
    out.emplace_back();
  };
  for (Load& load : loads) {
    const TensorSpec& tensor = manifest_.tensors[load.tensor];
    while (out.size() < stripes.size() && BytesOf(load) > room) {
      const Slicing slicing = SlicingOf(tensor, load.box);
      const Index low = room / slicing.bytes * slicing.bytes, high = BytesOf(load) - low;
      if (low >= kMinStripeBytes && high >= kMinStripeBytes) {
        const Stripe cut[] = {{0, low}, {1, high}};
        std::vector<Box> boxes;
        CutIntoStripes(tensor, load.box, cut, [&](const Stripe&, Box box) { boxes.push_back(std::move(box)); });
        out.back().push_back({load.tensor, std::move(boxes[0]), load.source, load.destinations});
        load.box = std::move(boxes[1]);
        room -= low;
      } else if (room >= BytesOf(load) - room) {
        break;  // too small to be cut, and more of it on this side
      }
      next_stripe();
    }
    room -= BytesOf(load);
    out.back().push_back(std::move(load));
  }
  return out;
}

StreamCopies StreamBuilder::Build(const std::map<int64_t, Index>& entering) && {
  // Who is to take how much of what enters each host. First the relayed bytes of each key, then the direct ones.
  std::vector<Demand> demands;
  for (const auto& [key, loads] : loads_) {
    if (key.transfer != TransferKind::kReshard) continue;
    Demand demand{0, 1, key.chain};
    for (const Load& load : loads) demand.bytes = SaturatedSum(demand.bytes, BytesOf(load));
    demands.push_back(std::move(demand));
  }
  for (const auto& [rank, bytes] : entering) demands.push_back({bytes, 1, {rank}});
  const std::vector<Stripes> heads = ShareOut(demands);

  StreamCopies out;
  size_t next = 0;
  for (auto& [key, loads] : loads_) {
    if (key.transfer == TransferKind::kBroadcast) {
      Emit(key.source_rank, key.chain, std::move(loads), &out);
      continue;
    }
    const Stripes& stripes = heads[next++];
    std::vector<std::vector<Load>> split = Split(std::move(loads), stripes);
    for (size_t s = 0; s < split.size(); ++s) {
      if (split[s].empty()) continue;
      std::vector<int64_t> chain = key.chain;
      std::rotate(chain.begin(), chain.begin() + stripes[s].candidate, chain.end());
      Emit(key.source_rank, std::move(chain), std::move(split[s]), &out);
    }
  }
  return out;
}

}  // namespace headrace
