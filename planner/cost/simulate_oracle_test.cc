// The simulator against a clock that ticks: every tick each port and each worker does a tick's worth of its job. No
// events, no heaps, no virtual time; and other tie breaks, so that single cases differ a little.

#include <algorithm>
#include <cmath>
#include <deque>
#include <iostream>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "planner/cost/simulate.h"
#include "planner/cost/testing/clusters.h"

namespace headrace {
namespace {

constexpr double kTick = 1e-6;

class TickingClock {
 public:
  TickingClock(const Traffic& traffic, const CostModel& model) : traffic_(traffic), model_(model) {
    const size_t nodes = traffic.host.size();
    workers_.resize(nodes);
    for (int nvlink : {0, 1}) {
      ports_[nvlink].resize(nodes);
      arrivals_[nvlink].resize(nodes);
    }
    for (const Flow& flow : traffic.flows) {
      const int first = static_cast<int>(legs_.size());
      for (const Hop& hop : flow.hops) {
        const int chunks = static_cast<int>((flow.bytes + model.chunk_bytes - 1) / model.chunk_bytes);
        legs_.push_back({&flow, hop.from, hop.to, hop.after < 0 ? -1 : first + hop.after,
                         traffic.domain[hop.from] == traffic.domain[hop.to], chunks});
      }
    }
  }

  double Run() {
    double now = 0;
    for (; !Done(); now += kTick) {
      Start(now);
      Tick(now + kTick);
    }
    return now;
  }

 private:
  struct Leg {
    const Flow* flow;
    int from, to, after;
    bool nvlink;
    int chunks;
    int preparing = 0, prepared = 0, sent = 0, arrived = 0, landed = 0;
  };
  struct Worker {
    int leg = -1;
    bool lands = false;
    double left = 0;
    std::deque<int> waiting;
  };
  struct SendPort {
    int leg = -1;
    double left = 0;
  };
  struct Arrival {
    int leg;
    double from, until;  // may begin; may not end before
    double left;
  };

  bool Done() const {
    return std::all_of(legs_.begin(), legs_.end(), [](const Leg& leg) { return leg.landed == leg.chunks; });
  }
  const WireCost& Wire(const Leg& leg) const { return leg.nvlink ? model_.nvlink : model_.nic; }
  double Bytes(const Leg& leg, int chunk) const {
    return static_cast<double>(std::min(model_.chunk_bytes, leg.flow->bytes - model_.chunk_bytes * chunk));
  }
  static double Over(double bytes, double rate) { return rate > 0 ? bytes / rate : 0; }
  // Copies are spread over chunks, the first chunks have one more.
  static double Copies(const Leg& leg, int chunk) {
    return static_cast<double>(leg.flow->copies / leg.chunks + (chunk < leg.flow->copies % leg.chunks ? 1 : 0));
  }
  double PrepareSeconds(const Leg& leg, int chunk) const {
    const WireCost& wire = Wire(leg);
    double seconds = wire.sender_ns_per_byte * 1e-9 * Bytes(leg, chunk);
    if (leg.after < 0 && !wire.mapped) {
      seconds +=
          Over(Bytes(leg, chunk), model_.pack.bytes_per_second) + model_.pack.ns_per_copy * 1e-9 * Copies(leg, chunk);
    }
    return seconds;
  }
  bool Prepares(const Leg& leg) const {
    const bool packs = leg.after < 0 && !Wire(leg).mapped && model_.pack.bytes_per_second > 0;
    return packs || Wire(leg).sender_ns_per_byte > 0;
  }
  bool LandsLate(const Leg& leg) const { return Wire(leg).mapped || Wire(leg).receiver_ns_per_byte > 0; }
  double LandSeconds(const Leg& leg, int chunk) const {
    const CopyCost& copy = Wire(leg).mapped ? model_.direct : model_.unpack;
    return Wire(leg).receiver_ns_per_byte * 1e-9 * Bytes(leg, chunk) + Over(Bytes(leg, chunk), copy.bytes_per_second) +
           copy.ns_per_copy * 1e-9 * Copies(leg, chunk);
  }
  int Ready(const Leg& leg) const {
    if (leg.after < 0) return leg.chunks;
    const Leg& before = legs_[leg.after];
    return LandsLate(before) ? before.landed : before.arrived;
  }

