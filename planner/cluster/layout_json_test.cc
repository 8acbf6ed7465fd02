#include "planner/cluster/layout_json.h"

#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

std::string Layout(const std::string& train, const std::string& gen, const std::string& more = "") {
  return absl::StrCat(R"({"id": "mine", "model": "m", "gpu": "GB200", "train": )", train, R"(, "gen": )", gen, more,
                      "}");
}

constexpr char kGen[] = R"({"gpus": 8, "tp": 4})";

TEST(ParseLayout, FillsWhatFollowsFromTheGpus) {
  const auto layout = ParseLayout(Layout(R"({"gpus": 32, "tp": 2, "cp": 2, "pp": 2, "ep": 4})",
                                         R"({"gpus": 16, "tp": 2, "pp": 2})", R"(, "nvlink_domain_used": 8)"));
  ASSERT_TRUE(layout.ok()) << layout.status();
  const auto& trainer = std::get<MegatronLayout>(layout->trainer).parallel;
  EXPECT_EQ(trainer.dp, 4);
  EXPECT_EQ(trainer.etp, 1);
  const ParallelLayout& engine = layout->engines.at(0).parallel;
  EXPECT_EQ(engine.dp, 4);
  EXPECT_EQ(engine.ep, 1);
  EXPECT_EQ(engine.etp, 2);
  EXPECT_TRUE(engine.data_outermost);
  EXPECT_EQ(layout->source.ranks, 32);
  EXPECT_EQ(layout->source.ranks_per_host, 4);
  EXPECT_EQ(layout->destination.ranks_per_domain, 8);
  EXPECT_EQ(layout->note, "");
}

TEST(ParseLayout, AnotherDpIsReplacedAndSaid) {
  const auto layout = ParseLayout(Layout(R"({"gpus": 128, "tp": 1, "pp": 4, "dp": 2, "ep": 16})",
                                         R"({"gpus": 8, "tp": 4, "dp": 2})", R"(, "note": "As published.")"));
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(std::get<MegatronLayout>(layout->trainer).parallel.dp, 32);
  EXPECT_EQ(layout->note, "As published. train.dp is 32 = gpus / (tp * cp * pp), not 2.");
}

TEST(ParseLayout, ExpertsOfEngines) {
  const auto engine = [](const std::string& gen) {
    const auto layout = ParseLayout(Layout(kGen, gen));
    return layout.ok() ? layout->engines.at(0).parallel : ParallelLayout{.tp = -1};
  };
  ParallelLayout p = engine(R"({"gpus": 256, "tp": 32, "ep": 1})");
  EXPECT_EQ(p.dp, 8);
  EXPECT_EQ(p.etp, 32);
  p = engine(R"({"gpus": 16, "tp": 4, "ep": 4})");
  EXPECT_EQ(p.ep, 4);
  EXPECT_EQ(p.etp, 1);
  p = engine(R"({"gpus": 16, "tp": 1, "ep": 8})");
  EXPECT_EQ(p.dp, 16);
  EXPECT_EQ(p.ep, 8);
  p = engine(R"({"gpus": 16, "tp": 8, "ep": 2})");
  EXPECT_EQ(p.etp, 4);
  EXPECT_EQ(engine(R"({"gpus": 16, "tp": 4, "ep": 3})").tp, -1);
  EXPECT_EQ(engine(R"({"gpus": 16, "tp": 4, "ep": 32})").tp, -1);
}

TEST(ParseLayout, EnginesOfDifferentLayouts) {
  const auto layout = ParseLayout(Layout(kGen, R"([{"gpus": 8, "tp": 8, "engine": "vLLM"},
      {"gpus": 8, "tp": 4, "ep": 4, "dp": 1, "engine": "vLLM"}, {"gpus": 2, "tp": 1, "pp": 2, "engine": "SGLang"}])"));
  ASSERT_TRUE(layout.ok()) << layout.status();
  ASSERT_EQ(layout->engines.size(), 3u);
  EXPECT_EQ(layout->engines[0].parallel.tp, 8);
  EXPECT_EQ(layout->engines[1].parallel.ep, 4);
  EXPECT_EQ(layout->engines[1].parallel.dp, 2);
  EXPECT_EQ(layout->engines[2].parallel.pp, 2);
  EXPECT_EQ(layout->destination.ranks, 18);
  EXPECT_EQ(layout->engine_name, "vLLM, SGLang");
  EXPECT_EQ(layout->note, "gen[1].dp is 2 = gpus / (tp * pp), not 1.");
  EXPECT_EQ(ParseLayout(Layout(kGen, absl::StrCat("[", kGen, "]")))->engines.size(), 1u);
  const auto assumed = ParseLayout(Layout(kGen, absl::StrCat("[", kGen, ",", kGen, "]"), R"(, "assumed": true)"));
  ASSERT_TRUE(assumed.ok()) << assumed.status();
  for (const EngineLayout& engine : assumed->engines) EXPECT_TRUE(engine.uneven_units);
}

