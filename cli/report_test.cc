#include "cli/report.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>
#include <sstream>
#include <string>

#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

TEST(Human, BytesChangeUnitsAtPowersOf1024) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.0 KiB");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes(int64_t{1} << 20), "1.0 MiB");
  EXPECT_EQ(HumanBytes(int64_t{3} << 29), "1.5 GiB");
  EXPECT_EQ(HumanBytes(int64_t{5} << 40), "5.0 TiB");
  EXPECT_EQ(HumanBytes(std::numeric_limits<int64_t>::max()), "8192.0 PiB");
}

TEST(Human, SecondsChangeUnitsAtPowersOf1000) {
  EXPECT_EQ(HumanSeconds(0), "0 us");
  EXPECT_EQ(HumanSeconds(12e-6), "12 us");
  EXPECT_EQ(HumanSeconds(1e-3), "1.0 ms");
  EXPECT_EQ(HumanSeconds(0.0123), "12.3 ms");
  EXPECT_EQ(HumanSeconds(1), "1.00 s");
  EXPECT_EQ(HumanSeconds(75.126), "75.13 s");
}

TEST(Table, AlignsNumbersRightAndWordsLeft) {
  EXPECT_EQ(Table({{"name", "bytes", "note"}, {"a", "7", "x"}, {"longer", "1234567", "-1"}}),
            "  name       bytes   note\n"
            "  a              7   x\n"
            "  longer   1234567   -1\n");
}

TEST(Table, TakesEmptyCellsAndShortRows) {
  EXPECT_EQ(Table({{"k", "n"}, {"a"}, {"b", ""}, {"c", "10"}, {}}),
            "  k    n\n"
            "  a\n"
            "  b\n"
            "  c   10\n"
            "\n");
  EXPECT_EQ(Table({}), "");
}

struct Printed {
  int exit;
  std::string out, err;
};

Printed Report(const absl::Status& status, bool json) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Printed p;
  p.exit = ReportError(status, json);
  p.out = ::testing::internal::GetCapturedStdout();
  p.err = ::testing::internal::GetCapturedStderr();
  return p;
}

TEST(ReportError, TellsBadInputFromFailureByExitStatus) {
  for (ErrorCode code :
       {ErrorCode::kMalformed, ErrorCode::kOverlap, ErrorCode::kUncovered, ErrorCode::kInvalidOption}) {
    EXPECT_EQ(Report(Error(code, "x"), false).exit, 2) << CodeName(code);
  }
  for (ErrorCode code : {ErrorCode::kPeerLost, ErrorCode::kDeadline, ErrorCode::kOutOfMemory, ErrorCode::kInternal}) {
    EXPECT_EQ(Report(Error(code, "x"), false).exit, 1) << CodeName(code);
  }
}

TEST(ReportError, WritesForPeopleToStandardErrorOnly) {
  const Printed p = Report(Error(ErrorCode::kOverlap, "two pieces"), false);
  EXPECT_EQ(p.out, "");
  EXPECT_EQ(p.err, "headrace: overlap: two pieces\n");
}

TEST(ReportError, WritesOneJsonDocumentToStandardOutputOnly) {
  Printed p = Report(Error(ErrorCode::kOverlap, "a \"quoted\" name"), true);
  EXPECT_EQ(p.exit, 2);
  EXPECT_EQ(p.out, "{\"outcome\":\"error\",\"code\":\"overlap\",\"message\":\"a \\\"quoted\\\" name\"}\n");
  EXPECT_EQ(p.err, "");
  p = Report(Error(ErrorCode::kPeerLost, "gone"), true);
  EXPECT_EQ(p.exit, 1);
  EXPECT_EQ(p.out, "{\"outcome\":\"failed\",\"code\":\"peer_lost\",\"message\":\"gone\"}\n");
}

TEST(ReportError, JsonStaysValidWhateverANameHolds) {
  const Printed p = Report(Error(ErrorCode::kMalformed, "bytes \xFF\xC3 and \n"), true);
  const auto document = nlohmann::json::parse(p.out);  // throws when it is no JSON or no UTF-8
  EXPECT_EQ(document["code"], "malformed");
  EXPECT_EQ(p.out.find('\n'), p.out.size() - 1);
}

TEST(ReadFile, GivesEveryByte) {
  const std::string path = ::testing::TempDir() + "/report_test_file";
  const std::string all("a\0b\r\n\xFF", 6);
  std::ofstream(path, std::ios::binary) << all;
  EXPECT_EQ(ReadFile(path).value(), all);
  std::ofstream(path, std::ios::binary | std::ios::trunc).flush();
  EXPECT_EQ(ReadFile(path).value(), "");
}

TEST(ReadFile, ADashIsStandardInput) {
  std::istringstream input("from a pipe");
  std::streambuf* const real = std::cin.rdbuf(input.rdbuf());
  const auto text = ReadFile("-");
  std::cin.rdbuf(real);
  EXPECT_EQ(text.value(), "from a pipe");
}

TEST(ReadFile, SaysWhichFileAndWhy) {
  const auto missing = ReadFile("/nowhere/plan.json");
  EXPECT_TRUE(HasCode(missing.status(), ErrorCode::kIo));
  EXPECT_EQ(missing.status().message(), "cannot read \"/nowhere/plan.json\": No such file or directory");
  const auto folder = ReadFile("/proc");
  EXPECT_TRUE(HasCode(folder.status(), ErrorCode::kIo));
  EXPECT_EQ(folder.status().message(), "cannot read \"/proc\": Is a directory");
}

int64_t Threads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

TEST(ProgressBar, DoesNothingWhereNobodyLooks) {
  ::testing::internal::CaptureStderr();  // a file
  const int64_t before = Threads();
  {
    ProgressBar bar("reading", /*enabled=*/true);
    bar.Update(0.5, "half");
    EXPECT_LE(Threads(), before);
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(ProgressBar, DrawsOnATerminalAndCleansUp) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(grantpt(terminal), 0);
  ASSERT_EQ(unlockpt(terminal), 0);
  const int end = open(ptsname(terminal), O_RDWR | O_NOCTTY);
  ASSERT_GE(end, 0);
  const int real = dup(STDERR_FILENO);
  dup2(end, STDERR_FILENO);
  const auto read_on = [&](std::string* text) {
    char buffer[4096];
    const ssize_t n = read(terminal, buffer, sizeof buffer);
    if (n > 0) text->append(buffer, static_cast<size_t>(n));
    return n > 0;
  };
  std::string drawn;
  {
    ProgressBar off("off", /*enabled=*/false);
    ProgressBar bar("reading", /*enabled=*/true);
    bar.Update(0.5, "half");
    while (drawn.find("half") == std::string::npos && read_on(&drawn)) {
    }
  }
  dup2(real, STDERR_FILENO);
  close(real);
  close(end);
  while (read_on(&drawn)) {  // to the last byte: nobody has the terminal's other end any more
  }
  close(terminal);
  std::string bar;
  for (int i = 0; i < 28; ++i) bar += i < 14 ? "\u2588" : "\u2591";
  EXPECT_THAT(drawn, HasSubstr("\r\033[Kreading | " + bar + "  50% half"));
  EXPECT_EQ(drawn.substr(drawn.size() - 4), "\r\033[K");
  EXPECT_EQ(drawn.find("off"), std::string::npos);
}

}  // namespace
}  // namespace headrace
