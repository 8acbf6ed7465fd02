#include "planner/models/experts.h"

#include <utility>

namespace headrace {
namespace {

constexpr LinearFormat kPlainFormat;

UnitBuilder StackedUnit(const Site& site, Index experts) {
  UnitBuilder u(site, "expert", kPlainFormat, experts);
  u.unit().stacked = true;
  return u;
}

}  // namespace

void AddGatedMlp(UnitBuilder& u, const std::string& pre, Index hidden, Index inter) {
  const int gate = u.Rows(pre + "gate_proj.weight", {{inter, 1}}, hidden);
  const int up = u.Rows(pre + "up_proj.weight", {{inter, 1}}, hidden);
  u.FuseEngine(pre + "gate_up_proj.weight", {gate, up});
  u.FuseTrainer(pre + "linear_fc1.weight", {gate, up});
  u.Columns(pre + "down_proj.weight", hidden, {inter, 1});
}

void AddMlp(UnitBuilder& u, const std::string& pre, Index hidden, Index inter) {
  u.Rows(pre + "up_proj.weight", {{inter, 1}}, hidden);
  u.Columns(pre + "down_proj.weight", hidden, {inter, 1});
}

void AddRouter(UnitBuilder& u, const std::string& pre, Index experts, Index hidden, bool score_bias) {
  u.Whole(pre + "gate.weight", {experts, hidden});
  if (score_bias) u.Whole(pre + "gate.e_score_correction_bias", {experts}, Dtype::kF32);
}

UnitBuilder ExpertUnit(const Site& site, LinearFormat format, const std::string& pre, Index experts, Index hidden,
                       Index inter, const ExpertNames& names) {
  UnitBuilder u(site, "expert", format, experts);
  const std::string one = pre + "experts.{expert}.";
  std::vector<int> in;
  if (!names.gate.empty()) in.push_back(u.Rows(one + names.gate + ".weight", {{inter, 1}}, hidden));
  in.push_back(u.Rows(one + names.up + ".weight", {{inter, 1}}, hidden));
  const int down = u.Columns(one + names.down + ".weight", hidden, {inter, 1});
  // Engines stack a layer's experts in these.
  u.FuseEngine(pre + "experts.w13_weight", in);
  u.FuseEngine(pre + "experts.w2_weight", {down});
  u.FuseTrainer(pre + "experts.linear_fc1.weight{expert}", in);
  u.FuseTrainer(pre + "experts.linear_fc2.weight{expert}", {down});
  return u;
}

UnitBuilder StackedExpertUnit(const Site& site, const std::string& pre, Index experts, Index hidden, Index inter) {
  UnitBuilder u = StackedUnit(site, experts);
  u.Rows(pre + "experts.gate_up_proj", {{inter, 1}, {inter, 1}}, hidden);
  u.Columns(pre + "experts.down_proj", hidden, {inter, 1});
  return u;
}

UnitBuilder GptOssExpertUnit(const Site& site, const std::string& pre, Index experts, Index hidden, Index inter,
                             bool mxfp4) {
  UnitBuilder u = StackedUnit(site, experts);
  const std::string in = pre + "experts.gate_up_proj", down = pre + "experts.down_proj";
  if (mxfp4) {
    // Stored as [rows, groups of 32 values, 16 bytes]. The views have the two inner axes as one, as the scales do.
    const Index in_groups = CeilDivide(hidden, kMxValues), down_groups = inter / kMxValues;
    const int in_blocks =
        u.Cut(in + "_blocks", {2 * inter, in_groups, kMxBytes}, 0, {{down_groups, kMxValues}}, Dtype::kU8);
    u.tensor(in_blocks).view = {inter, 2, in_groups * kMxBytes};
    const int in_scales = u.Whole(in + "_scales", {2 * inter, in_groups}, Dtype::kU8);
    u.tensor(in_scales).view = {inter, 2, in_groups};
    u.tensor(in_scales).scale_of = in_blocks;
    u.tensor(in_scales).block = {1, 1, kMxBytes};
    const int down_blocks =
        u.Cut(down + "_blocks", {hidden, down_groups, kMxBytes}, 1, {{down_groups, kMxBytes}}, Dtype::kU8);
    u.tensor(down_blocks).view = {hidden, down_groups * kMxBytes};
    const int down_scales = u.Whole(down + "_scales", {hidden, down_groups}, Dtype::kU8);
    u.tensor(down_scales).scale_of = down_blocks;
    u.tensor(down_scales).block = {1, kMxBytes};
  } else {
    u.tensor(u.Cut(in, {hidden, 2 * inter}, 1, {{inter, 1}})).view = {hidden, inter, 2};
    u.Cut(down, {inter, hidden}, 0, {{inter, 1}});
  }
  const RowPart rows = mxfp4 ? RowPart{inter / kMxValues, kMxValues} : RowPart{inter, 1};  // as the weight's
  u.tensor(u.Cut(in + "_bias", {2 * inter}, 0, {rows})).view = {inter, 2};
  u.Whole(down + "_bias", {hidden});
  return u;
}

}  // namespace headrace