TEST(ParseLayout, Fsdp) {
  const auto layout = ParseLayout(Layout(R"({"gpus": 32, "fsdp": 8, "tp": 2})", kGen));
  ASSERT_TRUE(layout.ok()) << layout.status();
  const auto& fsdp = std::get<FsdpLayout>(layout->trainer);
  EXPECT_EQ(fsdp.shards, 8);
  EXPECT_EQ(fsdp.replicas, 2);
  EXPECT_EQ(fsdp.tp, 2);
}

TEST(ParseLayout, ErrorsNameTheField) {
  const auto expect = [](const std::string& json, const char* code, const char* words) {
    const auto layout = ParseLayout(json);
    EXPECT_EQ(CodeOf(layout.status()), code) << json;
    EXPECT_THAT(layout.status().message(), HasSubstr(words)) << json;
  };
  expect("{", "malformed", "JSON");
  expect("[]", "malformed", "a layout must be an object");
  expect(R"({"id": "x"})", "malformed", "model is missing");
  expect(R"({"id": "x", "model": "m", "gpu": "H100", "gen": {}})", "malformed", "train is missing");
  expect(Layout("3", kGen), "malformed", "train must be an object");
  expect(Layout(R"({"gpus": 8, "tp": null})", kGen), "malformed", "train.tp is null");
  expect(Layout(R"({"tp": 1})", kGen), "malformed", "train.gpus is missing");
  expect(Layout(R"({"gpus": 8, "tp": 1, "zp": 2})", kGen), "malformed", "train.zp is unknown");
  expect(Layout(R"({"gpus": 8, "fsdp": 8, "pp": 2})", kGen), "malformed", "train.pp is unknown");
  expect(Layout(R"({"gpus": 8, "tp": 1.5})", kGen), "malformed", "train.tp must be a whole number");
  expect(Layout(R"({"gpus": 8, "tp": 0})", kGen), "malformed", "train.tp is 0");
  expect(Layout(R"({"gpus": 18446744073709551615, "tp": 1})", kGen), "malformed", "train.gpus is 18446744073709551615");
  expect(Layout(R"({"gpus": 8, "tp": 1, "vpp": 2})", kGen), "invalid_option", "train: VPP 2");
  expect(Layout(R"({"gpus": 8, "tp": 3})", kGen), "shape_mismatch", "train: 8 GPUs are no multiple of");
  expect(Layout(R"({"gpus": 8, "tp": 1, "ep": 16})", kGen), "shape_mismatch", "train: EP 16");
  expect(Layout(kGen, R"({"gpus": 8, "tp": 3})"), "shape_mismatch", "gen: 8 GPUs are no multiple of");
  expect(Layout(R"({"gpus": 8, "fsdp": 3})", kGen), "shape_mismatch", "train: 8 GPUs are no multiple of shards * tp");
  expect(Layout(kGen, "[]"), "malformed", "gen is empty");
  expect(Layout(kGen, "3"), "malformed", "gen must be an object");
  expect(Layout(kGen, R"([{"gpus": 8, "tp": 4}, 3])"), "malformed", "gen[1] must be an object");
  expect(Layout(kGen, R"([{"gpus": 8, "tp": 4}, {"gpus": 8}])"), "malformed", "gen[1].tp is missing");
  expect(Layout(kGen, R"([{"gpus": 8, "tp": 4}, {"gpus": 8, "tp": 3}])"), "shape_mismatch", "gen[1]: 8 GPUs");
  expect(Layout(kGen, R"([{"gpus": 131072, "tp": 4}, {"gpus": 8, "tp": 4}])"), "out_of_bounds", "gen: engines of");
  expect(Layout(kGen, kGen, R"(, "seconds_min": "fast")"), "malformed", "seconds_min");
  expect(Layout(kGen, kGen, R"(, "seconds_min": 1.5)"), "malformed", "seconds_max is missing");
  expect(Layout(kGen, kGen, R"(, "seconds_max": 1.5)"), "malformed", "seconds_min is missing");
  expect(Layout(kGen, kGen, R"(, "seconds_min": 2, "seconds_max": 1)"), "malformed", "seconds_min must be");
  expect(Layout(kGen, kGen, R"(, "seconds_min": -1, "seconds_max": 1)"), "malformed", "seconds_min must be");
  expect(Layout(kGen, kGen, R"(, "nvlink_domain_used": 2147483647)"), "malformed", "nvlink_domain_used is 2147483647");
  expect(Layout(R"({"gpus": 8, "tp": 1, "tp": 2})", kGen), "malformed", "\"tp\" twice");
  expect(Layout(kGen, kGen, R"(, "speed": 1)"), "malformed", "speed is unknown");
  expect(R"({"id": "x", "model": "m", "gpu": "TPU", "train": {"gpus": 8, "tp": 1}, "gen": {"gpus": 8, "tp": 1}})",
         "invalid_option", "TPU");
}

