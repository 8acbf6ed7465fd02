#ifndef HEADRACE_TESTS_LAYOUTS_REFERENCE_H_
#define HEADRACE_TESTS_LAYOUTS_REFERENCE_H_

// Test only. What the ranks of sides.h must hold, element by element, by slicing and joining arrays of identities
// (planner/layout/oracle.h) as the frameworks do. Uses none of the rules of planner/layout.

#include <string>
#include <vector>

#include "planner/layout/oracle.h"
#include "tests/layouts/sides.h"
#include "tests/layouts/tiny_model.h"

namespace headrace {

struct ReferenceArray {
  std::string name;  // of the buffer
  Dtype dtype = Dtype::kBF16;
  oracle::Array array;  // its elements in memory order; a buffer may count them in another shape
  bool expert = false;
};

std::vector<ReferenceArray> TrainerReference(const TinyModel& model, const std::vector<TensorSpec>& tensors,
                                             const TrainerOptions& options, Index rank);
std::vector<ReferenceArray> EngineReference(const TinyModel& model, const std::vector<TensorSpec>& tensors,
                                            const EngineOptions& options, Index rank);

}  // namespace headrace

#endif  // HEADRACE_TESTS_LAYOUTS_REFERENCE_H_
