#include "loader/pack_ring.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "planner/status.h"

namespace headrace {
namespace internal {

constexpr int kMaxSlots = 64;
constexpr int64_t kPageBytes = 4096;
constexpr uint64_t kRingMagic = 0x31676E69526B6361;

// What the owner of a page tells the other end. Each on a line of its own: `count` changes with every slot.
struct End {
  alignas(64) std::atomic<uint32_t> count;
  // Set before it looks at the other end's count for the last time before it sleeps; read by the other end after it
  // changed its count. All of these are sequentially consistent: one of the two sees the other's.
  alignas(64) std::atomic<uint32_t> waiting;
  std::atomic<uint32_t> closed;
};

struct SlotInfo {
  uint64_t tag;
  uint64_t bytes;
};

struct WriterPage {
  uint64_t magic;
  uint64_t slots;
  uint64_t slot_bytes;
  End end;
  alignas(64) SlotInfo slot[kMaxSlots];
};

struct ReaderPage {
  uint64_t magic;
  End end;
};

static_assert(sizeof(WriterPage) <= kPageBytes && sizeof(ReaderPage) <= kPageBytes);
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4, "other processes' too");

}  // namespace internal

namespace {

using internal::End;
using internal::kMaxSlots;
using internal::kPageBytes;
using internal::kRingMagic;
using internal::ReaderPage;
using internal::WriterPage;

constexpr absl::Duration kLongestSleep = absl::Milliseconds(20);

class Futex : public RingSleep {
 public:
  void Wait(const std::atomic<uint32_t>& word, uint32_t seen, absl::Duration most) override {
    const timespec timeout = absl::ToTimespec(most);
    // Not FUTEX_PRIVATE_FLAG: the other end has the word at another address of another process. Waiting needs no right
    // to write.
    syscall(SYS_futex, &word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
  }
  void Wake(const std::atomic<uint32_t>& word) override {
    syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
  }
};

absl::Status CheckOptions(const Transport& transport, const PackRingOptions& options) {
  if (!transport.capabilities().map) {
    return Error(ErrorCode::kTransport, absl::StrCat("ring: ", transport.capabilities().map_reason));
  }
  if (options.slots < 1 || options.slots > kMaxSlots || (options.slots & (options.slots - 1)) != 0 ||
      options.slot_bytes < 1 || options.slot_bytes > (int64_t{1} << 40)) {
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat("ring: ", options.slots, " slots of ", options.slot_bytes,
                              " bytes; it takes a power of two up to ", kMaxSlots, ", of 1 byte to 1 TiB"));
  }
  return absl::OkStatus();
}

void Announce(End* mine, uint32_t count, const End& other, RingSleep* sleep) {
  mine->count.store(count);
  if (other.waiting.load() != 0) sleep->Wake(mine->count);
}

void CloseEnd(End* mine, RingSleep* sleep) {
  mine->closed.store(1);
  sleep->Wake(mine->count);
}

absl::Status BrokenCounter(absl::string_view who, uint32_t ahead) {
  return Error(ErrorCode::kTransport, absl::StrCat("ring: the ", who, "'s counter is ", ahead, " slots ahead of ours"));
}

// Calls `attempt` until it returns something, sleeping while `other`'s counter is `*seen` (what `attempt` saw last).
template <typename T, typename Attempt>
absl::StatusOr<T> Await(End* mine, const End& other, const uint32_t* seen, const RingPatience& patience,
                        RingSleep* sleep, absl::string_view what, Attempt attempt) {
  while (true) {
    HR_ASSIGN_OR_RETURN(std::optional<T> got, attempt());
    if (got) return *got;
    if (patience.interrupted) HR_RETURN_IF_ERROR(patience.interrupted());
    const absl::Duration left = patience.deadline - absl::Now();
    if (left <= absl::ZeroDuration()) {
      return Error(ErrorCode::kDeadline, absl::StrCat("ring: the deadline passed before there was ", what));
    }
    mine->waiting.store(1);
    auto again = attempt();
    if (again.ok() && !*again) sleep->Wait(other.count, *seen, std::min(left, kLongestSleep));
    mine->waiting.store(0);
    HR_RETURN_IF_ERROR(again.status());
    if (*again) return **again;
  }
}

}  // namespace

RingSleep* FutexSleep() {
  static Futex futex;
  return &futex;
}

absl::StatusOr<std::unique_ptr<PackRingWriter>> PackRingWriter::Create(Transport* transport,
                                                                       const PackRingOptions& options,
                                                                       RingSleep* sleep) {
  HR_RETURN_IF_ERROR(CheckOptions(*transport, options));
  HR_ASSIGN_OR_RETURN(std::unique_ptr<Region> region, transport->AllocateRegion(options.region_bytes()));
  return std::unique_ptr<PackRingWriter>(new PackRingWriter(std::move(region), options, sleep));
}

PackRingWriter::PackRingWriter(std::unique_ptr<Region> region, const PackRingOptions& options, RingSleep* sleep)
    : region_(std::move(region)),
      options_(options),
      sleep_(sleep),
      page_(new (region_->bytes().data()) WriterPage{
          kRingMagic, static_cast<uint64_t>(options.slots), static_cast<uint64_t>(options.slot_bytes), {}, {}}) {}

PackRingWriter::~PackRingWriter() { CloseEnd(&page_->end, sleep_); }

