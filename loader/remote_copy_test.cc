#include "loader/remote_copy.h"

#include <cstring>
#include <map>
#include <random>
#include <utility>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/sum.h"
#include "loader/hold_path.h"
#include "loader/lowering.h"
#include "loader/testing/naive_copy.h"
#include "loader/testing/side_memory.h"
#include "loader/transport/memory/memory.h"
#include "planner/status.h"
#include "planner/testing/element_oracle.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

using testing::SideMemory;
using testing::VisitCopy;

constexpr ReadForm kForms[] = {ReadForm::kSpans, ReadForm::kRuns};

// A publisher's endpoint and a receiver's, and memory of the one opened at the other.
class Publisher {
 public:
  Publisher() : owner_(fabric.NewEndpoint()), reader_(fabric.NewEndpoint()) {
    peer_ = reader_->Connect(owner_->address(), absl::InfiniteFuture()).value();
  }

  std::unique_ptr<RemoteMemory> Open(absl::Span<const std::byte> memory) {
    registrations.push_back(owner_->Register(memory).value());
    return reader_->OpenRemote(peer_, registrations.back()->key(), absl::InfiniteFuture()).value();
  }

  MemoryFabric fabric;
  std::vector<std::unique_ptr<Registration>> registrations;

 private:
  std::unique_ptr<Transport> owner_, reader_;
  PeerId peer_ = 0;
};

class CountingMemory : public RemoteMemory {
 public:
  explicit CountingMemory(std::unique_ptr<RemoteMemory> memory) : memory_(std::move(memory)) {}
  int64_t bytes() const override { return memory_->bytes(); }
  absl::Status Read(absl::Span<const ReadRange> ranges, std::byte* out, absl::Time deadline) override {
    ++reads;
    for (const ReadRange& range : ranges) bytes_read += range.bytes;
    return memory_->Read(ranges, out, deadline);
  }

  int64_t bytes_read = 0, reads = 0;

 private:
  const std::unique_ptr<RemoteMemory> memory_;
};

TEST(RemoteCopyTest, CopiesAndSumsWhatThePlanSays) {
  for (int seed = 0; seed < testing::Share(120); ++seed) {
    Random random(seed);
    Manifest m = RandomManifest(random);
    for (const Buffer& b : m.source) {
      if (b.convert_rne) m.source.clear();  // nothing that is held is converted
      if (m.source.empty()) break;
    }
    if (m.source.empty() || SourcesContradict(m)) continue;
    const auto plan = BuildPlan(m);
    ASSERT_TRUE(plan.ok()) << plan.status();
    SideMemory source(m.source);
    testing::PaintSource(m, 1, &source);
    Publisher publisher;
    std::map<int, std::unique_ptr<RemoteMemory>> remote;
    for (size_t i = 0; i < m.source.size(); ++i) {
      const int64_t bytes = SpanBytes(m.source[i], m.source[i].dtype);
      if (bytes > 0) remote[i] = publisher.Open({source.First(m.source[i]), static_cast<size_t>(bytes)});
    }
    for (const ReadForm form : kForms) {
      for (const int64_t bounce : {int64_t{1}, Uniform(random, 2, 40), kBounceBytes}) {
        SideMemory wanted(m.destination), got(m.destination);
        RemoteCopier copier(bounce);
        for (const Copy& c : plan->copies) {
          uint64_t sum = 0;
          VisitCopy(c, [&](Index s, Index d, Index p) {
            const std::byte* from = source.First(m.source[c.source]) + s;
            wanted.First(m.destination[c.destination])[d] = *from;
            sum += kernels::SumRun(TensorKey(c.tensor), p, from, 1);
          });
          const auto copied = copier.Run(c, form, *remote.at(c.source), 0, got.First(m.destination[c.destination]),
                                         absl::InfiniteFuture());
          ASSERT_TRUE(copied.ok()) << copied.status();
          ASSERT_EQ(*copied, sum) << "seed " << seed << ", bounce " << bounce;
        }
        ASSERT_EQ(got.Difference(wanted), "") << "seed " << seed << ", bounce " << bounce;
      }
    }
  }
}

