#include "cli/demo/engine.h"

#include <algorithm>
#include <string>

namespace headrace {

std::vector<Engine::Order> Engine::ToAll(const DemoJson& order) const {
  std::vector<Order> orders;
  for (int w = 0; w < workers_; ++w) orders.emplace_back(w, order);
  return orders;
}

uint64_t Engine::Everywhere(const std::map<int, uint64_t>& by_worker) const {
  if (static_cast<int>(by_worker.size()) < workers_) return 0;
  for (const auto& [worker, generation] : by_worker) {
    if (generation != by_worker.begin()->second) return 0;
  }
  return by_worker.begin()->second;
}

std::vector<Engine::Order> Engine::Next() {
  switch (state_) {
    case State::kIdle: {
      // The only place where weights may change: no request is running.
      if (uint64_t g = Everywhere(staged_); g > committed_) {
        Pause();
        state_ = State::kCommitting;
        return ToAll({{"commit", g}});
      }
      if (uint64_t g = Everywhere(announced_); in_place_ && g > committed_) {
        Pause();
        state_ = State::kStaging;
        return ToAll({{"stage", g}});
      }
      if (draining_) return {};
      state_ = State::kStepping;
      steps_ = 0;
      used_.clear();
      answered_.clear();
      return ToAll({{"step", steps_}});
    }
    case State::kStepping: {
      if (static_cast<int>(answered_.size()) < workers_) return {};
      answered_.clear();
      if (++steps_ < kStepsPerRequest) return ToAll({{"step", steps_}});
      if (used_.size() == 1 && *used_.begin() >= 0) {
        ++requests_[*used_.begin()];
      } else {
        ++torn_;
      }
      state_ = State::kIdle;
      return {};
    }
    case State::kStaging:
      if (uint64_t g = Everywhere(staged_); g > committed_) {
        state_ = State::kCommitting;
        return ToAll({{"commit", g}});
      }
      return {};
    case State::kCommitting:
      if (uint64_t g = Everywhere(committed_by_); g > committed_) {
        committed_ = g;
        generations_[g].pause_seconds = MonotonicSeconds() - paused_at_;
        state_ = State::kIdle;
      }
      return {};
  }
  return {};
}

void Engine::Pause() {
  paused_at_ = MonotonicSeconds();
  before_pause_ = committed_;
}

void Engine::OnEvent(int worker, const DemoJson& event) {
  const std::string kind = event["event"];
  if (kind == "stepped") {
    answered_.insert(worker);
    used_.insert(event["generation"].get<int64_t>());
    return;
  }
  if (kind == "in_flight") {
    torn_ += event["generation"].get<int64_t>() != static_cast<int64_t>(before_pause_);
    return;
  }
  if (kind != "announced" && kind != "staged" && kind != "committed") return;
  const uint64_t generation = event["generation"];
  EngineGeneration& g = generations_[generation];
  if (kind == "announced") {
    const double at = event["at"];
    g.announced_at = announced_.empty() || g.announced_at == 0 ? at : std::min(g.announced_at, at);
    announced_[worker] = generation;
  } else if (kind == "staged") {
    staged_[worker] = generation;
    g.transfer_seconds = std::max<double>(g.transfer_seconds, event["transfer_seconds"]);
    g.verify_seconds = std::max<double>(g.verify_seconds, event["verify_seconds"]);
    g.decision_seconds = std::max<double>(g.decision_seconds, event["decision_seconds"]);
    g.copies += event["copies"].get<int64_t>();
    g.bytes += event["bytes"].get<int64_t>();
    g.peak_staging_bytes = std::max<int64_t>(g.peak_staging_bytes, event["peak_staging_bytes"]);
  } else {
    committed_by_[worker] = generation;
    g.commit_seconds = std::max<double>(g.commit_seconds, event["commit_seconds"]);
  }
}

}  // namespace headrace
