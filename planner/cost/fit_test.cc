#include "planner/cost/fit.h"

#include <cmath>
#include <iostream>
#include <random>

#include "gtest/gtest.h"

namespace headrace {
namespace {

TEST(Fit, NothingMeasured) {
  const Fit fit = FitSamples({});
  EXPECT_EQ(fit.slowdown, 1);
  EXPECT_EQ(fit.operation_seconds, 0);
}

TEST(Fit, FindsWhatTheSamplesWereMadeOf) {
  const Fit fit = FitSamples({{1, 100, 2.5}, {2, 1000, 9}, {0.5, 700, 4.5}});
  EXPECT_NEAR(fit.slowdown, 2, 1e-9);
  EXPECT_NEAR(fit.operation_seconds, 0.005, 1e-9);
}

TEST(Fit, OneSampleIsAllSlowdown) {
  const Fit fit = FitSamples({{1, 0, 3}});
  EXPECT_NEAR(fit.slowdown, 3, 1e-12);
  EXPECT_EQ(fit.operation_seconds, 0);
}

// Nothing is faster than the wires: what was measured below them stays an error.
TEST(Fit, NeverBelowTheWire) {
  const Fit fit = FitSamples({{2, 10, 1}, {4, 10, 2}});
  EXPECT_EQ(fit.slowdown, 1);
  EXPECT_EQ(fit.operation_seconds, 0);
}

// No other allowed pair of a fine grid is better.
TEST(Fit, IsTheBest) {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> any(0.1, 2);
  for (int i = 0; i < 50; ++i) {
    std::vector<FitSample> samples(4);
    for (FitSample& s : samples) s = {any(random), any(random) * 100, any(random)};
    const auto loss = [&samples](double slowdown, double operation) {
      double sum = 0;
      for (const FitSample& s : samples) {
        sum += std::pow((slowdown * s.wire_seconds + operation * s.operations) / s.seconds - 1, 2);
      }
      return sum;
    };
    const Fit fit = FitSamples(samples);
    const double found = loss(fit.slowdown, fit.operation_seconds);
    for (double slowdown = 1; slowdown < 6; slowdown += 0.01) {
      for (double operation = 0; operation < 0.05; operation += 0.0005) {
        ASSERT_LE(found, loss(slowdown, operation) + 1e-9);
      }
    }
  }
}

}  // namespace
}  // namespace headrace
