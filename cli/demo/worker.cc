// An engine worker of the demo: preallocated weight buffers, a receiver that fills them, and lock-step requests that
// look at every live byte. Where the buffers are on a GPU, a step is work of the engine's stream, and one is in flight
// there whenever live buffers are about to be written.

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cli/demo/gpu_mirror.h"
#include "cli/demo/rank.h"
#include "loader/receiver.h"
#include "loader/transport/factory.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr size_t kAlignment = 4096;

// The live buffers, one behind the other in a memory file that the oracle can look at by /proc; or on a GPU, with that
// file as the mirror into which each step downloads all of it. Starts as 0xA5 bytes.
class LiveMemory {
 public:
  // `gpu_number`: which of the members that take GPUs in turn this is; none: host memory.
  static absl::StatusOr<std::unique_ptr<LiveMemory>> Allocate(const Manifest& part, std::optional<int> gpu_number) {
    std::unique_ptr<LiveMemory> live(new LiveMemory);
    for (const Buffer& b : part.destination) {
      if (b.alias_of) {
        live->aliases_[b.name] = *b.alias_of;
        continue;
      }
      live->places_[b.name] = {live->bytes_, SpanBytes(b, b.dtype)};
      live->bytes_ += (SpanBytes(b, b.dtype) + kAlignment - 1) / kAlignment * kAlignment;
    }
    live->fd_ = memfd_create("headrace-demo-engine", MFD_CLOEXEC);
    if (live->fd_ < 0 || posix_fallocate(live->fd_, 0, static_cast<off_t>(live->bytes_)) != 0) {
      return Error(ErrorCode::kOutOfMemory, absl::StrCat("the engine's weights need ", live->bytes_, " bytes"));
    }
    void* p = mmap(nullptr, live->bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, live->fd_, 0);
    if (p == MAP_FAILED) {
      return Error(ErrorCode::kOutOfMemory,
                   absl::StrCat("the engine's weights need ", live->bytes_, " bytes: ", std::strerror(errno)));
    }
    live->memory_ = static_cast<std::byte*>(p);
    std::memset(p, 0xA5, live->bytes_);
    if (gpu_number) {
      HR_ASSIGN_OR_RETURN(live->gpu_, GpuMirror::Create(*gpu_number, {live->memory_, live->bytes_}));
      HR_RETURN_IF_ERROR(live->gpu_->Upload());
    }
    return live;
  }
  ~LiveMemory() {
    gpu_.reset();
    if (memory_ != nullptr) munmap(memory_, bytes_);
    if (fd_ >= 0) close(fd_);
  }

  std::map<std::string, BufferMemory> Buffers(const Manifest& part) const {
    std::byte* const memory = gpu_ == nullptr ? memory_ : gpu_->data();
    std::map<std::string, BufferMemory> out;
    for (const Buffer& b : part.destination) {
      const std::string& owner = b.alias_of ? *b.alias_of : b.name;
      out[b.name] = {memory + places_.at(owner).first, b.shape, b.strides};
    }
    return out;
  }

  const GpuMirror* gpu() const { return gpu_.get(); }
  cuda::Stream stream() const { return gpu_ == nullptr ? nullptr : gpu_->stream(); }

  // A forward step of the engine, as far as weights are concerned: every live byte is used. On a GPU that is work of
  // the stream, which may be under way when BeginStep returns; EndStep waits for it.
  absl::Status BeginStep() { return gpu_ == nullptr ? absl::OkStatus() : gpu_->Download(); }
  // XXH3-64 over the buffers in the order of their names, aliases left out: what the oracle's digests are made of.
  absl::StatusOr<uint64_t> EndStep() {
    if (gpu_ != nullptr) HR_RETURN_IF_ERROR(gpu_->Wait());
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    for (const auto& [name, place] : places_) {
      XXH3_64bits_update(&state, memory_ + place.first, static_cast<size_t>(place.second));
    }
    return XXH3_64bits_digest(&state);
  }

