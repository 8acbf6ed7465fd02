#ifndef HEADRACE_KERNELS_CUDA_CHECK_BOXES_H_
#define HEADRACE_KERNELS_CUDA_CHECK_BOXES_H_

// Random boxes in the memory of a device, for the checks of the kernels: each source is an allocation of its own that
// ends with the box's last byte, destinations lie apart in one that is filled with a guard.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

namespace headrace::kernels::testing {

// Memory of a device (a GPU, or the process itself), and the order of its work. Failures end the process.
class CheckDevice {
 public:
  virtual ~CheckDevice() = default;
  virtual std::byte* Allocate(int64_t bytes) = 0;  // at least 16-byte aligned; bytes > 0
  virtual void Free(std::byte* memory) = 0;
  virtual void Write(std::byte* to, std::span<const std::byte> from) = 0;
  virtual void Read(const std::byte* from, std::span<std::byte> to) = 0;
  virtual void Wait() = 0;  // until all launches are done
};

// The same bytes on the host and on the device.
class TwinMemory {
 public:
  TwinMemory(CheckDevice& device, std::vector<std::byte> bytes);
  ~TwinMemory();
  TwinMemory(const TwinMemory&) = delete;
  TwinMemory& operator=(const TwinMemory&) = delete;

  std::byte* host(int64_t at = 0) { return bytes_.data() + at; }
  std::byte* device(int64_t at = 0) { return memory_ + at; }
  const std::vector<std::byte>& host_bytes() const { return bytes_; }
  std::vector<std::byte> DeviceBytes() const;

 private:
  CheckDevice& device_;
  std::vector<std::byte> bytes_;
  std::byte* memory_;
};

// Loops over runs, as drawn; strides are multiples of `unit`.
struct DrawnBox {
  int rank = 0;
  int64_t run_bytes = 0;
  std::vector<int64_t> extent;
};
// A box of up to `most_loops` loops and about `most_bytes` bytes, whose run is a multiple of `unit` bytes.
DrawnBox DrawBox(std::mt19937_64& gen, int most_loops, int64_t unit, int64_t most_bytes);

// Strides in memory where loops lie in any order, padded by multiples of `unit` and, with `backward`, some running
// backward; `low` and `high` are the offsets of the lowest and of one past the highest byte from the first run's first.
struct DrawnLayout {
  std::vector<int64_t> stride;
  int64_t low = 0;
  int64_t high = 0;
};
DrawnLayout DrawLayout(std::mt19937_64& gen, const DrawnBox& box, int64_t unit, int64_t run_bytes, bool backward);

inline constexpr std::byte kCheckGuard{0xA5};

}  // namespace headrace::kernels::testing

#endif  // HEADRACE_KERNELS_CUDA_CHECK_BOXES_H_
