#include "loader/testing/checker_kernels/checker_kernels.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>

#include "kernels/cuda/backend_api.h"
#include "kernels/cuda/copy_body.h"
#include "kernels/cuda/elementwise_body.h"
#include "kernels/cuda/host_backend.h"
#include "loader/gpu/cuda_abi.h"
#include "loader/gpu/cuda_driver_abi.h"
#include "loader/testing/nccl_checker/nccl_checker.h"

namespace headrace {
namespace {

struct Checker {
  cuda::Error (*cudaPointerGetAttributes)(cuda::PointerAttributes*, const void*) = nullptr;
  cuda::Result (*cuMemGetAccess)(unsigned long long*, const cuda::MemLocation*, cuda::DevicePointer) = nullptr;
  cuda::Error (*cudaStreamSynchronize)(cuda::Stream) = nullptr;
  cuda::Error (*cudaLaunchHostFunc)(cuda::Stream, cuda::HostFunction, void*) = nullptr;
};

[[noreturn]] void Die(const char* what, int device) {
  std::fprintf(stderr, "CHECKER KERNELS: %s that device %d does not reach\n", what, device);
  std::abort();
}

const Checker& TheChecker() {
  static const Checker checker = [] {
    const char* const path = std::getenv("HEADRACE_CUDA_RUNTIME");
    void* const file = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (file == nullptr) std::abort();  // checker_kernels.h says what it wants
    Checker found;
    const auto resolve = [&](const char* name, auto* function) {
      *function = reinterpret_cast<std::remove_reference_t<decltype(*function)>>(dlsym(file, name));
      if (*function == nullptr) std::abort();
    };
    resolve("cudaPointerGetAttributes", &found.cudaPointerGetAttributes);
    resolve("cuMemGetAccess", &found.cuMemGetAccess);
    resolve("cudaStreamSynchronize", &found.cudaStreamSynchronize);
    resolve("cudaLaunchHostFunc", &found.cudaLaunchHostFunc);
    return found;
  }();
  return checker;
}

bool IsReached(const void* memory, int device, int access = cuda::kAccessRead) {
  const cuda::MemLocation location = {cuda::kMemLocationDevice, device};
  unsigned long long flags = 0;
  if (TheChecker().cuMemGetAccess(&flags, &location, reinterpret_cast<cuda::DevicePointer>(memory)) ==
      cuda::kResultSuccess) {
    return (flags & access) == static_cast<unsigned>(access);
  }
  cuda::PointerAttributes attributes = {};  // it is nothing that cuMemMap mapped
  TheChecker().cudaPointerGetAttributes(&attributes, memory);
  return attributes.type == cuda::kHost || (attributes.type == cuda::kDevice && attributes.device == device);
}

// What of a launch its device does not reach; null: nothing.
template <typename Descriptor>
const char* Unreached(const HeadraceLaunch& launch, const HeadraceTable& table, const uint64_t* sums) {
  constexpr int kWrite = cuda::kAccessReadWrite;
  const int device = launch.device;
  if (!IsReached(table.descriptors, device) || !IsReached(table.first_tile, device)) return "a table";
  if (sums != nullptr && !IsReached(sums, device, kWrite)) return "sums";
  const auto* const descriptors = static_cast<const Descriptor*>(table.descriptors);
  for (int64_t i = 0; i < table.count; ++i) {
    if (!IsReached(descriptors[i].src, device)) return "a source";
    if (descriptors[i].dst != nullptr && !IsReached(descriptors[i].dst, device, kWrite)) return "a destination";
  }
  return nullptr;
}

// A launch as a stream's work.
struct Walk {
  HeadraceTable table;
  uint64_t* sums;
};

// `run` walks the table: a host function of the stream, whose argument is a Walk.
template <typename Descriptor>
int32_t Launch(const HeadraceLaunch& launch, const HeadraceTable& table, uint64_t* sums, cuda::HostFunction run,
               HeadraceKernelError* error) {
  if (table.count == 0) return 0;
  const auto stream = static_cast<cuda::Stream>(launch.stream);
  const auto fail = [&](cuda::Error code) {
    error->code = code;
    std::snprintf(error->text, sizeof error->text, "the checker refused a launch");
    return code;
  };
  if (const cuda::Error state = TheChecker().cudaStreamSynchronize(stream); state != cuda::kSuccess) return fail(state);
  if (const char* const unreached = Unreached<Descriptor>(launch, table, sums); unreached != nullptr) {
    const char* const on_violation = std::getenv(nccl_checker::kOnViolationVariable);
    if (on_violation == nullptr || std::strcmp(on_violation, "return") != 0) Die(unreached, launch.device);
    return fail(cuda::kErrorInvalidValue);
  }
  auto walk = std::make_unique<Walk>(Walk{table, sums});
  if (const cuda::Error state = TheChecker().cudaLaunchHostFunc(stream, run, walk.get()); state != cuda::kSuccess) {
    return fail(state);
  }
  (void)walk.release();  // the stream's now
  return 0;
}

int32_t Copy(const HeadraceLaunch* launch, const HeadraceTable* table, uint64_t* sums, HeadraceKernelError* error) {
  const auto run = [](void* argument) {
    const std::unique_ptr<Walk> walk(static_cast<Walk*>(argument));
    kernels::HostKernels()->copy(nullptr, &walk->table, walk->sums, nullptr);
  };
  return Launch<kernels::grid::CopyDescriptor>(*launch, *table, sums, run, error);
}

int32_t Elementwise(const HeadraceLaunch* launch, const HeadraceTable* table, HeadraceKernelError* error) {
  const auto run = [](void* argument) {
    const std::unique_ptr<Walk> walk(static_cast<Walk*>(argument));
    kernels::HostKernels()->elementwise(nullptr, &walk->table, nullptr);
  };
  return Launch<kernels::grid::ElementwiseDescriptor>(*launch, *table, /*sums=*/nullptr, run, error);
}

}  // namespace
}  // namespace headrace

extern "C" const HeadraceKernelsV1* HeadraceKernels() {
  static const HeadraceKernelsV1 kernels = [] {
    HeadraceKernelsV1 checked = {};
    checked.version = HEADRACE_KERNELS_VERSION;
    checked.device_count = headrace::kernels::HostKernels()->device_count;
    checked.copy = headrace::Copy;
    checked.elementwise = headrace::Elementwise;
    return checked;
  }();
  return &kernels;
}
