#include "planner/coverage_meeting.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {
namespace {

// Groups of this size are compared pair by pair.
constexpr size_t kFewBoxes = 6;

using Terms = absl::InlinedVector<Term, 2>;

class Search {
 public:
  explicit Search(absl::Span<const PointSet> sets) : sets_(sets) {}

  absl::StatusOr<std::optional<Meeting>> Run() {
    ChooseRadix();
    for (size_t s = 0; s < sets_.size(); ++s) {
      set_ = s;
      current_.assign(2 * digits_, 0);
      if (!AddBoxes(0) || meeting_) break;
    }
    if (too_many_) {
      return Error(ErrorCode::kOutOfMemory, absl::StrCat("comparing its parts takes more than ", kMaxProofParts,
                                                         " boxes: use strides of which one divides the other"));
    }
    if (!meeting_) CompareBoxes();
    return std::move(meeting_);
  }

 private:
  // Ascending steps from 1 on, each dividing the next: those of the sets, as far as they do.
  void ChooseRadix() {
    const size_t axes = sets_.empty() ? 0 : sets_[0].size();
    steps_.resize(axes);
    for (size_t a = 0; a < axes; ++a) {
      std::vector<Index> all = {1};
      for (const PointSet& set : sets_) {
        for (const Term& t : set[a].terms) {
          if (t.extent > 1 && t.step != all.back()) all.push_back(t.step);
        }
      }
      std::sort(all.begin(), all.end());
      for (Index step : all) {
        if (steps_[a].empty() || (step != steps_[a].back() && step % steps_[a].back() == 0)) steps_[a].push_back(step);
      }
      first_digit_.push_back(digits_);
      digits_ += steps_[a].size();
    }
  }

  // The boxes of the current set, whose digits of the axes before `axis` are chosen. False to stop.
  bool AddBoxes(size_t axis) {
    if (axis == steps_.size()) {
      if (static_cast<Index>(owners_.size()) >= kMaxProofParts) return too_many_ = true, false;
      bounds_.insert(bounds_.end(), current_.begin(), current_.end());
      owners_.push_back(static_cast<uint32_t>(set_));
      return true;
    }
    const Progression& p = sets_[set_][axis];
    Terms terms;
    for (const Term& t : p.terms) {
      if (t.extent > 1) terms.push_back(t);
    }
    return AddTerms(axis, p.first, terms);
  }

  // Writes out terms that the radix has no digit for.
  bool AddTerms(size_t axis, Index first, const Terms& terms) {
    const std::vector<Index>& steps = steps_[axis];
    for (size_t k = 0; k < terms.size(); ++k) {
      if (std::binary_search(steps.begin(), steps.end(), terms[k].step)) continue;
      if (terms[k].extent > kMaxProofParts - static_cast<Index>(owners_.size())) return too_many_ = true, false;
      Terms others = terms;
      others.erase(others.begin() + static_cast<ptrdiff_t>(k));
      for (Index i = 0; i < terms[k].extent; ++i) {
        if (!AddTerms(axis, first + i * terms[k].step, others)) return false;
      }
      return true;
    }
    return AddDigits(axis, 0, first, terms);
  }

  // `high` is what is left of the coordinate at and above digit `level`, `terms` those of steps from there on.
  bool AddDigits(size_t axis, size_t level, Index high, const Terms& terms) {
    const std::vector<Index>& steps = steps_[axis];
    if (level == steps.size()) return AddBoxes(axis + 1);
    Index extent = 1;
    Terms above;
    for (const Term& t : terms) {
      if (t.step != steps[level]) {
        above.push_back(t);
      } else if (extent == 1) {
        extent = t.extent;
      } else {  // one step in either loop leads to the same point
        SetDigit(axis, level, high + 1, 1);
        return Repeats(axis, level), false;
      }
    }
    if (level + 1 == steps.size()) {
      SetDigit(axis, level, high, extent);
      return AddDigits(axis, level + 1, 0, above);
    }
    const Index radix = steps[level + 1] / steps[level];
    const Index digit = high % radix;
    high /= radix;
    if (extent <= radix - digit) {
      SetDigit(axis, level, digit, extent);
      return AddDigits(axis, level + 1, high, above);
    }
    if (digit > 0) {  // up to the carry
      SetDigit(axis, level, digit, radix - digit);
      if (!AddDigits(axis, level + 1, high, above)) return false;
      extent -= radix - digit;
      ++high;
    }
    if (const Index whole = extent / radix; whole > 0) {
      SetDigit(axis, level, 0, radix);
      Terms with_whole = above;
      if (whole > 1) with_whole.push_back({steps[level + 1], whole});
      if (!AddDigits(axis, level + 1, high, with_whole)) return false;
      high += whole;
    }
    if (extent % radix == 0) return true;
    SetDigit(axis, level, 0, extent % radix);
    return AddDigits(axis, level + 1, high, above);
  }

