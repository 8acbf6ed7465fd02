#ifndef HEADRACE_LOADER_TESTING_NCCL_CHECKER_MEMORY_H_
#define HEADRACE_LOADER_TESTING_NCCL_CHECKER_MEMORY_H_

// Devices and their memory: which addresses are device memory, pinned memory or neither, and which are in use by work
// that was issued and has not ended. All functions may be called by any thread.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "loader/gpu/cuda_abi.h"

namespace headrace::nccl_checker {

// What new memory is filled with.
inline constexpr int kAllocatedByte = 0xCB;

// Of this thread.
int CurrentDevice();
cuda::Error SetCurrentDevice(int device);

struct Allocation {
  cuda::MemoryType type = cuda::kUnregistered;
  int device = 0;
  char* base = nullptr;
  size_t bytes = 0;         // as asked for
  size_t mapped = 0;        // whole pages
  bool registered = false;  // pinned memory that was there before
  bool shareable = false;   // mapped by cuMemMap; then these are the devices with access to it, bits by their numbers
  uint64_t readers = 0, writers = 0;

  // Whether kernels and copies of the device may read or write it. Where there is none: false.
  bool Reaches(int of_device, bool write) const {
    if (type == cuda::kDevice && shareable) return ((write ? writers : readers) >> of_device & 1) != 0;
    return type == cuda::kHost || (type == cuda::kDevice && device == of_device);
  }
};

cuda::Error AllocateDevice(void** pointer, size_t bytes);
cuda::Error AllocateHost(void** pointer, size_t bytes);
// Null frees nothing.
cuda::Error FreeDevice(void* pointer);
cuda::Error FreeHost(void* pointer);
cuda::Error RegisterHost(void* pointer, size_t bytes, unsigned flags);
cuda::Error UnregisterHost(void* pointer);
void DeviceMemory(int device, size_t* free, size_t* total);

// The allocation that holds `pointer`; kUnregistered: none.
Allocation FindAllocation(const void* pointer);

// Counts bytes of a device; false where it has not so many left. A negative number gives them back.
bool CountDeviceBytes(int device, int64_t bytes);
// Of cuMem*: memory that was mapped, or whose access changed; and its end.
void SetShareable(const Allocation& allocation);
void RemoveShareable(const void* base);

// Memory that issued work uses, until this is destroyed or `cancelled` (where given) is true.
class Use {
 public:
  struct Entry {
    const char* begin;
    size_t bytes;
    std::string what;
    std::shared_ptr<const std::atomic<bool>> cancelled;
  };
  Use(const void* pointer, size_t bytes, std::string what,
      std::shared_ptr<const std::atomic<bool>> cancelled = nullptr);
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ~Use();

 private:
  std::list<Entry>::iterator entry_;
};

// The work that uses some of the allocation; empty: none does.
std::string UseOf(const Allocation& allocation);

}  // namespace headrace::nccl_checker

#endif  // HEADRACE_LOADER_TESTING_NCCL_CHECKER_MEMORY_H_
