#ifndef HEADRACE_LOADER_CONTROL_COORDINATOR_SERVICE_H_
#define HEADRACE_LOADER_CONTROL_COORDINATOR_SERVICE_H_

// A running coordinator: control server, coordinator machine and one thread.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "loader/control/control_server.h"
#include "loader/session/coordinator.h"

namespace headrace {

// A snapshot of the coordinator's state.
struct CoordinatorStatus {
  Coordinator::Phase phase = Coordinator::Phase::kJoining;
  uint64_t epoch = 0;
  absl::Status status;
  std::string waiting_for;
  std::string root;
  uint64_t last_announced = 0;
  std::vector<uint64_t> engine_committed;  // by engine, late ones too
};

// Nanoseconds of the steady clock: the `now_ns` of every machine that runs in this process.
int64_t SteadyNowNs();

// Thread rules: any thread.
class CoordinatorService {
 public:
  // Errors: as ControlServer::Start.
  static absl::StatusOr<std::unique_ptr<CoordinatorService>> Start(const CoordinatorOptions& coordinator,
                                                                   const ControlServerOptions& server);
  // Stop(), when that was not called.
  virtual ~CoordinatorService() = default;

  virtual std::string address() const = 0;
  virtual int port() const = 0;
  virtual CoordinatorStatus status() const = 0;
  // Ends the job (kAborted "the coordinator was stopped") for members that are still there, sends what is queued,
  // and joins the thread. Idempotent.
  virtual void Stop() = 0;
  // Cuts all streams without a word, as a process that dies does: for tests. Idempotent.
  virtual void Kill() = 0;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_CONTROL_COORDINATOR_SERVICE_H_
