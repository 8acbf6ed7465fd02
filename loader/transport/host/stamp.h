#ifndef HEADRACE_LOADER_TRANSPORT_HOST_STAMP_H_
#define HEADRACE_LOADER_TRANSPORT_HOST_STAMP_H_

#include <string.h>

#include <atomic>

#include "absl/status/status.h"
#include "loader/transport/host/wire.h"

namespace headrace::host {

// A stamp where its owner keeps it. In one cache line, so that it is read whole.
class alignas(64) StampMemory {
 public:
  StampMemory() = default;
  ~StampMemory() { Wipe(); }
  StampMemory(const StampMemory&) = delete;
  StampMemory& operator=(const StampMemory&) = delete;

  absl::Status Set() { return FillRandom(value_.data(), value_.size()); }
  // Before anything that the caller writes or unmaps afterwards; memory that is freed with it does not show it again.
  void Wipe() {
    explicit_bzero(value_.data(), value_.size());
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  Stamp stamp() const { return {reinterpret_cast<uint64_t>(value_.data()), value_}; }

 private:
  Key value_{};
};

}  // namespace headrace::host

#endif  // HEADRACE_LOADER_TRANSPORT_HOST_STAMP_H_
