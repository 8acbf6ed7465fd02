#ifndef HEADRACE_TESTS_LAYOUTS_RANK_ARRAYS_H_
#define HEADRACE_TESTS_LAYOUTS_RANK_ARRAYS_H_

// Test only. The arrays that one rank holds, before they are buffers.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/layout/block_scales.h"
#include "planner/layout/piece_array.h"
#include "planner/status.h"

namespace headrace {

struct HeldArray {
  std::string name;
  Dtype dtype = Dtype::kBF16;
  PieceArray array;
  bool expert = false;
};

class RankArrays {
 public:
  void Add(std::string name, Dtype dtype, PieceArray array, bool expert = false) {
    arrays_.push_back({std::move(name), dtype, std::move(array), expert});
  }

  // The weight and, where it has one, its scale.
  void Add(const std::string& name, Dtype dtype, const ScaledArray& array, bool expert = false) {
    Add(name, dtype, array.weight, expert);
    if (array.scale) Add(name + ".scale", Dtype::kF32, *array.scale, expert);
  }

  const std::vector<HeldArray>& arrays() const { return arrays_; }

  absl::StatusOr<std::vector<Buffer>> ToBuffers(int64_t rank) const {
    std::vector<Buffer> buffers;
    for (const HeldArray& held : arrays_) {
      HR_ASSIGN_OR_RETURN(Buffer buffer, ToBuffer(rank, held.name, held.dtype, held.array));
      buffers.push_back(std::move(buffer));
    }
    return buffers;
  }

 private:
  std::vector<HeldArray> arrays_;
};

}  // namespace headrace

#endif  // HEADRACE_TESTS_LAYOUTS_RANK_ARRAYS_H_
