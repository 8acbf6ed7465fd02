#ifndef HEADRACE_CLI_DEMO_DEMO_COMMAND_H_
#define HEADRACE_CLI_DEMO_DEMO_COMMAND_H_

#include <string>
#include <vector>

namespace headrace {

struct DemoCommand {
  std::string model;   // a checkpoint directory
  std::string oracle;  // tools/model/oracle.py
  std::string python = "python3";
  std::string transport = "host";
  std::string shadow;  // ChooseShadow's `wanted`
  bool gpu = false;    // the weights are in GPU memory
  std::vector<std::string> scenarios = {"megatron", "fsdp"};
  bool json = false;
};

// `headrace demo`: a real checkpoint's weights from trainer processes into two running engines of other layouts, two
// generations, while the engines serve; checked byte for byte by an independent oracle.
int Run(const DemoCommand& command);

}  // namespace headrace

#endif  // HEADRACE_CLI_DEMO_DEMO_COMMAND_H_
