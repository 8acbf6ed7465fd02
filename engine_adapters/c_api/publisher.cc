#include "loader/publisher.h"

#include <memory>
#include <utility>

#include "engine_adapters/c_api/boundary.h"
#include "engine_adapters/c_api/headrace.h"
#include "engine_adapters/c_api/options.h"
#include "loader/transport/factory.h"
#include "planner/manifest_json.h"
#include "planner/status.h"

struct hr_publisher {
  std::unique_ptr<headrace::Publisher> publisher;
};

namespace headrace {
namespace {

absl::Status Join(const char* options, const char* part_text, const char* memory_text, const void* const* addresses,
                  size_t count, hr_publisher** out) {
  HR_ASSIGN_OR_RETURN(const PublisherSetup setup, ReadPublisherOptions(options));
  HR_ASSIGN_OR_RETURN(const Manifest part, ParseManifest(part_text));
  HR_ASSIGN_OR_RETURN(auto memory, ReadSourceMemory(memory_text, addresses, count));
  HR_ASSIGN_OR_RETURN(auto transport, NewTransport(setup.transport, setup.transport_options));
  auto handle = std::make_unique<hr_publisher>();
  HR_ASSIGN_OR_RETURN(handle->publisher,
                      Publisher::Join(setup.publisher, part, std::move(memory), std::move(transport)));
  *out = handle.release();
  return absl::OkStatus();
}

nlohmann::ordered_json StatsJson(const PublisherStats& stats) {
  return {{"plan_seconds", stats.plan_seconds},
          {"snapshot_seconds", stats.snapshot_seconds},
          {"stall_seconds", stats.stall_seconds},
          {"snapshot_bytes", stats.snapshot_bytes},
          {"peak_staging_bytes", stats.peak_staging_bytes},
          {"pinned_bytes", stats.pinned_bytes}};
}

}  // namespace
}  // namespace headrace

extern "C" {

char* hr_publisher_join(const char* options, const char* part, const char* memory, const void* const* addresses,
                        size_t count, hr_publisher** publisher) {
  return headrace::Guard([&] { return headrace::Join(options, part, memory, addresses, count, publisher); });
}

char* hr_publisher_publish(hr_publisher* publisher, uint64_t generation, double timeout, uintptr_t stream) {
  return headrace::Guard([&]() -> absl::Status {
    HR_ASSIGN_OR_RETURN(const absl::Time deadline, headrace::DeadlineAfter(timeout));
    return publisher->publisher->Publish(generation, deadline, reinterpret_cast<headrace::cuda::Stream>(stream));
  });
}

char* hr_publisher_await_release(hr_publisher* publisher, uint64_t generation, double timeout) {
  return headrace::Guard([&]() -> absl::Status {
    HR_ASSIGN_OR_RETURN(const absl::Time deadline, headrace::DeadlineAfter(timeout));
    return publisher->publisher->AwaitRelease(generation, deadline);
  });
}

char* hr_publisher_await_commit(hr_publisher* publisher, uint64_t generation, double timeout) {
  return headrace::Guard([&]() -> absl::Status {
    HR_ASSIGN_OR_RETURN(const absl::Time deadline, headrace::DeadlineAfter(timeout));
    return publisher->publisher->AwaitCommit(generation, deadline);
  });
}

char* hr_publisher_close(hr_publisher* publisher, double timeout) {
  return headrace::Guard([&]() -> absl::Status {
    HR_ASSIGN_OR_RETURN(const absl::Time deadline, headrace::DeadlineAfter(timeout));
    return publisher->publisher->Close(deadline);
  });
}

char* hr_publisher_status(hr_publisher* publisher) {
  return headrace::Guard([&] { return publisher->publisher->status(); });
}

char* hr_publisher_stats(hr_publisher* publisher, char** stats) {
  return headrace::Guard([&] {
    *stats = headrace::NewText(headrace::StatsJson(publisher->publisher->stats()));
    return absl::OkStatus();
  });
}

void hr_publisher_free(hr_publisher* publisher) { delete publisher; }

}  // extern "C"
