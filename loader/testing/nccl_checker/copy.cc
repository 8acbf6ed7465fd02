#include "loader/testing/nccl_checker/copy.h"

#include <cstring>

#include "loader/testing/nccl_checker/memory.h"
#include "loader/testing/nccl_checker/rules.h"
#include "loader/testing/nccl_checker/stream.h"
#include "loader/testing/nccl_checker/text.h"

namespace headrace::nccl_checker {
namespace {

constexpr cuda::Error kErrorInvalidMemcpyDirection = 21, kErrorInvalidResourceHandle = 400;

const char* NameOf(cuda::MemoryType type) {
  return type == cuda::kDevice ? "device memory" : type == cuda::kHost ? "pinned memory" : "pageable memory";
}

bool Inside(const Allocation& allocation, const void* pointer, size_t bytes) {
  const size_t before = static_cast<const char*>(pointer) - allocation.base;
  return allocation.type == cuda::kUnregistered || bytes <= allocation.bytes - before;
}

// Whether a violation was told: the stream's device has no access to what cuMemMap mapped. Other memory is left to
// CUDA, which copies between devices.
bool LacksAccess(const char* call, const Allocation& allocation, int device, bool write) {
  if (!allocation.shareable || allocation.Reaches(device, write)) return false;
  CudaViolation(Rule::kVmmAccess, Text(call, " that ", write ? "writes" : "reads", " the mapping at ",
                                       static_cast<const void*>(allocation.base), " in a stream of device ", device));
  return true;
}

constexpr size_t kMaxPitch = 2147483647;  // cudaDeviceProp::memPitch

size_t Reach(size_t width, size_t height, size_t pitch) { return (height - 1) * pitch + width; }

cuda::Error CheckPitch(const char* call, size_t width, size_t pitch) {
  if (width <= pitch && pitch <= kMaxPitch) return cuda::kSuccess;
  return CudaViolation(Rule::kMemcpyPitch, Text(call, " of rows of ", width, " bytes with the pitch ", pitch));
}

cuda::Error CopyOf(const char* call, void* to, const void* from, const Rows& rows, int kind, cuda::Stream handle) {
  if (kind < cuda::kMemcpyHostToHost || kind > cuda::kMemcpyDefault) return kErrorInvalidMemcpyDirection;
  const StreamRef stream = FindLaunchedStream(handle, call);
  if (stream == nullptr) return kErrorInvalidResourceHandle;
  if (rows.width == 0 || rows.height == 0) return cuda::kSuccess;
  const size_t to_bytes = Reach(rows.width, rows.height, rows.to_pitch);
  const size_t from_bytes = Reach(rows.width, rows.height, rows.from_pitch);
  const Allocation target = FindAllocation(to), source = FindAllocation(from);
  const bool to_device = kind == cuda::kMemcpyHostToDevice || kind == cuda::kMemcpyDeviceToDevice;
  const bool from_device = kind == cuda::kMemcpyDeviceToHost || kind == cuda::kMemcpyDeviceToDevice;
  if (kind != cuda::kMemcpyDefault &&
      (to_device != (target.type == cuda::kDevice) || from_device != (source.type == cuda::kDevice))) {
    return CudaViolation(Rule::kMemcpyKind,
                         Text(call, " of kind ", kind, " from ", NameOf(source.type), " to ", NameOf(target.type)));
  }
  char* const to_begin = static_cast<char*>(to);
  const char* const from_begin = static_cast<const char*>(from);
  if (!Inside(target, to, to_bytes) || !Inside(source, from, from_bytes) ||
      (to_begin < from_begin + from_bytes && from_begin < to_begin + to_bytes)) {
    return CudaViolation(Rule::kMemcpyBounds,
                         Text(call, " of ", from_bytes, " bytes from ", from, " to ", to_bytes, " bytes at ", to));
  }
  if (LacksAccess(call, target, stream->device(), true) || LacksAccess(call, source, stream->device(), false)) {
    return cuda::kErrorInvalidValue;
  }
  const auto run = [=] {
    for (size_t row = 0; row < rows.height; ++row) {
      std::memcpy(to_begin + row * rows.to_pitch, from_begin + row * rows.from_pitch, rows.width);
    }
  };
  Operation copy{"a copy", run, {}};
  if (target.type != cuda::kUnregistered) copy.uses.emplace_back(to, to_bytes, "a copy to it");
  if (source.type != cuda::kUnregistered) copy.uses.emplace_back(from, from_bytes, "a copy from it");
  const uint64_t number = Issue(stream, std::move(copy));
  if (target.type == cuda::kUnregistered || source.type == cuda::kUnregistered) stream->Wait(number);
  return cuda::kSuccess;
}

cuda::Error FillOf(const char* call, void* pointer, size_t pitch, int value, size_t width, size_t height,
                   cuda::Stream handle) {
  const StreamRef stream = FindLaunchedStream(handle, call);
  if (stream == nullptr) return kErrorInvalidResourceHandle;
  if (width == 0 || height == 0) return cuda::kSuccess;
  const size_t bytes = Reach(width, height, pitch);
  const Allocation target = FindAllocation(pointer);
  if (target.type == cuda::kUnregistered) {
    return CudaViolation(Rule::kMemcpyKind, Text(call, " of ", NameOf(target.type)));
  }
  if (!Inside(target, pointer, bytes)) {
    return CudaViolation(Rule::kMemcpyBounds, Text(call, " of ", bytes, " bytes at ", pointer));
  }
  if (LacksAccess(call, target, stream->device(), true)) return cuda::kErrorInvalidValue;
  const auto run = [=] {
    for (size_t row = 0; row < height; ++row) std::memset(static_cast<char*>(pointer) + row * pitch, value, width);
  };
  Operation fill{"a memset", run, {}};
  fill.uses.emplace_back(pointer, bytes, "a memset of it");
  Issue(stream, std::move(fill));
  return cuda::kSuccess;
}

}  // namespace

cuda::Error Copy(void* to, const void* from, size_t bytes, int kind, cuda::Stream stream) {
  return CopyOf("cudaMemcpyAsync", to, from, {bytes, 1, bytes, bytes}, kind, stream);
}

cuda::Error CopyRows(void* to, const void* from, const Rows& rows, int kind, cuda::Stream stream) {
  constexpr const char* kCall = "cudaMemcpy2DAsync";
  for (size_t pitch : {rows.to_pitch, rows.from_pitch}) {
    if (const cuda::Error error = CheckPitch(kCall, rows.width, pitch); error != cuda::kSuccess) return error;
  }
  return CopyOf(kCall, to, from, rows, kind, stream);
}

cuda::Error Fill(void* pointer, int value, size_t bytes, cuda::Stream stream) {
  return FillOf("cudaMemsetAsync", pointer, bytes, value, bytes, 1, stream);
}

cuda::Error FillRows(void* pointer, size_t pitch, int value, size_t width, size_t height, cuda::Stream stream) {
  constexpr const char* kCall = "cudaMemset2DAsync";
  if (const cuda::Error error = CheckPitch(kCall, width, pitch); error != cuda::kSuccess) return error;
  return FillOf(kCall, pointer, pitch, value, width, height, stream);
}

}  // namespace headrace::nccl_checker
