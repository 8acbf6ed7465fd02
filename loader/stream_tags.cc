#include "loader/stream_tags.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {
namespace {

// Multiples of it, of either sign, are far from 0 in the lower 16 bits for a long time (it is 2^16 over the golden
// ratio): no few epochs' difference is made up for by a few generations'.
constexpr uint64_t kEpochStep = 40503;

}  // namespace

absl::StatusOr<StreamTags> StreamTags::Create(const Transport& transport, const Plan& plan, uint64_t epoch) {
  const int tag_bits = transport.capabilities().tag_bits;
  const int channel_bits = static_cast<int>(std::bit_width(plan.streams.size()));
  if (tag_bits - channel_bits < kMinRoundBits) {
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat("the plan has ", plan.streams.size(), " streams; ", transport.name(), " has tags of ",
                              tag_bits, " bits, which tell ",
                              tag_bits < kMinRoundBits ? 0 : (uint64_t{1} << (tag_bits - kMinRoundBits)) - 1,
                              " apart. Choose a transport that maps memory, or a policy that makes fewer streams"));
  }
  return StreamTags(std::min(tag_bits - channel_bits, 63), epoch);
}

uint64_t StreamTags::Of(const Edge& edge, uint64_t generation) const {
  const uint64_t round = (generation + epoch_ * kEpochStep) & ((uint64_t{1} << round_bits_) - 1);
  return static_cast<uint64_t>(edge.stream + 1) << round_bits_ | round;
}

}  // namespace headrace
