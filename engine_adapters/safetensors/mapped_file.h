#ifndef HEADRACE_ENGINE_ADAPTERS_SAFETENSORS_MAPPED_FILE_H_
#define HEADRACE_ENGINE_ADAPTERS_SAFETENSORS_MAPPED_FILE_H_

// A regular file mapped read-only. The bytes live as long as the object. Thread-safe after Open.
//
// Whoever shrinks the file while it is mapped makes later reads of the lost pages fail with SIGBUS: files must be
// replaced by a rename, never cut in place.

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace headrace {

class MappedFile {
 public:
  // io  the path cannot be opened, is no regular file (links are followed) or cannot be mapped
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  absl::Span<const std::byte> bytes() const { return bytes_; }

 private:
  static absl::StatusOr<MappedFile> Map(int fd, const std::string& path);

  explicit MappedFile(absl::Span<const std::byte> bytes) : bytes_(bytes) {}

  absl::Span<const std::byte> bytes_;  // empty: nothing is mapped
};

}  // namespace headrace

#endif  // HEADRACE_ENGINE_ADAPTERS_SAFETENSORS_MAPPED_FILE_H_
