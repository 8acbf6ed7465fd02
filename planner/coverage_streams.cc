#include "planner/coverage_streams.h"

#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace headrace {
namespace {

absl::Status Broken(std::string what) { return absl::InternalError(what); }

bool SameSource(const Part& part, const Copy& copy) {
  if (std::tie(part.tensor, part.source, part.source_offset, part.position, part.run_bytes) !=
          std::tie(copy.tensor, copy.source, copy.source_offset, copy.position, copy.run_bytes) ||
      part.loops.size() != copy.loops.size()) {
    return false;
  }
  for (size_t i = 0; i < part.loops.size(); ++i) {
    const PartLoop& a = part.loops[i];
    const CopyLoop& b = copy.loops[i];
    if (a.extent != b.extent || a.source_stride != b.source_stride || a.position_stride != b.position_stride) {
      return false;
    }
  }
  return true;
}

class Check {
 public:
  Check(const Manifest& m, const Plan& plan) : m_(m), plan_(plan) {}

  absl::Status Run() {
    for (size_t s = 0; s < plan_.streams.size(); ++s) {
      const std::vector<int64_t>& chain = plan_.streams[s].chain;
      if (chain.empty()) return Broken(absl::StrCat("stream ", s, " goes nowhere"));
      if (std::set<int64_t>(chain.begin(), chain.end()).size() != chain.size()) {
        return Broken(absl::StrCat("the chain of stream ", s, " holds a rank twice"));
      }
      missing_.emplace_back(chain.begin(), chain.end());
      wanted_.emplace_back(plan_.streams[s].parts.size(), false);
    }
    size_t next = 0;
    for (const Edge& e : plan_.edges) {
      if (e.first != next || e.count > plan_.copies.size() - next) return Broken("edges do not tile the copies");
      next += e.count;
      if (!known_.emplace(e.source_rank, e.destination_rank, e.stream).second) {
        return Broken("two edges join the same ranks in the same way");
      }
      if (absl::Status status = CheckEdge(e); !status.ok()) return status;
    }
    if (next != plan_.copies.size()) return Broken("edges do not tile the copies");
    for (size_t s = 0; s < plan_.streams.size(); ++s) {
      if (!missing_[s].empty()) {
        return Broken(
            absl::StrCat("rank ", *missing_[s].begin(), " is in the chain of stream ", s, " without an edge"));
      }
      for (size_t p = 0; p < wanted_[s].size(); ++p) {
        if (!wanted_[s][p]) return Broken(absl::StrCat("nobody wants part ", p, " of stream ", s));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CheckEdge(const Edge& e) {
    if (e.stream < -1 || e.stream >= static_cast<int>(plan_.streams.size())) {
      return Broken("an edge names no stream that exists");
    }
    if (e.stream < 0 && e.count == 0) return Broken("a direct edge without copies");
    if (e.stream >= 0 &&
        (plan_.streams[e.stream].source_rank != e.source_rank || missing_[e.stream].erase(e.destination_rank) == 0)) {
      return Broken(absl::StrCat("an edge from rank ", e.source_rank, " to rank ", e.destination_rank,
                                 " is not one of its stream ", e.stream));
    }
    int last = 0;
    for (size_t i = e.first; i < e.first + e.count; ++i) {
      const Copy& c = plan_.copies[i];
      if (m_.source[c.source].rank != e.source_rank || m_.destination[c.destination].rank != e.destination_rank) {
        return Broken(absl::StrCat("copy ", i, " is in an edge of other ranks"));
      }
      if (e.stream < 0) {
        if (c.part != -1) return Broken(absl::StrCat("copy ", i, " of a direct edge names a part of a stream"));
        continue;
      }
      const std::vector<Part>& parts = plan_.streams[e.stream].parts;
      if (c.part < last || c.part >= static_cast<int>(parts.size())) {
        return Broken(absl::StrCat("copy ", i, " names part ", c.part, " of stream ", e.stream, " out of order"));
      }
      last = c.part;
      if (!SameSource(parts[c.part], c)) {
        return Broken(
            absl::StrCat("copy ", i, " takes something else than its part ", c.part, " of stream ", e.stream));
      }
      wanted_[e.stream][c.part] = true;
    }
    return absl::OkStatus();
  }

  const Manifest& m_;
  const Plan& plan_;
  std::set<std::tuple<int64_t, int64_t, int>> known_;
  std::vector<std::set<int64_t>> missing_;  // ranks of each chain whose edge was not seen yet
  std::vector<std::vector<bool>> wanted_;   // parts of each stream
};

}  // namespace

absl::Status CheckEdges(const Manifest& manifest, const Plan& plan) { return Check(manifest, plan).Run(); }

}  // namespace headrace
