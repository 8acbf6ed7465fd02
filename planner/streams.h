#ifndef HEADRACE_PLANNER_STREAMS_H_
#define HEADRACE_PLANNER_STREAMS_H_

// Makes streams (plan.h) of the boxes that go through one: chains, their heads, parts and copies.

#include <cstdint>
#include <map>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "planner/balance.h"
#include "planner/intersect.h"
#include "planner/manifest.h"
#include "planner/plan.h"
#include "planner/route.h"

namespace headrace {

// Streams and, for each, the copies that its receivers make of it (Copy::part is set), by destination rank, part,
// destination buffer and offset.
struct StreamCopies {
  std::vector<Stream> streams;
  std::vector<std::vector<Copy>> copies;
};

class StreamBuilder {
 public:
  // All outlive this. tensors[t] belongs to manifest.tensors[t].
  StreamBuilder(const Manifest& manifest, const Hosts& hosts, const std::vector<TensorCells>& tensors)
      : manifest_(manifest), hosts_(hosts), tensors_(tensors) {}

  // A box that the source box `source` sends to all of `destinations`. Boxes of one tensor come one behind the other.
  void Add(TransferKind transfer, int tensor, const Box& box, int source, absl::InlinedVector<int, 2> destinations);

  // `entering[r]` is what enters destination rank r from other hosts by direct edges. Streams come by source rank,
  // transfer and members of the chain. Relay chains that hold the same ranks may begin at any of them:
  // heads are given out, and where that is not even enough streams are split, so that what enters a host from others is
  // shared evenly among its ranks (balance.h), direct edges included.
  StreamCopies Build(const std::map<int64_t, Index>& entering) &&;

 private:
  struct Load {
    int tensor;
    Box box;
    int source;
    absl::InlinedVector<int, 2> destinations;
  };
  struct Key {
    int64_t source_rank;
    TransferKind transfer;
    std::vector<int64_t> chain;
    auto operator<=>(const Key&) const = default;
  };

  // All different, by host, domain and rank.
  std::vector<int64_t> InOrder(std::vector<int64_t> ranks) const;
  // All ranks of the engine that hold any of the tensor, those of the source rank's host first.
  std::vector<int64_t> BroadcastChain(int64_t source_rank, int tensor, absl::string_view engine);
  // The loads in as many lists as there are stripes, or fewer, each of about the stripe's bytes.
  std::vector<std::vector<Load>> Split(std::vector<Load> loads, absl::Span<const Stripe> stripes) const;
  Index BytesOf(const Load& load) const;
  void Emit(int64_t source_rank, std::vector<int64_t> chain, std::vector<Load> loads, StreamCopies* out) const;

  const Manifest& manifest_;
  const Hosts& hosts_;
  const std::vector<TensorCells>& tensors_;
  std::map<Key, std::vector<Load>> loads_;
  int ordered_tensor_ = -1;  // whose ranks are in ordered_, those of this engine
  absl::string_view ordered_engine_;
  std::vector<int64_t> ordered_;
};

}  // namespace headrace

#endif  // HEADRACE_PLANNER_STREAMS_H_