  // For the oracle: where the file is and what lies in it.
  std::string path() const { return absl::StrCat("/proc/", getpid(), "/fd/", fd_); }
  DemoJson Contents() const {
    DemoJson buffers = DemoJson::array();
    for (const auto& [name, place] : places_) {
      buffers.push_back({{"name", name}, {"offset", place.first}, {"bytes", place.second}});
    }
    return {{"buffers", std::move(buffers)}};
  }

 private:
  LiveMemory() = default;

  std::map<std::string, std::pair<size_t, Index>> places_;  // by name: offset and bytes
  std::map<std::string, std::string> aliases_;
  int fd_ = -1;
  std::byte* memory_ = nullptr;
  size_t bytes_ = 0;
  std::unique_ptr<GpuMirror> gpu_;
};

class Worker {
 public:
  Worker(RankPipe* pipe, Receiver* receiver, std::map<std::string, BufferMemory> buffers, LiveMemory* live,
         std::map<uint64_t, uint64_t> generations, bool in_place)
      : pipe_(pipe),
        receiver_(receiver),
        buffers_(std::move(buffers)),
        live_(live),
        generations_(std::move(generations)),
        in_place_(in_place) {}

  ~Worker() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      quitting_ = true;
    }
    changed_.notify_all();
    if (loading_.joinable()) loading_.join();
  }

  absl::Status Serve() {
    loading_ = std::thread([this] { Load(); });
    while (true) {
      HR_ASSIGN_OR_RETURN(const std::optional<DemoJson> order, pipe_->Next(absl::Milliseconds(50)));
      HR_RETURN_IF_ERROR(Health());
      if (!order) continue;
      if (order->contains("quit")) return absl::OkStatus();
      if (order->contains("step")) {
        HR_RETURN_IF_ERROR(Step());
      } else if (order->contains("stage")) {  // in_place: the engine is paused
        HR_RETURN_IF_ERROR(Allow((*order)["stage"]));
      } else {
        HR_RETURN_IF_ERROR(Commit((*order)["commit"]));
      }
    }
  }

 private:
  absl::Status Step() {
    HR_RETURN_IF_ERROR(live_->BeginStep());
    return ReportStep("stepped");
  }

  absl::Status ReportStep(const std::string& event) {
    HR_ASSIGN_OR_RETURN(const uint64_t digest, live_->EndStep());
    auto it = generations_.find(digest);
    pipe_->Report({{"event", event}, {"generation", it == generations_.end() ? -1 : static_cast<int64_t>(it->second)}});
    return absl::OkStatus();
  }

  absl::Status Commit(uint64_t generation) {
    if (!in_place_) HR_RETURN_IF_ERROR(live_->BeginStep());
    HR_RETURN_IF_ERROR(receiver_->Commit(generation, live_->stream()));
    const ReceiverStats s = receiver_->stats();
    pipe_->Report({{"event", "committed"}, {"generation", generation}, {"commit_seconds", s.commit_seconds}});
    // The step that was in flight: before this commit's first write, which in place was Stage's.
    if (live_->gpu() != nullptr) HR_RETURN_IF_ERROR(ReportStep("in_flight"));
    {
      std::lock_guard<std::mutex> lock(mutex_);
      staged_ = 0;
    }
    changed_.notify_all();
    return absl::OkStatus();
  }

  absl::Status Allow(uint64_t generation) {
    HR_RETURN_IF_ERROR(live_->BeginStep());
    {
      std::lock_guard<std::mutex> lock(mutex_);
      allowed_ = generation;
    }
    changed_.notify_all();
    return absl::OkStatus();
  }

  absl::Status Health() {
    std::lock_guard<std::mutex> lock(mutex_);
    return failed_.ok() ? receiver_->status() : failed_;
  }

  // The loader's thread: takes generation after generation while the main thread serves.
  void Load() {
    while (true) {
      absl::Status status = LoadOne();
      if (status.ok()) continue;
      std::lock_guard<std::mutex> lock(mutex_);
      if (!quitting_) failed_ = status;
      return;
    }
  }

  absl::Status LoadOne() {
    const absl::StatusOr<uint64_t> next = receiver_->NextGeneration(absl::Now() + absl::Milliseconds(200));
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (quitting_) return Error(ErrorCode::kAborted, "quitting");
    }
    if (HasCode(next.status(), ErrorCode::kDeadline)) return absl::OkStatus();
    // Another rank left in order: no further generation comes, and this worker serves what it has.
    if (HasCode(next.status(), ErrorCode::kAborted) && receiver_->status().ok()) {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return quitting_; });
      return absl::OkStatus();
    }
    HR_RETURN_IF_ERROR(next.status());
    pipe_->Report({{"event", "announced"}, {"generation", *next}});
    if (in_place_) {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return allowed_ == *next || quitting_; });
    }
    HR_RETURN_IF_ERROR(receiver_->Stage(*next, buffers_, live_->stream()));
    const ReceiverStats s = receiver_->stats();
    std::unique_lock<std::mutex> lock(mutex_);
    staged_ = *next;
    pipe_->Report({{"event", "staged"},
                   {"generation", *next},
                   {"plan_seconds", s.plan_seconds},
                   {"transfer_seconds", s.transfer_seconds},
                   {"verify_seconds", s.verify_seconds},
                   {"decision_seconds", s.decision_seconds},
                   {"copies", s.copies},
                   {"bytes", s.bytes},
                   {"shadow_bytes", s.shadow_bytes},
                   {"peak_staging_bytes", s.peak_staging_bytes}});
    // One generation at a time: the commit is the main thread's, between two requests.
    changed_.wait(lock, [&] { return staged_ == 0 || quitting_; });
    return absl::OkStatus();
  }

  RankPipe* const pipe_;
  Receiver* const receiver_;
  const std::map<std::string, BufferMemory> buffers_;
  LiveMemory* const live_;
  const std::map<uint64_t, uint64_t> generations_;  // by digest
  const bool in_place_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool quitting_ = false;
  uint64_t allowed_ = 0;
  uint64_t staged_ = 0;
  absl::Status failed_;
  std::thread loading_;
};

