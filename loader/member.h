#ifndef HEADRACE_LOADER_MEMBER_H_
#define HEADRACE_LOADER_MEMBER_H_

// What the publisher and the receiver share: a session machine, its control stream (another one after a coordinator was
// lost), and the thread that steps it, so that heartbeats flow while the owner trains, plans, copies or serves.

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "loader/control/control_client.h"
#include "loader/session/member_session.h"
#include "loader/session/types.h"

namespace headrace {

// Where a member's job is and how it proves that it belongs there.
struct JobOptions {
  std::string job;
  std::string token;
  std::string coordinator;  // "host:port"
  // How the coordinator is reached beyond loopback: see ControlClientOptions.
  std::optional<ClientTls> tls;
  bool trust_network = false;
  std::string incarnation;  // empty: whichever the coordinator has
  std::string host;         // this machine's name, for messages
  absl::Duration connect_timeout = absl::Seconds(60);
  SessionTimeouts timeouts;
};

class Member {
 public:
  virtual ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  // OK until the session is over; then why.
  absl::Status status() const;
  std::string WaitingFor() const;

  static absl::StatusOr<std::unique_ptr<ControlClient>> Connect(const JobOptions& job, absl::Time deadline);
  static MemberOptions SessionOptions(const JobOptions& job, MemberKey self, proto::Layout layout, int workers = 0);

 protected:
  using OnEffect = std::function<void(const MemberEffect&)>;
  using OnPlan = std::function<void(const PlanEffect&)>;

  // `on_effect` is called under the lock by whichever thread steps the session: it records and returns. `on_plan` is
  // called by a thread of its own, without the lock, for each epoch that is not over before its turn; it answers by
  // Planned().
  Member(JobOptions job, std::unique_ptr<MemberSession> session, std::unique_ptr<ControlClient> client,
         OnEffect on_effect, OnPlan on_plan);

  // Says hello and starts the threads. Once.
  void Begin();
  // Steps the session by `f(now_ns, actions)` from any thread, then sends what it asks for.
  template <typename F>
  auto Step(F&& f) {
    std::unique_lock<std::mutex> lock(mutex_);
    MemberActions actions;
    auto result = f(Now(), &actions);
    Act(actions);
    const std::shared_ptr<ControlClient> client = client_;
    lock.unlock();
    client->events().Wake();  // the next tick may be due earlier now
    return result;
  }
  // Waits until `ready()` (asked under the lock) or the session is over or the deadline. Returns the session's status
  // or kDeadline with `what`, what the session waits for.
  template <typename Ready>
  absl::Status Wait(absl::Time deadline, const std::string& what, Ready&& ready) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!ready()) {
      if (!session_->status().ok()) return session_->status();
      if (stopping_) return Stopping();
      if (absl::Now() >= deadline) return Expired(what);
      WaitFor(lock, deadline);
    }
    return absl::OkStatus();
  }
  // From `on_effect`: work for the thread that plans, before it plans again.
  void Defer(std::function<void()> work) { deferred_.push_back(std::move(work)); }
  // Has Wait ask again: something that no effect tells has changed.
  void Notify();
  // Ends the session by our own error, which the others learn.
  void Fail(const absl::Status& status);
  // Leaves in order and sends what is queued. The derived class has released what it must.
  absl::Status Leave(absl::Time deadline);
  // Stops the threads; derived destructors call it first, since effects reach their members.
  void Stop();

  std::mutex& mutex() const { return mutex_; }
  MemberSession& session() { return *session_; }
  const MemberSession& session() const { return *session_; }

 private:
  static int64_t Now();
  void Act(const MemberActions& actions);
  void Run();
  void Plan();
  static absl::Status Stopping();
  // Connects to the coordinator again.
  void Reconnect(int64_t deadline_ns);
  absl::Status Expired(const std::string& what) const;
  void WaitFor(std::unique_lock<std::mutex>& lock, absl::Time deadline);

  const JobOptions job_;
  const std::unique_ptr<MemberSession> session_;
  const OnEffect on_effect_;
  const OnPlan on_plan_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<ControlClient> client_;         // replaced when the coordinator was lost
  std::optional<int64_t> reconnect_deadline_ns_;  // asked for
  std::optional<PlanEffect> to_plan_;
  std::deque<std::function<void()>> deferred_;
  bool stopping_ = false;
  std::thread thread_;
  std::thread planning_;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_MEMBER_H_
