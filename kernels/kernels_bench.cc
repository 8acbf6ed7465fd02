// Speed of the kernels on memory that was touched before and does not fit in any cache, in source bytes per CPU-second.
// `run` is the contiguous run; source rows are two runs apart, as in a slice of half the columns. `skew` moves the
// destination off its cache lines. bazel run -c opt //kernels:kernels_bench

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "benchmark/benchmark.h"
#include "kernels/cast.h"
#include "kernels/strided_copy.h"

namespace headrace::kernels {
namespace {

constexpr int64_t kBytes = int64_t{256} << 20;

std::byte* Touched(int64_t bytes) {
  auto* p = static_cast<std::byte*>(std::aligned_alloc(4096, static_cast<size_t>(bytes)));
  std::memset(p, 0x3C, static_cast<size_t>(bytes));
  return p;
}

std::byte* Source() {
  static std::byte* const p = Touched(2 * kBytes);
  return p;
}

std::byte* Destination() {
  static std::byte* const p = Touched(kBytes + 4096);
  return p;
}

// Arguments: run in bytes (0: all contiguous), skew of the destination in bytes.
StridedCopy Slice(const benchmark::State& state) {
  const int64_t run = state.range(0) == 0 ? kBytes : state.range(0);
  StridedCopy c;
  c.src = Source();
  c.dst = Destination() + state.range(1);
  c.run_bytes = run;
  c.rank = 1;
  c.extent[0] = kBytes / run;
  c.src_stride[0] = 2 * run;
  c.dst_stride[0] = run;
  c.pos_stride[0] = 2 * run;
  c.tensor_key = 1;
  return c;
}

void BM_Memcpy(benchmark::State& state) {
  const StridedCopy c = Slice(state);
  for (auto _ : state) {
    for (int64_t i = 0; i < c.extent[0]; ++i) {
      std::memcpy(c.dst + i * c.dst_stride[0], c.src + i * c.src_stride[0], static_cast<size_t>(c.run_bytes));
    }
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * kBytes);
}

void BM_Copy(benchmark::State& state) {
  const StridedCopy c = Slice(state);
  for (auto _ : state) Copy(c);
  state.SetBytesProcessed(state.iterations() * kBytes);
}

void BM_CopyAndSum(benchmark::State& state) {
  const StridedCopy c = Slice(state);
  for (auto _ : state) benchmark::DoNotOptimize(CopyAndSum(c));
  state.SetBytesProcessed(state.iterations() * kBytes);
}

void BM_Sum(benchmark::State& state) {
  const StridedCopy c = Slice(state);
  for (auto _ : state) benchmark::DoNotOptimize(Sum(c));
  state.SetBytesProcessed(state.iterations() * kBytes);
}

void Runs(benchmark::internal::Benchmark* b) {
  for (int64_t run : {256, 1024, 4096, 65536, 0}) b->Args({run, 0});
  for (int64_t run : {256, 1024, 4096, 65536}) b->Args({run, 16});
  b->ArgNames({"run", "skew"});
}

BENCHMARK(BM_Memcpy)->Apply(Runs);
BENCHMARK(BM_Copy)->Apply(Runs);
BENCHMARK(BM_CopyAndSum)->Apply(Runs);
BENCHMARK(BM_Sum)->Apply(Runs);

// A matrix of 2-byte elements, column-major in the source, row-major in the destination and the tensor.
StridedCopy Transpose(int64_t rows, int64_t columns) {
  StridedCopy c;
  c.src = Source();
  c.dst = Destination();
  c.run_bytes = 2;
  c.rank = 2;
  c.extent[0] = rows, c.extent[1] = columns;
  c.src_stride[0] = 2, c.src_stride[1] = 2 * rows;
  c.dst_stride[0] = 2 * columns, c.dst_stride[1] = 2;
  c.pos_stride[0] = 2 * columns, c.pos_stride[1] = 2;
  return c;
}

void BM_TransposeCopy(benchmark::State& state) {
  const StridedCopy c = Transpose(state.range(0), kBytes / 2 / state.range(0));
  for (auto _ : state) Copy(c);
  state.SetBytesProcessed(state.iterations() * kBytes);
}

void BM_TransposeCopyAndSum(benchmark::State& state) {
  const StridedCopy c = Transpose(state.range(0), kBytes / 2 / state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(CopyAndSum(c));
  state.SetBytesProcessed(state.iterations() * kBytes);
}

BENCHMARK(BM_TransposeCopy)->Arg(8192)->Arg(5000);
BENCHMARK(BM_TransposeCopyAndSum)->Arg(8192)->Arg(5000);

// F32 to the type of the argument, contiguous.
void BM_Cast(benchmark::State& state) {
  StridedCast c;
  c.src = Source();
  c.dst = Destination();
  c.rank = 1;
  c.extent[0] = kBytes / 4;
  c.src_stride[0] = 4;
  c.dst_stride[0] = 2;
  for (auto _ : state) Cast(FloatType::kF32, static_cast<FloatType>(state.range(0)), c);
  state.SetBytesProcessed(state.iterations() * kBytes);
}

BENCHMARK(BM_Cast)->Arg(static_cast<int>(FloatType::kBF16))->Arg(static_cast<int>(FloatType::kF16));

}  // namespace
}  // namespace headrace::kernels
