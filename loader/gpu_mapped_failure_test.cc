// What goes wrong around jobs whose GPUs map snapshots: members that die and come again, GPUs that are full, machines
// whose drivers share memory one way alone, endpoints of several hosts, work that fails.
#include <dirent.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/gpu/cuda_driver.h"
#include "loader/gpu/device_memory.h"
#include "loader/gpu/gpu_options.h"
#include "loader/testing/gpu_job.h"
#include "loader/testing/two_engines.h"
#include "loader/transport/cuda/cuda.h"
#include "planner/status.h"
#include "planner/testing/manifest_parts.h"

namespace headrace {
namespace {

using testing::Cuda;
using testing::ExpectError;
using testing::FillGpu;
using testing::FirstError;
using testing::ForAll;
using testing::GpuJob;
using testing::Gpus;
using testing::JobConfig;
using testing::OnMembersGpu;
using testing::Soon;
using testing::TwoEngines;

// Forwards, but for what a test puts before a call.
class HookedTransport final : public Transport {
 public:
  struct Hooks {
    std::function<absl::Status()> allocate = [] { return absl::OkStatus(); };
    std::function<void()> map = [] {};
    std::function<void(const std::byte*)> mapped = [](const std::byte*) {};
  };
  HookedTransport(std::unique_ptr<Transport> inner, std::shared_ptr<Hooks> hooks)
      : inner_(std::move(inner)), hooks_(std::move(hooks)) {}

  absl::string_view name() const override { return inner_->name(); }
  const Capabilities& capabilities() const override { return inner_->capabilities(); }
  std::string address() const override { return inner_->address(); }
  absl::StatusOr<std::unique_ptr<Region>> AllocateRegion(int64_t bytes) override {
    HR_RETURN_IF_ERROR(hooks_->allocate());
    HR_ASSIGN_OR_RETURN(auto region, inner_->AllocateRegion(bytes));
    hooks_->mapped(region->bytes().data());
    return region;
  }
  absl::StatusOr<PeerId> Connect(absl::string_view address, absl::Time deadline) override {
    return inner_->Connect(address, deadline);
  }
  void Disconnect(PeerId peer) override { inner_->Disconnect(peer); }
  absl::StatusOr<std::unique_ptr<Mapping>> Map(PeerId peer, absl::string_view key, absl::Time deadline) override {
    hooks_->map();
    HR_ASSIGN_OR_RETURN(auto mapping, inner_->Map(peer, key, deadline));
    hooks_->mapped(mapping->bytes().data());
    return mapping;
  }
  absl::StatusOr<OpId> Send(PeerId peer, uint64_t tag, absl::Span<const std::byte> message) override {
    return inner_->Send(peer, tag, message);
  }
  absl::StatusOr<OpId> Receive(PeerId peer, uint64_t tag, absl::Span<std::byte> message) override {
    return inner_->Receive(peer, tag, message);
  }
  void Poll(absl::Duration max_wait, std::vector<Completion>* completions) override {
    inner_->Poll(max_wait, completions);
  }
  void Wake() override { inner_->Wake(); }
  void Abort(const absl::Status& reason) override { inner_->Abort(reason); }

