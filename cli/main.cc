// The `headrace` command.

#include <CLI/CLI.hpp>
#include <cstring>
#include <new>
#include <string>

#include "cli/cluster_commands.h"
#include "cli/demo/demo_command.h"
#include "cli/demo/rank.h"
#include "cli/explain_command.h"
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

  const std::string policies = "auto: every tensor is resharded; hybrid: QKV and Mamba weights are broadcast";
  auto add_policy = [&](CLI::App* command, std::string& policy) {
    command->add_option("--policy", policy, policies)->check(CLI::IsMember({"auto", "hybrid"}))->capture_default_str();
  };
  auto add_job = [](CLI::App* command, LayoutChoice& job) {
    CLI::Option* layout = command->add_option("--layout", job.layout,
                                              "a published layout by its id, or a file (JSON): a layout, a system of "
                                              "nccl_m2n's benchmark, or NeMo RL's configuration");
    command
        ->add_option("--model", job.model,
                     "a public model by its record's name, or a file (JSON): a record, or a model of nccl_m2n's "
                     "benchmark; by default the layout's")
        ->needs(layout);
    command->add_option("--gpu", job.gpu, "the hardware, for files that do not name it")->needs(layout);
    return layout;
  };
  auto add_cluster = [&](CLI::App* command, ClusterCommand& cluster) {
    add_policy(command, cluster.policy);
    CLI::Option* layout = add_job(command, cluster.job);
    command->add_option("--page", cluster.page, "write a page with pictures (HTML) to this file")->needs(layout);
    command->add_flag("--json", cluster.json, "print one JSON document");
    return layout;
  };
  // One of a manifest and a layout.
  auto one_of = [](CLI::Option* file, CLI::Option* layout) {
    file->excludes(layout);
    layout->excludes(file);
    return [file, layout] {
      if (file->empty() && layout->empty()) throw CLI::RequiredError("FILE or --layout");
    };
  };

  PlanCommand plan;
  ClusterCommand plan_cluster;
  CLI::App* planning = app.add_subcommand("plan", "Plan a manifest, or a model under a layout, and prove the plan");
  CLI::Option* plan_file = planning->add_option("FILE", plan.file, "the manifest (JSON); - reads standard input");
  const auto plan_one = one_of(plan_file, add_cluster(planning, plan_cluster));
  planning->callback([&] {
    plan_one();
    plan.policy = plan_cluster.policy;
    plan.json = plan_cluster.json;
    exit_status = plan_file->empty() ? RunClusterPlan(plan_cluster) : Run(plan);
  });

  ClusterCommand simulate;
  CLI::App* simulating =
      app.add_subcommand("simulate", "Plan a model under a layout, and simulate how long the refit takes");
  add_cluster(simulating, simulate)->required();
  simulating
      ->add_option("--spine", simulate.spine,
                   "what the network carries between rails, as a share of what all NICs send; 1: all of it")
      ->capture_default_str();
  simulating->callback([&] { exit_status = RunSimulate(simulate); });

  ExplainCommand explain;
  CLI::App* explaining = app.add_subcommand("explain", "Show where each part of a tensor comes from and goes to");
  explaining->add_option("TENSOR", explain.tensor, "its checkpoint name")->required();
  CLI::Option* explain_file = explaining->add_option("FILE", explain.file, "the manifest (JSON)");
  const auto explain_one = one_of(explain_file, add_job(explaining, explain.job));
  add_policy(explaining, explain.policy);
  explaining->add_flag("--json", explain.json, "print one JSON document");
  explaining->callback([&] {
    explain_one();
    exit_status = Run(explain);
  });

  RehearseCommand rehearse;
  CLI::App* rehearsing = app.add_subcommand("rehearse", "Move made-up weights through a manifest and check every byte");
  rehearsing->add_option("FILE", rehearse.file, "the manifest (JSON); - reads standard input")->required();
  rehearsing
      ->add_option("--transport", rehearse.transport, "memory: one process; host, ucx, nccl: a process for each rank")
      ->check(CLI::IsMember({"memory", "host", "ucx", "nccl"}))
      ->capture_default_str();
  add_policy(rehearsing, rehearse.policy);
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
  demonstrating->add_flag("--gpu", demo.gpu, "the weights are in GPU memory at both ends");
  demonstrating
      ->add_option("--transport", demo.transport, "host: mapped memory; cuda: mapped GPU memory; ucx, nccl: messages")
      ->check(CLI::IsMember({"host", "cuda", "ucx", "nccl"}))
      ->capture_default_str();
  demonstrating
      ->add_option("--shadow", demo.shadow,
                   "host, device: a second set of buffers in host or GPU memory; off: in place, the engine pauses; by "
                   "default device where weights come to a GPU without the host, else host")
      ->check(CLI::IsMember({"host", "device", "off"}));
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
  } catch (const std::bad_alloc&) {
    return ReportError(Error(ErrorCode::kOutOfMemory, "this takes more memory than there is: choose smaller numbers"),
                       json);
  }
  return exit_status;
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) { return headrace::Main(argc, argv); }
