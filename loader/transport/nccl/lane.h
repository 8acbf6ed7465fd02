#ifndef HEADRACE_LOADER_TRANSPORT_NCCL_LANE_H_
#define HEADRACE_LOADER_TRANSPORT_NCCL_LANE_H_

// A communicator of two ranks that carries messages one way, with the stream that it works with.
//
// Messages go in groups (ncclGroupStart ... ncclGroupEnd), the same at both ends. NCCL moves device memory: messages
// that lie on the host go through a staging buffer for each group, so that one group is filled or emptied while the
// other travels.
//
// Why a communicator for each pair and direction:
//   - Groups of one communicator run one after the other, in each rank's own order. Where a rank shares one with many
//     peers, all ranks must agree on one order of everything, or they wait for each other in a circle; here both ends
//     take the receiver's.
//   - NCCL cuts what is too much for one launch into several, for each rank by itself. Ranks whose groups differ then
//     wait for parts of each other's (NVIDIA/Megatron-LM#7189). Here the groups are the same and below kMaxOperations.
//   - A peer that dies takes its own communicators with it, and nobody else's: there is nothing to shrink or to grow.
//
// How long ending a lane may take: ncclCommAbort returns when all of the communicator is freed, also where that is
// non-blocking (NCCL 2.18 to 2.30, src/init.cc: ncclCommAbort, commReclaim, commDestroySync, commFree). It waits
//   1. for the thread that makes the communicator or launches a group, for the communicator's own kernels, and for its
//      proxy thread. All look at the abort flag, which it sets first; none needs the peer;
//   2. where it frees memory of the device (cudaFree, unless NCCL uses cuMem*), for all that runs on the GPU: lanes
//      with other peers, the other lane with the same one, and kernels of the application.
// What bounds the second, while the thread that waits advances no lane: a send that runs ends as long as its peer's GPU
// works. A receive that runs ends when its peer launches the send, which needs nothing more of this end, unless that
// peer waits in the same way for a receive whose send is this thread's to launch. Kernels of lanes with a dead peer
// end only when they are aborted themselves, one after the other. So there is no bound where both lanes with a dead
// peer run, or several with dead peers, or two live ones lose a third at once, and cudaFree waits. NCCL 2.22 and later
// set the flags of all communicators that are aborted in one ncclGroupStart ... ncclGroupEnd before any is freed.
// NCCL asks all ranks that live to abort: Link tells the peer before.
//
// Used by one thread at a time, whose current device is the lane's.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "loader/gpu/cuda_runtime.h"
#include "loader/transport/descriptor.h"
#include "loader/transport/nccl/library.h"
#include "loader/transport/nccl/staging.h"
#include "loader/transport/transport.h"

namespace headrace::nccl {

struct Message {
  OpId op = 0;
  std::byte* memory = nullptr;
  size_t bytes = 0;
  bool on_device = false;
  uint64_t tag = 0;  // of a receive
};
using Group = std::vector<Message>;

// What the lanes of an endpoint share.
struct Gpu {
  const CudaRuntime* cuda = nullptr;
  const Library* nccl = nullptr;
  int device = 0;
  // Becomes readable when a group may have ended.
  std::shared_ptr<Descriptor> ended;
  // By Lane::Side: receives, which wait for the peers' sends, hold nothing that sends here need.
  std::array<std::shared_ptr<StagingPool>, 2> staging;
  // Of copies of small messages, which wait for no work of the process's own, as those of its default stream would.
  cuda::Stream copies = nullptr;
};

class Lane {
 public:
  // Below what one launch of any version holds.
  static constexpr size_t kMaxOperations = 512;
  // Of all messages of a group; so none is larger.
  static constexpr size_t kMaxGroupBytes = 4 << 20;
  // Of a group's staging buffer, in which messages are aligned.
  static constexpr size_t kAlignment = 16;  // NCCL and copies are fastest so
  static constexpr size_t kStagingBytes = kMaxGroupBytes + kMaxOperations * kAlignment;
  // Staging buffers that the lanes of one side share: enough for one to be filled, one to be copied and two to travel.
  static constexpr size_t kStagingBuffers = 4;
  // Thread blocks of a communicator.
  static constexpr int kCtas = 2;

  enum class Side { kSend = 0, kReceive = 1 };  // the rank

  // Begins to join the communicator `id`, as it must at the other end. The endpoint's first takes its staging memory.
  static absl::StatusOr<std::unique_ptr<Lane>> Open(const Gpu& gpu, Side side, const UniqueId& id);
  // Ends what runs, at this end alone (ncclCommAbort): the memory of all messages is free then.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Whether Launch may be called: the communicator stands, no launch is in progress, fewer than two groups run, and a
  // staging buffer is free.
  bool ready() const { return state_ == State::kReady && running_.size() < 2 && staging().has_free(); }
  // Groups that were launched and not taken.
  size_t running() const { return running_.size(); }
  // Whether something goes on that only Advance finds out about.
  bool in_progress() const { return state_ != State::kReady; }

  // Launches the sends or receives of a group of 1 to kMaxOperations messages, of kMaxGroupBytes together. Those that
  // are sent are read from now on; all memory stays valid until the group was taken. Errors: those of Library::Check
  // and CudaRuntime::Check; the lane is of no use then, and the group is among those that Break gives.
  absl::Status Launch(Group group);

  // Asks the communicator, and the GPU where groups run, how they are: kPeerLost, kTransport.
  absl::Status Advance();

  // The oldest group, when it has ended; what was received is where it belongs. Empty: none has.
  Group Take();
  // All groups that did not end, after the communicator was ended.
  std::vector<Group> Break();

 private:
  enum class State { kJoining, kReady, kLaunching, kBroken };
  struct Running {
    Group group;
    size_t staged_bytes = 0;
    StagingPool::Buffer staging;  // where staged_bytes > 0, once it was taken
  };

  Lane(const Gpu& gpu, Side side) : gpu_(gpu), side_(side) {}
  absl::Status Join(const UniqueId& id);
  absl::Status Post(const Group& group, std::byte* staged);
  absl::Status AwaitEnd();
  StagingPool& staging() const { return *gpu_.staging[static_cast<size_t>(side_)]; }
  void Return(const Running& running);

  const Gpu gpu_;
  const Side side_;
  State state_ = State::kJoining;
  Comm comm_ = nullptr;
  cuda::Stream stream_ = nullptr;
  std::deque<Running> running_;
  uint64_t taken_ = 0;  // groups
  std::shared_ptr<std::atomic<uint64_t>> ended_ = std::make_shared<std::atomic<uint64_t>>(0);
};

}  // namespace headrace::nccl

#endif  // HEADRACE_LOADER_TRANSPORT_NCCL_LANE_H_
