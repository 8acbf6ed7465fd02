#ifndef HEADRACE_LOADER_TRANSPORT_HOST_REGION_H_
#define HEADRACE_LOADER_TRANSPORT_HOST_REGION_H_

// The regions of an endpoint: made by the owner, looked up by its server thread, mapped read-only by the receiver. Of
// the transport host they are sealed memfds.

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "loader/transport/host/stamp.h"
#include "loader/transport/host/wire.h"
#include "loader/transport/transport.h"

namespace headrace::host {

// The regions and registrations of one endpoint. Shared with them, since they may outlive it.
struct RegionTable {
  struct Entry {
    int fd;  // owned by the region, which leaves the table before it closes it
    uint64_t bytes;
  };
  struct Registered {
    const std::byte* data;
    uint64_t bytes;
    StampMemory* stamp;  // owned by the registration, which leaves the table before it frees it
  };
  std::mutex mutex;
  std::map<Key, Entry> regions;
  std::map<Key, Registered> registrations;
  StampMemory identity;
};

// A region's place in its endpoint's table, under a random key.
class TableEntry {
 public:
  // `fd` stays open as long as this lives. kTransport: no random numbers.
  static absl::StatusOr<std::unique_ptr<TableEntry>> Add(std::shared_ptr<RegionTable> table, int fd, uint64_t bytes);
  ~TableEntry();
  TableEntry(const TableEntry&) = delete;
  TableEntry& operator=(const TableEntry&) = delete;

  std::string key() const { return std::string(key_.begin(), key_.end()); }

 private:
  TableEntry(std::shared_ptr<RegionTable> table, const Key& key) : table_(std::move(table)), key_(key) {}

  const std::shared_ptr<RegionTable> table_;
  const Key key_;
};

// What an endpoint's regions are made of. Used by the endpoint's thread.
class RegionMemory {
 public:
  virtual ~RegionMemory() = default;
  virtual absl::StatusOr<std::unique_ptr<Region>> New(std::shared_ptr<RegionTable> table, int64_t bytes) = 0;
  // A region's descriptor, as a peer of the same transport sent it.
  virtual absl::StatusOr<std::unique_ptr<Mapping>> Map(Descriptor fd, uint64_t bytes) = 0;
};

// Sealed memfds: NewSealedRegion and MapSealed.
std::unique_ptr<RegionMemory> NewSealedMemory();

// A memfd of `bytes`, committed (fallocate), mapped writable here, then sealed: SHRINK and GROW, so that no access of a
// peer can raise SIGBUS; FUTURE_WRITE, so that no peer can write; SEAL, so that it stays so. The owner's own map, which
// exists already, stays writable.
// kOutOfMemory: above RLIMIT_FSIZE (checked first: the kernel would send SIGXFSZ), above the memory that is available,
// or refused by fallocate or mmap; names the bytes and the limit. kTransport: a kernel without memfd seals
// (before 5.1), or no descriptor left.
absl::StatusOr<std::unique_ptr<Region>> NewSealedRegion(std::shared_ptr<RegionTable> table, int64_t bytes);

// Maps a descriptor that a peer sent. kTransport unless it is a memfd of exactly `bytes` >= 1 that is sealed as above.
absl::StatusOr<std::unique_ptr<Mapping>> MapSealed(Descriptor fd, uint64_t bytes);

}  // namespace headrace::host

#endif  // HEADRACE_LOADER_TRANSPORT_HOST_REGION_H_