absl::Status Work(RankPipe* pipe) {
  HR_ASSIGN_OR_RETURN(RankOrders orders, ReadOrders(pipe));
  const int engine = orders.raw["engine"], index = orders.raw["worker"];
  HR_ASSIGN_OR_RETURN(const Manifest part, WorkerPart(orders.scenario, engine, index));
  // Ranks of destinations count through all engines.
  const int number = orders.scenario.trainers + static_cast<int>(part.topology.destination.front().rank);
  HR_ASSIGN_OR_RETURN(auto live, LiveMemory::Allocate(part, orders.gpu ? std::optional(number) : std::nullopt));
  // Generation 0 is what the engine starts with.
  HR_RETURN_IF_ERROR(live->BeginStep());
  HR_ASSIGN_OR_RETURN(const uint64_t first, live->EndStep());
  std::map<uint64_t, uint64_t> generations = {{first, 0}};
  for (const DemoJson& g : orders.raw["digests"]) {
    uint64_t digest = 0;
    if (!absl::SimpleHexAtoi(g["digest"].get<std::string>(), &digest)) {
      return Error(ErrorCode::kMalformed, "a digest that is no hexadecimal number");
    }
    generations[digest] = g["generation"];
  }
  ReceiverOptions options;
  options.job = orders.job;
  options.engine = engine;
  options.worker = index;
  options.shadow = orders.shadow;
  if (live->gpu() != nullptr) options.gpu = live->gpu()->gpu();
  TransportOptions transport_options;
  transport_options.gpu = number;
  HR_ASSIGN_OR_RETURN(auto transport, NewTransport(orders.transport, transport_options));
  HR_ASSIGN_OR_RETURN(auto receiver, Receiver::Join(options, part, live->Buffers(part), std::move(transport)));
  pipe->Report({{"event", "ready"}, {"file", live->path()}, {"index", live->Contents()}});
  {
    Worker worker(pipe, receiver.get(), live->Buffers(part), live.get(), std::move(generations),
                  orders.shadow == Shadow::kOff);
    HR_RETURN_IF_ERROR(worker.Serve());
  }
  return receiver->Close(absl::Now() + absl::Seconds(10));
}

}  // namespace

int RunDemoWorker() {
  RankPipe pipe;
  const absl::Status status = Work(&pipe);
  return status.ok() ? 0 : pipe.ReportError(status);
}

}  // namespace headrace
