#ifndef HEADRACE_LOADER_STANDBY_H_
#define HEADRACE_LOADER_STANDBY_H_

// An engine worker's live buffers as a source for engines that come when no trainer is left: a publisher that holds
// (publisher.h), with a session and an endpoint of its own, which is in no epoch until the coordinator needs it. It
// takes no memory but the sums of such an epoch, and nothing is summed before.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "loader/member.h"
#include "loader/transport/transport.h"
#include "planner/manifest.h"

namespace headrace {

struct StandbyOptions {
  JobOptions job;
  int engine = 0;
  int worker = 0;
  int64_t chunk_bytes = 256 << 10;
  int64_t staging_bytes = 64 << 20;
};

// What a worker's buffers offer: all that they hold of tensors. `part`: its destination buffers and its placement;
// `job`: a manifest of the job, which has the tensors.
Manifest SourcePartOf(const StandbyOptions& options, const Manifest& part, const Manifest& job);

class Standby {
 public:
  // Says hello and returns. memory: the first element of each buffer by name; it must outlive the standby. Errors are
  // those of the connection.
  static absl::StatusOr<std::unique_ptr<Standby>> Join(const StandbyOptions& options, const Manifest& source_part,
                                                       std::map<std::string, const std::byte*> memory,
                                                       std::unique_ptr<Transport> transport);
  virtual ~Standby() = default;

  // Thread rules: Hold, TakeBack and the destructor from one thread at a time.
  // The live buffers hold `generation`, and do not change before TakeBack returned.
  virtual void Hold(uint64_t generation) = 0;
  // They are about to change: whoever reads them gives that up.
  virtual void TakeBack() = 0;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_STANDBY_H_
