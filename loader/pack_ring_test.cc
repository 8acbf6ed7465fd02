#include "loader/pack_ring.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/testing/naive_copy.h"
#include "loader/transport/host/host.h"
#include "loader/transport/memory/memory.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr PackRingOptions kSmall{4, 64};

// A guard against hangs, never an expectation of speed.
RingPatience Soon() { return {absl::Now() + absl::Seconds(60), nullptr}; }

bool IsCode(const absl::Status& status, ErrorCode code) { return HasCode(status, code); }

// What the n-th slot of a test holds.
std::vector<std::byte> Content(uint64_t n, size_t bytes) {
  std::mt19937_64 random(n);
  std::vector<std::byte> out(bytes);
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  return out;
}

void Put(PackRingWriter& writer, absl::Span<std::byte> slot, uint64_t tag, uint64_t n, size_t bytes) {
  const auto content = Content(n, bytes);
  std::copy(content.begin(), content.end(), slot.begin());
  writer.Publish(tag, bytes);
}

struct Ring {
  explicit Ring(const PackRingOptions& options = kSmall, RingSleep* writer_sleep = FutexSleep(),
                RingSleep* reader_sleep = FutexSleep()) {
    a = fabric.NewEndpoint();
    b = fabric.NewEndpoint();
    a_to_b = a->Connect(b->address(), absl::InfiniteFuture()).value();
    b_to_a = b->Connect(a->address(), absl::InfiniteFuture()).value();
    writer = PackRingWriter::Create(a.get(), options, writer_sleep).value();
    reader =
        PackRingReader::Create(b.get(), b_to_a, writer->key(), options, absl::InfiniteFuture(), reader_sleep).value();
    EXPECT_TRUE(writer->Connect(a.get(), a_to_b, reader->key(), absl::InfiniteFuture()).ok());
  }
  MemoryFabric fabric;
  std::unique_ptr<Transport> a, b;
  PeerId a_to_b, b_to_a;
  std::unique_ptr<PackRingWriter> writer;
  std::unique_ptr<PackRingReader> reader;
};

// Steps of both ends in all orders that chance makes; the model is a queue of at most `slots`.
TEST(PackRingTest, IsAQueueOfItsSlots) {
  for (int seed = 0; seed < testing::Share(100); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const PackRingOptions options{1 << random() % 4, static_cast<int64_t>(1 + random() % 100)};
    Ring ring(options);
    std::deque<std::pair<uint64_t, size_t>> model;  // content, bytes
    uint64_t next = 0;
    for (int step = 0; step < 400; ++step) {
      if (random() % 2 == 0) {
        auto slot = ring.writer->TryAcquire();
        ASSERT_TRUE(slot.ok()) << slot.status();
        ASSERT_EQ(slot->has_value(), model.size() < static_cast<size_t>(options.slots));
        if (!*slot) continue;
        ASSERT_EQ((*slot)->size(), static_cast<size_t>(options.slot_bytes));
        if (random() % 4 == 0) continue;  // acquired again later: the same slot
        const size_t bytes = random() % (options.slot_bytes + 1);
        Put(*ring.writer, **slot, 5, next, bytes);
        model.emplace_back(next++, bytes);
      } else {
        auto slot = ring.reader->TryNext(5);
        ASSERT_TRUE(slot.ok()) << slot.status();
        ASSERT_EQ(slot->has_value(), !model.empty());
        if (!*slot) continue;
        const auto wanted = Content(model.front().first, model.front().second);
        ASSERT_TRUE(std::equal(wanted.begin(), wanted.end(), (*slot)->begin(), (*slot)->end()));
        if (random() % 4 == 0) continue;
        ring.reader->Release();
        model.pop_front();
      }
    }
  }
}

// Instead of sleeping, the other end acts; the semantics of a futex are checked on the way.
class ScriptedSleep : public RingSleep {
 public:
  void Wait(const std::atomic<uint32_t>& word, uint32_t seen, absl::Duration most) override {
    EXPECT_GT(most, absl::ZeroDuration());
    EXPECT_LE(most, absl::Milliseconds(20));
    if (before) before();
    if (word.load() != seen) return;
    ++sleeps;
    woken = nullptr;
    if (during) during();
    if (word.load() != seen) {
      EXPECT_EQ(woken, &word) << "the other end went on and woke nobody";
    }
  }
  void Wake(const std::atomic<uint32_t>& word) override { woken = &word; }

