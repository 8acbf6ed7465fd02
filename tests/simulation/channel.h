#ifndef HEADRACE_TESTS_SIMULATION_CHANNEL_H_
#define HEADRACE_TESTS_SIMULATION_CHANNEL_H_

// Test only. One control stream between a member and a coordinator, as TCP makes one: each direction delivers in order
// and late; it breaks, which loses what is on its way; and either direction may carry nothing for a while or for ever,
// which nobody is told.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "loader/session/message.pb.h"
#include "tests/simulation/world.h"

namespace headrace::simulation {

class Channel : public std::enable_shared_from_this<Channel> {
 public:
  enum Side { kMember = 0, kCoordinator = 1 };

  Channel(World* world, int64_t max_delay_ns, bool trace)
      : world_(*world), max_delay_ns_(max_delay_ns), trace_(trace) {}

  // What a side hears, in its process's time.
  void Attach(Side side, Process* process, std::function<void(const proto::Envelope&)> on_message,
              std::function<void(const absl::Status&)> on_closed);
  // The side's process died, or is done with it: it hears nothing more. The other side hears of it unless `silently`.
  void Close(Side side, bool silently = false);
  void Send(Side from, proto::Envelope message);

  // Both sides hear it; what is on its way is lost, but for some of it.
  void Break();
  // What `from` sends waits from now on, and goes on at Unblock.
  void Block(Side from) { blocked_[from] = true; }
  void Unblock();

  bool open() const { return open_[kMember] && open_[kCoordinator]; }
  size_t queued() const { return to_[0].size() + to_[1].size(); }

 private:
  struct Item {
    int64_t when = 0;
    std::optional<proto::Envelope> message;  // none: closed
  };
  struct End {
    Process* process = nullptr;
    std::function<void(const proto::Envelope&)> on_message;
    std::function<void(const absl::Status&)> on_closed;
  };

  void Put(Side to, Item item);
  void Pump(Side to);
  void Deliver(Side to);
  void Trace(Side to, const proto::Envelope* message) const;

  World& world_;
  const int64_t max_delay_ns_;
  const bool trace_;
  End ends_[2];
  bool open_[2] = {true, true};       // the side sends and listens
  bool blocked_[2] = {false, false};  // by sender
  std::deque<Item> to_[2];
  bool pumping_[2] = {false, false};
  int64_t last_[2] = {0, 0};
};

}  // namespace headrace::simulation

#endif  // HEADRACE_TESTS_SIMULATION_CHANNEL_H_