// Large boxes with gaps, transposed ones and such that go down in the source.
TEST(RemoteCopyTest, CopiesLargeBoxes) {
  for (int seed = 0; seed < testing::Share(40); ++seed) {
    std::mt19937_64 random(seed);
    const auto draw = [&](Index low, Index high) { return Uniform(random, low, high); };
    Copy c;
    c.tensor = 3;
    c.run_bytes = seed % 5 == 0 ? draw(100000, 400000) : draw(1, 3000);
    c.position = draw(0, 1 << 20);
    Index source = c.run_bytes + draw(0, c.run_bytes), destination = c.run_bytes + draw(0, 9), low = 0;
    for (int i = 0; i < seed % 4 && source < 2 << 20; ++i) {
      CopyLoop loop{draw(2, 30), source, destination, destination};
      source = source * loop.extent + draw(0, 100);
      destination = destination * loop.extent + draw(0, 100);
      if (draw(0, 3) == 0) {
        loop.source_stride = -loop.source_stride;
        low += (loop.extent - 1) * loop.source_stride;
      }
      c.loops.insert(draw(0, 1) == 0 ? c.loops.begin() : c.loops.end(), loop);
    }
    const Index first = draw(0, 64);
    c.source_offset = -low;
    std::vector<std::byte> memory(source + first), wanted(destination), got(destination);
    for (std::byte& b : memory) b = static_cast<std::byte>(random());
    uint64_t sum = 0;
    VisitCopy(c, [&](Index s, Index d, Index p) {
      wanted[d] = memory[first + s];
      sum += kernels::SumRun(TensorKey(c.tensor), p, &memory[first + s], 1);
    });
    Publisher publisher;
    CountingMemory remote(publisher.Open(memory));
    for (const ReadForm form : kForms) {
      remote.bytes_read = remote.reads = 0;
      std::fill(got.begin(), got.end(), std::byte{0});
      RemoteCopier copier;
      const auto copied = copier.Run(c, form, remote, first, got.data(), absl::InfiniteFuture());
      ASSERT_TRUE(copied.ok()) << copied.status();
      EXPECT_EQ(*copied, sum) << "seed " << seed;
      // The costs are reckoned from what is done.
      const HoldShape shape = ShapeOf(c);
      EXPECT_EQ(remote.bytes_read, form == ReadForm::kSpans ? shape.span_bytes : shape.bytes) << "seed " << seed;
      if (form == ReadForm::kSpans) {
        EXPECT_EQ(remote.reads, shape.span_reads) << "seed " << seed;
      }
      ASSERT_TRUE(got == wanted) << "seed " << seed;
    }
  }
}

TEST(RemoteCopyTest, PassesErrorsOn) {
  Publisher publisher;
  const std::vector<std::byte> memory(1000);
  std::vector<std::byte> destination(1000);
  const auto remote = publisher.Open(memory);
  Copy c;
  c.run_bytes = 10;
  c.loops = {{100, 10, 10, 10}};
  RemoteCopier copier(64);
  for (const ReadForm form : kForms) {
    EXPECT_TRUE(copier.Run(c, form, *remote, 0, destination.data(), absl::InfiniteFuture()).ok());
    for (const Index first : {1, -1}) {
      EXPECT_TRUE(HasCode(copier.Run(c, form, *remote, first, destination.data(), absl::InfiniteFuture()).status(),
                          ErrorCode::kOutOfBounds));
    }
    EXPECT_TRUE(
        HasCode(copier.Run(c, form, *remote, 0, destination.data(), absl::Now()).status(), ErrorCode::kDeadline));
  }
  publisher.registrations.clear();
  for (const ReadForm form : kForms) {
    EXPECT_TRUE(HasCode(copier.Run(c, form, *remote, 0, destination.data(), absl::InfiniteFuture()).status(),
                        ErrorCode::kTransport));
  }
}

TEST(RemoteCopyTest, AFlippedBitChangesTheSum) {
  Publisher publisher;
  const std::vector<std::byte> memory(5000, std::byte{7});
  std::vector<std::byte> destination(5000);
  const auto remote = publisher.Open(memory);
  Copy c;
  c.run_bytes = 5000;
  RemoteCopier copier;
  const auto right = copier.Run(c, ReadForm::kSpans, *remote, 0, destination.data(), absl::InfiniteFuture());
  publisher.fabric.SetFaults({.corrupt_probability = 1});
  const auto wrong = copier.Run(c, ReadForm::kSpans, *remote, 0, destination.data(), absl::InfiniteFuture());
  ASSERT_TRUE(right.ok() && wrong.ok());
  EXPECT_NE(*right, *wrong);
}

}  // namespace
}  // namespace headrace
