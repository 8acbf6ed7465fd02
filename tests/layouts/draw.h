#ifndef HEADRACE_TESTS_LAYOUTS_DRAW_H_
#define HEADRACE_TESTS_LAYOUTS_DRAW_H_

// Test only. Random trainers and engines of up to 16 ranks a side.

#include <random>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "planner/manifest.h"
#include "tests/layouts/sides.h"
#include "tests/layouts/tiny_model.h"

namespace headrace {

inline constexpr Index kMaxRanks = 16;

// An environment variable's number; aborts when it is none.
int64_t Setting(const char* name, int64_t otherwise);

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  Index Below(Index n) { return static_cast<Index>(random_() % static_cast<uint64_t>(n)); }
  bool Coin() { return Below(2) == 0; }
  Index Divisor(Index n) {
    Index d = 1 + Below(n);
    while (n % d != 0) d = 1 + Below(n);
    return d;
  }
  std::mt19937_64& random() { return random_; }

  // A layout of exactly `ranks` ranks.
  ParallelLayout Layout(Index ranks) {
    ParallelLayout l;
    l.pp = Divisor(ranks);
    l.tp = Divisor(ranks / l.pp);
    l.cp = Divisor(ranks / l.pp / l.tp);
    l.dp = ranks / l.pp / l.tp / l.cp;
    l.ep = Divisor(ranks / l.pp);
    l.etp = Divisor(ranks / l.pp / l.ep);
    l.data_outermost = Coin();
    return l;
  }

 private:
  std::mt19937_64 random_;
};

TrainerOptions DrawTrainer(Draw& draw);
EngineOptions DrawEngine(Draw& draw, Index max_ranks);
std::string Describe(const ParallelLayout& layout);

// A trainer and one to three engines, all on one host, and what they are; or an error of the rules: sizes that do not
// divide.
absl::StatusOr<std::pair<Manifest, std::string>> DrawManifest(const TinyModel& model, Draw& draw);

}  // namespace headrace

#endif  // HEADRACE_TESTS_LAYOUTS_DRAW_H_
