#ifndef HEADRACE_BENCH_RANK_MEMORY_H_
#define HEADRACE_BENCH_RANK_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "planner/manifest.h"

namespace headrace::bench {

// The buffers of one rank, each on a cache line, in private memory that was touched. Lives as long as the process.
class RankMemory {
 public:
  static absl::StatusOr<RankMemory> Allocate(const std::vector<Buffer>& buffers, int64_t rank);

  // The first element of each of the rank's buffers, by its index in the manifest's list.
  const std::map<int, std::byte*>& first() const { return first_; }
  void Clear() const;

 private:
  absl::Span<std::byte> bytes_;
  std::map<int, std::byte*> first_;
};

}  // namespace headrace::bench

#endif  // HEADRACE_BENCH_RANK_MEMORY_H_
