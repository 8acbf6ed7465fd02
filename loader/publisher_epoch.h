#ifndef HEADRACE_LOADER_PUBLISHER_EPOCH_H_
#define HEADRACE_LOADER_PUBLISHER_EPOCH_H_

// What one epoch adds to a publisher's slots, which outlive it.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "loader/edge_stream.h"
#include "loader/epoch_plan.h"
#include "loader/pack_ring.h"
#include "loader/session/types.h"
#include "loader/snapshot.h"
#include "loader/stream_tags.h"
#include "loader/transport/transport.h"
#include "planner/replicas.h"

namespace headrace {

struct PublisherEpoch {
  PublisherEpoch(int publisher, std::shared_ptr<const EpochPlan> plan) : publisher(publisher), plan(std::move(plan)) {}

  const int publisher;  // its rank
  const std::shared_ptr<const EpochPlan> plan;
  // What other publishers offer too, or this one twice, and its sums by slot, as the writer returned them. The sums of
  // a slot that is published in this epoch come after the epoch is known to other threads: under their lock.
  std::vector<ReplicaSum> replicas;
  std::map<int, std::vector<uint64_t>> replica_sums;
  std::optional<SnapshotWriter> writer;
  std::shared_ptr<Region> sums;
  uint64_t summed_generation = 0;  // of a standby: what its sums were made of; 0: nothing
  std::map<MemberKey, std::string> addresses;
  // Two-sided transports: what each receiver gets, its direct edge and streams.
  std::map<MemberKey, std::vector<EdgeStream>> streams;
  std::optional<StreamTags> tags;
  // Transports that map, of a publisher that holds: each receiver's ring, and by its index in manifest.source each
  // buffer that is read, where the transport does that.
  std::map<MemberKey, std::unique_ptr<PackRingWriter>> rings;
  std::map<int, std::unique_ptr<Registration>> registrations;

  absl::Span<std::byte> SumsOf(int slot) const { return writer->sums_layout().Of(slot, sums->bytes()); }
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_PUBLISHER_EPOCH_H_
