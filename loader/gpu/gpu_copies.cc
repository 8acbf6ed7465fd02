#include "loader/gpu/gpu_copies.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cast.h"
#include "kernels/cuda/library.h"
#include "loader/gpu/gpu_options.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr char kKernelsName[] = "libheadrace_cuda.so";

// The file beside the one that holds this function, or a name for the loader's search path.
std::string DefaultKernels() {
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(&DefaultKernels), &info) != 0 && info.dli_fname != nullptr) {
    const std::string own = info.dli_fname;
    const std::string beside = own.substr(0, own.rfind('/') + 1) + kKernelsName;
    if (access(beside.c_str(), R_OK) == 0) return beside;
  }
  return kKernelsName;
}

absl::StatusOr<const HeadraceKernelsV1*> LoadKernels() {
  const std::string named = GpuOptionsFromEnvironment().kernels;
  const kernels::KernelLibrary library = kernels::LoadKernelLibrary(named.empty() ? DefaultKernels() : named);
  if (library.error == kernels::LibraryError::kNone) return library.kernels;
  return Error(ErrorCode::kTransport,
               absl::StrCat("the GPU kernels could not be loaded: ", library.message,
                            ". Build them (bazel build //kernels/cuda:libheadrace_cuda.so, where the CUDA toolkit is) "
                            "and name the file in HEADRACE_CUDA_KERNELS"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuCopies>> GpuCopies::Create(int gpu) {
  HR_ASSIGN_OR_RETURN(const CudaRuntime* cuda, LoadCudaRuntime(GpuOptionsFromEnvironment().cuda_runtime));
  HR_RETURN_IF_ERROR(CheckGpu(*cuda, gpu));
  HR_ASSIGN_OR_RETURN(const HeadraceKernelsV1* kernels, LoadKernels());
  std::unique_ptr<GpuCopies> copies(new GpuCopies(*cuda, *kernels, gpu));
  HR_RETURN_IF_ERROR(copies->Start());
  return copies;
}

absl::Status GpuCopies::Start() {
  constexpr absl::string_view kWhat = "tables of copies";
  constexpr int64_t kSumBytes = kMostSums * int64_t{sizeof(uint64_t)};
  HR_ASSIGN_OR_RETURN(image_, DeviceMemory::Allocate(cuda_, gpu_, kMostImageBytes, kWhat));
  HR_ASSIGN_OR_RETURN(pinned_image_, DeviceMemory::AllocatePinned(cuda_, gpu_, kMostImageBytes, kWhat));
  HR_ASSIGN_OR_RETURN(sums_, DeviceMemory::Allocate(cuda_, gpu_, kSumBytes, kWhat));
  HR_ASSIGN_OR_RETURN(pinned_sums_, DeviceMemory::AllocatePinned(cuda_, gpu_, kSumBytes, kWhat));
  const CurrentDevice current(cuda_, gpu_);
  HR_RETURN_IF_ERROR(
      cuda_.Check(cuda_.cudaStreamCreateWithFlags(&stream_, cuda::kStreamNonBlocking), "making a stream"));
  return LoadEachKernel();
}

absl::Status GpuCopies::LoadEachKernel() {
  kernels::StridedCopy box;
  box.src = sums_->data() + sizeof(uint64_t);
  box.dst = sums_->data() + 2 * sizeof(uint64_t);
  box.run_bytes = sizeof(uint64_t);
  kernels::CopyTable table;
  table.AddCopy(box, 0);
  kernels::StridedCast cast;
  cast.src = box.src;
  cast.dst = box.dst;
  kernels::ElementwiseTable casts;
  casts.AddCast(kernels::FloatType::kF32, kernels::FloatType::kBF16, cast);
  uint64_t sum = 0;
  HR_RETURN_IF_ERROR(Run(table, {}));
  HR_RETURN_IF_ERROR(Run(casts));
  return Run(table, absl::MakeSpan(&sum, 1));
}

GpuCopies::~GpuCopies() {
  if (stream_ == nullptr) return;
  const CurrentDevice current(cuda_, gpu_);
  cuda_.cudaStreamSynchronize(stream_);
  cuda_.cudaStreamDestroy(stream_);
}

absl::StatusOr<GpuCopies::Uploaded> GpuCopies::Upload(const kernels::CopyTable& table) const {
  Uploaded uploaded;
  if (table.descriptors().empty()) return uploaded;
  const std::vector<std::byte> image = table.Image();
  HR_ASSIGN_OR_RETURN(uploaded.image, DeviceMemory::Allocate(cuda_, gpu_, table.ImageBytes(), "a table of copies"));
  const CurrentDevice current(cuda_, gpu_);
  // Of pageable memory: it has been read when the call returns, and a stream that is made now runs behind it.
  cuda::Stream stream = nullptr;
  HR_RETURN_IF_ERROR(
      cuda_.Check(cuda_.cudaStreamCreateWithFlags(&stream, cuda::kStreamNonBlocking), "making a stream"));
  absl::Status copied = cuda_.Check(
      cuda_.cudaMemcpyAsync(uploaded.image->data(), image.data(), image.size(), cuda::kMemcpyHostToDevice, stream),
      "copying a table to a GPU");
  absl::Status there = cuda_.Check(cuda_.cudaStreamSynchronize(stream), "copying a table to a GPU");
  cuda_.cudaStreamDestroy(stream);
  HR_RETURN_IF_ERROR(copied);
  HR_RETURN_IF_ERROR(there);
  uploaded.table = table.At(uploaded.image->data());
  return uploaded;
}

absl::Status GpuCopies::Launch(const HeadraceTable& table, uint64_t* sums) {
  const HeadraceLaunch launch = {gpu_, stream_};
  HeadraceKernelError error = {};
  if (kernels_.copy(&launch, &table, sums, &error) == 0) return absl::OkStatus();
  return Failed("copies", error);
}

absl::Status GpuCopies::Failed(absl::string_view what, const HeadraceKernelError& error) const {
  return Error(error.code == cuda::kErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kTransport,
               absl::StrCat(what, " on GPU ", gpu_, ": ", error.text));
}

template <typename Table>
absl::StatusOr<HeadraceTable> GpuCopies::SendImage(const Table& table) {
  const std::vector<std::byte> image = table.Image();
  std::memcpy(pinned_image_->data(), image.data(), image.size());
  HR_RETURN_IF_ERROR(cuda_.Check(
      cuda_.cudaMemcpyAsync(image_->data(), pinned_image_->data(), image.size(), cuda::kMemcpyHostToDevice, stream_),
      absl::StrCat("a table for GPU ", gpu_)));
  return table.At(image_->data());
}

absl::Status GpuCopies::Run(const Uploaded& table) {
  if (table.image == nullptr) return absl::OkStatus();
  const CurrentDevice current(cuda_, gpu_);
  HR_RETURN_IF_ERROR(Launch(table.table, nullptr));
  return cuda_.Check(cuda_.cudaStreamSynchronize(stream_), absl::StrCat("copies on GPU ", gpu_));
}

absl::Status GpuCopies::Run(const kernels::CopyTable& table, absl::Span<uint64_t> sums) {
  if (table.descriptors().empty()) return absl::OkStatus();
  const CurrentDevice current(cuda_, gpu_);
  const std::string what = absl::StrCat("copies on GPU ", gpu_);
  const size_t sum_bytes = sums.size() * sizeof(uint64_t);
  auto* const summed = sums.empty() ? nullptr : reinterpret_cast<uint64_t*>(sums_->data());
  const auto enqueue = [&]() -> absl::Status {
    HR_ASSIGN_OR_RETURN(const HeadraceTable sent, SendImage(table));
    if (summed != nullptr) {
      HR_RETURN_IF_ERROR(cuda_.Check(cuda_.cudaMemsetAsync(summed, 0, sum_bytes, stream_), what));
    }
    HR_RETURN_IF_ERROR(Launch(sent, summed));
    if (summed == nullptr) return absl::OkStatus();
    return cuda_.Check(
        cuda_.cudaMemcpyAsync(pinned_sums_->data(), summed, sum_bytes, cuda::kMemcpyDeviceToHost, stream_), what);
  };
  const absl::Status enqueued = enqueue();
  // Whatever was enqueued must not run on while its memory is used again.
  const absl::Status done = cuda_.Check(cuda_.cudaStreamSynchronize(stream_), what);
  HR_RETURN_IF_ERROR(enqueued);
  HR_RETURN_IF_ERROR(done);
  for (size_t i = 0; i < sums.size(); ++i) {
    uint64_t sum;
    std::memcpy(&sum, pinned_sums_->data() + i * sizeof sum, sizeof sum);
    sums[i] += sum;
  }
  return absl::OkStatus();
}

absl::Status GpuCopies::Run(const kernels::ElementwiseTable& table) {
  if (table.descriptors().empty()) return absl::OkStatus();
  const CurrentDevice current(cuda_, gpu_);
  const auto enqueue = [&]() -> absl::Status {
    HR_ASSIGN_OR_RETURN(const HeadraceTable sent, SendImage(table));
    const HeadraceLaunch launch = {gpu_, stream_};
    HeadraceKernelError error = {};
    return kernels_.elementwise(&launch, &sent, &error) == 0 ? absl::OkStatus() : Failed("conversions", error);
  };
  const absl::Status enqueued = enqueue();
  const absl::Status done =
      cuda_.Check(cuda_.cudaStreamSynchronize(stream_), absl::StrCat("conversions on GPU ", gpu_));
  return enqueued.ok() ? done : enqueued;
}

absl::Status GpuCopies::Load(const std::byte* from, absl::Span<std::byte> to) {
  return CopyNow(to.data(), from, to.size(), cuda::kMemcpyDeviceToHost);
}

absl::Status GpuCopies::Store(absl::Span<const std::byte> from, std::byte* to) {
  return CopyNow(to, from.data(), from.size(), cuda::kMemcpyHostToDevice);
}

absl::Status GpuCopies::CopyNow(void* to, const void* from, size_t bytes, int kind) {
  if (bytes == 0) return absl::OkStatus();
  const CurrentDevice current(cuda_, gpu_);
  const std::string what = absl::StrCat("a copy between the host and GPU ", gpu_);
  const absl::Status enqueued = cuda_.Check(cuda_.cudaMemcpyAsync(to, from, bytes, kind, stream_), what);
  const absl::Status done = cuda_.Check(cuda_.cudaStreamSynchronize(stream_), what);
  return enqueued.ok() ? done : enqueued;
}

}  // namespace headrace
