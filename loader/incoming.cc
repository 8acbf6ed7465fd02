#include "loader/incoming.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "loader/pack_ring.h"
#include "planner/status.h"

namespace headrace {
namespace {

const proto::EpochStart::Member& MemberOf(const proto::EpochStart& epoch, const MemberKey& key) {
  return *std::find_if(epoch.members().begin(), epoch.members().end(),
                       [&](const auto& member) { return MemberKey::From(member.id()) == key; });
}

std::vector<ChainMember> ChainOf(const EpochPlan& plan, const proto::EpochStart& epoch, const Stream& stream) {
  std::vector<ChainMember> chain;
  for (int64_t rank : stream.chain) {
    const MemberKey key = plan.ReceiverOf(rank);
    const proto::EpochStart::Member& member = MemberOf(epoch, key);
    chain.push_back({rank, NameOf(key, member.host(), member.pid()), member.layout().transport_address()});
  }
  return chain;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Mapping>> Incoming::Map(const std::string& address, const std::string& key,
                                                             int64_t bytes, const std::string& what,
                                                             absl::Time deadline) {
  std::shared_ptr<const Mapping>& mapping = next_mappings_[{address, key}];
  // What an earlier epoch mapped is the same memory.
  if (const auto known = mappings_.find({address, key}); known != mappings_.end()) {
    mapping = known->second;
  } else {
    HR_ASSIGN_OR_RETURN(mapping, transport_->Map(next_peers_.at(address), key, deadline));
  }
  if (static_cast<int64_t>(mapping->bytes().size()) >= bytes) return mapping;
  return Error(ErrorCode::kTransport,
               absl::StrCat(what, " have ", mapping->bytes().size(), " bytes, the plan needs ", bytes));
}

absl::Status Incoming::MapPublisher(const std::string& name, const std::string& address, const RegionKeys& keys,
                                    absl::Time deadline, Publisher* publisher) {
  HR_ASSIGN_OR_RETURN(next_peers_[address], transport_->Connect(address, deadline));
  for (const std::string& key : keys.slots) {
    HR_ASSIGN_OR_RETURN(publisher->slots.emplace_back(),
                        Map(address, key, publisher->layout->bytes(), absl::StrCat("the slots of ", name), deadline));
  }
  HR_ASSIGN_OR_RETURN(publisher->sums, Map(address, keys.sums, publisher->sums_layout->bytes(),
                                           absl::StrCat("the sums of ", name), deadline));
  return absl::OkStatus();
}

absl::Status Incoming::ConnectToHeld(const std::string& address, const RegionKeys& keys, const MemberKey& self,
                                     int64_t chunk_bytes, absl::Time deadline, Publisher* publisher) {
  const PeerId peer = next_peers_.at(address);
  HR_ASSIGN_OR_RETURN(publisher->ring, PackRingReader::Create(transport_, peer, keys.rings.at(self),
                                                              PackRingOptions::OfChunks(chunk_bytes), deadline));
  publisher->means = {publisher->ring->key(), transport_->CheckRead(peer).ok()};
  for (const auto& [buffer, key] : keys.memory) {
    publisher->means.reads &= !key.empty();
    if (!publisher->means.reads) break;
    HR_ASSIGN_OR_RETURN(publisher->memory[buffer], transport_->OpenRemote(peer, key, deadline));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ConnectedEdge>> Incoming::Connect(const EpochPlan& plan, const proto::EpochStart& epoch,
                                                             const MemberKey& self,
                                                             const std::map<int, std::vector<std::string>>& region_keys,
                                                             int64_t chunk_bytes, absl::Time deadline) {
  next_mappings_.clear();
  for (const auto& [address, peer] : next_peers_) {
    if (!peers_.contains(address)) transport_->Disconnect(peer);  // of a call that failed
  }
  next_peers_.clear();
  std::vector<ConnectedEdge> edges;
  std::map<int, Publisher> publishers;
  for (const Edge& edge : plan.EdgesOf(self)) {
    const int rank = plan.PublisherOf(edge.source_rank);
    const MemberKey key = MemberKey::Publisher(rank);
    const proto::EpochStart::Member& member = MemberOf(epoch, key);
    const std::string& address = member.layout().transport_address();
    ConnectedEdge connected;
    connected.publisher = rank;
    IncomingEdge& incoming = connected.edge;
    incoming.edge = edge;
    incoming.name = NameOf(key, member.host(), member.pid());
    incoming.address = address;
    if (edge.stream >= 0) incoming.chain = ChainOf(plan, epoch, plan.plan().streams[edge.stream]);
    if (transport_->capabilities().map) {
      const auto [it, is_new] = publishers.try_emplace(rank);
      Publisher& publisher = it->second;
      if (is_new) {
        publisher.hold = member.layout().hold();
        publisher.layout = std::make_shared<SlotLayout>(plan.manifest(), edge.source_rank, publisher.hold);
        publisher.sums_layout = std::make_shared<SumsLayout>(plan.plan(), edge.source_rank);
        HR_ASSIGN_OR_RETURN(const RegionKeys keys, RegionKeysOf(region_keys.at(rank), plan, rank, publisher.hold));
        HR_RETURN_IF_ERROR(MapPublisher(incoming.name, address, keys, deadline, &publisher));
        if (publisher.hold) {
          HR_RETURN_IF_ERROR(ConnectToHeld(address, keys, self, chunk_bytes, deadline, &publisher));
        }
      }
      incoming.layout = publisher.layout;
      incoming.sums_layout = publisher.sums_layout;
      incoming.slots = publisher.slots;
      incoming.sums = publisher.sums;
      if (publisher.hold) {
        connected.means = publisher.means;
        incoming.held = std::make_shared<HeldEdge>(
            plan.plan(), SplitForHold(plan.plan(), edge, {publisher.means.reads, /*pack=*/true}), publisher.memory,
            publisher.ring, chunk_bytes);
      }
    }
    edges.push_back(std::move(connected));
  }
  mappings_ = std::exchange(next_mappings_, {});
  for (const auto& [address, peer] : peers_) {
    if (!next_peers_.contains(address)) transport_->Disconnect(peer);
  }
  peers_ = std::exchange(next_peers_, {});
  return edges;
}

void Incoming::Keep(const std::set<std::string>& addresses) {
  next_mappings_.clear();
  std::erase_if(mappings_, [&](const auto& mapping) { return !addresses.contains(mapping.first.first); });
  for (const auto& [address, peer] : peers_) {
    if (!addresses.contains(address)) transport_->Disconnect(peer);
  }
  std::erase_if(peers_, [&](const auto& peer) { return !addresses.contains(peer.first); });
}

}  // namespace headrace
