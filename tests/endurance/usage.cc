#include "tests/endurance/usage.h"

#include <malloc.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace headrace::testing {
namespace {

std::string NameIn(const std::filesystem::path& task) {
  std::string name;
  std::getline(std::ifstream(task / "comm") >> std::ws, name);
  return name;
}

bool IsShared(const std::string& what) {
  return absl::StrContains(what, "/memfd:") || absl::StrContains(what, "/SYSV") || absl::StrContains(what, "/dev/shm/");
}

}  // namespace

Usage UsageNow() {
  malloc_trim(0);
  Usage usage;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the descriptor of the listing itself, or one that was closed meanwhile
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (gone) continue;
    ++usage.descriptors;
    usage.memfds += absl::StrContains(target, "/memfd:") ? 1 : 0;
  }
  const std::string own = NameIn("/proc/self");
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    (NameIn(entry.path()) == own ? usage.threads : usage.named_threads) += 1;
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) usage.segments += IsShared(line) ? 1 : 0;
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  usage.resident_bytes = resident * sysconf(_SC_PAGESIZE);
  return usage;
}

std::string ToString(const Usage& usage) {
  return absl::StrCat(usage.descriptors, " descriptors, ", usage.threads, " threads and ", usage.named_threads,
                      " of gRPC's, ", usage.segments, " shared segments, ", usage.memfds, " memfds, ",
                      usage.resident_bytes >> 10, " KiB resident");
}

}  // namespace headrace::testing
