#include "loader/transport/host/region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "loader/transport/anonymous_memory.h"
#include "planner/status.h"

namespace headrace::host {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

class SealedRegion : public Region {
 public:
  SealedRegion(std::unique_ptr<TableEntry> entry, Descriptor fd, std::byte* data, size_t size)
      : fd_(std::move(fd)), entry_(std::move(entry)), data_(data), size_(size) {}
  ~SealedRegion() override { munmap(data_, size_); }
  absl::Span<std::byte> bytes() override { return {data_, size_}; }
  std::string key() const override { return entry_->key(); }

 private:
  const Descriptor fd_;
  const std::unique_ptr<TableEntry> entry_;  // leaves the table before the descriptor is closed
  std::byte* const data_;
  const size_t size_;
};

class SealedMapping : public Mapping {
 public:
  SealedMapping(const std::byte* data, size_t size) : data_(data), size_(size) {}
  ~SealedMapping() override { munmap(const_cast<std::byte*>(data_), size_); }
  absl::Span<const std::byte> bytes() const override { return {data_, size_}; }

 private:
  const std::byte* const data_;
  const size_t size_;
};

class SealedMemory : public RegionMemory {
 public:
  absl::StatusOr<std::unique_ptr<Region>> New(std::shared_ptr<RegionTable> table, int64_t bytes) override {
    return NewSealedRegion(std::move(table), bytes);
  }
  absl::StatusOr<std::unique_ptr<Mapping>> Map(Descriptor fd, uint64_t bytes) override {
    return MapSealed(std::move(fd), bytes);
  }
};

// `what` failed with errno for a region of `bytes`.
absl::Status RegionError(absl::string_view what, int64_t bytes) {
  const bool memory = errno == ENOMEM || errno == ENOSPC || errno == EFBIG;
  return Error(memory ? ErrorCode::kOutOfMemory : ErrorCode::kTransport,
               absl::StrCat("a region of ", bytes, " bytes is needed; ", what, ": ", strerror(errno)));
}

std::string LimitText(int resource) {
  rlimit limit{};
  getrlimit(resource, &limit);
  return limit.rlim_cur == RLIM_INFINITY ? "none" : absl::StrCat(limit.rlim_cur, " bytes");
}

}  // namespace

absl::StatusOr<std::unique_ptr<TableEntry>> TableEntry::Add(std::shared_ptr<RegionTable> table, int fd,
                                                            uint64_t bytes) {
  Key key;
  HR_RETURN_IF_ERROR(FillRandom(key.data(), key.size()));
  std::lock_guard<std::mutex> lock(table->mutex);
  table->regions[key] = {fd, bytes};
  return std::unique_ptr<TableEntry>(new TableEntry(table, key));
}

TableEntry::~TableEntry() {
  std::lock_guard<std::mutex> lock(table_->mutex);
  table_->regions.erase(key_);
}

std::unique_ptr<RegionMemory> NewSealedMemory() { return std::make_unique<SealedMemory>(); }

absl::StatusOr<std::unique_ptr<Region>> NewSealedRegion(std::shared_ptr<RegionTable> table, int64_t bytes) {
  HR_RETURN_IF_ERROR(CheckMemoryAvailable(bytes));
  rlimit file_size{};
  if (getrlimit(RLIMIT_FSIZE, &file_size) == 0 && file_size.rlim_cur != RLIM_INFINITY &&
      static_cast<uint64_t>(bytes) > file_size.rlim_cur) {
    return Error(ErrorCode::kOutOfMemory,
                 absl::StrCat("a region of ", bytes, " bytes is needed; the file-size limit is ", file_size.rlim_cur,
                              " bytes (ulimit -f), which holds for shared memory too: raise it or lower the size"));
  }
  Descriptor fd(memfd_create("headrace", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0) return RegionError("memfd_create", bytes);
  if (ftruncate(fd.get(), bytes) != 0) return RegionError("ftruncate", bytes);
  int result;
  do {
    result = fallocate(fd.get(), 0, 0, bytes);
  } while (result != 0 && errno == EINTR);
  if (result != 0) return RegionError("fallocate", bytes);
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (data == MAP_FAILED) {
    return RegionError(absl::StrCat("mmap (address-space limit ", LimitText(RLIMIT_AS), ")"), bytes);
  }
  absl::StatusOr<std::unique_ptr<TableEntry>> entry = nullptr;
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    entry = RegionError("memfd seals (Linux 5.1 or later is needed)", bytes);
  } else {
    entry = TableEntry::Add(std::move(table), fd.get(), bytes);
  }
  if (!entry.ok()) {
    munmap(data, bytes);
    return entry.status();
  }
  return std::make_unique<SealedRegion>(*std::move(entry), std::move(fd), static_cast<std::byte*>(data), bytes);
}

absl::StatusOr<std::unique_ptr<Mapping>> MapSealed(Descriptor fd, uint64_t bytes) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return Error(ErrorCode::kTransport, "map: the owner sent a descriptor that is not a sealed memfd");
  }
  struct stat info {};
  if (fstat(fd.get(), &info) != 0 || bytes < 1 || static_cast<uint64_t>(info.st_size) != bytes) {
    return Error(ErrorCode::kTransport,
                 absl::StrCat("map: the owner sent a memfd of ", info.st_size, " bytes for ", bytes));
  }
  void* data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    return RegionError(absl::StrCat("mmap of a peer's memfd (address-space limit ", LimitText(RLIMIT_AS), ")"), bytes);
  }
  return std::make_unique<SealedMapping>(static_cast<const std::byte*>(data), bytes);
}

}  // namespace headrace::host
