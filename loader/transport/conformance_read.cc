// Conformance: private memory that a peer reads.

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "loader/transport/conformance_internal.h"

namespace headrace::conformance {
namespace {

using Bytes = std::vector<std::byte>;

// Two endpoints, and memory of b that is registered and opened at a.
struct Reading {
  Reading(const NewEndpoint& new_endpoint, size_t size) : pair(new_endpoint), memory(Pattern(size, TestSeed())) {
    auto registered = pair.b->Register(memory);
    EXPECT_TRUE(registered.ok()) << registered.status();
    registration = *std::move(registered);
    EXPECT_TRUE(pair.a->CheckRead(pair.a_to_b).ok()) << pair.a->CheckRead(pair.a_to_b);
    auto opened = pair.a->OpenRemote(pair.a_to_b, registration->key(), Soon());
    EXPECT_TRUE(opened.ok()) << opened.status();
    remote = *std::move(opened);
    EXPECT_EQ(remote->bytes(), static_cast<int64_t>(size));
  }

  absl::Status ReadOne() {
    std::byte byte;
    const ReadRange range{0, 1};
    return remote->Read({&range, 1}, &byte, Soon());
  }
  // Reads the ranges into a buffer with guards and compares with what they are in memory.
  void Expect(const std::vector<ReadRange>& ranges) {
    Bytes wanted(3, std::byte{0xEE});
    for (const ReadRange& range : ranges) {
      wanted.insert(wanted.end(), memory.begin() + range.offset, memory.begin() + range.offset + range.bytes);
    }
    wanted.resize(wanted.size() + 3, std::byte{0xEE});
    Bytes got(wanted.size(), std::byte{0xEE});
    const absl::Status status = remote->Read(ranges, got.data() + 3, Soon());
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(got == wanted) << ranges.size() << " ranges";
  }

