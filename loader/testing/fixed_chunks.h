#ifndef HEADRACE_LOADER_TESTING_FIXED_CHUNKS_H_
#define HEADRACE_LOADER_TESTING_FIXED_CHUNKS_H_

// Test only. Byte work on the CPU with a number of chunks that are there once and for all, as those of a GPU are.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "loader/box_work.h"
#include "planner/status.h"

namespace headrace::testing {

class FixedChunks final : public BoxWork {
 public:
  FixedChunks(int64_t count, int64_t bytes) : memory_(static_cast<size_t>(count * bytes)) {
    for (int64_t i = 0; i < count; ++i) free_.push_back(memory_.data() + i * bytes);
  }

  int64_t free() const { return static_cast<int64_t>(free_.size()); }
  bool Made(const std::byte* chunk) const { return chunk >= memory_.data() && chunk < memory_.data() + memory_.size(); }

  absl::StatusOr<Chunk> NewChunk(int64_t bytes) override {
    if (free_.empty()) return Error(ErrorCode::kOutOfMemory, "no chunk is left");
    // What comes back is spoilt.
    Chunk chunk(free_.back(), [this, bytes](std::byte* memory) {
      std::memset(memory, 0xA5, static_cast<size_t>(bytes));
      free_.push_back(memory);
    });
    free_.pop_back();
    return chunk;
  }
  void Copy(const kernels::StridedCopy& box, uint64_t* sum) override { OnCpu()->Copy(box, sum); }
  void Cast(kernels::FloatType from, kernels::FloatType to, const kernels::StridedCast& cast) override {
    OnCpu()->Cast(from, to, cast);
  }
  void Pack(const kernels::StridedCopy& box, int64_t first, absl::Span<std::byte> out) override {
    OnCpu()->Pack(box, first, out);
  }
  void Unpack(const kernels::StridedCopy& box, int64_t first, absl::Span<const std::byte> in, uint64_t* sum) override {
    OnCpu()->Unpack(box, first, in, sum);
  }
  void Sum(const kernels::StridedCopy& box, uint64_t* sum) override { OnCpu()->Sum(box, sum); }
  absl::Status Finish() override { return OnCpu()->Finish(); }
  int64_t batch_bytes() const override { return OnCpu()->batch_bytes(); }
  absl::Status LoadWords(const std::byte* from, absl::Span<uint64_t> to) override {
    return OnCpu()->LoadWords(from, to);
  }
  absl::Status StoreWords(absl::Span<const uint64_t> from, std::byte* to) override {
    return OnCpu()->StoreWords(from, to);
  }

 private:
  std::vector<std::byte> memory_;
  std::vector<std::byte*> free_;
};

}  // namespace headrace::testing

#endif  // HEADRACE_LOADER_TESTING_FIXED_CHUNKS_H_
