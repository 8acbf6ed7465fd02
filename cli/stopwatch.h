#ifndef HEADRACE_CLI_STOPWATCH_H_
#define HEADRACE_CLI_STOPWATCH_H_

// How long the steps of a command take. Not thread-safe.

#include <ctime>

namespace headrace {

class Stopwatch {
 public:
  // CLOCK_MONOTONIC: what a watch shows; CLOCK_PROCESS_CPUTIME_ID: the processor's time of this process.
  explicit Stopwatch(clockid_t clock = CLOCK_MONOTONIC) : clock_(clock), last_(Now()) {}

  // Seconds since the last call, or the beginning.
  double Lap() {
    const double before = last_;
    last_ = Now();
    return last_ - before;
  }

 private:
  double Now() const {
    timespec time;
    clock_gettime(clock_, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  clockid_t clock_;
  double last_;
};

}  // namespace headrace

#endif  // HEADRACE_CLI_STOPWATCH_H_
