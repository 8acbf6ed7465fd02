#ifndef HEADRACE_TESTS_SIMULATION_WORLD_H_
#define HEADRACE_TESTS_SIMULATION_WORLD_H_

// Test only. One thread's worth of world: virtual time, what happens when, chance by a seed, and processes with clocks
// of their own that may stand still, jump and die.

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "loader/session/types.h"
#include "tests/simulation/task.h"

namespace headrace::simulation {

class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {}

  int64_t now() const { return now_; }
  int64_t events() const { return events_; }
  // Things at one time happen in the order in which they were asked for.
  void At(int64_t when, std::function<void()> f);
  void After(int64_t delay, std::function<void()> f) { At(now_ + delay, std::move(f)); }
  // The next thing happens; false: nothing is left, or a checker spoke.
  bool Next();

  std::mt19937_64& random() { return random_; }
  int64_t Draw(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  bool Happens(double probability) { return std::uniform_real_distribution<double>(0, 1)(random_) < probability; }

  // The first one stays.
  void Violate(absl::string_view checker, absl::string_view what);
  const std::string& violation() const { return violation_; }
  // Somebody heard something; told to whoever wants to know.
  void Heard(class Process* who, int what) {
    if (on_heard) on_heard(who, what);
  }
  std::function<void(class Process* who, int what)> on_heard;
  // Two runs of one seed leave the same mark.
  void Mark(absl::string_view what, uint64_t number);
  uint64_t mark() const { return mark_; }

 private:
  std::mt19937_64 random_;
  int64_t now_ = 0;
  int64_t events_ = 0;
  uint64_t order_ = 0;
  std::map<std::pair<int64_t, uint64_t>, std::function<void()>> agenda_;
  std::string violation_;
  uint64_t mark_ = 0;
};

class Process {
 public:
  Process(World* world, std::string name) : world_(*world), name_(std::move(name)) {}
  // Derived classes call Kill() first.
  virtual ~Process() { Kill(); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  const std::string& name() const { return name_; }
  World& world() const { return world_; }
  // What this process takes for the time.
  int64_t clock() const { return world_.now() + clock_offset_; }
  void JumpClock(int64_t by) { clock_offset_ += by; }
  // Does nothing before then.
  void Stall(int64_t until) { stalled_until_ = std::max(stalled_until_, until); }
  int64_t stalled_until() const { return stalled_until_; }

  // Not when the process is gone, and not while it stands still.
  void At(int64_t when, std::function<void()> f);
  void After(int64_t delay, std::function<void()> f) { At(world_.now() + delay, std::move(f)); }

  // What it waits for, and for how long it has, in virtual time.
  std::vector<std::pair<int64_t, std::string>> Waits() const;

 protected:
  // Awaited: until `ready` (true) or the world's time is `deadline` (false). Asked again at each Wake().
  class Until {
   public:
    Until(Process* process, std::string what, std::function<bool()> ready, int64_t deadline)
        : process_(*process), what_(std::move(what)), ready_(std::move(ready)), deadline_(deadline) {}
    bool await_ready() { return ready_ != nullptr && (result_ = ready_()); }
    void await_suspend(std::coroutine_handle<> handle);
    bool await_resume() const { return result_; }

   private:
    friend class Process;
    Process& process_;
    std::string what_;
    std::function<bool()> ready_;
    int64_t deadline_;
    int64_t since_ = 0;
    bool result_ = false;
    std::coroutine_handle<> handle_;
  };
  Until Wait(std::string what, std::function<bool()> ready, int64_t deadline = kNoDeadline) {
    return Until(this, std::move(what), std::move(ready), deadline);
  }
  Until Sleep(int64_t duration) { return Until(this, "sleep", nullptr, world_.now() + duration); }

  void Spawn(Task task);
  void Wake();
  // Ends what runs, at once.
  void Kill();

 private:
  void Ask();

  World& world_;
  const std::string name_;
  int64_t clock_offset_ = 0;
  int64_t stalled_until_ = 0;
  bool asking_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::list<Until*> waits_;
  std::list<Task> tasks_;
};

}  // namespace headrace::simulation

#endif  // HEADRACE_TESTS_SIMULATION_WORLD_H_
