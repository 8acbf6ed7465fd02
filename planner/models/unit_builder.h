#ifndef HEADRACE_PLANNER_MODELS_UNIT_BUILDER_H_
#define HEADRACE_PLANNER_MODELS_UNIT_BUILDER_H_

// Writes the units of a model (model.h): tensors with their cuts, quantized as the record says, and fused buffers.
//
// Linear weights are [out, in]. "Rows" cuts out (column-parallel layers), "Columns" cuts in (row-parallel ones).

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "planner/models/model.h"

namespace headrace {

// How linear weights are stored.
struct LinearFormat {
  enum Kind {
    kPlain,        // BF16
    kFp8Block128,  // F8_E4M3, and "_scale_inv" per 128 x 128
    kMxfp4,        // two values per U8 in "_packed", and a U8 "_scale" per 32 values of a row
  };
  Kind kind = kPlain;
  Dtype scale = Dtype::kF32;  // of kFp8Block128
};

// Values that share a scale, and the bytes that hold them.
inline constexpr Index kMxValues = 32;
inline constexpr Index kMxBytes = kMxValues / 2;

// ceil(a / b) of a >= 0, b >= 1.
inline Index CeilDivide(Index a, Index b) { return a / b + (a % b != 0); }

// Where a unit stands.
struct Site {
  UnitPlace place = UnitPlace::kLayers;
  std::vector<Index> layers;
  bool draft = false;
  std::string unit_prefix;  // of unit names: "draft0."
  std::string prefix;       // of tensor names: "model.layers.{layer}."
};

// In these layers, under `prefix`, which has {layer}.
Site InLayers(std::vector<Index> layers, std::string prefix);
// In multi-token-prediction layer number `n`, under `prefix`. It comes after the decoder layers: on the last stage.
Site InDraft(Index n, std::string prefix);
// Outside of the layers.
Site Outside(UnitPlace place);

class UnitBuilder {
 public:
  // A unit of the site. `experts` as in ModelUnit.
  UnitBuilder(const Site& site, const std::string& name, LinearFormat format, Index experts = 0);

  // The site's prefix.
  const std::string& prefix() const { return prefix_; }
  bool plain() const { return format_.kind == LinearFormat::kPlain; }

  // Each returns the tensor's index in the unit. Names are whole.
  int Whole(std::string name, Extents shape, Dtype dtype = Dtype::kBF16);
  int Cut(std::string name, Extents shape, int axis, std::vector<RowPart> parts, Dtype dtype = Dtype::kBF16);
  int Vocabulary(std::string name, Index tokens, Index hidden);
  int Rows(std::string name, std::vector<RowPart> parts, Index in);
  int Columns(std::string name, Index out, RowPart part);
  int WholeLinear(std::string name, Index out, Index in);

  UnitTensor& tensor(int index) { return unit_.tensors[index]; }
  ModelUnit& unit() { return unit_; }

  // Tensors one after the other along axis 0, or group by group.
  void FuseEngine(std::string name, std::vector<int> tensors);
  void FuseTrainer(std::string name, std::vector<int> tensors, Index groups = 0);

 private:
  int Add(UnitTensor tensor);
  int Linear(UnitTensor tensor);

  const std::string prefix_;
  const LinearFormat format_;
  ModelUnit unit_;
};

// The units of one model, in order.
class ModelBuilder {
 public:
  ModelBuilder(std::string name, LinearFormat format, LinearFormat expert_format);

  LinearFormat format() const { return format_; }
  // Of experts that are stored one by one.
  LinearFormat expert_format() const { return expert_format_; }

  void SetLayers(Index layers) { model_.layers = layers; }
  // A unit of no layers is left out.
  void Add(UnitBuilder unit);

  // out_of_bounds  2^63 bits or more
  absl::Status Check() const;
  Model Take() { return std::move(model_); }

 private:
  const LinearFormat format_;
  const LinearFormat expert_format_;
  Model model_;
};

}  // namespace headrace

#endif  // HEADRACE_PLANNER_MODELS_UNIT_BUILDER_H_
