#include "planner/broadcast_policy.h"

#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace headrace {
namespace {

constexpr std::array<absl::string_view, 19> kQkv = {"q_proj",
                                                    "k_proj",
                                                    "v_proj",
                                                    "qkv_proj",
                                                    "qkv",
                                                    "query_key_value",
                                                    "linear_qkv",
                                                    "c_attn",
                                                    "wqkv",
                                                    "Wqkv",
                                                    "W_pack",
                                                    "q_a_proj",
                                                    "q_b_proj",
                                                    "kv_a_proj_with_mqa",
                                                    "kv_b_proj",
                                                    "linear_q_down_proj",
                                                    "linear_q_up_proj",
                                                    "linear_kv_down_proj",
                                                    "linear_kv_up_proj"};
constexpr std::array<absl::string_view, 5> kMambaLayers = {"mixer", "mamba", "linear_attn", "ssm", "gated_delta_net"};
constexpr std::array<absl::string_view, 13> kMamba = {
    "A_log",        "D",          "dt_bias",     "conv1d",    "in_proj",   "dt_proj",  "x_proj",
    "in_proj_qkvz", "in_proj_ba", "in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b"};

template <size_t N>
bool Holds(const std::array<absl::string_view, N>& table, absl::string_view word) {
  return std::find(table.begin(), table.end(), word) != table.end();
}

}  // namespace

std::string BroadcastKind(absl::string_view tensor) {
  absl::string_view layer;
  for (absl::string_view word : absl::StrSplit(tensor, '.')) {
    if (!layer.empty() && Holds(kMamba, word)) return absl::StrCat("Mamba (", layer, ".", word, ")");
    if (Holds(kQkv, word)) return absl::StrCat("QKV (", word, ")");
    if (Holds(kMambaLayers, word)) layer = word;
  }
  return "";
}

}  // namespace headrace
