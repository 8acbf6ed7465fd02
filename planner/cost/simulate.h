#ifndef HEADRACE_PLANNER_COST_SIMULATE_H_
#define HEADRACE_PLANNER_COST_SIMULATE_H_

// How long a refit takes: discrete events over its traffic, on machines as the cost model describes them. What it says
// is simulated, never measured.
//
// The order of things:
//   1. every publisher copies its snapshot (SimulateOptions::snapshot_bytes); a generation is announced when all have
//   2. flows, chunk by chunk:
//      - A worker packs, and a port sends, the chunk of the first hop of the traffic that has one ready. A chunk is
//        ready where the node has it (a relay: as soon as it has received it) and where the hop's window is open.
//      - A port sends one chunk at a time. It arrives in the receiver's port a latency later and is taken in, one
//        after the other, in the order of leaving; sending and taking in overlap (a chunk is on the wire once).
//      - What goes from one rail to another takes the spine, a port of all nodes that takes in one chunk after the
//      other:
//        a chunk that has left waits for its turn there, and its sender does not wait for it. The receiver's port
//        takes it in when it comes out, after what has come by then.
//      - A group of hops (Hop::group) is launched when its nodes have all chunks that they send in it, and when its
//      pair
//        has fewer than two groups under way; group_ns later its hops may send, without regard to the window. Chunks
//        that have arrived wait until all of the group have. Then they are passed on and unpacked.
//      - The receiver's worker unpacks arrived chunks in the order of arrival, and packs only when there are none.
//   3. when all has arrived: every destination copies into its live buffers (commit_bytes), and the fixed costs
//
// Times are whole picoseconds, rounded up, so a result is never below what the rates allow. Deterministic.
//
// Large traffic is simulated in larger chunks: chunk_bytes is doubled until all hops together have at most
// `max_chunks` chunks (or one each). Costs per message and per copy are still those of the model's chunks. Larger
// chunks fill pipelines later, so this errs to the slow side; only a window that limits (window * chunk_bytes below
// bytes per round trip) seems wider than it is. Simulation::chunk_bytes says what was used.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/cost/flow.h"
#include "planner/cost/machine.h"
#include "planner/manifest.h"

namespace headrace {

// What the time was spent on, along the critical path: the chain of work, each beginning when the one before it ended,
// that ends with the last. Adds up to the total.
enum class Phase {
  kSnapshot,
  kPack,     // and sending, as far as a worker does it
  kNic,      // on the wire between domains
  kNvlink,   // on the wire inside a domain
  kUnpack,   // and receiving; of a mapped wire the copy
  kWaiting,  // latencies, launches of groups, and what workers lost because others used the cores or the memory
  kCommit,   // with the fixed costs
};
inline constexpr size_t kPhases = 7;
absl::string_view PhaseName(Phase phase);  // "snapshot", "pack", ...

enum class Port { kWorker, kNicSend, kNicReceive, kNvlinkSend, kNvlinkReceive };
inline constexpr size_t kPorts = 5;
absl::string_view PortName(Port port);  // "worker", "nic_send", ...

struct SimulateOptions {
  // Bytes that each source rank copies before anything is sent; empty: none.
  std::vector<Index> snapshot_bytes = {};
  // Bytes that each destination rank copies after everything has arrived; empty: none.
  std::vector<Index> commit_bytes = {};
  Index max_chunks = Index{4} << 20;  // >= 1
  // Nodes for the timeline; empty: none.
  std::vector<int32_t> timeline_nodes = {};
  size_t max_intervals = 20000;  // of the timeline, at least one per port of its nodes
};

// A port of a node is at work. Intervals with short pauses between them are one, as many as max_intervals asks for.
struct BusyInterval {
  int32_t node = 0;
  Port port = Port::kWorker;
  double begin_seconds = 0;
  double end_seconds = 0;
};

struct NodeUse {
  std::array<double, kPorts> busy_seconds = {};  // by Port
  Index sent_bytes = 0;                          // of hops that leave it
  Index received_bytes = 0;
  double finished_seconds = 0;  // the last byte has arrived in its buffers; 0: gets none
};

struct Simulation {
  double seconds = 0;           // all of it
  double transfer_seconds = 0;  // until everything has arrived, snapshots included
  std::array<double, kPhases> by_phase = {};
  std::vector<NodeUse> nodes;
  std::vector<BusyInterval> timeline;  // by node, port, time
  Index chunk_bytes = 0;               // that was simulated
  Index chunks = 0;                    // simulated, over all hops
  Index messages = 0;                  // of the model's chunk_bytes, over all hops
};

// Errors: kMalformed for traffic that is none (a node that does not exist; a hop to itself; a hop that does not begin
// where the one that it is after ends, or that is not behind it; a first hop from a destination rank; negative
// numbers; groups that wait for each other in a circle), kInvalidOption for a model with negative or not finite
// numbers, chunk_bytes or window below 1, a spine_share that is none, and for options of the wrong length, kOutOfBounds
// for work that takes 9e6 seconds (104 days) or more, one after the other. Time: chunks * log(nodes); memory: hops and
// nodes.
absl::StatusOr<Simulation> Simulate(const Traffic& traffic, const CostModel& model,
                                    const SimulateOptions& options = {});

}  // namespace headrace

#endif  // HEADRACE_PLANNER_COST_SIMULATE_H_