absl::Status PackRingWriter::Connect(Transport* transport, PeerId reader, absl::string_view reader_key,
                                     absl::Time deadline) {
  HR_ASSIGN_OR_RETURN(std::unique_ptr<Mapping> mapping, transport->Map(reader, reader_key, deadline));
  const auto* page = reinterpret_cast<const ReaderPage*>(mapping->bytes().data());
  if (mapping->bytes().size() != static_cast<size_t>(kPageBytes) || page->magic != kRingMagic + 1) {
    return Error(ErrorCode::kTransport, "ring: the reader's key is not that of a ring's end");
  }
  mapping_ = std::move(mapping);
  peer_ = page;
  return absl::OkStatus();
}

absl::StatusOr<std::optional<absl::Span<std::byte>>> PackRingWriter::TryAcquire() {
  const bool closed = peer_->end.closed.load() != 0;
  seen_ = peer_->end.count.load();
  const uint32_t full = written_ - seen_;
  if (full > static_cast<uint32_t>(options_.slots)) return BrokenCounter("reader", seen_ - written_);
  if (closed) return Error(ErrorCode::kPeerLost, "ring: the reader closed its end");
  if (full == static_cast<uint32_t>(options_.slots)) return std::nullopt;
  const int64_t at = kPageBytes + written_ % options_.slots * options_.slot_bytes;
  return region_->bytes().subspan(at, options_.slot_bytes);
}

absl::StatusOr<absl::Span<std::byte>> PackRingWriter::Acquire(const RingPatience& patience) {
  return Await<absl::Span<std::byte>>(&page_->end, peer_->end, &seen_, patience, sleep_, "a free slot",
                                      [this] { return TryAcquire(); });
}

void PackRingWriter::Publish(uint64_t tag, int64_t bytes) {
  page_->slot[written_ % options_.slots] = {tag, static_cast<uint64_t>(bytes)};
  Announce(&page_->end, ++written_, peer_->end, sleep_);
}

absl::StatusOr<std::unique_ptr<PackRingReader>> PackRingReader::Create(Transport* transport, PeerId writer,
                                                                       absl::string_view writer_key,
                                                                       const PackRingOptions& options,
                                                                       absl::Time deadline, RingSleep* sleep) {
  HR_RETURN_IF_ERROR(CheckOptions(*transport, options));
  HR_ASSIGN_OR_RETURN(std::unique_ptr<Mapping> mapping, transport->Map(writer, writer_key, deadline));
  const auto* page = reinterpret_cast<const WriterPage*>(mapping->bytes().data());
  if (mapping->bytes().size() != static_cast<size_t>(options.region_bytes()) || page->magic != kRingMagic ||
      page->slots != static_cast<uint64_t>(options.slots) ||
      page->slot_bytes != static_cast<uint64_t>(options.slot_bytes)) {
    return Error(ErrorCode::kTransport, absl::StrCat("ring: the writer's key is not that of a ring of ", options.slots,
                                                     " slots of ", options.slot_bytes, " bytes"));
  }
  HR_ASSIGN_OR_RETURN(std::unique_ptr<Region> region, transport->AllocateRegion(kPageBytes));
  return std::unique_ptr<PackRingReader>(new PackRingReader(std::move(region), std::move(mapping), options, sleep));
}

PackRingReader::PackRingReader(std::unique_ptr<Region> region, std::unique_ptr<Mapping> mapping,
                               const PackRingOptions& options, RingSleep* sleep)
    : region_(std::move(region)),
      mapping_(std::move(mapping)),
      options_(options),
      sleep_(sleep),
      page_(new (region_->bytes().data()) ReaderPage{kRingMagic + 1, {}}),
      peer_(reinterpret_cast<const WriterPage*>(mapping_->bytes().data())) {}

PackRingReader::~PackRingReader() { CloseEnd(&page_->end, sleep_); }

absl::StatusOr<std::optional<absl::Span<const std::byte>>> PackRingReader::TryNext(uint64_t tag) {
  while (true) {
    const bool closed = peer_->end.closed.load() != 0;
    seen_ = peer_->end.count.load();
    const uint32_t full = seen_ - taken_;
    if (full > static_cast<uint32_t>(options_.slots)) return BrokenCounter("writer", full);
    if (full == 0 && closed) return Error(ErrorCode::kPeerLost, "ring: the writer closed its end");
    if (full == 0) return std::nullopt;
    const uint32_t place = taken_ % options_.slots;
    const internal::SlotInfo slot = peer_->slot[place];
    if (slot.tag != tag) {
      Release();
      continue;
    }
    if (slot.bytes > static_cast<uint64_t>(options_.slot_bytes)) {
      return Error(ErrorCode::kTransport,
                   absl::StrCat("ring: the writer says ", slot.bytes, " bytes in a slot of ", options_.slot_bytes));
    }
    return mapping_->bytes().subspan(kPageBytes + place * options_.slot_bytes, slot.bytes);
  }
}

absl::StatusOr<absl::Span<const std::byte>> PackRingReader::Next(uint64_t tag, const RingPatience& patience) {
  return Await<absl::Span<const std::byte>>(&page_->end, peer_->end, &seen_, patience, sleep_, "a slot with bytes",
                                            [this, tag] { return TryNext(tag); });
}

void PackRingReader::Release() { Announce(&page_->end, ++taken_, peer_->end, sleep_); }

}  // namespace headrace
