#ifndef HEADRACE_TESTS_SIMULATION_COORDINATOR_PROCESS_H_
#define HEADRACE_TESTS_SIMULATION_COORDINATOR_PROCESS_H_

// Test only. loader/control/coordinator_service.h in virtual time.

#include <map>
#include <memory>
#include <string>

#include "loader/session/coordinator.h"
#include "tests/simulation/channel.h"
#include "tests/simulation/job.h"

namespace headrace::simulation {

class CoordinatorProcess : public Process {
 public:
  CoordinatorProcess(Job* job, const CoordinatorOptions& options);
  ~CoordinatorProcess() override;

  void Accept(std::shared_ptr<Channel> channel);
  const Coordinator& coordinator() const { return coordinator_; }
  void ClockJumped() { Tick(); }

 private:
  template <typename F>
  void Step(F&& f) {
    CoordinatorActions actions;
    f(clock(), &actions);
    Act(&actions);
  }
  void Act(CoordinatorActions* actions);
  void Tick();

  Job& job_;
  Coordinator coordinator_;
  ConnectionId next_ = 1;
  uint64_t epoch_ = 0;
  std::map<ConnectionId, std::shared_ptr<Channel>> channels_;
  int64_t tick_at_ = kNoDeadline;
};

}  // namespace headrace::simulation

#endif  // HEADRACE_TESTS_SIMULATION_COORDINATOR_PROCESS_H_
