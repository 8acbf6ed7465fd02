// What it costs a publisher to sum what other publishers offer too: CPU-seconds of its snapshot with these sums and
// without, in turns. Data-parallel replicas of a whole model, to an engine with tensor parallelism 2; the weights as
// they travel, and as FP32 masters. Prints one JSON document; bench/README.md lists the fields.
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "loader/snapshot.h"
#include "nlohmann/json.hpp"
#include "planner/plan.h"
#include "planner/replicas.h"
#include "planner/status.h"

namespace headrace::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  int tensors = 8;
  int replicas = 2;
  int repeats = 9;
  Index rows = 4096, columns = 4096;
};

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Manifest Model(const Options& o, Dtype held) {
  Manifest m;
  for (int t = 0; t < o.tensors; ++t) {
    const std::string name = absl::StrCat("w", t);
    m.tensors.push_back({name, {o.rows, o.columns}, Dtype::kBF16});
    const auto rows = [&](int64_t rank, Dtype dtype, Index first, Index count) {
      Buffer b;
      b.rank = rank;
      b.name = name;
      b.dtype = dtype;
      b.shape = {count, o.columns};
      b.strides = RowMajorStrides(b.shape);
      Piece piece;
      piece.tensor = name;
      piece.tensor_offset = {first, 0};
      piece.shape = b.shape;
      piece.buffer_offset = {0, 0};
      b.pieces = {piece};
      return b;
    };
    for (int64_t rank = 0; rank < o.replicas; ++rank) {
      m.source.push_back(rows(rank, held, 0, o.rows));
      m.source.back().convert_rne = held != Dtype::kBF16;
    }
    for (int64_t rank : {0, 1}) m.destination.push_back(rows(rank, Dtype::kBF16, rank * o.rows / 2, o.rows / 2));
  }
  return m;
}

absl::StatusOr<Json> Measure(const Options& o, Dtype held) {
  const Manifest m = Model(o, held);
  HR_ASSIGN_OR_RETURN(const Plan plan, BuildPlan(m));
  HR_ASSIGN_OR_RETURN(const std::vector<ReplicaSum> replicas, FindReplicas(m, 0));
  std::vector<std::vector<std::byte>> weights;
  std::map<int, const std::byte*> memory;
  for (size_t i = 0; i < m.source.size(); ++i) {
    if (m.source[i].rank != 0) continue;
    weights.emplace_back(SpanBytes(m.source[i], held), std::byte{0x3C});
    memory[static_cast<int>(i)] = weights.back().data();
  }
  const SnapshotWriter without(m, plan, 0, memory), with(m, plan, 0, memory, replicas);
  std::vector<std::byte> slot(with.layout().bytes()), sums(with.sums_layout().slot_bytes());
  std::vector<double> seconds[2];
  for (int i = -1; i < o.repeats; ++i) {
    for (int kind : {0, 1}) {
      const double begin = CpuSeconds();
      (void)(kind == 0 ? without : with).Write(absl::MakeSpan(slot), absl::MakeSpan(sums), 1, 1);
      if (i >= 0) seconds[kind].push_back(CpuSeconds() - begin);
    }
  }
  for (auto& of : seconds) std::sort(of.begin(), of.end());
  const double plain = seconds[0][o.repeats / 2], summed = seconds[1][o.repeats / 2];
  return Json{{"bytes", with.layout().bytes()}, {"without", plain}, {"with", summed}, {"ratio", summed / plain}};
}

absl::Status Main(const Options& o) {
  HR_ASSIGN_OR_RETURN(const Json same, Measure(o, Dtype::kBF16));
  HR_ASSIGN_OR_RETURN(const Json masters, Measure(o, Dtype::kF32));
  std::cout << Json{{"format", 1}, {"replicas", o.replicas}, {"bf16", same}, {"fp32_masters", masters}}.dump(2) << "\n";
  return absl::OkStatus();
}

}  // namespace
}  // namespace headrace::bench

int main(int argc, char** argv) {
  headrace::bench::Options options;
  CLI::App app("Times snapshots with and without the sums of replicas.");
  app.add_option("--tensors", options.tensors, "of 32 MiB each in BF16")->check(CLI::PositiveNumber);
  app.add_option("--replicas", options.replicas, "data-parallel ranks")->check(CLI::PositiveNumber);
  app.add_option("--repeats", options.repeats, "of each kind")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = headrace::bench::Main(options);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
