#include "loader/member.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "loader/control/coordinator_service.h"
#include "loader/gpu/cuda_runtime.h"
#include "planner/status.h"

namespace headrace {

Member::Member(JobOptions job, std::unique_ptr<MemberSession> session, std::unique_ptr<ControlClient> client,
               OnEffect on_effect, OnPlan on_plan)
    : job_(std::move(job)),
      session_(std::move(session)),
      on_effect_(std::move(on_effect)),
      on_plan_(std::move(on_plan)),
      client_(std::move(client)) {}

Member::~Member() { Stop(); }

absl::StatusOr<std::unique_ptr<ControlClient>> Member::Connect(const JobOptions& job, absl::Time deadline) {
  ControlClientOptions options;
  options.address = job.coordinator;
  options.token = job.token;
  options.tls = job.tls;
  options.trust_network = job.trust_network;
  return ControlClient::Connect(options, deadline);
}

MemberOptions Member::SessionOptions(const JobOptions& job, MemberKey self, proto::Layout layout, int workers) {
  MemberOptions options;
  options.job = job.job;
  options.incarnation = job.incarnation;
  options.self = self;
  options.host = job.host;
  options.pid = getpid();
  options.layout = std::move(layout);
  options.workers = workers;
  options.timeouts = job.timeouts;
  options.coordinator_address = job.coordinator;
  return options;
}

int64_t Member::Now() { return SteadyNowNs(); }

void Member::Begin() {
  Step([&](int64_t now, MemberActions* actions) {
    session_->OnConnected(now, actions);
    return 0;
  });
  thread_ = std::thread([this] {
    CurrentDevice::OfOurThread();
    Run();
  });
  planning_ = std::thread([this] {
    CurrentDevice::OfOurThread();
    Plan();
  });
}

void Member::Act(const MemberActions& actions) {
  // A stream that is over reports itself by its last event.
  for (const proto::Envelope& message : actions.messages) (void)client_->Send(message);
  for (const MemberEffect& effect : actions.effects) {
    if (const auto* reconnect = std::get_if<ReconnectEffect>(&effect)) {
      reconnect_deadline_ns_ = reconnect->deadline_ns;
      continue;
    }
    if (const auto* plan = std::get_if<PlanEffect>(&effect)) to_plan_ = *plan;
    on_effect_(effect);
  }
  changed_.notify_all();
}

void Member::Run() {
  while (true) {
    int64_t due;
    std::optional<int64_t> reconnect_deadline_ns;
    std::shared_ptr<ControlClient> client;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return;
      due = session_->NextDeadline();
      client = client_;
      std::swap(reconnect_deadline_ns, reconnect_deadline_ns_);
    }
    if (reconnect_deadline_ns) {
      client.reset();
      Reconnect(*reconnect_deadline_ns);
      continue;
    }
    const absl::Time deadline = due == kNoDeadline ? absl::InfiniteFuture()
                                                   : absl::Now() + absl::Nanoseconds(std::max<int64_t>(due - Now(), 0));
    std::optional<ControlEvent> event = client->events().Pop(deadline);
    std::lock_guard<std::mutex> lock(mutex_);
    MemberActions actions;
    if (event && event->kind == ControlEvent::Kind::kMessage) {
      session_->OnMessage(event->message, Now(), &actions);
    } else if (event && event->kind == ControlEvent::Kind::kDisconnected) {
      session_->OnDisconnected(event->status, Now(), &actions);
    }
    // Messages that have arrived come before a tick: a slow thread must not take silence for death.
    if (!event) session_->OnTick(Now(), &actions);
    Act(actions);
  }
}

void Member::Plan() {
  while (true) {
    std::function<void()> work;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || to_plan_.has_value() || !deferred_.empty(); });
      if (stopping_) return;
      if (!deferred_.empty()) {
        work = std::move(deferred_.front());
        deferred_.pop_front();
      } else {
        work = [this, effect = *std::move(to_plan_)] { on_plan_(effect); };
        to_plan_.reset();
      }
    }
    work();
  }
}

absl::Status Member::Stopping() { return Error(ErrorCode::kAborted, "this member is being destroyed"); }

void Member::Reconnect(int64_t deadline_ns) {
  // In steps, so that Stop() is not kept waiting and the session's other deadlines are kept.
  constexpr absl::Duration kStep = absl::Milliseconds(250);
  const absl::Time step_end =
      absl::Now() + std::min(kStep, absl::Nanoseconds(std::max<int64_t>(deadline_ns - Now(), 0)));
  absl::StatusOr<std::unique_ptr<ControlClient>> client = Connect(job_, step_end);
  std::lock_guard<std::mutex> lock(mutex_);
  MemberActions actions;
  if (client.ok()) {
    client_ = *std::move(client);
    session_->OnConnected(Now(), &actions);
  } else if (HasCode(client.status(), ErrorCode::kPeerLost)) {
    reconnect_deadline_ns_ = deadline_ns;  // once more
    session_->OnTick(Now(), &actions);
  } else {
    session_->Fail(client.status(), Now(), &actions);
  }
  // Over: by its deadline, or by another thread.
  if (!session_->status().ok()) reconnect_deadline_ns_.reset();
  Act(actions);
}

void Member::Stop() {
  std::shared_ptr<ControlClient> client;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    client = client_;
    changed_.notify_all();
  }
  client->events().Wake();
  if (thread_.joinable()) thread_.join();
  if (planning_.joinable()) planning_.join();
}

absl::Status Member::status() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return session_->status();
}

std::string Member::WaitingFor() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return session_->WaitingFor();
}

absl::Status Member::Expired(const std::string& what) const {
  const std::string waiting = session_->WaitingFor();
  return Error(ErrorCode::kDeadline,
               absl::StrCat(what, " did not happen in time", waiting.empty() ? "" : "; ", waiting));
}

void Member::WaitFor(std::unique_lock<std::mutex>& lock, absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) {
    changed_.wait(lock);
  } else {
    changed_.wait_for(lock, absl::ToChronoNanoseconds(std::min(deadline - absl::Now(), absl::Hours(1))));
  }
}

void Member::Notify() {
  // Under the lock, or a waiter that has just asked would miss it.
  std::lock_guard<std::mutex> lock(mutex_);
  changed_.notify_all();
}

void Member::Fail(const absl::Status& status) {
  Step([&](int64_t now, MemberActions* actions) {
    session_->Fail(status, now, actions);
    return 0;
  });
}

absl::Status Member::Leave(absl::Time deadline) {
  absl::Status left = Step([&](int64_t now, MemberActions* actions) { return session_->Leave(now, actions); });
  std::shared_ptr<ControlClient> client;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    client = client_;
  }
  client->Finish(deadline);
  return left;
}

}  // namespace headrace
