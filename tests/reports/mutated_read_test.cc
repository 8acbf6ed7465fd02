// A trainer that mutates while it is read is always noticed: bytes of a snapshot that change at random moments of
// random reads are kGenerationChanged or kVerificationFailed, or came too late to matter, and are never committed.
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "loader/testing/naive_copy.h"
#include "loader/testing/two_engines.h"
#include "loader/transfer_world.h"
#include "planner/testing/element_oracle.h"
#include "planner/testing/random_manifest.h"
#include "tests/reports/report.h"

namespace headrace {
namespace {

using testing::FirstError;
using testing::Share;
using testing::World;

bool Noticed(const absl::Status& status) {
  return HasCode(status, ErrorCode::kVerificationFailed) || HasCode(status, ErrorCode::kGenerationChanged);
}

// A byte of a source rank's slot, and the destination rank that wants it.
struct Victim {
  int64_t source_rank = 0;
  int64_t destination_rank = 0;
  size_t at = 0;
};
Victim Pick(World& world, Random& random) {
  const Edge& edge = world.plan().edges[Uniform(random, 0, world.plan().edges.size() - 1)];
  const Copy& copy = world.plan().copies[edge.first + Uniform(random, 0, edge.count - 1)];
  std::vector<Index> bytes;
  testing::VisitCopy(copy, [&](Index source, Index, Index) { bytes.push_back(source); });
  const Index byte = bytes[Uniform(random, 0, bytes.size() - 1)];
  return {edge.source_rank, edge.destination_rank,
          static_cast<size_t>(world.Layout(edge.source_rank).BufferOffset(copy) + byte)};
}

TEST(MutatedReadTest, AnyByteAtAnyMoment) {
  int noticed = 0, late = 0;
  for (int seed = 0; seed < Share(600); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const Manifest m = RandomManifest(random);
    if (SourcesContradict(m)) continue;
    MemoryOptions memory;
    memory.map = seed % 2 == 0;
    memory.seed = seed;
    const int64_t chunk = 64, staging = chunk * Uniform(random, 1, 4);
    World world(m, memory, chunk, staging);
    if (world.plan().edges.empty()) continue;
    ASSERT_EQ(world.Move(1), absl::OkStatus());
    ASSERT_EQ(world.Difference(), "");
    world.Publish(2);
    const Victim victim = Pick(world, random);
    const auto mutate = [&] { world.Slot(victim.source_rank)[victim.at] ^= std::byte(1 << Uniform(random, 0, 7)); };
    // Before the read, or at a step of the rank that wants it.
    const int when = static_cast<int>(Uniform(random, -1, 4));
    bool done = when < 0;
    if (done) mutate();
    world.on_rank_step = [&](int64_t rank, int step) {
      if (!done && rank == victim.destination_rank && step == when) mutate(), done = true;
      return absl::OkStatus();
    };
    const std::map<int64_t, absl::Status> statuses = world.ReceiveAll(2);
    for (const auto& [rank, status] : statuses) {
      if (status.ok()) continue;
      ASSERT_TRUE(Noticed(status)) << status;
      world.Excuse(rank);
    }
    ASSERT_EQ(world.Difference(), "");  // who took it has what was published
    const bool failed = !statuses.at(victim.destination_rank).ok();
    if (when < 0) {
      ASSERT_TRUE(failed);
    }
    (failed ? noticed : late) += 1;
    world.on_rank_step = nullptr;
    ASSERT_EQ(world.Move(3), absl::OkStatus());
    ASSERT_EQ(world.Difference(), "");
  }
  std::cout << noticed << " changes noticed, " << late << " came too late to matter\n";
  if (Share(600) > 30) {
    EXPECT_GT(noticed, 0);
    EXPECT_GT(late, 0);
  }
}

// What a trainer does that writes its next weights too early: the slot is opened and written anew.
TEST(MutatedReadTest, AnotherGenerationInAMappedSlot) {
  for (int seed = 0; seed < Share(200); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const Manifest m = RandomManifest(random);
    if (SourcesContradict(m)) continue;
    World world(m, {}, 64, 1 << 20);
    if (world.plan().edges.empty()) continue;
    ASSERT_EQ(world.Move(1), absl::OkStatus());
    world.Publish(2);
    const int when = static_cast<int>(Uniform(random, 0, 3));
    int steps = 0;
    bool written = false;
    world.on_step = [&](int) {
      if (steps++ == when) world.Publish(3), written = true;
      return absl::OkStatus();
    };
    std::map<int64_t, absl::Status> statuses = world.ReceiveAll(2);
    for (const auto& [rank, status] : statuses) {
      if (status.ok()) continue;
      ASSERT_TRUE(Noticed(status)) << status;
      ASSERT_TRUE(written);
      world.Excuse(rank);
    }
    // Those that were done before hold generation 2.
    ASSERT_EQ(world.Difference(), "");
    world.on_step = nullptr;
    ASSERT_EQ(world.Move(4), absl::OkStatus());
    ASSERT_EQ(world.Difference(), "");
  }
}

// The regions that a publisher allocated, for the thread that damages them.
struct Regions {
  std::mutex mutex;
  std::vector<absl::Span<std::byte>> all;
};

class Watched : public Transport {
 public:
  Watched(std::unique_ptr<Transport> inner, Regions* regions) : inner_(std::move(inner)), regions_(regions) {}

