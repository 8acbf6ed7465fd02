#ifndef HEADRACE_CLI_REPORT_H_
#define HEADRACE_CLI_REPORT_H_

// What the command prints: for people by default, one JSON document on standard output with --json.

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace headrace {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;    // the machine, a peer, a deadline
inline constexpr int kExitBadInput = 2;  // the caller's file or options

// Prints an error and returns the exit status. With `json`: {"outcome": "error" or "failed", "code", "message"}.
int ReportError(const absl::Status& status, bool json);

void PrintJson(const nlohmann::ordered_json& document);

// The whole of a file; "-" is standard input. kIo names the file and the reason.
absl::StatusOr<std::string> ReadFile(const std::string& path);

// "1.5 GiB", "12 B".
std::string HumanBytes(int64_t bytes);
// "12.3 ms", "1.20 s".
std::string HumanSeconds(double seconds);

// A table with aligned columns; columns whose cells look like numbers are right-aligned.
std::string Table(const std::vector<std::vector<std::string>>& rows);

// A bar on standard error, shown once a task takes over two seconds and standard error is a terminal.
class ProgressBar {
 public:
  explicit ProgressBar(std::string what, bool enabled);
  ~ProgressBar();
  // `done` of 0 to 1 and a few words about the current step.
  void Update(double done, absl::string_view step);

 private:
  const std::string what_;
  const bool enabled_;
  const std::chrono::steady_clock::time_point begin_;
  bool shown_ = false;
};

}  // namespace headrace

#endif  // HEADRACE_CLI_REPORT_H_
