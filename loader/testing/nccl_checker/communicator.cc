#include "loader/testing/nccl_checker/communicator.h"

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>

#include "loader/testing/nccl_checker/faults.h"
#include "loader/testing/nccl_checker/options.h"
#include "loader/testing/nccl_checker/rendezvous.h"
#include "loader/testing/nccl_checker/rules.h"
#include "loader/testing/nccl_checker/socket.h"
#include "loader/testing/nccl_checker/text.h"

namespace headrace::nccl_checker {

Communicator::~Communicator() {
  if (init_thread_.joinable()) init_thread_.join();
}

std::string Communicator::Name() const {
  return Text("rank ", rank, " of ", ranks, ", communicator ", number, " of process ", getpid());
}

void Communicator::BeginInit(const std::string& rendezvous) {
  init_thread_ = std::thread([this, rendezvous] {
    Init(rendezvous);
    std::lock_guard lock(mutex_);
    init_ended_ = true;
    changed_.notify_all();
  });
}

void Communicator::Init(const std::string& rendezvous) {
  const Options& o = options();
  if (o.delay_fault) Sleep(Draw(Choice::kInitDelay, rank, number) % 31);
  const uint64_t joiner = number;
  // Also where it gives up: the rendezvous ends when those who came have gone.
  const int socket = SayHello(rendezvous, {rank, ranks, device, joiner, o.ring_bytes, o.multi_rank_gpu});
  if (socket < 0) {
    SetError(nccl::kSystemError, Name() + ": nobody is at the id's address: its maker ended, or the id was used");
    return;
  }
  bool waiting = true;
  if (o.init_fault && Draw(Choice::kInitFails, rank, number) % 4 == 0) {
    SetError(nccl::kSystemError, Name() + ": the init fails by seed");
    waiting = false;
  }
  {
    std::lock_guard lock(mutex_);
    if (*aborted) waiting = false;
    init_socket_ = socket;
  }
  const bool silent = o.peer_loss == PeerLoss::kSilent ||
                      (o.peer_loss == PeerLoss::kBySeed && Draw(Choice::kPeerLoss, rank, number) % 2 == 0);
  Welcome welcome;
  std::vector<int> descriptors;
  while (waiting) {
    if (!AwaitWelcome(socket, &welcome, &descriptors)) {
      if (!*aborted) SetError(nccl::kSystemError, Name() + ": the id's maker ended");
      waiting = false;
    } else if (welcome.kind == Welcome::kRefused) {
      const Rule rule = static_cast<Rule>(welcome.rule);
      const std::string text =
          Text("ncclCommInitRankConfig by ", Name(), ", device ", device, "; see rank ", welcome.rank);
      SetError(Violation(rule, text), text);
      waiting = false;
    } else if (welcome.kind == Welcome::kRankLost) {
      if (!silent) SetError(nccl::kRemoteError, Name() + ": a rank went away before all were there");
      waiting = silent;
    } else {
      waiting = false;
      complete_->store(true);
      auto segment = std::make_unique<Segment>(descriptors[0], ranks, welcome.ring_bytes);
      std::lock_guard lock(mutex_);
      own_life_ = descriptors[1];
      lives_.assign(descriptors.begin() + 2, descriptors.end());
      lives_.insert(lives_.begin() + rank, -1);
      lost_.assign(ranks, false);
      if (segment->ok()) {
        segment_ = std::move(segment);
      } else {
        SetErrorLocked(nccl::kSystemError, Name() + ": shared memory could not be mapped");
      }
    }
  }
  {
    std::lock_guard lock(mutex_);
    init_socket_ = -1;
  }
  close(socket);
  AwaitLeft(rendezvous, joiner);
}

nccl::Result Communicator::AwaitInit() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return init_ended_; });
  }
  return AsyncError();
}

void Communicator::Sleep(int milliseconds) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::milliseconds(milliseconds), [&] { return aborted->load(); });
}

void Communicator::SetErrorLocked(nccl::Result error, const std::string& text) {
  if (error_ != nccl::kSuccess) return;
  error_ = error;
  error_text_ = text;
}

void Communicator::SetError(nccl::Result error, const std::string& text) {
  std::lock_guard lock(mutex_);
  SetErrorLocked(error, text);
}

std::string Communicator::error_text() {
  std::lock_guard lock(mutex_);
  return error_text_;
}

void Communicator::LookForLost() {
  if (segment_ == nullptr) return;
  const Options& o = options();
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer == rank || lost_[peer] || !HungUp(lives_[peer]) || segment_->rank(peer).phase == kQuiescent) continue;
    lost_[peer] = true;
    const bool silent = o.peer_loss == PeerLoss::kSilent ||
                        (o.peer_loss == PeerLoss::kBySeed && Draw(Choice::kPeerLoss, rank, number) % 2 == 0);
    if (!silent) SetErrorLocked(nccl::kRemoteError, Text(Name(), ": rank ", peer, " died or aborted"));
  }
}

bool Communicator::Lost(int peer) {
  std::lock_guard lock(mutex_);
  LookForLost();
  return lost_[peer];
}

void Communicator::EndLaunchLocked() {
  if (launch_ != nullptr) launch_->Join();
  launch_ = nullptr;
  for (const StreamRef& stream : launch_streams_) --stream->launches;
  launch_streams_.clear();
}

