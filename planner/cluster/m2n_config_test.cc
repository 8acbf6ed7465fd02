#include "planner/cluster/m2n_config.h"

#include <map>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/cluster/build_cluster.h"
#include "planner/cluster/expand.h"
#include "planner/plan.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

// qwen3-32b-tp2pp4dp2-to-tp1dp16-32gpus-gb200.json
constexpr char kQwen[] = R"({
    "_comment": "NeMo-RL Qwen3-32B GB200 async-1off topology: 4 trainer nodes and 4 generator nodes at 4 GPUs per node.",
    "train": {"num_gpus": 16, "tp_size": 2, "cp_size": 1, "ep_size": 1, "pp_size": 4, "fsdp_size": 1, "dp_size": 2},
    "generation": {"num_gpus": 16, "tp_size": 1, "cp_size": 1, "ep_size": 1, "pp_size": 1, "fsdp_size": 1,
                   "dp_size": 16}
})";

TEST(ParseM2nSystem, ReadsTheBenchmarksFile) {
  const auto layout = ParseM2nSystem(kQwen, "qwen", "qwen3-32b", "GB200");
  ASSERT_TRUE(layout.ok()) << layout.status();
  const auto& trainer = std::get<MegatronLayout>(layout->trainer).parallel;
  EXPECT_EQ(trainer.tp, 2);
  EXPECT_EQ(trainer.pp, 4);
  EXPECT_EQ(trainer.dp, 2);
  EXPECT_EQ(layout->engines.at(0).parallel.dp, 16);
  EXPECT_EQ(layout->source.ranks, 16);
  EXPECT_EQ(layout->source.ranks_per_host, 4);
  EXPECT_EQ(layout->destination.ranks_per_domain, 72);
  EXPECT_EQ(layout->model, "qwen3-32b");
  EXPECT_THAT(layout->note, ::testing::EndsWith("4 GPUs per node."));
}

TEST(ParseM2nSystem, GpusCountAndExpertsAreCutByEpAlone) {
  const auto layout = ParseM2nSystem(R"({"train": {"num_gpus": 64, "tp_size": 2, "cp_size": 2, "pp_size": 4,
      "ep_size": 16}, "generation": {"num_gpus": 64, "tp_size": 8, "dp_size": 8}})",
                                     "id", "m", "GB200");
  ASSERT_TRUE(layout.ok()) << layout.status();
  const auto& trainer = std::get<MegatronLayout>(layout->trainer).parallel;
  EXPECT_EQ(trainer.dp, 4);
  EXPECT_EQ(trainer.ep, 16);
  EXPECT_EQ(trainer.etp, 1);
  EXPECT_EQ(layout->note, "train.dp_size is 4 = num_gpus / (tp * cp * pp), not 1.");
}

TEST(ParseM2nSystem, WhatCannotBeExpressedIsAnError) {
  const auto expect = [](const std::string& train, const std::string& generation, const char* code, const char* words) {
    const auto layout =
        ParseM2nSystem(absl::StrCat(R"({"train": )", train, R"(, "generation": )", generation, "}"), "id", "m", "H100");
    EXPECT_EQ(CodeOf(layout.status()), code) << train << generation;
    EXPECT_THAT(layout.status().message(), HasSubstr(words));
  };
  const std::string one = R"({"num_gpus": 1})";
  expect(R"({"num_gpus": 1, "vp_size": 2})", one, "malformed", "train.vp_size is unknown");
  expect(R"({})", one, "malformed", "train.num_gpus is missing");
  expect(R"({"num_gpus": 8, "fsdp_size": 4, "pp_size": 2})", one, "invalid_option", "train.fsdp_size");
  expect(one, R"({"num_gpus": 8, "fsdp_size": 4})", "invalid_option", "generation.fsdp_size");
  expect(one, R"({"num_gpus": 8, "cp_size": 4})", "invalid_option", "generation.cp_size");
  expect(one, R"({"num_gpus": 8, "tp_size": 3})", "shape_mismatch", "generation: 8 GPUs");
  expect(R"({"num_gpus": 8, "tp_size": 3})", one, "shape_mismatch", "train: 8 GPUs");
  EXPECT_EQ(CodeOf(ParseM2nSystem(kQwen, "id", "m", "TPU").status()), "invalid_option");
  EXPECT_EQ(CodeOf(ParseM2nSystem("[]", "id", "m", "H100").status()), "malformed");
  const auto fsdp =
      ParseM2nSystem(R"({"train": {"num_gpus": 8, "fsdp_size": 4}, "generation": {"num_gpus": 1}})", "id", "m", "H100");
  ASSERT_TRUE(fsdp.ok()) << fsdp.status();
  EXPECT_EQ(std::get<FsdpLayout>(fsdp->trainer).replicas, 2);
}

