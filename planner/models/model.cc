#include "planner/models/model.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace headrace {
namespace {

Index Instances(const ModelUnit& unit) {
  const Index layers = unit.place == UnitPlace::kLayers ? static_cast<Index>(unit.layers.size()) : 1;
  return unit.experts > 0 ? layers * unit.experts : layers;
}

}  // namespace

Index TensorCount(const ModelUnit& unit) {
  const Index instances = unit.stacked ? Instances(unit) / unit.experts : Instances(unit);
  return instances * static_cast<Index>(unit.tensors.size());
}

Index TensorCount(const Model& model) {
  Index count = 0;
  for (const ModelUnit& unit : model.units) count += TensorCount(unit);
  return count;
}

Index TensorBytes(const ModelUnit& unit) {
  Index bits = 0;
  for (const UnitTensor& tensor : unit.tensors) {
    Index elements = 1;
    for (const Index extent : tensor.shape) elements *= extent;
    bits += elements * DtypeBits(tensor.dtype);
  }
  return bits / 8 * Instances(unit);
}

Index TensorBytes(const Model& model) {
  Index bytes = 0;
  for (const ModelUnit& unit : model.units) bytes += TensorBytes(unit);
  return bytes;
}

std::string InstanceName(const std::string& name, Index layer, Index expert) {
  return absl::StrReplaceAll(name, {{"{layer}", absl::StrCat(layer)}, {"{expert}", absl::StrCat(expert)}});
}

}  // namespace headrace
