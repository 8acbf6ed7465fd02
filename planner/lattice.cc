#include "planner/lattice.h"

#include <algorithm>
#include <numeric>

namespace headrace {
namespace {

using Wide = __int128;

constexpr Index kMaxTried = Index{1} << 22;

Wide FloorDiv(Wide a, Wide b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
Wide CeilDiv(Wide a, Wide b) { return -FloorDiv(-a, b); }
Index Mod(Wide a, Index m) { return static_cast<Index>((a % m + m) % m); }

// x with a * x == 1 mod m, of coprime a and m.
Index Inverse(Index a, Index m) {
  Wide r0 = m, r1 = a % m, t0 = 0, t1 = 1;
  while (r1 != 0) {
    const Wide q = r0 / r1;
    std::swap(r0 -= q * r1, r1);
    std::swap(t0 -= q * t1, t1);
  }
  return Mod(t0, m);
}

// Largest step first: each choice leaves an interval that the smaller ones must reach, and a remainder that their
// greatest common divisor must divide. With one step left the two decide exactly.
class Search {
 public:
  Search(const std::vector<Multiple>& multiples, std::vector<Index>* x) : multiples_(multiples), x_(x) {
    order_.resize(multiples.size());
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return multiples[a].step > multiples[b].step; });
    low_.assign(order_.size() + 1, 0);
    high_ = low_;
    divisor_.assign(order_.size() + 1, 0);
    inverse_.assign(order_.size(), 0);
    for (size_t k = order_.size(); k-- > 0;) {
      const Multiple& m = multiples[order_[k]];
      low_[k] = low_[k + 1] + Wide{m.first} * m.step;
      high_[k] = high_[k + 1] + Wide{m.last} * m.step;
      divisor_[k] = std::gcd(divisor_[k + 1], m.step);
      if (const Index every = divisor_[k + 1] / divisor_[k]; every > 1) {
        inverse_[k] = Inverse(m.step / divisor_[k], every);
      }
    }
  }

  Sum From(size_t k, Wide base) {
    if (k == order_.size()) return base == 0 ? Sum::kFound : Sum::kNone;
    const Multiple& m = multiples_[order_[k]];
    Wide first = std::max<Wide>(m.first, CeilDiv(-base - high_[k + 1], m.step));
    const Wide last = std::min<Wide>(m.last, FloorDiv(-base - low_[k + 1], m.step));
    Index every = 1;
    if (divisor_[k + 1] != 0) {
      const Index common = divisor_[k];
      if (base % common != 0) return Sum::kNone;
      every = divisor_[k + 1] / common;
      // x * (step / common) == -base / common mod every
      const Wide wanted = every == 1 ? 0 : Wide{Mod(-base / common, every)} * inverse_[k];
      first += Mod(wanted - first, every);
    } else if (base % m.step != 0) {
      return Sum::kNone;
    }
    for (Wide v = first; v <= last; v += every) {
      if (++tried_ > kMaxTried) return Sum::kUnknown;
      if (x_ != nullptr) (*x_)[order_[k]] = static_cast<Index>(v);
      if (Sum found = From(k + 1, base + v * m.step); found != Sum::kNone) return found;
    }
    return Sum::kNone;
  }

 private:
  const std::vector<Multiple>& multiples_;
  std::vector<Index>* x_;
  std::vector<size_t> order_;
  std::vector<Wide> low_, high_;  // of the sums of order_[k..]
  std::vector<Index> divisor_;    // of their steps; 0 of none
  std::vector<Index> inverse_;    // of order_[k]'s step, mod what the smaller ones leave undecided
  Index tried_ = 0;
};

}  // namespace

Sum FindZeroSum(Index base, const std::vector<Multiple>& multiples, std::vector<Index>* x) {
  if (x != nullptr) x->assign(multiples.size(), 0);
  return Search(multiples, x).From(0, base);
}

}  // namespace headrace
