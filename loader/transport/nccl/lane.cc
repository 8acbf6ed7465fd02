#include "loader/transport/nccl/lane.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "planner/status.h"

namespace headrace::nccl {
namespace {

// NCCL and copies are fastest where memory is aligned.
constexpr size_t kAlignment = 16;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

size_t StagedBytes(const Group& group) {
  size_t bytes = 0;
  for (const Message& message : group) bytes += message.on_device ? 0 : Aligned(message.bytes);
  return bytes;
}

// Calls f(message, its place in `staged`) for what lies on the host.
template <typename F>
void ForEachStaged(const Group& group, std::byte* staged, F&& f) {
  for (const Message& message : group) {
    if (message.on_device) continue;
    f(message, staged);
    staged += Aligned(message.bytes);
  }
}

// What a stream tells when it comes to the end of a group. It may outlive the lane by the length of a call.
struct End {
  std::shared_ptr<std::atomic<uint64_t>> count;
  std::shared_ptr<Descriptor> readable;
};

void OnEnd(void* argument) {
  const std::unique_ptr<End> end(static_cast<End*>(argument));
  end->count->fetch_add(1, std::memory_order_release);
  const uint64_t one = 1;
  (void)!write(end->readable->get(), &one, sizeof one);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Lane>> Lane::Open(const Gpu& gpu, Side side, const UniqueId& id) {
  std::unique_ptr<Lane> lane(new Lane(gpu, side));
  HR_RETURN_IF_ERROR(lane->Join(id));
  return lane;
}

absl::Status Lane::Join(const UniqueId& id) {
  HR_RETURN_IF_ERROR(gpu_.cuda->Check(gpu_.cuda->cudaStreamCreateWithFlags(&stream_, cuda::kStreamNonBlocking),
                                      "nccl: making a stream"));
  Config config;
  config.blocking = 0;
  config.min_ctas = 1;
  config.max_ctas = kCtas;
  return gpu_.nccl->Check(gpu_.nccl->ncclCommInitRankConfig(&comm_, 2, id, static_cast<int>(side_), &config),
                          "joining a communicator");
}

Lane::~Lane() {
  Break();
  for (Staging& staging : staging_) Free(&staging);
  if (stream_ != nullptr) gpu_.cuda->cudaStreamDestroy(stream_);
}

std::vector<Group> Lane::Break() {
  state_ = State::kBroken;
  if (comm_ != nullptr) gpu_.nccl->ncclCommAbort(std::exchange(comm_, nullptr));
  // The kernels end at the abort; then nothing uses the messages' memory.
  if (stream_ != nullptr) gpu_.cuda->cudaStreamSynchronize(stream_);
  std::vector<Group> groups(std::make_move_iterator(running_.begin()), std::make_move_iterator(running_.end()));
  running_.clear();
  return groups;
}

absl::Status Lane::Reserve(Staging* staging, size_t bytes) {
  if (bytes <= staging->bytes) return absl::OkStatus();
  Free(staging);
  const size_t wanted = std::max(bytes, kMaxGroupBytes);
  const CudaRuntime& cuda = *gpu_.cuda;
  HR_RETURN_IF_ERROR(cuda.Check(cuda.cudaMalloc(reinterpret_cast<void**>(&staging->device), wanted),
                                "nccl: device memory for messages"));
  HR_RETURN_IF_ERROR(
      cuda.Check(cuda.cudaHostAlloc(reinterpret_cast<void**>(&staging->pinned), wanted, cuda::kHostAllocPortable),
                 "nccl: pinned memory for messages"));
  staging->bytes = wanted;
  return absl::OkStatus();
}

void Lane::Free(Staging* staging) {
  if (staging->device != nullptr) gpu_.cuda->cudaFree(staging->device);
  if (staging->pinned != nullptr) gpu_.cuda->cudaFreeHost(staging->pinned);
  *staging = {};
}

absl::Status Lane::Launch(Group group) {
  Staging& staging = staging_[launched_ % 2];
  const size_t bytes = StagedBytes(group);
  HR_RETURN_IF_ERROR(Reserve(&staging, bytes));
  running_.push_back(std::move(group));
  ++launched_;
  const Group& launched = running_.back();
  if (side_ == Side::kSend && bytes > 0) {
    ForEachStaged(launched, staging.pinned,
                  [](const Message& message, std::byte* to) { std::memcpy(to, message.memory, message.bytes); });
    HR_RETURN_IF_ERROR(gpu_.cuda->Check(
        gpu_.cuda->cudaMemcpyAsync(staging.device, staging.pinned, bytes, cuda::kMemcpyHostToDevice, stream_),
        "nccl: copying messages to the device"));
  }
  HR_RETURN_IF_ERROR(Post(launched, staging.device));
  return Advance();
}

absl::Status Lane::Post(const Group& group, std::byte* staged) {
  const Library& nccl = *gpu_.nccl;
  HR_RETURN_IF_ERROR(nccl.Check(nccl.ncclGroupStart(), "beginning a group"));
  state_ = State::kLaunching;
  Result result = kSuccess;
  for (const Message& message : group) {
    void* memory = message.memory;
    if (!message.on_device) {
      memory = staged;
      staged += Aligned(message.bytes);
    }
    result = side_ == Side::kSend ? nccl.ncclSend(memory, message.bytes, kUint8, 1, comm_, stream_)
                                  : nccl.ncclRecv(memory, message.bytes, kUint8, 0, comm_, stream_);
    if (result != kSuccess && result != kInProgress) break;
  }
  // A group that was begun is ended, whatever became of it.
  const Result ended = nccl.ncclGroupEnd();
  HR_RETURN_IF_ERROR(nccl.Check(result, "posting a message"));
  return nccl.Check(ended, "launching a group");
}

absl::Status Lane::Advance() {
  if (comm_ == nullptr) return absl::OkStatus();
  Result state = kSuccess;
  HR_RETURN_IF_ERROR(gpu_.nccl->Check(gpu_.nccl->ncclCommGetAsyncError(comm_, &state), "asking a communicator"));
  HR_RETURN_IF_ERROR(gpu_.nccl->Check(state, "a communicator failed"));
  if (state == kInProgress) return absl::OkStatus();
  if (std::exchange(state_, State::kReady) == State::kLaunching) return AwaitEnd();
  return absl::OkStatus();
}

// Only now is the launch on the stream, so that what follows on it follows the launch.
absl::Status Lane::AwaitEnd() {
  const Staging& staging = staging_[(launched_ - 1) % 2];
  const size_t bytes = StagedBytes(running_.back());
  if (side_ == Side::kReceive && bytes > 0) {
    HR_RETURN_IF_ERROR(gpu_.cuda->Check(
        gpu_.cuda->cudaMemcpyAsync(staging.pinned, staging.device, bytes, cuda::kMemcpyDeviceToHost, stream_),
        "nccl: copying messages from the device"));
  }
  auto end = std::make_unique<End>(End{ended_, gpu_.ended});
  HR_RETURN_IF_ERROR(
      gpu_.cuda->Check(gpu_.cuda->cudaLaunchHostFunc(stream_, OnEnd, end.get()), "nccl: asking a stream for its end"));
  end.release();  // OnEnd's
  return absl::OkStatus();
}

Group Lane::Take() {
  if (state_ == State::kBroken || taken_ == ended_->load(std::memory_order_acquire)) return {};
  Group group = std::move(running_.front());
  running_.pop_front();
  const Staging& staging = staging_[taken_++ % 2];
  if (side_ == Side::kReceive) {
    ForEachStaged(group, staging.pinned,
                  [](const Message& message, std::byte* from) { std::memcpy(message.memory, from, message.bytes); });
  }
  return group;
}

}  // namespace headrace::nccl
