#include "tests/simulation/member_process.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace headrace::simulation {
namespace {

constexpr int64_t kConnectTimeout = 60 * kSecond;
constexpr int64_t kDialEvery = 250 * kMillisecond;

}  // namespace

MemberOptions SessionOptions(const Job& job, const Seat& seat, proto::Layout layout, int workers) {
  MemberOptions options;
  options.job = "job";
  options.self = seat.key;
  options.workers = workers;
  options.host = "here";
  options.pid = seat.pid;
  options.layout = std::move(layout);
  options.timeouts = job.options.timeouts;
  options.coordinator_address = "coordinator";
  return options;
}

MemberProcess::MemberProcess(Job* job, Seat* seat, std::unique_ptr<MemberSession> session)
    : Process(&job->world, NameOf(seat->key)), job_(*job), seat_(*seat), session_(std::move(session)) {}

MemberProcess::~MemberProcess() {
  if (channel_ != nullptr) channel_->Close(Channel::kMember);
}

void MemberProcess::Begin() {
  ++job_.counters.sessions;
  dial_until_ = clock() + kConnectTimeout;
  Spawn(Connect());
  Spawn(PlanInTurn());
  Spawn(Run());
}

void MemberProcess::Hang(bool silently) {
  if (channel_ != nullptr) channel_->Close(Channel::kMember, silently);
}

Task MemberProcess::Connect() {
  while (true) {
    co_await Wait("a stream to be needed", [this] { return dial_until_.has_value() && !over(); });
    std::shared_ptr<Channel> channel = job_.Dial(this);
    if (channel == nullptr) {
      co_await Sleep(kDialEvery);
      if (!dial_until_ || over()) continue;
      // Before the first stream there is no session that could be late.
      if (session_->phase() != MemberSession::Phase::kNew) {
        Step([&](int64_t now, MemberActions* actions) {
          session_->OnTick(now, actions);
          return 0;
        });
      } else if (clock() >= *dial_until_) {
        dial_until_ = clock() + kConnectTimeout;
      }
      continue;
    }
    dial_until_.reset();
    if (channel_ != nullptr) channel_->Close(Channel::kMember);
    channel_ = channel;
    channel_->Attach(
        Channel::kMember, this,
        [this](const proto::Envelope& message) {
          Step([&](int64_t now, MemberActions* actions) {
            session_->OnMessage(message, now, actions);
            return 0;
          });
        },
        [this](const absl::Status& reason) {
          if (deaf()) return;
          Step([&](int64_t now, MemberActions* actions) {
            session_->OnDisconnected(reason, now, actions);
            return 0;
          });
        });
    Step([&](int64_t now, MemberActions* actions) {
      session_->OnConnected(now, actions);
      return 0;
    });
  }
}

Task MemberProcess::PlanInTurn() {
  while (true) {
    co_await Wait("a plan to be made", [this] { return to_plan_.has_value(); });
    PlanEffect effect = *std::move(to_plan_);
    to_plan_.reset();
    co_await Sleep(world().Draw(100 * kMicrosecond, 20 * kMillisecond));
    absl::Status planned = co_await Plan(std::move(effect));
    (void)planned;  // another one began, whose turn is next
  }
}

void MemberProcess::Act(MemberActions* actions) {
  for (proto::Envelope& message : actions->messages) {
    if (job_.options.bug == PlantedBug::kNeverRelease && message.has_release()) continue;
    if (channel_ != nullptr) channel_->Send(Channel::kMember, std::move(message));
  }
  for (const MemberEffect& effect : actions->effects) {
    if (const auto* reconnect = std::get_if<ReconnectEffect>(&effect)) {
      dial_until_ = reconnect->deadline_ns;
      continue;
    }
    if (const auto* plan = std::get_if<PlanEffect>(&effect)) to_plan_ = *plan;
    Record(effect);
  }
  CheckBounds();
  Wake();
  if (over() && !std::exchange(reaped_, true)) job_.Reap(&seat_);
  Tick();
}

void MemberProcess::Tick() {
  if (over() || deaf()) return;
  const int64_t due = session_->NextDeadline();
  if (due == kNoDeadline) return;
  // One that stood still takes the messages that have come before it looks at the time.
  const int64_t when = std::max({due - (clock() - world().now()), world().now(), stalled_until() + kMillisecond});
  if (tick_at_ <= when && tick_at_ > world().now()) return;
  tick_at_ = when;
  At(when, [this, when] {
    if (tick_at_ != when) return;
    tick_at_ = kNoDeadline;
    if (world().now() < stalled_until() + kMillisecond || clock() < session_->NextDeadline()) return Tick();
    Step([&](int64_t now, MemberActions* actions) {
      session_->OnTick(now, actions);
      return 0;
    });
  });
}

}  // namespace headrace::simulation
