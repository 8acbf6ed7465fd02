#include "loader/gpu/cuda_driver.h"

#include "absl/strings/str_cat.h"
#include "loader/shared_library.h"
#include "planner/status.h"

namespace headrace {
namespace {

absl::StatusOr<CudaDriver> Load(const std::string& path) {
  HR_ASSIGN_OR_RETURN(
      SharedLibrary file,
      SharedLibrary::Load({.who = "cuda",
                           .name = "libcuda",
                           .sonames = {"libcuda.so.1"},
                           .path = path,
                           .advice = "install NVIDIA's driver (a container gets it from the host, by the NVIDIA "
                                     "container toolkit), or name the file in HEADRACE_CUDA_DRIVER"}));
  CudaDriver driver;
#define HEADRACE_CUDA_RESOLVE(name, parameters) file.Resolve(#name, &driver.name);
  HEADRACE_CUDA_DRIVER_FUNCTIONS(HEADRACE_CUDA_RESOLVE)
#undef HEADRACE_CUDA_RESOLVE
  HR_RETURN_IF_ERROR(file.CheckResolved("a driver of CUDA 12 or later"));
  driver.path = file.path();
  HR_RETURN_IF_ERROR(driver.Check(driver.cuInit(0), absl::StrCat("cuda: ", driver.path, " did not begin")));
  return driver;
}

}  // namespace

absl::Status CudaDriver::Check(cuda::Result result, absl::string_view what) const {
  if (result == cuda::kResultSuccess) return absl::OkStatus();
  // They leave null where they do not know the result.
  const char *name = nullptr, *text = nullptr;
  cuGetErrorName(result, &name);
  cuGetErrorString(result, &text);
  const ErrorCode code = result == cuda::kResultOutOfMemory ? ErrorCode::kOutOfMemory : ErrorCode::kTransport;
  if (name == nullptr || text == nullptr) return Error(code, absl::StrCat(what, ": CUDA error ", result));
  return Error(code, absl::StrCat(what, ": ", name, ": ", text));
}

absl::StatusOr<const CudaDriver*> LoadCudaDriver(const std::string& path) {
  // Never destroyed: memory may be given back after main.
  static const auto* const driver = new absl::StatusOr<CudaDriver>(Load(path));
  if (!driver->ok()) return driver->status();
  return &**driver;
}

}  // namespace headrace
