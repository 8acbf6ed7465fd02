#include "kernels/cuda/check_cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "kernels/cast.h"
#include "kernels/cuda/copy_table.h"
#include "kernels/cuda/elementwise_table.h"
#include "kernels/cuda/quantize_table.h"
#include "kernels/neg_exp.h"
#include "kernels/quantize.h"
#include "kernels/strided_copy.h"
#include "kernels/test_support.h"

namespace headrace::kernels::testing {
namespace {

using Sources = std::vector<std::unique_ptr<TwinMemory>>;

std::string Compare(const std::string& what, const std::vector<std::byte>& got,
                    const std::vector<std::byte>& expected) {
  const auto [g, e] = std::mismatch(got.begin(), got.end(), expected.begin(), expected.end());
  if (g == got.end()) return "";
  return what + ": byte " + std::to_string(g - got.begin()) + " of " + std::to_string(got.size()) + " is " +
         std::to_string(static_cast<int>(*g)) + ", expected " + std::to_string(static_cast<int>(*e));
}

std::string Failure(const std::string& what, const HeadraceKernelError& error) { return what + ": " + error.text; }

// The places of destinations that lie one after the other, with guards between.
class Places {
 public:
  // The offset of the first byte of a box that reaches [low, high) around it, a multiple of `unit`.
  int64_t Add(std::mt19937_64& gen, int64_t unit, int64_t low, int64_t high) {
    const int64_t at = (end_ + 16 - low + 15) / 16 * 16 + unit * Uniform(gen, 0, 16 / unit - 1);
    end_ = at + high;
    return at;
  }
  int64_t bytes() const { return end_ + 16; }

