#ifndef HEADRACE_LOADER_TRANSPORT_TRANSPORT_H_
#define HEADRACE_LOADER_TRANSPORT_TRANSPORT_H_

// The operations table: how bytes of weights travel between a publisher and a receiver.
//
// A transport knows no tensor, plan, generation or job; it moves bytes between *endpoints*, one per rank. What is
// allowed to travel, and when, is decided above it (loader/executor, loader/session). Every backend passes the
// conformance suite in conformance.h; transport/memory is the shortest reading of the contract.
//
// Three ways to move bytes; capabilities() says which an endpoint offers:
//   map        the owner allocates a *region*, exports its key, and a peer maps it read-only into its own address
//              space, or its GPU's: one strided copy then reads the peer's memory and writes the destination.
//   read       the owner *registers* memory that it has already, and a peer reads ranges of it into a buffer of its own
//              while the owner does something else.
//   two-sided  Send and Receive of contiguous messages matched by (peer, tag), each at most max_message_bytes.
//
// Connections: both ends of a pair Connect to each other's address before they exchange messages; either may be
// first. A message that arrives before its Receive was posted waits for it.
// Threads: but for Wake, an endpoint is used by one thread at a time, and what it opened of its peers' registered
// memory by that thread too. A mapped region may be read by any thread while it is held. Regions and registrations may
// be destroyed by any thread. Lifetime: buffers given to Send and Receive stay valid and untouched until their
// completion was polled, or the endpoint was destroyed. Regions and mappings unmap when destroyed and may outlive the
// endpoint. Registrations and remote memory may outlive it too, but nothing can be read through them afterwards.
// Deadlines: no call blocks longer than the deadline or duration it was given. Destroying an endpoint may take up to
// half a second, in which messages whose Send has completed are still handed to the network.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace headrace {

struct Capabilities {
  bool map = false;
  bool read = false;  // of some peers at least: ask CheckRead about one
  bool two_sided = false;
  // Why `map` or `read` is false, for the plan's reasons; empty when it is true.
  std::string map_reason;
  std::string read_reason;
  // The largest message of Send and Receive.
  int64_t max_message_bytes = 0;
  // Tags of Send and Receive are below 2^tag_bits; 0 without two_sided, otherwise at least 32.
  int tag_bits = 0;
  // By CUDA's number: messages may be in the memory of this GPU too.
  std::optional<int> gpu;
  // Regions are in the memory of this GPU, and it reads what is mapped; the host reaches neither.
  std::optional<int> region_gpu;
};

// Memory that its owner writes and that peers may map: of the host, or of Capabilities::region_gpu. Page-aligned,
// zero-filled at first, committed when AllocateRegion returns (no later SIGBUS).
class Region {
 public:
  virtual ~Region() = default;
  virtual absl::Span<std::byte> bytes() = 0;
  // What a peer needs to map this region; a secret: hand it only to an authenticated peer of the epoch. Empty without
  // `map`. Once the region is destroyed its key maps nothing.
  virtual std::string key() const = 0;
};

// A peer's region, read-only here. Reading stays memory-safe after the owner died or freed the region (the bytes
// may be anything then; stamps and sums find that out).
class Mapping {
 public:
  virtual ~Mapping() = default;
  virtual absl::Span<const std::byte> bytes() const = 0;
};

// Leave to read memory of this process, which stays its owner's. Destroying it revokes the leave; it waits for no
// reader.
class Registration {
 public:
  virtual ~Registration() = default;
  // What a peer needs to open this memory; a secret like a region's key.
  virtual std::string key() const = 0;
};

struct ReadRange {
  int64_t offset = 0;  // from the first registered byte
  int64_t bytes = 0;   // 0 or more
};

// kOutOfBounds unless all ranges lie in `bytes` registered bytes; for backends.
absl::Status CheckRanges(absl::Span<const ReadRange> ranges, int64_t bytes);

// Memory that a peer registered.
class RemoteMemory {
 public:
  virtual ~RemoteMemory() = default;
  // Of the registered memory, as its owner said.
  virtual int64_t bytes() const = 0;

  // Writes the ranges' bytes to `out`, one range behind the other; ranges may overlap and be in any order. OK: every
  // byte was read while the registration stood. What the owner wrote meanwhile may be half there: stamps and sums find
  // that out. On an error `out` may hold anything.
  // kOutOfBounds: a range leaves the registered memory; nothing was read. kTransport: the registration was revoked, the
  // owner unmapped the memory, or the peer was disconnected. kPeerLost: the owner's process or endpoint is gone.
  // kDeadline: asked between pieces of about a megabyte. kAborted after Abort.
  virtual absl::Status Read(absl::Span<const ReadRange> ranges, std::byte* out, absl::Time deadline) = 0;
};