  void SetDigit(size_t axis, size_t level, Index begin, Index extent) {
    Index* bounds = &current_[2 * (first_digit_[axis] + level)];
    bounds[0] = begin;
    bounds[1] = begin + extent;
  }

  // The current set holds a point twice, whose digits are chosen up to this level.
  void Repeats(size_t axis, size_t level) {
    Meeting m{set_, set_, {}};
    for (size_t a = 0; a < steps_.size(); ++a) {
      Index at = a > axis ? sets_[set_][a].first : 0;
      for (size_t l = 0; a <= axis && l < (a < axis ? steps_[a].size() : level + 1); ++l) {
        at += current_[2 * (first_digit_[a] + l)] * steps_[a][l];
      }
      m.at.push_back(at);
    }
    meeting_ = std::move(m);
  }

  Index Begin(uint32_t box, size_t digit) const { return bounds_[2 * (box * digits_ + digit)]; }
  Index End(uint32_t box, size_t digit) const { return bounds_[2 * (box * digits_ + digit) + 1]; }

  // When the two boxes share a point, that is the meeting.
  bool Meet(uint32_t x, uint32_t y) {
    for (size_t d = 0; d < digits_; ++d) {
      if (std::max(Begin(x, d), Begin(y, d)) >= std::min(End(x, d), End(y, d))) return false;
    }
    Meeting m{owners_[x], owners_[y], {}};
    for (size_t a = 0, d = 0; a < steps_.size(); ++a) {
      Index at = 0;
      for (Index step : steps_[a]) at += std::max(Begin(x, d), Begin(y, d)) * step, ++d;
      m.at.push_back(at);
    }
    meeting_ = std::move(m);
    return true;
  }

  void CompareBoxes() {
    std::vector<std::vector<uint32_t>> groups(1);
    for (size_t b = 0; b < owners_.size(); ++b) groups[0].push_back(static_cast<uint32_t>(b));
    while (!groups.empty() && !meeting_) {
      const std::vector<uint32_t> group = std::move(groups.back());
      groups.pop_back();
      if (group.size() <= kFewBoxes) {
        for (size_t i = 0; i < group.size(); ++i) {
          for (size_t j = 0; j < i; ++j) {
            if (Meet(group[j], group[i])) return;
          }
        }
        continue;
      }
      const auto cut = FindCut(group);
      if (!cut) {  // intervals that meet pairwise on each digit: boxes that meet pairwise
        Meet(group[0], group[1]);
        return;
      }
      const auto [digit, plane] = *cut;
      std::vector<uint32_t> below, above;  // a box that crosses the plane is in both
      for (uint32_t b : group) {
        if (Begin(b, digit) < plane) below.push_back(b);
        if (End(b, digit) > plane) above.push_back(b);
      }
      groups.push_back(std::move(below));
      groups.push_back(std::move(above));
    }
  }

  // The plane that leaves the smaller groups; each is smaller than `group`. Nullopt when no plane parts any two boxes.
  std::optional<std::pair<size_t, Index>> FindCut(const std::vector<uint32_t>& group) {
    std::optional<std::pair<size_t, Index>> best;
    size_t best_size = 2 * group.size();
    std::vector<Index> begins(group.size());
    for (size_t d = 0; d < digits_; ++d) {
      Index last_begin = 0, first_end = INT64_MAX;
      for (size_t i = 0; i < group.size(); ++i) {
        begins[i] = Begin(group[i], d);
        last_begin = std::max(last_begin, begins[i]);
        first_end = std::min(first_end, End(group[i], d));
      }
      if (last_begin < first_end) continue;
      const auto middle = begins.begin() + static_cast<ptrdiff_t>(begins.size() / 2);
      std::nth_element(begins.begin(), middle, begins.end());
      for (const Index plane : std::array{*middle, last_begin, first_end}) {
        size_t below = 0, above = 0;
        for (uint32_t b : group) {
          below += Begin(b, d) < plane;
          above += End(b, d) > plane;
        }
        if (below == group.size() || above == group.size()) continue;
        // Smaller groups first, then fewer boxes in both.
        const size_t size = std::max(below, above) + (below + above - group.size()) / 2;
        if (best && size >= best_size) continue;
        best = {d, plane};
        best_size = size;
      }
    }
    return best;
  }

  absl::Span<const PointSet> sets_;
  std::vector<std::vector<Index>> steps_;  // per axis
  std::vector<size_t> first_digit_;        // per axis
  size_t digits_ = 0;                      // of all axes
  size_t set_ = 0;                         // that boxes are made of
  std::vector<Index> current_;             // begin and end per digit, of the box that is being made
  std::vector<Index> bounds_;              // begin and end per digit, of all boxes
  std::vector<uint32_t> owners_;           // the set of each box
  bool too_many_ = false;
  std::optional<Meeting> meeting_;
};

}  // namespace

absl::StatusOr<std::optional<Meeting>> FindMeeting(absl::Span<const PointSet> sets) { return Search(sets).Run(); }

}  // namespace headrace