std::string Tensor(const std::string& name, const std::string& shape) {
  return absl::StrCat("\"", name, R"(": {"shape": )", shape, R"(, "dtype": "BF16", "shard": "synthetic"})");
}

// Layer 0 is dense, layers 1 and 2 have four experts.
std::string SmallModel() {
  std::string json = absl::StrCat("{", Tensor("model.embed_tokens.weight", "[32, 8]"), ", ",
                                  Tensor("lm_head.weight", "[32, 8]"), ", ", Tensor("model.norm.weight", "[8]"));
  for (const int layer : {0, 1, 2}) {
    const std::string pre = absl::StrCat("model.layers.", layer, ".");
    const auto add = [&](const std::string& name, const std::string& shape) {
      absl::StrAppend(&json, ", ", Tensor(pre + name, shape));
    };
    add("self_attn.q_proj.weight", "[16, 8]");
    add("self_attn.o_proj.weight", "[8, 16]");
    if (layer == 0) add("mlp.down_proj.weight", "[8, 12]");
    for (int e = 0; e < 4 && layer > 0; ++e) add(absl::StrCat("mlp.experts.", e, ".gate_proj.weight"), "[4, 8]");
  }
  return json + "}";
}

TEST(ParseM2nModel, TensorsOfOnePlaceAreAUnit) {
  const auto model = ParseM2nModel(SmallModel(), "small");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->layers, 3);
  EXPECT_EQ(TensorCount(*model), 3 + 6 + 1 + 8);
  ASSERT_EQ(model->units.size(), 5u);
  std::map<std::string, std::pair<int, Index>> tensors;  // the axis that is cut, and the experts
  for (const ModelUnit& unit : model->units) {
    for (const UnitTensor& t : unit.tensors) tensors[t.name] = {t.cut_axis, unit.experts};
  }
  const std::string layer = "model.layers.{layer}.";
  EXPECT_EQ(tensors.at(layer + "self_attn.q_proj.weight"), std::pair(0, Index{0}));
  EXPECT_EQ(tensors.at(layer + "self_attn.o_proj.weight"), std::pair(1, Index{0}));
  EXPECT_EQ(tensors.at("model.norm.weight"), std::pair(-1, Index{0}));
  EXPECT_EQ(tensors.at(layer + "mlp.experts.{expert}.gate_proj.weight"), std::pair(0, Index{4}));
  // It is planned like any other.
  const auto layout = ParseM2nSystem(R"({"train": {"num_gpus": 8, "tp_size": 2, "pp_size": 2, "ep_size": 4},
      "generation": {"num_gpus": 4, "tp_size": 2, "dp_size": 2}})",
                                     "small", "small", "H100");
  ASSERT_TRUE(layout.ok()) << layout.status();
  const auto cluster = BuildCluster(*model, *layout);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const Manifest manifest = ExpandManifest(*cluster);
  EXPECT_EQ(manifest.tensors.size(), 18u);
  const auto plan = BuildPlan(manifest);
  EXPECT_TRUE(plan.ok()) << plan.status();
}

TEST(ParseM2nModel, ErrorsNameTheTensor) {
  const auto expect = [](const std::string& json, const char* code, const char* words) {
    const auto model = ParseM2nModel(json, "m");
    EXPECT_EQ(CodeOf(model.status()), code) << json;
    EXPECT_THAT(model.status().message(), HasSubstr(words));
  };
  expect("3", "malformed", "a model config");
  expect(R"({"a": 1})", "malformed", "a must be an object");
  expect(R"({"a": {"dtype": "BF16"}})", "malformed", "a.shape");
  expect(R"({"a": {"shape": [0]}})", "malformed", "a.shape");
  expect(R"({"a": {"shape": [2], "dtype": "BF17"}})", "malformed", "a.dtype \"BF17\"");
  expect(R"({"a": {"shape": [1152921504606846976, 2]}})", "out_of_bounds", "a.shape");
  expect(R"({"a": {"shape": [2], "size": 1}})", "malformed", "a.size is unknown");
  expect("{}", "malformed", "must have tensors");
  expect(R"({"layers.0.w": {"shape": [2]}, "layers.00.w": {"shape": [2]}})", "malformed", "\"layers.00.w\"");
  expect(R"({"layers.0.w": {"shape": [2]}, "layers.{layer}.w": {"shape": [2]}})", "malformed", "layers.{layer}.w");
  expect(R"({"a": {"shape": [2]}, "a": {"shape": [2]}})", "malformed", "\"a\" twice");
  expect(R"({"layers.0.experts.1.w": {"shape": [2]}})", "malformed", "experts numbered up to 1");
  expect(R"({"layers.0.experts.0.w": {"shape": [2]}, "layers.1.experts.0.w": {"shape": [2]},
            "layers.1.experts.1.w": {"shape": [2]}})",
         "malformed", "1 experts in some layers");
}

}  // namespace
}  // namespace headrace
