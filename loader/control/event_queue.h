#ifndef HEADRACE_LOADER_CONTROL_EVENT_QUEUE_H_
#define HEADRACE_LOADER_CONTROL_EVENT_QUEUE_H_

// Events of control streams, from the gRPC library's threads to their owner's thread.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
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

// Any thread. Bounded by its users: a stream reads its next message when the last one was popped.
class EventQueue {
 public:
  EventQueue();
  ~EventQueue();
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  // `taken` runs when the event is popped, in the popping thread.
  void Push(ControlEvent event, std::function<void()> taken = nullptr);
  // The next event; nullopt at the deadline (one that is past: never waits), or when there is none and Wake was called
  // since the last Pop.
  std::optional<ControlEvent> Pop(absl::Time deadline);
  // Ends a Pop that waits, or the next one.
  void Wake();
  // Readable (poll, epoll) while there are events or a Wake is pending; never read from it. Valid until destruction.
  int event_fd() const { return fd_; }

 private:
  struct Entry {
    ControlEvent event;
    std::function<void()> taken;
  };

  void Signal();

  const int fd_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Entry> events_;
  bool woken_ = false;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_CONTROL_EVENT_QUEUE_H_