using PeerId = uint32_t;
using OpId = uint64_t;

struct Completion {
  OpId op = 0;
  absl::Status status;  // kPeerLost when the peer died, kAborted after Abort or Disconnect, kTransport otherwise
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual absl::string_view name() const = 0;  // "memory", "host", "cuda", "ucx", "nccl"
  virtual const Capabilities& capabilities() const = 0;

  // Where peers reach this endpoint; opaque bytes, and a secret like a region key. Constant for its lifetime.
  virtual std::string address() const = 0;

  // Allocates a region of `bytes` >= 1 (kInvalidOption otherwise). kOutOfMemory: names the bytes needed and the limit
  // that was hit (file-size limit, address space, available memory). Works on every transport: without `map` it is
  // private memory.
  virtual absl::StatusOr<std::unique_ptr<Region>> AllocateRegion(int64_t bytes) = 0;

  // Makes the endpoint at `address` known; a peer that is known already keeps its id. kTransport: the address is not
  // one of this transport's. kPeerLost: nobody is there (may also be found out only at the first operation).
  // kDeadline. kAborted after Abort.
  virtual absl::StatusOr<PeerId> Connect(absl::string_view address, absl::Time deadline) = 0;
  // Forgets the peer: its pending operations complete with kAborted; existing mappings stay. The peer's own operations
  // with this endpoint may complete with kPeerLost, or wait for their Abort. `peer` is not used again.
  virtual void Disconnect(PeerId peer) = 0;

  // Maps a region of `peer` by its key. kTransport: not a key of that peer, or no `map` here;
  // kPeerLost: the owner is gone; kDeadline.
  virtual absl::StatusOr<std::unique_ptr<Mapping>> Map(PeerId peer, absl::string_view key, absl::Time deadline) = 0;

  // Lets peers read `memory`, which must stay mapped until the registration was destroyed; it may be written at any
  // time. kInvalidOption: no bytes. kTransport: no `read` here.
  virtual absl::StatusOr<std::unique_ptr<Registration>> Register(absl::Span<const std::byte> memory);

  // Whether memory that `peer` registers can be read from here; found out when it was connected. kTransport: says why
  // not (another PID namespace, a kernel that forbids it, no `read` at all, an unknown peer). Never blocks.
  virtual absl::Status CheckRead(PeerId peer) const;

  // Opens memory of `peer` by its registration's key. kTransport: not such a key of that peer, or CheckRead's error;
  // kPeerLost: the owner is gone; kDeadline; kAborted.
  virtual absl::StatusOr<std::unique_ptr<RemoteMemory>> OpenRemote(PeerId peer, absl::string_view key,
                                                                   absl::Time deadline);

  // Posts a message of 0 to max_message_bytes to / from a peer. Sends and receives match by (sender, tag) in posting
  // order. A receive's size must equal the message's: otherwise it completes with kTransport and its buffer may hold
  // anything. A send completes when its buffer may be used again, before or after the peer posted its Receive: rely on
  // neither. No call copies or keeps more than max_message_bytes of memory of its own per operation.
  // Posting fails with kTransport (no two_sided, an unknown peer, a message too large, a tag too wide), kPeerLost (the
  // peer is known to be dead) or kAborted (after Abort); nothing is pending then.
  virtual absl::StatusOr<OpId> Send(PeerId peer, uint64_t tag, absl::Span<const std::byte> message) = 0;
  virtual absl::StatusOr<OpId> Receive(PeerId peer, uint64_t tag, absl::Span<std::byte> message) = 0;

  // Makes progress and appends what completed, in any order. Returns as soon as there is a completion, at the latest
  // after `max_wait` (zero: never waits), also when nothing is pending. Waiting does not spin.
  virtual void Poll(absl::Duration max_wait, std::vector<Completion>* completions) = 0;

  // Lets the Poll that waits, or else the next one that would, return. Any thread.
  virtual void Wake() = 0;

  // Ends every pending operation with `reason`'s message under kAborted (to be polled); later posts fail likewise.
  virtual void Abort(const absl::Status& reason) = 0;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_TRANSPORT_TRANSPORT_H_
