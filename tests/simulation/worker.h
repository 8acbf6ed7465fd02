#ifndef HEADRACE_TESTS_SIMULATION_WORKER_H_
#define HEADRACE_TESTS_SIMULATION_WORKER_H_

// Test only. An engine's worker with one session: loader/receiver.cc in virtual time, and what its host does with it:
// waits for a generation, stages it, has the engine paused, commits, and lets it go on.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "loader/executor.h"
#include "loader/session/receiver_session.h"
#include "loader/shadow.h"
#include "tests/simulation/member_process.h"

namespace headrace::simulation {

class Worker final : public MemberProcess {
 public:
  Worker(WorkerSeat* seat, std::unique_ptr<Transport> transport);
  ~Worker() override;

  void AskToLeave() { leaving_ = true; }
  ReceiverState Carry() const { return static_cast<const ReceiverSession&>(session()).Carry(); }

 private:
  // What one epoch adds to the worker's buffers, which outlive it.
  struct Epoch {
    uint64_t number = 0;
    std::shared_ptr<const EpochPlan> plan;
    proto::EpochStart start;
    std::optional<CommitBoxes> commit_boxes;
    std::map<int, std::byte*> live, shadow;
    std::vector<int> publisher_of_edge;
    std::unique_ptr<Executor> executor;
  };
  // One try to bring a generation in.
  struct Attempt {
    std::shared_ptr<Epoch> epoch;
    std::map<int, std::vector<std::string>> region_keys;
    AnnouncedEffect announced;
  };

  ReceiverSession& receiver() { return static_cast<ReceiverSession&>(session()); }
  WorkerSeat& worker_seat() { return static_cast<WorkerSeat&>(seat()); }
  Driver& driver();
  MemberKey self() const { return seat_.key; }
  bool deaf() const override;

  void Record(const MemberEffect& effect) override;
  Task Plan(PlanEffect effect) override;
  Task Run() override;
  void CheckBounds() override;

  Task TakeOne();
  Task Pause();
  Task Stage(uint64_t generation);
  Task Commit(uint64_t generation);
  Task BeginStage(uint64_t generation, bool touches_live, int64_t deadline);
  Task NextAttempt(uint64_t generation, int64_t deadline, Attempt* attempt);
  Task Transfer(uint64_t generation, int64_t deadline, Attempt* attempt);
  absl::StatusOr<std::shared_ptr<Epoch>> MakeEpoch(const PlanEffect& effect);
  absl::Status Connect(Epoch& epoch, const std::map<int, std::vector<std::string>>& region_keys);
  static std::vector<ChainMember> ChainOf(const Epoch& epoch, const Stream& stream);
  void DeclineTransfer(uint64_t generation);
  // Whether an epoch after `attempted` was told that this worker reads.
  bool IsToReadIn(const Epoch& attempted) const;
  absl::Status Interruption(uint64_t generation, int64_t deadline, const Epoch& epoch);

  const bool in_place_;
  CancelledChunks cancelled_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<ShadowMemory> shadow_;
  std::map<std::string, std::byte*> shadow_of_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<const Mapping>> mappings_;
  std::shared_ptr<Epoch> planned_, ready_;
  std::map<int, std::vector<std::string>> region_keys_;
  std::deque<AnnouncedEffect> announced_;
  std::optional<AnnouncedEffect> staging_;
  absl::Status given_up_, wait_ended_, start_refused_;
  std::optional<uint64_t> commit_;
  std::map<uint64_t, absl::Status> discarded_;
  uint64_t engine_committed_ = 0;
  int64_t peak_staging_bytes_ = 0;
  bool leaving_ = false;
};

}  // namespace headrace::simulation

#endif  // HEADRACE_TESTS_SIMULATION_WORKER_H_
