#include "loader/testing/nccl_checker/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <vector>

#include "loader/testing/nccl_checker/options.h"
#include "loader/testing/nccl_checker/rules.h"
#include "loader/testing/nccl_checker/text.h"

namespace headrace::nccl_checker {

namespace {

constexpr cuda::Error kErrorHostMemoryAlreadyRegistered = 712, kErrorHostMemoryNotRegistered = 713;

thread_local int t_device = 0;

struct Table {
  std::mutex mutex;
  std::map<const char*, Allocation> allocations;  // by their base
  std::vector<int64_t> device_bytes = std::vector<int64_t>(options().devices);
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

// Memory of the host that is filled as CUDA's is, and in the table.
cuda::Error Allocate(void** pointer, Allocation made) {
  made.mapped = WholePages(made.bytes);
  void* data = mmap(nullptr, made.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return cuda::kErrorMemoryAllocation;
  std::memset(data, kAllocatedByte, made.bytes);
  made.base = static_cast<char*>(data);
  std::lock_guard lock(table().mutex);
  table().allocations[made.base] = made;
  *pointer = data;
  return cuda::kSuccess;
}

// Takes the allocation at `pointer` out of the table; its type is kUnregistered when the rules forbid that.
Allocation Take(void* pointer, cuda::MemoryType type, const char* call) {
  const Allocation found = FindAllocation(pointer);
  if (found.type != type || found.base != pointer || found.shareable || found.registered) {
    CudaViolation(Rule::kFree, Text(call, " of ", pointer, ", which is not the base of an allocation of its own kind"));
    return {};
  }
  if (const std::string use = UseOf(found); !use.empty()) {
    CudaViolation(Rule::kFreeInUse, Text(call, " of ", pointer, ", which is used by ", use));
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
  if (bytes > INT64_MAX || !CountDeviceBytes(t_device, bytes)) return cuda::kErrorMemoryAllocation;
  const cuda::Error error = Allocate(pointer, {cuda::kDevice, t_device, nullptr, bytes});
  if (error != cuda::kSuccess) CountDeviceBytes(t_device, -static_cast<int64_t>(bytes));
  return error;
}

cuda::Error AllocateHost(void** pointer, size_t bytes) {
  if (pointer == nullptr) return cuda::kErrorInvalidValue;
  *pointer = nullptr;
  return bytes == 0 ? cuda::kSuccess : Allocate(pointer, {cuda::kHost, t_device, nullptr, bytes});
}

cuda::Error FreeDevice(void* pointer) {
  if (pointer == nullptr) return cuda::kSuccess;
  const Allocation taken = Take(pointer, cuda::kDevice, "cudaFree");
  if (taken.type == cuda::kUnregistered) return cuda::kErrorInvalidValue;
  munmap(taken.base, taken.mapped);
  return cuda::kSuccess;
}

cuda::Error FreeHost(void* pointer) {
  if (pointer == nullptr) return cuda::kSuccess;
  const Allocation taken = Take(pointer, cuda::kHost, "cudaFreeHost");
  if (taken.type == cuda::kUnregistered) return cuda::kErrorInvalidValue;
  munmap(taken.base, taken.mapped);
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

bool CountDeviceBytes(int device, int64_t bytes) {
  std::lock_guard lock(table().mutex);
  int64_t& used = table().device_bytes[device];
  if (bytes > options().device_bytes - used) return false;
  used += bytes;
  return true;
}

void SetShareable(const Allocation& allocation) {
  std::lock_guard lock(table().mutex);
  table().allocations[allocation.base] = allocation;
}

void RemoveShareable(const void* base) {
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
