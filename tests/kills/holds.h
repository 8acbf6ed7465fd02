#ifndef HEADRACE_TESTS_KILLS_HOLDS_H_
#define HEADRACE_TESTS_KILLS_HOLDS_H_

// Places inside the library where a process stands still on request, so that somebody can be killed just then. Where
// the library touches memory of the test's, a page that it must not touch stops it; where it calls the transport, the
// transport does. One place is armed at a time, once; whoever comes there reports {"held": its name} and waits for
// Release. Heartbeats and requests go on meanwhile: they have threads of their own.

#include <cstddef>
#include <memory>
#include <string>

#include "absl/types/span.h"
#include "loader/transport/transport.h"

namespace headrace::kills {

// A line on standard output in one piece, from any thread.
void WriteLine(std::string line);

//   "plan"      a publisher that plans names its regions
//   "copy"      a publisher has copied half of `memory` (below) into a slot
//   "send"      a publisher on a two-sided transport has sent some messages
//   "stream"    a worker has read half of the slots that it mapped, or has received some messages
//   "apply"     a worker has written half of `memory`
// For "copy" and "apply", `memory` is what is read or written. One thread.
void Arm(const std::string& place, absl::Span<std::byte> memory);
void Release();

// Passes everything on to `inner`, and knows what it maps.
std::unique_ptr<Transport> NewHoldingTransport(std::unique_ptr<Transport> inner);

}  // namespace headrace::kills

#endif  // HEADRACE_TESTS_KILLS_HOLDS_H_
