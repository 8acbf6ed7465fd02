// vllm-project/vllm#57854: an update that fails half-way kills the engine or leaves layers of two generations; in
// siblings the sender never learns of it, and a version is reported that did not land.
#include "tests/reports/report.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using testing::FirstError;
using ::testing::HasSubstr;
using testing::Job;

// Calls `at(n)` when the n-th message that was received (from 1) is about to be told.
class Counted : public Transport {
 public:
  Counted(std::unique_ptr<Transport> inner, std::function<void(int)> at)
      : inner_(std::move(inner)), at_(std::move(at)) {}

  absl::string_view name() const override { return inner_->name(); }
  const Capabilities& capabilities() const override { return inner_->capabilities(); }
  std::string address() const override { return inner_->address(); }
  absl::StatusOr<std::unique_ptr<Region>> AllocateRegion(int64_t n) override { return inner_->AllocateRegion(n); }
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
    HR_ASSIGN_OR_RETURN(const OpId op, inner_->Receive(peer, tag, message));
    receives_.insert(op);
    return op;
  }
  void Poll(absl::Duration max_wait, std::vector<Completion>* out) override {
    const size_t before = out->size();
    inner_->Poll(max_wait, out);
    for (size_t i = before; i < out->size(); ++i) {
      if (receives_.erase((*out)[i].op) > 0 && (*out)[i].status.ok()) at_(++told_);
    }
  }
  void Wake() override { inner_->Wake(); }
  void Abort(const absl::Status& reason) override { inner_->Abort(reason); }

 private:
  const std::unique_ptr<Transport> inner_;
  const std::function<void(int)> at_;
  std::set<OpId> receives_;
  int told_ = 0;
};

constexpr Index kLayer = 200;  // elements, of 2 bytes

// Layers 0 and 1 on publisher 0, layer 2 on publisher 1.
Manifest Layers() {
  Manifest m = WholeManifest({{"layers.0", {kLayer}, Dtype::kBF16},
                              {"layers.1", {kLayer}, Dtype::kBF16},
                              {"layers.2", {kLayer}, Dtype::kBF16}});
  m.source[2].rank = 1;
  return m;
}

TEST(TornUpdateTest, ASourceThatDiesAfterAnyPartLeavesTheVersionAndIsToldToTheOthers) {
  int torn = 0;
  for (Shadow shadow : {Shadow::kHost, Shadow::kOff}) {
    // The sum, then seven chunks of the first layer, and so on.
    for (int when = 1; when <= 12; ++when) {
      SCOPED_TRACE(::testing::Message() << (shadow == Shadow::kHost ? "shadow" : "in place") << ", message " << when);
      MemoryOptions memory;
      memory.map = false;
      auto fabric = std::make_shared<MemoryFabric>(memory);
      testing::JobConfig config;
      config.transport = [fabric] { return fabric->NewEndpoint(); };
      config.shadow = {shadow};
      config.chunk_bytes = 64;
      config.staging_bytes = 64;  // one by one
      config.rejoin_ns = 600'000'000'000;
      Job job(Layers(), config);
      bool armed = false;
      int told = 0;
      job.receiver_transport = [&](size_t) {
        return std::make_unique<Counted>(fabric->NewEndpoint(), [&](int) {
          if (!armed || ++told != when) return;
          armed = false;
          job.KillPublisher(0);
        });
      };
      ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
      ASSERT_EQ(job.Round(1), absl::OkStatus());
      const testing::SideMemory before(job.live());
      ASSERT_EQ(job.Publish(2), absl::OkStatus());
      armed = true;
      const absl::Status status = job.TakeAt(0, 2);
      ASSERT_FALSE(armed);
      EXPECT_TRUE(HasCode(status, ErrorCode::kPeerLost)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("publisher rank 0"));
      const absl::Status sender = job.publisher(1).AwaitCommit(2, testing::Soon());
      EXPECT_TRUE(HasCode(sender, ErrorCode::kPeerLost)) << sender;
      EXPECT_THAT(std::string(sender.message()), AllOf(HasSubstr("publisher rank 0"), HasSubstr("layers.0")));
      EXPECT_EQ(job.receiver(0).Carry().committed_generation, 1u);
      if (shadow == Shadow::kHost) {
        EXPECT_EQ(job.live().Difference(before), "");
        EXPECT_EQ(job.receiver(0).serving(), 1u);
      } else {
        torn += job.live().Difference(before).empty() ? 0 : 1;
        EXPECT_EQ(job.receiver(0).serving(), std::nullopt);
        EXPECT_TRUE(job.receiver(0).Carry().poisoned);
      }
      EXPECT_FALSE(job.receiver(0).Commit(2).ok());
      // Nothing is served again before all of a generation came.
      ASSERT_EQ(job.JoinPublisher(0), absl::OkStatus());
      ASSERT_EQ(job.Round(3), absl::OkStatus());
      EXPECT_EQ(job.receiver(0).serving(), 3u);
      EXPECT_EQ(job.Difference(), "");
    }
  }
  EXPECT_GT(torn, 0);  // live bytes of two generations lay beside each other, and were not served
}

}  // namespace
}  // namespace headrace
