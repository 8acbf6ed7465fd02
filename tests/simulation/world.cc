#include "tests/simulation/world.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace headrace::simulation {

void World::At(int64_t when, std::function<void()> f) {
  agenda_.emplace(std::make_pair(std::max(when, now_), order_++), std::move(f));
}

bool World::Next() {
  if (agenda_.empty() || !violation_.empty()) return false;
  auto first = agenda_.extract(agenda_.begin());
  now_ = first.key().first;
  ++events_;
  first.mapped()();
  return true;
}

void World::Violate(absl::string_view checker, absl::string_view what) {
  if (violation_.empty()) violation_ = absl::StrCat(checker, ": at ", now_ / 1'000'000, " ms: ", what);
}

void World::Mark(absl::string_view what, uint64_t number) {
  for (const char c : what) mark_ = (mark_ ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  mark_ = (mark_ ^ number ^ static_cast<uint64_t>(now_)) * 0x100000001B3;
}

void Process::At(int64_t when, std::function<void()> f) {
  world_.At(when, [this, alive = alive_, f = std::move(f)]() mutable {
    if (!*alive) return;
    if (world_.now() < stalled_until_) return At(stalled_until_, std::move(f));
    f();
  });
}

std::vector<std::pair<int64_t, std::string>> Process::Waits() const {
  std::vector<std::pair<int64_t, std::string>> waits;
  for (const Until* wait : waits_) waits.emplace_back(world_.now() - wait->since_, wait->what_);
  return waits;
}

void Process::Until::await_suspend(std::coroutine_handle<> handle) {
  handle_ = handle;
  since_ = process_.world_.now();
  process_.waits_.push_back(this);
  if (deadline_ != kNoDeadline) process_.At(deadline_, [&process = process_] { process.Ask(); });
}

void Process::Wake() {
  if (asking_) return;
  asking_ = true;
  After(0, [this] {
    asking_ = false;
    Ask();
  });
}

void Process::Ask() {
  // A task that goes on may begin new waits, and end others by what it does.
  for (bool again = true; again;) {
    again = false;
    for (auto it = waits_.begin(); it != waits_.end(); ++it) {
      Until* wait = *it;
      wait->result_ = wait->ready_ != nullptr && wait->ready_();
      if (!wait->result_ && world_.now() < wait->deadline_) continue;
      waits_.erase(it);
      wait->handle_.resume();
      again = true;
      break;
    }
  }
  std::erase_if(tasks_, [](const Task& task) { return task.over(); });
}

void Process::Spawn(Task task) {
  tasks_.push_back(std::move(task));
  tasks_.back().Start();
}

void Process::Kill() {
  *alive_ = false;
  waits_.clear();
  tasks_.clear();
}

}  // namespace headrace::simulation