  std::function<void()> before, during;
  const std::atomic<uint32_t>* woken = nullptr;  // as the waker sees it: the memory transport has one address for both
  int sleeps = 0;
};

TEST(PackRingTest, WhoSleepsIsWokenAndWhoDoesNotIsNot) {
  ScriptedSleep sleep;
  Ring ring(kSmall, &sleep, &sleep);
  for (uint64_t n = 0; n < 20; ++n) {
    // Published while the reader sleeps, or just before it falls asleep.
    const auto publish = [&] { Put(*ring.writer, ring.writer->TryAcquire().value().value(), 1, n, 8); };
    const int before = sleep.sleeps;
    (n % 2 == 0 ? sleep.during : sleep.before) = publish;
    auto slot = ring.reader->Next(1, Soon());
    ASSERT_TRUE(slot.ok()) << slot.status();
    EXPECT_EQ(sleep.sleeps - before, n % 2 == 0 ? 1 : 0);
    sleep.during = sleep.before = nullptr;
    const auto wanted = Content(n, 8);
    EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), slot->begin(), slot->end()));
    sleep.woken = nullptr;
    ring.reader->Release();
    EXPECT_EQ(sleep.woken, nullptr) << "nobody waits";
  }
  while (ring.writer->TryAcquire().value()) ring.writer->Publish(1, 0);
  EXPECT_EQ(sleep.woken, nullptr) << "nobody waits";
  sleep.during = [&] {
    ASSERT_TRUE(ring.reader->TryNext(1).value());
    ring.reader->Release();
  };
  EXPECT_TRUE(ring.writer->Acquire(Soon()).ok());
  // A sleep that ends for no reason is slept again.
  int turns = 0;
  sleep.during = [&] {
    if (++turns < 5) return;
    Put(*ring.writer, ring.writer->TryAcquire().value().value(), 2, 1, 1);
    sleep.during = nullptr;
  };
  while (ring.reader->TryNext(1).value()) ring.reader->Release();
  EXPECT_TRUE(ring.reader->Next(2, Soon()).ok());
  EXPECT_EQ(turns, 5);
}

// Sleeps until it is woken, however long: a lost wake-up ends in the deadline.
class DeepSleep : public RingSleep {
 public:
  void Wait(const std::atomic<uint32_t>& word, uint32_t seen, absl::Duration) override {
    FutexSleep()->Wait(word, seen, absl::Seconds(60));
  }
  void Wake(const std::atomic<uint32_t>& word) override { FutexSleep()->Wake(word); }
};

TEST(PackRingTest, NoWakeUpIsLostBetweenThreads) {
  DeepSleep sleep;
  for (const int slots : {1, 2, 4}) {
    Ring ring({slots, 16}, &sleep, &sleep);
    const uint64_t count = testing::Share(100000);
    std::thread writer([&] {
      for (uint64_t n = 0; n < count; ++n) {
        auto slot = ring.writer->Acquire(Soon());
        ASSERT_TRUE(slot.ok()) << slot.status();
        std::memcpy(slot->data(), &n, sizeof n);
        ring.writer->Publish(7, sizeof n);
      }
    });
    for (uint64_t n = 0; n < count; ++n) {
      auto slot = ring.reader->Next(7, Soon());
      ASSERT_TRUE(slot.ok()) << slot.status();
      uint64_t got;
      ASSERT_EQ(slot->size(), sizeof got);
      std::memcpy(&got, slot->data(), sizeof got);
      ASSERT_EQ(got, n);
      ring.reader->Release();
    }
    writer.join();
  }
}

TEST(PackRingTest, WhatATransferLeftIsPassedOver) {
  Ring ring;
  for (int i = 0; i < 3; ++i) Put(*ring.writer, ring.writer->TryAcquire().value().value(), 1, i, 10);
  Put(*ring.writer, ring.writer->TryAcquire().value().value(), 2, 99, 10);
  EXPECT_FALSE(ring.writer->TryAcquire().value());
  auto slot = ring.reader->TryNext(2).value();
  ASSERT_TRUE(slot);
  const auto wanted = Content(99, 10);
  EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), slot->begin(), slot->end()));
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(ring.writer->TryAcquire().value()) << "the old slots are free again";
    ring.writer->Publish(3, 0);
  }
  EXPECT_FALSE(ring.writer->TryAcquire().value()) << "the current one is not";
}

