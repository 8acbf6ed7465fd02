#include "loader/receiver.h"

#include <memory>
#include <utility>

#include "engine_adapters/c_api/boundary.h"
#include "engine_adapters/c_api/headrace.h"
#include "engine_adapters/c_api/options.h"
#include "loader/transport/factory.h"
#include "planner/manifest_json.h"
#include "planner/status.h"

struct hr_receiver {
  std::unique_ptr<headrace::Receiver> receiver;
};

namespace headrace {
namespace {

absl::Status Join(const char* options, const char* part_text, const char* memory_text, void* const* addresses,
                  size_t count, hr_receiver** out) {
  HR_ASSIGN_OR_RETURN(const ReceiverSetup setup, ReadReceiverOptions(options));
  HR_ASSIGN_OR_RETURN(const Manifest part, ParseManifest(part_text));
  HR_ASSIGN_OR_RETURN(auto memory, ReadLiveMemory(memory_text, addresses, count));
  HR_ASSIGN_OR_RETURN(auto transport, NewTransport(setup.transport, setup.transport_options));
  std::unique_ptr<Transport> standby;
  if (setup.standby) {
    HR_ASSIGN_OR_RETURN(standby, NewTransport(setup.transport, setup.transport_options));
  }
  auto handle = std::make_unique<hr_receiver>();
  HR_ASSIGN_OR_RETURN(handle->receiver, Receiver::Join(setup.receiver, part, std::move(memory), std::move(transport),
                                                       std::move(standby)));
  *out = handle.release();
  return absl::OkStatus();
}

nlohmann::ordered_json StatsJson(const ReceiverStats& stats) {
  return {{"plan_seconds", stats.plan_seconds},
          {"transfer_seconds", stats.transfer_seconds},
          {"verify_seconds", stats.verify_seconds},
          {"decision_seconds", stats.decision_seconds},
          {"commit_seconds", stats.commit_seconds},
          {"copies", stats.copies},
          {"bytes", stats.bytes},
          {"needed_bytes", stats.needed_bytes},
          {"streamed_bytes", stats.streamed_bytes},
          {"shadow_bytes", stats.shadow_bytes},
          {"pinned_bytes", stats.pinned_bytes},
          {"peak_staging_bytes", stats.peak_staging_bytes}};
}

nlohmann::ordered_json CarryJson(const ReceiverState& state) {
  return {{"committed_generation", state.committed_generation},
          {"committed_incarnation", state.committed_incarnation},
          {"poisoned", state.poisoned}};
}

}  // namespace
}  // namespace headrace

extern "C" {

char* hr_receiver_join(const char* options, const char* part, const char* memory, void* const* addresses, size_t count,
                       hr_receiver** receiver) {
  return headrace::Guard([&] { return headrace::Join(options, part, memory, addresses, count, receiver); });
}

char* hr_receiver_next_generation(hr_receiver* receiver, double timeout, uint64_t* generation) {
  return headrace::Guard([&]() -> absl::Status {
    HR_ASSIGN_OR_RETURN(const absl::Time deadline, headrace::DeadlineAfter(timeout));
    HR_ASSIGN_OR_RETURN(*generation, receiver->receiver->NextGeneration(deadline));
    return absl::OkStatus();
  });
}

char* hr_receiver_stage(hr_receiver* receiver, uint64_t generation, const char* memory, void* const* addresses,
                        size_t count, uintptr_t stream) {
  return headrace::Guard([&]() -> absl::Status {
    HR_ASSIGN_OR_RETURN(const auto restated, headrace::ReadLiveMemory(memory, addresses, count));
    return receiver->receiver->Stage(generation, restated, reinterpret_cast<headrace::cuda::Stream>(stream));
  });
}

char* hr_receiver_apply(hr_receiver* receiver, uint64_t generation, uintptr_t stream) {
  return headrace::Guard(
      [&] { return receiver->receiver->Apply(generation, reinterpret_cast<headrace::cuda::Stream>(stream)); });
}

char* hr_receiver_commit(hr_receiver* receiver, uint64_t generation, uintptr_t stream) {
  return headrace::Guard(
      [&] { return receiver->receiver->Commit(generation, reinterpret_cast<headrace::cuda::Stream>(stream)); });
}

char* hr_receiver_abandon(hr_receiver* receiver, const char* error) {
  return headrace::Guard([&]() -> absl::Status {
    absl::Status why;
    HR_RETURN_IF_ERROR(headrace::ErrorFromJson(error, &why));
    receiver->receiver->Abandon(why);
    return absl::OkStatus();
  });
}

char* hr_receiver_close(hr_receiver* receiver, double timeout) {
  return headrace::Guard([&]() -> absl::Status {
    HR_ASSIGN_OR_RETURN(const absl::Time deadline, headrace::DeadlineAfter(timeout));
    return receiver->receiver->Close(deadline);
  });
}

int hr_receiver_serving(hr_receiver* receiver, uint64_t* generation) {
  const std::optional<uint64_t> serving = receiver->receiver->serving();
  if (serving) *generation = *serving;
  return serving.has_value();
}

char* hr_receiver_carry(hr_receiver* receiver, char** carried) {
  return headrace::Guard([&] {
    *carried = headrace::NewText(headrace::CarryJson(receiver->receiver->Carry()));
    return absl::OkStatus();
  });
}

char* hr_receiver_status(hr_receiver* receiver) {
  return headrace::Guard([&] { return receiver->receiver->status(); });
}

char* hr_receiver_waiting_for(hr_receiver* receiver, char** words) {
  return headrace::Guard([&] {
    *words = headrace::NewText(absl::string_view(receiver->receiver->WaitingFor()));
    return absl::OkStatus();
  });
}

char* hr_receiver_stats(hr_receiver* receiver, char** stats) {
  return headrace::Guard([&] {
    *stats = headrace::NewText(headrace::StatsJson(receiver->receiver->stats()));
    return absl::OkStatus();
  });
}

void hr_receiver_free(hr_receiver* receiver) { delete receiver; }

}  // extern "C"
