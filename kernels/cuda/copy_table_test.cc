#include "kernels/cuda/copy_table.h"

#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/host_backend.h"
#include "kernels/test_support.h"

namespace headrace::kernels {
namespace {

using testing::OracleTerm;
using testing::RandomBytes;
using testing::SeededGenerator;
using testing::Uniform;

std::vector<uint64_t> Launch(const CopyTable& table, int64_t slots) {
  const std::vector<std::byte> image = table.Image();
  const HeadraceTable launched = table.At(image.data());
  const HeadraceLaunch launch = {0, nullptr};
  std::vector<uint64_t> sums(static_cast<size_t>(slots));
  HeadraceKernelError error = {};
  EXPECT_EQ(HostKernels()->copy(&launch, &launched, sums.data(), &error), 0);
  return sums;
}

alignas(64) std::byte memory[1 << 16];

// The unit is the widest that addresses, strides and run allow on the sides that are touched.
TEST(CopyTableTest, WidestUnit) {
  const StridedCopy aligned = {.src = memory,
                               .dst = memory + 4096,
                               .run_bytes = 64,
                               .rank = 1,
                               .extent = {4},
                               .src_stride = {96},
                               .dst_stride = {80},
                               .pos_stride = {70}};
  auto unit = [](StridedCopy c, bool sum_alone = false) {
    CopyTable table;
    if (sum_alone) {
      table.AddSum(c, 0);
    } else {
      table.AddCopy(c, 0);
    }
    return table.descriptors()[0].unit_bytes;
  };
  EXPECT_EQ(unit(aligned), 16);
  StridedCopy c = aligned;
  c.src += 8;
  EXPECT_EQ(unit(c), 8);
  c = aligned, c.dst += 4;
  EXPECT_EQ(unit(c), 4);
  EXPECT_EQ(unit(c, true), 16);
  c = aligned, c.run_bytes = 62;
  EXPECT_EQ(unit(c), 2);
  c = aligned, c.src_stride[0] = 97;
  EXPECT_EQ(unit(c), 1);
  c = aligned, c.dst_stride[0] = 72;
  EXPECT_EQ(unit(c), 8);
  c.extent[0] = 1;  // a stride that is never taken does not matter
  EXPECT_EQ(unit(c), 16);
}

TEST(CopyTableTest, JoinsLoopsAndSkipsEmptyBoxes) {
  StridedCopy c = {.src = memory,
                   .dst = memory + 32768,
                   .run_bytes = 32,
                   .rank = 3,
                   .extent = {4, 8, 2},
                   .src_stride = {1024, 64, 32},
                   .dst_stride = {512, 64, 32},
                   .pos_stride = {512, 64, 32}};
  CopyTable table;
  table.AddCopy(c, 7);
  ASSERT_EQ(table.descriptors().size(), 1u);
  const grid::CopyDescriptor& d = table.descriptors()[0];
  EXPECT_EQ(d.shape.run_units, 32);  // 512 bytes
  EXPECT_EQ(d.shape.extent[kMaxBoxLoops - 1], 4);
  EXPECT_EQ(d.units, 128);
  EXPECT_EQ(d.slot, 7);
  c.extent[1] = 0;
  table.AddCopy(c, 0);
  table.AddPack(c, 0, {}, 0);
  EXPECT_EQ(table.descriptors().size(), 1u);
  EXPECT_EQ(table.At(nullptr).count, 1);
}

// Lanes count by 32 bits: what is longer becomes several boxes, none of which is read here.
TEST(CopyTableTest, CutsLongRuns) {
  const StridedCopy c = {.src = memory + 1,
                         .dst = memory,
                         .run_bytes = (int64_t{1} << 32) + 5,
                         .rank = 1,
                         .extent = {2},
                         .src_stride = {int64_t{1} << 33},
                         .dst_stride = {(int64_t{1} << 32) + 7},
                         .first_byte = 11,
                         .pos_stride = {(int64_t{1} << 32) + 6}};
  CopyTable table;
  table.AddCopy(c, 0);
  ASSERT_EQ(table.descriptors().size(), 5u);
  for (int64_t i = 0; i < 5; ++i) {
    const grid::CopyDescriptor& d = table.descriptors()[static_cast<size_t>(i)];
    EXPECT_EQ(d.src, c.src + (i << 30));
    EXPECT_EQ(d.dst, c.dst + (i << 30));
    EXPECT_EQ(d.first_byte, 11 + (i << 30));
    EXPECT_EQ(d.shape.run_units, i == 4 ? 5 : 1 << 30);
    EXPECT_EQ(d.shape.extent[kMaxBoxLoops - 1], 2);
    EXPECT_EQ(d.units, 2 * int64_t{d.shape.run_units});
  }
}

TEST(CopyTableTest, CutsLongLoops) {
  const StridedCopy c = {.src = memory,
                         .dst = memory,
                         .run_bytes = 1,
                         .rank = 1,
                         .extent = {2 * (int64_t{1} << 30) + 3},
                         .src_stride = {4},
                         .dst_stride = {3},
                         .first_byte = 11,
                         .pos_stride = {2}};
  CopyTable table;
  table.AddCopy(c, 0);
  ASSERT_EQ(table.descriptors().size(), 3u);
  for (int64_t i = 0; i < 3; ++i) {
    const grid::CopyDescriptor& d = table.descriptors()[static_cast<size_t>(i)];
    EXPECT_EQ(d.src, c.src + (i << 30) * 4);
    EXPECT_EQ(d.dst, c.dst + (i << 30) * 3);
    EXPECT_EQ(d.first_byte, 11 + (i << 30) * 2);
    EXPECT_EQ(d.units, i == 2 ? 3 : 1 << 30);
  }
}

TEST(CopyTableTest, AnEmptyTableIsNoLaunch) { EXPECT_EQ(Launch(CopyTable(), 2), (std::vector<uint64_t>{0, 0})); }

// Rows of a matrix byte by byte by the definitions, with no code of the CPU twins: the box, its gaps and its sum.
TEST(CopyTableTest, ByTheDefinition) {
  auto gen = SeededGenerator();
  for (int n = 0; n < 200; ++n) {
    const int64_t unit = int64_t{1} << Uniform(gen, 0, 4);
    const int64_t run = unit * Uniform(gen, 1, 90), rows = Uniform(gen, 1, 40);
    const int64_t src_pitch = run + unit * Uniform(gen, 0, 9), dst_pitch = run + unit * Uniform(gen, 0, 9);
    const int64_t pos_pitch = run + Uniform(gen, 0, 5000), first = Uniform(gen, 0, 20000);
    const uint64_t tensor = gen();
    const std::vector<std::byte> src = RandomBytes(gen, rows * src_pitch + 16);
    std::vector<std::byte> dst = RandomBytes(gen, rows * dst_pitch + 16), expected = dst;
    const int64_t src_at = unit * Uniform(gen, 0, 16 / unit), dst_at = unit * Uniform(gen, 0, 16 / unit);
    uint64_t sum = 0;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t b = 0; b < run; ++b) {
        const std::byte v = src[static_cast<size_t>(src_at + r * src_pitch + b)];
        expected[static_cast<size_t>(dst_at + r * dst_pitch + b)] = v;
        sum += OracleTerm(tensor, first + r * pos_pitch + b, v);
      }
    }
    CopyTable table;
    table.AddCopy({.src = src.data() + src_at,
                   .dst = dst.data() + dst_at,
                   .run_bytes = run,
                   .rank = 1,
                   .extent = {rows},
                   .src_stride = {src_pitch},
                   .dst_stride = {dst_pitch},
                   .tensor_key = tensor,
                   .first_byte = first,
                   .pos_stride = {pos_pitch}},
                  1);
    ASSERT_EQ(Launch(table, 3), (std::vector<uint64_t>{0, sum, 0}));
    ASSERT_TRUE(dst == expected);
  }
}

}  // namespace
}  // namespace headrace::kernels
