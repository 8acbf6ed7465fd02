#include "loader/sending.h"

#include <utility>

#include "loader/gpu/cuda_runtime.h"

namespace headrace {
namespace {

// Between two looks at what was told.
constexpr absl::Duration kTurn = absl::Milliseconds(1);
constexpr absl::Duration kIdleTurn = absl::Milliseconds(5);

}  // namespace

Sending::Sending(std::unique_ptr<Outlet> outlet, std::function<void()> settled,
                 std::function<void(const absl::Status&)> failed)
    : outlet_(std::move(outlet)), settled_(std::move(settled)), failed_(std::move(failed)), thread_([this] {
        CurrentDevice::OfOurThread();
        Run();
      }) {}

void Sending::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  // The transport may be gone once it was stopped.
  if (!thread_.joinable()) return;
  told_something_.notify_all();
  outlet_->Wake();
  thread_.join();
}

void Sending::Tell(Told told) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    told_.push_back(std::move(told));
  }
  told_something_.notify_all();
  outlet_->Wake();
}

bool Sending::IsIdle(int slot) {
  std::lock_guard<std::mutex> lock(mutex_);
  const bool idle = told_.empty() && !taking_ && (slots_read_ >> slot & 1) == 0;
  awaited_ |= !idle;
  return idle;
}

void Sending::Run() {
  while (true) {
    std::deque<Told> told;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (outlet_->active() == 0 && !outlet_->polled()) {
        told_something_.wait(lock, [&] { return stop_ || !told_.empty(); });
      }
      if (stop_) return;
      std::swap(told, told_);
      taking_ = !told.empty();
    }
    for (const Told& one : told) {
      if (const auto* dropped = std::get_if<Dropped>(&one)) {
        outlet_->Drop(dropped->engine, dropped->worker);
      } else {
        outlet_->Start(std::get<Outlet::Order>(one));
      }
    }
    const absl::Status progress = outlet_->Progress(outlet_->active() > 0 ? kTurn : kIdleTurn);
    if (!progress.ok()) {
      outlet_->Drop(std::nullopt, std::nullopt);
      failed_(progress);
    }
    peak_staging_bytes_ = outlet_->peak_staging_bytes();
    bool awaited;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      taking_ = false;
      slots_read_ = 0;
      for (int slot = 0; slot < kSnapshotSlots; ++slot) slots_read_ |= uint64_t{outlet_->Reads(slot)} << slot;
      awaited = std::exchange(awaited_, false);
    }
    if (awaited) settled_();
  }
}

}  // namespace headrace
