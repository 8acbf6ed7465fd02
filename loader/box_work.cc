#include "loader/box_work.h"

#include <atomic>
#include <span>

namespace headrace {
namespace {

// Memory that is mapped read-only is only loaded from.
std::atomic_ref<uint64_t> Word(const std::byte* memory, size_t index) {
  return std::atomic_ref<uint64_t>(reinterpret_cast<uint64_t*>(const_cast<std::byte*>(memory))[index]);
}

class CpuBoxWork final : public BoxWork {
 public:
  void Copy(const kernels::StridedCopy& box, uint64_t* sum) override {
    if (sum == nullptr) {
      kernels::Copy(box);
    } else {
      *sum += kernels::CopyAndSum(box);
    }
  }
  void Cast(kernels::FloatType from, kernels::FloatType to, const kernels::StridedCast& cast) override {
    kernels::Cast(from, to, cast);
  }
  absl::StatusOr<Chunk> NewChunk(int64_t bytes) override { return NewHostChunk(bytes); }
  void Pack(const kernels::StridedCopy& box, int64_t first, absl::Span<std::byte> out) override {
    kernels::Pack(box, first, std::span(out.data(), out.size()));
  }
  void Unpack(const kernels::StridedCopy& box, int64_t first, absl::Span<const std::byte> in, uint64_t* sum) override {
    *sum += kernels::UnpackAndSum(box, first, std::span(in.data(), in.size()));
  }
  void Sum(const kernels::StridedCopy& box, uint64_t* sum) override { *sum += kernels::Sum(box); }
  absl::Status Finish() override { return absl::OkStatus(); }
  int64_t batch_bytes() const override { return int64_t{64} << 20; }
  absl::Status LoadWords(const std::byte* from, absl::Span<uint64_t> to) override {
    for (size_t i = 0; i < to.size(); ++i) to[i] = Word(from, i).load(std::memory_order_relaxed);
    return absl::OkStatus();
  }
  absl::Status StoreWords(absl::Span<const uint64_t> from, std::byte* to) override {
    for (size_t i = 0; i < from.size(); ++i) Word(to, i).store(from[i], std::memory_order_relaxed);
    return absl::OkStatus();
  }
};

}  // namespace

Chunk NewHostChunk(int64_t bytes) {
  return Chunk(new std::byte[static_cast<size_t>(bytes)], [](std::byte* memory) { delete[] memory; });
}

BoxWork* OnCpu() {
  static CpuBoxWork* const work = new CpuBoxWork;
  return work;
}

}  // namespace headrace