TEST(StagesOf, EndsAndVirtualStages) {
  MegatronLayout layout;
  layout.parallel.pp = 3;
  layout.layers_last = 1;
  auto stages = StagesOf(layout, 9);
  ASSERT_TRUE(stages.ok()) << stages.status();
  EXPECT_EQ(*stages, (std::vector<Segments>{{{0, 4}}, {{4, 4}}, {{8, 1}}}));
  layout.layers_first = 2;
  EXPECT_EQ(StagesOf(layout, 9)->at(1), (Segments{{2, 6}}));
  layout.layers_first = layout.layers_last = std::nullopt;
  layout.vpp = 2;
  EXPECT_EQ(StagesOf(layout, 12)->at(1), (Segments{{2, 2}, {8, 2}}));
  EXPECT_EQ(CodeOf(StagesOf(layout, 9).status()), "shape_mismatch");
  layout.vpp = 1;
  layout.layers_first = 2;
  EXPECT_EQ(CodeOf(StagesOf(layout, 9).status()), "shape_mismatch");
  layout.layers_first = 10;
  EXPECT_EQ(CodeOf(StagesOf(layout, 9).status()), "shape_mismatch");
  EXPECT_THAT(std::string(StagesOf(layout, 9).status().message()), HasSubstr("layers_first is 10 of 9 layers"));
  layout.layers_first = std::nullopt;
  layout.layers_last = -1;
  EXPECT_THAT(std::string(StagesOf(layout, 9).status().message()), HasSubstr("layers_last is -1 of 9 layers"));
  EXPECT_EQ(StagesOf(FitEngines(4, 1, 4, 1).value(), 10)->at(3), (Segments{{8, 2}}));
}

// Takes minutes if each stage walks all others.
TEST(StagesOf, MoreStagesThanLayers) {
  MegatronLayout layout;
  layout.parallel.pp = kMaxSideRanks;
  const std::vector<Segments> stages = StagesOf(layout, 2).value();
  ASSERT_EQ(stages.size(), static_cast<size_t>(kMaxSideRanks));
  for (size_t s = 0; s < stages.size(); ++s) {
    ASSERT_EQ(stages[s], s < 2 ? Segments({{static_cast<Index>(s), 1}}) : Segments()) << s;
  }
}

TEST(PublishedLayouts, AreFoundByTheirIds) {
  EXPECT_EQ(LayoutIds().size(), 62u);
  EXPECT_EQ(CodeOf(LayoutNamed("nobody").status()), "invalid_option");
  const auto dsv3 = LayoutNamed("blog-h100-dsv3-rs");
  ASSERT_TRUE(dsv3.ok()) << dsv3.status();
  EXPECT_EQ(dsv3->model, "deepseek-v3-bf16");
  EXPECT_EQ(dsv3->seconds_min, 2.6);
  EXPECT_EQ(dsv3->engines.at(0).parallel.tp, 32);
  EXPECT_EQ(std::get<MegatronLayout>(dsv3->trainer).layers_first, 3);
  EXPECT_FALSE(dsv3->engines.at(0).uneven_units);
  EXPECT_EQ(CodeOf(LayoutNamed("blog-qwen3.8-2.4t-rs").status()), "malformed");
}

}  // namespace
}  // namespace headrace
