#ifndef HEADRACE_LOADER_TESTING_NCCL_CHECKER_RENDEZVOUS_H_
#define HEADRACE_LOADER_TESTING_NCCL_CHECKER_RENDEZVOUS_H_

// How the ranks of a communicator find each other. Who makes an id holds a listening socket at a random abstract name,
// which the id carries, and a thread that waits for all ranks there. When all have come it hands each the
// communicator's shared memory and its life lines: pipes of which each rank alone holds the writing end, so that its
// death, whatever its cause, is the end of file at all others. Then the socket and the thread end.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "loader/testing/nccl_checker/rules.h"
#include "loader/transport/nccl/nccl_abi.h"

namespace headrace::nccl_checker {

inline constexpr int kMostRanks = 250;  // descriptors that fit a message

// The name in the id; empty when no checker made it.
std::string NameIn(const nccl::UniqueId& id);
// False: no socket or thread could be had.
bool MakeId(nccl::UniqueId* id);

struct Hello {
  int32_t rank, ranks, device;
  uint64_t joiner;  // a number that this process gives once
  int64_t ring_bytes;
  int32_t multi_rank_gpu;
};

struct Welcome {
  enum Kind : int32_t { kComplete, kRankLost, kRefused } kind;
  int32_t rule;  // of kRefused
  int32_t rank;  // that is lost, or with which the refused one does not go together
  int64_t ring_bytes;
};

// Connects to the rendezvous and says hello; -1: nobody is there.
int SayHello(const std::string& name, const Hello& hello);
// The next message from the rendezvous; false: it is gone. With kComplete, `descriptors` are the shared memory, the
// writing end of the rank's own life line, and the reading ends of all others' in the order of ranks.
bool AwaitWelcome(int socket, Welcome* welcome, std::vector<int>* descriptors);
// After a connection was closed: waits until a rendezvous of this process has let go of what it held for it, so that
// descriptors and threads can be counted.
void AwaitLeft(const std::string& name, uint64_t joiner);

}  // namespace headrace::nccl_checker

#endif  // HEADRACE_LOADER_TESTING_NCCL_CHECKER_RENDEZVOUS_H_
