#include "loader/transport/memory/memory.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "loader/transport/conformance.h"
#include "planner/status.h"

namespace headrace {
namespace {

using Bytes = std::vector<std::byte>;

// Two endpoints of a fabric with faults; `a` sends message i of `messages` under tag i, `b` receives.
struct Exchange {
  explicit Exchange(const MemoryOptions& options, int count = 40) : fabric(options) {
    a = fabric.NewEndpoint();
    b = fabric.NewEndpoint();
    a_to_b = a->Connect(b->address(), absl::InfiniteFuture()).value();
    b_to_a = b->Connect(a->address(), absl::InfiniteFuture()).value();
    for (int i = 0; i < count; ++i) {
      messages.push_back(Bytes(64, static_cast<std::byte>(i + 1)));
      buffers.push_back(Bytes(64));
    }
    for (int i = 0; i < count; ++i) {
      receives.push_back(b->Receive(b_to_a, i, absl::MakeSpan(buffers[i])).value());
      sends.push_back(a->Send(a_to_b, i, messages[i]).value());
    }
  }
  std::vector<Completion> Poll(Transport& endpoint) {
    std::vector<Completion> completions;
    endpoint.Poll(absl::ZeroDuration(), &completions);
    return completions;
  }

  MemoryFabric fabric;
  std::unique_ptr<Transport> a, b;
  PeerId a_to_b, b_to_a;
  std::vector<Bytes> messages, buffers;
  std::vector<OpId> sends, receives;
};

TEST(Memory, CapabilitiesCanBeSwitchedOff) {
  MemoryFabric no_map({.map = false}), no_messages({.two_sided = false}), small({.max_message_bytes = 10});
  EXPECT_FALSE(no_map.NewEndpoint()->capabilities().map);
  EXPECT_FALSE(no_map.NewEndpoint()->capabilities().map_reason.empty());
  EXPECT_FALSE(no_messages.NewEndpoint()->capabilities().two_sided);
  EXPECT_EQ(small.NewEndpoint()->capabilities().max_message_bytes, 10);
  MemoryFabric no_read({.read = false});
  EXPECT_FALSE(no_read.NewEndpoint()->capabilities().read);
  const std::byte memory[8] = {};
  EXPECT_TRUE(HasCode(no_read.NewEndpoint()->Register(memory).status(), ErrorCode::kTransport));
  auto endpoint = no_map.NewEndpoint();
  auto region = endpoint->AllocateRegion(10);
  ASSERT_TRUE(region.ok());
  EXPECT_EQ((*region)->key(), "");
}

TEST(Memory, WithoutFaultsCompletionsComeInOrder) {
  Exchange exchange({});
  std::vector<OpId> order;
  for (const Completion& c : exchange.Poll(*exchange.b)) order.push_back(c.op);
  EXPECT_EQ(order, exchange.receives);
}

TEST(Memory, ReordersCompletionsBySeed) {
  const auto order = [](uint64_t seed) {
    Exchange exchange({.seed = seed, .reorder_completions = true});
    std::vector<OpId> ops;
    for (const Completion& c : exchange.Poll(*exchange.b)) ops.push_back(c.op);
    EXPECT_NE(ops, exchange.receives);
    EXPECT_TRUE(std::is_permutation(ops.begin(), ops.end(), exchange.receives.begin(), exchange.receives.end()));
    EXPECT_EQ(exchange.buffers, exchange.messages);
    return ops;
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
}

TEST(Memory, DelaysByStepsOfPolling) {
  Exchange exchange({.delay_probability = 1, .max_delay_steps = 6});
  size_t done = 0;
  std::vector<size_t> per_step;
  for (int step = 1; step <= 6; ++step) {
    per_step.push_back(exchange.Poll(*exchange.b).size());
    done += per_step.back();
  }
  EXPECT_EQ(done, exchange.receives.size());
  EXPECT_GE(std::count_if(per_step.begin(), per_step.end(), [](size_t n) { return n > 0; }), 3);
  EXPECT_EQ(exchange.buffers, exchange.messages);
}

TEST(Memory, AWaitingPollLetsDelayedMessagesArrive) {
  Exchange exchange({.delay_probability = 1, .max_delay_steps = 1000}, 1);
  std::vector<Completion> completions;
  exchange.b->Poll(absl::InfiniteDuration(), &completions);
  EXPECT_EQ(completions.size(), 1u);
}

TEST(Memory, DelayedMessagesKeepTheirOrder) {
  MemoryFabric fabric({.delay_probability = 0.5, .max_delay_steps = 20});
  auto a = fabric.NewEndpoint(), b = fabric.NewEndpoint();
  const PeerId to_b = a->Connect(b->address(), absl::InfiniteFuture()).value();
  const PeerId to_a = b->Connect(a->address(), absl::InfiniteFuture()).value();
  std::vector<Bytes> sent, received(50, Bytes(8));
  for (int i = 0; i < 50; ++i) sent.push_back(Bytes(8, static_cast<std::byte>(i)));
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(a->Send(to_b, 7, sent[i]).ok());
    ASSERT_TRUE(b->Receive(to_a, 7, absl::MakeSpan(received[i])).ok());
  }
  std::vector<Completion> completions;
  for (int i = 0; i < 30; ++i) b->Poll(absl::ZeroDuration(), &completions);
  EXPECT_EQ(completions.size(), 50u);
  EXPECT_EQ(sent, received);
}

TEST(Memory, DroppedMessagesStayPendingUntilAbort) {
  Exchange exchange({.drop_probability = 0.5});
  const size_t arrived = exchange.Poll(*exchange.b).size();
  EXPECT_GT(arrived, 0u);
  EXPECT_LT(arrived, exchange.receives.size());
  EXPECT_EQ(exchange.Poll(*exchange.a).size(), arrived);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(exchange.Poll(*exchange.b).empty());
  exchange.b->Abort(Error(ErrorCode::kDeadline, "gone"));
  const std::vector<Completion> ended = exchange.Poll(*exchange.b);
  EXPECT_EQ(ended.size(), exchange.receives.size() - arrived);
  for (const Completion& c : ended) EXPECT_TRUE(HasCode(c.status, ErrorCode::kAborted)) << c.status;
  exchange.b.reset();
  const std::vector<Completion> lost = exchange.Poll(*exchange.a);
  EXPECT_EQ(lost.size(), exchange.sends.size() - arrived);
  for (const Completion& c : lost) EXPECT_TRUE(HasCode(c.status, ErrorCode::kPeerLost)) << c.status;
}

TEST(Memory, CorruptionFlipsOneBit) {
  Exchange exchange({.corrupt_probability = 1});
  for (size_t i = 0; i < exchange.messages.size(); ++i) {
    int flipped = 0;
    for (size_t j = 0; j < 64; ++j) {
      flipped += __builtin_popcount(std::to_integer<unsigned>(exchange.messages[i][j] ^ exchange.buffers[i][j]));
    }
    EXPECT_EQ(flipped, 1);
  }
}

TEST(Memory, CutEndsBothSidesAndKeepsMappings) {
  MemoryFabric fabric({.drop_probability = 1});
  auto a = fabric.NewEndpoint(), b = fabric.NewEndpoint();
  const PeerId to_b = a->Connect(b->address(), absl::InfiniteFuture()).value();
  const PeerId to_a = b->Connect(a->address(), absl::InfiniteFuture()).value();
  auto region = b->AllocateRegion(100);
  ASSERT_TRUE(region.ok());
  (*region)->bytes()[99] = std::byte{9};
  auto mapping = a->Map(to_b, (*region)->key(), absl::InfiniteFuture());
  ASSERT_TRUE(mapping.ok());
  Bytes x(8), y(8);
  ASSERT_TRUE(a->Send(to_b, 1, x).ok());
  ASSERT_TRUE(b->Receive(to_a, 1, absl::MakeSpan(y)).ok());
  fabric.Cut(b->address());
  fabric.Cut(b->address());
  fabric.Cut("no address");
  for (Transport* endpoint : {a.get(), b.get()}) {
    std::vector<Completion> completions;
    endpoint->Poll(absl::InfiniteDuration(), &completions);
    ASSERT_EQ(completions.size(), 1u);
    EXPECT_TRUE(HasCode(completions[0].status, ErrorCode::kPeerLost)) << completions[0].status;
  }
  EXPECT_EQ((*mapping)->bytes()[99], std::byte{9});
  EXPECT_TRUE(HasCode(a->Map(to_b, (*region)->key(), absl::InfiniteFuture()).status(), ErrorCode::kPeerLost));
  EXPECT_TRUE(HasCode(b->Send(to_a, 1, x).status(), ErrorCode::kPeerLost));
}

TEST(Memory, FaultsCanBeReplaced) {
  Exchange exchange({.drop_probability = 1}, 1);
  exchange.fabric.SetFaults({.map = false, .two_sided = false, .max_message_bytes = 1});
  Bytes buffer(64);
  ASSERT_TRUE(exchange.b->Receive(exchange.b_to_a, 9, absl::MakeSpan(buffer)).ok());
  ASSERT_TRUE(exchange.a->Send(exchange.a_to_b, 9, exchange.messages[0]).ok());
  EXPECT_EQ(exchange.Poll(*exchange.b).size(), 1u);
  EXPECT_TRUE(exchange.fabric.NewEndpoint()->capabilities().map);
}

TEST(Memory, SaysWhatItHolds) {
  MemoryFabric fabric;
  auto owner = fabric.NewEndpoint(), reader = fabric.NewEndpoint();
  auto region = owner->AllocateRegion(100).value();
  const PeerId to_owner = reader->Connect(owner->address(), absl::InfiniteFuture()).value();
  auto mapping = reader->Map(to_owner, region->key(), absl::InfiniteFuture()).value();
  Bytes memory(8);
  auto registration = owner->Register(memory).value();
  ASSERT_TRUE(reader->Receive(to_owner, 1, absl::MakeSpan(memory)).ok());
  MemoryUsage usage = fabric.Usage();
  EXPECT_EQ(usage.endpoints, 2);
  EXPECT_EQ(usage.regions, 1);
  EXPECT_EQ(usage.region_bytes, static_cast<int64_t>(region->bytes().size()));
  EXPECT_EQ(usage.mappings, 1);
  EXPECT_EQ(usage.registrations, 1);
  EXPECT_EQ(usage.pending, 1);
  EXPECT_EQ(usage.channels, 1);
  reader.reset();
  usage = fabric.Usage();
  EXPECT_EQ(usage.endpoints, 1);
  EXPECT_EQ(usage.mappings, 1);  // outlives the endpoint
  EXPECT_EQ(usage.pending, 0);
  EXPECT_EQ(usage.channels, 0);
  mapping.reset();
  region.reset();
  registration.reset();
  owner.reset();
  usage = fabric.Usage();
  EXPECT_EQ(usage.endpoints + usage.regions + usage.region_bytes + usage.mappings + usage.registrations, 0);
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  return headrace::RunConformance(argc, argv, {"memory", [] {
                                                 auto fabric = std::make_shared<headrace::MemoryFabric>();
                                                 return [fabric] { return fabric->NewEndpoint(); };
                                               }});
}
