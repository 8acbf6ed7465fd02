#include "bench/one_copy_floor.h"

#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/strided_copy.h"
#include "loader/lowering.h"
#include "planner/status.h"

namespace headrace::bench {
namespace {

class SharedMapping final : public Mapping {
 public:
  explicit SharedMapping(std::shared_ptr<const Mapping> mapping) : mapping_(std::move(mapping)) {}
  absl::Span<const std::byte> bytes() const override { return mapping_->bytes(); }

 private:
  const std::shared_ptr<const Mapping> mapping_;
};

class KeepingTransport final : public Transport {
 public:
  KeepingTransport(std::unique_ptr<Transport> transport, MappedRegions* regions)
      : transport_(std::move(transport)), regions_(regions) {}

  absl::string_view name() const override { return transport_->name(); }
  const Capabilities& capabilities() const override { return transport_->capabilities(); }
  std::string address() const override { return transport_->address(); }
  absl::StatusOr<std::unique_ptr<Region>> AllocateRegion(int64_t bytes) override {
    return transport_->AllocateRegion(bytes);
  }
  absl::StatusOr<PeerId> Connect(absl::string_view address, absl::Time deadline) override {
    return transport_->Connect(address, deadline);
  }
  void Disconnect(PeerId peer) override { transport_->Disconnect(peer); }
  absl::StatusOr<std::unique_ptr<Mapping>> Map(PeerId peer, absl::string_view key, absl::Time deadline) override {
    HR_ASSIGN_OR_RETURN(std::shared_ptr<const Mapping> mapping, transport_->Map(peer, key, deadline));
    regions_->push_back(mapping);
    return std::make_unique<SharedMapping>(std::move(mapping));
  }
  absl::StatusOr<OpId> Send(PeerId peer, uint64_t tag, absl::Span<const std::byte> message) override {
    return transport_->Send(peer, tag, message);
  }
  absl::StatusOr<OpId> Receive(PeerId peer, uint64_t tag, absl::Span<std::byte> message) override {
    return transport_->Receive(peer, tag, message);
  }
  void Poll(absl::Duration max_wait, std::vector<Completion>* completions) override {
    transport_->Poll(max_wait, completions);
  }
  void Wake() override { transport_->Wake(); }
  void Abort(const absl::Status& reason) override { transport_->Abort(reason); }

 private:
  const std::unique_ptr<Transport> transport_;
  MappedRegions* const regions_;
};

void CopyRuns(const Copy& copy, size_t loop, const std::byte* source, std::byte* destination) {
  if (loop == copy.loops.size()) {
    std::memcpy(destination, source, static_cast<size_t>(copy.run_bytes));
    return;
  }
  const CopyLoop& l = copy.loops[loop];
  for (Index i = 0; i < l.extent; ++i) {
    CopyRuns(copy, loop + 1, source + i * l.source_stride, destination + i * l.destination_stride);
  }
}

}  // namespace

std::unique_ptr<Transport> KeepMappings(std::unique_ptr<Transport> transport, MappedRegions* regions) {
  return std::make_unique<KeepingTransport>(std::move(transport), regions);
}

OneCopyFloor::OneCopyFloor(const Manifest& manifest, const Plan& plan, int64_t destination_rank,
                           const MappedRegions& regions)
    : plan_(plan), regions_(regions) {
  for (const Edge& edge : plan.edges) {
    if (edge.destination_rank == destination_rank) {
      edges_.emplace_back(edge, SlotLayout(manifest, edge.source_rank));
    }
  }
}

absl::Status OneCopyFloor::Run(uint64_t generation, FloorCopy how, const std::map<int, std::byte*>& destination) const {
  for (size_t e = 0; e < edges_.size(); ++e) {
    const auto& [edge, layout] = edges_[e];
    HR_ASSIGN_OR_RETURN(const std::byte* slot, SlotOf(e, generation));
    for (size_t i = edge.first; i < edge.first + edge.count; ++i) {
      const Copy& copy = plan_.copies[i];
      const std::byte* from = slot + layout.BufferOffset(copy);
      std::byte* to = destination.at(copy.destination);
      if (how == FloorCopy::kKernel) {
        kernels::Copy(Lower(copy, from, to));
      } else {
        CopyRuns(copy, 0, from + copy.source_offset, to + copy.destination_offset);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status OneCopyFloor::RunWhole(uint64_t generation, absl::Span<std::byte> destination) const {
  std::set<int64_t> copied;
  for (size_t e = 0; e < edges_.size(); ++e) {
    if (!copied.insert(edges_[e].first.source_rank).second) continue;
    HR_ASSIGN_OR_RETURN(const std::byte* slot, SlotOf(e, generation));
    const auto bytes = static_cast<size_t>(edges_[e].second.bytes());
    std::memcpy(destination.data(), slot, bytes);
    destination.remove_prefix(bytes);
  }
  return absl::OkStatus();
}

int64_t OneCopyFloor::bytes_of_slots() const {
  std::map<int64_t, int64_t> bytes;
  for (const auto& [edge, layout] : edges_) bytes[edge.source_rank] = layout.bytes();
  int64_t sum = 0;
  for (const auto& [rank, of_rank] : bytes) sum += of_rank;
  return sum;
}

absl::StatusOr<const std::byte*> OneCopyFloor::SlotOf(size_t e, uint64_t generation) const {
  for (int i = 0; i < kSnapshotSlots; ++i) {
    // A publisher's regions are its slots and its sums.
    const std::byte* region = regions_.at(e * (kSnapshotSlots + 1) + i)->bytes().data();
    SlotHeader header;
    std::memcpy(&header, region, sizeof header);
    if (header.begin == generation && header.end == generation) return region;
  }
  return Error(ErrorCode::kGenerationChanged,
               absl::StrCat("no slot of source rank ", edges_[e].first.source_rank, " holds generation ", generation));
}

}  // namespace headrace::bench
