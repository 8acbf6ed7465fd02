#include "loader/testing/nccl_checker/segment.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace headrace::nccl_checker {
namespace {

constexpr size_t kPage = 4096;

size_t RingsAt(int ranks) { return ranks * sizeof(RankControl); }
size_t DataAt(int ranks) { return (RingsAt(ranks) + sizeof(RingControl) * ranks * ranks + kPage - 1) / kPage * kPage; }

long Futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, timeout, nullptr, 0);
}

}  // namespace

size_t Segment::Bytes(int ranks, size_t ring_bytes) { return DataAt(ranks) + ring_bytes * ranks * ranks; }

Segment::Segment(int memory, int ranks, size_t ring_bytes) : ranks_(ranks), ring_bytes_(ring_bytes) {
  void* data = mmap(nullptr, Bytes(ranks, ring_bytes), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  close(memory);
  if (data != MAP_FAILED) data_ = static_cast<char*>(data);
}

Segment::~Segment() {
  if (ok()) munmap(data_, Bytes(ranks_, ring_bytes_));
}

RankControl& Segment::rank(int rank) const { return reinterpret_cast<RankControl*>(data_)[rank]; }

RingControl& Segment::ring(int from, int to) const {
  return reinterpret_cast<RingControl*>(data_ + RingsAt(ranks_))[from * ranks_ + to];
}

char* Segment::RingData(int from, int to) const {
  return data_ + DataAt(ranks_) + ring_bytes_ * (static_cast<size_t>(from) * ranks_ + to);
}

void Segment::Write(int from, int to, uint64_t position, const void* data, size_t bytes) const {
  const size_t at = position & (ring_bytes_ - 1), first = std::min(bytes, ring_bytes_ - at);
  std::memcpy(RingData(from, to) + at, data, first);
  std::memcpy(RingData(from, to), static_cast<const char*>(data) + first, bytes - first);
}

void Segment::Read(int from, int to, uint64_t position, void* data, size_t bytes) const {
  const size_t at = position & (ring_bytes_ - 1), first = std::min(bytes, ring_bytes_ - at);
  std::memcpy(data, RingData(from, to) + at, first);
  std::memcpy(static_cast<char*>(data) + first, RingData(from, to), bytes - first);
}

void Segment::Ring(int rank) const {
  RankControl& control = this->rank(rank);
  control.doorbell.fetch_add(1);
  if (control.asleep.load() != 0) Futex(&control.doorbell, FUTEX_WAKE, INT32_MAX, nullptr);
}

void Segment::WaitForRing(int rank, uint32_t seen) const {
  constexpr timespec kPatience{0, 20'000'000};
  RankControl& control = this->rank(rank);
  control.asleep.store(1);
  // A ring between `seen` and the store is seen by the futex itself.
  Futex(&control.doorbell, FUTEX_WAIT, seen, &kPatience);
  control.asleep.store(0);
}

}  // namespace headrace::nccl_checker
