#include "loader/testing/nccl_checker/shareable_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>

#include "loader/testing/nccl_checker/memory.h"
#include "loader/testing/nccl_checker/options.h"
#include "loader/testing/nccl_checker/rules.h"
#include "loader/testing/nccl_checker/text.h"

namespace headrace::nccl_checker {
namespace {

constexpr uint64_t kFooterMagic = 0x48524D454D4F5259, kFabricMagic = 0x4852464142524943;

// What stands behind a memory's bytes in its memfd.
struct Footer {
  uint64_t magic;
  uint64_t token;  // random: which memory it is
  uint64_t bytes;
  int32_t device;
  int32_t handle_types;
};

struct Fabric {
  uint64_t magic;
  uint64_t token;
  int32_t pid, fd;  // of the exporter
};
static_assert(sizeof(Fabric) <= sizeof(cuda::FabricHandle));

// One for each memory that this process knows, created or imported.
struct Memory {
  Memory(const Footer& about, int fd, bool created) : about(about), fd(fd), created(created) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    close(fd);
    if (created) CountDeviceBytes(about.device, -static_cast<int64_t>(about.bytes));
  }

  const Footer about;
  const int fd;
  const bool created;  // here
};
using MemoryRef = std::shared_ptr<Memory>;

struct Mapping {
  Allocation allocation;  // as in the table of memory.h
  MemoryRef memory;
};

struct State {
  std::mutex mutex;
  std::map<cuda::AllocationHandle, MemoryRef> handles;
  cuda::AllocationHandle last_handle = 0;
  std::map<uint64_t, std::weak_ptr<Memory>> known;     // by token
  std::map<cuda::DevicePointer, size_t> reservations;  // bytes by where they begin
  std::map<cuda::DevicePointer, Mapping> mappings;     // likewise
};
using Mappings = std::map<cuda::DevicePointer, Mapping>;

// Never destroyed: threads of streams may outlive static destructors.
State& state() {
  static State* const instance = new State;
  return *instance;
}

bool Whole(uint64_t bytes) { return bytes % kGranularity == 0; }

void* Address(cuda::DevicePointer pointer) { return reinterpret_cast<void*>(pointer); }

cuda::AllocationHandle NewHandle(MemoryRef memory) {
  // A handle never comes again, so that one that was released is known.
  const cuda::AllocationHandle handle = 0x5E00000000000000 + 16 * ++state().last_handle;
  state().handles[handle] = std::move(memory);
  return handle;
}

// From now on imports of the memory are the same here.
void Know(const MemoryRef& memory) {
  std::erase_if(state().known, [](const auto& known) { return known.second.expired(); });
  state().known[memory->about.token] = memory;
}

// Null: a violation, which was told.
MemoryRef FindMemory(cuda::AllocationHandle handle, const char* call) {
  const auto found = state().handles.find(handle);
  if (found != state().handles.end()) return found->second;
  CudaViolation(Rule::kVmmHandle, Text(call, " with the handle ", handle, ", which does not exist"));
  return nullptr;
}

// The mappings that make up the range, [first, last); none: it is no range of whole mappings.
std::pair<Mappings::iterator, Mappings::iterator> MappingsOf(cuda::DevicePointer pointer, size_t bytes) {
  Mappings& all = state().mappings;
  const auto first = all.find(pointer);
  auto last = first;
  cuda::DevicePointer at = pointer;
  while (last != all.end() && last->first == at && at - pointer < bytes) at += (last++)->second.allocation.bytes;
  return at == pointer + bytes ? std::make_pair(first, last) : std::make_pair(all.end(), all.end());
}

cuda::Result CheckProp(const cuda::AllocationProp* prop) {
  if (prop == nullptr || prop->type != cuda::kAllocationTypePinned || prop->location.type != cuda::kMemLocationDevice ||
      (prop->requested_handle_types & ~(cuda::kHandleTypePosixFd | cuda::kHandleTypeFabric)) != 0 ||
      prop->win32_handle_meta_data != nullptr) {
    return cuda::kResultInvalidValue;
  }
  return prop->location.id < 0 || prop->location.id >= options().devices ? cuda::kResultInvalidDevice
                                                                         : cuda::kResultSuccess;
}

cuda::Result CheckTypes(int handle_types) {
  if ((handle_types & ~options().handle_types) != 0) return cuda::kResultNotSupported;
  return (handle_types & cuda::kHandleTypeFabric) != 0 && options().fabric_denied ? cuda::kResultNotPermitted
                                                                                  : cuda::kResultSuccess;
}

bool ReadFooter(int fd, Footer* footer) {
  struct stat file;
  if (fd < 0 || fstat(fd, &file) != 0 || !S_ISREG(file.st_mode)) return false;
  const off_t at = file.st_size - static_cast<off_t>(sizeof(*footer));
  return at >= 0 && pread(fd, footer, sizeof(*footer), at) == sizeof(*footer) && footer->magic == kFooterMagic &&
         footer->bytes == static_cast<uint64_t>(at);
}

// The memfd of new memory; -1: there is no room for it.
int NewFile(const Footer& footer) {
  const int fd = memfd_create("headrace_nccl_checker_shareable", MFD_CLOEXEC);
  if (fd < 0) return -1;
  void* data = MAP_FAILED;
  if (ftruncate(fd, footer.bytes + sizeof(footer)) == 0 &&
      pwrite(fd, &footer, sizeof(footer), footer.bytes) == sizeof(footer)) {
    data = mmap(nullptr, footer.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (data == MAP_FAILED) {
    close(fd);
    return -1;
  }
  std::memset(data, kAllocatedByte, footer.bytes);
  munmap(data, footer.bytes);
  return fd;
}

uint64_t NewToken() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

int Protection(const Allocation& allocation) {
  return allocation.writers != 0 ? PROT_READ | PROT_WRITE : allocation.readers != 0 ? PROT_READ : PROT_NONE;
}

}  // namespace

cuda::Result MemGetAllocationGranularity(size_t* granularity, const cuda::AllocationProp* prop, int option) {
  if (granularity == nullptr || option < cuda::kGranularityMinimum || option > cuda::kGranularityRecommended) {
    return cuda::kResultInvalidValue;
  }
  *granularity = kGranularity;
  return CheckProp(prop);
}

cuda::Result MemCreate(cuda::AllocationHandle* handle, size_t bytes, const cuda::AllocationProp* prop,
                       unsigned long long flags) {
  if (handle == nullptr || bytes == 0 || flags != 0) return cuda::kResultInvalidValue;
  if (const cuda::Result result = CheckProp(prop); result != cuda::kResultSuccess) return result;
  if (const cuda::Result result = CheckTypes(prop->requested_handle_types); result != cuda::kResultSuccess) {
    return result;
  }
  if (!Whole(bytes)) return CudaViolation(Rule::kVmmGranularity, Text("cuMemCreate of ", bytes, " bytes"));
  const int device = prop->location.id;
  if (bytes > INT64_MAX || !CountDeviceBytes(device, bytes)) return cuda::kResultOutOfMemory;
  const Footer footer{kFooterMagic, NewToken(), bytes, device, prop->requested_handle_types};
  const int fd = NewFile(footer);
  if (fd < 0) {
    CountDeviceBytes(device, -static_cast<int64_t>(bytes));
    return cuda::kResultOutOfMemory;
  }
  const auto made = std::make_shared<Memory>(footer, fd, true);
  std::lock_guard lock(state().mutex);
  Know(made);
  *handle = NewHandle(made);
  return cuda::kResultSuccess;
}

cuda::Result MemRelease(cuda::AllocationHandle handle) {
  std::lock_guard lock(state().mutex);
  const MemoryRef memory = FindMemory(handle, "cuMemRelease");
  if (memory == nullptr) return cuda::kResultInvalidValue;
  state().handles.erase(handle);
  return cuda::kResultSuccess;
}

cuda::Result MemAddressReserve(cuda::DevicePointer* pointer, size_t bytes, size_t alignment, unsigned long long flags) {
  if (pointer == nullptr || bytes == 0 || bytes > INT64_MAX || flags != 0 || (alignment & (alignment - 1)) != 0 ||
      alignment > INT64_MAX) {
    return cuda::kResultInvalidValue;
  }
  if (!Whole(bytes)) return CudaViolation(Rule::kVmmGranularity, Text("cuMemAddressReserve of ", bytes, " bytes"));
  alignment = alignment < kGranularity ? kGranularity : alignment;
  void* const all = mmap(nullptr, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) return cuda::kResultOutOfMemory;
  const auto begin = reinterpret_cast<cuda::DevicePointer>(all);
  *pointer = (begin + alignment - 1) / alignment * alignment;
  if (*pointer > begin) munmap(all, *pointer - begin);
  munmap(Address(*pointer + bytes), begin + alignment - *pointer);
  std::lock_guard lock(state().mutex);
  state().reservations[*pointer] = bytes;
  return cuda::kResultSuccess;
}

cuda::Result MemAddressFree(cuda::DevicePointer pointer, size_t bytes) {
  std::lock_guard lock(state().mutex);
  const auto found = state().reservations.find(pointer);
  if (found == state().reservations.end() || found->second != bytes) {
    return CudaViolation(Rule::kVmmAddressFree, Text("cuMemAddressFree of ", bytes, " bytes at ", Address(pointer),
                                                     ", which were not reserved so"));
  }
  const auto mapped = state().mappings.lower_bound(pointer);
  if (mapped != state().mappings.end() && mapped->first < pointer + bytes) {
    return CudaViolation(Rule::kVmmAddressFree, Text("cuMemAddressFree of ", bytes, " bytes at ", Address(pointer),
                                                     ", where memory is mapped"));
  }
  state().reservations.erase(found);
  munmap(Address(pointer), bytes);
  return cuda::kResultSuccess;
}

cuda::Result MemMap(cuda::DevicePointer pointer, size_t bytes, size_t offset, cuda::AllocationHandle handle,
                    unsigned long long flags) {
  if (bytes == 0 || flags != 0) return cuda::kResultInvalidValue;
  std::lock_guard lock(state().mutex);
  const MemoryRef memory = FindMemory(handle, "cuMemMap");
  if (memory == nullptr) return cuda::kResultInvalidValue;
  const std::string what =
      Text("cuMemMap of ", bytes, " bytes from ", offset, " of ", memory->about.bytes, " at ", Address(pointer));
  if (!Whole(pointer) || !Whole(bytes) || offset != 0) return CudaViolation(Rule::kVmmGranularity, what);
  const auto after = state().reservations.upper_bound(pointer);
  const auto reserved = after == state().reservations.begin() ? state().reservations.end() : std::prev(after);
  if (bytes > memory->about.bytes || reserved == state().reservations.end() ||
      pointer - reserved->first >= reserved->second || bytes > reserved->second - (pointer - reserved->first)) {
    return CudaViolation(Rule::kVmmMap, what);
  }
  const auto next = state().mappings.lower_bound(pointer);
  if ((next != state().mappings.end() && next->first < pointer + bytes) ||
      (next != state().mappings.begin() &&
       pointer < std::prev(next)->first + std::prev(next)->second.allocation.bytes)) {
    return CudaViolation(Rule::kVmmMap, what + ", where memory is mapped");
  }
  if (mmap(Address(pointer), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->fd, 0) == MAP_FAILED) {
    return cuda::kResultOutOfMemory;
  }
  Allocation made{cuda::kDevice, memory->about.device, static_cast<char*>(Address(pointer)), bytes, bytes};
  made.shareable = true;
  SetShareable(made);
  state().mappings.emplace(pointer, Mapping{made, memory});
  return cuda::kResultSuccess;
}

cuda::Result MemUnmap(cuda::DevicePointer pointer, size_t bytes) {
  std::lock_guard lock(state().mutex);
  const auto [first, last] = MappingsOf(pointer, bytes);
  const std::string what = Text("cuMemUnmap of ", bytes, " bytes at ", Address(pointer));
  if (first == last) return CudaViolation(Rule::kVmmRange, what);
  for (auto mapping = first; mapping != last; ++mapping) {
    if (const std::string use = UseOf(mapping->second.allocation); !use.empty()) {
      return CudaViolation(Rule::kFreeInUse, Text(what, ", which are used by ", use));
    }
  }
  // Reserved as before.
  if (mmap(Address(pointer), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
      MAP_FAILED) {
    return cuda::kResultOutOfMemory;
  }
  for (auto mapping = first; mapping != last; ++mapping) RemoveShareable(mapping->second.allocation.base);
  state().mappings.erase(first, last);
  return cuda::kResultSuccess;
}

cuda::Result MemSetAccess(cuda::DevicePointer pointer, size_t bytes, const cuda::AccessDesc* access, size_t count) {
  if (access == nullptr || count == 0) return cuda::kResultInvalidValue;
  uint64_t changed = 0, readers = 0, writers = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto& [location, flags] = access[i];
    if (location.type != cuda::kMemLocationDevice ||
        (flags != cuda::kAccessNone && flags != cuda::kAccessRead && flags != cuda::kAccessReadWrite)) {
      return cuda::kResultInvalidValue;
    }
    if (location.id < 0 || location.id >= options().devices) return cuda::kResultInvalidDevice;
    const uint64_t device = uint64_t{1} << location.id;
    changed |= device;
    if (flags != cuda::kAccessNone) readers |= device;
    if (flags == cuda::kAccessReadWrite) writers |= device;
  }
  std::lock_guard lock(state().mutex);
  const auto [first, last] = MappingsOf(pointer, bytes);
  const std::string what = Text("cuMemSetAccess of ", bytes, " bytes at ", Address(pointer));
  if (first == last) return CudaViolation(Rule::kVmmRange, what);
  for (auto mapping = first; mapping != last; ++mapping) {
    Allocation& allocation = mapping->second.allocation;
    const uint64_t lost = (allocation.readers & changed & ~readers) | (allocation.writers & changed & ~writers);
    if (const std::string use = lost == 0 ? "" : UseOf(allocation); !use.empty()) {
      return CudaViolation(Rule::kFreeInUse, Text(what, ", which are used by ", use));
    }
    allocation.readers = (allocation.readers & ~changed) | readers;
    allocation.writers = (allocation.writers & ~changed) | writers;
    if (mprotect(allocation.base, allocation.bytes, Protection(allocation)) != 0) return cuda::kResultOutOfMemory;
    SetShareable(allocation);
  }
  return cuda::kResultSuccess;
}

cuda::Result MemGetAccess(unsigned long long* flags, const cuda::MemLocation* location, cuda::DevicePointer pointer) {
  if (flags == nullptr || location == nullptr || location->type != cuda::kMemLocationDevice) {
    return cuda::kResultInvalidValue;
  }
  if (location->id < 0 || location->id >= options().devices) return cuda::kResultInvalidDevice;
  const Allocation found = FindAllocation(Address(pointer));
  if (!found.shareable) return cuda::kResultInvalidValue;
  *flags = found.Reaches(location->id, true)    ? cuda::kAccessReadWrite
           : found.Reaches(location->id, false) ? cuda::kAccessRead
                                                : cuda::kAccessNone;
  return cuda::kResultSuccess;
}

cuda::Result MemExportToShareableHandle(void* shareable, cuda::AllocationHandle handle, int type,
                                        unsigned long long flags) {
  if (shareable == nullptr || flags != 0 || (type != cuda::kHandleTypePosixFd && type != cuda::kHandleTypeFabric)) {
    return cuda::kResultInvalidValue;
  }
  std::lock_guard lock(state().mutex);
  const MemoryRef memory = FindMemory(handle, "cuMemExportToShareableHandle");
  if (memory == nullptr) return cuda::kResultInvalidValue;
  if ((type & memory->about.handle_types) == 0) {
    return CudaViolation(Rule::kVmmExport, Text("cuMemExportToShareableHandle as type ", type, " of memory for types ",
                                                memory->about.handle_types));
  }
  if (type == cuda::kHandleTypePosixFd) {
    const int fd = fcntl(memory->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return cuda::kResultOutOfMemory;
    std::memcpy(shareable, &fd, sizeof(fd));
  } else {
    const Fabric fabric{kFabricMagic, memory->about.token, getpid(), memory->fd};
    std::memset(shareable, 0, sizeof(cuda::FabricHandle));
    std::memcpy(shareable, &fabric, sizeof(fabric));
  }
  return cuda::kResultSuccess;
}

cuda::Result MemImportFromShareableHandle(cuda::AllocationHandle* handle, void* shareable, int type) {
  if (handle == nullptr || (type != cuda::kHandleTypePosixFd && type != cuda::kHandleTypeFabric)) {
    return cuda::kResultInvalidValue;
  }
  if (const cuda::Result result = CheckTypes(type); result != cuda::kResultSuccess) return result;
  Footer footer;
  int fd = -1;
  bool good = false;
  if (type == cuda::kHandleTypePosixFd) {
    fd = fcntl(static_cast<int>(reinterpret_cast<intptr_t>(shareable)), F_DUPFD_CLOEXEC, 0);
    good = ReadFooter(fd, &footer);
  } else {
    if (shareable == nullptr) return cuda::kResultInvalidValue;
    Fabric fabric;
    std::memcpy(&fabric, shareable, sizeof(fabric));
    if (fabric.magic == kFabricMagic) {
      // O_NONBLOCK: the exporter may have something else there by now, on which open would wait.
      fd = open(Text("/proc/", fabric.pid, "/fd/", fabric.fd).c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
      good = ReadFooter(fd, &footer) && footer.token == fabric.token;
    }
  }
  if (!good) {
    if (fd >= 0) close(fd);
    return cuda::kResultInvalidValue;
  }
  const auto opened = std::make_shared<Memory>(footer, fd, false);
  if (footer.device < 0 || footer.device >= options().devices) return cuda::kResultInvalidDevice;
  std::lock_guard lock(state().mutex);
  const auto found = state().known.find(footer.token);
  MemoryRef memory = found == state().known.end() ? nullptr : found->second.lock();
  if (memory == nullptr) Know(memory = opened);
  *handle = NewHandle(std::move(memory));
  return cuda::kResultSuccess;
}

}  // namespace headrace::nccl_checker