TEST(PackRingTest, WaitsEnd) {
  Ring ring;
  const RingPatience late{absl::Now() + absl::Milliseconds(5), nullptr};
  EXPECT_TRUE(IsCode(ring.reader->Next(1, late).status(), ErrorCode::kDeadline));
  while (ring.writer->TryAcquire().value()) ring.writer->Publish(1, 0);
  EXPECT_TRUE(IsCode(ring.writer->Acquire(late).status(), ErrorCode::kDeadline));
  int asked = 0;
  const RingPatience lost{absl::InfiniteFuture(),
                          [&] { return ++asked < 3 ? absl::OkStatus() : Error(ErrorCode::kPeerLost, "rank 3 died"); }};
  EXPECT_EQ(ring.writer->Acquire(lost).status(), Error(ErrorCode::kPeerLost, "rank 3 died"));
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(ring.reader->Next(2, lost).status(), Error(ErrorCode::kPeerLost, "rank 3 died"));
}

TEST(PackRingTest, AClosedWriterIsDrained) {
  Ring ring;
  for (int i = 0; i < 3; ++i) Put(*ring.writer, ring.writer->TryAcquire().value().value(), 1, i, 10);
  ring.writer.reset();
  ring.a.reset();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(ring.reader->Next(1, Soon()).ok());
    ring.reader->Release();
  }
  EXPECT_TRUE(IsCode(ring.reader->Next(1, Soon()).status(), ErrorCode::kPeerLost));
}

TEST(PackRingTest, AClosedReaderIsToldToASleepingWriter) {
  Ring ring;
  while (ring.writer->TryAcquire().value()) ring.writer->Publish(1, 0);
  std::thread closer([&] { ring.reader.reset(); });
  EXPECT_TRUE(IsCode(ring.writer->Acquire(Soon()).status(), ErrorCode::kPeerLost));
  closer.join();
  EXPECT_TRUE(IsCode(ring.writer->TryAcquire().status(), ErrorCode::kPeerLost));
}

TEST(PackRingTest, OptionsAndTransportsThatCannotBeAreRefused) {
  Ring ring;
  for (const PackRingOptions& bad : {PackRingOptions{0, 64}, PackRingOptions{3, 64}, PackRingOptions{128, 64},
                                     PackRingOptions{-4, 64}, PackRingOptions{4, 0}, PackRingOptions{4, INT64_MAX}}) {
    EXPECT_TRUE(IsCode(PackRingWriter::Create(ring.a.get(), bad).status(), ErrorCode::kInvalidOption));
    EXPECT_TRUE(IsCode(
        PackRingReader::Create(ring.b.get(), ring.b_to_a, ring.writer->key(), bad, absl::InfiniteFuture()).status(),
        ErrorCode::kInvalidOption));
  }
  for (const PackRingOptions& other : {PackRingOptions{4, 65}, PackRingOptions{8, 64}, PackRingOptions{8, 32}}) {
    EXPECT_TRUE(IsCode(
        PackRingReader::Create(ring.b.get(), ring.b_to_a, ring.writer->key(), other, absl::InfiniteFuture()).status(),
        ErrorCode::kTransport));
  }
  // A region that is no ring's, and the wrong end of one.
  auto region = ring.a->AllocateRegion(kSmall.region_bytes()).value();
  EXPECT_TRUE(
      IsCode(PackRingReader::Create(ring.b.get(), ring.b_to_a, region->key(), kSmall, absl::InfiniteFuture()).status(),
             ErrorCode::kTransport));
  auto page = ring.b->AllocateRegion(4096).value();
  for (const std::string& key : {page->key(), region->key()}) {
    EXPECT_TRUE(
        IsCode(ring.writer->Connect(ring.a.get(), ring.a_to_b, key, absl::InfiniteFuture()), ErrorCode::kTransport));
  }
  MemoryFabric messages({.map = false});
  EXPECT_TRUE(IsCode(PackRingWriter::Create(messages.NewEndpoint().get(), kSmall).status(), ErrorCode::kTransport));
}

