#include "loader/member.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "loader/control/coordinator_service.h"
#include "planner/status.h"

namespace headrace {

Member::Member(std::unique_ptr<MemberSession> session, std::unique_ptr<ControlClient> client, OnEffect on_effect)
    : session_(std::move(session)), client_(std::move(client)), on_effect_(std::move(on_effect)) {}

Member::~Member() { Stop(); }

absl::StatusOr<std::unique_ptr<ControlClient>> Member::ConnectTo(const JobOptions& job) {
  ControlClientOptions options;
  options.address = job.coordinator;
  options.token = job.token;
  return ControlClient::Connect(options, absl::Now() + job.connect_timeout);
}

MemberOptions Member::SessionOptions(const JobOptions& job, MemberKey self, proto::Layout layout) {
  MemberOptions options;
  options.job = job.job;
  options.incarnation = job.incarnation;
  options.self = self;
  options.host = job.host;
  options.pid = getpid();
  options.layout = std::move(layout);
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
  thread_ = std::thread([this] { Run(); });
}

void Member::Act(const MemberActions& actions) {
  // A stream that is over reports itself by its last event.
  for (const proto::Envelope& message : actions.messages) (void)client_->Send(message);
  for (const MemberEffect& effect : actions.effects) on_effect_(effect);
  changed_.notify_all();
}

void Member::Run() {
  while (true) {
    int64_t due;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return;
      due = session_->NextDeadline();
    }
    const absl::Time deadline = due == kNoDeadline ? absl::InfiniteFuture()
                                                   : absl::Now() + absl::Nanoseconds(std::max<int64_t>(due - Now(), 0));
    std::optional<ControlEvent> event = client_->events().Pop(deadline);
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

void Member::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  client_->events().Wake();
  if (thread_.joinable()) thread_.join();
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
  client_->Finish(deadline);
  return left;
}

}  // namespace headrace
