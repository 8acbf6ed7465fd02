#include "planner/cluster/nemo_config.h"

#include <nlohmann/json.hpp>
#include <string>
#include <variant>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/status.h"

namespace headrace {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

// What of grpo-deepseek-v3-64n8g-async-1off.yaml and its defaults counts, and some of what does not.
Json DeepSeek() {
  return Json::parse(R"({
    "grpo": {"async_grpo": {"enabled": true}},
    "policy": {
      "model_name": "unsloth/DeepSeek-V3-0324-BF16",
      "dtensor_cfg": {"enabled": false, "tensor_parallel_size": 1, "context_parallel_size": 1},
      "megatron_cfg": {
        "enabled": true, "tensor_model_parallel_size": 1, "expert_tensor_parallel_size": 1,
        "expert_model_parallel_size": 16, "pipeline_model_parallel_size": 16,
        "num_layers_in_first_pipeline_stage": 3, "num_layers_in_last_pipeline_stage": 2, "context_parallel_size": 1,
        "pipeline_dtype": "bfloat16", "sequence_parallel": false,
        "distributed_data_parallel_config": {"use_custom_fsdp": false,
                                             "data_parallel_sharding_strategy": "optim_grads_params"}},
      "generation": {
        "backend": "vllm", "refit_transport": "nccl_reshard",
        "vllm_cfg": {"tensor_parallel_size": 32, "pipeline_parallel_size": 1, "expert_parallel_size": 1},
        "colocated": {"enabled": false, "resources": {"num_nodes": 32, "gpus_per_node": 8}}}},
    "cluster": {"gpus_per_node": 8, "num_nodes": 64}})");
}

TEST(ParseNemoConfig, ReadsTheRecipeOfDeepSeek) {
  const auto layout = ParseNemoConfig(DeepSeek().dump(), "dsv3", "", "H100");
  ASSERT_TRUE(layout.ok()) << layout.status();
  const auto& megatron = std::get<MegatronLayout>(layout->trainer);
  EXPECT_EQ(megatron.parallel.pp, 16);
  EXPECT_EQ(megatron.parallel.ep, 16);
  EXPECT_EQ(megatron.parallel.dp, 16);
  EXPECT_EQ(megatron.layers_first, 3);
  EXPECT_EQ(megatron.layers_last, 2);
  EXPECT_EQ(layout->engines.at(0).parallel.tp, 32);
  EXPECT_EQ(layout->engines.at(0).parallel.dp, 8);
  EXPECT_EQ(layout->source.ranks, 256);
  EXPECT_EQ(layout->source.ranks_per_domain, 8);
  EXPECT_EQ(layout->model, "unsloth/DeepSeek-V3-0324-BF16");
  EXPECT_EQ(layout->method, "nccl_reshard");
  EXPECT_EQ(ParseNemoConfig(DeepSeek().dump(), "dsv3", "deepseek-v3-bf16", "H100")->model, "deepseek-v3-bf16");
}

TEST(ParseNemoConfig, SegmentsAreNvlinkDomains) {
  Json json = DeepSeek();
  json["cluster"] = {{"gpus_per_node", 4}, {"num_nodes", 128}, {"segment_size", 16}};
  json["policy"]["generation"]["colocated"]["resources"] = {{"num_nodes", 64}, {"gpus_per_node", 4}};
  const auto layout = ParseNemoConfig(json.dump(), "dsv3", "", "GB200");
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->source.ranks, 256);
  EXPECT_EQ(layout->destination.ranks_per_domain, 64);
  EXPECT_EQ(layout->destination.ranks_per_host, 4);
}

