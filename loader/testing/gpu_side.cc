#include "loader/testing/gpu_side.h"

#include <cstring>
#include <set>

#include "gtest/gtest.h"

namespace headrace::testing {

GpuSide::GpuSide(const CudaRuntime& cuda, const std::vector<Buffer>& buffers, SideMemory* mirror,
                 const std::function<int(int64_t rank)>& gpu_of, const std::function<bool(const Buffer&)>& chosen)
    : cuda_(cuda) {
  for (const absl::Span<std::byte> block : mirror->blocks()) mirrors_[block.data()] = block.size();
  std::set<const std::byte*> seen;
  for (const Buffer& b : buffers) {
    const auto mirrored = std::prev(mirrors_.upper_bound(mirror->First(b)));
    if (!seen.insert(mirrored->first).second || gpu_of(b.rank) < 0 || !chosen(b)) continue;
    Block block{gpu_of(b.rank), const_cast<std::byte*>(mirrored->first), mirrored->second};
    const CurrentDevice current(cuda_, block.gpu);
    EXPECT_EQ(cuda_.cudaMalloc(reinterpret_cast<void**>(&block.device), block.bytes), cuda::kSuccess);
    EXPECT_EQ(cuda_.cudaHostAlloc(reinterpret_cast<void**>(&block.pinned), block.bytes, cuda::kHostAllocPortable),
              cuda::kSuccess);
    blocks_[block.host] = block;
    StreamOf(block.gpu);
  }
  Upload();
  for (const auto& [gpu, stream] : streams_) EXPECT_EQ(cuda_.cudaStreamSynchronize(stream), cuda::kSuccess);
}

GpuSide::~GpuSide() {
  for (const auto& [gpu, stream] : streams_) {
    EXPECT_EQ(cuda_.cudaStreamSynchronize(stream), cuda::kSuccess);
    EXPECT_EQ(cuda_.cudaStreamDestroy(stream), cuda::kSuccess);
  }
  for (const auto& [host, block] : blocks_) {
    EXPECT_EQ(cuda_.cudaFree(block.device), cuda::kSuccess);
    EXPECT_EQ(cuda_.cudaFreeHost(block.pinned), cuda::kSuccess);
  }
}

std::byte* GpuSide::Place(std::byte* host) const {
  const auto next = blocks_.upper_bound(host);
  if (next == blocks_.begin()) return host;
  const Block& block = std::prev(next)->second;
  return host < block.host + block.bytes ? block.device + (host - block.host) : host;
}

bool GpuSide::Mirrors(const std::byte* host) const {
  const auto next = mirrors_.upper_bound(host);
  return next != mirrors_.begin() && host < std::prev(next)->first + std::prev(next)->second;
}

cuda::Stream GpuSide::StreamOf(int gpu) {
  cuda::Stream& stream = streams_[gpu];
  const CurrentDevice current(cuda_, gpu);
  if (stream == nullptr) {
    EXPECT_EQ(cuda_.cudaStreamCreateWithFlags(&stream, cuda::kStreamNonBlocking), cuda::kSuccess);
  }
  return stream;
}

void GpuSide::Copy(void* to, const void* from, const Block& block, int kind) {
  const CurrentDevice current(cuda_, block.gpu);
  EXPECT_EQ(cuda_.cudaMemcpyAsync(to, from, block.bytes, kind, streams_.at(block.gpu)), cuda::kSuccess);
}

void GpuSide::Upload() {
  for (const auto& [host, block] : blocks_) {
    std::memcpy(block.pinned, block.host, block.bytes);
    Copy(block.device, block.pinned, block, cuda::kMemcpyHostToDevice);
  }
}

void GpuSide::Download() {
  for (const auto& [host, block] : blocks_) {
    Copy(block.pinned, block.device, block, cuda::kMemcpyDeviceToHost);
    EXPECT_EQ(cuda_.cudaStreamSynchronize(streams_.at(block.gpu)), cuda::kSuccess);
    std::memcpy(block.host, block.pinned, block.bytes);
  }
}

}  // namespace headrace::testing
