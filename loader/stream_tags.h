#ifndef HEADRACE_LOADER_STREAM_TAGS_H_
#define HEADRACE_LOADER_STREAM_TAGS_H_

// Which tag the messages of an edge carry, on transports with tags. Two endpoints may exchange several edges' messages
// at once: a publisher sends its direct edge and the streams that begin at a receiver, and receivers pass streams on to
// each other. So a tag is made of
//
//   upper bits: 0 for the direct edge, 1 + the stream's index in the plan for a stream
//   lower bits: the generation and the epoch, at least kMinRoundBits of them, so that what is left of one that was
//               given up, or of another plan, never matches a later receive
//
// Both ends make it from the same plan, epoch and transport.

#include <cstdint>

#include "absl/status/statusor.h"
#include "loader/transport/transport.h"
#include "planner/plan.h"

namespace headrace {

class StreamTags {
 public:
  static constexpr int kMinRoundBits = 16;

  // kInvalidOption: the plan has more streams than the transport's tags can tell apart; names both numbers.
  static absl::StatusOr<StreamTags> Create(const Transport& transport, const Plan& plan, uint64_t epoch);

  uint64_t Of(const Edge& edge, uint64_t generation) const;

 private:
  StreamTags(int round_bits, uint64_t epoch) : round_bits_(round_bits), epoch_(epoch) {}

  int round_bits_;
  uint64_t epoch_;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_STREAM_TAGS_H_
