#include <memory>

#include "absl/strings/escaping.h"
#include "engine_adapters/c_api/boundary.h"
#include "engine_adapters/c_api/headrace.h"
#include "engine_adapters/c_api/options.h"
#include "loader/control/coordinator_service.h"
#include "planner/status.h"

struct hr_coordinator {
  std::unique_ptr<headrace::CoordinatorService> service;
};

namespace headrace {
namespace {

const char* NameOf(Coordinator::Phase phase) {
  switch (phase) {
    case Coordinator::Phase::kJoining:
      return "joining";
    case Coordinator::Phase::kPlanning:
      return "planning";
    case Coordinator::Phase::kReady:
      return "ready";
    case Coordinator::Phase::kSuspended:
      return "suspended";
    case Coordinator::Phase::kEnded:
      return "ended";
  }
  return "";
}

absl::Status Start(const char* options, hr_coordinator** out) {
  HR_ASSIGN_OR_RETURN(const CoordinatorSetup setup, ReadCoordinatorOptions(options));
  auto coordinator = std::make_unique<hr_coordinator>();
  HR_ASSIGN_OR_RETURN(coordinator->service, CoordinatorService::Start(setup.coordinator, setup.server));
  *out = coordinator.release();
  return absl::OkStatus();
}

nlohmann::ordered_json StatusJson(const CoordinatorStatus& status) {
  return {{"phase", NameOf(status.phase)},
          {"epoch", status.epoch},
          {"error", ErrorJson(status.status)},
          {"waiting_for", status.waiting_for},
          {"root", absl::BytesToHexString(status.root)},
          {"last_announced", status.last_announced},
          {"engine_committed", status.engine_committed}};
}

}  // namespace
}  // namespace headrace

extern "C" {

char* hr_coordinator_start(const char* options, hr_coordinator** coordinator) {
  return headrace::Guard([&] { return headrace::Start(options, coordinator); });
}

char* hr_coordinator_address(hr_coordinator* coordinator, char** address) {
  return headrace::Guard([&] {
    *address = headrace::NewText(absl::string_view(coordinator->service->address()));
    return absl::OkStatus();
  });
}

char* hr_coordinator_status(hr_coordinator* coordinator, char** status) {
  return headrace::Guard([&] {
    *status = headrace::NewText(headrace::StatusJson(coordinator->service->status()));
    return absl::OkStatus();
  });
}

char* hr_coordinator_stop(hr_coordinator* coordinator) {
  return headrace::Guard([&] {
    coordinator->service->Stop();
    return absl::OkStatus();
  });
}

void hr_coordinator_free(hr_coordinator* coordinator) { delete coordinator; }

}  // extern "C"
