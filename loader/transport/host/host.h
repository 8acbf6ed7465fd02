#ifndef HEADRACE_LOADER_TRANSPORT_HOST_HOST_H_
#define HEADRACE_LOADER_TRANSPORT_HOST_HOST_H_

// Processes of one host: regions are sealed memfds whose descriptors travel over a unix socket and are mapped
// read-only: no copy is made. Registered private memory is read by process_vm_readv (remote.h). No messages.
//
// Who may map or read: the socket has a random abstract name; a connector must run under the owner's user id and
// present the random cookie that is in address() before it is told anything; then a region's random key. Mapping works
// across mount and PID namespaces (containers); abstract names need a common *network* namespace, and so do the two
// ends here. Reading also needs a PID namespace that shows the owner, and a kernel that lets this process read it (yama
// ptrace_scope, user namespaces, seccomp): CheckRead says what is missing.
//
// A region costs one descriptor, a peer one at each end. The owner answers from a thread of its own (no signals are
// delivered to it), so that a peer can map while the owner computes.

#include <memory>

#include "absl/status/statusor.h"
#include "loader/transport/transport.h"

namespace headrace {

// kTransport: no socket, eventfd or random numbers to be had (descriptor limit, no /proc).
absl::StatusOr<std::unique_ptr<Transport>> NewHostTransport();

}  // namespace headrace

#endif  // HEADRACE_LOADER_TRANSPORT_HOST_HOST_H_
