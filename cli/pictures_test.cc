#include "cli/pictures.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

int CountOf(const std::string& text, const std::string& word) {
  int count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

PlanPage Example() {
  PlanPage page;
  page.title = "a <model> & \"more\"";
  page.notes = {"Times are simulated."};
  page.figures = {{"needed", "3 B"}};
  page.traffic = {{"rank 0", "rank 1"}, {"rank 0", "rank 1", "rank 2"}, {1, 0, 4, 0, 0, 2048}};
  page.bars = {{"Bytes sent", {"rank 0", "rank 1"}, {"first", "second"}, {3, 0, 1, 1}}};
  page.timeline = {{"rank 0"}, {"sending", "waiting"}, {{0, 0, 0, 0.25}, {0, 1, 0.25, 1}}, 1};
  page.transfers = {{"unit", "reason"}, {"mlp", "by <name>"}};
  return page;
}

TEST(PicturesTest, EveryNumberIsThereInWords) {
  const std::string page = HtmlPage(Example());
  EXPECT_EQ(CountOf(page, "<rect "), 3 + 3 + 2);  // what is zero is not drawn
  EXPECT_EQ(CountOf(page, "<title>"), 1 + 3 + 3 + 2);
  EXPECT_THAT(page, HasSubstr("<title>rank 1 to rank 2: 2.0 KiB</title>"));
  EXPECT_THAT(page, HasSubstr("<title>rank 1, second: 1 B</title>"));
  EXPECT_THAT(page, HasSubstr("<title>waiting: 250.0 ms to 1.00 s</title>"));
  EXPECT_THAT(page, HasSubstr("Times are simulated."));
}

TEST(PicturesTest, TextIsEscaped) {
  const std::string page = HtmlPage(Example());
  EXPECT_THAT(page, HasSubstr("<h1>a &lt;model&gt; &amp; &quot;more&quot;</h1>"));
  EXPECT_THAT(page, HasSubstr("<td>by &lt;name&gt;</td>"));
  EXPECT_THAT(page, Not(HasSubstr("<model>")));
}

TEST(PicturesTest, OpensOffline) {
  const std::string page = HtmlPage(Example());
  EXPECT_THAT(page, Not(HasSubstr("http")));
  EXPECT_THAT(page, Not(HasSubstr("<script")));
}

TEST(PicturesTest, WhatIsNotThereIsLeftOut) {
  PlanPage page;
  page.title = "nothing";
  EXPECT_THAT(HtmlPage(page), Not(HasSubstr("<svg")));
}

// Labels of columns and bars begin where there is room for them.
TEST(PicturesTest, LabelsEndOnThePage) {
  for (const int64_t ranks : {1, 2, 9, 12, 64, 256, 4096}) {
    PlanPage page;
    page.title = "labels";
    page.bars = {{"Bytes sent", GroupLabels("rank", ranks, GroupSize(ranks, 256)), {"all"}, {}}};
    page.bars[0].bytes.assign(page.bars[0].labels.size(), 1);
    page.traffic = {{"rank 0"}, GroupLabels("rank", ranks, GroupSize(ranks, 64)), {}};
    page.traffic.bytes.assign(page.traffic.columns.size(), 1);
    const std::string html = HtmlPage(page);
    int labels = 0;
    double last = 0;
    for (size_t at = 0; (at = html.find("text-anchor=\"start\"", at)) != std::string::npos; ++at) {
      const size_t x = html.rfind("x=\"", at) + 3;
      const double begin = std::stod(html.substr(x));
      EXPECT_LE(begin, 850.05) << ranks;
      if (begin > last && labels > 0) {
        EXPECT_GE(begin, last + 109.9) << ranks;
      }
      last = begin;
      ++labels;
    }
    EXPECT_GE(labels, 2) << ranks;
  }
}

TEST(PicturesTest, Groups) {
  for (int64_t count = 1; count < 300; ++count) {
    const int64_t size = GroupSize(count, 64);
    const int64_t groups = (count + size - 1) / size;
    EXPECT_LE(groups, 64) << count;
    EXPECT_TRUE(size == 1 || (count + size - 2) / (size - 1) > 64) << count;
  }
  EXPECT_EQ(GroupLabels("rank", 10, 1)[3], "rank 3");
  EXPECT_EQ(GroupLabels("rank", 10, 4), (std::vector<std::string>{"ranks 0 to 3", "ranks 4 to 7", "ranks 8 to 9"}));
  EXPECT_EQ(GroupLabels("rank", 9, 4).back(), "rank 8");
}

}  // namespace
}  // namespace headrace
