#include "planner/fair_shares.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace headrace {
namespace {

// A part of the problem: loads, and the candidates among which they are shared (all others are out of reach).
struct Problem {
  std::vector<int> loads;
  std::vector<int> candidates;
};

// Maximum flow (Dinic 1970) from loads to candidates, each of which takes at most `level`.
class Flow {
 public:
  // `of_candidate` maps candidates to their place in problem.candidates, or -1; it outlives the flow.
  Flow(absl::Span<const SharedLoad> loads, const Problem& problem, const std::vector<int>& of_candidate, Index level)
      : first_candidate_(problem.loads.size()), room_(problem.candidates.size(), level) {
    for (int l : problem.loads) {
      left_.push_back(loads[l].bytes);
      first_arc_.push_back(arcs_.size());
      for (size_t c = 0; c < loads[l].candidates.size(); ++c) {
        const int candidate = of_candidate[loads[l].candidates[c]];
        if (candidate >= 0) arcs_.push_back({static_cast<int>(left_.size()) - 1, candidate, static_cast<int>(c), 0});
      }
    }
    first_arc_.push_back(arcs_.size());
    back_.resize(room_.size());
    for (size_t a = 0; a < arcs_.size(); ++a) back_[arcs_[a].candidate].push_back(a);
    while (Layer()) {
      next_.assign(first_arc_.begin(), first_arc_.end() - 1);
      next_back_.assign(room_.size(), 0);
      for (size_t l = 0; l < left_.size(); ++l) {
        if (left_[l] > 0) left_[l] -= PushFromLoad(l, left_[l]);
      }
    }
  }

  bool AllPlaced() const {
    return std::all_of(left_.begin(), left_.end(), [](Index bytes) { return bytes == 0; });
  }

  // Whether more of some load could still reach it: it lies on the full side of the cut. Valid after construction.
  bool IsFull(size_t load) const { return depth_[load] >= 0; }
  bool CandidateIsFull(size_t candidate) const { return depth_[first_candidate_ + candidate] >= 0; }

  // visit(load's place in the problem, place in the load's candidates, bytes)
  template <typename F>
  void ForEachShare(F&& visit) const {
    for (const Arc& a : arcs_) {
      if (a.flow > 0) visit(a.load, a.choice, a.flow);
    }
  }

 private:
  struct Arc {
    int load, candidate, choice;
    Index flow;
  };

  // Breadth first from the loads that are not placed; true when some candidate with room is reached.
  bool Layer() {
    depth_.assign(first_candidate_ + room_.size(), -1);
    std::vector<size_t> queue;
    for (size_t l = 0; l < left_.size(); ++l) {
      if (left_[l] > 0) depth_[l] = 0, queue.push_back(l);
    }
    bool reached = false;
    auto visit = [&](size_t node, int depth) {
      if (depth_[node] < 0) depth_[node] = depth, queue.push_back(node);
    };
    for (size_t i = 0; i < queue.size(); ++i) {
      const size_t node = queue[i];
      if (node < first_candidate_) {
        for (size_t a = first_arc_[node]; a < first_arc_[node + 1]; ++a) {
          visit(first_candidate_ + arcs_[a].candidate, depth_[node] + 1);
        }
      } else {
        reached = reached || room_[node - first_candidate_] > 0;
        for (size_t a : back_[node - first_candidate_]) {
          if (arcs_[a].flow > 0) visit(arcs_[a].load, depth_[node] + 1);
        }
      }
    }
    return reached;
  }

  // Paths alternate between loads and candidates and are as long as there are levels, so recursion is shallow for
  // the problems that planning makes; it never exceeds the number of nodes.
  Index PushFromLoad(size_t load, Index limit) {
    Index pushed = 0;
    for (size_t& a = next_[load]; a < first_arc_[load + 1]; ++a) {
      const size_t candidate = arcs_[a].candidate;
      if (depth_[first_candidate_ + candidate] != depth_[load] + 1) continue;
      const Index flow = PushFromCandidate(candidate, limit - pushed);
      arcs_[a].flow += flow;
      pushed += flow;
      if (pushed == limit) break;
    }
    return pushed;
  }

