#ifndef HEADRACE_PLANNER_MODELS_EXPECT_SOUND_H_
#define HEADRACE_PLANNER_MODELS_EXPECT_SOUND_H_

#include "planner/models/model.h"

namespace headrace {

// Test only. Fails the running test unless the model's units keep what model.h says of them: parts that are all of the
// cut axis, scales of the right shape, buffers that have each tensor at most once, layers that there are. With
// `by_name`, which is for small models, also that no two instances have tensors of one name.
void ExpectSound(const Model& model, bool by_name);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_MODELS_EXPECT_SOUND_H_
