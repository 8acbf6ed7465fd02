#ifndef HEADRACE_PLANNER_LAYOUT_CASE_SHARE_H_
#define HEADRACE_PLANNER_LAYOUT_CASE_SHARE_H_

// Test only. Exhaustive loops ask it case by case; the environment variable HEADRACE_TEST_SHARE (percent, default 100)
// says how many of them run. Which ones follows from the seed and the case's number alone. One thread.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"

namespace headrace {

class CaseShare {
 public:
  // `what` names the cases in the line that the destructor prints. at_least: percent, for few cases that each count.
  explicit CaseShare(absl::string_view what, uint64_t seed = 1, int at_least = 1)
      : what_(std::string(what)), seed_(seed) {
    const char* text = std::getenv("HEADRACE_TEST_SHARE");
    if (text != nullptr && (!absl::SimpleAtoi(text, &percent_) || percent_ < 1 || percent_ > 100)) {
      std::cerr << "HEADRACE_TEST_SHARE is '" << text << "': give 1 to 100\n";
      std::abort();
    }
    percent_ = std::max(percent_, at_least);
  }
  CaseShare(const CaseShare&) = delete;
  CaseShare& operator=(const CaseShare&) = delete;
  ~CaseShare() {
    std::cout << what_ << ": " << taken_ << " of " << seen_ << " cases (" << percent_ << " %, seed " << seed_ << ")\n";
  }

  // Whether the next case is to run.
  bool Take() {
    uint64_t z = seed_ + ++seen_ * 0x9E3779B97F4A7C15;  // splitmix64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    const bool take = static_cast<int>((z ^ (z >> 31)) % 100) < percent_;
    taken_ += take ? 1 : 0;
    return take;
  }

 private:
  const std::string what_;
  const uint64_t seed_;
  int percent_ = 100;
  uint64_t seen_ = 0;
  uint64_t taken_ = 0;
};

}  // namespace headrace

#endif  // HEADRACE_PLANNER_LAYOUT_CASE_SHARE_H_
