#ifndef HEADRACE_PLANNER_COST_ENGINE_H_
#define HEADRACE_PLANNER_COST_ENGINE_H_

// The event loop of the simulator: simulate.h says what it does. Internal to it; the traffic has been validated.

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "planner/cost/flow.h"
#include "planner/cost/machine.h"
#include "planner/cost/simulate.h"
#include "planner/cost/timeline.h"

namespace headrace {

using Picoseconds = int64_t;

// Time spent, by phase. Sums to the time at which something happens that began when all of it was over.
struct CriticalPath {
  std::array<Picoseconds, kPhases> spent = {};

  void Add(Phase phase, Picoseconds time) { spent[static_cast<size_t>(phase)] += time; }
};

class Engine {
 public:
  // All three outlive the engine. `timeline` has kPorts tracks for each node, or is null; `track` says which a node's
  // first is, -1 for none.
  Engine(const Traffic& traffic, const CostModel& model, Index chunk_bytes, Timeline* timeline,
         std::vector<int64_t> track);

  // Each runs until nothing is left to do. `first` is the node of bytes[0].
  void Copy(Phase phase, const CopyCost& cost, const std::vector<Index>& bytes, int32_t first);
  void Transfer();
  void Spend(Phase phase, Picoseconds time);

  Picoseconds now() const { return now_; }
  const CriticalPath& path() const { return path_; }
  const std::vector<NodeUse>& nodes() const { return uses_; }
  // After Transfer: groups are left that wait for each other.
  bool Stuck() const;

 private:
  enum class EventKind : uint8_t { kWorkDone, kHostWorkDone, kSent, kOutOfSpine, kArrived, kGroupBegins };

  struct Event {
    Picoseconds time = 0;
    uint64_t order = 0;  // of equal times the first that was scheduled
    uint32_t slot = 0;   // its index into details_

    bool operator>(const Event& other) const { return time != other.time ? time > other.time : order > other.order; }
  };
  struct EventDetail {
    EventKind kind = EventKind::kWorkDone;
    int32_t subject = 0;   // a node, a host, a hop or a group
    uint64_t version = 0;  // kHostWorkDone: stale unless it is the host's. kOutOfSpine: when the chunk left
    CriticalPath path;
  };

  // Chunks of a hop pass each station in order, so that counts tell where each is.
  struct HopState {
    int32_t flow = 0;
    int32_t from = 0;
    int32_t to = 0;
    int32_t first_child = -1;   // hops after this one
    int32_t next_sibling = -1;  // the next one after the same hop
    int32_t group = -1;         // index into groups_
    bool nvlink = false;
    bool crosses = false;     // takes a spine that limits
    bool packs = false;       // `from` packs, since it is the source
    bool prepares = false;    // the worker of `from` has something to do for each chunk
    bool lands_late = false;  // the worker of `to` receives: only then the next hop has the chunk
    bool in_prepare_queue = false;
    bool in_send_queue = false;
    uint32_t chunks = 0;
    uint32_t ready = 0;  // at `from`
    uint32_t preparing = 0;
    uint32_t prepared = 0;
    uint32_t sent = 0;
    uint32_t taken_in = 0;  // by the receiver's port
    uint32_t arrived = 0;
    uint32_t landed = 0;
  };

  struct Group {
    int32_t pair = 0;
    std::vector<int32_t> hops;
    uint64_t missing = 0;  // chunks that their senders do not have yet
    uint64_t out = 0;      // chunks that have not arrived
    bool open = false;     // its hops may send
  };
  // Of two nodes: groups_[first, first + count), of which so many have been launched and are over.
  struct Pair {
    int32_t first = 0;
    int32_t count = 0;
    int32_t launched = 0;
    int32_t over = 0;
  };

  enum class JobKind : uint8_t { kNone, kPrepare, kLand, kCopy };
  struct Worker {
    std::vector<int32_t> prepare;  // heap: hops with a chunk to prepare, the traffic's first on top
    std::deque<int32_t> land;      // hops of arrived chunks
    JobKind job = JobKind::kNone;
    int32_t hop = 0;
    Phase phase = Phase::kPack;
    Picoseconds begin = 0;
    Picoseconds work = 0;          // at full speed
    double copied_per_second = 0;  // at full speed
    double target = 0;             // of the host's virtual time
    CriticalPath path;             // at the beginning
  };
  struct SendPort {
    std::vector<int32_t> queue;  // heap, as above
    bool busy = false;
  };
  struct ReceivePort {
    Picoseconds free = 0;
    CriticalPath path;  // at `free`
  };
  // Workers that share cores. Virtual time is the work that each of those at work has been given.
  struct Host {
    std::vector<int32_t> active;  // nodes
    double virtual_time = 0;
    double speed = 1;
    double demand = 0;  // sum of copied_per_second
    Picoseconds updated = 0;
    uint64_t version = 0;
  };

  const WireCost& wire(const HopState& hop) const { return hop.nvlink ? model_.nvlink : model_.nic; }
  Index ChunkBytes(const HopState& hop, uint32_t chunk) const;
  Index ChunkCopies(const HopState& hop, uint32_t chunk) const;
  Index ChunkMessages(Index bytes) const;

  void Schedule(Picoseconds time, EventKind kind, int32_t subject, const CriticalPath& path, uint64_t version = 0);
  void Run();
  void Busy(int32_t node, Port port, Picoseconds begin, Picoseconds end);

  void Offer(int32_t hop);        // puts it into the queues that it belongs in now
  void PumpWorker(int32_t node);  // begins a job, where there is one and the worker is free
  void PumpPort(int32_t node, bool nvlink);
  void Send(int32_t hop);
  // A chunk that left at `sent`, and has come through the spine where it had to, reaches the receiver's port.
  void TakeIn(int32_t hop, Picoseconds sent);
  void Arrived(int32_t hop);
  void Received(int32_t hop);  // an arrived chunk may be passed on and unpacked
  void FormGroups();
  void LaunchGroups(int32_t pair);
  void BeginGroup(int32_t group);
  void EndGroup(int32_t group);
  void Landed(int32_t hop);
  void PassOn(int32_t hop);

  void BeginWork(int32_t node, JobKind job, int32_t hop, Phase phase, Picoseconds work, Index copied_bytes);
  void WorkDone(int32_t node);
  void Advance(Host& host);
  void Reschedule(int32_t host);

  const Traffic& traffic_;
  const CostModel& model_;
  const Index chunk_bytes_;
  Timeline* timeline_;
  std::vector<int64_t> track_;

  Picoseconds now_ = 0;
  CriticalPath path_;  // what led to the event that is handled
  uint64_t scheduled_ = 0;
  std::vector<Event> events_;  // heap
  std::vector<EventDetail> details_;
  std::vector<uint32_t> free_details_;

  std::vector<HopState> hops_;  // in the order of the traffic
  std::vector<Group> groups_;   // by pair, then number
  std::vector<Pair> pairs_;
  std::vector<Worker> workers_;
  std::array<std::vector<SendPort>, 2> send_;        // by nvlink, node
  std::array<std::vector<ReceivePort>, 2> receive_;  // likewise
  double spine_bytes_per_second_ = 0;                // 0: rails make no difference
  ReceivePort spine_;
  std::vector<int32_t> host_;  // by node, from 0 on without gaps
  std::vector<Host> hosts_;
  std::vector<NodeUse> uses_;
};

// Rounded up.
Picoseconds BytesTime(Index bytes, double bytes_per_second);
Picoseconds NanosecondsTime(double nanoseconds);
Picoseconds CopyTime(const CopyCost& cost, Index bytes, Index copies);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_COST_ENGINE_H_
