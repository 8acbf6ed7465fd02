#ifndef HEADRACE_LOADER_SENDING_H_
#define HEADRACE_LOADER_SENDING_H_

// A publisher's thread that hands bytes to receivers: does what they ordered, in the order in which it was told.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <variant>

#include "absl/status/status.h"
#include "loader/outlet.h"

namespace headrace {

// Thread rules: any thread.
class Sending {
 public:
  // `settled` is called by the thread when what IsIdle said no to may have become true; `failed` when the outlet
  // failed: what was ordered is dropped then.
  Sending(std::unique_ptr<Outlet> outlet, std::function<void()> settled,
          std::function<void(const absl::Status&)> failed);
  ~Sending() { Stop(); }
  // Ends the thread; what was told and not done is not done.
  void Stop();

  void Start(Outlet::Order order) { Tell(std::move(order)); }
  // Of an engine (none: of all), or of one of its workers.
  void Drop(std::optional<int> engine = std::nullopt, std::optional<int> worker = std::nullopt) {
    Tell(Dropped{engine, worker});
  }
  // Whether all that was told is done and nothing is read out of `slot` any more.
  bool IsIdle(int slot);
  int64_t peak_staging_bytes() const { return peak_staging_bytes_; }

 private:
  struct Dropped {
    std::optional<int> engine;
    std::optional<int> worker;
  };
  using Told = std::variant<Outlet::Order, Dropped>;

  void Tell(Told told);
  void Run();

  const std::unique_ptr<Outlet> outlet_;  // of the thread
  const std::function<void()> settled_;
  const std::function<void(const absl::Status&)> failed_;
  std::atomic<int64_t> peak_staging_bytes_ = 0;
  std::mutex mutex_;
  std::condition_variable told_something_;
  // Under the lock.
  std::deque<Told> told_;
  bool stop_ = false;
  bool taking_ = false;      // what was told
  bool awaited_ = false;     // IsIdle said no
  uint64_t slots_read_ = 0;  // a bit for each
  std::thread thread_;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_SENDING_H_
