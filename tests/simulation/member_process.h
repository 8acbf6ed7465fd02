#ifndef HEADRACE_TESTS_SIMULATION_MEMBER_PROCESS_H_
#define HEADRACE_TESTS_SIMULATION_MEMBER_PROCESS_H_

// Test only. What a trainer and a worker share: loader/member.h in virtual time. A session machine, its stream, another
// one after it broke, and the making of plans, which takes time.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "loader/session/member_session.h"
#include "tests/simulation/job.h"

namespace headrace::simulation {

class MemberProcess : public Process {
 public:
  MemberProcess(Job* job, Seat* seat, std::unique_ptr<MemberSession> session);
  ~MemberProcess() override;

  bool over() const { return !session_->status().ok(); }
  MemberSession& session() { return *session_; }
  const MemberSession& session() const { return *session_; }
  Job& job() { return job_; }
  Seat& seat() { return seat_; }
  Channel* channel() { return channel_.get(); }
  void ClockJumped() { Tick(); }
  void Begin();
  // Something that no effect tells has changed.
  void Poke() { Wake(); }
  // The stream ends with the process; silently: nobody hears of it.
  void Hang(bool silently);

 protected:
  template <typename F>
  auto Step(F&& f) {
    MemberActions actions;
    auto result = f(clock(), &actions);
    Act(&actions);
    return result;
  }
  virtual void Record(const MemberEffect& effect) = 0;
  virtual Task Plan(PlanEffect effect) = 0;
  virtual Task Run() = 0;
  virtual void CheckBounds() = 0;
  virtual bool deaf() const { return false; }

  Job& job_;
  Seat& seat_;

 private:
  void Act(MemberActions* actions);
  void Tick();
  Task Connect();
  Task PlanInTurn();

  std::unique_ptr<MemberSession> session_;
  std::shared_ptr<Channel> channel_;
  std::optional<int64_t> dial_until_;  // by the process's clock
  std::optional<PlanEffect> to_plan_;
  int64_t tick_at_ = kNoDeadline;
  bool reaped_ = false;
};

// Options of a member's session.
MemberOptions SessionOptions(const Job& job, const Seat& seat, proto::Layout layout, int workers);

}  // namespace headrace::simulation

#endif  // HEADRACE_TESTS_SIMULATION_MEMBER_PROCESS_H_
