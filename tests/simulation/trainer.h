#ifndef HEADRACE_TESTS_SIMULATION_TRAINER_H_
#define HEADRACE_TESTS_SIMULATION_TRAINER_H_

// Test only. A trainer rank with one session: loader/publisher.cc in virtual time, and the training around it.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "loader/outlet.h"
#include "loader/session/publisher_session.h"
#include "tests/simulation/member_process.h"

namespace headrace::simulation {

class Trainer final : public MemberProcess {
 public:
  Trainer(TrainerSeat* seat, std::unique_ptr<Transport> transport);
  ~Trainer() override;

  // Leaves in order when it can.
  void AskToLeave() { leaving_ = true; }
  // Joined; the newest generation that it published, or failed to.
  bool trains() const { return ready_ != nullptr && !leaving_ && !over(); }
  uint64_t attempted() const { return attempted_; }
  // A buggy trainer: damages a slot that somebody may read. False: none holds anything.
  bool WriteEarly();
  // One byte that others hold too is another one in what it publishes next.
  void DivergeNext() { diverges_ = true; }

 private:
  struct Drop {
    std::optional<int> engine = std::nullopt;
    std::optional<int> worker = std::nullopt;
  };
  using Order = std::variant<Outlet::Order, Drop>;

  PublisherSession& publisher() { return static_cast<PublisherSession&>(session()); }
  TrainerSeat& trainer_seat() { return static_cast<TrainerSeat&>(seat()); }
  MemberKey self() const { return seat_.key; }

  void Record(const MemberEffect& effect) override;
  Task Plan(PlanEffect effect) override;
  Task Run() override;
  void CheckBounds() override;
  Task Publish(uint64_t generation, int64_t deadline);
  Task AwaitRelease(uint64_t generation, int64_t deadline);
  Task AwaitSender(uint64_t generation, int slot, int64_t deadline);
  Task SendOrders();
  absl::StatusOr<std::shared_ptr<PublisherEpoch>> MakeEpoch(const PlanEffect& effect);
  void Diverge();

  const bool two_sided_;
  const bool hold_;
  std::vector<std::unique_ptr<Region>> slots_;
  std::unique_ptr<Outlet> outlet_;
  std::unique_ptr<Transport> transport_;  // destroyed before the outlet's messages
  std::shared_ptr<PublisherEpoch> planned_, ready_, writing_;
  std::optional<int> write_slot_;
  absl::Status publish_failed_;
  std::deque<Order> orders_;
  bool slot_is_read_[kSnapshotSlots] = {};
  std::set<int> engines_;
  std::map<uint64_t, std::set<int64_t>> absent_;  // by generation
  std::map<int, uint64_t> aborted_;               // by engine: the newest generation that it gave up
  uint64_t attempted_ = 0;
  bool leaving_ = false, diverges_ = false;
  std::vector<std::weak_ptr<PublisherEpoch>> epochs_;
  std::vector<std::shared_ptr<PublisherEpoch>> kept_;  // by a planted bug
};

}  // namespace headrace::simulation

#endif  // HEADRACE_TESTS_SIMULATION_TRAINER_H_
