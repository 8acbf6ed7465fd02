#include "planner/cost/engine.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

namespace headrace {
namespace {

constexpr double kPicosecondsPerSecond = 1e12;

void Push(std::vector<int32_t>& heap, int32_t hop) {
  heap.push_back(hop);
  std::push_heap(heap.begin(), heap.end(), std::greater<>());
}

int32_t Pop(std::vector<int32_t>& heap) {
  std::pop_heap(heap.begin(), heap.end(), std::greater<>());
  const int32_t hop = heap.back();
  heap.pop_back();
  return hop;
}

}  // namespace

Picoseconds BytesTime(Index bytes, double bytes_per_second) {
  if (bytes_per_second == 0) return 0;
  return static_cast<Picoseconds>(std::ceil(static_cast<double>(bytes) * kPicosecondsPerSecond / bytes_per_second));
}

Picoseconds NanosecondsTime(double nanoseconds) { return static_cast<Picoseconds>(std::ceil(nanoseconds * 1e3)); }

Picoseconds CopyTime(const CopyCost& cost, Index bytes, Index copies) {
  return BytesTime(bytes, cost.bytes_per_second) + NanosecondsTime(cost.ns_per_copy * static_cast<double>(copies));
}

Engine::Engine(const Traffic& traffic, const CostModel& model, Index chunk_bytes, Timeline* timeline,
               std::vector<int64_t> track)
    : traffic_(traffic), model_(model), chunk_bytes_(chunk_bytes), timeline_(timeline), track_(std::move(track)) {
  const size_t nodes = traffic.host.size();
  workers_.resize(nodes);
  for (auto& ports : send_) ports.resize(nodes);
  for (auto& ports : receive_) ports.resize(nodes);
  uses_.resize(nodes);
  std::map<int32_t, int32_t> numbers;
  for (int32_t host : traffic.host) {
    host_.push_back(numbers.try_emplace(host, static_cast<int32_t>(numbers.size())).first->second);
  }
  hosts_.resize(numbers.size());
  if (model.spine_share < 1 && !traffic.rail.empty()) {
    spine_bytes_per_second_ = model.spine_share * static_cast<double>(nodes) * model.nic.bytes_per_second;
  }

  size_t count = 0;
  for (const Flow& flow : traffic.flows) count += flow.hops.size();
  hops_.reserve(count);
  for (size_t f = 0; f < traffic.flows.size(); ++f) {
    const Flow& flow = traffic.flows[f];
    const int32_t first = static_cast<int32_t>(hops_.size());
    for (const Hop& hop : flow.hops) {
      HopState state{.flow = static_cast<int32_t>(f), .from = hop.from, .to = hop.to};
      state.nvlink = traffic.domain[hop.from] == traffic.domain[hop.to];
      state.crosses = spine_bytes_per_second_ > 0 && !state.nvlink && traffic.rail[hop.from] != traffic.rail[hop.to];
      const WireCost& wire = state.nvlink ? model.nvlink : model.nic;
      state.packs = hop.after < 0 && !wire.mapped;
      state.prepares = wire.sender_ns_per_byte > 0 || wire.sender_ns_per_message > 0 ||
                       (state.packs && (model.pack.bytes_per_second > 0 || model.pack.ns_per_copy > 0));
      state.lands_late = wire.mapped || wire.receiver_ns_per_byte > 0 || wire.receiver_ns_per_message > 0;
      state.chunks = static_cast<uint32_t>((flow.bytes + chunk_bytes - 1) / chunk_bytes);
      if (hop.after < 0) {
        state.ready = state.chunks;
      } else {
        HopState& parent = hops_[first + hop.after];
        state.next_sibling = parent.first_child;
        parent.first_child = static_cast<int32_t>(hops_.size());
      }
      uses_[hop.from].sent_bytes += flow.bytes;
      uses_[hop.to].received_bytes += flow.bytes;
      hops_.push_back(state);
    }
  }
  FormGroups();
}

Index Engine::ChunkBytes(const HopState& hop, uint32_t chunk) const {
  return std::min(chunk_bytes_, traffic_.flows[hop.flow].bytes - chunk_bytes_ * chunk);
}

Index Engine::ChunkCopies(const HopState& hop, uint32_t chunk) const {
  const Index copies = traffic_.flows[hop.flow].copies;
  const Index each = copies / hop.chunks;
  const Index rest = copies % hop.chunks;
  return each + (chunk < rest ? 1 : 0);
}

Index Engine::ChunkMessages(Index bytes) const { return (bytes + model_.chunk_bytes - 1) / model_.chunk_bytes; }

void Engine::Schedule(Picoseconds time, EventKind kind, int32_t subject, const CriticalPath& path, uint64_t version) {
  uint32_t slot;
  if (free_details_.empty()) {
    slot = static_cast<uint32_t>(details_.size());
    details_.emplace_back();
  } else {
    slot = free_details_.back();
    free_details_.pop_back();
  }
  details_[slot] = {kind, subject, version, path};
  events_.push_back({time, scheduled_++, slot});
  std::push_heap(events_.begin(), events_.end(), std::greater<>());
}

void Engine::Run() {
  while (!events_.empty()) {
    std::pop_heap(events_.begin(), events_.end(), std::greater<>());
    const Event event = events_.back();
    events_.pop_back();
    const EventDetail detail = details_[event.slot];
    free_details_.push_back(event.slot);
    if (detail.kind == EventKind::kHostWorkDone && detail.version != hosts_[detail.subject].version) continue;
    now_ = event.time;
    path_ = detail.path;
    switch (detail.kind) {
      case EventKind::kWorkDone:
        WorkDone(detail.subject);
        break;
      case EventKind::kHostWorkDone: {
        Host& host = hosts_[detail.subject];
        Advance(host);
        const auto done = std::min_element(host.active.begin(), host.active.end(), [this](int32_t a, int32_t b) {
          return workers_[a].target < workers_[b].target;
        });
        const int32_t node = *done;
        const Worker& worker = workers_[node];
        host.virtual_time = std::max(host.virtual_time, worker.target);
        host.active.erase(done);
        path_ = worker.path;
        path_.Add(worker.phase, worker.work);
        path_.Add(Phase::kWaiting, now_ - worker.begin - worker.work);
        Reschedule(detail.subject);
        WorkDone(node);
        break;
      }
      case EventKind::kSent: {
        const HopState& hop = hops_[detail.subject];
        send_[hop.nvlink][hop.from].busy = false;
        PumpPort(hop.from, hop.nvlink);
        break;
      }
      case EventKind::kOutOfSpine:
        TakeIn(detail.subject, static_cast<Picoseconds>(detail.version));
        break;
      case EventKind::kArrived:
        Arrived(detail.subject);
        break;
      case EventKind::kGroupBegins:
        BeginGroup(detail.subject);
        break;
    }
  }
}

void Engine::Busy(int32_t node, Port port, Picoseconds begin, Picoseconds end) {
  const size_t p = static_cast<size_t>(port);
  uses_[node].busy_seconds[p] += static_cast<double>(end - begin) / kPicosecondsPerSecond;
  if (timeline_ != nullptr && track_[node] >= 0) timeline_->Add(track_[node] + p, begin, end);
}

void Engine::Offer(int32_t h) {
  HopState& hop = hops_[h];
  const uint32_t begun = hop.prepares ? hop.preparing : hop.sent;
  const bool open = begun < hop.ready &&
                    (hop.group >= 0 ? groups_[hop.group].open : static_cast<Index>(begun - hop.landed) < model_.window);
  if (hop.prepares && open && !hop.in_prepare_queue) {
    hop.in_prepare_queue = true;
    Push(workers_[hop.from].prepare, h);
  }
  if ((hop.prepares ? hop.sent < hop.prepared : open) && !hop.in_send_queue) {
    hop.in_send_queue = true;
    Push(send_[hop.nvlink][hop.from].queue, h);
  }
}

void Engine::PumpWorker(int32_t node) {
  Worker& worker = workers_[node];
  if (worker.job != JobKind::kNone) return;
  if (!worker.land.empty()) {
    const int32_t h = worker.land.front();
    worker.land.pop_front();
    const HopState& hop = hops_[h];
    const WireCost& wire = this->wire(hop);
    const Index bytes = ChunkBytes(hop, hop.landed);
    const Picoseconds work = NanosecondsTime(wire.receiver_ns_per_byte * static_cast<double>(bytes)) +
                             NanosecondsTime(static_cast<double>(wire.receiver_ns_per_message * ChunkMessages(bytes))) +
                             CopyTime(wire.mapped ? model_.direct : model_.unpack, bytes, ChunkCopies(hop, hop.landed));
    BeginWork(node, JobKind::kLand, h, Phase::kUnpack, work, bytes * (wire.receiver_ns_per_byte > 0 ? 2 : 1));
  } else if (!worker.prepare.empty()) {
    const int32_t h = Pop(worker.prepare);
    HopState& hop = hops_[h];
    const WireCost& wire = this->wire(hop);
    const uint32_t chunk = hop.preparing++;
    const Index bytes = ChunkBytes(hop, chunk);
    Picoseconds work = NanosecondsTime(wire.sender_ns_per_byte * static_cast<double>(bytes)) +
                       NanosecondsTime(static_cast<double>(wire.sender_ns_per_message * ChunkMessages(bytes)));
    if (hop.packs) work += CopyTime(model_.pack, bytes, ChunkCopies(hop, chunk));
    const Index copied = bytes * ((hop.packs ? 1 : 0) + (wire.sender_ns_per_byte > 0 ? 1 : 0));
    hop.in_prepare_queue = false;
    Offer(h);
    BeginWork(node, JobKind::kPrepare, h, Phase::kPack, work, copied);
  }
}

void Engine::BeginWork(int32_t node, JobKind job, int32_t hop, Phase phase, Picoseconds work, Index copied_bytes) {
  Worker& worker = workers_[node];
  worker.job = job;
  worker.hop = hop;
  worker.phase = phase;
  worker.begin = now_;
  worker.work = work;
  worker.path = path_;
  if (model_.cores == 0) {
    CriticalPath path = path_;
    path.Add(phase, work);
    Schedule(now_ + work, EventKind::kWorkDone, node, path);
    return;
  }
  worker.copied_per_second =
      work == 0 ? 0 : static_cast<double>(copied_bytes) / (static_cast<double>(work) / kPicosecondsPerSecond);
  Host& host = hosts_[host_[node]];
  Advance(host);
  worker.target = host.virtual_time + static_cast<double>(work);
  host.active.push_back(node);
  Reschedule(host_[node]);
}

void Engine::Advance(Host& host) {
  host.virtual_time += host.speed * static_cast<double>(now_ - host.updated);
  host.updated = now_;
}

void Engine::Reschedule(int32_t h) {
  Host& host = hosts_[h];
  ++host.version;
  if (host.active.empty()) return;
  double demand = 0;
  double target = workers_[host.active.front()].target;
  for (int32_t node : host.active) {
    demand += workers_[node].copied_per_second;
    target = std::min(target, workers_[node].target);
  }
  host.speed = std::min(1.0, static_cast<double>(model_.cores) / static_cast<double>(host.active.size()));
  if (model_.memory_bytes_per_second > 0 && demand > 0) {
    host.speed = std::min(host.speed, model_.memory_bytes_per_second / demand);
  }
  const double left = std::max(0.0, target - host.virtual_time);
  Schedule(now_ + static_cast<Picoseconds>(std::ceil(left / host.speed)), EventKind::kHostWorkDone, h, {},
           host.version);
}

void Engine::WorkDone(int32_t node) {
  Worker& worker = workers_[node];
  const JobKind job = std::exchange(worker.job, JobKind::kNone);
  Busy(node, Port::kWorker, worker.begin, now_);
  if (job == JobKind::kPrepare) {
    const int32_t h = worker.hop;
    ++hops_[h].prepared;
    Offer(h);
    PumpPort(node, hops_[h].nvlink);
  } else if (job == JobKind::kLand) {
    Landed(worker.hop);
  }
  PumpWorker(node);
}

void Engine::PumpPort(int32_t node, bool nvlink) {
  SendPort& port = send_[nvlink][node];
  while (!port.busy && !port.queue.empty()) Send(Pop(port.queue));
}

void Engine::Send(int32_t h) {
  HopState& hop = hops_[h];
  const WireCost& wire = this->wire(hop);
  const Index bytes = ChunkBytes(hop, hop.sent++);
  hop.in_send_queue = false;
  Offer(h);
  const Phase phase = hop.nvlink ? Phase::kNvlink : Phase::kNic;
  const Picoseconds sending = BytesTime(bytes, wire.bytes_per_second) +
                              NanosecondsTime(static_cast<double>(wire.message_ns * ChunkMessages(bytes)));
  if (sending > 0) {
    send_[hop.nvlink][hop.from].busy = true;
    CriticalPath path = path_;
    path.Add(phase, sending);
    Schedule(now_ + sending, EventKind::kSent, h, path);
    Busy(hop.from, hop.nvlink ? Port::kNvlinkSend : Port::kNicSend, now_, now_ + sending);
  }
  if (hop.crosses) {
    const Picoseconds crossing = BytesTime(bytes, spine_bytes_per_second_);
    if (spine_.free <= now_) spine_ = {now_, path_};
    // Of a spine that is slower than the receiver's port it comes out when it can be taken in in one go.
    const Picoseconds held = std::max<Picoseconds>(0, crossing - BytesTime(bytes, wire.bytes_per_second));
    const Picoseconds out = spine_.free + held;
    CriticalPath path = spine_.path;
    path.Add(phase, held);
    spine_.free += crossing;
    spine_.path.Add(phase, crossing);
    if (out > now_) {
      Schedule(out, EventKind::kOutOfSpine, h, path, static_cast<uint64_t>(now_));
      return;
    }
  }
  TakeIn(h, now_);
}

void Engine::TakeIn(int32_t h, Picoseconds sent) {
  HopState& hop = hops_[h];
  const WireCost& wire = this->wire(hop);
  const Index bytes = ChunkBytes(hop, hop.taken_in++);
  const Phase phase = hop.nvlink ? Phase::kNvlink : Phase::kNic;
  const Picoseconds receiving = BytesTime(bytes, wire.bytes_per_second);
  const Picoseconds sending = receiving + NanosecondsTime(static_cast<double>(wire.message_ns * ChunkMessages(bytes)));
  const Picoseconds latency = NanosecondsTime(static_cast<double>(wire.latency_ns));
  ReceivePort& port = receive_[hop.nvlink][hop.to];
  const Picoseconds begin = std::max(port.free, now_ + latency);
  const Picoseconds end = std::max(begin + receiving, sent + latency + sending);
  if (port.free > now_ + latency && end == begin + receiving) {
    port.path.Add(phase, end - begin);  // it waited for the chunks before it, not for its sender
  } else {
    port.path = path_;
    port.path.Add(Phase::kWaiting, latency);
    port.path.Add(phase, end - now_ - latency);
  }
  port.free = end;
  Schedule(end, EventKind::kArrived, h, port.path);
  Busy(hop.to, hop.nvlink ? Port::kNvlinkReceive : Port::kNicReceive, end - receiving, end);
}

void Engine::Arrived(int32_t h) {
  HopState& hop = hops_[h];
  ++hop.arrived;
  if (hop.group < 0) {
    Received(h);
  } else if (--groups_[hop.group].out == 0) {
    EndGroup(hop.group);
  }
}

void Engine::Received(int32_t h) {
  const HopState& hop = hops_[h];
  if (!hop.lands_late) PassOn(h);
  const CopyCost& copy = wire(hop).mapped ? model_.direct : model_.unpack;
  if (hop.lands_late || copy.bytes_per_second > 0 || copy.ns_per_copy > 0) {
    workers_[hop.to].land.push_back(h);
    PumpWorker(hop.to);
  } else {
    Landed(h);
  }
}

void Engine::PassOn(int32_t h) {
  for (int32_t child = hops_[h].first_child; child >= 0; child = hops_[child].next_sibling) {
    ++hops_[child].ready;
    if (const int32_t group = hops_[child].group; group >= 0 && --groups_[group].missing == 0) {
      LaunchGroups(groups_[group].pair);
    }
    Offer(child);
  }
  PumpPort(hops_[h].to, false);
  PumpPort(hops_[h].to, true);
  PumpWorker(hops_[h].to);
}

void Engine::Landed(int32_t h) {
  HopState& hop = hops_[h];
  ++hop.landed;
  uses_[hop.to].finished_seconds = static_cast<double>(now_) / kPicosecondsPerSecond;
  if (hop.lands_late) PassOn(h);
  Offer(h);  // the window is open again
  PumpPort(hop.from, hop.nvlink);
  PumpWorker(hop.from);
}

void Engine::Copy(Phase phase, const CopyCost& cost, const std::vector<Index>& bytes, int32_t first) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    const Picoseconds work = CopyTime(cost, bytes[i], bytes[i] > 0 ? 1 : 0);
    if (work > 0) BeginWork(first + static_cast<int32_t>(i), JobKind::kCopy, -1, phase, work, bytes[i]);
  }
  Run();
}

void Engine::Transfer() {
  for (size_t p = 0; p < pairs_.size(); ++p) LaunchGroups(static_cast<int32_t>(p));
  for (size_t h = 0; h < hops_.size(); ++h) Offer(static_cast<int32_t>(h));
  for (size_t node = 0; node < workers_.size(); ++node) {
    const int32_t n = static_cast<int32_t>(node);
    PumpWorker(n);
    PumpPort(n, false);
    PumpPort(n, true);
  }
  Run();
}

void Engine::Spend(Phase phase, Picoseconds time) {
  now_ += time;
  path_.Add(phase, time);
}

}  // namespace headrace
