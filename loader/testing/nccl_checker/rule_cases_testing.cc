#include "loader/testing/nccl_checker/rule_cases_testing.h"

#include <unistd.h>

#include <chrono>
#include <thread>

namespace headrace::nccl_checker {

void Break(int result) { _exit(result == 0 ? 4 : 0); }

void AwaitError(nccl::Comm comm) {
  nccl::Result error = nccl::kSuccess;
  while (error == nccl::kSuccess || error == nccl::kInProgress) {
    MUST(lib().ncclCommGetAsyncError(comm, &error));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  Break(error);
}

Rank BusyStream() {
  Rank rank(0);
  MUST(lib().cudaLaunchHostFunc(
      rank.stream, [](void*) { pause(); }, nullptr));
  return rank;
}

nccl::UniqueId NewId() {
  nccl::UniqueId id;
  MUST(lib().ncclGetUniqueId(&id));
  return id;
}

void Send(Rank& rank, Buffer& buffer, size_t count, int type, int peer) {
  MUST(lib().ncclSend(buffer.data, count, type, peer, rank.comm, rank.stream));
}
void Receive(Rank& rank, Buffer& buffer, size_t count, int type, int peer) {
  MUST(lib().ncclRecv(buffer.data, count, type, peer, rank.comm, rank.stream));
}

}  // namespace headrace::nccl_checker
