#include "loader/transport/host/remote.h"

#include <limits.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "planner/status.h"

namespace headrace::host {
namespace {

// The deadline is looked at between calls of so many bytes.
constexpr int64_t kCallBytes = int64_t{1} << 20;
constexpr size_t kCallRanges = IOV_MAX - 1;  // and one for the stamp

void* At(uint64_t address) { return reinterpret_cast<void*>(address); }

// Bytes read, or -1 with errno set.
ssize_t ReadProcess(pid_t pid, absl::Span<const iovec> into, absl::Span<const iovec> from) {
  ssize_t got;
  do {
    got = process_vm_readv(pid, into.data(), into.size(), from.data(), from.size(), 0);
  } while (got < 0 && errno == EINTR);
  return got;
}

// Whether the process holds the stamp; 0 when it does, ENOENT when it holds something else, otherwise the errno.
int LookAt(pid_t pid, const Stamp& stamp) {
  Key value;
  const iovec into{value.data(), value.size()}, from{At(stamp.address), value.size()};
  if (ReadProcess(pid, {&into, 1}, {&from, 1}) < 0) return errno;
  return value == stamp.value ? 0 : ENOENT;
}

class HostRegistration : public Registration {
 public:
  HostRegistration(std::shared_ptr<RegionTable> table, Key key) : table_(std::move(table)), key_(key) {}
  ~HostRegistration() override {
    std::lock_guard<std::mutex> lock(table_->mutex);
    table_->registrations.erase(key_);
    stamp_.Wipe();
  }
  std::string key() const override { return std::string(key_.begin(), key_.end()); }

  absl::Status Enter(absl::Span<const std::byte> memory) {
    HR_RETURN_IF_ERROR(stamp_.Set());
    std::lock_guard<std::mutex> lock(table_->mutex);
    table_->registrations[key_] = {memory.data(), memory.size(), &stamp_};
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<RegionTable> table_;
  const Key key_;
  StampMemory stamp_;
};

class HostRemote : public RemoteMemory {
 public:
  HostRemote(std::shared_ptr<const Owner> owner, uint64_t address, int64_t bytes, const Stamp& stamp)
      : owner_(std::move(owner)), address_(address), bytes_(bytes), stamp_(stamp) {
    from_.reserve(kCallRanges + 1);
  }

  int64_t bytes() const override { return bytes_; }

  absl::Status Read(absl::Span<const ReadRange> ranges, std::byte* out, absl::Time deadline) override {
    HR_RETURN_IF_ERROR(owner_->ended);
    HR_RETURN_IF_ERROR(CheckRanges(ranges, bytes_));
    size_t range = 0;  // the next byte to read is byte `at` of this one
    int64_t at = 0;
    while (true) {
      if (deadline <= absl::Now()) return Error(ErrorCode::kDeadline, "read: the deadline passed");
      const int64_t bytes = NextCall(ranges, range, at);
      Key seen;
      const bool last = range_after_call_ == ranges.size();
      if (last) from_.push_back({At(stamp_.address), seen.size()});
      const iovec into[] = {{out, static_cast<size_t>(bytes)}, {seen.data(), seen.size()}};
      const ssize_t got = ReadProcess(owner_->pid, {into, last ? size_t{2} : size_t{1}}, from_);
      if (got < 0) return Failure(errno);
      if (got > bytes) return seen == stamp_.value ? absl::OkStatus() : Failure(ENOENT);
      // A short read ends where the owner's memory does; the next call says why.
      for (int64_t left = got; left > 0;) {
        const int64_t step = std::min(left, ranges[range].bytes - at);
        at += step;
        left -= step;
        if (at == ranges[range].bytes) ++range, at = 0;
      }
      out += got;
    }
  }

 private:
  // Sets from_ to what follows byte `at` of a range, as much as one call takes, and returns its bytes.
  int64_t NextCall(absl::Span<const ReadRange> ranges, size_t range, int64_t at) {
    from_.clear();
    int64_t bytes = 0;
    for (; range < ranges.size() && from_.size() < kCallRanges && bytes < kCallBytes; ++range, at = 0) {
      const int64_t part = std::min(ranges[range].bytes - at, kCallBytes - bytes);
      if (part > 0) from_.push_back({At(address_ + ranges[range].offset + at), static_cast<size_t>(part)});
      bytes += part;
      if (at + part < ranges[range].bytes) break;
    }
    range_after_call_ = range;
    return bytes;
  }

