#ifndef HEADRACE_LOADER_TESTING_NCCL_CHECKER_SEGMENT_H_
#define HEADRACE_LOADER_TESTING_NCCL_CHECKER_SEGMENT_H_

// The shared memory of one communicator: a control block for each rank, and a ring for each ordered pair of ranks. It
// holds no locks: a rank that is killed leaves nothing that others wait for but its data.

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace headrace::nccl_checker {

enum RankPhase : uint32_t { kJoined = 0, kQuiescent = 1, kAborted = 2 };

struct alignas(64) RankControl {
  std::atomic<uint32_t> doorbell;  // changes whenever a ring from or to the rank does
  std::atomic<uint32_t> asleep;    // whether somebody must be woken
  std::atomic<uint32_t> phase;
  std::atomic<uint32_t> groups_begun;  // kernels
  std::atomic<uint32_t> groups_ended;
};

struct alignas(64) RingControl {
  std::atomic<uint64_t> written;            // bytes, since the beginning; by the sender
  alignas(64) std::atomic<uint64_t> taken;  // by the receiver
};
static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);

// What stands in a ring before the bytes of each operation.
struct MessageHeader {
  uint64_t count;
  uint64_t bytes;
  uint64_t group;  // the sender's number of the group
  int32_t type;
  uint32_t index;  // among the sender's operations to this receiver in its group
  uint32_t total;  // of these
  uint32_t magic;
  uint64_t reserved[3];
};
static_assert(sizeof(MessageHeader) == 64);
inline constexpr uint32_t kMessageMagic = 0x4852474D;

// A mapping of it. One in each rank, also where ranks share a process.
class Segment {
 public:
  static size_t Bytes(int ranks, size_t ring_bytes);

  // Takes the descriptor. ok() is false where it could not be mapped.
  Segment(int memory, int ranks, size_t ring_bytes);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  bool ok() const { return data_ != nullptr; }
  RankControl& rank(int rank) const;
  RingControl& ring(int from, int to) const;
  // The part of `bytes` bytes at `position` of the ring, copied in or out.
  void Write(int from, int to, uint64_t position, const void* data, size_t bytes) const;
  void Read(int from, int to, uint64_t position, void* data, size_t bytes) const;
  size_t ring_bytes() const { return ring_bytes_; }

  // Tells a rank that something changed.
  void Ring(int rank) const;
  // Waits until Ring was called for `rank` since its doorbell was `seen`, at most 20 ms.
  void WaitForRing(int rank, uint32_t seen) const;

 private:
  char* RingData(int from, int to) const;

  const int ranks_;
  const size_t ring_bytes_;
  char* data_ = nullptr;
};

}  // namespace headrace::nccl_checker

#endif  // HEADRACE_LOADER_TESTING_NCCL_CHECKER_SEGMENT_H_
