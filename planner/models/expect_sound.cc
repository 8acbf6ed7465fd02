#include "planner/models/expect_sound.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "planner/layout/row_parts.h"

namespace headrace {
namespace {

const Extents& ViewOf(const UnitTensor& tensor) { return tensor.view.empty() ? tensor.shape : tensor.view; }

Index Elements(const Extents& shape) {
  return std::accumulate(shape.begin(), shape.end(), Index{1}, std::multiplies());
}

void ExpectSoundTensor(const ModelUnit& unit, const UnitTensor& tensor) {
  SCOPED_TRACE(tensor.name);
  EXPECT_EQ(absl::StrContains(tensor.name, "{layer}"), unit.place == UnitPlace::kLayers);
  EXPECT_EQ(absl::StrContains(tensor.name, "{expert}"), unit.experts > 0 && !unit.stacked);
  EXPECT_EQ(Elements(ViewOf(tensor)), Elements(tensor.shape));
  for (const Index extent : ViewOf(tensor)) EXPECT_GE(extent, 1);
  if (tensor.cut_axis < 0) {
    EXPECT_TRUE(tensor.parts.empty());
    EXPECT_EQ(tensor.groups, 0);
    EXPECT_FALSE(tensor.vocabulary);
  } else {
    ASSERT_LT(tensor.cut_axis, static_cast<int>(ViewOf(tensor).size()));
    const absl::StatusOr<Index> rows = TotalRows(tensor.parts);
    ASSERT_TRUE(rows.ok()) << rows.status();
    EXPECT_EQ(*rows, ViewOf(tensor)[tensor.cut_axis]);
  }
  for (const RowPart& part : tensor.parts) {
    if (tensor.groups > 0) {
      EXPECT_EQ(part.units % tensor.groups, 0);
    }
  }
  if (tensor.scale_of < 0) {
    EXPECT_TRUE(tensor.block.empty());
    return;
  }
  ASSERT_LT(tensor.scale_of, static_cast<int>(unit.tensors.size()));
  const UnitTensor& weight = unit.tensors[tensor.scale_of];
  EXPECT_LT(weight.scale_of, 0);
  EXPECT_EQ(tensor.cut_axis, -1);
  ASSERT_EQ(tensor.block.size(), ViewOf(weight).size());
  ASSERT_EQ(tensor.block.size(), ViewOf(tensor).size());
  for (size_t a = 0; a < tensor.block.size(); ++a) {
    EXPECT_EQ(ViewOf(tensor)[a], (ViewOf(weight)[a] + tensor.block[a] - 1) / tensor.block[a]) << "axis " << a;
  }
}

void ExpectSoundBuffers(const ModelUnit& unit, const std::vector<FusedBuffer>& buffers) {
  std::set<int> used;
  std::set<std::string> names;
  for (const FusedBuffer& buffer : buffers) {
    SCOPED_TRACE(buffer.name);
    EXPECT_TRUE(names.insert(buffer.name).second);
    ASSERT_FALSE(buffer.tensors.empty());
    for (const int t : buffer.tensors) {
      ASSERT_GE(t, 0);
      ASSERT_LT(t, static_cast<int>(unit.tensors.size()));
      EXPECT_TRUE(used.insert(t).second) << unit.tensors[t].name << " is in two buffers";
      const UnitTensor& tensor = unit.tensors[t];
      const UnitTensor& first = unit.tensors[buffer.tensors[0]];
      EXPECT_LT(tensor.scale_of, 0) << "scales follow their weights";
      EXPECT_EQ(tensor.dtype, first.dtype);
      ASSERT_EQ(ViewOf(tensor).size(), ViewOf(first).size());
      for (int a = 0; a < static_cast<int>(ViewOf(first).size()); ++a) {
        if (a != buffer.axis) {
          EXPECT_EQ(ViewOf(tensor)[a], ViewOf(first)[a]);
        }
      }
      if (buffer.tensors.size() > 1) {
        EXPECT_TRUE(tensor.cut_axis < 0 || tensor.cut_axis == buffer.axis);
      }
      for (const RowPart& part : tensor.parts) {
        if (buffer.groups > 0) {
          EXPECT_EQ(part.units % buffer.groups, 0) << tensor.name;
        }
      }
    }
  }
}

}  // namespace

void ExpectSound(const Model& model, bool by_name) {
  SCOPED_TRACE(model.name);
  std::set<std::string> units, names;
  std::set<Index> layers;
  for (const ModelUnit& unit : model.units) {
    SCOPED_TRACE(unit.name);
    EXPECT_TRUE(units.insert(unit.name).second) << "two units of one name";
    EXPECT_FALSE(unit.tensors.empty());
    EXPECT_EQ(unit.place == UnitPlace::kLayers, !unit.layers.empty());
    if (unit.draft) {
      EXPECT_EQ(unit.place, UnitPlace::kLast);
    }
    if (unit.stacked) {
      EXPECT_GT(unit.experts, 0);
    }
    for (const Index layer : unit.layers) {
      EXPECT_GE(layer, 0);
      EXPECT_LT(layer, model.layers);
    }
    EXPECT_TRUE(std::is_sorted(unit.layers.begin(), unit.layers.end(), std::less_equal())) << "not ascending";
    layers.insert(unit.layers.begin(), unit.layers.end());
    for (const UnitTensor& tensor : unit.tensors) ExpectSoundTensor(unit, tensor);
    ExpectSoundBuffers(unit, unit.engine);
    ExpectSoundBuffers(unit, unit.trainer);
    if (!by_name) continue;
    const std::vector<Index> instances = unit.layers.empty() ? std::vector<Index>{-1} : unit.layers;
    for (const Index layer : instances) {
      for (Index e = 0; e < (unit.stacked ? 1 : std::max<Index>(unit.experts, 1)); ++e) {
        for (const UnitTensor& tensor : unit.tensors) {
          EXPECT_TRUE(names.insert(InstanceName(tensor.name, layer, e)).second) << tensor.name;
        }
      }
    }
  }
  EXPECT_EQ(static_cast<Index>(layers.size()), model.layers);
  if (by_name) {
    EXPECT_EQ(static_cast<Index>(names.size()), TensorCount(model));
  }
}

}  // namespace headrace
