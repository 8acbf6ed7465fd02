#include "loader/testing/nccl_checker/ipc.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "loader/testing/nccl_checker/memory.h"
#include "loader/testing/nccl_checker/options.h"
#include "loader/testing/nccl_checker/rules.h"
#include "loader/testing/nccl_checker/socket.h"
#include "loader/testing/nccl_checker/text.h"

namespace headrace::nccl_checker {
namespace {

constexpr cuda::Error kErrorDeviceUninitialized = 201, kErrorMapBufferObjectFailed = 205;
constexpr uint32_t kMagic = 0x48524950;

struct Handle {
  uint32_t magic;
  int32_t device;
  char name[32];  // of the socket, without what all names begin with
  uint64_t allocation;
  uint64_t bytes;
};
static_assert(sizeof(Handle) <= sizeof(cuda::IpcMemHandle));

struct Exported {
  int fd;                      // the allocation's
  std::vector<int> importers;  // connections
};

struct Exports {
  std::mutex mutex;
  std::map<uint64_t, Exported> exported;
  std::string name;  // empty: no server
  int listener = -1, wake = -1;
  std::thread server;
};

struct Imported {
  Allocation allocation;
  std::string key;
  int connection;
  int references;
};

struct Imports {
  std::mutex mutex;
  std::map<const void*, Imported> by_base;
};

Exports& exports() {
  static Exports* const instance = new Exports;
  return *instance;
}

Imports& imports() {
  static Imports* const instance = new Imports;
  return *instance;
}

constexpr size_t kPrefix = sizeof("headrace-nccl-checker-") - 1;

void Serve(int listener, int wake) {
  pollfd events[2] = {{listener, POLLIN, 0}, {wake, POLLIN, 0}};
  while (true) {
    if (poll(events, 2, -1) < 0) continue;
    if (events[1].revents != 0) return;
    const int connection = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) continue;
    const timeval patience{1, 0};
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    uint64_t wanted = 0;
    const bool asked = ReceiveMessage(connection, &wanted, sizeof(wanted));
    std::lock_guard lock(exports().mutex);
    const auto found = exports().exported.find(wanted);
    if (asked && found != exports().exported.end() &&
        SendMessage(connection, &wanted, sizeof(wanted), {found->second.fd})) {
      found->second.importers.push_back(connection);
    } else {
      close(connection);
    }
  }
}

}  // namespace

cuda::Error ExportMemory(cuda::IpcMemHandle* handle, void* pointer) {
  const Allocation found = FindAllocation(pointer);
  if (handle == nullptr || found.type != cuda::kDevice || found.base != pointer || found.imported) {
    return CudaViolation(Rule::kIpcBase, Text("cudaIpcGetMemHandle of ", pointer));
  }
  std::lock_guard lock(exports().mutex);
  Exports& e = exports();
  if (e.name.empty()) {
    const std::string name = RandomSocketName();
    e.listener = ListenAt(name);
    e.wake = eventfd(0, EFD_CLOEXEC);
    if (e.listener < 0 || e.wake < 0) {
      for (int* fd : {&e.listener, &e.wake}) {
        if (*fd >= 0) close(*fd);
        *fd = -1;
      }
      return cuda::kErrorMemoryAllocation;
    }
    e.name = name;
    e.server = std::thread(Serve, e.listener, e.wake);
  }
  e.exported.try_emplace(found.id, Exported{found.fd, {}});
  MarkExported(found.base);
  Handle h{kMagic, found.device, {}, found.id, found.bytes};
  std::memcpy(h.name, e.name.data() + kPrefix, sizeof(h.name));
  *handle = {};
  std::memcpy(handle, &h, sizeof(h));
  return cuda::kSuccess;
}

bool EndExport(uint64_t allocation) {
  std::thread ended;
  int listener, wake;
  {
    std::lock_guard lock(exports().mutex);
    Exports& e = exports();
    const auto found = e.exported.find(allocation);
    if (found == e.exported.end()) return true;
    std::vector<int>& importers = found->second.importers;
    if (!std::all_of(importers.begin(), importers.end(), HungUp)) return false;
    for (const int connection : importers) close(connection);
    e.exported.erase(found);
    if (!e.exported.empty()) return true;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(e.wake, &one, sizeof(one));
    ended = std::move(e.server);
    listener = e.listener;
    wake = e.wake;
    e.name.clear();  // the next export begins a server of its own
  }
  ended.join();  // without the lock, which it may be waiting for
  close(listener);
  close(wake);
  return true;
}

cuda::Error ImportMemory(void** pointer, const cuda::IpcMemHandle& handle) {
  if (pointer == nullptr) return cuda::kErrorInvalidValue;
  Handle h;
  std::memcpy(&h, &handle, sizeof(h));
  if (h.magic != kMagic) return cuda::kErrorInvalidValue;
  const std::string name = "headrace-nccl-checker-" + std::string(h.name, sizeof(h.name));
  {
    std::lock_guard lock(exports().mutex);
    if (name == exports().name) return kErrorDeviceUninitialized;  // a process does not open what it exported
  }
  const std::string key(reinterpret_cast<const char*>(&h), sizeof(h));
  std::lock_guard lock(imports().mutex);
  for (auto& [base, imported] : imports().by_base) {
    if (imported.key != key) continue;
    ++imported.references;
    *pointer = imported.allocation.base;
    return cuda::kSuccess;
  }
  const int connection = ConnectTo(name);
  std::vector<int> descriptors;
  uint64_t answer = 0;
  if (connection < 0 || !SendMessage(connection, &h.allocation, sizeof(h.allocation)) ||
      !ReceiveMessage(connection, &answer, sizeof(answer), &descriptors) || descriptors.size() != 1) {
    if (connection >= 0) close(connection);
    return kErrorMapBufferObjectFailed;
  }
  const size_t page = sysconf(_SC_PAGESIZE);
  const size_t mapped = (h.bytes + page - 1) / page * page;
  void* data = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, descriptors[0], 0);
  close(descriptors[0]);
  if (data == MAP_FAILED) {
    close(connection);
    return kErrorMapBufferObjectFailed;
  }
  const Allocation made{cuda::kDevice, h.device, static_cast<char*>(data), static_cast<size_t>(h.bytes), mapped, -1, 0,
                        true,          false};
  AddImported(made);
  imports().by_base[data] = Imported{made, key, connection, 1};
  *pointer = data;
  return cuda::kSuccess;
}

cuda::Error CloseMemory(void* pointer) {
  std::lock_guard lock(imports().mutex);
  const auto found = imports().by_base.find(pointer);
  if (found == imports().by_base.end()) {
    return CudaViolation(Rule::kFree, Text("cudaIpcCloseMemHandle of ", pointer, ", which is not open"));
  }
  if (const std::string use = UseOf(found->second.allocation); !use.empty()) {
    return CudaViolation(Rule::kFreeInUse, Text("cudaIpcCloseMemHandle of ", pointer, ", which is used by ", use));
  }
  if (--found->second.references > 0) return cuda::kSuccess;
  RemoveImported(pointer);
  munmap(pointer, found->second.allocation.mapped);
  close(found->second.connection);
  imports().by_base.erase(found);
  return cuda::kSuccess;
}

}  // namespace headrace::nccl_checker
