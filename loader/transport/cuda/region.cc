#include "loader/transport/cuda/region.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace::cuda_regions {
namespace {

class GpuRegion final : public Region {
 public:
  GpuRegion(std::unique_ptr<SharedMemory> memory, SharedHandles handles, std::unique_ptr<host::TableEntry> entry,
            int64_t bytes)
      : memory_(std::move(memory)), handles_(std::move(handles)), entry_(std::move(entry)), bytes_(bytes) {}
  absl::Span<std::byte> bytes() override { return {memory_->data(), static_cast<size_t>(bytes_)}; }
  std::string key() const override { return Format({entry_->key(), handles_.fabric, bytes_}); }

 private:
  const std::unique_ptr<SharedMemory> memory_;
  const SharedHandles handles_;
  const std::unique_ptr<host::TableEntry> entry_;  // leaves the table before the descriptor is closed
  const int64_t bytes_;
};

class GpuMapping final : public Mapping {
 public:
  GpuMapping(std::unique_ptr<SharedMemory> memory, int64_t bytes) : memory_(std::move(memory)), bytes_(bytes) {}
  absl::Span<const std::byte> bytes() const override { return {memory_->data(), static_cast<size_t>(bytes_)}; }

 private:
  const std::unique_ptr<SharedMemory> memory_;
  const int64_t bytes_;
};

class GpuRegions final : public host::RegionMemory {
 public:
  explicit GpuRegions(const SharedMemoryOf& shared) : shared_(shared) {}

  absl::StatusOr<std::unique_ptr<Region>> New(std::shared_ptr<host::RegionTable> table, int64_t bytes) override {
    if (bytes < 1) return Error(ErrorCode::kInvalidOption, absl::StrCat("a region of ", bytes, " bytes"));
    HR_ASSIGN_OR_RETURN(auto made, shared_.Allocate(bytes));
    HR_ASSIGN_OR_RETURN(auto entry, host::TableEntry::Add(std::move(table), made.second.fd.get(), bytes));
    return std::make_unique<GpuRegion>(std::move(made.first), std::move(made.second), std::move(entry), bytes);
  }

  absl::StatusOr<std::unique_ptr<Mapping>> Map(Descriptor fd, uint64_t bytes) override {
    HR_ASSIGN_OR_RETURN(auto memory, shared_.Map(fd, static_cast<int64_t>(bytes)));
    return std::make_unique<GpuMapping>(std::move(memory), static_cast<int64_t>(bytes));
  }

 private:
  const SharedMemoryOf shared_;
};

constexpr size_t kFabricBytes = sizeof(cuda::FabricHandle) + sizeof(int64_t);

}  // namespace

std::string Format(const RegionKey& key) {
  if (!key.fabric.has_value()) return key.of_table;
  std::string text(kFabricBytes, '\0');
  std::memcpy(text.data(), &*key.fabric, sizeof(cuda::FabricHandle));
  std::memcpy(text.data() + sizeof(cuda::FabricHandle), &key.bytes, sizeof key.bytes);
  return text + key.of_table;
}

absl::StatusOr<RegionKey> ParseRegionKey(absl::string_view text) {
  RegionKey key;
  if (text.size() == kFabricBytes + sizeof(host::Key)) {
    std::memcpy(&key.fabric.emplace(), text.data(), sizeof(cuda::FabricHandle));
    std::memcpy(&key.bytes, text.data() + sizeof(cuda::FabricHandle), sizeof key.bytes);
    text.remove_prefix(kFabricBytes);
  }
  if (text.size() != sizeof(host::Key)) return Error(ErrorCode::kTransport, "map: not a key of a region");
  key.of_table = std::string(text);
  return key;
}

std::unique_ptr<host::RegionMemory> NewGpuRegions(const SharedMemoryOf& shared) {
  return std::make_unique<GpuRegions>(shared);
}

absl::StatusOr<std::unique_ptr<Mapping>> MapByFabric(const SharedMemoryOf& shared, const RegionKey& key) {
  if (!key.fabric.has_value()) {
    return Error(ErrorCode::kTransport,
                 "map: the owner is on another host, and its memory has no fabric handle: its GPU is in no NVLink "
                 "domain, or its process has no leave to use it (an IMEX channel). Take the transport nccl or ucx");
  }
  if (key.bytes < 1) return Error(ErrorCode::kTransport, "map: not a key of a region");
  HR_ASSIGN_OR_RETURN(auto memory, shared.Map(*key.fabric, key.bytes));
  return std::make_unique<GpuMapping>(std::move(memory), key.bytes);
}

}  // namespace headrace::cuda_regions
