#ifndef HEADRACE_CLI_REHEARSAL_H_
#define HEADRACE_CLI_REHEARSAL_H_

// One rank of a rehearsal: the real publisher or receiver of that rank on made-up memory. It moves two generations: the
// complement of the pattern, then the pattern, so that a byte which the second one misses shows.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "loader/member.h"
#include "loader/receiver.h"
#include "loader/transport/transport.h"
#include "planner/manifest.h"

namespace headrace {

inline constexpr uint64_t kRehearsedGenerations = 2;

// How a manifest's ranks join a session: publishers by ascending source rank, engines by ascending name, their workers
// by ascending destination rank. A manifest without sources gets one publisher that holds nothing.
struct Cast {
  std::vector<int64_t> publishers;            // source ranks
  std::vector<std::vector<int64_t>> engines;  // destination ranks
};
Cast CastOf(const Manifest& manifest);

// The bytes that a rehearsal of the whole manifest takes on one machine: live memory, snapshots, shadows and what they
// are compared with; the largest 64-bit number when they are more than that.
int64_t RehearsalBytes(const Manifest& manifest);

// Made-up weights cannot be two things at once: kConflict names a source element that stands for different elements, by
// two pieces, by strides that meet, or by buffers that share a storage. (Real weights may: one memory under two names.)
absl::Status CheckSourcesAgree(const Manifest& manifest);

// The part of the manifest that one member declares.
Manifest SourcePart(const Manifest& manifest, int64_t rank);
Manifest DestinationPart(const Manifest& manifest, int64_t rank);

absl::Status RehearsePublisher(const Manifest& manifest, int publisher, const JobOptions& job,
                               std::unique_ptr<Transport> transport);

// A buffer's memory after the last generation, from its first element to its last, gaps included.
struct DumpedBuffer {
  int64_t rank = 0;
  std::string buffer;
  std::vector<std::byte> bytes;
};
struct ReceiverReport {
  std::vector<DumpedBuffer> buffers;
  ReceiverStats stats;
};

// Also checks every byte, guards around the buffers included, against the manifest by element loops: kInternal names
// the first wrong element.
absl::StatusOr<ReceiverReport> RehearseReceiver(const Manifest& manifest, int engine, int worker, const JobOptions& job,
                                                std::unique_ptr<Transport> transport);

}  // namespace headrace

#endif  // HEADRACE_CLI_REHEARSAL_H_
