#ifndef HEADRACE_LOADER_RING_OUTLET_H_
#define HEADRACE_LOADER_RING_OUTLET_H_

// The outlet of a publisher that holds its weights, on transports that map: packs into each receiver's ring what it
// does not read itself (hold_path.h).

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "loader/edge_stream.h"
#include "loader/hold_path.h"
#include "loader/outlet.h"
#include "loader/pack_ring.h"
#include "loader/transport/transport.h"

namespace headrace {

class RingOutlet : public Outlet {
 public:
  // Keeps `transport`, which is used under `transport_mutex`.
  RingOutlet(Transport* transport, std::mutex* transport_mutex, int64_t chunk_bytes)
      : transport_(transport), transport_mutex_(transport_mutex), chunk_bytes_(chunk_bytes) {}

  void Start(const Order& order) override;
  void Drop(std::optional<int> engine, std::optional<int> worker) override;
  absl::Status Progress(absl::Duration max_wait) override;
  void Wake() override {}  // it waits only for what is under way
  size_t active() const override { return active_.size(); }
  bool polled() const override { return false; }
  bool Reads(int slot) const override;
  int64_t peak_staging_bytes() const override { return 0; }  // the rings are the epoch's

 private:
  // One edge's packed copies, with their sums.
  struct Packing {
    Packing(HoldSplit split, int64_t chunk_bytes)
        : split(std::move(split)), stream(this->split.packed, this->split.packed.edges[0], chunk_bytes) {}
    const HoldSplit split;
    const EdgeStream stream;
    std::vector<std::byte> sums;
  };
  struct Active {
    MemberKey receiver;
    PackRingWriter* ring;
    SourceOf source;
    uint64_t generation;
    int slot;
    std::vector<std::unique_ptr<Packing>> edges;
    size_t edge = 0;
    int64_t message = 0;

    bool over() const { return edge == edges.size(); }
  };

  // Goes over to another epoch: who is not in it is disconnected.
  void Begin(std::shared_ptr<PublisherEpoch> epoch);
  bool Connect(const Order& order, PackRingWriter* ring);
  // Packs into the free slots of a ring. Whether there were any; an error of the ring ends it.
  bool Pack(Active* active);
  void PackInto(Active* active, absl::Span<std::byte> slot);

  Transport* const transport_;
  std::mutex* const transport_mutex_;
  const int64_t chunk_bytes_;
  std::shared_ptr<PublisherEpoch> epoch_;
  std::map<const PackRingWriter*, bool> connected_;
  std::map<std::string, PeerId> peers_;  // by address
  std::deque<std::unique_ptr<Active>> active_;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_RING_OUTLET_H_
