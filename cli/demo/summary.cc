#include "cli/demo/summary.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/report.h"

namespace headrace {
namespace {

std::vector<std::string> WorkerNames(const Scenario& s) {
  std::vector<std::string> names;
  for (size_t e = 0; e < s.engines.size(); ++e) {
    for (int w = 0; w < s.engines[e]; ++w) names.push_back(absl::StrCat("e", e, "/w", w));
  }
  return names;
}

// A row for each trainer, a column for each worker; the bar's length is the share of the largest cell.
std::string Picture(const DemoReport& r) {
  constexpr int kBar = 8;
  static constexpr const char* kEighths[] = {"", "\u258f", "\u258e", "\u258d", "\u258c", "\u258b", "\u258a", "\u2589"};
  Index most = 1;
  for (const auto& row : r.traffic) {
    for (Index bytes : row) most = std::max(most, bytes);
  }
  std::string out = "  who sent what to whom (payload of one generation)\n\n             ";
  for (const std::string& name : WorkerNames(r.scenario)) absl::StrAppend(&out, absl::StrFormat("  %-19s", name));
  out += "  in all\n";
  for (size_t t = 0; t < r.traffic.size(); ++t) {
    absl::StrAppend(&out, absl::StrFormat("  trainer %-3d", t));
    Index sum = 0;
    for (Index bytes : r.traffic[t]) {
      const Index eighths = (bytes * kBar * 8 + most - 1) / most;
      std::string bar;
      for (Index i = 0; i < eighths / 8; ++i) bar += "\u2588";
      bar += kEighths[eighths % 8];
      const Index cells = eighths / 8 + (eighths % 8 != 0);
      absl::StrAppend(&out, "  ", bar, std::string(kBar - cells, ' '), absl::StrFormat(" %10s", HumanBytes(bytes)));
      sum += bytes;
    }
    absl::StrAppend(&out, absl::StrFormat("  %10s\n", HumanBytes(sum)));
  }
  return out;
}

double WireOverNeeded(const PlanFigures& f) {
  return f.needed_bytes == 0 ? 1.0 : static_cast<double>(f.wire_bytes) / static_cast<double>(f.needed_bytes);
}

}  // namespace

std::string Summary(const DemoCommand& command, const DemoReport& r) {
  const PlanFigures& f = r.figures;
  std::vector<std::string> engines;
  for (size_t e = 0; e < r.scenario.engines.size(); ++e) {
    engines.push_back(absl::StrCat("engine ", e, " TP", r.scenario.engines[e]));
  }
  std::string out =
      absl::StrCat("\u2501\u2501 ", NameOf(r.scenario.kind), ": ", Describe(r.scenario.kind), "\n", "   into ",
                   absl::StrJoin(engines, " and "), ", vocabulary padded to ", r.scenario.engine_vocab_rows,
                   " rows, over ", command.transport, command.gpu ? ", in GPU memory" : "",
                   r.shadow == Shadow::kOff                   ? ", in place"
                   : command.gpu && r.shadow == Shadow::kHost ? ", with a shadow in host memory"
                                                              : ", with a shadow",
                   "\n\n");
  out +=
      Table({{"tensors", absl::StrCat(f.tensors)},
             {"copies", absl::StrCat(f.copies)},
             {"transfer",
              absl::StrCat(HumanBytes(f.reshard_bytes), " reshard, ", HumanBytes(f.broadcast_bytes), " broadcast")},
             {"install", absl::StrCat(HumanBytes(f.direct_bytes), " direct, ", HumanBytes(f.loader_bytes), " loader")},
             {"wire / needed", absl::StrFormat("%.3f", WireOverNeeded(f))},
             {"busiest sender", absl::StrFormat("%.3f x mean", f.sender_max_over_mean)},
             {"plan and proof", HumanSeconds(r.plan_seconds)},
             {"staging at most", HumanBytes(r.peak_staging_bytes)}});
  out += "\n";
  std::vector<std::vector<std::string>> rows = {{"generation", "engine", "snapshot", "announce", "transfer", "verify",
                                                 "decide", "commit", "pause", "requests served"}};
  for (const auto& [g, publish] : r.publishes) {
    for (size_t e = 0; e < r.engines.size(); ++e) {
      const EngineGeneration& x = r.engines[e].generations.at(g);
      auto served = r.engines[e].requests.find(static_cast<int64_t>(g));
      rows.push_back({absl::StrCat(g), absl::StrCat(e), HumanSeconds(publish.snapshot_seconds),
                      HumanSeconds(publish.announce_seconds), HumanSeconds(x.transfer_seconds),
                      HumanSeconds(x.verify_seconds), HumanSeconds(x.decision_seconds), HumanSeconds(x.commit_seconds),
                      HumanSeconds(x.pause_seconds),
                      absl::StrCat(served == r.engines[e].requests.end() ? 0 : served->second)});
    }
  }
  out += Table(rows);
  int64_t requests = 0, torn = 0;
  for (const EngineReport& e : r.engines) {
    torn += e.torn;
    for (const auto& [g, n] : e.requests) requests += n;
  }
  absl::StrAppend(&out, "\n", Picture(r), "\n");
  absl::StrAppend(&out, "  \u2713 the oracle found every one of ", HumanBytes(r.checked_bytes),
                  " right, over both generations\n");
  absl::StrAppend(&out, "  \u2713 ", requests, " requests, each served by one generation on all its workers; ", torn,
                  " torn\n");
  absl::StrAppend(&out, "  ", HumanSeconds(r.seconds), " in all\n");
  return out;
}

DemoJson ToJson(const DemoReport& r) {
  const PlanFigures& f = r.figures;
  DemoJson engines = DemoJson::array();
  for (const EngineReport& e : r.engines) {
    DemoJson requests = DemoJson::object(), generations = DemoJson::object();
    for (const auto& [g, n] : e.requests) requests[absl::StrCat(g)] = n;
    for (const auto& [g, x] : e.generations) {
      generations[absl::StrCat(g)] = {{"transfer_seconds", x.transfer_seconds},
                                      {"verify_seconds", x.verify_seconds},
                                      {"decision_seconds", x.decision_seconds},
                                      {"commit_seconds", x.commit_seconds},
                                      {"pause_seconds", x.pause_seconds},
                                      {"copies", x.copies},
                                      {"bytes", x.bytes}};
    }
    engines.push_back({{"tp", e.tp}, {"torn", e.torn}, {"requests", requests}, {"generations", generations}});
  }
  DemoJson publishes = DemoJson::object();
  for (const auto& [g, p] : r.publishes) {
    publishes[absl::StrCat(g)] = {{"snapshot_seconds", p.snapshot_seconds},
                                  {"stall_seconds", p.stall_seconds},
                                  {"announce_seconds", p.announce_seconds}};
  }
  return {{"name", NameOf(r.scenario.kind)},
          {"trainers", r.scenario.trainers},
          {"tensors", f.tensors},
          {"copies", f.copies},
          {"needed_bytes", f.needed_bytes},
          {"wire_bytes", f.wire_bytes},
          {"wire_over_needed", WireOverNeeded(f)},
          {"reshard_bytes", f.reshard_bytes},
          {"broadcast_bytes", f.broadcast_bytes},
          {"direct_bytes", f.direct_bytes},
          {"loader_bytes", f.loader_bytes},
          {"sender_max_over_mean", f.sender_max_over_mean},
          {"plan_seconds", r.plan_seconds},
          {"peak_staging_bytes", r.peak_staging_bytes},
          {"checked_bytes", r.checked_bytes},
          {"publishes", publishes},
          {"engines", engines},
          {"traffic", r.traffic},
          {"seconds", r.seconds}};
}

}  // namespace headrace
