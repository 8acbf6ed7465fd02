#include "planner/layout/experts.h"

namespace headrace {

PieceArray StackExperts(const std::vector<TensorSpec>& experts) {
  std::vector<PieceArray> arrays;
  arrays.reserve(experts.size());
  for (const TensorSpec& expert : experts) arrays.push_back(Whole(expert));
  return Stack(arrays, 0);
}

}  // namespace headrace
