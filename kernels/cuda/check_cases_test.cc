#include "kernels/cuda/check_cases.h"

#include <cstdlib>
#include <cstring>

#include "gtest/gtest.h"
#include "kernels/cuda/host_backend.h"
#include "kernels/test_support.h"

namespace headrace::kernels::testing {
namespace {

// Memory of the process, exactly as long as asked for, so that a sanitizer sees what goes beyond.
class HostDevice : public CheckDevice {
 public:
  std::byte* Allocate(int64_t bytes) override {
    return static_cast<std::byte*>(std::malloc(static_cast<size_t>(bytes)));
  }
  void Free(std::byte* memory) override { std::free(memory); }
  void Write(std::byte* to, std::span<const std::byte> from) override {
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
  }
  void Read(const std::byte* from, std::span<std::byte> to) override {
    if (!to.empty()) std::memcpy(to.data(), from, to.size());
  }
  void Wait() override {}
};

// The kernels' own bodies, walked on the CPU, against the CPU twins.
TEST(CheckCasesTest, Copies) {
  auto gen = SeededGenerator();
  HostDevice device;
  for (int64_t n = Cases(150); n > 0; --n) {
    ASSERT_EQ(CheckCopies(*HostKernels(), device, gen, static_cast<int>(Uniform(gen, 0, 30))), "");
  }
}

TEST(CheckCasesTest, Elementwise) {
  auto gen = SeededGenerator();
  HostDevice device;
  for (int64_t n = Cases(150); n > 0; --n) {
    ASSERT_EQ(CheckElementwise(*HostKernels(), device, gen, static_cast<int>(Uniform(gen, 0, 30))), "");
  }
}

TEST(CheckCasesTest, Quantize) {
  auto gen = SeededGenerator();
  HostDevice device;
  for (int64_t n = Cases(60); n > 0; --n) {
    ASSERT_EQ(CheckQuantize(*HostKernels(), device, gen, static_cast<int>(Uniform(gen, 0, 5))), "");
  }
}

}  // namespace
}  // namespace headrace::kernels::testing
