#include "cli/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace headrace {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;

ChildProcess Started(const std::string& program, const std::vector<std::string>& arguments = {}) {
  auto child = ChildProcess::Start("child", program, arguments);
  EXPECT_TRUE(child.ok()) << child.status();
  return *std::move(child);
}

std::vector<std::string> AllLines(ChildProcess* child) {
  std::vector<std::string> lines;
  while (child->ReadLines(&lines)) {
  }
  return lines;
}

// Nothing is left of it, not even a zombie.
void ExpectGone(pid_t pid) {
  EXPECT_EQ(waitpid(pid, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(ChildProcess, CarriesLinesBothWays) {
  ChildProcess child = Started("/bin/cat");
  EXPECT_EQ(child.name(), "child");
  EXPECT_TRUE(child.WriteLine("one"));
  EXPECT_TRUE(child.WriteLine(""));
  EXPECT_TRUE(child.WriteLine("three \t 3"));
  std::vector<std::string> lines;
  while (lines.size() < 3) ASSERT_TRUE(child.ReadLines(&lines));
  EXPECT_THAT(lines, ElementsAre("one", "", "three \t 3"));
  EXPECT_FALSE(child.Ended());
}

TEST(ChildProcess, CarriesALineOfManyReads) {
  ChildProcess child = Started("sh", {"-c", "head -c 300000 /dev/zero | tr '\\0' x; echo; echo y"});
  EXPECT_THAT(AllLines(&child), ElementsAre(std::string(300000, 'x'), "y"));
  EXPECT_EQ(child.Wait(), "");
}

TEST(ChildProcess, ALineIsWholeWhenItsEndCame) {
  ChildProcess child = Started("sh", {"-c", "printf par; read order; printf 'tial %s\\nrest' \"$order\""});
  std::vector<std::string> lines;
  ASSERT_TRUE(child.ReadLines(&lines));
  EXPECT_THAT(lines, ElementsAre());
  EXPECT_TRUE(child.WriteLine("go"));
  EXPECT_THAT(AllLines(&child), ElementsAre("partial go"));  // "rest" has no end
}

TEST(ChildProcess, SaysHowItEnded) {
  EXPECT_EQ(Started("true").Wait(), "");
  EXPECT_EQ(Started("/bin/false").Wait(), "exited with status 1");
  EXPECT_EQ(Started("sh", {"-c", "exit 42"}).Wait(), "exited with status 42");
  EXPECT_EQ(Started("sh", {"-c", "kill -TERM $$"}).Wait(), "was killed by signal 15");
  ChildProcess killed = Started("/bin/cat");
  killed.Kill();
  EXPECT_EQ(killed.Wait(), "was killed by signal 9");
  EXPECT_EQ(killed.Wait(), "was killed by signal 9");
  EXPECT_TRUE(killed.Ended());
}

TEST(ChildProcess, AProgramThatDoesNotExistEndsWithStatus127) {
  ChildProcess child = Started("/nowhere/program");
  EXPECT_THAT(AllLines(&child), ElementsAre());
  EXPECT_EQ(child.Wait(), "exited with status 127");
}

TEST(ChildProcess, NoProgramIsThisOne) {
  ChildProcess child = Started("", {"--gtest_list_tests"});
  EXPECT_THAT(AllLines(&child), Contains("  NoProgramIsThisOne"));
  EXPECT_EQ(child.Wait(), "");
}

TEST(ChildProcess, NothingIsLeftOfOneThatGoesOutOfScope) {
  pid_t running, ended, waited_for;
  {
    ChildProcess a = Started("/bin/cat"), b = Started("true"), c = Started("true");
    running = a.pid(), ended = b.pid(), waited_for = c.pid();
    AllLines(&b);
    c.Wait();
  }
  ExpectGone(running);
  ExpectGone(ended);
  ExpectGone(waited_for);
}

TEST(ChildProcess, LivesInItsNewPlaceAfterAMove) {
  ChildProcess first = Started("/bin/cat");
  const pid_t pid = first.pid();
  {
    ChildProcess second = std::move(first);
    EXPECT_EQ(second.pid(), pid);
    EXPECT_TRUE(second.WriteLine("still here"));
    std::vector<std::string> lines;
    while (lines.empty()) ASSERT_TRUE(second.ReadLines(&lines));
    EXPECT_THAT(lines, ElementsAre("still here"));
  }
  ExpectGone(pid);
}

TEST(ChildProcess, AChildHoldsNoPipeOfAnother) {
  ChildProcess first = Started("/bin/cat");
  ChildProcess second = Started("/bin/cat");
  first.Kill();
  first.Wait();
  EXPECT_THAT(AllLines(&first), ElementsAre());  // would wait forever for the other's copy of the pipe
  EXPECT_FALSE(second.Ended());
}

TEST(ChildProcess, WritingToTheDeadIsNoCrash) {
  const auto before = signal(SIGPIPE, SIG_IGN);  // as the command does
  ChildProcess child = Started("true");
  child.Wait();
  EXPECT_FALSE(child.WriteLine("anyone?"));
  signal(SIGPIPE, before);
}

TEST(RandomToken, Is32DigitsAndNeverTheSame) {
  std::set<std::string> tokens;
  std::set<char> digits;
  for (int i = 0; i < 1000; ++i) {
    const std::string token = RandomToken();
    EXPECT_EQ(token.size(), 32u);
    digits.insert(token.begin(), token.end());
    tokens.insert(token);
  }
  EXPECT_EQ(tokens.size(), 1000u);
  EXPECT_EQ(std::string(digits.begin(), digits.end()), "0123456789abcdef");
}

}  // namespace
}  // namespace headrace
