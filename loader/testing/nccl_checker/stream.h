#ifndef HEADRACE_LOADER_TESTING_NCCL_CHECKER_STREAM_H_
#define HEADRACE_LOADER_TESTING_NCCL_CHECKER_STREAM_H_

// Streams: a FIFO of operations and the thread that runs them. Operations are numbered; a stream is a clock that says
// up to which number all are done. All functions may be called by any thread.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "loader/gpu/cuda_abi.h"
#include "loader/testing/nccl_checker/memory.h"

namespace headrace::nccl_checker {

struct Operation {
  std::string what;
  std::function<void()> run;
  std::list<Use> uses;  // until it has run
  // Where given and true: it ends at once, and counts as no work any more.
  std::shared_ptr<const std::atomic<bool>> cancelled = nullptr;
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(int device, bool non_blocking, bool is_default)
      : device_(device), non_blocking_(non_blocking), default_(is_default) {}

  int device() const { return device_; }
  bool non_blocking() const { return non_blocking_; }
  bool is_default() const { return default_; }

  // The number of the new operation.
  uint64_t Enqueue(Operation operation);
  // Of the operation that was issued last; 0: none was.
  uint64_t last() const;
  bool Done(uint64_t number) const;
  void Wait(uint64_t number) const;
  bool Idle() const { return Done(last()); }
  // What runs or waits to run and was not cancelled; empty: nothing.
  std::string Pending() const;
  // No more operations come. Waits for the thread, which has nothing to do.
  void End();

  // Groups of non-blocking communicators that are on their way to this stream.
  std::atomic<int> launches{0};
  // Sends and receives in groups that were not ended yet.
  std::atomic<int> grouped{0};

 private:
  void Run();

  const int device_;
  const bool non_blocking_, default_;
  mutable std::mutex mutex_;
  std::condition_variable work_;
  mutable std::condition_variable done_;
  std::deque<Operation> queue_;
  std::string running_;
  std::shared_ptr<const std::atomic<bool>> running_cancelled_;
  uint64_t issued_ = 0, ended_ = 0;
  bool alive_ = false, last_call_ = false;
  std::thread thread_;  // of a stream that is no default stream
};

using StreamRef = std::shared_ptr<Stream>;

cuda::Error CreateStream(cuda::Stream* handle, unsigned flags);
cuda::Error DestroyStream(cuda::Stream handle);
// Null is the current device's default stream. Null result: a violation, which was told.
StreamRef FindStream(cuda::Stream handle, const char* call);
// As FindStream; that a group is on its way to the stream, or is being made, is a violation.
StreamRef FindLaunchedStream(cuda::Stream handle, const char* call);

// Issues the operation after what the legacy semantics of default streams have it wait for. Its number.
uint64_t Issue(const StreamRef& stream, Operation operation);
// Has later operations of `stream` wait for the operation `number` of `other`.
void IssueWait(const StreamRef& stream, const StreamRef& other, uint64_t number,
               std::shared_ptr<const std::atomic<bool>> cancelled = nullptr);

}  // namespace headrace::nccl_checker

#endif  // HEADRACE_LOADER_TESTING_NCCL_CHECKER_STREAM_H_
