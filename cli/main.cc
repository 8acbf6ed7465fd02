// The `headrace` command.

#include <CLI/CLI.hpp>
#include <cstring>
#include <string>

#include "cli/demo/demo_command.h"
#include "cli/demo/rank.h"
#include "cli/plan_command.h"
#include "cli/rehearse_command.h"
#include "cli/report.h"
#include "planner/status.h"

namespace headrace {
namespace {

int Main(int argc, char** argv) {
  CLI::App app{"Headrace: a trainer's weights, straight into the buffers of running inference engines."};
  app.require_subcommand(1);
  int exit_status = kExitOk;

  PlanCommand plan;
  CLI::App* planning = app.add_subcommand("plan", "Plan a manifest and prove the plan");
  planning->add_option("FILE", plan.file, "the manifest (JSON); - reads standard input")->required();
  const std::string policies = "auto: every tensor is resharded; hybrid: QKV and Mamba weights are broadcast";
  planning->add_option("--policy", plan.policy, policies)
      ->check(CLI::IsMember({"auto", "hybrid"}))
      ->capture_default_str();
  planning->add_flag("--json", plan.json, "print one JSON document");
  planning->callback([&] { exit_status = Run(plan); });

  RehearseCommand rehearse;
  CLI::App* rehearsing = app.add_subcommand("rehearse", "Move made-up weights through a manifest and check every byte");
  rehearsing->add_option("FILE", rehearse.file, "the manifest (JSON); - reads standard input")->required();
  rehearsing->add_option("--transport", rehearse.transport, "memory: one process; host, ucx: a process for each rank")
      ->check(CLI::IsMember({"memory", "host", "ucx"}))
      ->capture_default_str();
  rehearsing->add_option("--policy", rehearse.policy, policies)
      ->check(CLI::IsMember({"auto", "hybrid"}))
      ->capture_default_str();
  rehearsing->add_flag("--dump", rehearse.dump, "print the raw bits of every destination element");
  rehearsing->add_flag("--json", rehearse.json, "print one JSON document");
  rehearsing->callback([&] { exit_status = Run(rehearse); });

  DemoCommand demo;
  CLI::App* demonstrating = app.add_subcommand(
      "demo", "Swap a real model's weights, twice, from trainer processes into two engines that serve meanwhile");
  demonstrating->add_option("--model", demo.model, "a checkpoint directory (safetensors and config.json)")->required();
  demonstrating->add_option("--oracle", demo.oracle, "tools/model/oracle.py, which checks every byte")->required();
  demonstrating->add_option("--python", demo.python, "a Python with the oracle's packages")->capture_default_str();
  demonstrating->add_option("--scenario", demo.scenarios, "megatron, fsdp")
      ->check(CLI::IsMember({"megatron", "fsdp"}))
      ->capture_default_str();
  demonstrating->add_option("--transport", demo.transport, "host: mapped memory; ucx: messages")
      ->check(CLI::IsMember({"host", "ucx"}))
      ->capture_default_str();
  demonstrating->add_option("--shadow", demo.shadow, "host: a second set of buffers; off: in place, the engine pauses")
      ->check(CLI::IsMember({"host", "off"}))
      ->capture_default_str();
  demonstrating->add_flag("--json", demo.json, "print one JSON document");
  demonstrating->callback([&] { exit_status = Run(demo); });
  app.add_subcommand("demo-trainer", "")->group("")->callback([&] { exit_status = RunDemoTrainer(); });
  app.add_subcommand("demo-worker", "")->group("")->callback([&] { exit_status = RunDemoWorker(); });

  app.add_subcommand("rehearse-rank", "")->group("")->callback([&] { exit_status = RunRehearsedRank(); });

  bool json = false;
  for (int i = 1; i < argc; ++i) json = json || std::strcmp(argv[i], "--json") == 0;
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    return ReportError(Error(ErrorCode::kInvalidOption, std::string(e.what()) + "; see headrace --help"), json);
  }
  return exit_status;
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) { return headrace::Main(argc, argv); }
