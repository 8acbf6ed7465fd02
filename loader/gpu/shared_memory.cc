#include "loader/gpu/shared_memory.h"

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr absl::string_view kNoLeave =
    ": this process may not share memory in an NVLink domain, which takes the IMEX service and a channel of it. Take "
    "the transport nccl or ucx";

bool IsRefusal(cuda::Result result) {
  return result == cuda::kResultNotPermitted || result == cuda::kResultNotSupported;
}

}  // namespace

SharedMemory::~SharedMemory() {
  const auto address = reinterpret_cast<cuda::DevicePointer>(data_);
  driver_.cuMemUnmap(address, static_cast<size_t>(mapped_bytes_));
  driver_.cuMemAddressFree(address, static_cast<size_t>(mapped_bytes_));
}

absl::StatusOr<SharedMemoryOf> SharedMemoryOf::Gpu(const CudaRuntime& cuda, const CudaDriver& driver, int gpu) {
  HR_RETURN_IF_ERROR(CheckGpu(cuda, gpu));
  cuda::Device device = 0;
  HR_RETURN_IF_ERROR(driver.Check(driver.cuDeviceGet(&device, gpu), absl::StrCat("looking for GPU ", gpu)));
  const auto has = [&](int attribute) {
    int value = 0;
    return driver.cuDeviceGetAttribute(&value, attribute, device) == cuda::kResultSuccess && value != 0;
  };
  const bool fd = has(cuda::kHandleTypePosixFdSupported), fabric = has(cuda::kHandleTypeFabricSupported);
  if (!has(cuda::kVirtualMemoryManagementSupported) || (!fd && !fabric)) {
    return Error(ErrorCode::kTransport, absl::StrCat("the driver of GPU ", gpu,
                                                     " shares no memory between processes (virtual memory management "
                                                     "with file descriptors or fabric handles)"));
  }
  return SharedMemoryOf(cuda, driver, gpu, fd, fabric);
}

cuda::AllocationProp SharedMemoryOf::Properties(int handle_types) const {
  cuda::AllocationProp properties = {};
  properties.type = cuda::kAllocationTypePinned;
  properties.requested_handle_types = handle_types;
  properties.location = {cuda::kMemLocationDevice, gpu_};
  return properties;
}

absl::StatusOr<int64_t> SharedMemoryOf::RoundUp(int64_t bytes) const {
  constexpr int64_t kMost = int64_t{1} << 46;  // more than any GPU has: a peer's word may be anything
  if (bytes < 1 || bytes > kMost) return Error(ErrorCode::kTransport, absl::StrCat("map: ", bytes, " bytes of a GPU"));
  const cuda::AllocationProp properties = Properties(fd_ ? cuda::kHandleTypePosixFd : cuda::kHandleTypeFabric);
  size_t unit = 0;
  HR_RETURN_IF_ERROR(
      driver_->Check(driver_->cuMemGetAllocationGranularity(&unit, &properties, cuda::kGranularityMinimum),
                     "the unit of allocations"));
  const int64_t step = static_cast<int64_t>(unit);
  return (bytes + step - 1) / step * step;
}

absl::Status SharedMemoryOf::CheckFree(int64_t bytes) const {
  const CurrentDevice current(*cuda_, gpu_);
  size_t free = 0, total = 0;
  HR_RETURN_IF_ERROR(cuda_->Check(cuda_->cudaMemGetInfo(&free, &total), absl::StrCat("the memory of GPU ", gpu_)));
  if (static_cast<uint64_t>(bytes) <= free) return absl::OkStatus();
  return Error(ErrorCode::kOutOfMemory, absl::StrCat("a region of ", bytes, " bytes is needed of the memory of GPU ",
                                                     gpu_, ", of which ", free, " of ", total, " are free"));
}

absl::Status SharedMemoryOf::Clear(std::byte* data, int64_t bytes) const {
  const CurrentDevice current(*cuda_, gpu_);
  cuda::Stream stream = nullptr;
  HR_RETURN_IF_ERROR(
      cuda_->Check(cuda_->cudaStreamCreateWithFlags(&stream, cuda::kStreamNonBlocking), "making a stream"));
  absl::Status cleared =
      cuda_->Check(cuda_->cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), stream), "clearing a region");
  cleared.Update(cuda_->Check(cuda_->cudaStreamSynchronize(stream), "clearing a region"));
  cuda_->cudaStreamDestroy(stream);
  return cleared;
}

absl::StatusOr<SharedHandles> SharedMemoryOf::Export(cuda::AllocationHandle handle, int types) const {
  SharedHandles handles;
  if ((types & cuda::kHandleTypePosixFd) != 0) {
    int fd = -1;
    HR_RETURN_IF_ERROR(
        driver_->Check(driver_->cuMemExportToShareableHandle(&fd, handle, cuda::kHandleTypePosixFd, 0),
                       absl::StrCat("exporting memory of GPU ", gpu_, " to other processes of this host")));
    handles.fd = Descriptor(fd);
  }
  if ((types & cuda::kHandleTypeFabric) != 0) {
    cuda::FabricHandle fabric;
    HR_RETURN_IF_ERROR(
        driver_->Check(driver_->cuMemExportToShareableHandle(&fabric, handle, cuda::kHandleTypeFabric, 0),
                       absl::StrCat("exporting memory of GPU ", gpu_, " to its NVLink domain")));
    handles.fabric = fabric;
  }
  return handles;
}