TEST(ParseNemoConfig, DtensorIsFsdpOverTp) {
  Json json = DeepSeek();
  json["policy"]["megatron_cfg"]["enabled"] = false;
  json["policy"]["dtensor_cfg"] = {{"enabled", true}, {"tensor_parallel_size", 4}, {"context_parallel_size", 2}};
  const auto layout = ParseNemoConfig(json.dump(), "dsv3", "", "H100");
  ASSERT_TRUE(layout.ok()) << layout.status();
  const auto& fsdp = std::get<FsdpLayout>(layout->trainer);
  EXPECT_EQ(fsdp.tp, 4);
  EXPECT_EQ(fsdp.shards, 64);
  EXPECT_EQ(fsdp.replicas, 1);
}

TEST(ParseNemoConfig, OneNodeIsSharedByGpus) {
  Json json = DeepSeek();
  json["cluster"] = {{"gpus_per_node", 8}, {"num_nodes", 1}};
  json["policy"]["megatron_cfg"]["pipeline_model_parallel_size"] = 1;
  json["policy"]["megatron_cfg"]["expert_model_parallel_size"] = 2;
  json["policy"]["generation"]["vllm_cfg"]["tensor_parallel_size"] = 2;
  json["policy"]["generation"]["colocated"]["resources"] = {{"num_nodes", nullptr}, {"gpus_per_node", 2}};
  const auto layout = ParseNemoConfig(json.dump(), "one", "", "H100");
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->source.ranks, 6);
  EXPECT_EQ(layout->destination.ranks, 2);
}

TEST(ParseNemoConfig, ErrorsNameTheKey) {
  const auto expect = [](const char* pointer, const Json& value, const char* code, const char* words) {
    Json json = DeepSeek();
    json[Json::json_pointer(pointer)] = value;
    const auto layout = ParseNemoConfig(json.dump(), "id", "", "H100");
    EXPECT_EQ(CodeOf(layout.status()), code) << pointer;
    EXPECT_THAT(layout.status().message(), HasSubstr(words)) << pointer;
  };
  const std::string megatron = "/policy/megatron_cfg/", vllm = "/policy/generation/vllm_cfg/";
  expect((megatron + "pipeline_model_parallel_layout").c_str(), "Et*3|(tt|)*29,m|L", "malformed",
         "policy.megatron_cfg.pipeline_model_parallel_layout is");
  expect((megatron + "account_for_loss_in_pipeline_split").c_str(), true, "malformed",
         "account_for_loss_in_pipeline_split");
  expect((megatron + "hierarchical_context_parallel_sizes").c_str(), {2, 4}, "malformed",
         "hierarchical_context_parallel_sizes");
  expect((megatron + "tensor_model_parallel_size").c_str(), nullptr, "malformed",
         "policy.megatron_cfg.tensor_model_parallel_size is null");
  expect((megatron + "tensor_model_parallel_size").c_str(), 3, "shape_mismatch", "policy.megatron_cfg: 256 GPUs");
  expect((megatron + "enabled").c_str(), false, "invalid_option", "not enabled");
  expect((megatron + "enabled").c_str(), 1, "malformed", "policy.megatron_cfg");
  expect((megatron + "distributed_data_parallel_config/use_custom_fsdp").c_str(), true, "invalid_option", "FSDP");
  expect("/policy/dtensor_cfg/enabled", true, "invalid_option", "both enabled");
  expect("/policy/generation/backend", "sglang", "invalid_option", "backend \"sglang\"");
  expect("/policy/generation/colocated/enabled", true, "invalid_option", "colocated.enabled must be false");
  expect("/policy/generation/colocated/resources/num_nodes", 64, "shape_mismatch", "nothing for the trainer");
  expect("/policy/generation/colocated/resources/num_nodes", nullptr, "malformed", "num_nodes is null");
  expect((vllm + "tensor_parallel_size").c_str(), 3, "shape_mismatch", "policy.generation.vllm_cfg: 256 GPUs");
  expect((vllm + "data_parallel_size").c_str(), 4, "malformed", "policy.generation.vllm_cfg.data_parallel_size is 4");
  expect("/cluster", nullptr, "malformed", "cluster must be an object");
  expect("/cluster/num_nodes", 2000000000, "out_of_bounds", "GPUs");
}

}  // namespace
}  // namespace headrace
