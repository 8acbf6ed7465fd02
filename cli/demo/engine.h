#ifndef HEADRACE_CLI_DEMO_ENGINE_H_
#define HEADRACE_CLI_DEMO_ENGINE_H_

// One engine's front end and driver in the demo: lock-step requests over all workers, and the swap of generations
// between two requests. A state machine over lines of JSON: it does no I/O.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "cli/demo/rank.h"

namespace headrace {

inline constexpr int kStepsPerRequest = 3;

// What one engine did with one generation.
struct EngineGeneration {
  double announced_at = 0;  // first worker; monotonic seconds
  double transfer_seconds = 0, verify_seconds = 0, decision_seconds = 0, commit_seconds = 0;  // slowest worker
  double pause_seconds = 0;                                                                   // no request was served
  int64_t copies = 0, bytes = 0, peak_staging_bytes = 0;
};

class Engine {
 public:
  // An order for one worker.
  using Order = std::pair<int, DemoJson>;

  Engine(int workers, bool in_place) : workers_(workers), in_place_(in_place) {}

  // The orders that are due now: the next step of a request, or the swap.
  std::vector<Order> Next();
  void OnEvent(int worker, const DemoJson& event);
  // No further request begins.
  void Drain() { draining_ = true; }
  bool idle() const { return state_ == State::kIdle; }

  uint64_t committed() const { return committed_; }
  // Requests that used more than one generation or none, and steps that were in flight at a swap and did not use the
  // generation before it.
  int64_t torn() const { return torn_; }
  // Requests by the generation that all their steps used on all workers.
  const std::map<int64_t, int64_t>& requests() const { return requests_; }
  const std::map<uint64_t, EngineGeneration>& generations() const { return generations_; }

 private:
  enum class State { kIdle, kStepping, kStaging, kCommitting };

  std::vector<Order> ToAll(const DemoJson& order) const;
  // The generation that every worker has reported, or 0.
  uint64_t Everywhere(const std::map<int, uint64_t>& by_worker) const;

  void Pause();

  const int workers_;
  const bool in_place_;
  State state_ = State::kIdle;
  bool draining_ = false;
  int steps_ = 0;
  std::set<int> answered_;
  std::set<int64_t> used_;  // generations that the running request met
  std::map<int, uint64_t> announced_, staged_, committed_by_;
  uint64_t committed_ = 0;
  double paused_at_ = 0;
  uint64_t before_pause_ = 0;  // committed_ then
  int64_t torn_ = 0;
  std::map<int64_t, int64_t> requests_;
  std::map<uint64_t, EngineGeneration> generations_;
};

}  // namespace headrace

#endif  // HEADRACE_CLI_DEMO_ENGINE_H_
