#ifndef HEADRACE_PLANNER_MODELS_MODEL_H_
#define HEADRACE_PLANNER_MODELS_MODEL_H_

// What a model is made of, for laying it out over a cluster.
//
// A model of 250,000 tensors has a dozen kinds of modules: an attention, an MLP, one expert. A *unit* describes such a
// module once: its tensors, how tensor parallelism cuts them, and how engines and trainers fuse them into buffers. Its
// *instances* are the layers (and experts) that have it. Tensor names of a unit have {layer} and {expert} where the
// instance's numbers stand.
//
//   unit "expert" of DeepSeek-V3   gate, up [2048, 7168], down [7168, 2048]     58 layers x 256 experts = 14,848 times
//
// Pure data. Shapes and rows count elements.

#include <string>
#include <vector>

#include "planner/dtype.h"
#include "planner/layout/row_parts.h"
#include "planner/manifest.h"

namespace headrace {

struct UnitTensor {
  std::string name;  // "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight"
  // In the checkpoint. Of a tensor that is stacked over experts (ModelUnit::stacked): without the leading axis.
  Extents shape;
  Dtype dtype = Dtype::kBF16;
  // A row-major reshape of `shape` in which the cut is a box; empty: the shape itself. Gate and up columns in turns,
  // [K, 2 * I]: view [K, I, 2], cut_axis 1.
  Extents view;
  int cut_axis = -1;           // the axis of the view that tensor parallelism cuts; -1: whole on every rank
  std::vector<RowPart> parts;  // of that axis, in order (row_parts.h): what each rank gets an equal share of
  // Above 0: along cut_axis the checkpoint has the parts group by group, as ByGroups(parts, groups) says, and not one
  // after the other (Qwen3-Next's in_proj_qkvz). Engines keep that, trainers have part after part.
  Index groups = 0;
  bool vocabulary = false;  // rows are tokens: each side pads them to its own multiple
  int scale_of = -1;        // block scales of this tensor of the unit, which carry no cut of their own
  Extents block;            // with scale_of: along the weight's axes
};

// A buffer that is filled from several tensors of a unit, one after the other along `axis` of their views.
struct FusedBuffer {
  std::string name;          // "model.layers.{layer}.self_attn.qkv_proj.weight"
  std::vector<int> tensors;  // indices into ModelUnit::tensors
  int axis = 0;
  // Above 0: rows lie group by group, each tensor's in turn, and are cut wherever an equal share falls (Megatron's
  // linear_qkv: groups = KV heads).
  Index groups = 0;
};

enum class UnitPlace {
  kFirst,   // outside of the layers, on the first pipeline stage (embedding)
  kLast,    // on the last one (final norm, output head)
  kEnds,    // on both (tied embeddings)
  kLayers,  // in each of ModelUnit::layers
};

struct ModelUnit {
  std::string name;  // unique in the model: "mla", "expert", "embedding"
  UnitPlace place = UnitPlace::kLayers;
  std::vector<Index> layers;        // kLayers: ascending, which layers have it. Layer numbers count from 0
  Index experts = 0;                // above 0: an instance for each expert of each of its layers, cut by expert TP
  bool draft = false;               // of a multi-token-prediction layer: engines load it for speculative decoding only
  bool stacked = false;             // the checkpoint has one tensor for all experts of a layer, [experts, ...]
  std::vector<UnitTensor> tensors;  // every tensor of the checkpoint's module
  // Tensors that are in no fused buffer have a buffer of their own, under their own name.
  std::vector<FusedBuffer> engine;   // as vLLM fuses them
  std::vector<FusedBuffer> trainer;  // as Megatron fuses them
};

struct Model {
  std::string name;  // as in the records: "deepseek-v3-bf16"
  Index layers = 0;  // decoder layers, which pipeline stages share
  std::vector<ModelUnit> units;
};

// Tensors of the checkpoint that `unit` stands for: a stacked tensor is one for each layer.
Index TensorCount(const ModelUnit& unit);
Index TensorCount(const Model& model);
// Their bytes.
Index TensorBytes(const ModelUnit& unit);
Index TensorBytes(const Model& model);

// The name with an instance's numbers in the place of {layer} and {expert}.
std::string InstanceName(const std::string& name, Index layer, Index expert);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_MODELS_MODEL_H_
