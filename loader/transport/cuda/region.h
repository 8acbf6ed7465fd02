#ifndef HEADRACE_LOADER_TRANSPORT_CUDA_REGION_H_
#define HEADRACE_LOADER_TRANSPORT_CUDA_REGION_H_

// Regions in GPU memory and their keys: the key that the owner's table knows (host/region.h), behind the fabric handle
// and the bytes where the region has one.

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "loader/gpu/shared_memory.h"
#include "loader/transport/host/region.h"
#include "loader/transport/transport.h"

namespace headrace::cuda_regions {

struct RegionKey {
  std::string of_table;
  std::optional<cuda::FabricHandle> fabric;
  int64_t bytes = 0;  // with `fabric`
};
std::string Format(const RegionKey& key);
// kTransport: not such a key.
absl::StatusOr<RegionKey> ParseRegionKey(absl::string_view key);

// What an endpoint's regions are made of.
std::unique_ptr<host::RegionMemory> NewGpuRegions(const SharedMemoryOf& shared);

// Maps a region of another host. Errors are SharedMemoryOf's; kTransport: the key has no fabric handle.
absl::StatusOr<std::unique_ptr<Mapping>> MapByFabric(const SharedMemoryOf& shared, const RegionKey& key);

}  // namespace headrace::cuda_regions

#endif  // HEADRACE_LOADER_TRANSPORT_CUDA_REGION_H_
