#ifndef HEADRACE_LOADER_TESTING_GPU_SIDE_H_
#define HEADRACE_LOADER_TESTING_GPU_SIDE_H_

// Test only. Some blocks of a side's memory (side_memory.h) in the memory of GPUs, each rank's on a GPU of its own,
// with the host's blocks as their mirrors: Upload and Download bring the bytes from one to the other.

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "loader/gpu/cuda_runtime.h"
#include "loader/testing/side_memory.h"
#include "planner/manifest.h"

namespace headrace::testing {

class GpuSide {
 public:
  // `gpu_of`: of a buffer's rank, -1: none. `chosen`: whether a buffer's block, seen at its first buffer, moves there.
  // The device memory begins with the mirror's bytes.
  GpuSide(const CudaRuntime& cuda, const std::vector<Buffer>& buffers, SideMemory* mirror,
          const std::function<int(int64_t rank)>& gpu_of, const std::function<bool(const Buffer&)>& chosen);
  ~GpuSide();

  // Where the memory is that has this byte of a block as its mirror: on a GPU, or `host` itself.
  std::byte* Place(std::byte* host) const;
  // Whether `host` is a byte of one of this side's blocks.
  bool Mirrors(const std::byte* host) const;
  int blocks_on_gpus() const { return static_cast<int>(blocks_.size()); }
  // A stream of a GPU, non-blocking, made at the first call.
  cuda::Stream StreamOf(int gpu);
  // Enqueues the copies of the mirrors' bytes as they are now, on each GPU's stream; returns before they are done.
  void Upload();
  // The mirrors hold what the GPUs do.
  void Download();

 private:
  struct Block {
    int gpu = 0;
    std::byte* host = nullptr;
    size_t bytes = 0;
    std::byte* device = nullptr;
    std::byte* pinned = nullptr;  // what a copy that is under way reads
  };
  void Copy(void* to, const void* from, const Block& block, int kind);

  const CudaRuntime& cuda_;
  std::map<const std::byte*, Block> blocks_;  // by their mirrors' first bytes
  std::map<const std::byte*, size_t> mirrors_;
  std::map<int, cuda::Stream> streams_;
};

}  // namespace headrace::testing

#endif  // HEADRACE_LOADER_TESTING_GPU_SIDE_H_
