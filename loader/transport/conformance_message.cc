// Conformance: sends and receives.

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "absl/time/clock.h"
#include "loader/transport/conformance_internal.h"

namespace headrace::conformance {
namespace {

using Bytes = std::vector<std::byte>;

OpId Sent(Transport& from, PeerId to, uint64_t tag, const Bytes& message) {
  auto op = from.Send(to, tag, message);
  EXPECT_TRUE(op.ok()) << op.status();
  return op.ok() ? *op : 0;
}

OpId Posted(Transport& at, PeerId from, uint64_t tag, Bytes& buffer) {
  auto op = at.Receive(from, tag, absl::MakeSpan(buffer));
  EXPECT_TRUE(op.ok()) << op.status();
  return op.ok() ? *op : 0;
}

using Statuses = std::map<std::pair<Transport*, OpId>, absl::Status>;

void ExpectAllOk(const Statuses& statuses) {
  for (const auto& [op, status] : statuses) EXPECT_TRUE(status.ok()) << status;
}

void MessagesOfEverySizeArrive(const NewEndpoint& new_endpoint) {
  Pair pair(new_endpoint);
  const size_t max = pair.a->capabilities().max_message_bytes;
  for (bool receive_first : {true, false}) {
    for (size_t size : {size_t{0}, size_t{1}, size_t{7}, size_t{1000}, size_t{8192}, size_t{20000}, size_t{65537},
                        size_t{300000}, max - 1, max}) {
      if (size > max) continue;
      const Bytes message = Pattern(size, TestSeed() + size);
      Bytes buffer(size, std::byte{0xA5});
      if (receive_first) Posted(*pair.b, pair.b_to_a, 5, buffer);
      Sent(*pair.a, pair.a_to_b, 5, message);
      if (!receive_first) {
        // Lets the message arrive before its receive, where the transport buffers at all.
        std::vector<Completion> none;
        pair.b->Poll(absl::Milliseconds(1), &none);
        EXPECT_TRUE(none.empty());
        Posted(*pair.b, pair.b_to_a, 5, buffer);
      }
      ExpectAllOk(PollUntil({pair.a.get(), pair.b.get()}, 2));
      EXPECT_TRUE(buffer == message) << size;
    }
  }
}

void ManyOutstandingMatchByTagInOrder(const NewEndpoint& new_endpoint) {
  Pair pair(new_endpoint);
  std::mt19937_64 random(TestSeed());
  constexpr int kMessages = 300;
  struct Message {
    uint64_t tag;
    Bytes sent, received;
  };
  std::vector<Message> messages;
  for (int i = 0; i < kMessages; ++i) {
    // Some tags occur often, some once; their order within a tag is by index.
    const uint64_t tag = random() % 2 ? random() % 5 : 1000 + i;
    const size_t size = random() % 4 ? random() % 3000 : random() % 200000;
    messages.push_back({tag, Pattern(size, TestSeed() + i), Bytes(size)});
  }
  // Receives are posted in another order of the tags, but in order within one.
  std::vector<size_t> order(kMessages);
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  std::stable_sort(order.begin(), order.end(), [&](size_t x, size_t y) {
    return messages[x].tag < messages[y].tag || (messages[x].tag == messages[y].tag && x < y);
  });
  size_t send = 0, receive = 0;
  while (send < kMessages || receive < kMessages) {
    if (receive == kMessages || (send < kMessages && random() % 2)) {
      Sent(*pair.a, pair.a_to_b, messages[send].tag, messages[send].sent);
      ++send;
    } else {
      Message& message = messages[order[receive++]];
      Posted(*pair.b, pair.b_to_a, message.tag, message.received);
    }
  }
  ExpectAllOk(PollUntil({pair.a.get(), pair.b.get()}, 2 * kMessages));
  for (const Message& message : messages) EXPECT_TRUE(message.sent == message.received) << message.tag;
}

void SendersAreToldApart(const NewEndpoint& new_endpoint) {
  auto receiver = new_endpoint();
  std::vector<std::unique_ptr<Transport>> senders;
  std::vector<Transport*> all = {receiver.get()};
  std::vector<Bytes> sent, received(4, Bytes(5000));
  for (int i = 0; i < 4; ++i) {
    senders.push_back(new_endpoint());
    all.push_back(senders.back().get());
    sent.push_back(Pattern(5000, i));
  }
  for (int i = 3; i >= 0; --i) {
    auto from = receiver->Connect(senders[i]->address(), Soon());
    auto to = senders[i]->Connect(receiver->address(), Soon());
    ASSERT_TRUE(from.ok() && to.ok()) << from.status() << to.status();
    Posted(*receiver, *from, 9, received[i]);
    Sent(*senders[i], *to, 9, sent[i]);
  }
  ExpectAllOk(PollUntil(all, 8));
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(sent[i] == received[i]) << i;
}

void BothDirectionsAtOnce(const NewEndpoint& new_endpoint) {
  Pair pair(new_endpoint);
  const size_t size = std::min<int64_t>(pair.a->capabilities().max_message_bytes, 1 << 20);
  const Bytes x = Pattern(size, 1), y = Pattern(size, 2);
  Bytes at_a(size), at_b(size);
  Posted(*pair.a, pair.a_to_b, 1, at_a);
  Posted(*pair.b, pair.b_to_a, 1, at_b);
  Sent(*pair.a, pair.a_to_b, 1, x);
  Sent(*pair.b, pair.b_to_a, 1, y);
  ExpectAllOk(PollUntil({pair.a.get(), pair.b.get()}, 4));
  EXPECT_TRUE(at_b == x && at_a == y);
}

void EveryBitOfTheTagCounts(const NewEndpoint& new_endpoint) {
  Pair pair(new_endpoint);
  const int bits = pair.a->capabilities().tag_bits;
  std::vector<Bytes> sent, received(bits + 1, Bytes(16));
  for (int i = 0; i <= bits; ++i) sent.push_back(Pattern(16, i));
  const auto tag = [](int i) { return i == 0 ? uint64_t{0} : uint64_t{1} << (i - 1); };
  for (int i = 0; i <= bits; ++i) Posted(*pair.b, pair.b_to_a, tag(i), received[i]);
  for (int i = bits; i >= 0; --i) Sent(*pair.a, pair.a_to_b, tag(i), sent[i]);
  ExpectAllOk(PollUntil({pair.a.get(), pair.b.get()}, 2 * (bits + 1)));
  for (int i = 0; i <= bits; ++i) EXPECT_TRUE(sent[i] == received[i]) << i;
}

void WhatIsTooLargeIsRefused(const NewEndpoint& new_endpoint) {
  Pair pair(new_endpoint);
  Bytes big(pair.a->capabilities().max_message_bytes + 1), small(10);
  EXPECT_THAT(pair.a->Send(pair.a_to_b, 1, big).status(), HasErrorCode(ErrorCode::kTransport));
  EXPECT_THAT(pair.a->Receive(pair.a_to_b, 1, absl::MakeSpan(big)).status(), HasErrorCode(ErrorCode::kTransport));
  if (const int bits = pair.a->capabilities().tag_bits; bits < 64) {
    const uint64_t wide = uint64_t{1} << bits;
    EXPECT_THAT(pair.a->Send(pair.a_to_b, wide, small).status(), HasErrorCode(ErrorCode::kTransport));
    EXPECT_THAT(pair.a->Receive(pair.a_to_b, wide, absl::MakeSpan(small)).status(),
                HasErrorCode(ErrorCode::kTransport));
  }
}

void SizesMustAgree(const NewEndpoint& new_endpoint) {
  Pair pair(new_endpoint);
  const size_t max = pair.a->capabilities().max_message_bytes;
  const std::pair<size_t, size_t> sizes[] = {{0, 1},         {1, 0},           {10, 9},        {10, 11},
                                             {20000, 19999}, {300000, 300001}, {max, max - 1}, {max - 1, max}};
  for (auto [message_size, buffer_size] : sizes) {
    const Bytes message = Pattern(message_size, 1), next = Pattern(50, 2);
    Bytes buffer(buffer_size), next_buffer(50);
    const OpId receive = Posted(*pair.b, pair.b_to_a, 3, buffer);
    Posted(*pair.b, pair.b_to_a, 3, next_buffer);
    Sent(*pair.a, pair.a_to_b, 3, message);
    Sent(*pair.a, pair.a_to_b, 3, next);
    for (const auto& [op, status] : PollUntil({pair.a.get(), pair.b.get()}, 4)) {
      if (op.first == pair.b.get() && op.second == receive) {
        EXPECT_THAT(status, HasErrorCode(ErrorCode::kTransport)) << message_size << " into " << buffer_size;
      } else if (op.first == pair.b.get()) {
        EXPECT_TRUE(status.ok()) << status;
      }
    }
    EXPECT_TRUE(next_buffer == next) << "what follows is not disturbed";
  }
}

void DisconnectEndsOperations(const NewEndpoint& new_endpoint) {
  Pair pair(new_endpoint);
  auto third = new_endpoint();
  auto to_third = pair.a->Connect(third->address(), Soon());
  auto from_third = third->Connect(pair.a->address(), Soon());
  ASSERT_TRUE(to_third.ok() && from_third.ok());
  std::vector<Bytes> buffers(3, Bytes(100));
  const OpId x = Posted(*pair.a, pair.a_to_b, 1, buffers[0]);
  const OpId y = Posted(*pair.a, pair.a_to_b, 2, buffers[1]);
  const OpId kept = Posted(*pair.a, *to_third, 1, buffers[2]);
  pair.a->Disconnect(pair.a_to_b);
  Statuses statuses = PollUntil({pair.a.get()}, 2);
  EXPECT_THAT((statuses[{pair.a.get(), x}]), HasErrorCode(ErrorCode::kAborted));
  EXPECT_THAT((statuses[{pair.a.get(), y}]), HasErrorCode(ErrorCode::kAborted));
  EXPECT_THAT(pair.a->Receive(pair.a_to_b, 1, absl::MakeSpan(buffers[0])).status(),
              HasErrorCode(ErrorCode::kTransport));
  const Bytes message = Pattern(100, 1);
  Sent(*third, *from_third, 1, message);
  statuses = PollUntil({pair.a.get(), third.get()}, 2);
  EXPECT_TRUE((statuses[{pair.a.get(), kept}]).ok());
  EXPECT_TRUE(buffers[2] == message);
}

void AbortEndsOperations(const NewEndpoint& new_endpoint) {
  Pair pair(new_endpoint);
  const size_t max = pair.a->capabilities().max_message_bytes;
  std::vector<Bytes> buffers(20, Bytes(max / 16));
  std::map<OpId, bool> is_receive;
  for (size_t i = 0; i < 10; ++i) is_receive[Posted(*pair.a, pair.a_to_b, i, buffers[i])] = true;
  for (size_t i = 10; i < 20; ++i) is_receive[Sent(*pair.a, pair.a_to_b, i, buffers[i])] = false;
  pair.a->Abort(Error(ErrorCode::kVerificationFailed, "tile 12 differs"));
  for (const auto& [op, status] : PollUntil({pair.a.get()}, 20)) {
    if (status.ok() && !is_receive[op.second]) continue;  // was sent before
    EXPECT_THAT(status, HasErrorCode(ErrorCode::kAborted));
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("tile 12 differs"));
  }
}

void PeerDeathEndsOperations(const NewEndpoint& new_endpoint) {
  for (bool exchanged_before : {false, true}) {
    Pair pair(new_endpoint);
    Bytes hello(10), buffer(10);
    if (exchanged_before) {
      Posted(*pair.a, pair.a_to_b, 1, buffer);
      Sent(*pair.b, pair.b_to_a, 1, hello);
      ExpectAllOk(PollUntil({pair.a.get(), pair.b.get()}, 2));
    }
    const Bytes large(pair.a->capabilities().max_message_bytes);
    std::vector<Bytes> buffers(10, Bytes(1000));
    std::map<OpId, bool> is_receive;
    for (size_t i = 0; i < 10; ++i) is_receive[Posted(*pair.a, pair.a_to_b, 10 + i, buffers[i])] = true;
    for (size_t i = 0; i < 3; ++i) is_receive[Sent(*pair.a, pair.a_to_b, 50 + i, large)] = false;
    pair.b.reset();
    for (const auto& [op, status] : PollUntil({pair.a.get()}, 13)) {
      if (status.ok() && !is_receive[op.second]) continue;  // was buffered on its way
      EXPECT_THAT(status, HasErrorCode(ErrorCode::kPeerLost)) << exchanged_before;
    }
    EXPECT_THAT(pair.a->Send(pair.a_to_b, 1, hello).status(), HasErrorCode(ErrorCode::kPeerLost));
    EXPECT_THAT(pair.a->Receive(pair.a_to_b, 1, absl::MakeSpan(buffer)).status(), HasErrorCode(ErrorCode::kPeerLost));
    pair.a->Disconnect(pair.a_to_b);
  }
}

void PendingOperationsDoNotOutliveTheEndpoint(const NewEndpoint& new_endpoint) {
  // Under the address sanitizer: nothing touches the buffers afterwards.
  Pair pair(new_endpoint);
  {
    auto buffer = std::make_unique<Bytes>(100000);
    auto message = std::make_unique<Bytes>(pair.a->capabilities().max_message_bytes);
    Posted(*pair.a, pair.a_to_b, 1, *buffer);
    Sent(*pair.a, pair.a_to_b, 2, *message);
    pair.a.reset();
  }
  Bytes buffer(pair.b->capabilities().max_message_bytes);
  std::vector<Completion> completions;
  for (uint64_t tag : {1, 2}) {
    if (!pair.b->Receive(pair.b_to_a, tag, absl::MakeSpan(buffer)).ok()) continue;
    (void)pair.b->Send(pair.b_to_a, tag, absl::MakeSpan(buffer).first(100));
    pair.b->Poll(absl::Milliseconds(20), &completions);
  }
}

void PollOfZeroNeverWaits(const NewEndpoint& new_endpoint) {
  Pair pair(new_endpoint);
  Bytes buffer(100);
  Posted(*pair.a, pair.a_to_b, 1, buffer);
  std::vector<Completion> completions;
  for (int i = 0; i < 1000; ++i) pair.a->Poll(absl::ZeroDuration(), &completions);
  EXPECT_TRUE(completions.empty());
}

void PollReturnsAtACompletion(const NewEndpoint& new_endpoint) {
  // Would not return in an hour otherwise.
  Pair pair(new_endpoint);
  std::atomic<bool> done = false;
  const Bytes message = Pattern(200000, 1);
  std::thread sender([&] {
    Sent(*pair.b, pair.b_to_a, 1, message);
    std::vector<Completion> completions;
    while (!done) pair.b->Poll(absl::Milliseconds(1), &completions);
  });
  Bytes buffer(message.size());
  Posted(*pair.a, pair.a_to_b, 1, buffer);
  std::vector<Completion> completions;
  pair.a->Poll(absl::Hours(1), &completions);
  ASSERT_EQ(completions.size(), 1u);
  EXPECT_TRUE(completions[0].status.ok()) << completions[0].status;
  done = true;
  sender.join();
  EXPECT_TRUE(buffer == message);
}

void EndpointsOfDifferentThreads(const NewEndpoint& new_endpoint) {
  constexpr int kMessages = 200;
  Pair pair(new_endpoint);
  const auto run = [](Transport& endpoint, PeerId peer, uint64_t seed, uint64_t peer_seed) {
    std::vector<Bytes> sent, received(kMessages, Bytes(5000));
    for (int i = 0; i < kMessages; ++i) sent.push_back(Pattern(5000, seed + i));
    for (int i = 0; i < kMessages; ++i) {
      Posted(endpoint, peer, i % 7, received[i]);
      Sent(endpoint, peer, i % 7, sent[i]);
    }
    ExpectAllOk(PollUntil({&endpoint}, 2 * kMessages));
    for (int i = 0; i < kMessages; ++i) EXPECT_TRUE(received[i] == Pattern(5000, peer_seed + i)) << i;
  };
  std::thread other([&] { run(*pair.b, pair.b_to_a, 1000, 5000); });
  run(*pair.a, pair.a_to_b, 5000, 1000);
  other.join();
}

}  // namespace

std::vector<Case> MessageCases() {
#define HEADRACE_CASE(function) \
  Case { #function, Needs::kTwoSided, function }
  return {HEADRACE_CASE(MessagesOfEverySizeArrive),
          HEADRACE_CASE(ManyOutstandingMatchByTagInOrder),
          HEADRACE_CASE(SendersAreToldApart),
          HEADRACE_CASE(BothDirectionsAtOnce),
          HEADRACE_CASE(EveryBitOfTheTagCounts),
          HEADRACE_CASE(WhatIsTooLargeIsRefused),
          HEADRACE_CASE(SizesMustAgree),
          HEADRACE_CASE(DisconnectEndsOperations),
          HEADRACE_CASE(AbortEndsOperations),
          HEADRACE_CASE(PeerDeathEndsOperations),
          HEADRACE_CASE(PendingOperationsDoNotOutliveTheEndpoint),
          HEADRACE_CASE(PollOfZeroNeverWaits),
          HEADRACE_CASE(PollReturnsAtACompletion),
          HEADRACE_CASE(EndpointsOfDifferentThreads)};
#undef HEADRACE_CASE
}

}  // namespace headrace::conformance
