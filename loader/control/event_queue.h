#ifndef HEADRACE_LOADER_CONTROL_EVENT_QUEUE_H_
#define HEADRACE_LOADER_CONTROL_EVENT_QUEUE_H_

// Events of control streams, from the gRPC library's threads to their owner's thread.

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "loader/session/types.h"

namespace headrace {

struct ControlEvent {
  enum class Kind { kConnected, kMessage, kDisconnected };
  Kind kind = Kind::kConnected;
  ConnectionId connection = 0;
  proto::Envelope message;  // kMessage
  absl::Status status;      // kDisconnected: why; OK when the other side closed in order
};

// Unbounded on its own: streams stop reading while too much of theirs is queued. Any thread.
class EventQueue {
 public:
  EventQueue();
  ~EventQueue();
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  void Push(ControlEvent event);
  // The next event, or nullopt at the deadline, or when Wake was called since the last Pop.
  std::optional<ControlEvent> Pop(absl::Time deadline);
  // Ends a Pop that waits, or the next one.
  void Wake();
  // Readable (poll, epoll) while there are events or a Wake is pending; never read from it. Valid until destruction.
  int event_fd() const { return fd_; }

 private:
  void Signal();
  void ClearIfIdle();

  int fd_;
  std::mutex mutex_;
  std::deque<ControlEvent> events_;
  bool woken_ = false;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_CONTROL_EVENT_QUEUE_H_
