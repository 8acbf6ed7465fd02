#include "loader/box_work.h"

#include <span>

namespace headrace {
namespace {

class CpuBoxWork final : public BoxWork {
 public:
  absl::StatusOr<Chunk> NewChunk(int64_t bytes) override { return NewHostChunk(bytes); }
  void Pack(const kernels::StridedCopy& box, int64_t first, absl::Span<std::byte> out) override {
    kernels::Pack(box, first, std::span(out.data(), out.size()));
  }
  void Unpack(const kernels::StridedCopy& box, int64_t first, absl::Span<const std::byte> in, uint64_t* sum) override {
    *sum += kernels::UnpackAndSum(box, first, std::span(in.data(), in.size()));
  }
  void Sum(const kernels::StridedCopy& box, uint64_t* sum) override { *sum += kernels::Sum(box); }
  absl::Status Finish() override { return absl::OkStatus(); }
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
