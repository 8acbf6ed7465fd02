#ifndef HEADRACE_KERNELS_CUDA_DEVICE_WARP_CUH_
#define HEADRACE_KERNELS_CUDA_DEVICE_WARP_CUH_

// A warp of a GPU, with the interface of HostWarp (kernels/cuda/host_warp.h), and the launch of a kernel of them.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/table.h"

namespace headrace::kernels::grid {

inline constexpr int kBlockThreads = 256;
inline constexpr int kBlockWarps = kBlockThreads / kWarpLanes;

class DeviceWarp {
 public:
  template <class T>
  class PerLane {
   public:
    __device__ T& operator[](int) { return value_; }

   private:
    T value_ = {};
  };

  // `sum_keys`: of kernels/sum_keys.h, where the kernel needs them.
  __device__ explicit DeviceWarp(const uint32_t* sum_keys) : sum_keys_(sum_keys) {}

  __device__ int64_t worker() const {
    return static_cast<int64_t>(blockIdx.x) * kBlockWarps + threadIdx.x / kWarpLanes;
  }
  __device__ int64_t workers() const { return static_cast<int64_t>(gridDim.x) * kBlockWarps; }
  __device__ const uint32_t* sum_keys() const { return sum_keys_; }

  template <class Body>
  __device__ void ForEachLane(Body&& body) const {
    body(Lane());
    __syncwarp();
  }
  template <class Body>
  __device__ void ForFirstLane(Body&& body) const {
    if (Lane() == 0) body();
  }

  __device__ uint64_t Sum(PerLane<uint64_t>& value) const {
    unsigned long long sum = value[0];
    for (int step = kWarpLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    return sum;
  }
  template <int kGroup>
  __device__ void GroupMax(PerLane<uint32_t>& value) const {
    for (int step = kGroup / 2; step > 0; step /= 2) {
      value[0] = internal::Max(value[0], static_cast<uint32_t>(__shfl_xor_sync(kAllLanes, value[0], step)));
    }
  }

  __device__ void AtomicAdd(uint64_t* at, uint64_t value) const {
    atomicAdd(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
  }
  __device__ void AtomicMax(uint32_t* at, uint32_t value) const { atomicMax(at, value); }

  // What is copied is not read again soon: accesses of a word or more give way in the caches.
  template <class T>
  __device__ T Load(const std::byte* from) const {
    T value;
    if constexpr (sizeof(T) % 16 == 0) {
      uint4 part[sizeof(T) / 16];
#pragma unroll
      for (size_t i = 0; i < sizeof(T) / 16; ++i) part[i] = __ldcs(reinterpret_cast<const uint4*>(from) + i);
      memcpy(&value, part, sizeof(T));
    } else if constexpr (sizeof(T) == 8) {
      const uint2 part = __ldcs(reinterpret_cast<const uint2*>(from));
      memcpy(&value, &part, sizeof(T));
    } else if constexpr (sizeof(T) == 4) {
      const unsigned part = __ldcs(reinterpret_cast<const unsigned*>(from));
      memcpy(&value, &part, sizeof(T));
    } else {
      value = *reinterpret_cast<const T*>(from);
    }
    return value;
  }
  template <class T>
  __device__ void Store(std::byte* to, const T& value) const {
    if constexpr (sizeof(T) % 16 == 0) {
      uint4 part[sizeof(T) / 16];
      memcpy(part, &value, sizeof(T));
#pragma unroll
      for (size_t i = 0; i < sizeof(T) / 16; ++i) __stcs(reinterpret_cast<uint4*>(to) + i, part[i]);
    } else if constexpr (sizeof(T) == 8) {
      uint2 part;
      memcpy(&part, &value, sizeof(T));
      __stcs(reinterpret_cast<uint2*>(to), part);
    } else if constexpr (sizeof(T) == 4) {
      unsigned part;
      memcpy(&part, &value, sizeof(T));
      __stcs(reinterpret_cast<unsigned*>(to), part);
    } else {
      *reinterpret_cast<T*>(to) = value;
    }
  }

 private:
  static constexpr unsigned kAllLanes = 0xFFFFFFFFu;

  __device__ static int Lane() { return static_cast<int>(threadIdx.x % kWarpLanes); }

  const uint32_t* sum_keys_;
};

template <class Descriptor>
Table<Descriptor> TableOf(const HeadraceTable& table) {
  return {static_cast<const Descriptor*>(table.descriptors), table.first_tile, table.count, table.tiles};
}

// Launches `kernel`, whose warps share the tiles of `table`: as many blocks as fit on the GPU at once, or fewer where
// there is less than a tile for each warp.
template <class... Parameters, class... Arguments>
int32_t LaunchWarps(const HeadraceLaunch& launch, int64_t tiles, void (*kernel)(Parameters...),
                    HeadraceKernelError* error, Arguments... arguments) {
  if (tiles == 0) return 0;
  DeviceScope scope(launch.device);
  if (scope.status() != cudaSuccess) return Report(scope.status(), "cudaSetDevice", error);
  int processors = 0, blocks_each = 0;
  cudaError_t status = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, launch.device);
  if (status != cudaSuccess) return Report(status, "cudaDeviceGetAttribute", error);
  status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_each, kernel, kBlockThreads, 0);
  if (status != cudaSuccess) return Report(status, "cudaOccupancyMaxActiveBlocksPerMultiprocessor", error);
  const int64_t most = static_cast<int64_t>(processors) * internal::Max(1, blocks_each);
  const int64_t blocks = internal::Min(most, (tiles + kBlockWarps - 1) / kBlockWarps);
  kernel<<<static_cast<unsigned>(blocks), kBlockThreads, 0, static_cast<cudaStream_t>(launch.stream)>>>(arguments...);
  status = cudaGetLastError();
  return status == cudaSuccess ? 0 : Report(status, "the launch", error);
}

}  // namespace headrace::kernels::grid

#endif  // HEADRACE_KERNELS_CUDA_DEVICE_WARP_CUH_