  void Start(double now) {
    for (size_t l = 0; l < legs_.size(); ++l) {
      Leg& leg = legs_[l];
      Worker& worker = workers_[leg.from];
      if (Prepares(leg) && worker.leg < 0 && worker.waiting.empty() && leg.preparing < Ready(leg) &&
          leg.preparing - leg.landed < model_.window) {
        worker.leg = static_cast<int>(l);
        worker.lands = false;
        worker.left = PrepareSeconds(leg, leg.preparing++);
      }
      SendPort& port = ports_[leg.nvlink][leg.from];
      const bool sendable =
          Prepares(leg) ? leg.sent < leg.prepared : leg.sent < Ready(leg) && leg.sent - leg.landed < model_.window;
      if (port.leg < 0 && sendable) {
        const double seconds = Over(Bytes(leg, leg.sent++), Wire(leg).bytes_per_second);
        const double latency = static_cast<double>(Wire(leg).latency_ns) * 1e-9;
        port = {static_cast<int>(l), seconds};
        arrivals_[leg.nvlink][leg.to].push_back({static_cast<int>(l), now + latency, now + latency + seconds, seconds});
      }
    }
    for (Worker& worker : workers_) {
      if (worker.leg >= 0 || worker.waiting.empty()) continue;
      worker.leg = worker.waiting.front();
      worker.waiting.pop_front();
      worker.lands = true;
      worker.left = LandSeconds(legs_[worker.leg], legs_[worker.leg].landed);
    }
  }

  void Tick(double now) {
    for (int nvlink : {0, 1}) {
      for (SendPort& port : ports_[nvlink]) {
        if (port.leg >= 0 && (port.left -= kTick) <= kTick / 2) port.leg = -1;
      }
      for (auto& queue : arrivals_[nvlink]) {
        if (queue.empty()) continue;
        Arrival& first = queue.front();
        if (now - kTick / 2 < first.from) continue;
        first.left -= kTick;
        if (first.left > kTick / 2 || now + kTick / 2 < first.until) continue;
        ++legs_[first.leg].arrived;
        workers_[legs_[first.leg].to].waiting.push_back(first.leg);
        queue.pop_front();
      }
    }
    std::vector<double> speed(traffic_.host.size(), 1);
    for (size_t n = 0; n < workers_.size() && model_.cores > 0; ++n) {
      double busy = 0;
      for (size_t m = 0; m < workers_.size(); ++m) {
        busy += traffic_.host[m] == traffic_.host[n] && workers_[m].leg >= 0 ? 1 : 0;
      }
      speed[n] = busy > 0 ? std::min(1.0, static_cast<double>(model_.cores) / busy) : 1;
    }
    for (size_t n = 0; n < workers_.size(); ++n) {
      Worker& worker = workers_[n];
      if (worker.leg < 0) continue;
      worker.left -= kTick * speed[n];
      if (worker.left > kTick / 2) continue;
      ++(worker.lands ? legs_[worker.leg].landed : legs_[worker.leg].prepared);
      worker.leg = -1;
    }
  }

  const Traffic& traffic_;
  const CostModel& model_;
  std::vector<Leg> legs_;  // in the order of the traffic
  std::vector<Worker> workers_;
  std::vector<SendPort> ports_[2];
  std::vector<std::deque<Arrival>> arrivals_[2];
};

CostModel RandomModel(std::mt19937_64& random) {
  const auto any = [&random](std::initializer_list<double> values) {
    return *(values.begin() + random() % values.size());
  };
  CostModel model;
  // Of 100-byte chunks: 50 to 400 ticks.
  for (WireCost* wire : {&model.nic, &model.nvlink}) {
    wire->bytes_per_second = any({2.5e5, 1e6, 2e6});
    wire->latency_ns = static_cast<Index>(any({0, 20000, 150000}));
    wire->sender_ns_per_byte = any({0, 0, 700});
    wire->receiver_ns_per_byte = any({0, 0, 900});
    wire->mapped = any({0, 0, 1}) > 0;
  }
  model.pack = {.bytes_per_second = any({0, 1e6}), .ns_per_copy = 0};
  model.unpack = {.bytes_per_second = any({5e5, 1.5e6}), .ns_per_copy = any({0, 10000})};
  model.direct = {.bytes_per_second = 1e6, .ns_per_copy = 0};
  model.chunk_bytes = 100;
  model.window = static_cast<Index>(any({1, 2, 3, 100}));
  model.cores = static_cast<Index>(any({0, 0, 1, 2}));
  return model;
}

TEST(SimulateOracle, AgreesWithATickingClock) {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  double sum = 0, worst = 0;
  const int cases = 150;
  for (int i = 0; i < cases; ++i) {
    const Cluster cluster = RandomCluster(random);
    Traffic traffic = RandomTraffic(cluster, random);
    if (traffic.flows.size() > 8) traffic.flows.resize(8);
    for (Flow& flow : traffic.flows) flow.bytes = static_cast<Index>(1 + random() % 1500);
    const CostModel model = RandomModel(random);
    const absl::StatusOr<Simulation> simulation = Simulate(traffic, model);
    ASSERT_TRUE(simulation.ok()) << simulation.status();
    const double ticked = TickingClock(traffic, model).Run();
    const double error = simulation->transfer_seconds / ticked - 1;
    sum += error;
    worst = std::max(worst, std::abs(error));
    ASSERT_LT(std::abs(error), 0.5) << "case " << i << ": " << simulation->transfer_seconds << " and " << ticked;
  }
  std::cout << "mean " << sum / cases << ", worst " << worst << "\n";
  EXPECT_LT(std::abs(sum / cases), 0.01);
}

}  // namespace
}  // namespace headrace
