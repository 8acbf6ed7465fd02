#ifndef HEADRACE_LOADER_TESTING_NCCL_CHECKER_KERNEL_H_
#define HEADRACE_LOADER_TESTING_NCCL_CHECKER_KERNEL_H_

// What one group does on one communicator. All its sends and receives progress together; those to one peer and those
// from one peer in the order of issue. It ends when all are done: a send when the receiver has taken all of it.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "loader/testing/nccl_checker/communicator.h"

namespace headrace::nccl_checker {

struct Transfer {
  bool send;
  char* data;
  uint64_t count, bytes;
  int type, peer;
  StreamRef stream;
};

class Kernel {
 public:
  Kernel(CommRef communicator, std::vector<Transfer> transfers);

  const CommRef& communicator() const { return communicator_; }
  const std::vector<Transfer>& transfers() const { return transfers_; }
  std::vector<StreamRef> streams() const;  // each once
  // From Communicator::BeginGroup.
  uint64_t group = 0;

  // The body, on a stream's thread.
  void Run();

 private:
  // The operations to one peer, or from one.
  struct Lane {
    int peer = 0;
    std::vector<const Transfer*> transfers;
    size_t at = 0;        // the operation that moves
    bool headed = false;  // its header has moved
    uint64_t moved = 0;   // its bytes
    uint64_t end = 0;     // the ring's position after the last send
  };

  bool SendSome(Lane* lane);
  bool ReceiveSome(Lane* lane);
  bool CheckHeader(const Lane& lane, const MessageHeader& header);
  bool Ended(const Lane& lane, bool send) const;
  bool AllEnded() const;
  uint64_t Piece(uint64_t bytes);
  // Nothing moved since `since`.
  void LookForTrouble(std::chrono::steady_clock::time_point since);
  std::string WaitsFor() const;
  void HangUntilAbort();

  const CommRef communicator_;
  const std::vector<Transfer> transfers_;
  std::vector<Lane> sends_, receives_;
  bool failed_ = false;  // a rule was broken: nothing moves any more
  uint64_t pieces_ = 0;
};

}  // namespace headrace::nccl_checker

#endif  // HEADRACE_LOADER_TESTING_NCCL_CHECKER_KERNEL_H_