nccl::Result Communicator::AsyncError() {
  std::lock_guard lock(mutex_);
  LookForLost();
  if (phase_ == Phase::kInit && init_ended_) {
    if (init_thread_.joinable()) init_thread_.join();
    if (error_ == nccl::kSuccess) phase_ = Phase::kReady;
  }
  if (launch_ != nullptr && launch_->done) EndLaunchLocked();
  if (error_ != nccl::kSuccess) return error_;
  if (phase_ == Phase::kInit || launch_ != nullptr) return nccl::kInProgress;
  if (phase_ == Phase::kFinalizing) {
    for (int peer = 0; peer < ranks; ++peer) {
      if (segment_->rank(peer).phase != kQuiescent) return nccl::kInProgress;
    }
    phase_ = Phase::kFinalized;
  }
  return nccl::kSuccess;
}

nccl::Result Communicator::CheckReady(const char* call) {
  std::lock_guard lock(mutex_);
  if (error_ != nccl::kSuccess) return error_;
  if (phase_ == Phase::kInit || launch_ != nullptr) {
    return Violation(Rule::kCommBeforeReady, Text(call, " by ", Name(), " while ",
                                                  launch_ != nullptr ? "a group is being launched" : "it is being made",
                                                  ": ncclCommGetAsyncError has not said ncclSuccess since"));
  }
  if (phase_ != Phase::kReady) return Violation(Rule::kCommAfterFinalize, Text(call, " by ", Name()));
  return nccl::kSuccess;
}

uint64_t Communicator::BeginGroup(std::shared_ptr<Launch> launch, const std::vector<StreamRef>& streams) {
  std::lock_guard lock(mutex_);
  launch_ = std::move(launch);
  if (launch_ != nullptr) {
    launch_streams_ = streams;
    for (const StreamRef& stream : streams) ++stream->launches;
  }
  ++outstanding_;
  return ++groups_;
}

bool Communicator::BeginKernel() {
  std::lock_guard lock(mutex_);
  if (*aborted) return false;
  ++running_;
  segment_->rank(rank).groups_begun.fetch_add(1);
  return true;
}

void Communicator::EndKernel() {
  std::lock_guard lock(mutex_);
  segment_->rank(rank).groups_ended.fetch_add(1);
  --running_;
  changed_.notify_all();
}

void Communicator::EndGroup() {
  std::lock_guard lock(mutex_);
  --outstanding_;
  if (outstanding_ == 0 && phase_ == Phase::kFinalizing && segment_ != nullptr) {
    segment_->rank(rank).phase.store(kQuiescent);
  }
  changed_.notify_all();
}

nccl::Result Communicator::Finalize() {
  if (const nccl::Result result = CheckReady("ncclCommFinalize"); result != nccl::kSuccess) return result;
  {
    std::lock_guard lock(mutex_);
    phase_ = Phase::kFinalizing;
    if (outstanding_ == 0) segment_->rank(rank).phase.store(kQuiescent);
  }
  if (!blocking) return nccl::kInProgress;
  nccl::Result result;
  while ((result = AsyncError()) == nccl::kInProgress) Sleep(1);
  return result;
}

nccl::Result Communicator::Destroy() {
  {
    std::lock_guard lock(mutex_);
    const bool failed = error_ != nccl::kSuccess;
    if ((phase_ == Phase::kInit && !failed) || launch_ != nullptr) {
      return Violation(Rule::kCommBeforeReady, Text("ncclCommDestroy by ", Name()));
    }
    if (outstanding_ > 0) {
      return Violation(Rule::kDestroyBusy, Text("ncclCommDestroy by ", Name(), " with ", outstanding_, " kernels"));
    }
    if (phase_ == Phase::kFinalizing || (phase_ == Phase::kReady && !blocking && !failed)) {
      return Violation(Rule::kDestroyUnfinalized, Text("ncclCommDestroy by ", Name()));
    }
  }
  Release(kQuiescent);
  return nccl::kSuccess;
}

void Communicator::Abort() {
  std::shared_ptr<Launch> launch;
  std::thread init;
  {
    std::lock_guard lock(mutex_);
    aborted->store(true);
    changed_.notify_all();
    if (init_socket_ >= 0) shutdown(init_socket_, SHUT_RDWR);
    if (segment_ != nullptr) segment_->Ring(rank);
    launch = launch_;
    init = std::move(init_thread_);
  }
  // Both may be waiting for the lock.
  if (init.joinable()) init.join();
  if (launch != nullptr) launch->Join();
  {
    std::unique_lock lock(mutex_);
    EndLaunchLocked();
    changed_.wait(lock, [&] { return running_ == 0; });
  }
  Release(kAborted);
}

void Communicator::Release(RankPhase phase) {
  std::lock_guard lock(mutex_);
  if (segment_ != nullptr) {
    segment_->rank(rank).phase.store(phase);
    // Who waits for this rank looks at its life line when it wakes up.
    for (int peer = 0; peer < ranks; ++peer) segment_->Ring(peer);
  }
  segment_.reset();
  if (own_life_ >= 0) close(own_life_);
  own_life_ = -1;
  for (const int life : lives_) {
    if (life >= 0) close(life);
  }
  lives_.clear();
  last_stream.reset();
}

}  // namespace headrace::nccl_checker
