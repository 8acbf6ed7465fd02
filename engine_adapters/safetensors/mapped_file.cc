#include "engine_adapters/safetensors/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {

namespace {

absl::Status SystemError(const std::string& path, absl::string_view what) {
  return Error(ErrorCode::kIo, absl::StrCat(path, ": cannot be ", what, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a pipe must not wait for its other end.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return SystemError(path, "opened");
  absl::StatusOr<MappedFile> file = Map(fd, path);
  close(fd);
  return file;
}

absl::StatusOr<MappedFile> MappedFile::Map(int fd, const std::string& path) {
  struct stat info;
  if (fstat(fd, &info) != 0) return SystemError(path, "examined");
  if (!S_ISREG(info.st_mode)) return Error(ErrorCode::kIo, absl::StrCat(path, ": is no regular file"));
  // mmap refuses a length of zero.
  if (info.st_size == 0) return MappedFile({});
  const size_t size = static_cast<size_t>(info.st_size);
  void* memory = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return SystemError(path, "mapped");
  return MappedFile({static_cast<const std::byte*>(memory), size});
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace headrace