// An owner that writes anything into its page is an error or gives a slot inside the ring; never more.
TEST(PackRingTest, BrokenPagesAreNoDanger) {
  Ring ring;
  for (int seed = 0; seed < testing::Share(2000); ++seed) {
    std::mt19937_64 random(seed);
    auto page = ring.a->AllocateRegion(kSmall.region_bytes()).value();
    auto original = ring.b->Map(ring.b_to_a, ring.writer->key(), absl::InfiniteFuture()).value();
    std::copy(original->bytes().begin(), original->bytes().end(), page->bytes().begin());
    auto reader =
        PackRingReader::Create(ring.b.get(), ring.b_to_a, page->key(), kSmall, absl::InfiniteFuture()).value();
    for (int word = 24; word + 4 <= 1024; word += 4) {
      const uint32_t value = random() % 3 == 0 ? random() : random() % 6;
      if (random() % 2 == 0) std::memcpy(page->bytes().data() + word, &value, 4);
    }
    const auto slot = reader->TryNext(random() % 6);
    if (slot.ok() && *slot) {
      EXPECT_LE((*slot)->size(), static_cast<size_t>(kSmall.slot_bytes));
      EXPECT_EQ(std::count((*slot)->begin(), (*slot)->end(), std::byte{0}), static_cast<ptrdiff_t>((*slot)->size()));
    } else if (!slot.ok()) {
      EXPECT_TRUE(IsCode(slot.status(), ErrorCode::kTransport) || IsCode(slot.status(), ErrorCode::kPeerLost));
    }
  }
}

// The child's part of the next test: fills slots until it is killed.
void WriteUntilKilled(int in, int out) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto endpoint = NewHostTransport().value();
  auto writer = PackRingWriter::Create(endpoint.get(), {4, 4096}).value();
  auto say = [out](std::string text) {
    text.resize(200, ' ');
    EXPECT_EQ(write(out, text.data(), text.size()), 200);
  };
  auto hear = [in] {
    std::string text(200, ' ');
    EXPECT_EQ(read(in, text.data(), text.size()), 200);
    return text;
  };
  say(endpoint->address());
  say(writer->key());
  const std::string address = hear();
  const PeerId peer =
      endpoint->Connect(address.substr(0, endpoint->address().size()), absl::Now() + absl::Seconds(60)).value();
  const std::string key = hear();
  if (!writer->Connect(endpoint.get(), peer, key.substr(0, 16), absl::Now() + absl::Seconds(60)).ok()) _exit(1);
  for (uint64_t n = 0;; ++n) {
    auto slot = writer->Acquire(Soon());
    if (!slot.ok()) _exit(2);
    Put(*writer, *slot, 1, n, 4096);
  }
}

TEST(PackRingTest, AKilledWriterEndsTheWait) {
  std::mt19937_64 random(11);
  for (int round = 0; round < testing::Share(10); ++round) {
    int to_child[2], from_child[2];
    ASSERT_EQ(pipe(to_child), 0);
    ASSERT_EQ(pipe(from_child), 0);
    const pid_t pid = fork();  // there are no threads here
    if (pid == 0) {
      WriteUntilKilled(to_child[0], from_child[1]);
      _exit(3);
    }
    auto hear = [&] {
      std::string text(200, ' ');
      EXPECT_EQ(read(from_child[0], text.data(), text.size()), 200);
      return text;
    };
    auto say = [&](std::string text) {
      text.resize(200, ' ');
      EXPECT_EQ(write(to_child[1], text.data(), text.size()), 200);
    };
    auto endpoint = NewHostTransport().value();
    const std::string address = hear().substr(0, endpoint->address().size()), key = hear().substr(0, 16);
    const PeerId peer = endpoint->Connect(address, absl::Now() + absl::Seconds(60)).value();
    auto reader = PackRingReader::Create(endpoint.get(), peer, key, {4, 4096}, absl::Now() + absl::Seconds(60)).value();
    say(endpoint->address());
    say(reader->key());
    RingPatience patience = Soon();
    patience.interrupted = [&] { return endpoint->Map(peer, key, absl::Now() + absl::Seconds(60)).status(); };
    const uint64_t kill_at = random() % 500;
    absl::Status status;
    for (uint64_t n = 0; status.ok(); ++n) {
      if (n == kill_at) {
        kill(pid, SIGKILL);
        EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
      }
      auto slot = reader->Next(1, patience);
      status = slot.status();
      if (!status.ok()) break;
      const auto wanted = Content(n, 4096);
      ASSERT_TRUE(std::equal(wanted.begin(), wanted.end(), slot->begin(), slot->end())) << n;
      reader->Release();
    }
    EXPECT_TRUE(IsCode(status, ErrorCode::kPeerLost)) << status;
    for (int fd : {to_child[0], to_child[1], from_child[0], from_child[1]}) close(fd);
  }
}

}  // namespace
}  // namespace headrace
