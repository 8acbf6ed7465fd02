#ifndef HEADRACE_LOADER_TESTING_NCCL_CHECKER_SOCKET_H_
#define HEADRACE_LOADER_TESTING_NCCL_CHECKER_SOCKET_H_

// Abstract unix sockets (SOCK_SEQPACKET) that carry small messages and descriptors between processes of one machine.
// Nothing of them is in the file system. All descriptors are close-on-exec.

#include <cstddef>
#include <string>
#include <vector>

namespace headrace::nccl_checker {

// A name that nobody else has.
std::string RandomSocketName();
// -1 on errors.
int ListenAt(const std::string& name);
int ConnectTo(const std::string& name);

// False when the other side is gone. At most 253 descriptors, which stay the caller's.
bool SendMessage(int socket, const void* data, size_t bytes, const std::vector<int>& descriptors = {});
// False when the other side is gone or sent something else than `bytes`. Descriptors become the caller's.
bool ReceiveMessage(int socket, void* data, size_t bytes, std::vector<int>* descriptors = nullptr);
// Whether the other side of a socket or pipe has closed it. Never blocks.
bool HungUp(int descriptor);

}  // namespace headrace::nccl_checker

#endif  // HEADRACE_LOADER_TESTING_NCCL_CHECKER_SOCKET_H_
