#ifndef HEADRACE_PLANNER_MODELS_FAMILIES_H_
#define HEADRACE_PLANNER_MODELS_FAMILIES_H_

// The families of models: which modules their layers have, and under which names. docs/models.md lists the fields.

#include <string>
#include <vector>

#include "planner/models/arch.h"
#include "planner/models/unit_builder.h"

namespace headrace {

// Adds the units of a model whose record has the fields `a`. Errors are in `a`.
using Family = void (*)(Arch& a, ModelBuilder& m);

// Attention in every layer (families_attention.cc).
void Llama(Arch& a, ModelBuilder& m);
void Mixtral(Arch& a, ModelBuilder& m);
void Qwen3Moe(Arch& a, ModelBuilder& m);
void DeepSeek(Arch& a, ModelBuilder& m);
void GptOss(Arch& a, ModelBuilder& m);       // experts stacked, BF16
void GptOssMxfp4(Arch& a, ModelBuilder& m);  // the same, MXFP4

// Recurrent layers with attention between them (families_hybrid.cc).
void KimiK3(Arch& a, ModelBuilder& m);
void Qwen3Next(Arch& a, ModelBuilder& m);
void Qwen35Moe(Arch& a, ModelBuilder& m);
void NemotronH(Arch& a, ModelBuilder& m);
void Bamba(Arch& a, ModelBuilder& m);
void Zamba2(Arch& a, ModelBuilder& m);

// What families share (families_attention.cc).

// 0, ..., layers - 1, which is Number("layers"); the model gets them.
std::vector<Index> ReadLayers(Arch& a, ModelBuilder& m);
// Those of `all` that are not in `some`; both ascend.
std::vector<Index> Without(const std::vector<Index>& all, const std::vector<Index>& some);

struct EndNames {
  std::string embedding = "model.embed_tokens.weight";
  std::string norm = "model.norm.weight";
  std::string head = "lm_head.weight";
};

// Multi-token-prediction layers that a model may have.
inline constexpr Index kMaxDrafts = 64;

// Fields vocab, hidden, tied. The units "embedding" and "head"; returns the latter, which is not added yet.
UnitBuilder AddEnds(Arch& a, ModelBuilder& m, const EndNames& names = {});

}  // namespace headrace

#endif  // HEADRACE_PLANNER_MODELS_FAMILIES_H_
