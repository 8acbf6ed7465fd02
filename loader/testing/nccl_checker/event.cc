#include "loader/testing/nccl_checker/event.h"

#include <map>
#include <mutex>
#include <optional>

#include "loader/testing/nccl_checker/memory.h"
#include "loader/testing/nccl_checker/rules.h"
#include "loader/testing/nccl_checker/stream.h"
#include "loader/testing/nccl_checker/text.h"

namespace headrace::nccl_checker {
namespace {

constexpr cuda::Error kErrorInvalidResourceHandle = 400;
constexpr unsigned kFlags = 1 | cuda::kEventDisableTiming | cuda::kEventInterprocess;  // 1: cudaEventBlockingSync

struct Event {
  int device = 0;
  StreamRef stream;  // null: never recorded, which counts as complete
  uint64_t number = 0;

  bool complete() const { return stream == nullptr || stream->Done(number); }
};

struct Table {
  std::mutex mutex;
  std::map<cuda::Event, Event> events;
  uint64_t last_handle = 0;
};

Table& table() {
  static Table* const instance = new Table;
  return *instance;
}

std::optional<Event> FindEvent(cuda::Event handle, const char* call) {
  std::lock_guard lock(table().mutex);
  const auto found = table().events.find(handle);
  if (found != table().events.end()) return found->second;
  CudaViolation(Rule::kEventHandle, Text(call, " of the event ", handle, ", which does not exist"));
  return std::nullopt;
}

}  // namespace

cuda::Error CreateEvent(cuda::Event* handle, unsigned flags) {
  const bool interprocess = (flags & cuda::kEventInterprocess) != 0, timing = (flags & cuda::kEventDisableTiming) == 0;
  if (handle == nullptr || (flags & ~kFlags) != 0 || (interprocess && timing)) return cuda::kErrorInvalidValue;
  std::lock_guard lock(table().mutex);
  *handle = reinterpret_cast<cuda::Event>(uintptr_t{0x5E00000000000000} + 16 * ++table().last_handle);
  table().events[*handle].device = CurrentDevice();
  return cuda::kSuccess;
}

cuda::Error DestroyEvent(cuda::Event handle) {
  const std::optional<Event> event = FindEvent(handle, "cudaEventDestroy");
  if (!event.has_value()) return kErrorInvalidResourceHandle;
  if (!event->complete() && !event->stream->Pending().empty()) {
    return CudaViolation(Rule::kEventDestroyBusy, Text("cudaEventDestroy of ", handle, ", which is not complete"));
  }
  std::lock_guard lock(table().mutex);
  table().events.erase(handle);
  return cuda::kSuccess;
}

cuda::Error RecordEvent(cuda::Event handle, cuda::Stream stream_handle) {
  const std::optional<Event> event = FindEvent(handle, "cudaEventRecord");
  const StreamRef stream = FindLaunchedStream(stream_handle, "cudaEventRecord");
  if (!event.has_value() || stream == nullptr) return kErrorInvalidResourceHandle;
  if (event->device != stream->device()) {
    return CudaViolation(
        Rule::kStreamDevice,
        Text("cudaEventRecord of an event of device ", event->device, " in a stream of device ", stream->device()),
        kErrorInvalidResourceHandle);
  }
  // Other streams that a default stream waits for are waited for by an operation.
  const uint64_t number = stream->is_default() ? Issue(stream, {"a recorded event", nullptr, {}}) : stream->last();
  std::lock_guard lock(table().mutex);
  table().events[handle] = Event{event->device, stream, number};
  return cuda::kSuccess;
}

cuda::Error QueryEvent(cuda::Event handle) {
  const std::optional<Event> event = FindEvent(handle, "cudaEventQuery");
  if (!event.has_value()) return kErrorInvalidResourceHandle;
  return event->complete() ? cuda::kSuccess : cuda::kErrorNotReady;
}

cuda::Error WaitForEvent(cuda::Stream stream_handle, cuda::Event handle) {
  const std::optional<Event> event = FindEvent(handle, "cudaStreamWaitEvent");
  const StreamRef stream = FindLaunchedStream(stream_handle, "cudaStreamWaitEvent");
  if (!event.has_value() || stream == nullptr) return kErrorInvalidResourceHandle;
  if (event->stream != nullptr) IssueWait(stream, event->stream, event->number);
  return cuda::kSuccess;
}

}  // namespace headrace::nccl_checker
