#ifndef HEADRACE_CLI_DEMO_CLUSTER_H_
#define HEADRACE_CLI_DEMO_CLUSTER_H_

// The demo's processes and their event loop: trainers, engine workers, and helpers such as the oracle.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/demo/rank.h"
#include "cli/process.h"

namespace headrace {

class Cluster {
 public:
  using OnEvent = std::function<void(size_t process, const DemoJson& event)>;

  // Starts this program again as a rank and gives it its first line. Returns its number.
  absl::StatusOr<size_t> Start(const std::string& name, const std::string& command, const DemoJson& orders);
  void Send(size_t process, const DemoJson& order) { processes_[process].child.WriteLine(order.dump()); }
  size_t size() const { return processes_.size(); }
  const ChildProcess& child(size_t process) const { return processes_[process].child; }

  // Hands events to `on_event` and calls `pump` after each round, until `done`. kDeadline with `what` at the deadline;
  // a rank that reported an error or ended: the root cause, after the other ranks have ended too (Aftermath).
  absl::Status RunUntil(const std::string& what, absl::Time deadline, const OnEvent& on_event,
                        const std::function<void()>& pump, const std::function<bool()>& done);

  // Tells some ranks to quit and waits until they ended. An error names the one that did not end well.
  absl::Status Quit(const std::vector<size_t>& processes, absl::Time deadline);

 private:
  struct Process {
    ChildProcess child;
    bool open = true;
    bool quitting = false;
    absl::Status error = {};  // what it reported itself
    std::string end = {};     // how it ended; empty: well, or not yet
    double ended_at = 0;      // monotonic seconds
  };

  // One poll; false when a rank failed or ended early.
  bool Round(absl::Duration wait, const OnEvent& on_event);
  // Waits for the survivors' own ends and names the dead rank.
  absl::Status Aftermath();

  std::vector<Process> processes_;
};

// Runs a program to its end while `pump` keeps the cluster going; returns its standard output. `exit_status` gets its
// status.
absl::StatusOr<std::string> RunProgram(const std::string& name, const std::string& program,
                                       const std::vector<std::string>& arguments, absl::Time deadline,
                                       const std::function<absl::Status()>& pump, std::string* end);

}  // namespace headrace

#endif  // HEADRACE_CLI_DEMO_CLUSTER_H_