 private:
  const std::unique_ptr<Transport> inner_;
  const std::shared_ptr<Hooks> hooks_;
};

// Endpoints on the member's GPU, each of a host of its own.
testing::MakeTransport OnHostsOfTheirOwn() {
  return [] {
    static std::atomic<int> hosts{0};
    CudaOptions options;
    options.gpu = testing::member_gpu;
    options.host = absl::StrCat("host", hosts++);
    auto transport = NewCudaTransport(options);
    EXPECT_TRUE(transport.ok()) << transport.status();
    return *std::move(transport);
  };
}

size_t FreeBytes(int gpu) {
  const CurrentDevice current(Cuda(), gpu);
  size_t free = 0, total = 0;
  EXPECT_EQ(Cuda().cudaMemGetInfo(&free, &total), cuda::kSuccess);
  return free;
}

int Descriptors() {
  DIR* const dir = opendir("/proc/self/fd");
  int count = 0;
  while (readdir(dir) != nullptr) ++count;
  closedir(dir);
  return count;
}

// Two data-parallel trainers, two engines of one worker.
Manifest Replicas() {
  const TensorSpec a{"a", {1 << 16, 3}, Dtype::kBF16}, b{"b", {300}, Dtype::kF32};
  Manifest m;
  m.tensors = {a, b};
  for (int64_t rank : {0, 1}) m.source.insert(m.source.end(), {WholeBuffer(rank, a), WholeBuffer(rank, b)});
  for (int64_t rank : {0, 1}) {
    m.destination.insert(m.destination.end(), {WholeBuffer(rank, a), WholeBuffer(rank, b)});
    m.topology.destination.push_back({rank, "", "", "e" + std::to_string(rank)});
  }
  return m;
}

// Slots live on while engines have them mapped, who must not wait for the next generation to let go of them: the
// trainer that would publish it does not get the memory for its own.
TEST(GpuMappedFailureTest, ATrainerThatComesAgainHasTheMemoryOfTheOneThatDied) {
  if (Gpus() < 8) GTEST_SKIP() << "the engine is on another GPU";
  JobConfig config;
  config.transport = OnMembersGpu("cuda");
  config.shadow = {Shadow::kDevice};
  config.rejoin_ns = 60'000'000'000;
  GpuJob gpu(WholeManifest({{"a", {1 << 20}, Dtype::kF32}}), config);
  ASSERT_EQ(FirstError(gpu.job.Join()), absl::OkStatus());
  ASSERT_EQ(gpu.Round(1), absl::OkStatus());
  const auto taken = FillGpu(GpuJob::SourceGpu(0));
  gpu.job.KillPublisher(0);
  ASSERT_EQ(gpu.job.JoinPublisher(0), absl::OkStatus());
  ASSERT_EQ(gpu.Round(2), absl::OkStatus());
  EXPECT_EQ(gpu.Difference(), "");
}

// An epoch that is over before it is ready takes the second region for sums, while the first is the last ready one's.
TEST(GpuMappedFailureTest, AnEpochThatIsOverBeforeItIsReadyWhenTheGpuIsFull) {
  if (Gpus() < 8) GTEST_SKIP() << "the members that come are on the GPU that is full";
  auto hooks = std::make_shared<HookedTransport::Hooks>();
  JobConfig config;
  const auto make = OnMembersGpu("cuda");
  std::atomic<bool> hooked = false;
  config.transport = [&]() -> std::unique_ptr<Transport> {
    if (!hooked) return make();
    return std::make_unique<HookedTransport>(make(), hooks);
  };
  config.shadow = {Shadow::kDevice, Shadow::kDevice};
  config.rejoin_ns = 60'000'000'000;
  GpuJob gpu(Replicas(), config);
  ASSERT_EQ(FirstError(gpu.job.Join()), absl::OkStatus());
  ASSERT_EQ(gpu.Round(1), absl::OkStatus());
  gpu.job.KillPublisher(1);
  // In the epoch without that one.
  ASSERT_EQ(gpu.job.publisher(0).Publish(2, Soon(), gpu.TrainerStream(0)), absl::OkStatus());
  ASSERT_EQ(FirstError(ForAll(2, [&](size_t w) { return gpu.job.TakeAt(w, 2); })), absl::OkStatus());
  const auto taken = FillGpu(GpuJob::SourceGpu(0));
  // It comes again, and has planned nothing when all others have; then it cannot stay.
  hooks->allocate = [&]() -> absl::Status {
    while (true) {
      const std::string waiting = gpu.job.coordinator().status().waiting_for;
      if (absl::StartsWith(waiting, "publisher rank 1 ") && !absl::StrContains(waiting, "worker")) break;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return Error(ErrorCode::kOutOfMemory, "a test");
  };
  hooked = true;
  ExpectError(gpu.job.JoinPublisher(1), ErrorCode::kOutOfMemory);
  EXPECT_EQ(gpu.job.publisher(0).status(), absl::OkStatus());
  ASSERT_EQ(gpu.job.publisher(0).Publish(3, absl::Now() + absl::Seconds(20), gpu.TrainerStream(0)), absl::OkStatus())
      << gpu.job.coordinator().status().status << gpu.job.coordinator().status().waiting_for;
  ASSERT_EQ(FirstError(ForAll(2, [&](size_t w) { return gpu.job.TakeAt(w, 3); })), absl::OkStatus());
}

// The memory of a GPU, descriptors and mappings stay what they are.
TEST(GpuMappedFailureTest, TwentyDeathsLeaveNothing) {
  JobConfig config;
  config.transport = OnMembersGpu("cuda");
  config.shadow = {Shadow::kDevice, Shadow::kOff};
  config.rejoin_ns = 60'000'000'000;
  GpuJob gpu(Replicas(), config);
  ASSERT_EQ(FirstError(gpu.job.Join()), absl::OkStatus());
  ASSERT_EQ(gpu.Round(1), absl::OkStatus());
  std::vector<size_t> free;
  int descriptors = 0;
  for (uint64_t i = 0; i < 20; ++i) {
    if (i % 2 == 0) {
      gpu.job.KillPublisher(i / 2 % 2);
      ASSERT_EQ(gpu.job.JoinPublisher(i / 2 % 2), absl::OkStatus());
    } else {
      gpu.job.KillReceiver(i / 2 % 2);
      ASSERT_EQ(gpu.job.JoinReceiver(i / 2 % 2), absl::OkStatus());
    }
    ASSERT_EQ(gpu.Publish(i + 2), absl::OkStatus());
    // One that comes again may be offered what was there before.
    ASSERT_EQ(FirstError(ForAll(2,
                                [&](size_t w) -> absl::Status {
                                  while (true) {
                                    HR_ASSIGN_OR_RETURN(const uint64_t next,
                                                        gpu.job.receiver(w).NextGeneration(Soon()));
                                    HR_RETURN_IF_ERROR(gpu.job.StageAndCommit(w, next));
                                    if (next == i + 2) return absl::OkStatus();
                                  }
                                })),
              absl::OkStatus());
    for (size_t w : {0, 1}) gpu.job.Expect(w, i + 2);
    ASSERT_EQ(gpu.Difference(), "");
    std::vector<size_t> now;
    for (int g = 0; g < Gpus(); ++g) now.push_back(FreeBytes(g));
    if (i < 6) {
      free = now;
      descriptors = Descriptors();
    } else {
      EXPECT_EQ(now, free) << i;
      EXPECT_LE(Descriptors(), descriptors + 4) << i;
    }
  }
}

TEST(GpuMappedFailureTest, OnOneHost) {
  for (const std::string policy : {"auto", "hybrid"}) {
    JobConfig config;
    config.transport = OnMembersGpu("cuda");
    config.shadow = {Shadow::kDevice, Shadow::kOff};
    config.policy = policy;
    GpuJob gpu(TwoEngines(), config);
    ASSERT_EQ(FirstError(gpu.job.Join()), absl::OkStatus());
    for (uint64_t generation : {1, 2, 3}) {
      ASSERT_EQ(gpu.Round(generation), absl::OkStatus());
      ASSERT_EQ(gpu.Difference(), "");
    }
    EXPECT_EQ(gpu.job.Close(), absl::OkStatus());
  }
}

bool HasFabric() {
  const char* const types = std::getenv(nccl_checker::kHandleTypesVariable);
  return types == nullptr || (absl::StrContains(types, "fabric") && !absl::StrContains(types, "denied"));
}

TEST(GpuMappedFailureTest, OnSeveralHosts) {
  if (!HasFabric()) GTEST_SKIP();
  for (const std::string policy : {"auto", "hybrid"}) {
    JobConfig config;
    config.transport = OnHostsOfTheirOwn();
    config.shadow = {Shadow::kDevice, Shadow::kOff};
    config.policy = policy;
    GpuJob gpu(TwoEngines(), config);
    ASSERT_EQ(FirstError(gpu.job.Join()), absl::OkStatus());
    for (uint64_t generation : {1, 2, 3}) {
      ASSERT_EQ(gpu.Round(generation), absl::OkStatus());
      ASSERT_EQ(gpu.Difference(), "");
    }
    EXPECT_EQ(gpu.job.Close(), absl::OkStatus());
  }
}

// A refusal, not a hang or a generation that never comes.
TEST(GpuMappedFailureTest, OnSeveralHostsWithoutFabric) {
  if (HasFabric()) GTEST_SKIP();
  JobConfig config;
  config.transport = OnHostsOfTheirOwn();
  config.shadow = {Shadow::kDevice};
  GpuJob gpu(WholeManifest({{"a", {64, 24}, Dtype::kBF16}}), config);
  ExpectError(FirstError(gpu.job.Join()), ErrorCode::kTransport, "", "nccl or ucx");
}

// A publisher that dies between the announcement and the look at its memory, which nobody has told yet: another one
// has the same bytes.
TEST(GpuMappedFailureTest, AReplicaTakesTheLoadOfOneThatDiesBeforeItIsMapped) {
  for (const bool several_hosts : {false, true}) {
    if (several_hosts && !HasFabric()) continue;
    SCOPED_TRACE(several_hosts);
    for (const Shadow shadow : {Shadow::kDevice, Shadow::kOff}) {
      auto hooks = std::make_shared<HookedTransport::Hooks>();
      JobConfig config;
      config.transport = several_hosts ? OnHostsOfTheirOwn() : OnMembersGpu("cuda");
      config.shadow = {shadow, shadow};
      config.rejoin_ns = 60'000'000'000;
      GpuJob gpu(Replicas(), config);
      const auto make = config.transport;
      gpu.job.receiver_transport = [&](size_t) -> std::unique_ptr<Transport> {
        return std::make_unique<HookedTransport>(make(), hooks);
      };
      ASSERT_EQ(FirstError(gpu.job.Join()), absl::OkStatus());
      ASSERT_EQ(gpu.Round(1), absl::OkStatus());
      // A new member of an epoch, which nobody has mapped.
      gpu.job.KillPublisher(1);
      ASSERT_EQ(gpu.job.JoinPublisher(1), absl::OkStatus());
      ASSERT_EQ(gpu.Publish(2), absl::OkStatus());
      ASSERT_EQ(FirstError(ForAll(2, [&](size_t w) { return gpu.job.AwaitAt(w, 2); })), absl::OkStatus());
      std::atomic<bool> killed = false;
      std::mutex mutex;
      hooks->map = [&] {
        std::lock_guard lock(mutex);
        if (!killed.exchange(true)) gpu.job.KillPublisher(1);
      };
      EXPECT_EQ(FirstError(ForAll(2, [&](size_t w) { return gpu.job.StageAndCommit(w, 2); })), absl::OkStatus());
      EXPECT_TRUE(killed);
      hooks->map = [] {};
      for (size_t w : {0, 1}) gpu.job.Expect(w, 2);
      EXPECT_EQ(gpu.Difference(), "");
    }
  }
}

// Slots, sums and tables do not fit: typed, and the job goes on without.
TEST(GpuMappedFailureTest, APublisherThatComesToAFullGpu) {
  if (Gpus() < 8) GTEST_SKIP();
  JobConfig config;
  config.transport = OnMembersGpu("cuda");
  config.shadow = {Shadow::kDevice, Shadow::kDevice};
  config.rejoin_ns = 60'000'000'000;
  GpuJob gpu(Replicas(), config);
  ASSERT_EQ(FirstError(gpu.job.Join()), absl::OkStatus());
  ASSERT_EQ(gpu.Round(1), absl::OkStatus());
  gpu.job.KillPublisher(1);
  ASSERT_EQ(gpu.job.publisher(0).Publish(2, Soon(), gpu.TrainerStream(0)), absl::OkStatus());
  ASSERT_EQ(FirstError(ForAll(2, [&](size_t w) { return gpu.job.TakeAt(w, 2); })), absl::OkStatus());
  {
    auto taken = FillGpu(GpuJob::SourceGpu(1));
    const absl::Status full = gpu.job.JoinPublisher(1);
    ExpectError(full, ErrorCode::kOutOfMemory, "GPU 1");
    // Enough for the tables, and the first slot, not for all: what there is of it is given back.
    while (FreeBytes(1) < (3 << 20)) taken.erase(taken.end() - 1);
    const size_t free = FreeBytes(1);
    if (const absl::Status again = gpu.job.JoinPublisher(1); !again.ok()) {
      ExpectError(again, ErrorCode::kOutOfMemory, "GPU 1");
      EXPECT_EQ(FreeBytes(1), free);
    } else {
      gpu.job.KillPublisher(1);
    }
  }
  ASSERT_EQ(gpu.job.JoinPublisher(1), absl::OkStatus());
  ASSERT_EQ(gpu.Round(3), absl::OkStatus());
  EXPECT_EQ(gpu.Difference(), "");
}

// Elements that lie between the places of their size.
TEST(GpuMappedFailureTest, MastersThatAreNotAlignedAreNamed) {
  JobConfig config;
  config.transport = OnMembersGpu("cuda");
  config.shadow = {Shadow::kDevice};
  Manifest m = WholeManifest({{"a", {64}, Dtype::kBF16}});
  m.source[0].name = "masters";
  m.source[0].dtype = Dtype::kF32;
  m.source[0].convert_rne = true;
  GpuJob gpu(m, config);
  std::byte* device = nullptr;
  {
    const CurrentDevice current(Cuda(), GpuJob::SourceGpu(0));
    ASSERT_EQ(Cuda().cudaMalloc(reinterpret_cast<void**>(&device), 512), cuda::kSuccess);
  }
  const auto place = gpu.job.place;
  gpu.job.place = [&](std::byte* host) {
    return host == gpu.job.source().First(gpu.job.manifest().source[0]) ? device + 2 : place(host);
  };
  PublisherOptions options = gpu.job.OptionsOfPublisher(0);
  options.gpu = testing::member_gpu = GpuJob::SourceGpu(0);
  const absl::Status failed =
      Publisher::Join(options, gpu.job.PublisherPart(0), gpu.job.PublisherMemory(0), config.transport()).status();
  ExpectError(failed, ErrorCode::kInvalidOption, "\"masters\"", "aligned");
  EXPECT_EQ(SubjectOf(failed).buffer, "masters");
  EXPECT_EQ(Cuda().cudaFree(device), cuda::kSuccess);
}

// What offers nothing, or has nothing, may lie anywhere.
TEST(GpuMappedFailureTest, BuffersThatOfferNothing) {
  JobConfig config;
  config.transport = OnMembersGpu("cuda");
  config.shadow = {Shadow::kDevice};
  Manifest m = WholeManifest({{"a", {4}, Dtype::kF32}, {"empty", {0, 3}, Dtype::kF32}});
  m.source.push_back(BufferOf(0, "spare", Dtype::kF32, {4}, {}));
  m.source.push_back(BufferOf(1, "idle", Dtype::kF32, {4}, {}));
  GpuJob gpu(m, config, [](const Buffer& b) { return b.name == "a"; });
  ASSERT_EQ(FirstError(gpu.job.Join()), absl::OkStatus());
  for (uint64_t generation : {1, 2, 3}) {
    ASSERT_EQ(gpu.Round(generation), absl::OkStatus());
    EXPECT_EQ(gpu.Difference(), "");
  }
}

TEST(GpuMappedFailureTest, AnotherGpuThanTheTransports) {
  JobConfig config;
  config.transport = OnMembersGpu("cuda");
  GpuJob gpu(WholeManifest({{"a", {4}, Dtype::kF32}}), config);
  testing::member_gpu = 3;
  PublisherOptions publisher = gpu.job.OptionsOfPublisher(0);
  publisher.gpu = GpuJob::SourceGpu(0);
  ExpectError(
      Publisher::Join(publisher, gpu.job.PublisherPart(0), gpu.job.PublisherMemory(0), config.transport()).status(),
      ErrorCode::kInvalidOption, "names GPU 0", "GPU 3");
  ReceiverOptions receiver = gpu.job.OptionsOfReceiver(0);
  receiver.gpu = gpu.GpuOfWorker(0);
  receiver.shadow = Shadow::kDevice;
  ExpectError(Receiver::Join(receiver, gpu.job.ReceiverPart(0), gpu.job.ReceiverMemory(0), config.transport()).status(),
              ErrorCode::kInvalidOption, "GPU 4", "GPU 3");
}

bool ViolationsReturn() {
  const char* const on_violation = std::getenv(nccl_checker::kOnViolationVariable);
  return on_violation != nullptr && std::string(on_violation) == "return";
}

// Kernels fail: the GPU may not look at some memory any more, or may again.
void SetAccess(const std::byte* memory, int gpu, int64_t bytes, int access) {
  const CudaDriver& driver = **LoadCudaDriver(GpuOptionsFromEnvironment().cuda_driver);
  const cuda::AccessDesc desc = {{cuda::kMemLocationDevice, gpu}, access};
  constexpr int64_t kUnit = 64 << 10;
  ASSERT_EQ(driver.cuMemSetAccess(reinterpret_cast<cuda::DevicePointer>(memory), (bytes + kUnit - 1) / kUnit * kUnit,
                                  &desc, 1),
            cuda::kResultSuccess);
}

struct FailingJob {
  explicit FailingJob(Shadow shadow, std::set<int> late = {}) {
    JobConfig config;
    const auto make = OnMembersGpu("cuda");
    config.transport = [this, make] { return std::make_unique<HookedTransport>(make(), published); };
    config.shadow = {shadow, shadow};
    config.rejoin_ns = 60'000'000'000;
    config.late_engines = std::move(late);
    Manifest m = WholeManifest({{"a", {64}, Dtype::kF32}});
    m.destination.push_back(WholeBuffer(1, {"a", {64}, Dtype::kF32}));
    for (int64_t rank : {0, 1}) m.topology.destination.push_back({rank, "", "", "e" + std::to_string(rank)});
    published->mapped = [this](const std::byte* region) { regions.push_back(region); };
    gpu = std::make_unique<GpuJob>(m, config);
    gpu->job.receiver_transport = [this, make](size_t worker) {
      auto hooks = std::make_shared<HookedTransport::Hooks>();
      hooks->mapped = [this, worker](const std::byte* mapping) { mappings[worker].push_back(mapping); };
      return std::make_unique<HookedTransport>(make(), hooks);
    };
    EXPECT_EQ(FirstError(gpu->job.Join()), absl::OkStatus());
  }
  static constexpr int64_t kSlotBytes = 4096 + 256;

  std::shared_ptr<HookedTransport::Hooks> published = std::make_shared<HookedTransport::Hooks>();
  std::vector<const std::byte*> regions;      // of the publisher: two slots come first
  std::vector<const std::byte*> mappings[2];  // of each worker: likewise
  std::unique_ptr<GpuJob> gpu;
};

TEST(GpuMappedFailureTest, ASnapshotThatFailsPublishesNothing) {
  if (!ViolationsReturn()) GTEST_SKIP();
  FailingJob failing(Shadow::kDevice);
  GpuJob& gpu = *failing.gpu;
  ASSERT_EQ(gpu.Round(1), absl::OkStatus());
  for (const size_t slot : {0, 1}) {
    SetAccess(failing.regions[slot], 0, FailingJob::kSlotBytes, cuda::kAccessRead);
  }
  for (int again : {0, 1, 2}) {
    const absl::Status failed = gpu.Publish(2);
    EXPECT_TRUE(HasCode(failed, ErrorCode::kTransport)) << again << failed;
  }
  for (const size_t slot : {0, 1}) {
    SetAccess(failing.regions[slot], 0, FailingJob::kSlotBytes, cuda::kAccessReadWrite);
  }
  EXPECT_EQ(gpu.job.publisher(0).status(), absl::OkStatus());
  EXPECT_EQ(gpu.job.receiver(0).serving(), 1u);
  ASSERT_EQ(gpu.Round(2), absl::OkStatus());
  EXPECT_EQ(gpu.Difference(), "");
}

TEST(GpuMappedFailureTest, AStageThatFailsPoisonsInPlaceAlone) {
  if (!ViolationsReturn()) GTEST_SKIP();
  for (const Shadow shadow : {Shadow::kDevice, Shadow::kOff}) {
    FailingJob failing(shadow);
    GpuJob& gpu = *failing.gpu;
    ASSERT_EQ(gpu.Round(1), absl::OkStatus());
    ASSERT_EQ(gpu.Publish(2), absl::OkStatus());
    for (size_t w : {0, 1}) ASSERT_EQ(gpu.job.AwaitAt(w, 2), absl::OkStatus());
    for (const size_t slot : {0, 1}) {
      SetAccess(failing.mappings[0][slot], gpu.GpuOfWorker(0), FailingJob::kSlotBytes, cuda::kAccessNone);
    }
    const absl::Status failed = gpu.job.receiver(0).Stage(2, gpu.job.ReceiverMemory(0));
    ExpectError(failed, ErrorCode::kTransport, "GPU 4");
    EXPECT_EQ(gpu.job.receiver(0).serving(), shadow == Shadow::kOff ? std::nullopt : std::optional<uint64_t>(1));
    // Another engine's copies are its own.
    ASSERT_EQ(gpu.job.StageAndCommit(1, 2), absl::OkStatus());
    gpu.job.Expect(1, 2);
    EXPECT_EQ(gpu.Difference(), "");
    for (const size_t slot : {0, 1}) {
      SetAccess(failing.mappings[0][slot], gpu.GpuOfWorker(0), FailingJob::kSlotBytes, cuda::kAccessRead);
    }
    if (shadow == Shadow::kOff) continue;
    ASSERT_EQ(gpu.Round(3), absl::OkStatus());
    EXPECT_EQ(gpu.Difference(), "");
  }
}

// An epoch begins, for which the GPU cannot sum what it holds.
TEST(GpuMappedFailureTest, SumsThatCannotBeMadeAgainEndThePublisher) {
  if (!ViolationsReturn()) GTEST_SKIP();
  FailingJob failing(Shadow::kDevice, {1});
  GpuJob& gpu = *failing.gpu;
  ASSERT_EQ(gpu.Publish(1), absl::OkStatus());
  ASSERT_EQ(gpu.job.TakeAt(0, 1), absl::OkStatus());
  gpu.job.Expect(0, 1);
  for (const size_t slot : {0, 1}) {
    SetAccess(failing.regions[slot], 0, FailingJob::kSlotBytes, cuda::kAccessNone);
  }
  std::thread late([&] { (void)gpu.job.JoinEngine(1); });
  while (gpu.job.publisher(0).status().ok()) absl::SleepFor(absl::Milliseconds(5));
  ExpectError(gpu.job.publisher(0).status(), ErrorCode::kTransport, "GPU 0");
  EXPECT_EQ(gpu.job.receiver(0).serving(), 1u);
  gpu.job.KillPublisher(0);
  ASSERT_EQ(gpu.job.JoinPublisher(0), absl::OkStatus());
  late.join();
  ASSERT_EQ(gpu.Round(2), absl::OkStatus());
  EXPECT_EQ(gpu.Difference(), "");
}

// A byte of a slot that changes is noticed by every engine, and by the publisher itself when an epoch begins.
TEST(GpuMappedFailureTest, AFlippedByteIsNoticed) {
  FailingJob failing(Shadow::kDevice, {1});
  GpuJob& gpu = *failing.gpu;
  ASSERT_EQ(gpu.Publish(1), absl::OkStatus());
  ASSERT_EQ(gpu.job.TakeAt(0, 1), absl::OkStatus());
  gpu.job.Expect(0, 1);
  ASSERT_EQ(gpu.Publish(2), absl::OkStatus());
  ASSERT_EQ(gpu.job.AwaitAt(0, 2), absl::OkStatus());
  for (const size_t slot : {0, 1}) {
    const CurrentDevice current(Cuda(), 0);
    auto* const at = const_cast<std::byte*>(failing.regions[slot]) + 4096 + 101;
    std::byte byte{};
    const auto copy = [](void* to, const void* from) {
      ASSERT_EQ(Cuda().cudaMemcpyAsync(to, from, 1, cuda::kMemcpyDefault, nullptr), cuda::kSuccess);
      ASSERT_EQ(Cuda().cudaStreamSynchronize(nullptr), cuda::kSuccess);
    };
    copy(&byte, at);
    byte ^= std::byte{16};
    copy(at, &byte);
  }
  ExpectError(gpu.job.receiver(0).Stage(2, gpu.job.ReceiverMemory(0)), ErrorCode::kVerificationFailed, "\"a\"");
  EXPECT_EQ(gpu.job.receiver(0).serving(), 1u);
  EXPECT_EQ(gpu.Difference(), "");
  // What is damaged is offered no more.
  ASSERT_EQ(gpu.job.JoinEngine(1), absl::OkStatus());
  ExpectError(gpu.job.receiver(1).NextGeneration(absl::Now()).status(), ErrorCode::kDeadline);
  ASSERT_EQ(gpu.Round(3), absl::OkStatus());
  EXPECT_EQ(gpu.Difference(), "");
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  return headrace::testing::RunOnGpus();
}
