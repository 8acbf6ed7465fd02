#include "cli/report.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "planner/status.h"

namespace headrace {

int ReportError(const absl::Status& status, bool json) {
  const bool bad_input = status.code() == absl::StatusCode::kInvalidArgument;
  const std::string code(CodeOf(status));
  if (json) {
    // Names in messages may hold any bytes; JSON must stay valid UTF-8.
    nlohmann::ordered_json document = {
        {"outcome", bad_input ? "error" : "failed"}, {"code", code}, {"message", std::string(status.message())}};
    PrintJson(document);
  } else {
    std::cerr << "headrace: " << code << ": " << status.message() << "\n";
  }
  return bad_input ? kExitBadInput : kExitFailed;
}

void PrintJson(const nlohmann::ordered_json& document) {
  std::cout << document.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << std::endl;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ostringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
    return std::move(text).str();
  }
  std::ifstream file(path, std::ios::binary);
  // Opening a folder succeeds; reading it does not.
  if (!file || (file.peek(), file.bad()) || (text << file.rdbuf(), file.bad())) {
    return Error(ErrorCode::kIo, absl::StrCat("cannot read \"", path, "\": ", std::strerror(errno)));
  }
  return std::move(text).str();
}

std::string HumanBytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) value /= 1024, ++unit;
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string HumanSeconds(double seconds) {
  if (seconds < 1e-3) return absl::StrFormat("%.0f us", seconds * 1e6);
  if (seconds < 1) return absl::StrFormat("%.1f ms", seconds * 1e3);
  return absl::StrFormat("%.2f s", seconds);
}

std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> width;
  std::vector<bool> number;
  for (size_t r = 0; r < rows.size(); ++r) {
    width.resize(std::max(width.size(), rows[r].size()));
    number.resize(width.size(), true);
    for (size_t c = 0; c < rows[r].size(); ++c) {
      const std::string& cell = rows[r][c];
      width[c] = std::max(width[c], cell.size());
      if (r > 0 && !cell.empty() && (cell[0] < '0' || cell[0] > '9')) number[c] = false;
    }
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string pad(width[c] - row[c].size(), ' ');
      absl::StrAppend(&line, c == 0 ? "  " : "   ", number[c] ? pad : "", row[c], number[c] ? "" : pad);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&out, line, "\n");
  }
  return out;
}

ProgressBar::ProgressBar(std::string what, bool enabled) : what_(std::move(what)) {
  if (enabled && isatty(STDERR_FILENO)) drawing_ = std::thread([this] { Draw(); });
}

ProgressBar::~ProgressBar() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    end_ = true;
  }
  ended_.notify_all();
  if (drawing_.joinable()) drawing_.join();
}

void ProgressBar::Update(double done, absl::string_view step) {
  std::lock_guard<std::mutex> lock(mutex_);
  done_ = done;
  step_ = std::string(step);
}

void ProgressBar::Draw() {
  constexpr int kCells = 28;
  static constexpr const char* kSpinner[] = {"|", "/", "-", "\\"};
  std::unique_lock<std::mutex> lock(mutex_);
  if (ended_.wait_for(lock, std::chrono::seconds(2), [this] { return end_; })) return;
  for (int turn = 0; !ended_.wait_for(lock, std::chrono::milliseconds(150), [this] { return end_; }); ++turn) {
    const int filled = static_cast<int>(std::clamp(done_, 0.0, 1.0) * kCells);
    std::string bar;
    for (int i = 0; i < kCells; ++i) bar += i < filled ? "\u2588" : "\u2591";
    std::fprintf(stderr, "\r\033[K%s %s %s %3.0f%% %s", what_.c_str(), kSpinner[turn % 4], bar.c_str(), done_ * 100,
                 step_.c_str());
    std::fflush(stderr);
  }
  std::fprintf(stderr, "\r\033[K");
  std::fflush(stderr);
}

}  // namespace headrace
