#ifndef HEADRACE_LOADER_TRANSPORT_CUDA_CUDA_H_
#define HEADRACE_LOADER_TRANSPORT_CUDA_CUDA_H_

// GPU memory that peers map: of processes of one host, and across hosts where their GPUs are in one NVLink domain. A
// receiver's GPU reads the publisher's snapshot where it lies, by its own kernels, over NVLink or out of the memory
// that both share. No messages; memory that Headrace has not allocated itself is not shared.
//
// Each endpoint is on one GPU, and so are its regions (gpu/shared_memory.h). On one host peers get their descriptors as
// those of the transport host do (host/host.h says who may have them). A peer of another host imports the fabric handle
// that is in the region's key: it asks nobody, so whether the owner still lives, and whether the key is that owner's
// and of a region that still stands, is not found out.

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "loader/gpu/gpu_options.h"
#include "loader/transport/transport.h"

namespace headrace {

struct CudaOptions {
  std::optional<int> gpu;  // modulo the number of GPUs here; none: the calling thread's current device
  // What endpoints of one host have in common; none: the kernel's boot id.
  std::optional<std::string> host;
  GpuOptions libraries = GpuOptionsFromEnvironment();
};

// kTransport: no CUDA runtime, driver or GPU, or one that does not share memory, each with what to do; no socket.
absl::StatusOr<std::unique_ptr<Transport>> NewCudaTransport(const CudaOptions& options = {});

}  // namespace headrace

#endif  // HEADRACE_LOADER_TRANSPORT_CUDA_CUDA_H_
