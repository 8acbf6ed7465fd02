#include "loader/testing/nccl_checker/stream.h"

#include <map>

#include "loader/testing/nccl_checker/options.h"
#include "loader/testing/nccl_checker/rules.h"
#include "loader/testing/nccl_checker/text.h"

namespace headrace::nccl_checker {
namespace {

struct Table {
  std::mutex mutex;
  std::map<cuda::Stream, StreamRef> streams;
  std::map<int, StreamRef> defaults;  // by device
  uint64_t last_handle = 0;
};

Table& table() {
  static Table* const instance = new Table;
  return *instance;
}

// cudaStreamLegacy; cudaStreamPerThread is 2.
const cuda::Stream kLegacy = reinterpret_cast<cuda::Stream>(uintptr_t{1});

}  // namespace

uint64_t Stream::Enqueue(Operation operation) {
  std::lock_guard lock(mutex_);
  queue_.push_back(std::move(operation));
  if (!alive_ && !last_call_) {
    alive_ = true;
    std::thread thread([self = shared_from_this()] { self->Run(); });
    if (default_) {
      thread.detach();
    } else {
      thread_ = std::move(thread);
    }
  }
  work_.notify_one();
  return ++issued_;
}

uint64_t Stream::last() const {
  std::lock_guard lock(mutex_);
  return issued_;
}

bool Stream::Done(uint64_t number) const {
  std::lock_guard lock(mutex_);
  return ended_ >= number;
}

void Stream::Wait(uint64_t number) const {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return ended_ >= number; });
}

std::string Stream::Pending() const {
  const auto counts = [](const auto& cancelled) { return cancelled == nullptr || !*cancelled; };
  std::lock_guard lock(mutex_);
  if (!running_.empty() && counts(running_cancelled_)) return running_;
  for (const Operation& operation : queue_) {
    if (counts(operation.cancelled)) return operation.what;
  }
  return "";
}

void Stream::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (queue_.empty() && default_) break;
    work_.wait(lock, [&] { return !queue_.empty() || last_call_; });
    if (queue_.empty()) break;
    {
      Operation operation = std::move(queue_.front());
      queue_.pop_front();
      running_ = operation.what;
      running_cancelled_ = operation.cancelled;
      lock.unlock();
      if (operation.run) operation.run();
    }  // nothing is used any more before it counts as done
    lock.lock();
    running_.clear();
    ++ended_;
    done_.notify_all();
  }
  alive_ = false;
}

void Stream::End() {
  std::thread ended;
  {
    std::lock_guard lock(mutex_);
    last_call_ = true;
    work_.notify_one();
    ended = std::move(thread_);
  }
  if (ended.joinable()) ended.join();
}

cuda::Error CreateStream(cuda::Stream* handle, unsigned flags) {
  if (handle == nullptr || (flags & ~cuda::kStreamNonBlocking) != 0) return cuda::kErrorInvalidValue;
  std::lock_guard lock(table().mutex);
  // Not the object's address: a handle never comes again, so that one that was destroyed is known.
  *handle = reinterpret_cast<cuda::Stream>(uintptr_t{0x5D00000000000000} + 16 * ++table().last_handle);
  table().streams[*handle] = std::make_shared<Stream>(CurrentDevice(), flags == cuda::kStreamNonBlocking, false);
  return cuda::kSuccess;
}

StreamRef FindStream(cuda::Stream handle, const char* call) {
  std::lock_guard lock(table().mutex);
  if (handle == nullptr || handle == kLegacy) {
    StreamRef& stream = table().defaults[CurrentDevice()];
    if (stream == nullptr) stream = std::make_shared<Stream>(CurrentDevice(), false, true);
    return stream;
  }
  const auto found = table().streams.find(handle);
  if (found != table().streams.end()) return found->second;
  CudaViolation(Rule::kStreamHandle, Text(call, " with the stream ", handle, ", which does not exist"));
  return nullptr;
}

StreamRef FindLaunchedStream(cuda::Stream handle, const char* call) {
  StreamRef stream = FindStream(handle, call);
  if (stream == nullptr || (stream->launches == 0 && stream->grouped == 0)) return stream;
  CudaViolation(Rule::kStreamBeforeLaunch, Text(call, " with the stream ", handle, " before a group is in it"));
  return nullptr;
}

cuda::Error DestroyStream(cuda::Stream handle) {
  constexpr const char* kCall = "cudaStreamDestroy";
  const StreamRef stream = FindStream(handle, kCall);
  if (stream == nullptr || stream->is_default()) return cuda::kErrorInvalidValue;
  if (const std::string pending = stream->Pending(); stream->launches > 0 || !pending.empty()) {
    return CudaViolation(Rule::kStreamDestroyBusy, Text(kCall, " of ", handle, " in which there is ",
                                                        pending.empty() ? "a group on its way" : pending));
  }
  {
    std::lock_guard lock(table().mutex);
    table().streams.erase(handle);
  }
  stream->End();
  return cuda::kSuccess;
}

void IssueWait(const StreamRef& stream, const StreamRef& other, uint64_t number,
               std::shared_ptr<const std::atomic<bool>> cancelled) {
  if (stream == other || other->Done(number)) return;
  stream->Enqueue({"a wait for another stream", [other, number] { other->Wait(number); }, {}, std::move(cancelled)});
}

uint64_t Issue(const StreamRef& stream, Operation operation) {
  std::lock_guard lock(table().mutex);
  if (stream->is_default()) {
    for (const auto& [handle, other] : table().streams) {
      if (other->device() == stream->device() && !other->non_blocking()) IssueWait(stream, other, other->last());
    }
  } else if (!stream->non_blocking()) {
    const auto found = table().defaults.find(stream->device());
    if (found != table().defaults.end()) IssueWait(stream, found->second, found->second->last());
  }
  return stream->Enqueue(std::move(operation));
}

}  // namespace headrace::nccl_checker
