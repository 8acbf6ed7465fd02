#include "planner/cost/fit.h"

#include <algorithm>

namespace headrace {
namespace {

double Loss(const std::vector<FitSample>& samples, const Fit& fit) {
  double loss = 0;
  for (const FitSample& sample : samples) {
    const double error = FittedSeconds(fit, sample.wire_seconds, sample.operations) / sample.seconds - 1;
    loss += error * error;
  }
  return loss;
}

}  // namespace

double FittedSeconds(const Fit& fit, double wire_seconds, double operations) {
  return fit.slowdown * wire_seconds + fit.operation_seconds * operations;
}

Fit FitSamples(const std::vector<FitSample>& samples) {
  if (samples.empty()) return {};
  // Relative errors: each row of the linear system over its measured time.
  double ww = 0, wn = 0, nn = 0, w1 = 0, n1 = 0;
  for (const FitSample& sample : samples) {
    const double w = sample.wire_seconds / sample.seconds;
    const double n = sample.operations / sample.seconds;
    ww += w * w;
    wn += w * n;
    nn += n * n;
    w1 += w;
    n1 += n;
  }
  std::vector<Fit> candidates;
  // The inner optimum, and those on the two edges of what is allowed: the loss is convex.
  const double determinant = ww * nn - wn * wn;
  if (determinant > 1e-12 * ww * nn) {
    const Fit inner{(w1 * nn - n1 * wn) / determinant, (n1 * ww - w1 * wn) / determinant};
    if (inner.slowdown >= 1 && inner.operation_seconds >= 0) candidates.push_back(inner);
  }
  candidates.push_back({ww > 0 ? std::max(1.0, w1 / ww) : 1.0, 0});
  candidates.push_back({1, nn > 0 ? std::max(0.0, (n1 - wn) / nn) : 0.0});
  return *std::min_element(candidates.begin(), candidates.end(),
                           [&samples](const Fit& a, const Fit& b) { return Loss(samples, a) < Loss(samples, b); });
}

}  // namespace headrace
