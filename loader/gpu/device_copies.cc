#include "loader/gpu/device_copies.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "loader/gpu/gpu_options.h"
#include "planner/status.h"

namespace headrace {
namespace {

// cudaDeviceProp::memPitch of every GPU.
constexpr int64_t kMaxPitch = 2147483647;
// A stream that failed calls no host function: how often it is asked.
constexpr absl::Duration kHealthTurn = absl::Milliseconds(20);
constexpr absl::Duration kCloseTime = absl::Seconds(5);

bool IsPitch(int64_t stride, int64_t width) { return stride >= width && stride <= kMaxPitch; }

// The loop whose steps are the rows of 2D copies; -1: none can be.
int RowLoop(const kernels::StridedCopy& box) {
  int row = -1;
  for (int i = 0; i < box.rank; ++i) {
    if (box.extent[i] < 2 || !IsPitch(box.src_stride[i], box.run_bytes) || !IsPitch(box.dst_stride[i], box.run_bytes)) {
      continue;
    }
    if (row < 0 || box.extent[i] >= box.extent[row]) row = i;
  }
  return row;
}

// Calls f(source offset, destination offset) for every step of the loops from `loop` on but `skipped`.
template <typename F>
void ForEachStep(const kernels::StridedCopy& box, int loop, int skipped, int64_t src, int64_t dst, const F& f) {
  if (loop == box.rank) return f(src, dst);
  const int64_t steps = loop == skipped ? 1 : box.extent[loop];
  for (int64_t i = 0; i < steps; ++i) {
    ForEachStep(box, loop + 1, skipped, src + i * box.src_stride[loop], dst + i * box.dst_stride[loop], f);
  }
}

// Calls f(piece) for boxes of at most `most` bytes.
template <typename F>
absl::Status Cut(BufferBox box, int64_t most, int64_t element_bytes, const F& f) {
  const int64_t bytes = BytesOf(box);
  if (bytes == 0) return absl::OkStatus();
  if (bytes <= most) return f(box);
  if (box.loops.empty()) {
    const int64_t run = most / element_bytes * element_bytes, end = box.offset + box.run_bytes;
    for (; box.offset < end; box.offset += run) {
      box.run_bytes = std::min(run, end - box.offset);
      HR_RETURN_IF_ERROR(f(box));
    }
    return absl::OkStatus();
  }
  auto [extent, stride] = box.loops.front();
  const int64_t steps = std::max<int64_t>(most / (bytes / extent), 1);
  for (; extent > 0; extent -= steps, box.offset += steps * stride) {
    box.loops.front().first = std::min<int64_t>(steps, extent);
    BufferBox piece = box;
    if (steps == 1) piece.loops.erase(piece.loops.begin());
    HR_RETURN_IF_ERROR(Cut(std::move(piece), most, element_bytes, f));
  }
  return absl::OkStatus();
}

}  // namespace

struct DeviceCopies::Reached {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t mark = 0;
};

// What a host function is given.
struct DeviceCopies::Mark {
  std::shared_ptr<Reached> reached;
  uint64_t number;
};

DeviceCopies::DeviceCopies(const CudaRuntime& cuda, int gpu, int64_t bounce_bytes)
    : cuda_(cuda), gpu_(gpu), bounce_bytes_(bounce_bytes), reached_(std::make_shared<Reached>()) {}

absl::StatusOr<std::unique_ptr<DeviceCopies>> DeviceCopies::Create(int gpu, int64_t bounce_bytes) {
  HR_ASSIGN_OR_RETURN(const CudaRuntime* cuda, LoadCudaRuntime(GpuOptionsFromEnvironment().cuda_runtime));
  std::unique_ptr<DeviceCopies> copies(new DeviceCopies(*cuda, gpu, bounce_bytes));
  HR_RETURN_IF_ERROR(copies->Start());
  return copies;
}

absl::Status DeviceCopies::Start() {
  HR_RETURN_IF_ERROR(CheckGpu(cuda_, gpu_));
  const CurrentDevice current(cuda_, gpu_);
  HR_RETURN_IF_ERROR(
      cuda_.Check(cuda_.cudaStreamCreateWithFlags(&stream_, cuda::kStreamNonBlocking), "making a stream"));
  return cuda_.Check(cuda_.cudaEventCreateWithFlags(&event_, cuda::kEventDisableTiming), "making an event");
}

DeviceCopies::~DeviceCopies() {
  if (stream_ == nullptr) return;
  const CurrentDevice current(cuda_, gpu_);
  // A stream that never ends would keep this for ever; it keeps its handles then, and no memory of ours.
  if (HasCode(Drain(absl::Now() + kCloseTime), ErrorCode::kDeadline)) return;
  cuda_.cudaStreamSynchronize(stream_);
  if (event_ != nullptr) cuda_.cudaEventDestroy(event_);
  cuda_.cudaStreamDestroy(stream_);
  if (bounce_ != nullptr) cuda_.cudaFreeHost(bounce_);
}

absl::StatusOr<bool> DeviceCopies::IsOnDevice(const void* pointer) const {
  const CurrentDevice current(cuda_, gpu_);
  cuda::PointerAttributes attributes{};
  HR_RETURN_IF_ERROR(
      cuda_.Check(cuda_.cudaPointerGetAttributes(&attributes, pointer), "asking where a buffer's memory is"));
  if (attributes.type == cuda::kManaged) return true;
  if (attributes.type != cuda::kDevice) return false;
  if (attributes.device == gpu_) return true;
  return Error(ErrorCode::kInvalidOption,
               absl::StrCat("memory of GPU ", attributes.device, " was given, and GPU ", gpu_, " was named"));
}

std::unique_ptr<PinnedMemory> DeviceCopies::Pin(absl::Span<std::byte> memory) const {
  const CurrentDevice current(cuda_, gpu_);
  if (!cuda_.Check(cuda_.cudaHostRegister(memory.data(), memory.size(), cuda::kHostRegisterPortable), "pinning").ok()) {
    return nullptr;
  }
  return std::make_unique<PinnedMemory>(cuda_, memory.data());
}

absl::Status DeviceCopies::Drain(absl::Time deadline) {
  auto mark = std::make_unique<Mark>(Mark{reached_, ++marks_});
  const cuda::HostFunction pass = [](void* argument) {
    const std::unique_ptr<Mark> mark(static_cast<Mark*>(argument));
    std::lock_guard lock(mark->reached->mutex);
    mark->reached->mark = mark->number;
    mark->reached->changed.notify_all();
  };
  HR_RETURN_IF_ERROR(cuda_.Check(cuda_.cudaLaunchHostFunc(stream_, pass, mark.get()), "marking a stream"));
  (void)mark.release();  // the stream's now
  std::unique_lock lock(reached_->mutex);
  while (reached_->mark < marks_) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) {
      return Error(ErrorCode::kDeadline, absl::StrCat("the work that was enqueued before on the stream of GPU ", gpu_,
                                                      " did not end in time"));
    }
    reached_->changed.wait_for(lock, absl::ToChronoNanoseconds(std::min(left, kHealthTurn)));
    // A host function that waits for this lock must keep nothing waiting that CUDA holds.
    lock.unlock();
    const cuda::Error state = cuda_.cudaStreamQuery(stream_);
    lock.lock();
    if (state != cuda::kSuccess && state != cuda::kErrorNotReady) {
      return cuda_.Check(state, absl::StrCat("work on GPU ", gpu_));
    }
  }
  return absl::OkStatus();
}

