#include "tests/simulation/channel.h"

#include <algorithm>
#include <iostream>
#include <utility>

#include "loader/session/types.h"

namespace headrace::simulation {
namespace {

constexpr int64_t kMinDelay = 20'000;

Channel::Side Other(Channel::Side side) { return side == Channel::kMember ? Channel::kCoordinator : Channel::kMember; }

}  // namespace

void Channel::Attach(Side side, Process* process, std::function<void(const proto::Envelope&)> on_message,
                     std::function<void(const absl::Status&)> on_closed) {
  ends_[side] = {process, std::move(on_message), std::move(on_closed)};
}

void Channel::Put(Side to, Item item) {
  // Mostly near, sometimes far.
  const int64_t most = world_.Happens(0.05) ? max_delay_ns_ : std::max<int64_t>(max_delay_ns_ / 10, kMinDelay);
  item.when = std::max(last_[to], world_.now() + world_.Draw(kMinDelay, std::max(kMinDelay, most)));
  last_[to] = item.when;
  to_[to].push_back(std::move(item));
  Pump(to);
}

void Channel::Send(Side from, proto::Envelope message) {
  if (!open_[from]) return;
  Item item;
  item.message = std::move(message);
  Put(Other(from), std::move(item));
}

void Channel::Close(Side side, bool silently) {
  if (!open_[side]) return;
  open_[side] = false;
  ends_[side] = {};
  to_[side].clear();
  if (!silently) Put(Other(side), Item());
}

void Channel::Break() {
  for (const Side side : {kMember, kCoordinator}) {
    if (!open_[side]) continue;
    std::deque<Item>& queue = to_[side];
    queue.resize(queue.empty() ? 0 : static_cast<size_t>(world_.Draw(0, static_cast<int64_t>(queue.size()))));
    blocked_[Other(side)] = false;
    Put(side, Item());
  }
}

void Channel::Unblock() {
  for (const Side side : {kMember, kCoordinator}) {
    blocked_[side] = false;
    Pump(Other(side));
  }
}

void Channel::Pump(Side to) {
  if (pumping_[to] || to_[to].empty() || blocked_[Other(to)]) return;
  pumping_[to] = true;
  world_.At(to_[to].front().when, [self = shared_from_this(), to] {
    self->pumping_[to] = false;
    self->Deliver(to);
  });
}

void Channel::Deliver(Side to) {
  if (to_[to].empty() || blocked_[Other(to)]) return;
  Process* process = ends_[to].process;
  if (!open_[to] || process == nullptr) return to_[to].clear();
  if (world_.now() < process->stalled_until()) {
    to_[to].front().when = process->stalled_until();
    return Pump(to);
  }
  Item item = std::move(to_[to].front());
  to_[to].pop_front();
  Pump(to);
  if (trace_) Trace(to, item.message.has_value() ? &*item.message : nullptr);
  // The handlers may close this end, which must not take them away under their feet.
  if (item.message.has_value()) {
    world_.Mark(process->name(), static_cast<uint64_t>(item.message->body_case()));
    const auto on_message = ends_[to].on_message;
    on_message(*item.message);
    world_.Heard(process, item.message->body_case());
  } else {
    const auto on_closed = ends_[to].on_closed;
    Close(to, /*silently=*/true);
    on_closed(absl::UnavailableError("the stream broke"));
  }
}

void Channel::Trace(Side to, const proto::Envelope* message) const {
  if (message != nullptr && message->has_heartbeat()) return;
  std::cout << world_.now() / 1'000'000 << " ms: " << ends_[to].process->name();
  if (message == nullptr) {
    std::cout << " loses its stream\n";
    return;
  }
  proto::Envelope shown = *message;
  shown.clear_layout();
  shown.clear_epoch_start();
  if (shown.has_planned()) shown.mutable_planned()->clear_edges();
  if (shown.has_planned()) shown.mutable_planned()->clear_region_keys();
  shown.clear_job();
  shown.clear_to();
  std::cout << " <- " << BodyName(*message) << " " << shown.ShortDebugString() << "\n";
}

}  // namespace headrace::simulation