  absl::string_view name() const override { return inner_->name(); }
  const Capabilities& capabilities() const override { return inner_->capabilities(); }
  std::string address() const override { return inner_->address(); }
  absl::StatusOr<std::unique_ptr<Region>> AllocateRegion(int64_t n) override {
    auto region = inner_->AllocateRegion(n);
    std::lock_guard<std::mutex> lock(regions_->mutex);
    if (region.ok()) regions_->all.push_back((*region)->bytes());
    return region;
  }
  absl::StatusOr<PeerId> Connect(absl::string_view address, absl::Time deadline) override {
    return inner_->Connect(address, deadline);
  }
  void Disconnect(PeerId peer) override { inner_->Disconnect(peer); }
  absl::StatusOr<std::unique_ptr<Mapping>> Map(PeerId peer, absl::string_view key, absl::Time deadline) override {
    return inner_->Map(peer, key, deadline);
  }
  absl::StatusOr<OpId> Send(PeerId peer, uint64_t tag, absl::Span<const std::byte> message) override {
    return inner_->Send(peer, tag, message);
  }
  absl::StatusOr<OpId> Receive(PeerId peer, uint64_t tag, absl::Span<std::byte> message) override {
    return inner_->Receive(peer, tag, message);
  }
  void Poll(absl::Duration max_wait, std::vector<Completion>* out) override { inner_->Poll(max_wait, out); }
  void Wake() override { inner_->Wake(); }
  void Abort(const absl::Status& reason) override { inner_->Abort(reason); }

 private:
  const std::unique_ptr<Transport> inner_;
  Regions* const regions_;
};

// Whole jobs: a thread turns bits of slots and sums while all engines read. What an engine committed is what was
// published; what it refused left its shadow.
TEST(MutatedReadTest, WholeJobsCommitNothingElse) {
  for (bool map : {true, false}) {
    SCOPED_TRACE(::testing::Message() << "map " << map);
    MemoryOptions memory;
    memory.map = map;
    auto fabric = std::make_shared<MemoryFabric>(memory);
    Regions regions;
    testing::JobConfig config;
    config.transport = [&] { return std::make_unique<Watched>(fabric->NewEndpoint(), &regions); };
    config.chunk_bytes = 64;
    config.staging_bytes = 256;
    testing::Job job(testing::TwoEngines(), config);
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    int noticed = 0, committed = 0;
    for (uint64_t generation = 1; generation <= static_cast<uint64_t>(Share(200)); ++generation) {
      SCOPED_TRACE(::testing::Message() << "seed " << generation);
      ASSERT_EQ(job.Publish(generation), absl::OkStatus());
      std::atomic<bool> stop = false;
      std::thread mutator([&] {
        Random random(generation);
        for (int left = static_cast<int>(Uniform(random, 0, 6)); left > 0 && !stop; --left) {
          for (Index pause = Uniform(random, 0, 200); pause > 0; --pause) std::this_thread::yield();
          std::lock_guard<std::mutex> lock(regions.mutex);
          const absl::Span<std::byte> region = regions.all[Uniform(random, 0, regions.all.size() - 1)];
          // As another process's writes are: no part of this program.
          std::byte* at = &region[Uniform(random, 0, region.size() - 1)];
          __atomic_xor_fetch(reinterpret_cast<unsigned char*>(at), 1 << Uniform(random, 0, 7), __ATOMIC_RELAXED);
        }
      });
      const auto statuses = job.Take(generation);
      stop = true;
      mutator.join();
      for (const absl::Status& status : statuses) {
        ASSERT_TRUE(status.ok() || Noticed(status)) << status;
        (status.ok() ? committed : noticed) += 1;
      }
      ASSERT_EQ(job.Difference(), "");
    }
    std::cout << noticed << " noticed, " << committed << " committed\n";
    ASSERT_EQ(job.Round(1000), absl::OkStatus());
    EXPECT_EQ(job.Difference(), "");
    EXPECT_EQ(job.Close(), absl::OkStatus());
  }
}

}  // namespace
}  // namespace headrace
