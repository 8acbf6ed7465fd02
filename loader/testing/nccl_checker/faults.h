#ifndef HEADRACE_LOADER_TESTING_NCCL_CHECKER_FAULTS_H_
#define HEADRACE_LOADER_TESTING_NCCL_CHECKER_FAULTS_H_

// What a seed decides: each decision is a hash of the seed and of what it is about, so that a run is repeated by its
// seed whatever the order of threads and processes.

#include <cstdint>

#include "loader/testing/nccl_checker/options.h"

namespace headrace::nccl_checker {

enum class Choice : uint64_t { kInitDelay = 1, kInitFails, kLaunchDelay, kChunk, kAsyncError, kPeerLoss };

// A number from the seed; `a`, `b` and `c` say what it is about: ranks, counters.
inline uint64_t Draw(Choice choice, uint64_t a, uint64_t b, uint64_t c = 0) {
  uint64_t x = options().seed;
  for (const uint64_t part : {static_cast<uint64_t>(choice), a, b, c}) {
    x += part + 0x9E3779B97F4A7C15;  // splitmix64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    x ^= x >> 31;
  }
  return x;
}

}  // namespace headrace::nccl_checker

#endif  // HEADRACE_LOADER_TESTING_NCCL_CHECKER_FAULTS_H_
