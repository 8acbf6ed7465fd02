#include "loader/control/event_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

#include "absl/time/clock.h"

namespace headrace {

EventQueue::EventQueue() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

EventQueue::~EventQueue() {
  if (fd_ >= 0) close(fd_);
}

void EventQueue::Signal() {
  // An eventfd at its limit stays readable, which is all that is needed; the same where there was no descriptor left.
  const uint64_t one = 1;
  if (write(fd_, &one, sizeof one) < 0) return;
}

void EventQueue::Push(ControlEvent event, std::function<void()> taken) {
  {
    std::lock_guard lock(mutex_);
    events_.push_back({std::move(event), std::move(taken)});
    Signal();
  }
  ready_.notify_one();
}

void EventQueue::Wake() {
  {
    std::lock_guard lock(mutex_);
    woken_ = true;
    Signal();
  }
  ready_.notify_one();
}

std::optional<ControlEvent> EventQueue::Pop(absl::Time deadline) {
  std::unique_lock lock(mutex_);
  const auto ready = [this] { return woken_ || !events_.empty(); };
  if (deadline == absl::InfiniteFuture()) {
    ready_.wait(lock, ready);
  } else if (const absl::Duration wait = deadline - absl::Now(); wait > absl::ZeroDuration()) {
    // By the steady clock: a step of the wall clock must not prolong a wait.
    ready_.wait_for(lock, absl::ToChronoNanoseconds(wait), ready);
  }
  std::optional<ControlEvent> event;
  std::function<void()> taken;
  if (!events_.empty()) {
    event = std::move(events_.front().event);
    taken = std::move(events_.front().taken);
    events_.pop_front();
  }
  woken_ = false;
  if (events_.empty()) {
    uint64_t count;
    if (read(fd_, &count, sizeof count) < 0) count = 0;  // was not readable
  }
  lock.unlock();
  if (taken) taken();
  return event;
}

}  // namespace headrace
