#include "loader/gpu/gpu_box_work.h"

#include <cstdint>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {
namespace {

// The widest loads want chunks that begin where these do.
constexpr int64_t kChunkAlignment = 256;

}  // namespace

absl::StatusOr<std::unique_ptr<GpuBoxWork>> GpuBoxWork::WithoutChunks(int gpu) {
  HR_ASSIGN_OR_RETURN(auto copies, GpuCopies::Create(gpu));
  return std::unique_ptr<GpuBoxWork>(new GpuBoxWork(std::move(copies)));
}

absl::StatusOr<std::unique_ptr<GpuBoxWork>> GpuBoxWork::Create(int gpu, const Transport& transport, int64_t chunk_bytes,
                                                               int64_t staging_bytes) {
  HR_ASSIGN_OR_RETURN(auto work, WithoutChunks(gpu));
  if (transport.capabilities().map) return work;
  const int64_t count = chunk_bytes > 0 ? staging_bytes / chunk_bytes : 0;
  if (count <= 0) return work;  // which whoever sends or receives refuses (staging.h)
  constexpr absl::string_view kWhat = "chunks (staging_bytes)";
  const CudaRuntime& cuda = work->copies_->cuda();
  const int64_t stride = (chunk_bytes + kChunkAlignment - 1) / kChunkAlignment * kChunkAlignment;
  HR_ASSIGN_OR_RETURN(work->chunk_memory_, transport.capabilities().gpu == gpu
                                               ? DeviceMemory::Allocate(cuda, gpu, count * stride, kWhat)
                                               : DeviceMemory::AllocatePinned(cuda, gpu, count * stride, kWhat));
  for (int64_t i = count; i-- > 0;) work->free_chunks_.push_back(work->chunk_memory_->data() + i * stride);
  return work;
}

absl::StatusOr<Chunk> GpuBoxWork::NewChunk(int64_t bytes) {
  if (free_chunks_.empty()) {
    return Error(ErrorCode::kOutOfMemory,
                 absl::StrCat("no chunk of ", bytes, " bytes is left on GPU ", copies_->gpu()));
  }
  Chunk chunk(free_chunks_.back(), [this](std::byte* memory) { free_chunks_.push_back(memory); });
  free_chunks_.pop_back();
  return chunk;
}

int64_t GpuBoxWork::SlotOf(uint64_t* sum) {
  if (sums_.empty() || sums_.back() != sum) sums_.push_back(sum);
  return static_cast<int64_t>(sums_.size()) - 1;
}

void GpuBoxWork::Copy(const kernels::StridedCopy& box, uint64_t* sum) {
  if (sum == nullptr) {
    unsummed_.AddCopy(box, 0);
  } else {
    summed_.AddCopy(box, SlotOf(sum));
  }
  RunIfFull();
}

void GpuBoxWork::Cast(kernels::FloatType from, kernels::FloatType to, const kernels::StridedCast& cast) {
  const auto aligned = [](const std::byte* element, kernels::FloatType type) {
    return reinterpret_cast<uintptr_t>(element) % kernels::FloatBytes(type) == 0;
  };
  if (!aligned(cast.src, from) || !aligned(cast.dst, to)) {
    error_.Update(Error(ErrorCode::kInvalidOption,
                        absl::StrCat("a buffer in the memory of GPU ", copies_->gpu(),
                                     " is converted, and its elements are not aligned to their size")));
    return;
  }
  casts_.AddCast(from, to, cast);
  RunIfFull();
}

void GpuBoxWork::Pack(const kernels::StridedCopy& box, int64_t first, absl::Span<std::byte> out) {
  unsummed_.AddPack(box, first, std::span(out.data(), out.size()), 0);
  RunIfFull();
}

void GpuBoxWork::Unpack(const kernels::StridedCopy& box, int64_t first, absl::Span<const std::byte> in, uint64_t* sum) {
  summed_.AddUnpack(box, first, std::span(in.data(), in.size()), SlotOf(sum));
  RunIfFull();
}

void GpuBoxWork::Sum(const kernels::StridedCopy& box, uint64_t* sum) {
  summed_.AddSum(box, SlotOf(sum));
  RunIfFull();
}

void GpuBoxWork::RunIfFull() {
  // One box makes a few descriptors at most.
  constexpr int64_t kFull = GpuCopies::kMostImageBytes - (int64_t{64} << 10);
  const bool is_full = unsummed_.ImageBytes() > kFull || summed_.ImageBytes() > kFull || casts_.ImageBytes() > kFull ||
                       static_cast<int64_t>(sums_.size()) == GpuCopies::kMostSums;
  if (is_full) RunBatch();
}

void GpuBoxWork::RunBatch() {
  std::vector<uint64_t> sums(sums_.size());
  absl::Status done = copies_->Run(casts_);
  if (done.ok()) done = copies_->Run(unsummed_, {});
  if (done.ok()) done = copies_->Run(summed_, absl::MakeSpan(sums));
  for (size_t i = 0; done.ok() && i < sums.size(); ++i) *sums_[i] += sums[i];
  error_.Update(done);
  casts_ = {};
  unsummed_ = summed_ = {};
  sums_.clear();
}

absl::Status GpuBoxWork::Finish() {
  RunBatch();
  return std::exchange(error_, absl::OkStatus());
}

absl::Status GpuBoxWork::LoadWords(const std::byte* from, absl::Span<uint64_t> to) {
  return copies_->Load(from, {reinterpret_cast<std::byte*>(to.data()), to.size() * sizeof(uint64_t)});
}

absl::Status GpuBoxWork::StoreWords(absl::Span<const uint64_t> from, std::byte* to) {
  return copies_->Store({reinterpret_cast<const std::byte*>(from.data()), from.size() * sizeof(uint64_t)}, to);
}

}  // namespace headrace
