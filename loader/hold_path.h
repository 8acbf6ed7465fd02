#ifndef HEADRACE_LOADER_HOLD_PATH_H_
#define HEADRACE_LOADER_HOLD_PATH_H_

// How a copy travels out of private memory that a publisher holds unchanged, on one host: read by the receiver, or
// packed by the publisher into a ring (pack_ring.h). A pure function of the copy, so that both ends come to the same
// answer.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner/plan.h"

namespace headrace {

// What is read of a copy's source box.
enum class ReadForm {
  kSpans,  // everything from a run to another one, the gaps between them too: fewer and longer ranges
  kRuns,   // the runs alone
};

// Of the buffer through which a receiver reads (remote_copy.h).
inline constexpr int64_t kBounceBytes = 128 << 10;

// CPU time of both processes, beyond what all paths cost alike: writing to the destination, with the sum. Measured by
// bench/hold_bench (Xeon with AVX-512, Linux 6.18, pages of 4 KiB). The kernel pins every page that it reads, so that
// packing wins for every run length: by a little for long runs (by a third on an AVX2 machine), twice and more for
// short ones. Under huge pages the two are within 15 % of each other for long runs, in favour of one or the other.
struct HoldCosts {
  double read_byte_ns = 0.20;
  double read_range_ns = 350;  // each range of a read
  double read_call_ns = 1500;  // each read, of at most kBounceBytes
  double pack_byte_ns = 0.18;  // the copy into a slot, and a cold slot at the other end
  double pack_run_ns = 6;
};

// The figures of a copy that its costs follow from.
struct HoldShape {
  int64_t bytes = 0;       // of the copy
  int64_t runs = 0;        // contiguous in the source
  int64_t span_bytes = 0;  // what reading in spans reads
  int64_t span_reads = 0;  // and in how many reads
};
HoldShape ShapeOf(const Copy& copy);

double ReadNanoseconds(const HoldShape& shape, ReadForm form, const HoldCosts& costs = {});
double PackNanoseconds(const HoldShape& shape, const HoldCosts& costs = {});
// The cheaper one; spans where they are equal.
ReadForm BestReadForm(const HoldShape& shape, const HoldCosts& costs = {});

// One edge's copies, by the path that each takes.
struct HoldSplit {
  struct Read {
    size_t copy = 0;  // index into plan.copies
    ReadForm form = ReadForm::kSpans;
  };
  std::vector<Read> reads;
  // What is packed: the copies in their order, as the one edge of a plan without anything else (for EdgeStream).
  // packed.copies[i] is plan.copies[packed_copies[i]].
  Plan packed;
  std::vector<size_t> packed_copies;
};

// What an edge's two ends can do; at least one of the two. Reading alone is left where there is no memory for a ring,
// and to transports that read but do not map.
struct HoldMeans {
  bool read = false;  // the receiver's Transport::CheckRead of the publisher
  bool pack = false;  // the transport's `map`, which a ring needs
};

// Each copy by its cheapest path; reading where they cost the same. Both ends need the same means.
HoldSplit SplitForHold(const Plan& plan, const Edge& edge, const HoldMeans& means, const HoldCosts& costs = {});

}  // namespace headrace

#endif  // HEADRACE_LOADER_HOLD_PATH_H_
