#ifndef HEADRACE_CLI_REHEARSE_COMMAND_H_
#define HEADRACE_CLI_REHEARSE_COMMAND_H_

#include <string>

namespace headrace {

struct RehearseCommand {
  std::string file;
  std::string transport = "memory";  // "memory": all ranks in this process; "host", "ucx", "nccl": a process each
  std::string policy = "auto";       // planner/plan.h: PolicyName
  bool json = false;
  bool dump = false;
};

// `headrace rehearse FILE`: plans a manifest and moves two generations of a known pattern through the real publishers,
// receivers and transport, then checks every byte.
int Run(const RehearseCommand& command);

// `headrace rehearse-rank`: one rank of a rehearsal; its orders are on standard input.
int RunRehearsedRank();

}  // namespace headrace

#endif  // HEADRACE_CLI_REHEARSE_COMMAND_H_
