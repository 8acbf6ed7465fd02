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

}  // namespace

cuda::Error Copy(void* to, const void* from, size_t bytes, int kind, cuda::Stream handle) {
  if (kind < cuda::kMemcpyHostToHost || kind > cuda::kMemcpyDefault) return kErrorInvalidMemcpyDirection;
  const StreamRef stream = FindLaunchedStream(handle, "cudaMemcpyAsync");
  if (stream == nullptr) return kErrorInvalidResourceHandle;
  if (bytes == 0) return cuda::kSuccess;
  const Allocation target = FindAllocation(to), source = FindAllocation(from);
  const bool to_device = kind == cuda::kMemcpyHostToDevice || kind == cuda::kMemcpyDeviceToDevice;
  const bool from_device = kind == cuda::kMemcpyDeviceToHost || kind == cuda::kMemcpyDeviceToDevice;
  if (kind != cuda::kMemcpyDefault &&
      (to_device != (target.type == cuda::kDevice) || from_device != (source.type == cuda::kDevice))) {
    return CudaViolation(Rule::kMemcpyKind, Text("cudaMemcpyAsync of kind ", kind, " from ", NameOf(source.type),
                                                 " to ", NameOf(target.type)));
  }
  const char *to_begin = static_cast<char*>(to), *from_begin = static_cast<const char*>(from);
  if (!Inside(target, to, bytes) || !Inside(source, from, bytes) ||
      (to_begin < from_begin + bytes && from_begin < to_begin + bytes)) {
    return CudaViolation(Rule::kMemcpyBounds, Text("cudaMemcpyAsync of ", bytes, " bytes from ", from, " to ", to));
  }
  Operation copy{"a copy", [=] { std::memcpy(to, from, bytes); }, {}};
  if (target.type != cuda::kUnregistered) copy.uses.emplace_back(to, bytes, "a copy to it");
  if (source.type != cuda::kUnregistered) copy.uses.emplace_back(from, bytes, "a copy from it");
  const uint64_t number = Issue(stream, std::move(copy));
  if (target.type == cuda::kUnregistered || source.type == cuda::kUnregistered) stream->Wait(number);
  return cuda::kSuccess;
}

cuda::Error Fill(void* pointer, int value, size_t bytes, cuda::Stream handle) {
  const StreamRef stream = FindLaunchedStream(handle, "cudaMemsetAsync");
  if (stream == nullptr) return kErrorInvalidResourceHandle;
  if (bytes == 0) return cuda::kSuccess;
  const Allocation target = FindAllocation(pointer);
  if (target.type == cuda::kUnregistered) {
    return CudaViolation(Rule::kMemcpyKind, Text("cudaMemsetAsync of ", NameOf(target.type)));
  }
  if (!Inside(target, pointer, bytes)) {
    return CudaViolation(Rule::kMemcpyBounds, Text("cudaMemsetAsync of ", bytes, " bytes at ", pointer));
  }
  Operation fill{"a memset", [=] { std::memset(pointer, value, bytes); }, {}};
  fill.uses.emplace_back(pointer, bytes, "a memset of it");
  Issue(stream, std::move(fill));
  return cuda::kSuccess;
}

}  // namespace headrace::nccl_checker
