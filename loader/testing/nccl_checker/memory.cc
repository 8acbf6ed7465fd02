#include "loader/testing/nccl_checker/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <vector>

#include "loader/testing/nccl_checker/ipc.h"
#include "loader/testing/nccl_checker/options.h"
#include "loader/testing/nccl_checker/rules.h"
#include "loader/testing/nccl_checker/text.h"

namespace headrace::nccl_checker {

namespace {

constexpr int kAllocatedByte = 0xCB, kFreedByte = 0xDD;
constexpr cuda::Error kErrorHostMemoryAlreadyRegistered = 712, kErrorHostMemoryNotRegistered = 713;

thread_local int t_device = 0;

struct Table {
  std::mutex mutex;
  std::map<const char*, Allocation> allocations;  // by their base
  std::vector<size_t> device_bytes = std::vector<size_t>(options().devices);
  uint64_t last_id = 0;
  std::list<Use::Entry> uses;
};

// Never destroyed: threads of streams may outlive static destructors.
Table& table() {
  static Table* const instance = new Table;
  return *instance;
}

size_t WholePages(size_t bytes) {
  const size_t page = sysconf(_SC_PAGESIZE);
  return (bytes + page - 1) / page * page;
}

void Unmap(const Allocation& allocation) {
  munmap(allocation.base, allocation.mapped);
  if (allocation.fd >= 0) close(allocation.fd);
}

// Takes the allocation at `pointer` out of the table; its type is kUnregistered when the rules forbid that.
Allocation Take(void* pointer, cuda::MemoryType type, const char* call) {
  const Allocation found = FindAllocation(pointer);
  if (found.type != type || found.base != pointer || found.imported || found.registered) {
    CudaViolation(Rule::kFree, Text(call, " of ", pointer, ", which is not the base of an allocation of its own kind"));
    return {};
  }
  if (const std::string use = UseOf(found); !use.empty()) {
    CudaViolation(Rule::kFreeInUse, Text(call, " of ", pointer, ", which is used by ", use));
    return {};
  }
  if (found.exported && !EndExport(found.id)) {
    CudaViolation(Rule::kIpcFreeOpen, Text(call, " of ", pointer, ", which other processes have open"));
    return {};
  }
  std::lock_guard lock(table().mutex);
  table().allocations.erase(found.base);
  if (type == cuda::kDevice) table().device_bytes[found.device] -= found.bytes;
  return found;
}

}  // namespace

int CurrentDevice() { return t_device; }

cuda::Error SetCurrentDevice(int device) {
  if (device < 0 || device >= options().devices) return cuda::kErrorInvalidDevice;
  t_device = device;
  return cuda::kSuccess;
}

cuda::Error AllocateDevice(void** pointer, size_t bytes) {
  if (pointer == nullptr) return cuda::kErrorInvalidValue;
  *pointer = nullptr;
  if (bytes == 0) return cuda::kSuccess;
  Allocation made{cuda::kDevice, t_device, nullptr, bytes, WholePages(bytes)};
  {
    std::lock_guard lock(table().mutex);
    size_t& used = table().device_bytes[t_device];
    if (bytes > static_cast<size_t>(options().device_bytes) - used) return cuda::kErrorMemoryAllocation;
    used += bytes;
    made.id = ++table().last_id;
  }
  void* data = MAP_FAILED;
  made.fd = memfd_create("headrace_nccl_checker_device", MFD_CLOEXEC);
  if (made.fd >= 0 && ftruncate(made.fd, made.mapped) == 0) {
    data = mmap(nullptr, made.mapped, PROT_READ | PROT_WRITE, MAP_SHARED, made.fd, 0);
  }
  if (data == MAP_FAILED) {
    if (made.fd >= 0) close(made.fd);
    std::lock_guard lock(table().mutex);
    table().device_bytes[t_device] -= bytes;
    return cuda::kErrorMemoryAllocation;
  }
  std::memset(data, kAllocatedByte, bytes);
  made.base = static_cast<char*>(data);
  std::lock_guard lock(table().mutex);
  table().allocations[made.base] = made;
  *pointer = data;
  return cuda::kSuccess;
}

cuda::Error AllocateHost(void** pointer, size_t bytes) {
  if (pointer == nullptr) return cuda::kErrorInvalidValue;
  *pointer = nullptr;
  if (bytes == 0) return cuda::kSuccess;
  Allocation made{cuda::kHost, t_device, nullptr, bytes, WholePages(bytes)};
  void* data = mmap(nullptr, made.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return cuda::kErrorMemoryAllocation;
  std::memset(data, kAllocatedByte, bytes);
  made.base = static_cast<char*>(data);
  std::lock_guard lock(table().mutex);
  made.id = ++table().last_id;
  table().allocations[made.base] = made;
  *pointer = data;
  return cuda::kSuccess;
}

cuda::Error FreeDevice(void* pointer) {
  if (pointer == nullptr) return cuda::kSuccess;
  const Allocation taken = Take(pointer, cuda::kDevice, "cudaFree");
  if (taken.type == cuda::kUnregistered) return cuda::kErrorInvalidValue;
  std::memset(taken.base, kFreedByte, taken.bytes);  // seen by those that have it mapped still
  Unmap(taken);
  return cuda::kSuccess;
}

cuda::Error FreeHost(void* pointer) {
  if (pointer == nullptr) return cuda::kSuccess;
  const Allocation taken = Take(pointer, cuda::kHost, "cudaFreeHost");
  if (taken.type == cuda::kUnregistered) return cuda::kErrorInvalidValue;
  Unmap(taken);
  return cuda::kSuccess;
}

cuda::Error RegisterHost(void* pointer, size_t bytes, unsigned flags) {
  constexpr unsigned kFlags = 0xF;  // portable, mapped, of a device, read-only
  if (pointer == nullptr || bytes == 0 || (flags & ~kFlags) != 0) return cuda::kErrorInvalidValue;
  char* const begin = static_cast<char*>(pointer);
  std::lock_guard lock(table().mutex);
  const auto next = table().allocations.lower_bound(begin);
  const bool meets_next = next != table().allocations.end() && next->first < begin + bytes;
  const bool meets_last =
      next != table().allocations.begin() && begin < std::prev(next)->second.base + std::prev(next)->second.bytes;
  if (meets_next || meets_last) {
    return CudaViolation(
        Rule::kHostRegister,
        Text("cudaHostRegister of ", bytes, " bytes at ", pointer, ", some of which are CUDA's already"),
        kErrorHostMemoryAlreadyRegistered);
  }
  Allocation made{cuda::kHost, t_device, begin, bytes, 0};
  made.registered = true;
  made.id = ++table().last_id;
  table().allocations[begin] = made;
  return cuda::kSuccess;
}

cuda::Error UnregisterHost(void* pointer) {
  const Allocation found = FindAllocation(pointer);
  if (!found.registered || found.base != pointer) {
    return CudaViolation(Rule::kHostRegister,
                         Text("cudaHostUnregister of ", pointer, ", which does not begin what was registered"),
                         kErrorHostMemoryNotRegistered);
  }
  if (const std::string use = UseOf(found); !use.empty()) {
    return CudaViolation(Rule::kFreeInUse, Text("cudaHostUnregister of ", pointer, ", which is used by ", use));
  }
  std::lock_guard lock(table().mutex);
  table().allocations.erase(found.base);
  return cuda::kSuccess;
}

void DeviceMemory(int device, size_t* free, size_t* total) {
  std::lock_guard lock(table().mutex);
  *total = options().device_bytes;
  *free = *total - table().device_bytes[device];
}

Allocation FindAllocation(const void* pointer) {
  const char* at = static_cast<const char*>(pointer);
  std::lock_guard lock(table().mutex);
  auto next = table().allocations.upper_bound(at);
  if (next == table().allocations.begin()) return {};
  const Allocation& found = std::prev(next)->second;
  return at < found.base + found.bytes ? found : Allocation{};
}

void MarkExported(const void* base) {
  std::lock_guard lock(table().mutex);
  table().allocations[static_cast<const char*>(base)].exported = true;
}

void AddImported(const Allocation& allocation) {
  std::lock_guard lock(table().mutex);
  table().allocations[allocation.base] = allocation;
}

void RemoveImported(const void* base) {
  std::lock_guard lock(table().mutex);
  table().allocations.erase(static_cast<const char*>(base));
}

Use::Use(const void* pointer, size_t bytes, std::string what, std::shared_ptr<const std::atomic<bool>> cancelled) {
  std::lock_guard lock(table().mutex);
  entry_ = table().uses.insert(table().uses.end(),
                               Entry{static_cast<const char*>(pointer), bytes, std::move(what), std::move(cancelled)});
}

Use::~Use() {
  std::lock_guard lock(table().mutex);
  table().uses.erase(entry_);
}

std::string UseOf(const Allocation& allocation) {
  std::lock_guard lock(table().mutex);
  for (const Use::Entry& use : table().uses) {
    if (use.cancelled != nullptr && *use.cancelled) continue;
    if (use.begin < allocation.base + allocation.bytes && allocation.base < use.begin + use.bytes) return use.what;
  }
  return "";
}

}  // namespace headrace::nccl_checker
