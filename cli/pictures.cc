#include "cli/pictures.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "cli/report.h"

namespace headrace {
namespace {

constexpr int kPageWidth = 960;
constexpr int kLeft = 110;                  // what labels of rows take
constexpr double kLine = 13, kLabel = 110;  // height of a label, and about the width of "ranks 4080 to 4095"

// Text colours follow the reader's colour scheme; the data's are legible on both.
constexpr char kStyle[] = R"(
:root { color-scheme: light dark; --ink: #1c2024; --soft: #667079; --line: #d9dee3; --page: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --soft: #98a2ab; --line: #353c43; --page: #15181b; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 960px;
  margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
.note { color: var(--soft); margin: 0.2em 0; }
table { border-collapse: collapse; } td, th { text-align: left; padding: 0.15em 1.2em 0.15em 0; vertical-align: top; }
th { color: var(--soft); font-weight: normal; border-bottom: 1px solid var(--line); }
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
svg .axis { stroke: var(--line); }
.key { display: inline-block; width: 0.8em; height: 0.8em; margin: 0 0.4em 0 1em; }
)";

// Parts of bars and kinds of intervals: distinct for colour-blind readers too, in this order.
constexpr const char* kColours[] = {"#3b78c2", "#e08a2e", "#2f9e77", "#b2569a", "#8a8f98", "#c9b23c"};

const char* Colour(int i) { return kColours[i % static_cast<int>(std::size(kColours))]; }

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string Key(const std::vector<std::string>& names) {
  std::string out = "<p class=\"note\">";
  for (size_t i = 0; i < names.size(); ++i) {
    absl::StrAppend(&out, "<span class=\"key\" style=\"background:", Colour(static_cast<int>(i)), "\"></span>",
                    Escaped(names[i]));
  }
  return out + "</p>\n";
}

std::string HtmlTable(const std::vector<std::vector<std::string>>& rows, bool heading) {
  std::string out = "<table>\n";
  for (size_t r = 0; r < rows.size(); ++r) {
    const char* cell = heading && r == 0 ? "th" : "td";
    out += "<tr>";
    for (const std::string& text : rows[r]) absl::StrAppend(&out, "<", cell, ">", Escaped(text), "</", cell, ">");
    out += "</tr>\n";
  }
  return out + "</table>\n";
}

std::string Svg(double height, const std::string& content) {
  return absl::StrFormat("<svg viewBox=\"0 0 %d %.0f\" role=\"img\">\n%s</svg>\n", kPageWidth, std::ceil(height),
                         content);
}

std::string Text(double x, double y, const char* anchor, const std::string& text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, Escaped(text));
}

std::string Rectangle(double x, double y, double width, double height, const std::string& colour, double opacity,
                      const std::string& title) {
  return absl::StrFormat(
      "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\" fill-opacity=\"%.3f\"><title>%s</title>"
      "</rect>\n",
      x, y, width, height, colour, opacity, Escaped(title));
}

// Calls label(i, at) for those places, each `step` long, that have one and for which there is `room` after the last: at
// the place's beginning, or before it where there is not that much room to the end.
template <typename Label>
void EachLabel(const std::vector<std::string>& labels, double step, double room, const Label& label) {
  const double last = std::max(0.0, static_cast<double>(labels.size()) * step - room);
  double free = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    const double at = std::min(static_cast<double>(i) * step, last);
    if (labels[i].empty() || at < free) continue;
    label(i, at);
    free = at + room;
  }
}

std::string MatrixPicture(const TrafficMatrix& matrix) {
  const size_t rows = matrix.rows.size(), columns = matrix.columns.size();
  const double width = (kPageWidth - kLeft) / static_cast<double>(columns);
  const double height = std::clamp(480.0 / static_cast<double>(rows), 4.0, std::min(width, 28.0));
  const int64_t most = std::max<int64_t>(1, *std::max_element(matrix.bytes.begin(), matrix.bytes.end()));
  std::string out;
  EachLabel(matrix.rows, height, kLine,
            [&](size_t r, double at) { out += Text(kLeft - 6, at + 0.5 * height + 4, "end", matrix.rows[r]); });
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) {
      const int64_t bytes = matrix.bytes[r * columns + c];
      if (bytes == 0) continue;
      // By the square root, so that small amounts can be told from none.
      const double share = std::sqrt(static_cast<double>(bytes) / static_cast<double>(most));
      out += Rectangle(kLeft + static_cast<double>(c) * width, static_cast<double>(r) * height, width - 0.5,
                       height - 0.5, kColours[0], 0.12 + 0.88 * share,
                       absl::StrCat(matrix.rows[r], " to ", matrix.columns[c], ": ", HumanBytes(bytes)));
    }
  }
  const double bottom = static_cast<double>(rows) * height;
  EachLabel(matrix.columns, width, kLabel,
            [&](size_t c, double at) { out += Text(kLeft + at, bottom + 14, "start", matrix.columns[c]); });
  return Svg(bottom + 20, out);
}