  // Why a read failed with `error` (ENOENT: the stamp is gone).
  absl::Status Failure(int error) const {
    if (error == EFAULT || error == ENOENT) {
      const int identity = LookAt(owner_->pid, owner_->identity);
      if (identity == 0) {
        return Error(ErrorCode::kTransport,
                     error == ENOENT ? "read: the owner revoked this memory" : "read: the owner unmapped this memory");
      }
      error = ESRCH;
    }
    if (error == ESRCH) {
      return Error(ErrorCode::kPeerLost, "read: the owner's process or endpoint is gone");
    }
    return Error(ErrorCode::kTransport, absl::StrCat("read: process_vm_readv: ", strerror(error)));
  }

  const std::shared_ptr<const Owner> owner_;
  const uint64_t address_;
  const int64_t bytes_;
  const Stamp stamp_;
  std::vector<iovec> from_;
  size_t range_after_call_ = 0;
};

// What the kernel's answer to a probe means for the user.
std::string WhyUnreadable(pid_t pid, int error) {
  if (pid == 0) {
    return "the owner's process is not visible in this PID namespace (containers: share one)";
  }
  switch (error) {
    case EPERM: {
      std::string scope;
      std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> scope;
      return absl::StrCat("the kernel does not let this process read the memory of process ", pid,
                          scope.empty() || scope == "0"
                              ? " (it is not dumpable, or has capabilities or a user namespace that this one has not)"
                              : absl::StrCat(" (kernel.yama.ptrace_scope is ", scope,
                                             ": 0 allows it, or CAP_SYS_PTRACE for this process)"));
    }
    case ESRCH:
      return absl::StrCat("there is no process ", pid, " here: the owner ended");
    case ENOENT:
    case EFAULT:
      return absl::StrCat("process ", pid, " is not the owner's: it handed its socket on");
    default:
      return absl::StrCat("process_vm_readv of process ", pid, ": ", strerror(error));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Registration>> RegisterMemory(std::shared_ptr<RegionTable> table,
                                                             absl::Span<const std::byte> memory) {
  Key key;
  HR_RETURN_IF_ERROR(FillRandom(key.data(), key.size()));
  auto registration = std::make_unique<HostRegistration>(std::move(table), key);
  HR_RETURN_IF_ERROR(registration->Enter(memory));
  return registration;
}

std::string WhyNothingCanBeRead() {
  StampMemory mine;
  if (absl::Status status = mine.Set(); !status.ok()) return std::string(status.message());
  const int error = LookAt(getpid(), mine.stamp());
  if (error == 0) return "";
  return absl::StrCat("process_vm_readv of this process itself: ", strerror(error), " (a seccomp filter?)");
}

std::shared_ptr<Owner> ProbeOwner(pid_t pid, const Stamp& identity) {
  auto owner = std::make_shared<Owner>();
  owner->pid = pid;
  owner->identity = identity;
  const int error = pid == 0 ? ESRCH : LookAt(pid, identity);
  if (error != 0) owner->readable = Error(ErrorCode::kTransport, absl::StrCat("read: ", WhyUnreadable(pid, error)));
  return owner;
}

absl::StatusOr<std::unique_ptr<RemoteMemory>> NewRemoteMemory(std::shared_ptr<const Owner> owner, uint64_t address,
                                                              uint64_t bytes, const Stamp& stamp) {
  if (bytes < 1 || bytes > static_cast<uint64_t>(INT64_MAX) || address + bytes < address) {
    return Error(ErrorCode::kTransport, absl::StrCat("open: the owner sent ", bytes, " bytes at no address"));
  }
  return std::make_unique<HostRemote>(std::move(owner), address, static_cast<int64_t>(bytes), stamp);
}

}  // namespace headrace::host
