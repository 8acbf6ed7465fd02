#ifndef HEADRACE_LOADER_TESTING_NCCL_CHECKER_COMMUNICATOR_H_
#define HEADRACE_LOADER_TESTING_NCCL_CHECKER_COMMUNICATOR_H_

// One rank's communicator: made, used by groups (group.h) and kernels (kernel.h), finalized, destroyed or aborted. All
// functions may be called by any thread.
//
// "In progress" ends when ncclCommGetAsyncError has said so, not when the work behind it is done: a caller that does
// not ask breaks the rules also where it is lucky.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "loader/testing/nccl_checker/segment.h"
#include "loader/testing/nccl_checker/stream.h"
#include "loader/transport/nccl/nccl_abi.h"

namespace headrace::nccl_checker {

// A thread that puts a group's kernels into their streams.
class Launch {
 public:
  ~Launch() { Join(); }
  std::atomic<bool> done{false};
  std::thread thread;
  void Join() {
    std::lock_guard lock(mutex_);
    if (thread.joinable()) thread.join();
  }

 private:
  std::mutex mutex_;
};

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(uint64_t number, int rank, int ranks, int device, bool blocking, int ctas,
               std::shared_ptr<std::atomic<bool>> complete)
      : number(number),
        rank(rank),
        ranks(ranks),
        device(device),
        blocking(blocking),
        ctas(ctas),
        complete_(std::move(complete)) {}
  ~Communicator();

  const uint64_t number;  // in this process
  const int rank, ranks, device;
  const bool blocking;
  const int ctas;  // that a kernel may take
  const std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);

  // "rank 1 of 4, communicator 7"
  std::string Name() const;

  // Begins to join the others at the rendezvous of the id, on a thread of its own.
  void BeginInit(const std::string& rendezvous);
  // Waits until that has ended; its result.
  nccl::Result AwaitInit();

  // What ncclCommGetAsyncError says.
  nccl::Result AsyncError();
  std::string error_text();
  // The first error stays.
  void SetError(nccl::Result error, const std::string& text);

  // kSuccess when work may be given to it; otherwise a violation, which was told, or the asynchronous error.
  nccl::Result CheckReady(const char* call);
  nccl::Result Finalize();
  nccl::Result Destroy();
  void Abort();

  // A group with one kernel on these streams begins; `launch` is null on a blocking communicator. The group's number.
  uint64_t BeginGroup(std::shared_ptr<Launch> launch, const std::vector<StreamRef>& streams);
  // Waits `milliseconds`, or until the communicator is aborted.
  void Sleep(int milliseconds);
  // The kernel's operation, as number `number` of the stream: later groups come after it, whatever their streams.
  StreamRef last_stream;
  uint64_t last_number = 0;

  // False: the communicator was aborted, and the kernel does not run. Otherwise the segment stays until EndKernel.
  bool BeginKernel();
  void EndKernel();
  // A kernel that was issued has ended, or never will run.
  void EndGroup();
  const Segment& segment() const { return *segment_; }
  // Looks whether ranks died or aborted; by seed that becomes the asynchronous error. Whether `peer` is one of them.
  bool Lost(int peer);

 private:
  enum class Phase { kInit, kReady, kFinalizing, kFinalized };

  void Init(const std::string& rendezvous);
  // With mutex_ held:
  void LookForLost();
  void SetErrorLocked(nccl::Result error, const std::string& text);
  void EndLaunchLocked();
  void Release(RankPhase phase);

  const std::shared_ptr<std::atomic<bool>> complete_;  // of its id: all ranks were there
  std::mutex mutex_;
  std::condition_variable changed_;
  Phase phase_ = Phase::kInit;
  bool init_ended_ = false;
  std::thread init_thread_;
  int init_socket_ = -1;
  nccl::Result error_ = nccl::kSuccess;
  std::string error_text_;
  std::shared_ptr<Launch> launch_;
  std::vector<StreamRef> launch_streams_;
  uint64_t groups_ = 0;
  int outstanding_ = 0;  // kernels that were issued and have not ended
  int running_ = 0;      // of these, inside BeginKernel and EndKernel
  std::unique_ptr<Segment> segment_;
  int own_life_ = -1;
  std::vector<int> lives_;  // of the other ranks, by rank; -1: ours
  std::vector<bool> lost_;
};

using CommRef = std::shared_ptr<Communicator>;

// The result of ncclCommInitRankConfig but for waiting.
nccl::Result CreateCommunicator(nccl::Comm* handle, int ranks, const nccl::UniqueId& id, int rank,
                                const nccl::Config* config, CommRef* made);
// Null, and the result of the violation in `error`.
CommRef FindCommunicator(nccl::Comm handle, const char* call, nccl::Result* error);
void ForgetCommunicator(nccl::Comm handle);

}  // namespace headrace::nccl_checker

#endif  // HEADRACE_LOADER_TESTING_NCCL_CHECKER_COMMUNICATOR_H_
