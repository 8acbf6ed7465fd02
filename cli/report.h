#ifndef HEADRACE_CLI_REPORT_H_
#define HEADRACE_CLI_REPORT_H_

// What the command prints: for people by default, one JSON document on standard output with --json.

#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
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

// A bar on standard error, shown once a task takes over two seconds and standard error is a terminal. A thread of its
// own draws it, so that it moves during long steps too. Any thread may call Update.
class ProgressBar {
 public:
  ProgressBar(std::string what, bool enabled);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `done` of 0 to 1 and a few words about the current step.
  void Update(double done, absl::string_view step);

 private:
  void Draw();

  const std::string what_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
  double done_ = 0;
  std::string step_;
  std::thread drawing_;
};

}  // namespace headrace

#endif  // HEADRACE_CLI_REPORT_H_