absl::StatusOr<std::pair<std::unique_ptr<SharedMemory>, SharedHandles>> SharedMemoryOf::Allocate(int64_t bytes) const {
  HR_RETURN_IF_ERROR(CheckFree(bytes));
  HR_ASSIGN_OR_RETURN(const int64_t rounded, RoundUp(bytes));
  const int types = (fd_ ? cuda::kHandleTypePosixFd : 0) | (fabric_ ? cuda::kHandleTypeFabric : 0);
  // A GPU may know fabric handles on a machine that is in no NVLink domain, or where this process has no leave to use
  // it (no IMEX channel): that is found out here alone.
  for (const int asked : {types, types & ~cuda::kHandleTypeFabric}) {
    const cuda::AllocationProp properties = Properties(asked);
    cuda::AllocationHandle handle = 0;
    const cuda::Result created = driver_->cuMemCreate(&handle, static_cast<size_t>(rounded), &properties, 0);
    if (IsRefusal(created) && (asked & cuda::kHandleTypeFabric) != 0) {
      if (fd_) continue;
      return driver_->Check(created, absl::StrCat("GPU ", gpu_, kNoLeave));
    }
    HR_RETURN_IF_ERROR(
        driver_->Check(created, absl::StrCat("a region of ", bytes, " bytes of the memory of GPU ", gpu_)));
    absl::StatusOr<SharedHandles> handles = Export(handle, asked);
    if (!handles.ok()) {
      driver_->cuMemRelease(handle);
      return handles.status();
    }
    HR_ASSIGN_OR_RETURN(auto memory, MapHandle(handle, bytes, cuda::kAccessReadWrite));
    HR_RETURN_IF_ERROR(Clear(memory->data(), rounded));
    return std::make_pair(std::move(memory), *std::move(handles));
  }
  return Error(ErrorCode::kTransport, absl::StrCat("GPU ", gpu_, " allocates no memory that can be shared"));
}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemoryOf::Map(const Descriptor& fd, int64_t bytes) const {
  cuda::AllocationHandle handle = 0;
  void* const shareable = reinterpret_cast<void*>(static_cast<intptr_t>(fd.get()));
  HR_RETURN_IF_ERROR(
      driver_->Check(driver_->cuMemImportFromShareableHandle(&handle, shareable, cuda::kHandleTypePosixFd),
                     absl::StrCat("map: what the owner sent is no memory for GPU ", gpu_)));
  return MapHandle(handle, bytes, cuda::kAccessRead);
}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemoryOf::Map(cuda::FabricHandle fabric, int64_t bytes) const {
  cuda::AllocationHandle handle = 0;
  const cuda::Result imported = driver_->cuMemImportFromShareableHandle(&handle, &fabric, cuda::kHandleTypeFabric);
  if (IsRefusal(imported)) return driver_->Check(imported, absl::StrCat("map: GPU ", gpu_, kNoLeave));
  // Of all else a handle whose owner is gone is the likely one: there the next epoch has the bytes of others.
  if (imported != cuda::kResultSuccess) {
    const absl::Status why = driver_->Check(imported, absl::StrCat("map: memory by fabric handle for GPU ", gpu_,
                                                                   ": its owner is gone, or they are not in one NVLink "
                                                                   "domain"));
    return Error(ErrorCode::kPeerLost, why.message());
  }
  return MapHandle(handle, bytes, cuda::kAccessRead);
}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemoryOf::MapHandle(cuda::AllocationHandle handle, int64_t bytes,
                                                                        int access) const {
  // The mapping keeps the memory.
  const absl::Cleanup release = [&] { driver_->cuMemRelease(handle); };
  HR_ASSIGN_OR_RETURN(const int64_t rounded, RoundUp(bytes));
  const auto size = static_cast<size_t>(rounded);
  cuda::DevicePointer address = 0;
  HR_RETURN_IF_ERROR(driver_->Check(driver_->cuMemAddressReserve(&address, size, 0, 0, 0),
                                    absl::StrCat("map: ", rounded, " bytes of addresses")));
  absl::Status mapped =
      driver_->Check(driver_->cuMemMap(address, size, 0, handle, 0), absl::StrCat("map: ", rounded, " bytes"));
  if (!mapped.ok()) {
    driver_->cuMemAddressFree(address, size);
    return mapped;
  }
  auto memory = std::make_unique<SharedMemory>(*driver_, reinterpret_cast<std::byte*>(address), rounded);
  const cuda::AccessDesc desc = {{cuda::kMemLocationDevice, gpu_}, access};
  HR_RETURN_IF_ERROR(driver_->Check(driver_->cuMemSetAccess(address, size, &desc, 1),
                                    absl::StrCat("map: GPU ", gpu_, " does not reach the memory of the owner's GPU")));
  return memory;
}

}  // namespace headrace
