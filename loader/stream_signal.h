#ifndef HEADRACE_LOADER_STREAM_SIGNAL_H_
#define HEADRACE_LOADER_STREAM_SIGNAL_H_

// What the two ends of an edge, or of one step of a stream's chain, say to each other beside the bytes, under the
// edge's tag (stream_tags.h):
//
//   receiver -> sender   one byte: ready. Its receives are posted, it holds memory for what will be under way, and so
//                        does everyone behind it in the chain. Before that nothing is sent.
//   receiver -> rank before it in a chain   one byte more: done. Every message arrived.
//   either way, within a chain   an empty message: broke off. It ends the receive that it meets, whose size differs.
//
// What the byte is does not matter.

#include <cstddef>

#include "absl/types/span.h"

namespace headrace {

inline constexpr std::byte kStreamSignal[1] = {std::byte{1}};
// For Transport::Send; lives for ever, so nobody has to wait for the send's completion.
inline absl::Span<const std::byte> StreamSignal() { return kStreamSignal; }
inline absl::Span<const std::byte> StreamBrokeOff() { return {}; }

}  // namespace headrace

#endif  // HEADRACE_LOADER_STREAM_SIGNAL_H_
