#include "loader/control/coordinator_service.h"

#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "planner/status.h"

namespace headrace {

int64_t SteadyNowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

namespace {

class Service final : public CoordinatorService {
 public:
  explicit Service(const CoordinatorOptions& options) : machine_(options, SteadyNowNs()) {}

  absl::Status Start(const ControlServerOptions& options) {
    HR_ASSIGN_OR_RETURN(server_, ControlServer::Start(options, &events_));
    address_ = server_->address();
    port_ = server_->port();
    thread_ = std::thread([this] { Run(); });
    return absl::OkStatus();
  }

  ~Service() override { Stop(); }

  std::string address() const override { return address_; }
  int port() const override { return port_; }

  CoordinatorStatus status() const override {
    std::lock_guard lock(mutex_);
    CoordinatorStatus status;
    status.phase = machine_.phase();
    status.epoch = machine_.epoch();
    status.status = machine_.status();
    status.waiting_for = machine_.WaitingFor();
    status.root = machine_.root();
    status.last_announced = machine_.last_announced();
    for (int engine = 0; engine < machine_.engines(); ++engine)
      status.engine_committed.push_back(machine_.engine_committed(engine));
    return status;
  }

  void Stop() override { Stop(/*tell=*/true); }
  void Kill() override { Stop(/*tell=*/false); }

 private:
  void Stop(bool tell) {
    std::lock_guard once(stop_mutex_);
    if (!thread_.joinable()) return;
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      tell_ = tell;
    }
    events_.Wake();
    thread_.join();
    server_.reset();
  }

  void Run() {
    while (true) {
      std::optional<ControlEvent> event = events_.Pop(NextWake());
      std::lock_guard lock(mutex_);
      // What has arrived is handed over before the clock speaks: a thread that was held up must not take members for
      // dead whose heartbeats lie in the queue.
      for (; event.has_value(); event = events_.Pop(absl::InfinitePast())) Handle(*event);
      CoordinatorActions actions;
      const int64_t now_ns = SteadyNowNs();
      if (stopping_ && !tell_) return;
      if (stopping_) machine_.End(Error(ErrorCode::kAborted, "the coordinator was stopped"), now_ns, &actions);
      if (now_ns >= machine_.NextDeadline()) machine_.OnTick(now_ns, &actions);
      Apply(actions);
      if (stopping_) return;
    }
  }

  absl::Time NextWake() const {
    std::lock_guard lock(mutex_);
    const int64_t next_ns = machine_.NextDeadline();
    if (stopping_) return absl::InfinitePast();
    if (next_ns == kNoDeadline) return absl::InfiniteFuture();
    return absl::Now() + absl::Nanoseconds(next_ns - SteadyNowNs());
  }

  void Handle(const ControlEvent& event) {
    CoordinatorActions actions;
    const int64_t now_ns = SteadyNowNs();
    switch (event.kind) {
      case ControlEvent::Kind::kConnected:
        machine_.OnConnected(event.connection, now_ns, &actions);
        break;
      case ControlEvent::Kind::kMessage:
        machine_.OnMessage(event.connection, event.message, now_ns, &actions);
        break;
      case ControlEvent::Kind::kDisconnected:
        machine_.OnDisconnected(event.connection, event.status, now_ns, &actions);
        break;
    }
    Apply(actions);
  }

  void Apply(const CoordinatorActions& actions) {
    for (const CoordinatorActions::Outgoing& outgoing : actions.messages)
      server_->Send(outgoing.connection, outgoing.message);
    for (ConnectionId connection : actions.close) server_->Close(connection);
  }

  EventQueue events_;
  std::unique_ptr<ControlServer> server_;
  std::string address_;
  int port_ = 0;
  std::thread thread_;
  std::mutex stop_mutex_;

  mutable std::mutex mutex_;  // the machine and stopping_
  Coordinator machine_;
  bool stopping_ = false;
  bool tell_ = true;  // the members that the coordinator stops
};

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorService>> CoordinatorService::Start(const CoordinatorOptions& coordinator,
                                                                              const ControlServerOptions& server) {
  auto service = std::make_unique<Service>(coordinator);
  HR_RETURN_IF_ERROR(service->Start(server));
  return service;
}

}  // namespace headrace
