#ifndef HEADRACE_LOADER_PACK_RING_H_
#define HEADRACE_LOADER_PACK_RING_H_

// A ring of slots through which one process hands packed bytes to another one of the same host, on a transport that
// maps. Each end writes a region of its own, which the other end maps read-only:
//
//   writer's region   its sizes, `written` (slots ever filled), whether it waits or has closed; a tag and a size for
//                     each slot; from byte 4096 on the slots
//   reader's region   `taken` (slots ever handed back), whether it waits or has closed
//
// Slot n is at place n mod slots. The writer fills slots up to taken + slots, the reader takes them up to written;
// counters wrap at 2^32. Who has to wait sleeps in the kernel (futex) until the other counter changes, and wakes now
// and then to ask whether it should go on. What comes in is checked before use: an end that breaks these rules is
// kTransport, never an access outside the regions.
//
// Every slot has a tag, one for each transfer (its generation): a reader passes over what a transfer that was given up
// left in the ring. Each end is used by one thread at a time, and may outlive its transport.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "loader/transport/transport.h"

namespace headrace {

// Equal at both ends.
struct PackRingOptions {
  int slots = 4;  // a power of two, at most 64
  int64_t slot_bytes = 256 << 10;

  // The rings between publishers that hold their weights and receivers, whose chunks are of one size.
  static PackRingOptions OfChunks(int64_t chunk_bytes) { return {.slot_bytes = chunk_bytes}; }

  // Bytes of the writer's region; the reader's is one page.
  int64_t region_bytes() const { return 4096 + slots * slot_bytes; }
};

// How long to wait, and for what to stop waiting.
struct RingPatience {
  absl::Time deadline = absl::InfiniteFuture();
  // Asked before each sleep, which lasts at most 20 ms; not OK: give up with that status. The ring itself notices an
  // end that closes, not one that was killed: whoever knows of the peer's death (a session, the transport) says so
  // here.
  std::function<absl::Status()> interrupted;
};

// How ends sleep; for tests to replace.
class RingSleep {
 public:
  virtual ~RingSleep() = default;
  // Returns at once unless `word` is `seen`; otherwise when it was woken, after `most`, or for no reason.
  virtual void Wait(const std::atomic<uint32_t>& word, uint32_t seen, absl::Duration most) = 0;
  // Wakes who waits for `word`, in any process.
  virtual void Wake(const std::atomic<uint32_t>& word) = 0;
};
RingSleep* FutexSleep();

namespace internal {
struct WriterPage;
struct ReaderPage;
}  // namespace internal

class PackRingWriter {
 public:
  // kInvalidOption: slots or their size cannot be. kTransport: no `map`. kOutOfMemory. Keeps `sleep`.
  static absl::StatusOr<std::unique_ptr<PackRingWriter>> Create(Transport* transport, const PackRingOptions& options,
                                                                RingSleep* sleep = FutexSleep());
  // Closes: the reader gets what was published, then kPeerLost.
  ~PackRingWriter();

  // The key of its region, for PackRingReader::Create.
  std::string key() const { return region_->key(); }
  // Maps the reader's region; before the first Acquire. Errors are those of Transport::Map; kTransport: no ring's.
  absl::Status Connect(Transport* transport, PeerId reader, absl::string_view reader_key, absl::Time deadline);

  // The next slot, once it is free: slot_bytes long, with what its last use left there. The same one until Publish.
  // kDeadline; kPeerLost: the reader closed; kTransport; or what `interrupted` said.
  absl::StatusOr<absl::Span<std::byte>> Acquire(const RingPatience& patience);
  // The same without waiting: empty when no slot is free.
  absl::StatusOr<std::optional<absl::Span<std::byte>>> TryAcquire();
  // Hands the first `bytes` of the acquired slot to the reader.
  void Publish(uint64_t tag, int64_t bytes);

 private:
  PackRingWriter(std::unique_ptr<Region> region, const PackRingOptions& options, RingSleep* sleep);

  const std::unique_ptr<Region> region_;
  const PackRingOptions options_;
  RingSleep* const sleep_;
  internal::WriterPage* const page_;
  std::unique_ptr<Mapping> mapping_;
  const internal::ReaderPage* peer_ = nullptr;
  uint32_t written_ = 0;
  uint32_t seen_ = 0;  // of the reader's counter, by the last TryAcquire
};

class PackRingReader {
 public:
  // Maps the writer's region by its key. kInvalidOption, kTransport (no `map`; the ring has other sizes), kOutOfMemory,
  // and the errors of Transport::Map.
  static absl::StatusOr<std::unique_ptr<PackRingReader>> Create(Transport* transport, PeerId writer,
                                                                absl::string_view writer_key,
                                                                const PackRingOptions& options, absl::Time deadline,
                                                                RingSleep* sleep = FutexSleep());
  // Closes: the writer's Acquire fails with kPeerLost.
  ~PackRingReader();

  // The key of its region, for PackRingWriter::Connect.
  std::string key() const { return region_->key(); }

  // The next slot with this tag, once it is there; slots with other tags before it are handed back unread. The same one
  // until Release. kDeadline; kPeerLost: the writer closed and nothing is left; kTransport; or what `interrupted` said.
  absl::StatusOr<absl::Span<const std::byte>> Next(uint64_t tag, const RingPatience& patience);
  // The same without waiting: empty when there is none.
  absl::StatusOr<std::optional<absl::Span<const std::byte>>> TryNext(uint64_t tag);
  // Hands the slot back: its bytes are not read any more.
  void Release();

 private:
  PackRingReader(std::unique_ptr<Region> region, std::unique_ptr<Mapping> mapping, const PackRingOptions& options,
                 RingSleep* sleep);

  const std::unique_ptr<Region> region_;
  const std::unique_ptr<Mapping> mapping_;
  const PackRingOptions options_;
  RingSleep* const sleep_;
  internal::ReaderPage* const page_;
  const internal::WriterPage* const peer_;
  uint32_t taken_ = 0;
  uint32_t seen_ = 0;  // of the writer's counter, by the last TryNext
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_PACK_RING_H_
