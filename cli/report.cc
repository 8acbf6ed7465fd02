#include "cli/report.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
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

ProgressBar::ProgressBar(std::string what, bool enabled)
    : what_(std::move(what)), enabled_(enabled && isatty(STDERR_FILENO)), begin_(std::chrono::steady_clock::now()) {}

ProgressBar::~ProgressBar() {
  if (shown_) std::fprintf(stderr, "\r\033[K");
}

void ProgressBar::Update(double done, absl::string_view step) {
  if (!enabled_ || std::chrono::steady_clock::now() - begin_ < std::chrono::seconds(2)) return;
  constexpr int kCells = 28;
  const int filled = static_cast<int>(std::clamp(done, 0.0, 1.0) * kCells);
  std::string bar;
  for (int i = 0; i < kCells; ++i) bar += i < filled ? "\u2588" : "\u2591";
  std::fprintf(stderr, "\r\033[K%s %s %3.0f%% %s", what_.c_str(), bar.c_str(), done * 100, std::string(step).c_str());
  std::fflush(stderr);
  shown_ = true;
}

}  // namespace headrace
