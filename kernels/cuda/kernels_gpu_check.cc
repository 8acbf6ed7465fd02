// Runs the kernels of libheadrace_cuda.so on a GPU: every kernel against its CPU twin on random boxes, then the
// bandwidth of each as a share of cudaMemcpy from device to device. Prints one JSON object; exits with 0 unless a check
// failed or a call did. Without a GPU it says so and skips.
// Usage: kernels_gpu_check LIBHEADRACE_CUDA_SO [SECONDS_OF_CHECKS, 20 unless given] [SEED]

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <random>
#include <string>

#include "kernels/cuda/check_cases.h"
#include "kernels/cuda/gpu_bandwidth.h"
#include "kernels/cuda/gpu_device.h"
#include "kernels/cuda/library.h"
#include "nlohmann/json.hpp"

namespace headrace::kernels {
namespace {

using nlohmann::json;

json Finish(json report, const std::string& result) {
  report["result"] = result;
  return report;
}

// Each check again and again, with other seeds, for a third of the time; stops at the first failure.
json RunChecks(const HeadraceKernelsV1& kernels, double seconds, uint64_t seed) {
  struct Check {
    const char* name;
    std::string (*run)(const HeadraceKernelsV1&, testing::CheckDevice&, std::mt19937_64&, int);
    int size;
  };
  const Check checks[] = {{"copy", testing::CheckCopies, 60},
                          {"elementwise", testing::CheckElementwise, 60},
                          {"quantize", testing::CheckQuantize, 6}};
  testing::GpuDevice device;
  json results = json::array();
  for (const Check& check : checks) {
    const auto start = std::chrono::steady_clock::now();
    json result = {{"kernel", check.name}, {"wrong", ""}};
    int64_t tables = 0;
    while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds / 3) {
      const uint64_t table_seed = seed + static_cast<uint64_t>(tables++);
      std::mt19937_64 gen(table_seed);
      const std::string wrong = check.run(kernels, device, gen, check.size);
      if (wrong.empty()) continue;
      result["wrong"] = wrong;
      result["seed"] = table_seed;
      break;
    }
    result["tables"] = tables;
    results.push_back(result);
  }
  return results;
}

json Run(int argc, char** argv) {
  json report = {{"check", "kernels"}};
  const KernelLibrary library = LoadKernelLibrary(argv[1]);
  if (library.error != LibraryError::kNone) return Finish(report, "failed: " + library.message);
  int32_t devices = 0;
  HeadraceKernelError error = {};
  if (library.kernels->device_count(&devices, &error) != 0) {
    report["reason"] = error.text;
    // A GPU that cannot be used is a failure: its driver may be too old.
    const bool has_gpu = error.code != cudaErrorNoDevice && std::filesystem::exists("/dev/nvidiactl");
    return Finish(report, has_gpu ? std::string("failed: ") + error.text : "no GPU: skipped");
  }
  if (devices == 0) return Finish(report, "no GPU: skipped");
  const double seconds = argc > 2 ? std::strtod(argv[2], nullptr) : 20;
  const uint64_t seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : std::random_device{}();
  report["gpu"] = testing::GpuName();
  report["seed"] = seed;
  report["checks"] = RunChecks(*library.kernels, seconds, seed);
  for (const json& check : report["checks"]) {
    if (check["wrong"] != "") return Finish(report, "failed: " + check["kernel"].get<std::string>());
  }
  report["bandwidth"] = testing::MeasureBandwidth(*library.kernels);
  return Finish(report, "passed");
}

}  // namespace
}  // namespace headrace::kernels

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: kernels_gpu_check LIBHEADRACE_CUDA_SO [SECONDS_OF_CHECKS] [SEED]\n";
    return 2;
  }
  const nlohmann::json report = headrace::kernels::Run(argc, argv);
  std::cout << report.dump(2) << "\n";
  return report["result"].get<std::string>().rfind("failed", 0) == 0 ? 1 : 0;
}
