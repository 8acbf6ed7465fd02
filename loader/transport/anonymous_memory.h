#ifndef HEADRACE_LOADER_TRANSPORT_ANONYMOUS_MEMORY_H_
#define HEADRACE_LOADER_TRANSPORT_ANONYMOUS_MEMORY_H_

// Memory of this process for the transports' regions, and the check that comes before any large allocation.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace headrace {

// kInvalidOption when `bytes` < 1. kOutOfMemory when committing `bytes` now would exceed what the machine
// (/proc/meminfo: available memory and free swap) or the container (cgroup v2 memory.max) has: the kernel would answer
// by killing a process, not by an error. An unreadable limit is no limit.
absl::Status CheckMemoryAvailable(int64_t bytes);

// Page-aligned, zero-filled, touched memory.
class AnonymousMemory {
 public:
  // kInvalidOption when `bytes` < 1; kOutOfMemory names the bytes and the limit (address space, available memory).
  static absl::StatusOr<std::unique_ptr<AnonymousMemory>> Allocate(int64_t bytes);
  ~AnonymousMemory();
  AnonymousMemory(const AnonymousMemory&) = delete;
  AnonymousMemory& operator=(const AnonymousMemory&) = delete;

  absl::Span<std::byte> bytes() { return {data_, size_}; }

 private:
  AnonymousMemory(std::byte* data, size_t size) : data_(data), size_(size) {}
  std::byte* data_;
  size_t size_;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_TRANSPORT_ANONYMOUS_MEMORY_H_
