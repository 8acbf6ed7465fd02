#ifndef HEADRACE_LOADER_EDGE_STREAM_H_
#define HEADRACE_LOADER_EDGE_STREAM_H_

// The bytes of one edge as a sequence of messages, for transports that cannot map. Both ends derive the sequence from
// the plan:
//
//   first the edge's sums (8 bytes a copy), then the edge's copies, each packed in its box's row-major order, one
//   behind the other; each of the two cut into messages of at most `chunk_bytes`.
//
// All messages of one generation carry the tag StreamTag(generation), so that what is left of a generation that was
// given up never matches a later receive. Order within a tag is the transport's promise.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "planner/manifest.h"
#include "planner/plan.h"

namespace headrace {

inline uint64_t StreamTag(uint64_t generation) { return generation & 0xffffffff; }

class EdgeStream {
 public:
  // Keeps a reference to the plan. chunk_bytes >= 8.
  EdgeStream(const Plan& plan, const Edge& edge, int64_t chunk_bytes);

  int64_t messages() const { return sum_messages_ + data_messages_; }
  int64_t message_bytes(int64_t message) const;
  bool is_sums(int64_t message) const { return message < sum_messages_; }
  const Edge& edge() const { return edge_; }

  // Fills `out` (message_bytes long). `snapshot(copy)` is the first element of a copy's source buffer, `sums` the
  // edge's.
  template <typename SnapshotOf>
  void Pack(int64_t message, absl::Span<const std::byte> sums, SnapshotOf&& snapshot, absl::Span<std::byte> out) const {
    PackSums(message, sums, out);
    ForEachPart(message, [&](size_t copy, int64_t first, int64_t at, int64_t bytes) {
      PackPart(copy, first, snapshot(plan_.copies[copy]), out.subspan(at, bytes));
    });
  }

  // Takes a message in: sums go to `wanted`, data to the destinations and its sums are added to `got` (both one per
  // copy of the edge). `destination(buffer)` is the first element of a destination buffer.
  template <typename DestinationOf>
  void Unpack(int64_t message, absl::Span<const std::byte> in, DestinationOf&& destination, absl::Span<uint64_t> wanted,
              absl::Span<uint64_t> got) const {
    UnpackSums(message, in, wanted);
    ForEachPart(message, [&](size_t copy, int64_t first, int64_t at, int64_t bytes) {
      got[copy - edge_.first] +=
          UnpackPart(copy, first, in.subspan(at, bytes), destination(plan_.copies[copy].destination));
    });
  }

 private:
  // Calls f(copy index in the plan, first packed byte of the copy, place in the message, bytes).
  template <typename F>
  void ForEachPart(int64_t message, F&& f) const {
    if (is_sums(message)) return;
    const int64_t begin = (message - sum_messages_) * chunk_bytes_, end = begin + message_bytes(message);
    for (size_t i = CopyAt(begin); i < edge_.count && starts_[i] < end; ++i) {
      const int64_t from = std::max(begin, starts_[i]), to = std::min(end, starts_[i + 1]);
      f(edge_.first + i, from - starts_[i], from - begin, to - from);
    }
  }

  size_t CopyAt(int64_t byte) const;
  void PackSums(int64_t message, absl::Span<const std::byte> sums, absl::Span<std::byte> out) const;
  void UnpackSums(int64_t message, absl::Span<const std::byte> in, absl::Span<uint64_t> wanted) const;
  void PackPart(size_t copy, int64_t first, const std::byte* source, absl::Span<std::byte> out) const;
  uint64_t UnpackPart(size_t copy, int64_t first, absl::Span<const std::byte> in, std::byte* destination) const;

  const Plan& plan_;
  const Edge edge_;
  const int64_t chunk_bytes_;
  std::vector<int64_t> starts_;  // of each copy in the packed data; one more for the end
  int64_t sum_messages_ = 0;
  int64_t data_messages_ = 0;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_EDGE_STREAM_H_
