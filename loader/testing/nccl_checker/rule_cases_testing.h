#ifndef HEADRACE_LOADER_TESTING_NCCL_CHECKER_RULE_CASES_TESTING_H_
#define HEADRACE_LOADER_TESTING_NCCL_CHECKER_RULE_CASES_TESTING_H_

// Cases that break a rule each, in a process of their own (rules_test.cc), and what they have in common.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "loader/testing/nccl_checker/checker_testing.h"

namespace headrace::nccl_checker {

struct RuleCase {
  const char* rule;  // its id
  // Ends the process: by the violation, or by Break.
  std::function<void()> run;
  std::vector<std::string> environment = {};
};

// By name. A case without a rule is a process that another case starts.
std::map<std::string, RuleCase> CudaRuleCases();
std::map<std::string, RuleCase> ShareableRuleCases();
std::map<std::string, RuleCase> CommunicatorRuleCases();
std::map<std::string, RuleCase> GroupRuleCases();

// The call that breaks the rule; comes here only where violations do not end the process, and must have failed.
void Break(int result);
// Waits until the communicator's asynchronous error is there: no call is to blame.
void AwaitError(nccl::Comm comm);

// A stream of device 0 in which a host function waits for ever.
Rank BusyStream();

nccl::UniqueId NewId();
void Send(Rank& rank, Buffer& buffer, size_t count, int type, int peer);
void Receive(Rank& rank, Buffer& buffer, size_t count, int type, int peer);

}  // namespace headrace::nccl_checker

#endif  // HEADRACE_LOADER_TESTING_NCCL_CHECKER_RULE_CASES_TESTING_H_