  Pair pair;
  Bytes memory;
  std::unique_ptr<Registration> registration;
  std::unique_ptr<RemoteMemory> remote;
};

void ReadsGatherRanges(const NewEndpoint& new_endpoint) {
  Reading reading(new_endpoint, (3 << 20) + 77);
  const int64_t size = reading.memory.size();
  reading.Expect({});
  reading.Expect({{0, 0}, {size, 0}, {5, 0}});
  reading.Expect({{0, 1}});
  reading.Expect({{size - 1, 1}, {0, 0}, {0, 1}, {size, 0}});
  reading.Expect({{0, size}});
  reading.Expect({{100, size - 100}, {0, size}, {7, 1 << 20}});
  std::vector<ReadRange> pieces;  // of 64 KiB, backwards
  for (int64_t at = size - (64 << 10); at >= 0; at -= 64 << 10) pieces.push_back({at, 64 << 10});
  reading.Expect(pieces);
}

void ReadsGatherManyShortRanges(const NewEndpoint& new_endpoint) {
  Reading reading(new_endpoint, 1 << 20);
  std::mt19937_64 random(TestSeed());
  for (size_t count : {1022u, 1023u, 1024u, 1025u, 2046u, 2047u, 30000u}) {
    std::vector<ReadRange> ranges;
    for (size_t i = 0; i < count; ++i) {
      const int64_t bytes = random() % 5 == 0 ? 0 : random() % 300;
      ranges.push_back({static_cast<int64_t>(random() % (reading.memory.size() - bytes + 1)), bytes});
    }
    reading.Expect(ranges);
  }
}

void ReadsSeeWhatTheOwnerWrites(const NewEndpoint& new_endpoint) {
  Reading reading(new_endpoint, 5000);
  reading.Expect({{0, 5000}});
  const Bytes second = Pattern(5000, TestSeed() + 1);
  std::copy(second.begin(), second.end(), reading.memory.begin());
  reading.Expect({{0, 5000}});
}

void ReadsOutOfBoundsAreRefused(const NewEndpoint& new_endpoint) {
  Reading reading(new_endpoint, 1000);
  for (const ReadRange& bad :
       {ReadRange{0, 1001}, ReadRange{1, 1000}, ReadRange{1000, 1}, ReadRange{1001, 0}, ReadRange{-1, 1},
        ReadRange{-1, 0}, ReadRange{0, -1}, ReadRange{500, -1}, ReadRange{INT64_MAX, 1}, ReadRange{1, INT64_MAX},
        ReadRange{INT64_MIN, INT64_MAX}, ReadRange{INT64_MAX, INT64_MAX}, ReadRange{INT64_MIN, INT64_MIN}}) {
    Bytes out(1000, std::byte{0xEE});
    const std::vector<ReadRange> ranges = {{0, 10}, bad};
    EXPECT_THAT(reading.remote->Read(ranges, out.data(), Soon()), HasErrorCode(ErrorCode::kOutOfBounds));
    EXPECT_EQ(out, Bytes(1000, std::byte{0xEE})) << "nothing is read before the check";
  }
  reading.Expect({{0, 1000}});
}

void WrongRegistrationKeysAreRefused(const NewEndpoint& new_endpoint) {
  Reading reading(new_endpoint, 100);
  auto stranger = new_endpoint();
  auto foreign = stranger->Register(reading.memory);
  ASSERT_TRUE(foreign.ok()) << foreign.status();
  auto own = reading.pair.a->Register(reading.memory);
  ASSERT_TRUE(own.ok()) << own.status();
  auto region = reading.pair.b->AllocateRegion(100);
  ASSERT_TRUE(region.ok()) << region.status();
  const std::string key = reading.registration->key();
  std::string flipped = key;
  flipped.back() ^= 1;
  for (const std::string& wrong : {std::string(), flipped, key.substr(1), key + "x", std::string(key.size(), '\0'),
                                   (*foreign)->key(), (*own)->key(), (*region)->key()}) {
    EXPECT_THAT(reading.pair.a->OpenRemote(reading.pair.a_to_b, wrong, Soon()).status(),
                HasErrorCode(ErrorCode::kTransport));
  }
  EXPECT_THAT(reading.pair.a->Map(reading.pair.a_to_b, key, Soon()).status(), HasErrorCode(ErrorCode::kTransport));
  EXPECT_THAT(reading.pair.b->Register({}).status(), HasErrorCode(ErrorCode::kInvalidOption));
}

void RevokedMemoryIsRefused(const NewEndpoint& new_endpoint) {
  Reading reading(new_endpoint, 1000);
  const std::string key = reading.registration->key();
  ASSERT_TRUE(reading.ReadOne().ok());
  reading.registration.reset();
  EXPECT_THAT(reading.ReadOne(), HasErrorCode(ErrorCode::kTransport));
  EXPECT_THAT(reading.remote->Read({}, nullptr, Soon()), HasErrorCode(ErrorCode::kTransport));
  EXPECT_THAT(reading.pair.a->OpenRemote(reading.pair.a_to_b, key, Soon()).status(),
              HasErrorCode(ErrorCode::kTransport));
  // The same memory, registered again, is another registration.
  auto again = reading.pair.b->Register(reading.memory);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_NE((*again)->key(), key);
  EXPECT_THAT(reading.ReadOne(), HasErrorCode(ErrorCode::kTransport));
}

// An OK says that all bytes were read while the registration stood. The owner poisons what it revoked.
void NoReadIsOkWithBytesFromAfterTheRevocation(const NewEndpoint& new_endpoint) {
  for (int round = 0; round < Share(50); ++round) {
    Reading reading(new_endpoint, 4 << 20);
    std::fill(reading.memory.begin(), reading.memory.end(), std::byte{1});
    std::atomic<bool> reads{false};
    std::thread revoker([&] {
      while (!reads) std::this_thread::yield();
      reading.registration.reset();
      std::fill(reading.memory.begin(), reading.memory.end(), std::byte{2});
    });
    Bytes got(reading.memory.size());
    const ReadRange all{0, static_cast<int64_t>(got.size())};
    absl::Status status;
    while (status.ok()) {
      reads = true;
      status = reading.remote->Read({&all, 1}, got.data(), Soon());
      if (status.ok()) {
        EXPECT_EQ(std::count(got.begin(), got.end(), std::byte{1}), static_cast<ptrdiff_t>(got.size()));
      }
    }
    EXPECT_THAT(status, HasErrorCode(ErrorCode::kTransport));
    revoker.join();
  }
}

void RemoteMemoryOutlivesBothEnds(const NewEndpoint& new_endpoint) {
  Reading reading(new_endpoint, 1000);
  reading.pair.a->Disconnect(reading.pair.a_to_b);
  EXPECT_THAT(reading.ReadOne(), HasErrorCode(ErrorCode::kTransport));
  EXPECT_THAT(reading.pair.a->CheckRead(reading.pair.a_to_b), HasErrorCode(ErrorCode::kTransport));
  auto again = reading.pair.a->Connect(reading.pair.b->address(), Soon());
  ASSERT_TRUE(again.ok()) << again.status();
  auto opened = reading.pair.a->OpenRemote(*again, reading.registration->key(), Soon());
  ASSERT_TRUE(opened.ok()) << opened.status();
  reading.remote = *std::move(opened);
  EXPECT_TRUE(reading.ReadOne().ok());
  reading.pair.a.reset();
  EXPECT_THAT(reading.ReadOne(), HasErrorCode(ErrorCode::kTransport));
  reading.pair.b.reset();
  reading.registration.reset();
  EXPECT_THAT(reading.ReadOne(), HasErrorCode(ErrorCode::kTransport));
}

void OwnersThatAreGoneAreNotRead(const NewEndpoint& new_endpoint) {
  Reading reading(new_endpoint, 1000);
  reading.pair.b.reset();
  EXPECT_THAT(reading.ReadOne(), HasErrorCode(ErrorCode::kPeerLost));
  EXPECT_THAT(reading.pair.a->OpenRemote(reading.pair.a_to_b, reading.registration->key(), Soon()).status(),
              HasErrorCode(ErrorCode::kPeerLost));
  reading.registration.reset();
  EXPECT_THAT(reading.ReadOne(), HasErrorCode(ErrorCode::kPeerLost));
}

void ReadsEndAtAbortAndDeadline(const NewEndpoint& new_endpoint) {
  Reading reading(new_endpoint, 1000);
  std::byte byte;
  const ReadRange range{0, 1};
  EXPECT_THAT(reading.remote->Read({&range, 1}, &byte, absl::InfinitePast()), HasErrorCode(ErrorCode::kDeadline));
  EXPECT_TRUE(reading.ReadOne().ok());
  reading.pair.a->Abort(Error(ErrorCode::kDeadline, "generation 7 took too long"));
  const absl::Status status = reading.ReadOne();
  EXPECT_THAT(status, HasErrorCode(ErrorCode::kAborted));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("generation 7 took too long"));
}

void ManyPeersReadManyRegistrations(const NewEndpoint& new_endpoint) {
  auto owner = new_endpoint();
  std::vector<Bytes> memory;
  for (int i = 0; i < 8; ++i) memory.push_back(Pattern(1000 + i, TestSeed() + i));
  std::vector<std::unique_ptr<Registration>> registrations;
  for (const Bytes& bytes : memory) {
    auto registration = owner->Register(bytes);
    ASSERT_TRUE(registration.ok()) << registration.status();
    registrations.push_back(*std::move(registration));
  }
  for (int reader = 0; reader < 8; ++reader) {
    auto endpoint = new_endpoint();
    auto peer = endpoint->Connect(owner->address(), Soon());
    ASSERT_TRUE(peer.ok()) << peer.status();
    for (size_t i = memory.size(); i-- > 0;) {
      auto remote = endpoint->OpenRemote(*peer, registrations[i]->key(), Soon());
      ASSERT_TRUE(remote.ok()) << remote.status();
      Bytes got(memory[i].size());
      const ReadRange all{0, static_cast<int64_t>(got.size())};
      const absl::Status status = (*remote)->Read({&all, 1}, got.data(), Soon());
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(got == memory[i]);
    }
  }
}

}  // namespace

std::vector<Case> ReadCases() {
#define HEADRACE_CASE(function) \
  Case { #function, Needs::kRead, function }
  return {HEADRACE_CASE(ReadsGatherRanges),
          HEADRACE_CASE(ReadsGatherManyShortRanges),
          HEADRACE_CASE(ReadsSeeWhatTheOwnerWrites),
          HEADRACE_CASE(ReadsOutOfBoundsAreRefused),
          HEADRACE_CASE(WrongRegistrationKeysAreRefused),
          HEADRACE_CASE(RevokedMemoryIsRefused),
          HEADRACE_CASE(NoReadIsOkWithBytesFromAfterTheRevocation),
          HEADRACE_CASE(RemoteMemoryOutlivesBothEnds),
          HEADRACE_CASE(OwnersThatAreGoneAreNotRead),
          HEADRACE_CASE(ReadsEndAtAbortAndDeadline),
          HEADRACE_CASE(ManyPeersReadManyRegistrations)};
#undef HEADRACE_CASE
}

}  // namespace headrace::conformance
