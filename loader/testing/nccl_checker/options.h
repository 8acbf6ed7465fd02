#ifndef HEADRACE_LOADER_TESTING_NCCL_CHECKER_OPTIONS_H_
#define HEADRACE_LOADER_TESTING_NCCL_CHECKER_OPTIONS_H_

// What the checker takes from the environment; the variables and their meanings stand in nccl_checker.h.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "loader/gpu/cuda_driver_abi.h"

namespace headrace::nccl_checker {

enum class PeerLoss { kBySeed, kError, kSilent };

struct Options {
  int devices = 8;
  int64_t device_bytes = int64_t{16} << 30;  // of each device
  int group_cap = 1000;                      // operations of one rank in one group
  int64_t ring_bytes = 64 << 10;             // of each ring, a power of two
  int cta_limit = 64;                        // of one device
  std::chrono::milliseconds stall{30000};
  bool abort_on_violation = true;
  std::string violations_file;
  uint64_t seed = 0;
  bool delay_fault = false;
  bool short_fault = false;
  bool init_fault = false;
  bool async_fault = false;
  PeerLoss peer_loss = PeerLoss::kBySeed;
  bool multi_rank_gpu = false;
  int handle_types = cuda::kHandleTypePosixFd | cuda::kHandleTypeFabric;  // that devices support
  bool fabric_denied = false;
};

// Read once, at the first call; what is malformed ends the process with a line that says so.
const Options& options();

}  // namespace headrace::nccl_checker

#endif  // HEADRACE_LOADER_TESTING_NCCL_CHECKER_OPTIONS_H_
