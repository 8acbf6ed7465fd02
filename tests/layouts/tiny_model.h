#ifndef HEADRACE_TESTS_LAYOUTS_TINY_MODEL_H_
#define HEADRACE_TESTS_LAYOUTS_TINY_MODEL_H_

// Test only. Models of the structure of public ones, small enough to compare every byte, and their checkpoints.

#include <map>
#include <string>
#include <vector>

#include "planner/layout/block_scales.h"
#include "planner/manifest.h"

namespace headrace {

struct TinyModel {
  std::string name;
  std::string mixers;  // per layer: 'a' grouped-query attention, 'l' MLA, 'm' Mamba2, 'd' gated delta net
  std::string mlps;    // per layer: 'd' dense, 'e' experts, '-' none
  Index hidden = 8;
  Index vocab = 0;
  bool tied = false;
  Index heads = 0, kv_heads = 0, head_dim = 0;               // attention; MLA has heads too
  Index q_lora = 0, kv_lora = 0, nope = 0, rope = 0;         // MLA
  Index v_dim = 0;                                           // MLA
  Index m_heads = 0, m_head_dim = 0, groups = 0, state = 0;  // Mamba2
  Index k_heads = 0, k_dim = 0, v_heads = 0, d_v_dim = 0;    // gated delta net
  bool by_groups = false;                                    // its q, k, v, z (b, a) lie by key heads (Qwen3-Next)
  Index inter = 0;
  Index experts = 0, moe_inter = 0;
  bool stacked = false;  // experts.gate_up [E, 2 * I, H] and .down [E, H, I] instead of matrices one by one
  Index block = 0;       // above 0: linear weights are F8_E4M3 with an F32 scale per block x block
};

// Dense attention, mixture of experts, MLA, a Mamba2 hybrid, gated delta nets of both kinds, FP8 blocks.
std::vector<TinyModel> TinyModels();

class Checkpoint {
 public:
  explicit Checkpoint(const TinyModel& model);

  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  const std::vector<Coupling>& coupled() const { return coupled_; }

  // A tensor, with its scales if it has any; aborts when there is none of that name.
  ScaledArray Get(const std::string& name) const;
  // All experts of a layer, [experts, out, in]; `what` is "gate", "up" or "down".
  ScaledArray Experts(Index layer, const std::string& what) const;
  Dtype DtypeOf(const std::string& name) const;

 private:
  const TensorSpec& Find(const std::string& name) const;
  void Add(const std::string& name, const Extents& shape, Dtype dtype = Dtype::kBF16);
  void AddLinear(const std::string& name, const Extents& shape);

  const TinyModel model_;
  std::vector<TensorSpec> tensors_;
  std::map<std::string, size_t> by_name_;
  std::vector<Coupling> coupled_;
};

// "layers.3.q"
std::string InLayer(Index layer, const std::string& name);

}  // namespace headrace

#endif  // HEADRACE_TESTS_LAYOUTS_TINY_MODEL_H_
