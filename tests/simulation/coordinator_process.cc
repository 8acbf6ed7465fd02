#include "tests/simulation/coordinator_process.h"

#include <algorithm>
#include <utility>

namespace headrace::simulation {

CoordinatorProcess::CoordinatorProcess(Job* job, const CoordinatorOptions& options)
    : Process(&job->world, "coordinator"), job_(*job), coordinator_(options, clock()) {
  Tick();
}

CoordinatorProcess::~CoordinatorProcess() {
  Kill();
  for (auto& [_, channel] : channels_) channel->Close(Channel::kCoordinator);
}

void CoordinatorProcess::Accept(std::shared_ptr<Channel> channel) {
  const ConnectionId id = next_++;
  channels_[id] = channel;
  channel->Attach(
      Channel::kCoordinator, this,
      [this, id](const proto::Envelope& message) {
        Step([&](int64_t now, CoordinatorActions* actions) { coordinator_.OnMessage(id, message, now, actions); });
      },
      [this, id](const absl::Status& reason) {
        channels_.erase(id);
        Step([&](int64_t now, CoordinatorActions* actions) { coordinator_.OnDisconnected(id, reason, now, actions); });
      });
  Step([&](int64_t now, CoordinatorActions* actions) { coordinator_.OnConnected(id, now, actions); });
}

void CoordinatorProcess::Act(CoordinatorActions* actions) {
  for (CoordinatorActions::Outgoing& out : actions->messages) {
    const auto channel = channels_.find(out.connection);
    if (channel != channels_.end()) channel->second->Send(Channel::kCoordinator, std::move(out.message));
  }
  for (const ConnectionId id : actions->close) {
    const auto channel = channels_.find(id);
    if (channel == channels_.end()) continue;
    channel->second->Close(Channel::kCoordinator);
    channels_.erase(channel);
  }
  if (coordinator_.epoch() != epoch_) ++job_.counters.epochs;
  epoch_ = coordinator_.epoch();
  Tick();
}

void CoordinatorProcess::Tick() {
  const int64_t due = coordinator_.NextDeadline();
  if (due == kNoDeadline) return;
  const int64_t when = std::max({due - (clock() - world().now()), world().now(), stalled_until() + kMillisecond});
  if (tick_at_ <= when && tick_at_ > world().now()) return;
  tick_at_ = when;
  At(when, [this, when] {
    if (tick_at_ != when) return;
    tick_at_ = kNoDeadline;
    if (world().now() < stalled_until() + kMillisecond || clock() < coordinator_.NextDeadline()) return Tick();
    Step([&](int64_t now, CoordinatorActions* actions) { coordinator_.OnTick(now, actions); });
  });
}

}  // namespace headrace::simulation
