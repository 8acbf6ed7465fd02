#include "kernels/cuda/gpu_bandwidth.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/copy_table.h"
#include "kernels/cuda/elementwise_table.h"
#include "kernels/cuda/gpu_device.h"
#include "kernels/cuda/quantize_table.h"

namespace headrace::kernels::testing {
namespace {

using nlohmann::json;

constexpr int kLaunches = 15;
constexpr int64_t kMostBytes = int64_t{1} << 30;

// The median of the milliseconds of some launches, after one that does not count.
double Milliseconds(const std::function<void()>& launch) {
  cudaEvent_t begin, end;
  RequireCuda(cudaEventCreate(&begin), "cudaEventCreate");
  RequireCuda(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<float> all;
  for (int i = 0; i <= kLaunches; ++i) {
    RequireCuda(cudaEventRecord(begin, nullptr), "cudaEventRecord");
    launch();
    RequireCuda(cudaEventRecord(end, nullptr), "cudaEventRecord");
    RequireCuda(cudaEventSynchronize(end), "cudaEventSynchronize");
    float milliseconds = 0;
    RequireCuda(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    if (i > 0) all.push_back(milliseconds);
  }
  RequireCuda(cudaEventDestroy(begin), "cudaEventDestroy");
  RequireCuda(cudaEventDestroy(end), "cudaEventDestroy");
  std::nth_element(all.begin(), all.begin() + kLaunches / 2, all.end());
  return all[kLaunches / 2];
}

// Rows of `run` bytes with gaps in the source, dense in the destination: a column shard that is packed.
StridedCopy Rows(const std::byte* src, std::byte* dst, int64_t bytes, int64_t run) {
  StridedCopy c;
  c.src = src;
  c.dst = dst;
  c.tensor_key = 1;
  c.run_bytes = run;
  c.rank = 1;
  c.extent[0] = bytes / run / 2;
  c.src_stride[0] = c.pos_stride[0] = 2 * run;
  c.dst_stride[0] = run;
  return c;
}

class Bench {
 public:
  explicit Bench(const HeadraceKernelsV1& kernels) : kernels_(kernels) {
    size_t free = 0, total = 0;
    RequireCuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    bytes_ = std::min<int64_t>(kMostBytes, static_cast<int64_t>(free / 4)) / 4096 * 4096;
    src_ = device_.Allocate(bytes_);
    dst_ = device_.Allocate(bytes_);
    sums_ = reinterpret_cast<uint64_t*>(device_.Allocate(8));
    RequireCuda(cudaMemset(src_, 1, static_cast<size_t>(bytes_)), "cudaMemset");
    RequireCuda(cudaMemset(dst_, 0, static_cast<size_t>(bytes_)), "cudaMemset");
    RequireCuda(cudaMemset(sums_, 0, 8), "cudaMemset");
    const double milliseconds = Milliseconds([&] {
      RequireCuda(cudaMemcpyAsync(dst_, src_, static_cast<size_t>(bytes_), cudaMemcpyDeviceToDevice, nullptr),
                  "cudaMemcpyAsync");
    });
    Add("cudaMemcpyAsync", "device to device", 2 * bytes_, milliseconds);
  }
  ~Bench() {
    device_.Free(src_);
    device_.Free(dst_);
    device_.Free(reinterpret_cast<std::byte*>(sums_));
  }

  json Run() {
    Copies("contiguous", {Contiguous()});
    Copies("runs of 4 KiB", {Rows(src_, dst_, bytes_, 4096)});
    Copies("runs of 256 B", {Rows(src_, dst_, bytes_, 256)});
    Copies("runs of 16 B", {Rows(src_, dst_, bytes_, 16)});
    // One huge box and 100,000 of 256 bytes.
    std::vector<StridedCopy> mixed{Contiguous()};
    constexpr int64_t kTiny = 100000, kTinyBytes = 256;
    if (bytes_ > 2 * kTiny * kTinyBytes) {
      mixed[0].run_bytes -= kTiny * kTinyBytes;
      for (int64_t i = 0; i < kTiny; ++i) {
        StridedCopy tiny = mixed[0];
        tiny.src += mixed[0].run_bytes + i * kTinyBytes;
        tiny.dst += mixed[0].run_bytes + i * kTinyBytes;
        tiny.run_bytes = kTinyBytes;
        mixed.push_back(tiny);
      }
      Copies("one huge, 100,000 of 256 B", mixed);
    }
    Elementwise();
    Quantizations();
    return results_;
  }

 private:
  StridedCopy Contiguous() {
    StridedCopy c;
    c.src = src_;
    c.dst = dst_;
    c.tensor_key = 1;
    c.run_bytes = bytes_;
    return c;
  }

  void Add(const std::string& kernel, const std::string& what, int64_t bytes, double milliseconds) {
    const double gb_per_s = static_cast<double>(bytes) / milliseconds / 1e6;
    if (results_.empty()) memcpy_gb_per_s_ = gb_per_s;
    results_.push_back(
        {{"kernel", kernel}, {"case", what}, {"gb_per_s", gb_per_s}, {"of_memcpy", gb_per_s / memcpy_gb_per_s_}});
  }

  // Uploads a table and times `function(table)`.
  template <class Builder, class Function>
  double Time(const Builder& builder, const Function& function) {
    TwinMemory image(device_, builder.Image());
    const HeadraceTable table = builder.At(image.device());
    const HeadraceLaunch launch = {0, nullptr};
    return Milliseconds([&] {
      HeadraceKernelError error = {};
      RequireCuda(static_cast<cudaError_t>(function(&launch, &table, &error)), "the launch");
    });
  }

  void Copies(const std::string& what, const std::vector<StridedCopy>& boxes) {
    CopyTable table;
    int64_t bytes = 0;
    for (const StridedCopy& box : boxes) {
      table.AddCopy(box, 0);
      bytes += BoxBytes(box);
    }
    for (uint64_t* sums : {static_cast<uint64_t*>(nullptr), sums_}) {
      const double milliseconds =
          Time(table, [&](auto* launch, auto* t, auto* error) { return kernels_.copy(launch, t, sums, error); });
      Add(sums == nullptr ? "copy" : "copy with sum", what, 2 * bytes, milliseconds);
    }
  }

  void Elementwise() {
    StridedCast c;
    c.src = src_;
    c.dst = dst_;
    c.rank = 1;
    c.extent[0] = bytes_ / 4;
    c.src_stride[0] = 4;
    c.dst_stride[0] = 2;
    ElementwiseTable cast, neg_exp;
    cast.AddCast(FloatType::kF32, FloatType::kBF16, c);
    Add("cast", "F32 to BF16, contiguous", bytes_ / 4 * 6, Time(cast, kernels_.elementwise));
    c.dst_stride[0] = 4;
    neg_exp.AddNegExp(c);
    Add("-exp", "F32, contiguous", 2 * bytes_, Time(neg_exp, kernels_.elementwise));
  }

  void Quantizations() {
    QuantizeBox box;
    box.src = src_;
    box.type = FloatType::kBF16;
    box.cols = 4096;
    box.rows = bytes_ / 2 / box.cols;
    box.src_stride[0] = 2 * box.cols, box.src_stride[1] = 2;
    for (const BlockScale scale : {BlockScale::kF32Of128x128, BlockScale::kE8M0Of1x32}) {
      const BlockGrid grid = BlocksOf(scale, box);
      // The quarter of the destination behind the elements holds the scales, the next the maxima: 1 / 32 and 1 / 8 of
      // the elements' bytes at most.
      const int64_t elements = box.rows * box.cols;
      QuantizedBox out;
      out.dst = dst_;
      out.dst_stride[0] = box.cols, out.dst_stride[1] = 1;
      out.scales = dst_ + elements;
      out.scale_stride[0] = grid.cols * ScaleBytes(scale), out.scale_stride[1] = ScaleBytes(scale);
      auto* const maxima = reinterpret_cast<uint32_t*>(dst_ + elements + elements / 4);
      QuantizeTable table;
      table.Add(scale, box, maxima, grid.cols, out);
      const std::string what = scale == BlockScale::kF32Of128x128 ? "BF16, 128x128" : "BF16, 1x32";
      RequireCuda(cudaMemset(maxima, 0, static_cast<size_t>(grid.rows * grid.cols * 4)), "cudaMemset");
      Add("block maxima", what, 2 * elements, Time(table, kernels_.block_maxima));
      Add("quantize", what, 3 * elements, Time(table, kernels_.quantize));
    }
  }

  const HeadraceKernelsV1& kernels_;
  GpuDevice device_;
  int64_t bytes_ = 0;
  std::byte* src_ = nullptr;
  std::byte* dst_ = nullptr;
  uint64_t* sums_ = nullptr;
  double memcpy_gb_per_s_ = 0;
  json results_ = json::array();
};

}  // namespace

json MeasureBandwidth(const HeadraceKernelsV1& kernels) { return Bench(kernels).Run(); }

}  // namespace headrace::kernels::testing
