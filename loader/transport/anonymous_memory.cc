#include "loader/transport/anonymous_memory.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// The number in a file of one number; kNoLimit when there is none ("max", no such file).
int64_t NumberIn(const char* path) {
  std::ifstream file(path);
  int64_t number;
  return file >> number ? number : kNoLimit;
}

int64_t MachineAvailableBytes() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  int64_t total_kib = 0;
  bool found = false;
  while (file >> word) {
    if (word != "MemAvailable:" && word != "SwapFree:") continue;
    int64_t kib = 0;
    if (!(file >> kib)) break;
    found |= word == "MemAvailable:";
    total_kib += kib;
  }
  return found ? total_kib * 1024 : kNoLimit;
}

}  // namespace

absl::Status CheckMemoryAvailable(int64_t bytes) {
  if (bytes < 1) {
    return Error(ErrorCode::kInvalidOption, absl::StrCat("a region needs at least one byte, not ", bytes));
  }
  if (int64_t available = MachineAvailableBytes(); bytes > available) {
    return Error(ErrorCode::kOutOfMemory,
                 absl::StrCat("a region of ", bytes, " bytes is needed; the machine has ", available,
                              " bytes of memory available (/proc/meminfo): free memory or lower the size"));
  }
  // The root of a container's cgroup namespace. Page cache counts as used there but can be reclaimed, so compare with
  // the limit itself: a request above it can never be met.
  if (int64_t limit = NumberIn("/sys/fs/cgroup/memory.max"); bytes > limit) {
    return Error(ErrorCode::kOutOfMemory,
                 absl::StrCat("a region of ", bytes, " bytes is needed; the container's limit is ", limit,
                              " bytes (cgroup memory.max): raise it or lower the size"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<AnonymousMemory>> AnonymousMemory::Allocate(int64_t bytes) {
  HR_RETURN_IF_ERROR(CheckMemoryAvailable(bytes));
  // Touched at once: the first touch costs more than a copy, and belongs to the setup.
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    rlimit limit{};
    getrlimit(RLIMIT_AS, &limit);
    return Error(
        ErrorCode::kOutOfMemory,
        absl::StrCat("a region of ", bytes, " bytes is needed; mmap: ", strerror(error), ", address-space limit ",
                     limit.rlim_cur == RLIM_INFINITY ? "none" : absl::StrCat(limit.rlim_cur, " bytes"),
                     " (ulimit -v): raise it or lower the size"));
  }
  return std::unique_ptr<AnonymousMemory>(new AnonymousMemory(static_cast<std::byte*>(data), bytes));
}

AnonymousMemory::~AnonymousMemory() { munmap(data_, size_); }

}  // namespace headrace
