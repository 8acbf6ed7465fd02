#ifndef HEADRACE_TESTS_ENDURANCE_USAGE_H_
#define HEADRACE_TESTS_ENDURANCE_USAGE_H_

// Test only. What this process holds of the machine, as the kernel counts it.

#include <cstdint>
#include <string>

namespace headrace::testing {

struct Usage {
  int64_t descriptors = 0;
  int64_t threads = 0;        // that bear the process's name; gRPC names its own
  int64_t named_threads = 0;  // all others
  int64_t segments = 0;       // mappings of shared memory: memfds, System V segments, files of /dev/shm
  int64_t memfds = 0;         // descriptors of memfds
  int64_t resident_bytes = 0;
};

// Gives free memory back to the kernel first.
Usage UsageNow();

std::string ToString(const Usage& usage);

}  // namespace headrace::testing

#endif  // HEADRACE_TESTS_ENDURANCE_USAGE_H_