  Index PushFromCandidate(size_t candidate, Index limit) {
    Index pushed = std::min(limit, room_[candidate]);
    room_[candidate] -= pushed;
    const std::vector<size_t>& back = back_[candidate];
    for (size_t& i = next_back_[candidate]; pushed < limit && i < back.size(); ++i) {
      Arc& arc = arcs_[back[i]];
      if (arc.flow == 0 || depth_[arc.load] != depth_[first_candidate_ + candidate] + 1) continue;
      const Index flow = PushFromLoad(arc.load, std::min(limit - pushed, arc.flow));
      arc.flow -= flow;
      pushed += flow;
      if (pushed == limit) break;
    }
    return pushed;
  }

  size_t first_candidate_;
  std::vector<Index> room_;  // of each candidate
  std::vector<Index> left_;  // of each load
  std::vector<Arc> arcs_;    // by load
  std::vector<size_t> first_arc_;
  std::vector<std::vector<size_t>> back_;  // arcs of each candidate
  std::vector<int> depth_;                 // loads, then candidates; -1: not reached
  std::vector<size_t> next_, next_back_;
};

int Find(std::vector<int>& parent, int i) {
  while (parent[i] != i) i = parent[i] = parent[parent[i]];
  return i;
}

// The parts of the problem that share no candidate.
std::vector<Problem> Components(absl::Span<const SharedLoad> loads, int candidates) {
  std::vector<int> parent(candidates), component(candidates, -1);
  std::iota(parent.begin(), parent.end(), 0);
  for (const SharedLoad& l : loads) {
    for (int c : l.candidates) parent[Find(parent, c)] = Find(parent, l.candidates[0]);
  }
  std::vector<Problem> out;
  auto of = [&](int candidate) -> Problem& {
    int& index = component[Find(parent, candidate)];
    if (index < 0) index = static_cast<int>(out.size()), out.emplace_back();
    return out[index];
  };
  for (int c = 0; c < candidates; ++c) of(c).candidates.push_back(c);
  for (size_t l = 0; l < loads.size(); ++l) of(loads[l].candidates[0]).loads.push_back(static_cast<int>(l));
  return out;
}

}  // namespace

std::vector<std::vector<Index>> FairShares(absl::Span<const SharedLoad> loads, int candidates) {
  std::vector<std::vector<Index>> shares;
  for (const SharedLoad& l : loads) shares.emplace_back(l.candidates.size(), 0);
  std::vector<Problem> open = Components(loads, candidates);
  std::vector<int> place(candidates, -1);
  while (!open.empty()) {
    const Problem problem = std::move(open.back());
    open.pop_back();
    if (problem.loads.empty()) continue;
    Index total = 0;
    for (int l : problem.loads) total += loads[l].bytes;
    const Index count = static_cast<Index>(problem.candidates.size());
    for (Index c = 0; c < count; ++c) place[problem.candidates[c]] = static_cast<int>(c);
    const Flow flow(loads, problem, place, (total + count - 1) / count);
    for (int c : problem.candidates) place[c] = -1;
    if (flow.AllPlaced()) {
      flow.ForEachShare([&](int load, int choice, Index bytes) { shares[problem.loads[load]][choice] = bytes; });
      continue;
    }
    Problem full, rest;
    for (size_t l = 0; l < problem.loads.size(); ++l) {
      (flow.IsFull(l) ? full : rest).loads.push_back(problem.loads[l]);
    }
    for (size_t c = 0; c < problem.candidates.size(); ++c) {
      (flow.CandidateIsFull(c) ? full : rest).candidates.push_back(problem.candidates[c]);
    }
    open.push_back(std::move(full));
    open.push_back(std::move(rest));
  }
  return shares;
}

}  // namespace headrace