absl::Status DeviceCopies::AwaitStream(cuda::Stream stream, absl::Time deadline) {
  const CurrentDevice current(cuda_, gpu_);
  HR_RETURN_IF_ERROR(cuda_.Check(cuda_.cudaEventRecord(event_, stream), "recording an event on the caller's stream"));
  HR_RETURN_IF_ERROR(cuda_.Check(cuda_.cudaStreamWaitEvent(stream_, event_, 0), "waiting for the caller's stream"));
  return Drain(deadline);
}

void DeviceCopies::Keep(cuda::Error error, absl::string_view what) {
  absl::Status status = cuda_.Check(error, what);
  if (error_.ok()) error_ = std::move(status);
}

void DeviceCopies::Copy(const kernels::StridedCopy& box, int kind) {
  const CurrentDevice current(cuda_, gpu_);
  constexpr absl::string_view kWhat = "a copy between host and GPU";
  if (box.run_bytes == 0) return;
  const int row = RowLoop(box);
  ForEachStep(box, 0, row, 0, 0, [&](int64_t src, int64_t dst) {
    if (row < 0) {
      Keep(cuda_.cudaMemcpyAsync(box.dst + dst, box.src + src, box.run_bytes, kind, stream_), kWhat);
    } else {
      Keep(cuda_.cudaMemcpy2DAsync(box.dst + dst, box.dst_stride[row], box.src + src, box.src_stride[row],
                                   box.run_bytes, box.extent[row], kind, stream_),
           kWhat);
    }
  });
}

void DeviceCopies::Clear(const BufferBox& box, std::byte* memory) {
  const CurrentDevice current(cuda_, gpu_);
  constexpr absl::string_view kWhat = "clearing memory of a GPU";
  if (box.run_bytes == 0) return;
  const kernels::StridedCopy steps = Lower(box, memory, memory);
  const int row = RowLoop(steps);
  ForEachStep(steps, 0, row, 0, 0, [&](int64_t, int64_t dst) {
    if (row < 0) {
      Keep(cuda_.cudaMemsetAsync(steps.dst + dst, 0, steps.run_bytes, stream_), kWhat);
    } else {
      Keep(cuda_.cudaMemset2DAsync(steps.dst + dst, steps.dst_stride[row], 0, steps.run_bytes, steps.extent[row],
                                   stream_),
           kWhat);
    }
  });
}

absl::Status DeviceCopies::Finish() {
  const CurrentDevice current(cuda_, gpu_);
  const absl::Status drained = Drain(absl::InfiniteFuture());
  absl::Status first = std::exchange(error_, absl::OkStatus());
  return first.ok() ? drained : first;
}

absl::Status DeviceCopies::ReadInPieces(
    const BufferBox& box, const std::byte* memory, int64_t element_bytes,
    const std::function<void(const BufferBox& piece, const std::byte* packed)>& visit) {
  if (bounce_ == nullptr) {
    const CurrentDevice current(cuda_, gpu_);
    void* bounce = nullptr;
    HR_RETURN_IF_ERROR(cuda_.Check(cuda_.cudaHostAlloc(&bounce, bounce_bytes_, cuda::kHostAllocPortable),
                                   "pinned memory to read a GPU through"));
    bounce_ = static_cast<std::byte*>(bounce);
  }
  return Cut(box, bounce_bytes_, element_bytes, [&](const BufferBox& piece) {
    BufferBox at_first = piece;
    at_first.offset = 0;
    kernels::StridedCopy copy = Lower(at_first, memory + piece.offset, bounce_);
    int64_t packed = piece.run_bytes;
    for (int i = copy.rank - 1; i >= 0; --i) {
      copy.dst_stride[i] = packed;
      packed *= copy.extent[i];
    }
    FromDevice(copy);
    HR_RETURN_IF_ERROR(Finish());
    visit(piece, bounce_);
    return absl::OkStatus();
  });
}

}  // namespace headrace
