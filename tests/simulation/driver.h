#ifndef HEADRACE_TESTS_SIMULATION_DRIVER_H_
#define HEADRACE_TESTS_SIMULATION_DRIVER_H_

// Test only. What an engine does with its weights: requests, one after another, each of several steps that compute with
// the weights of all workers. It pauses when a worker asks for it: no request begins any more, and the one that is
// running ends first.

#include <cstdint>
#include <optional>
#include <set>

#include "tests/simulation/job.h"

namespace headrace::simulation {

class Driver final : public Process {
 public:
  Driver(Job* job, int engine);
  ~Driver() override { Kill(); }

  void Begin() { Spawn(Run()); }
  void Pause(int worker) { pausing_.insert(worker); }
  void Resume(int worker) { pausing_.erase(worker); }
  bool busy() const { return busy_; }
  // What the engine may serve now: what all its workers serve.
  std::optional<Version> Serving() const;

 private:
  Task Run();
  uint64_t Lives() const;

  Job& job_;
  const int engine_;
  std::set<int> pausing_;
  bool busy_ = false;
};

}  // namespace headrace::simulation

#endif  // HEADRACE_TESTS_SIMULATION_DRIVER_H_
