// NVIDIA/Megatron-LM#7189: a large refit deadlocks, since what is over-large is cut into groups by each rank for
// itself, so that a send and its receive land in groups that wait for each other. Here a network takes so many
// operations of an endpoint and no more: the cap on staging keeps below that, and both ends cut alike.
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "planner/testing/random_manifest.h"
#include "tests/reports/report.h"

namespace headrace {
namespace {

using testing::FirstError;
using testing::Job;
using testing::JobConfig;

// The sizes of all messages that went from one endpoint to another under one tag, in the order of posting.
using Channels = std::map<std::tuple<std::string, std::string, uint64_t>, std::vector<size_t>>;

struct Record {
  std::mutex mutex;
  Channels sent, received;
  size_t most = 0;  // operations of one endpoint that were pending at once
  size_t refused = 0;
};

class Capped : public Transport {
 public:
  Capped(std::unique_ptr<Transport> inner, size_t cap, Record* record)
      : inner_(std::move(inner)), cap_(cap), record_(record) {}

  absl::string_view name() const override { return inner_->name(); }
  const Capabilities& capabilities() const override { return inner_->capabilities(); }
  std::string address() const override { return inner_->address(); }
  absl::StatusOr<std::unique_ptr<Region>> AllocateRegion(int64_t n) override { return inner_->AllocateRegion(n); }
  absl::StatusOr<PeerId> Connect(absl::string_view address, absl::Time deadline) override {
    auto peer = inner_->Connect(address, deadline);
    if (peer.ok()) addresses_[*peer] = std::string(address);
    return peer;
  }
  void Disconnect(PeerId peer) override { inner_->Disconnect(peer); }
  absl::StatusOr<std::unique_ptr<Mapping>> Map(PeerId peer, absl::string_view key, absl::Time deadline) override {
    return inner_->Map(peer, key, deadline);
  }
  absl::StatusOr<OpId> Send(PeerId peer, uint64_t tag, absl::Span<const std::byte> message) override {
    HR_RETURN_IF_ERROR(Room());
    HR_ASSIGN_OR_RETURN(const OpId op, inner_->Send(peer, tag, message));
    Posted(&Record::sent, {address(), addresses_[peer], tag}, message.size());
    return op;
  }
  absl::StatusOr<OpId> Receive(PeerId peer, uint64_t tag, absl::Span<std::byte> message) override {
    HR_RETURN_IF_ERROR(Room());
    HR_ASSIGN_OR_RETURN(const OpId op, inner_->Receive(peer, tag, message));
    Posted(&Record::received, {addresses_[peer], address(), tag}, message.size());
    return op;
  }
  void Poll(absl::Duration max_wait, std::vector<Completion>* out) override {
    const size_t before = out->size();
    inner_->Poll(max_wait, out);
    pending_ -= out->size() - before;
  }
  void Wake() override { inner_->Wake(); }
  void Abort(const absl::Status& reason) override { inner_->Abort(reason); }

 private:
  absl::Status Room() {
    if (pending_ < cap_) return absl::OkStatus();
    std::lock_guard<std::mutex> lock(record_->mutex);
    ++record_->refused;
    return Error(ErrorCode::kTransport, "no more operations");
  }
  void Posted(Channels Record::*side, const Channels::key_type& channel, size_t bytes) {
    ++pending_;
    std::lock_guard<std::mutex> lock(record_->mutex);
    (record_->*side)[channel].push_back(bytes);
    record_->most = std::max(record_->most, pending_);
  }

  const std::unique_ptr<Transport> inner_;
  const size_t cap_;
  Record* const record_;
  std::map<PeerId, std::string> addresses_;
  size_t pending_ = 0;
};

// Two sources with rows, two destinations with columns, of tensors of uneven sizes: about 4096 * 256 bytes for each
// destination.
Manifest RowsToColumns(uint64_t seed) {
  Random random(seed);
  Manifest m;
  for (Index left = 2 * 4096 * 256 / 2; left > 0;) {
    const Index rows = 2 * Uniform(random, 1, 40), columns = 2 * Uniform(random, 1, 300);
    left -= rows * columns;
    const TensorSpec t{"t" + std::to_string(m.tensors.size()), {rows, columns}, Dtype::kBF16};
    m.tensors.push_back(t);
    const Index r = Uniform(random, 1, rows - 1), c = Uniform(random, 1, columns - 1);
    m.source.push_back(BufferOf(0, t.name, t.dtype, {r, columns}, {PieceOf(t.name, {0, 0}, {r, columns}, {0, 0})}));
    m.source.push_back(
        BufferOf(1, t.name, t.dtype, {rows - r, columns}, {PieceOf(t.name, {r, 0}, {rows - r, columns}, {0, 0})}));
    m.destination.push_back(BufferOf(0, t.name, t.dtype, {rows, c}, {PieceOf(t.name, {0, 0}, {rows, c}, {0, 0})}));
    m.destination.push_back(
        BufferOf(1, t.name, t.dtype, {rows, columns - c}, {PieceOf(t.name, {0, c}, {rows, columns - c}, {0, 0})}));
  }
  return m;
}

TEST(OperationCapTest, CompletesUnderItAndBothEndsCutAlike) {
  // Beside its chunks an endpoint has signals under way, one or two for each of its two peers.
  constexpr size_t kSignals = 4;
  for (const size_t cap : {size_t{1000}, size_t{16}, size_t{1 + kSignals}}) {
    SCOPED_TRACE(::testing::Message() << "cap " << cap << ", seed 31");
    MemoryOptions memory;
    memory.map = false;
    MemoryFabric fabric(memory);
    Record record;
    JobConfig config;
    config.transport = [&] { return std::make_unique<Capped>(fabric.NewEndpoint(), cap, &record); };
    config.chunk_bytes = 256;
    config.staging_bytes = static_cast<int64_t>(cap - kSignals) * 256;
    Job job(RowsToColumns(31), config);
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    for (uint64_t generation : {1, 2}) {
      ASSERT_EQ(job.Round(generation), absl::OkStatus());
      EXPECT_EQ(job.Difference(), "");
    }
    EXPECT_EQ(job.Close(), absl::OkStatus());
    std::lock_guard<std::mutex> lock(record.mutex);
    EXPECT_EQ(record.refused, 0u);
    EXPECT_LE(record.most, cap);
    EXPECT_GE(record.most, cap / 2);
    EXPECT_EQ(record.sent, record.received);
    size_t messages = 0;
    for (const auto& [channel, sizes] : record.sent) messages += sizes.size();
    EXPECT_GE(messages, 2u * 2 * 4096);
  }
}

}  // namespace
}  // namespace headrace