 private:
  int64_t end_ = 0;
};

struct CopyCase {
  StridedCopy copy;  // without pointers
  TwinMemory* src;
  int64_t src_at, dst_at, slot;
  int kind;  // copy, sum, pack a part, unpack a part
  int64_t first, size;
};

StridedCopy WithPointers(const CopyCase& c, std::byte* src, std::byte* dst) {
  StridedCopy copy = c.copy;
  copy.src = src;
  copy.dst = dst;
  return copy;
}

CopyCase DrawCopy(CheckDevice& device, std::mt19937_64& gen, Sources& sources, Places& places) {
  constexpr int64_t kUnits[] = {1, 2, 4, 8, 16, 16};
  const int64_t unit = kUnits[Uniform(gen, 0, 5)];
  const DrawnBox box = DrawBox(gen, kMaxBoxLoops, unit, Uniform(gen, 0, 9) == 0 ? 60000 : 4000);
  const DrawnLayout src = DrawLayout(gen, box, unit, box.run_bytes, true);
  const DrawnLayout dst = DrawLayout(gen, box, unit, box.run_bytes, true);
  const DrawnLayout pos = DrawLayout(gen, box, Uniform(gen, 0, 1) ? unit : 1, box.run_bytes, true);
  CopyCase c = {};
  c.copy.run_bytes = box.run_bytes;
  c.copy.rank = box.rank;
  for (int i = 0; i < box.rank; ++i) {
    const auto loop = static_cast<size_t>(i);
    c.copy.extent[i] = box.extent[loop];
    c.copy.src_stride[i] = src.stride[loop];
    c.copy.dst_stride[i] = dst.stride[loop];
    c.copy.pos_stride[i] = pos.stride[loop];
  }
  c.copy.tensor_key = gen();
  c.copy.first_byte = -pos.low + (Uniform(gen, 0, 1) ? unit : 1) * Uniform(gen, 0, 9000);
  c.kind = static_cast<int>(Uniform(gen, 0, 3));
  const int64_t bytes = BoxBytes(c.copy);
  const int64_t skew = unit * Uniform(gen, 0, 16 / unit - 1);
  c.first = Uniform(gen, 0, bytes);
  c.size = Uniform(gen, 0, bytes - c.first);
  const bool is_unpack = c.kind == 3, is_pack = c.kind == 2;
  sources.push_back(
      std::make_unique<TwinMemory>(device, RandomBytes(gen, skew + (is_unpack ? c.size : src.high - src.low))));
  c.src = sources.back().get();
  c.src_at = skew - (is_unpack ? 0 : src.low);
  c.dst_at = is_pack ? places.Add(gen, unit, 0, c.size) : places.Add(gen, unit, dst.low, dst.high);
  return c;
}

// The sum of bytes of a box in its packed order.
uint64_t PackedSum(StridedCopy c, int64_t first, std::span<const std::byte> packed) {
  std::vector<std::byte> dense(static_cast<size_t>(BoxBytes(c)));
  int64_t stride = c.run_bytes;
  for (int i = c.rank - 1; i >= 0; --i) {
    c.dst_stride[i] = stride;
    stride *= c.extent[i];
  }
  c.dst = dense.data();
  return UnpackAndSum(c, first, packed);
}

}  // namespace

std::string CheckCopies(const HeadraceKernelsV1& kernels, CheckDevice& device, std::mt19937_64& gen, int boxes) {
  Sources sources;
  Places places;
  std::vector<CopyCase> cases;
  for (int i = 0; i < boxes; ++i) {
    cases.push_back(DrawCopy(device, gen, sources, places));
    cases.back().slot = Uniform(gen, 0, boxes / 2);
  }
  TwinMemory dst(device, std::vector<std::byte>(static_cast<size_t>(places.bytes()), kCheckGuard));
  std::vector<uint64_t> sums(static_cast<size_t>(boxes));
  CopyTable table;
  for (const CopyCase& c : cases) {
    const StridedCopy host = WithPointers(c, c.src->host(c.src_at), dst.host(c.dst_at));
    const StridedCopy there = WithPointers(c, c.src->device(c.src_at), dst.device(c.dst_at));
    const auto size = static_cast<size_t>(c.size);
    uint64_t& sum = sums[static_cast<size_t>(c.slot)];
    if (c.kind == 0) {
      sum += CopyAndSum(host);
      table.AddCopy(there, c.slot);
    } else if (c.kind == 1) {
      sum += Sum(host);
      table.AddSum(there, c.slot);
    } else if (c.kind == 2) {
      const std::span<std::byte> packed(host.dst, size);
      Pack(host, c.first, packed);
      sum += PackedSum(host, c.first, packed);
      table.AddPack(there, c.first, {there.dst, size}, c.slot);
    } else {
      sum += UnpackAndSum(host, c.first, {host.src, size});
      table.AddUnpack(there, c.first, {there.src, size}, c.slot);
    }
  }
  TwinMemory image(device, table.Image());
  TwinMemory device_sums(device, std::vector<std::byte>(sums.size() * sizeof(uint64_t)));
  const HeadraceTable launched = table.At(image.device());
  const HeadraceLaunch launch = {0, nullptr};
  HeadraceKernelError error = {};
  const bool with_sums = Uniform(gen, 0, 3) != 0;
  auto* const sums_at = reinterpret_cast<uint64_t*>(device_sums.device());
  if (kernels.copy(&launch, &launched, with_sums ? sums_at : nullptr, &error) != 0) return Failure("copy", error);
  device.Wait();
  std::string wrong = Compare("copied bytes", dst.DeviceBytes(), dst.host_bytes());
  if (!wrong.empty() || !with_sums) return wrong;
  const std::span<const std::byte> expected = std::as_bytes(std::span(sums));
  return Compare("sums", device_sums.DeviceBytes(), {expected.begin(), expected.end()});
}

std::string CheckElementwise(const HeadraceKernelsV1& kernels, CheckDevice& device, std::mt19937_64& gen, int boxes) {
  struct Case {
    StridedCast cast;
    FloatType from, to;
    TwinMemory* src;
    int64_t src_at, dst_at;
  };
  Sources sources;
  Places places;
  std::vector<Case> cases;
  for (int n = 0; n < boxes; ++n) {
    Case c = {};
    c.from = static_cast<FloatType>(Uniform(gen, 0, 3));
    c.to = static_cast<FloatType>(Uniform(gen, 0, 3));
    // A cast to the same type is none: it stands for the negated exponential here.
    if (c.from == c.to) c.from = c.to = FloatType::kF32;
    const int64_t in = FloatBytes(c.from), out = FloatBytes(c.to);
    DrawnBox box = DrawBox(gen, kMaxCastLoops - 1, 1, Uniform(gen, 0, 9) == 0 ? 20000 : 2000);
    box.extent.push_back(box.run_bytes);  // the run as an innermost loop of elements
    ++box.rank;
    const int64_t pad = Uniform(gen, 0, 1) ? 4 : 1;  // elements
    const DrawnLayout src = DrawLayout(gen, box, pad * in, in, true);
    const DrawnLayout dst = DrawLayout(gen, box, pad * out, out, true);
    c.cast.rank = box.rank;
    for (int i = 0; i < box.rank; ++i) {
      const auto loop = static_cast<size_t>(i);
      c.cast.extent[i] = box.extent[loop];
      c.cast.src_stride[i] = src.stride[loop];
      c.cast.dst_stride[i] = dst.stride[loop];
    }
    const int64_t skew = in * Uniform(gen, 0, 1);
    sources.push_back(std::make_unique<TwinMemory>(device, RandomBytes(gen, skew + src.high - src.low)));
    c.src = sources.back().get();
    c.src_at = skew - src.low;
    c.dst_at = places.Add(gen, Uniform(gen, 0, 1) ? out : 16, dst.low, dst.high);
    cases.push_back(c);
  }
  TwinMemory dst(device, std::vector<std::byte>(static_cast<size_t>(places.bytes()), kCheckGuard));
  ElementwiseTable table;
  for (const Case& c : cases) {
    StridedCast host = c.cast, there = c.cast;
    host.src = c.src->host(c.src_at), host.dst = dst.host(c.dst_at);
    there.src = c.src->device(c.src_at), there.dst = dst.device(c.dst_at);
    if (c.from == c.to) {
      NegExp(host);
      table.AddNegExp(there);
    } else {
      Cast(c.from, c.to, host);
      table.AddCast(c.from, c.to, there);
    }
  }
  TwinMemory image(device, table.Image());
  const HeadraceTable launched = table.At(image.device());
  const HeadraceLaunch launch = {0, nullptr};
  HeadraceKernelError error = {};
  if (kernels.elementwise(&launch, &launched, &error) != 0) return Failure("elementwise", error);
  device.Wait();
  return Compare("converted bytes", dst.DeviceBytes(), dst.host_bytes());
}

namespace {

// A value of `type`: mostly of a few magnitudes, with zeros, infinities, NaNs and denormals among them where `special`.
void DrawValue(std::mt19937_64& gen, FloatType type, bool special, std::byte* to) {
  float value = std::normal_distribution<float>(0, 1)(gen);
  switch (special ? Uniform(gen, 0, 400) : 9) {
    case 0:
      value = INFINITY;
      break;
    case 1:
      value = -INFINITY;
      break;
    case 2:
      value = NAN;
      break;
    case 3:
      value = 1e-41f;
      break;
    case 4:
      value = std::ldexp(value, static_cast<int>(Uniform(gen, -140, 120)));
      break;
    case 5:
    case 6:
      value = Uniform(gen, 0, 1) ? 0.0f : -0.0f;
      break;
    default:
      break;
  }
  const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
  if (type == FloatType::kF32) {
    std::memcpy(to, bytes, sizeof value);
    return;
  }
  StridedCast one;
  one.src = bytes;
  one.dst = to;
  Cast(FloatType::kF32, type, one);
}

struct Shard {
  BlockScale scale;
  QuantizeBox box;  // without the pointer
  QuantizedBox out;
  TwinMemory* src;
  int64_t src_at, dst_at, scales_at, maxima_at;
  int64_t matrix;
  BlockGrid grid;
};

// Cuts [0, size) at up to three places.
std::vector<int64_t> Cuts(std::mt19937_64& gen, int64_t size) {
  std::vector<int64_t> cuts{0, size};
  for (int64_t n = Uniform(gen, 0, 3); n > 0; --n) cuts.push_back(Uniform(gen, 0, size));
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

}  // namespace

std::string CheckQuantize(const HeadraceKernelsV1& kernels, CheckDevice& device, std::mt19937_64& gen, int matrices) {
  Sources sources;
  Places places, scale_places;
  int64_t maxima_count = 0;
  std::vector<Shard> shards;
  for (int m = 0; m < matrices; ++m) {
    const BlockScale scale = Uniform(gen, 0, 1) ? BlockScale::kF32Of128x128 : BlockScale::kE8M0Of1x32;
    const auto type = static_cast<FloatType>(Uniform(gen, 0, 2));
    const int64_t bytes = FloatBytes(type), scale_bytes = ScaleBytes(scale);
    const auto row_cuts = Cuts(gen, Uniform(gen, 1, 300)), col_cuts = Cuts(gen, Uniform(gen, 1, 300));
    for (size_t i = 1; i < row_cuts.size(); ++i) {
      for (size_t j = 1; j < col_cuts.size(); ++j) {
        Shard s = {};
        s.scale = scale;
        s.matrix = m;
        s.box.type = type;
        s.box.first_row = row_cuts[i - 1], s.box.rows = row_cuts[i] - row_cuts[i - 1];
        s.box.first_col = col_cuts[j - 1], s.box.cols = col_cuts[j] - col_cuts[j - 1];
        if (s.box.rows == 0 || s.box.cols == 0) continue;
        DrawnBox box;
        box.rank = 2;
        box.extent = {s.box.rows, s.box.cols};
        const DrawnLayout src = DrawLayout(gen, box, bytes * (Uniform(gen, 0, 1) ? 4 : 1), bytes, true);
        const DrawnLayout dst = DrawLayout(gen, box, Uniform(gen, 0, 1) ? 4 : 1, 1, true);
        std::copy_n(src.stride.begin(), 2, s.box.src_stride);
        std::copy_n(dst.stride.begin(), 2, s.out.dst_stride);
        const int64_t skew = bytes * Uniform(gen, 0, 3);
        sources.push_back(std::make_unique<TwinMemory>(
            device, std::vector<std::byte>(static_cast<size_t>(skew + src.high - src.low))));
        s.src = sources.back().get();
        s.src_at = skew - src.low;
        s.dst_at = places.Add(gen, Uniform(gen, 0, 1) ? 1 : 16, dst.low, dst.high);
        s.grid = BlocksOf(scale, s.box);
        s.out.scale_stride[0] = scale_bytes * s.grid.cols, s.out.scale_stride[1] = scale_bytes;
        s.scales_at = scale_places.Add(gen, scale_bytes, 0, scale_bytes * s.grid.rows * s.grid.cols);
        s.maxima_at = maxima_count;
        maxima_count += s.grid.rows * s.grid.cols;
        shards.push_back(s);
      }
    }
  }
  TwinMemory dst(device, std::vector<std::byte>(static_cast<size_t>(places.bytes()), kCheckGuard));
  TwinMemory scales(device, std::vector<std::byte>(static_cast<size_t>(scale_places.bytes()), kCheckGuard));
  TwinMemory maxima(device, std::vector<std::byte>(static_cast<size_t>(maxima_count) * sizeof(uint32_t)));
  auto* const maxima_host = reinterpret_cast<uint32_t*>(maxima.host());
  QuantizeTable table;
  for (Shard& s : shards) {
    const bool special = Uniform(gen, 0, 1);
    for (int64_t r = 0; r < s.box.rows; ++r) {
      for (int64_t c = 0; c < s.box.cols; ++c) {
        DrawValue(gen, s.box.type, special, s.src->host(s.src_at + r * s.box.src_stride[0] + c * s.box.src_stride[1]));
      }
    }
    device.Write(s.src->device(), s.src->host_bytes());
    QuantizeBox there = s.box;
    there.src = s.src->device(s.src_at);
    QuantizedBox out = s.out;
    out.dst = dst.device(s.dst_at);
    out.scales = scales.device(s.scales_at);
    table.Add(s.scale, there, reinterpret_cast<uint32_t*>(maxima.device()) + s.maxima_at, s.grid.cols, out);
    s.box.src = s.src->host(s.src_at);
    BlockMaxima(s.scale, s.box, maxima_host + s.maxima_at, s.grid.cols);
  }
  TwinMemory image(device, table.Image());
  const HeadraceTable launched = table.At(image.device());
  const HeadraceLaunch launch = {0, nullptr};
  HeadraceKernelError error = {};
  if (kernels.block_maxima(&launch, &launched, &error) != 0) return Failure("block maxima", error);
  device.Wait();
  if (std::string wrong = Compare("maxima", maxima.DeviceBytes(), maxima.host_bytes()); !wrong.empty()) return wrong;

  // What an all-reduce over the shards of each matrix gives.
  std::map<std::tuple<int64_t, int64_t, int64_t>, uint32_t> combined;
  auto for_each_block = [&](auto&& body) {
    for (const Shard& s : shards) {
      for (int64_t i = 0; i < s.grid.rows; ++i) {
        for (int64_t j = 0; j < s.grid.cols; ++j) {
          body(combined[{s.matrix, s.grid.first_row + i, s.grid.first_col + j}],
               maxima_host[s.maxima_at + i * s.grid.cols + j]);
        }
      }
    }
  };
  for_each_block([](uint32_t& all, uint32_t& part) { CombineMaxima(&part, 1, &all); });
  for_each_block([](uint32_t& all, uint32_t& part) { part = all; });
  device.Write(maxima.device(), maxima.host_bytes());
  for (const Shard& s : shards) {
    QuantizedBox out = s.out;
    out.dst = dst.host(s.dst_at);
    out.scales = scales.host(s.scales_at);
    Quantize(s.scale, s.box, maxima_host + s.maxima_at, s.grid.cols, out);
  }
  if (kernels.quantize(&launch, &launched, &error) != 0) return Failure("quantize", error);
  device.Wait();
  if (std::string wrong = Compare("scales", scales.DeviceBytes(), scales.host_bytes()); !wrong.empty()) return wrong;
  return Compare("elements", dst.DeviceBytes(), dst.host_bytes());
}

}  // namespace headrace::kernels::testing
