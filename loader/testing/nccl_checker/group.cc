#include "loader/testing/nccl_checker/group.h"

#include <algorithm>
#include <utility>

#include "loader/testing/nccl_checker/faults.h"
#include "loader/testing/nccl_checker/options.h"
#include "loader/testing/nccl_checker/rules.h"
#include "loader/testing/nccl_checker/text.h"

namespace headrace::nccl_checker {
namespace {

struct Group {
  int depth = 0;
  nccl::Result error = nccl::kSuccess;
  std::vector<CommRef> inits;
  std::vector<std::pair<CommRef, std::vector<Transfer>>> transfers;  // in the order of first use

  ~Group() {
    if (depth > 0) Violation(Rule::kGroupOpenAtThreadEnd, Text("a thread ends inside ", depth, " ncclGroupStart"));
  }
};

thread_local Group t_group;

nccl::Result CheckGroup(const Group& group) {
  if (!group.inits.empty() && !group.transfers.empty()) {
    return Violation(Rule::kGroupMixedInit,
                     Text("a group that makes ", group.inits.front()->Name(), " and moves data"));
  }
  for (const auto& [communicator, transfers] : group.transfers) {
    if (communicator->blocking != group.transfers.front().first->blocking) {
      return Violation(Rule::kGroupMixedBlocking, Text("a group with ", communicator->Name()));
    }
    if (static_cast<int>(transfers.size()) > options().group_cap) {
      return Violation(Rule::kGroupCap, Text("a group of ", transfers.size(), " operations of ", communicator->Name(),
                                             "; at most ", options().group_cap));
    }
    int to_self = 0, from_self = 0;
    for (const Transfer& transfer : transfers) {
      if (transfer.peer == communicator->rank) ++(transfer.send ? to_self : from_self);
    }
    if (to_self != from_self) {
      return Violation(Rule::kSelfUnmatched, Text("a group with ", to_self, " sends and ", from_self, " receives of ",
                                                  communicator->Name(), " to itself"));
    }
  }
  return nccl::kSuccess;
}

// Puts the kernel into its first stream, after what the others hold and after earlier groups of the communicator; the
// other streams go on after it.
void Issue(const std::shared_ptr<Kernel>& kernel) {
  const CommRef& communicator = kernel->communicator();
  const std::vector<StreamRef> streams = kernel->streams();
  const StreamRef& first = streams.front();
  for (const StreamRef& other : streams) IssueWait(first, other, other->last(), communicator->aborted);
  if (communicator->last_stream != nullptr) {
    IssueWait(first, communicator->last_stream, communicator->last_number, communicator->aborted);
  }
  Operation operation{Text("group ", kernel->group, " of ", communicator->Name()),
                      [kernel] { kernel->Run(); },
                      {},
                      communicator->aborted};
  for (const Transfer& transfer : kernel->transfers()) {
    if (transfer.bytes == 0) continue;
    operation.uses.emplace_back(transfer.data, transfer.bytes, operation.what, communicator->aborted);
  }
  const uint64_t number = nccl_checker::Issue(first, std::move(operation));
  for (const StreamRef& other : streams) IssueWait(other, first, number, communicator->aborted);
  communicator->last_stream = first;
  communicator->last_number = number;
}

void LaunchAll(const std::vector<std::shared_ptr<Kernel>>& kernels) {
  for (const std::shared_ptr<Kernel>& kernel : kernels) {
    const CommRef& communicator = kernel->communicator();
    if (options().delay_fault)
      communicator->Sleep(Draw(Choice::kLaunchDelay, communicator->rank, kernel->group, communicator->number) % 31);
    if (*communicator->aborted) {
      communicator->EndGroup();
    } else {
      Issue(kernel);
    }
  }
}

// The kernels of a group that keeps the rules; kInProgress where they are on their way.
nccl::Result LaunchGroup(Group* group) {
  std::vector<std::shared_ptr<Kernel>> kernels;
  for (auto& [communicator, transfers] : group->transfers) {
    kernels.push_back(std::make_shared<Kernel>(communicator, std::move(transfers)));
  }
  if (kernels.empty()) return nccl::kSuccess;
  if (kernels.front()->communicator()->blocking) {
    for (const auto& kernel : kernels) kernel->group = kernel->communicator()->BeginGroup(nullptr, kernel->streams());
    LaunchAll(kernels);
    return nccl::kSuccess;
  }
  const auto launch = std::make_shared<Launch>();
  for (const auto& kernel : kernels) kernel->group = kernel->communicator()->BeginGroup(launch, kernel->streams());
  launch->thread = std::thread([launch = launch.get(), kernels] {
    LaunchAll(kernels);
    launch->done = true;
  });
  return nccl::kInProgress;
}

}  // namespace

nccl::Result StartGroup() {
  ++t_group.depth;
  return nccl::kSuccess;
}

nccl::Result InGroup(nccl::Result result) {
  if (t_group.depth > 0 && result != nccl::kSuccess && result != nccl::kInProgress && t_group.error == nccl::kSuccess) {
    t_group.error = result;
  }
  return result;
}

void AddTransfer(const CommRef& communicator, Transfer transfer) {
  auto& all = t_group.transfers;
  auto found = std::find_if(all.begin(), all.end(), [&](const auto& entry) { return entry.first == communicator; });
  if (found == all.end()) {
    all.emplace_back(communicator, std::vector<Transfer>{});
    found = all.end() - 1;
  }
  ++transfer.stream->grouped;
  found->second.push_back(std::move(transfer));
}

nccl::Result AddInit(const CommRef& communicator) {
  if (!communicator->blocking) {
    if (t_group.depth > 0) t_group.inits.push_back(communicator);
    return nccl::kInProgress;
  }
  if (t_group.depth == 0) return communicator->AwaitInit();
  t_group.inits.push_back(communicator);
  return nccl::kSuccess;
}

nccl::Result EndGroup() {
  if (t_group.depth == 0) return Violation(Rule::kGroupUnbalanced, "ncclGroupEnd outside of a group");
  if (--t_group.depth > 0) return nccl::kSuccess;
  Group group = std::exchange(t_group, Group{});
  for (const auto& [communicator, transfers] : group.transfers) {
    for (const Transfer& transfer : transfers) --transfer.stream->grouped;
  }
  bool in_progress = false;
  for (const CommRef& communicator : group.inits) {
    if (!communicator->blocking) {
      in_progress = true;
    } else if (const nccl::Result result = communicator->AwaitInit(); group.error == nccl::kSuccess) {
      group.error = result;
    }
  }
  if (group.error == nccl::kSuccess) group.error = CheckGroup(group);
  if (group.error != nccl::kSuccess) return group.error;
  const nccl::Result launched = LaunchGroup(&group);
  return launched == nccl::kSuccess && in_progress ? nccl::kInProgress : launched;
}

}  // namespace headrace::nccl_checker
