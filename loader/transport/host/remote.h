#ifndef HEADRACE_LOADER_TRANSPORT_HOST_REMOTE_H_
#define HEADRACE_LOADER_TRANSPORT_HOST_REMOTE_H_

// Private memory of another process, read by process_vm_readv.
//
// The kernel reads by PID, which says little: a process ends and its PID is used again, it runs another program, it
// unmaps or reuses the memory. So the owner keeps random stamps in its memory, one for its endpoint and one for each
// registration, and wipes a registration's when it is revoked. The last thing that a Read reads is the registration's
// stamp, behind the last range in the same kernel call, which reads in array order (process_vm_readv(2)). A stamp that
// stands there proves that the PID was the owner's in all calls of this Read, and that all bytes were read before the
// memory was revoked. It does not keep anybody out: a process that may read the owner's memory and learned an address
// could go on reading after the revocation.

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "loader/transport/host/region.h"
#include "loader/transport/host/wire.h"
#include "loader/transport/transport.h"

namespace headrace::host {

// Registers `memory` of this process in the table. kTransport: no random numbers.
absl::StatusOr<std::unique_ptr<Registration>> RegisterMemory(std::shared_ptr<RegionTable> table,
                                                             absl::Span<const std::byte> memory);

// Empty when this kernel has process_vm_readv and lets this process call it; otherwise why not.
std::string WhyNothingCanBeRead();

// The process behind a connection. Shared by the endpoint and what it opened, all used by one thread.
struct Owner {
  pid_t pid = 0;
  Stamp identity{};
  absl::Status readable;  // kTransport says why its memory cannot be read
  absl::Status ended;     // not OK once the endpoint has done with it: what a Read returns
};

// Looks whether the process `pid` holds `identity`, as the owner at the other end of a connection said.
std::shared_ptr<Owner> ProbeOwner(pid_t pid, const Stamp& identity);

// Memory at `address` of the owner. kTransport: not a range of addresses.
absl::StatusOr<std::unique_ptr<RemoteMemory>> NewRemoteMemory(std::shared_ptr<const Owner> owner, uint64_t address,
                                                              uint64_t bytes, const Stamp& stamp);

}  // namespace headrace::host

#endif  // HEADRACE_LOADER_TRANSPORT_HOST_REMOTE_H_
