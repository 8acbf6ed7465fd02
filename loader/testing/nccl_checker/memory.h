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

// Of this thread.
int CurrentDevice();
cuda::Error SetCurrentDevice(int device);

struct Allocation {
  cuda::MemoryType type = cuda::kUnregistered;
  int device = 0;
  char* base = nullptr;
  size_t bytes = 0;   // as asked for
  size_t mapped = 0;  // whole pages
  int fd = -1;        // the memfd; -1 where it is another process's, or pinned
  uint64_t id = 0;    // unique in the process
  bool imported = false;
  bool exported = false;
  bool registered = false;  // pinned memory that was there before
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
// Marks the device memory that begins at `base` as exported.
void MarkExported(const void* base);
// Memory of another process that was mapped here, and its end.
void AddImported(const Allocation& allocation);
void RemoveImported(const void* base);

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
