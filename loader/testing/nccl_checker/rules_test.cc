// Every rule is broken by a process of its own: once where a violation ends it, and once where the call fails.

#include "loader/testing/nccl_checker/rules.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "loader/testing/nccl_checker/checker_testing.h"
#include "loader/testing/nccl_checker/nccl_checker.h"
#include "loader/testing/nccl_checker/rule_cases_testing.h"

namespace headrace::nccl_checker {
namespace {

const std::map<std::string, RuleCase>& Cases() {
  static const auto* const cases = [] {
    auto* all = new std::map<std::string, RuleCase>(CudaRuleCases());
    all->merge(ShareableRuleCases());
    all->merge(CommunicatorRuleCases());
    all->merge(GroupRuleCases());
    return all;
  }();
  return *cases;
}

// What was appended to the violations file.
std::string Contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class RulesTest : public testing::TestWithParam<std::string> {
 protected:
  Outcome Run(const std::string& mode) {
    file_ = testing::TempDir() + "/violations_" + GetParam() + "_" + mode;
    unlink(file_.c_str());
    std::vector<std::string> environment = Cases().at(GetParam()).environment;
    environment.push_back(std::string(kViolationsFileVariable) + "=" + file_);
    // A case ends in the middle of what it does.
    const char* tsan = std::getenv("TSAN_OPTIONS");
    environment.push_back(std::string("TSAN_OPTIONS=report_thread_leaks=0:atexit_sleep_ms=0:") +
                          (tsan == nullptr ? "" : tsan));
    if (mode == "return") environment.push_back(std::string(kOnViolationVariable) + "=return");
    return Child(GetParam(), environment).Wait();
  }
  std::string Line() const { return std::string("NCCL CHECKER: ") + Cases().at(GetParam()).rule + ": "; }

  std::string file_;
};

TEST_P(RulesTest, EndsTheProcess) {
  const Outcome outcome = Run("abort");
  EXPECT_TRUE(WIFSIGNALED(outcome.status) && WTERMSIG(outcome.status) == SIGABRT) << outcome.status;
  EXPECT_NE(outcome.errors.find(Line()), std::string::npos) << outcome.errors;
  if (GetParam() != "SameRankInTwoProcesses") {  // there it is the other one that has no file
    EXPECT_EQ(Contents(file_).find(Line()), 0u) << Contents(file_);
  }
}

TEST_P(RulesTest, HasTheCallFail) {
  const Outcome outcome = Run("return");
  EXPECT_TRUE(WIFEXITED(outcome.status) && WEXITSTATUS(outcome.status) == 0) << outcome.status << outcome.errors;
  EXPECT_NE(outcome.errors.find(Line()), std::string::npos) << outcome.errors;
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const auto& [name, rule] : Cases()) {
    if (rule.rule != nullptr) names.push_back(name);
  }
  return names;
}
INSTANTIATE_TEST_SUITE_P(All, RulesTest, testing::ValuesIn(Names()), [](const auto& info) { return info.param; });

TEST(RulesTableTest, ADeadlockSaysWhatWaitsForWhat) {
  const Outcome outcome = Child("WrongOrder", Cases().at("WrongOrder").environment).Wait();
  EXPECT_NE(outcome.errors.find("waits for send 0 of 1 to rank"), std::string::npos) << outcome.errors;
  EXPECT_NE(outcome.errors.find("that rank runs its kernel 1"), std::string::npos) << outcome.errors;
}

TEST(RulesTableTest, EveryRuleIsBrokenAndHasASource) {
  std::set<std::string> broken, rules;
  for (const auto& [name, rule] : Cases()) {
    if (rule.rule != nullptr) broken.insert(rule.rule);
  }
  for (int i = 1; i <= static_cast<int>(Rule::kDeadlock); ++i) {
    const RuleText& text = TextOf(static_cast<Rule>(i));
    rules.insert(text.id);
    EXPECT_GT(std::string(text.source).size(), 10u) << text.id;
    EXPECT_NE(text.result, nccl::kSuccess) << text.id;
  }
  EXPECT_EQ(broken, rules);
}

}  // namespace

std::map<std::string, std::function<void()>> RuleProcesses() {
  std::map<std::string, std::function<void()>> processes;
  for (const auto& [name, rule] : Cases()) processes[name] = rule.run;
  return processes;
}

}  // namespace headrace::nccl_checker

int main(int argc, char** argv) {
  return headrace::nccl_checker::CheckerTestMain(argc, argv, headrace::nccl_checker::RuleProcesses());
}
