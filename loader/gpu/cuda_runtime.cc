#include "loader/gpu/cuda_runtime.h"

#include "absl/strings/str_cat.h"
#include "loader/shared_library.h"
#include "planner/status.h"

namespace headrace {
namespace {

absl::StatusOr<CudaRuntime> Load(const std::string& path) {
  HR_ASSIGN_OR_RETURN(
      SharedLibrary file,
      SharedLibrary::Load({.who = "cuda",
                           .name = "libcudart",
                           .sonames = {"libcudart.so.13", "libcudart.so.12", "libcudart.so"},
                           .path = path,
                           .advice = "install the CUDA runtime (the wheel nvidia-cuda-runtime-cu13, or the CUDA "
                                     "toolkit), put its folder into LD_LIBRARY_PATH, or name the file in "
                                     "HEADRACE_CUDA_RUNTIME"}));
  CudaRuntime cuda;
#define HEADRACE_CUDA_RESOLVE(name, parameters) file.Resolve(#name, &cuda.name);
  HEADRACE_CUDA_FUNCTIONS(HEADRACE_CUDA_RESOLVE)
  HEADRACE_CUDA_TEXT_FUNCTIONS(HEADRACE_CUDA_RESOLVE)
#undef HEADRACE_CUDA_RESOLVE
  HR_RETURN_IF_ERROR(file.CheckResolved("CUDA 12 or later"));
  cuda.path = file.path();
  return cuda;
}

}  // namespace

absl::Status CudaRuntime::Check(cuda::Error error, absl::string_view what) const {
  if (error == cuda::kSuccess) return absl::OkStatus();
  cudaGetLastError();  // what was not sticky is dealt with
  const ErrorCode code = error == cuda::kErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kTransport;
  return Error(code, absl::StrCat(what, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error)));
}

absl::Status CheckGpu(const CudaRuntime& cuda, int gpu) {
  int gpus = 0;
  HR_RETURN_IF_ERROR(cuda.Check(cuda.cudaGetDeviceCount(&gpus), "no GPU: is its driver installed?"));
  if (gpu >= 0 && gpu < gpus) return absl::OkStatus();
  return Error(ErrorCode::kInvalidOption, absl::StrCat("there is no GPU ", gpu, " here: this process sees ", gpus));
}

absl::StatusOr<int> GpuOfEndpoint(const CudaRuntime& cuda, std::optional<int> wanted, absl::string_view name) {
  int gpus = 0, gpu = 0;
  HR_RETURN_IF_ERROR(cuda.Check(cuda.cudaGetDeviceCount(&gpus),
                                absl::StrCat(name, ": no GPU can be used here (is its driver installed?)")));
  if (gpus == 0)
    return Error(ErrorCode::kTransport, absl::StrCat(name, ": no GPU here: use the transport host or ucx"));
  if (wanted.has_value()) {
    gpu = *wanted % gpus;
  } else {
    HR_RETURN_IF_ERROR(cuda.Check(cuda.cudaGetDevice(&gpu), absl::StrCat(name, ": no current device")));
  }
  if (gpu < 0) return Error(ErrorCode::kInvalidOption, absl::StrCat(name, ": no GPU ", gpu));
  return gpu;
}

absl::StatusOr<const CudaRuntime*> LoadCudaRuntime(const std::string& path) {
  // Never destroyed: endpoints may end after main.
  static const auto* const runtime = new absl::StatusOr<CudaRuntime>(Load(path));
  if (!runtime->ok()) return runtime->status();
  return &**runtime;
}

}  // namespace headrace
