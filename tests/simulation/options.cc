#include "tests/simulation/options.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace headrace::simulation {

SimulationOptions DrawOptions(uint64_t seed) {
  std::mt19937_64 random(seed * 0x9E3779B97F4A7C15 + 1);
  const auto draw = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  const auto chance = [&](int percent) { return draw(0, 99) < percent; };
  SimulationOptions o;
  o.seed = seed;
  o.layout = chance(70) ? Layout::kSplit : chance(50) ? Layout::kRandom : Layout::kTwoEngines;
  o.publishers = static_cast<int>(draw(1, 4));
  o.replicas = chance(50) ? static_cast<int>(draw(2, 3)) : 1;
  o.workers.clear();
  for (int64_t engines = draw(1, 3); engines > 0; --engines) o.workers.push_back(static_cast<int>(draw(1, 3)));
  if (o.workers.size() > 1 && chance(30)) o.late_engines = 1;
  o.hosts = chance(40) ? static_cast<int>(draw(2, 3)) : 1;
  o.tensors = static_cast<int>(draw(1, 4));
  o.map = chance(45);
  for (int i = 0; i < 4; ++i) o.in_place.push_back(chance(35));
  o.chunk_bytes = 64 << draw(0, 2);
  o.staging_bytes = o.chunk_bytes * draw(1, 16);
  o.timeouts.heartbeat_period_ns = 500 * kMillisecond;
  o.timeouts.heartbeat_timeout_ns = draw(2, 4) * kSecond;
  o.timeouts.join_ns = 15 * kSecond;
  o.timeouts.plan_ns = 8 * kSecond;
  o.timeouts.decision_ns = draw(5, 15) * kSecond;
  o.timeouts.commit_ns = 20 * kSecond;
  o.timeouts.rejoin_ns = chance(30) ? 0 : draw(4, 20) * kSecond;
  o.transfer_timeout_ns = draw(3, 10) * kSecond;
  o.publish_period_ns = draw(200, 2000) * kMillisecond;
  o.lockstep = chance(70);
  o.step_ns = chance(40) ? 50 * kMicrosecond : draw(100, 5000) * kMicrosecond;
  o.faults_ns = draw(10, 30) * kSecond;
  const int storm = chance(15) ? 4 : 1;
  const auto rate = [&](int percent, int most) {
    return chance(percent) ? static_cast<double>(draw(1, storm * most)) : 0;
  };
  o.trainer_crashes = rate(40, 3);
  o.worker_crashes = rate(40, 3);
  o.coordinator_crashes = rate(30, 2);
  o.leaves = rate(25, 3);
  o.cuts = rate(35, 4);
  o.half_opens = rate(25, 2);
  o.partitions = rate(25, 2);
  o.stalls = rate(30, 3);
  o.clock_jumps = rate(20, 3);
  o.moves = rate(20, 3);
  o.new_runs = rate(10, 1);
  o.max_stall_ns = draw(1, 8) * kSecond;
  o.max_delay_ns = chance(50) ? 2 * kMillisecond : draw(5, 300) * kMillisecond;
  if (chance(30)) o.fabric_drop = 0.002 * static_cast<double>(draw(1, 5));
  if (chance(40)) o.fabric_delay = 0.05 * static_cast<double>(draw(1, 8));
  if (chance(30)) o.fabric_corrupt = 0.002 * static_cast<double>(draw(1, 5));
  o.fabric_reorder = chance(50);
  o.hybrid = chance(30);
  o.hold = chance(40);
  return o;
}

std::string Describe(const SimulationOptions& o) {
  std::string text =
      absl::StrCat("seed ", o.seed, ": ",
                   o.layout == Layout::kSplit    ? absl::StrCat(o.publishers, " publishers x ", o.replicas,
                                                                " replicas, engines ", absl::StrJoin(o.workers, "+"))
                   : o.layout == Layout::kRandom ? "random layout"
                                                 : "two engines",
                   o.map    ? ", mapped"
                   : o.hold ? ", two-sided, holding"
                            : ", two-sided",
                   ", late ", o.late_engines, ", hosts ", o.hosts, o.hybrid ? ", hybrid" : "", ", rejoin ",
                   o.timeouts.rejoin_ns / kSecond, " s");
  const auto add = [&](const char* name, double rate) {
    if (rate > 0) absl::StrAppend(&text, ", ", name, " ", rate);
  };
  add("trainer crashes", o.trainer_crashes);
  add("worker crashes", o.worker_crashes);
  add("coordinator crashes", o.coordinator_crashes);
  add("leaves", o.leaves);
  add("cuts", o.cuts);
  add("half-opens", o.half_opens);
  add("partitions", o.partitions);
  add("stalls", o.stalls);
  add("clock jumps", o.clock_jumps);
  add("moves", o.moves);
  add("new runs", o.new_runs);
  add("early writes", o.early_writes);
  add("divergences", o.divergences);
  add("fabric drop", o.fabric_drop);
  add("fabric delay", o.fabric_delay);
  add("fabric corrupt", o.fabric_corrupt);
  return text;
}

}  // namespace headrace::simulation
