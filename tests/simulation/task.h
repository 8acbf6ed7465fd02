#ifndef HEADRACE_TESTS_SIMULATION_TASK_H_
#define HEADRACE_TESTS_SIMULATION_TASK_H_

// Test only. What a thread of a real process does, as a coroutine: runs until it waits, ends with a status. One that
// waits may be destroyed, as a thread of a process that is killed; its locals go with it.

#include <coroutine>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/status/status.h"

namespace headrace::simulation {

class [[nodiscard]] Task {
 public:
  struct promise_type {
    std::optional<absl::Status> result;
    std::coroutine_handle<> awaiting;

    struct Final {
      bool await_ready() noexcept { return false; }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> self) noexcept {
        std::coroutine_handle<> next = self.promise().awaiting;
        return next ? next : std::noop_coroutine();
      }
      void await_resume() noexcept {}
    };

    Task get_return_object() { return Task(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    Final final_suspend() noexcept { return {}; }
    void return_value(absl::Status status) { result = std::move(status); }
    void unhandled_exception() { std::abort(); }
  };

  explicit Task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&&) = delete;
  ~Task() {
    if (handle_) handle_.destroy();
  }

  void Start() { handle_.resume(); }
  bool over() const { return handle_.done(); }

  // Awaited by another one: begins here.
  bool await_ready() const noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> awaiting) {
    handle_.promise().awaiting = awaiting;
    return handle_;
  }
  absl::Status await_resume() { return *std::move(handle_.promise().result); }

 private:
  std::coroutine_handle<promise_type> handle_;
};

}  // namespace headrace::simulation

#endif  // HEADRACE_TESTS_SIMULATION_TASK_H_
