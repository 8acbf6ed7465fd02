#ifndef HEADRACE_CLI_DEMO_SUMMARY_H_
#define HEADRACE_CLI_DEMO_SUMMARY_H_

#include <string>

#include "cli/demo/run.h"

namespace headrace {

// What one scenario did: for people, with a picture of who sent what to whom, and as JSON.
std::string Summary(const DemoCommand& command, const DemoReport& report);
DemoJson ToJson(const DemoReport& report);

}  // namespace headrace

#endif  // HEADRACE_CLI_DEMO_SUMMARY_H_
