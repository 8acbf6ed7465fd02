// vllm-project/vllm#31943: a packed broadcast overruns or hangs, since each side derives the size of its bucket from
// its own memory; in siblings one side packs and the other does not.
#include <utility>
#include <vector>

#include "tests/reports/report.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Job;
using testing::JobConfig;

// Three tensors of 3 KiB.
Manifest Tensors() {
  return WholeManifest({{"a", {1536}, Dtype::kBF16}, {"b", {1536}, Dtype::kBF16}, {"c", {1536}, Dtype::kBF16}});
}

// Everyone is told the difference, nobody waits for a deadline, and no byte was written.
void ExpectHandshakeRefused(Job& job, const std::string& option, const std::string& a, const std::string& b) {
  for (const absl::Status& status : job.Join()) {
    EXPECT_TRUE(HasCode(status, ErrorCode::kInvalidOption)) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(option), HasSubstr(a), HasSubstr(b)));
  }
  EXPECT_EQ(job.Difference(), "");
}

TEST(ChunkDisagreementTest, IsRefusedBeforeTheFirstTransfer) {
  for (const auto& [publisher, receiver] : std::vector<std::pair<int64_t, int64_t>>{{8192, 4096}, {4096, 8192}}) {
    for (bool map : {true, false}) {
      SCOPED_TRACE(::testing::Message() << publisher << " and " << receiver << ", map " << map);
      MemoryOptions memory;
      memory.map = map;
      auto fabric = std::make_shared<MemoryFabric>(memory);
      JobConfig config;
      config.transport = [fabric] { return fabric->NewEndpoint(); };
      config.chunk_bytes = publisher;
      config.staging_bytes = 1 << 20;
      Job job(Tensors(), config);
      job.edit_receiver = [bytes = receiver](size_t, ReceiverOptions* options) { options->chunk_bytes = bytes; };
      ExpectHandshakeRefused(job, "chunk_bytes", "8192", "4096");
    }
  }
}

// A member's endpoint that calls itself otherwise.
class Renamed : public Transport {
 public:
  explicit Renamed(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}

  absl::string_view name() const override { return "packed"; }
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
    return inner_->Receive(peer, tag, message);
  }
  void Poll(absl::Duration max_wait, std::vector<Completion>* out) override { inner_->Poll(max_wait, out); }
  void Wake() override { inner_->Wake(); }
  void Abort(const absl::Status& reason) override { inner_->Abort(reason); }

 private:
  const std::unique_ptr<Transport> inner_;
};

TEST(ChunkDisagreementTest, TwoWaysToSendAreRefusedToo) {
  MemoryOptions memory;
  memory.map = false;
  auto fabric = std::make_shared<MemoryFabric>(memory);
  JobConfig config;
  config.transport = [fabric] { return fabric->NewEndpoint(); };
  Job job(Tensors(), config);
  job.receiver_transport = [&](size_t) { return std::make_unique<Renamed>(fabric->NewEndpoint()); };
  ExpectHandshakeRefused(job, "transport", "packed", "memory");
}

}  // namespace
}  // namespace headrace
