// Prints every tensor of the models that are named, from their units: "name dtype extent extent ...", after a line
// "model NAME tensors bytes layers".

#include <cstdio>
#include <string>
#include <vector>

#include "planner/dtype.h"
#include "planner/models/model.h"
#include "planner/models/records.h"

namespace headrace {
namespace {

void Print(const ModelUnit& unit) {
  const std::vector<Index> layers = unit.place == UnitPlace::kLayers ? unit.layers : std::vector<Index>{-1};
  const Index experts = unit.experts > 0 && !unit.stacked ? unit.experts : 1;
  for (const Index layer : layers) {
    for (Index expert = 0; expert < experts; ++expert) {
      for (const UnitTensor& tensor : unit.tensors) {
        std::string line = InstanceName(tensor.name, layer, expert) + " " + std::string(DtypeName(tensor.dtype));
        if (unit.stacked) line += " " + std::to_string(unit.experts);
        for (const Index extent : tensor.shape) line += " " + std::to_string(extent);
        std::puts(line.c_str());
      }
    }
  }
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const absl::StatusOr<headrace::Model> model = headrace::ModelNamed(argv[i]);
    if (!model.ok()) {
      std::fprintf(stderr, "%s\n", std::string(model.status().message()).c_str());
      return 1;
    }
    std::printf("model %s %lld %lld %lld\n", model->name.c_str(), static_cast<long long>(headrace::TensorCount(*model)),
                static_cast<long long>(headrace::TensorBytes(*model)), static_cast<long long>(model->layers));
    for (const headrace::ModelUnit& unit : model->units) headrace::Print(unit);
  }
}
