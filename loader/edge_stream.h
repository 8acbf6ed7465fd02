#ifndef HEADRACE_LOADER_EDGE_STREAM_H_
#define HEADRACE_LOADER_EDGE_STREAM_H_

// The bytes of one edge as a sequence of messages, for transports that cannot map. All ends derive the sequence from
// the plan. What is packed are *boxes*: the copies of a direct edge, or the parts of an edge's stream.
//
//   first the sums (8 bytes a box), then the boxes, each packed in its row-major order, one behind the other; each of
//   the two cut into messages of at most `chunk_bytes`.
//
// All edges of one stream have the same messages: a rank of the chain passes them on as they are, and unpacks of them
// what the copies of its own edge want. Which tag they carry: stream_tags.h. Order within a tag is the transport's
// promise.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "loader/box_work.h"
#include "loader/lowering.h"
#include "planner/manifest.h"
#include "planner/plan.h"

namespace headrace {

class EdgeStream {
 public:
  // Keeps a reference to the plan. chunk_bytes >= 8.
  EdgeStream(const Plan& plan, const Edge& edge, int64_t chunk_bytes);
  EdgeStream(EdgeStream&&) = default;
  EdgeStream(const EdgeStream&) = delete;  // of a direct edge the boxes are the plan's own

  int64_t messages() const { return sum_messages_ + data_messages_; }
  int64_t message_bytes(int64_t message) const;
  bool is_sums(int64_t message) const { return message < sum_messages_; }
  const Edge& edge() const { return edge_; }
  // Boxes, and so sums. Copy edge().first + i is one of box BoxOf(i).
  size_t boxes() const { return boxes_.size(); }
  size_t BoxOf(size_t i) const {
    return edge_.stream < 0 ? i : static_cast<size_t>(plan_.copies[edge_.first + i].part);
  }

  // Fills `out` (message_bytes long; memory of the host where is_sums). `snapshot(box)` is the first element of a box's
  // source buffer, `sums` the boxes'. What `work` does is done when it has finished.
  template <typename SnapshotOf>
  void Pack(int64_t message, absl::Span<const std::byte> sums, SnapshotOf&& snapshot, absl::Span<std::byte> out,
            BoxWork* work = OnCpu()) const {
    PackSums(message, sums, out);
    ForEachRange(message, [&](size_t box, int64_t first, int64_t at, int64_t bytes) {
      work->Pack(Lower(boxes_[box], snapshot(boxes_[box]), nullptr), first, out.subspan(at, bytes));
    });
  }

  // Takes a message in: sums go to `wanted` (one per box), data to the destinations and its sums are added to `got`
  // (one per copy of the edge). `destination(buffer)` is the first element of a destination buffer. `work` as in Pack.
  template <typename DestinationOf>
  void Unpack(int64_t message, absl::Span<const std::byte> in, DestinationOf&& destination, absl::Span<uint64_t> wanted,
              absl::Span<uint64_t> got, BoxWork* work = OnCpu()) const {
    UnpackSums(message, in, wanted);
    ForEachRange(message, [&](size_t box, int64_t first, int64_t at, int64_t bytes) {
      for (size_t i = FirstCopyOf(box); i < edge_.count && BoxOf(i) == box; ++i) {
        const Copy& copy = plan_.copies[edge_.first + i];
        work->Unpack(Lower(copy, nullptr, destination(copy.destination)), first, in.subspan(at, bytes), &got[i]);
      }
    });
  }

 private:
  // Calls f(box, its first packed byte, place in the message, bytes).
  template <typename F>
  void ForEachRange(int64_t message, F&& f) const {
    if (is_sums(message)) return;
    const int64_t begin = (message - sum_messages_) * chunk_bytes_, end = begin + message_bytes(message);
    for (size_t i = BoxAt(begin); i < boxes_.size() && starts_[i] < end; ++i) {
      const int64_t from = std::max(begin, starts_[i]), to = std::min(end, starts_[i + 1]);
      f(i, from - starts_[i], from - begin, to - from);
    }
  }

  size_t BoxAt(int64_t byte) const;
  // The first copy of the edge, from edge_.first on, of this box or a later one.
  size_t FirstCopyOf(size_t box) const;
  void PackSums(int64_t message, absl::Span<const std::byte> sums, absl::Span<std::byte> out) const;
  void UnpackSums(int64_t message, absl::Span<const std::byte> in, absl::Span<uint64_t> wanted) const;

  const Plan& plan_;
  const Edge edge_;
  const int64_t chunk_bytes_;
  std::vector<Copy> parts_;  // of a stream, as boxes
  absl::Span<const Copy> boxes_;
  std::vector<int64_t> starts_;  // of each box in the packed data; one more for the end
  int64_t sum_messages_ = 0;
  int64_t data_messages_ = 0;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_EDGE_STREAM_H_
