#ifndef HEADRACE_CLI_EXPLAIN_COMMAND_H_
#define HEADRACE_CLI_EXPLAIN_COMMAND_H_

#include <string>

#include "cli/job.h"

namespace headrace {

struct ExplainCommand {
  std::string tensor;  // its checkpoint name
  LayoutChoice job;    // of a model under a layout, or
  std::string file;    // a manifest (JSON)
  std::string policy = "auto";
  bool json = false;
};

// `headrace explain TENSOR`: which part of a tensor comes from which trainer rank, by whom it is passed on, and in
// which buffer of which engine rank it lands.
int Run(const ExplainCommand& command);

}  // namespace headrace

#endif  // HEADRACE_CLI_EXPLAIN_COMMAND_H_