std::string BarPicture(const Bars& bars) {
  constexpr double kHeight = 150;
  const size_t count = bars.labels.size(), parts = bars.parts.size();
  int64_t most = 1;
  for (size_t i = 0; i < count; ++i) {
    int64_t sum = 0;
    for (size_t p = 0; p < parts; ++p) sum += bars.bytes[i * parts + p];
    most = std::max(most, sum);
  }
  const double width = (kPageWidth - kLeft) / static_cast<double>(count);
  std::string out;
  for (const double share : {0.0, 0.5, 1.0}) {
    const double y = 10 + kHeight * (1 - share);
    absl::StrAppendFormat(&out, "<line class=\"axis\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>\n", kLeft,
                          kPageWidth, y, y);
    out += Text(kLeft - 6, y + 4, "end", HumanBytes(static_cast<int64_t>(share * static_cast<double>(most))));
  }
  for (size_t i = 0; i < count; ++i) {
    double y = 10 + kHeight;
    for (size_t p = 0; p < parts; ++p) {
      const int64_t bytes = bars.bytes[i * parts + p];
      if (bytes == 0) continue;
      const double height = kHeight * static_cast<double>(bytes) / static_cast<double>(most);
      y -= height;
      out += Rectangle(kLeft + static_cast<double>(i) * width, y, std::max(0.5, width * 0.88), height,
                       Colour(static_cast<int>(p)), 1,
                       absl::StrCat(bars.labels[i], ", ", bars.parts[p], ": ", HumanBytes(bytes)));
    }
  }
  EachLabel(bars.labels, width, kLabel,
            [&](size_t i, double at) { out += Text(kLeft + at, kHeight + 26, "start", bars.labels[i]); });
  return Key(bars.parts) + Svg(kHeight + 34, out);
}

std::string TimelinePicture(const Timeline& timeline) {
  const double lane = std::clamp(480.0 / static_cast<double>(timeline.lanes.size()), 6.0, 20.0);
  const double bottom = lane * static_cast<double>(timeline.lanes.size());
  const double scale = (kPageWidth - kLeft - 40) / std::max(timeline.seconds, 1e-12);
  std::string out;
  EachLabel(timeline.lanes, lane, kLine,
            [&](size_t i, double at) { out += Text(kLeft - 6, at + 0.5 * lane + 4, "end", timeline.lanes[i]); });
  for (int tick = 0; tick <= 4; ++tick) {
    const double at = timeline.seconds * tick / 4, x = kLeft + at * scale;
    absl::StrAppendFormat(&out, "<line class=\"axis\" x1=\"%.1f\" x2=\"%.1f\" y1=\"0\" y2=\"%.1f\"/>\n", x, x,
                          bottom + 4);
    out += Text(x, bottom + 16, "middle", HumanSeconds(at));
  }
  for (const TimelineInterval& i : timeline.intervals) {
    out += Rectangle(kLeft + i.begin * scale, i.lane * lane + 1, std::max(0.3, (i.end - i.begin) * scale), lane - 2,
                     Colour(i.kind), 1,
                     absl::StrCat(timeline.kinds[i.kind], ": ", HumanSeconds(i.begin), " to ", HumanSeconds(i.end)));
  }
  return Key(timeline.kinds) + Svg(bottom + 22, out);
}

}  // namespace

std::string HtmlPage(const PlanPage& page) {
  std::string body = absl::StrCat("<h1>", Escaped(page.title), "</h1>\n");
  for (const std::string& note : page.notes) absl::StrAppend(&body, "<p class=\"note\">", Escaped(note), "</p>\n");
  body += HtmlTable(page.figures, /*heading=*/false);
  if (!page.traffic.bytes.empty()) {
    body +=
        "<h2>Traffic</h2>\n<p class=\"note\">What leaves source ranks (rows) and enters destination ranks (columns) "
        "from there. Darker is more, by the square root.</p>\n";
    body += MatrixPicture(page.traffic);
  }
  for (const Bars& bars : page.bars) {
    if (bars.labels.empty()) continue;
    absl::StrAppend(&body, "<h2>", Escaped(bars.title), "</h2>\n", BarPicture(bars));
  }
  if (!page.timeline.lanes.empty()) {
    absl::StrAppend(&body, "<h2>Timeline (simulated)</h2>\n", TimelinePicture(page.timeline));
  }
  if (!page.transfers.empty()) {
    absl::StrAppend(&body, "<h2>Transfers</h2>\n", HtmlTable(page.transfers, /*heading=*/true));
  }
  return absl::StrCat("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><title>", Escaped(page.title),
                      "</title><style>", kStyle, "</style></head>\n<body>\n", body, "</body></html>\n");
}

int64_t GroupSize(int64_t count, int64_t most) { return std::max<int64_t>(1, (count + most - 1) / most); }

std::vector<std::string> GroupLabels(const std::string& what, int64_t count, int64_t size) {
  std::vector<std::string> labels;
  for (int64_t first = 0; first < count; first += size) {
    const int64_t last = std::min(count, first + size) - 1;
    labels.push_back(first == last ? absl::StrCat(what, " ", first) : absl::StrCat(what, "s ", first, " to ", last));
  }
  return labels;
}

}  // namespace headrace
