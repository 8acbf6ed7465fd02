#include "loader/transport/nccl/lane.h"

#include <unistd.h>

#include <cstring>
#include <utility>

#include "planner/status.h"

namespace headrace::nccl {
namespace {

size_t Aligned(size_t bytes) { return (bytes + Lane::kAlignment - 1) / Lane::kAlignment * Lane::kAlignment; }

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
  // Of both sides: when a lane of the other one is opened, this one may run.
  for (const auto& pool : gpu.staging) HR_RETURN_IF_ERROR(pool->Reserve());
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
  if (stream_ != nullptr) gpu_.cuda->cudaStreamDestroy(stream_);
}

std::vector<Group> Lane::Break() {
  state_ = State::kBroken;
  if (comm_ != nullptr) gpu_.nccl->ncclCommAbort(std::exchange(comm_, nullptr));
  // The kernels end at the abort; then nothing uses the messages' memory.
  if (stream_ != nullptr) gpu_.cuda->cudaStreamSynchronize(stream_);
  std::vector<Group> groups;
  for (Running& running : running_) {
    Return(running);
    groups.push_back(std::move(running.group));
  }
  running_.clear();
  return groups;
}

void Lane::Return(const Running& running) {
  if (running.staging.device != nullptr) staging().Return(running.staging);
}

absl::Status Lane::Launch(Group group) {
  Running& launched = running_.emplace_back(Running{std::move(group), 0, {}});
  launched.staged_bytes = StagedBytes(launched.group);
  if (launched.staged_bytes > 0) launched.staging = staging().Take();
  if (side_ == Side::kSend && launched.staged_bytes > 0) {
    ForEachStaged(launched.group, launched.staging.pinned,
                  [](const Message& message, std::byte* to) { std::memcpy(to, message.memory, message.bytes); });
    HR_RETURN_IF_ERROR(
        gpu_.cuda->Check(gpu_.cuda->cudaMemcpyAsync(launched.staging.device, launched.staging.pinned,
                                                    launched.staged_bytes, cuda::kMemcpyHostToDevice, stream_),
                         "nccl: copying messages to the device"));
  }
  HR_RETURN_IF_ERROR(Post(launched.group, launched.staging.device));
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
  if (running_.empty()) return absl::OkStatus();
  // A stream that failed calls no host function: nothing else would tell that its groups never end.
  const cuda::Error work = gpu_.cuda->cudaStreamQuery(stream_);
  return work == cuda::kErrorNotReady ? absl::OkStatus() : gpu_.cuda->Check(work, "nccl: the GPU failed");
}

// Only now is the launch on the stream, so that what follows on it follows the launch.
absl::Status Lane::AwaitEnd() {
  const Running& launched = running_.back();
  if (side_ == Side::kReceive && launched.staged_bytes > 0) {
    HR_RETURN_IF_ERROR(
        gpu_.cuda->Check(gpu_.cuda->cudaMemcpyAsync(launched.staging.pinned, launched.staging.device,
                                                    launched.staged_bytes, cuda::kMemcpyDeviceToHost, stream_),
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
  const Running ended = std::move(running_.front());
  running_.pop_front();
  ++taken_;
  if (side_ == Side::kReceive) {
    ForEachStaged(ended.group, ended.staging.pinned,
                  [](const Message& message, std::byte* from) { std::memcpy(message.memory, from, message.bytes); });
  }
  Return(ended);
  return ended.group;
}

}  // namespace headrace::nccl
