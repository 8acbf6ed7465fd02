#include "planner/models/unit_builder.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {
namespace {

UnitTensor Tensor(std::string name, Extents shape, Dtype dtype, int cut_axis = -1, std::vector<RowPart> parts = {}) {
  UnitTensor tensor;
  tensor.name = std::move(name);
  tensor.shape = std::move(shape);
  tensor.dtype = dtype;
  tensor.cut_axis = cut_axis;
  tensor.parts = std::move(parts);
  return tensor;
}

}  // namespace

Site InLayers(std::vector<Index> layers, std::string prefix) {
  return {.place = UnitPlace::kLayers, .layers = std::move(layers), .unit_prefix = "", .prefix = std::move(prefix)};
}

Site InDraft(Index n, std::string prefix) {
  return {.place = UnitPlace::kLast,
          .layers = {},
          .draft = true,
          .unit_prefix = absl::StrCat("draft", n, "."),
          .prefix = std::move(prefix)};
}

Site Outside(UnitPlace place) { return {.place = place, .layers = {}, .unit_prefix = "", .prefix = ""}; }

UnitBuilder::UnitBuilder(const Site& site, const std::string& name, LinearFormat format, Index experts)
    : prefix_(site.prefix), format_(format) {
  unit_.name = site.unit_prefix + name;
  unit_.place = site.place;
  unit_.layers = site.layers;
  unit_.experts = experts;
  unit_.draft = site.draft;
}

int UnitBuilder::Add(UnitTensor tensor) {
  unit_.tensors.push_back(std::move(tensor));
  return static_cast<int>(unit_.tensors.size()) - 1;
}

int UnitBuilder::Whole(std::string name, Extents shape, Dtype dtype) {
  return Add(Tensor(std::move(name), std::move(shape), dtype));
}

int UnitBuilder::Cut(std::string name, Extents shape, int axis, std::vector<RowPart> parts, Dtype dtype) {
  return Add(Tensor(std::move(name), std::move(shape), dtype, axis, std::move(parts)));
}

int UnitBuilder::Vocabulary(std::string name, Index tokens, Index hidden) {
  const int index = Cut(std::move(name), {tokens, hidden}, 0, {{tokens, 1}});
  tensor(index).vocabulary = true;
  return index;
}

int UnitBuilder::Rows(std::string name, std::vector<RowPart> parts, Index in) {
  Index out = 0;
  for (const RowPart& part : parts) out += part.units * part.rows;
  return Linear(Tensor(std::move(name), {out, in}, Dtype::kBF16, 0, std::move(parts)));
}

int UnitBuilder::Columns(std::string name, Index out, RowPart part) {
  return Linear(Tensor(std::move(name), {out, part.units * part.rows}, Dtype::kBF16, 1, {part}));
}

int UnitBuilder::WholeLinear(std::string name, Index out, Index in) {
  return Linear(Tensor(std::move(name), {out, in}, Dtype::kBF16));
}

int UnitBuilder::Linear(UnitTensor weight) {
  const std::string name = weight.name;
  UnitTensor scale;
  switch (format_.kind) {
    case LinearFormat::kPlain:
      return Add(std::move(weight));
    case LinearFormat::kFp8Block128:
      weight.dtype = Dtype::kF8E4M3;
      scale = Tensor(name + "_scale_inv", {}, format_.scale);
      scale.block = {128, 128};
      break;
    case LinearFormat::kMxfp4:
      weight.name += "_packed";
      weight.dtype = Dtype::kU8;
      weight.shape[1] = CeilDivide(weight.shape[1], 2);
      // Ranks get whole runs of values that share a scale; of the other matrices' rows as many as of these columns.
      for (RowPart& part : weight.parts) {
        part = {part.units * part.rows / kMxValues, weight.cut_axis == 1 ? kMxBytes : kMxValues};
      }
      scale = Tensor(name + "_scale", {}, Dtype::kU8);
      scale.block = {1, kMxBytes};
      break;
  }
  for (size_t a = 0; a < 2; ++a) scale.shape.push_back(CeilDivide(weight.shape[a], scale.block[a]));
  scale.scale_of = Add(std::move(weight));
  return Add(std::move(scale)) - 1;
}

void UnitBuilder::FuseEngine(std::string name, std::vector<int> tensors) {
  unit_.engine.push_back({.name = std::move(name), .tensors = std::move(tensors)});
}

void UnitBuilder::FuseTrainer(std::string name, std::vector<int> tensors, Index groups) {
  unit_.trainer.push_back({.name = std::move(name), .tensors = std::move(tensors), .groups = groups});
}

ModelBuilder::ModelBuilder(std::string name, LinearFormat format, LinearFormat expert_format)
    : format_(format), expert_format_(expert_format) {
  model_.name = std::move(name);
}

void ModelBuilder::Add(UnitBuilder unit) {
  if (unit.unit().place == UnitPlace::kLayers && unit.unit().layers.empty()) return;
  model_.units.push_back(std::move(unit.unit()));
}

absl::Status ModelBuilder::Check() const {
  // Each factor is at most 2^20 (arch.h), so that 128 bits hold the sum.
  __extension__ typedef __int128 Wide;
  Wide bits = 0;
  for (const ModelUnit& unit : model_.units) {
    Wide of_unit = 0;
    for (const UnitTensor& tensor : unit.tensors) {
      Wide elements = 1;
      for (const Index extent : tensor.shape) elements *= extent;
      of_unit += elements * DtypeBits(tensor.dtype);
    }
    const Wide layers = unit.place == UnitPlace::kLayers ? unit.layers.size() : 1;
    bits += of_unit * layers * (unit.experts > 0 ? unit.experts : 1);
  }
  if (bits <= std::numeric_limits<Index>::max()) return absl::OkStatus();
  return Error(ErrorCode::kOutOfBounds, "the model has 2^60 bytes or more: check its numbers");
}

}  // namespace headrace
