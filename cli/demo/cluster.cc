#include "cli/demo/cluster.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "planner/status.h"

namespace headrace {
namespace {

// How long survivors of a death may take to end on their own. Ranks that were still joining a job which the dead one
// never joined do not hear of its death; the launcher stops them then.
constexpr absl::Duration kAftermath = absl::Seconds(6);

}  // namespace

absl::StatusOr<size_t> Cluster::Start(const std::string& name, const std::string& command, const DemoJson& orders) {
  HR_ASSIGN_OR_RETURN(ChildProcess child, ChildProcess::Start(name, "", {command}));
  child.WriteLine(orders.dump());
  processes_.push_back({std::move(child)});
  return processes_.size() - 1;
}

bool Cluster::Round(absl::Duration wait, const OnEvent& on_event) {
  std::vector<pollfd> fds;
  std::vector<size_t> index;
  for (size_t i = 0; i < processes_.size(); ++i) {
    if (!processes_[i].open) continue;
    fds.push_back({processes_[i].child.output_fd(), POLLIN, 0});
    index.push_back(i);
  }
  poll(fds.data(), fds.size(), static_cast<int>(absl::ToInt64Milliseconds(wait)));
  bool healthy = true;
  for (size_t k = 0; k < fds.size(); ++k) {
    if (fds[k].revents == 0) continue;
    Process& p = processes_[index[k]];
    std::vector<std::string> lines;
    if (!p.child.ReadLines(&lines)) {
      p.open = false;
      p.end = p.child.Wait();
      p.ended_at = MonotonicSeconds();
      healthy = healthy && p.quitting && p.end.empty();
    }
    for (const std::string& line : lines) {
      const DemoJson event = DemoJson::parse(line, nullptr, /*allow_exceptions=*/false);
      if (event.is_discarded() || !event.contains("event")) continue;
      if (event["event"] == "error") {
        p.error = ErrorFromName(event["code"].get<std::string>(), event["message"].get<std::string>());
        healthy = false;
      } else {
        on_event(index[k], event);
      }
    }
  }
  return healthy;
}

absl::Status Cluster::RunUntil(const std::string& what, absl::Time deadline, const OnEvent& on_event,
                               const std::function<void()>& pump, const std::function<bool()>& done) {
  while (true) {
    pump();
    if (done()) return absl::OkStatus();
    if (absl::Now() > deadline) return Error(ErrorCode::kDeadline, absl::StrCat(what, " did not happen in time"));
    if (!Round(absl::Milliseconds(5), on_event)) return Aftermath();
  }
}

absl::Status Cluster::Quit(const std::vector<size_t>& processes, absl::Time deadline) {
  for (size_t i : processes) {
    processes_[i].quitting = true;
    Send(i, {{"quit", true}});
  }
  const auto ended = [&] {
    return std::all_of(processes.begin(), processes.end(), [&](size_t i) { return !processes_[i].open; });
  };
  return RunUntil(
      "the end of the ranks", deadline, [](size_t, const DemoJson&) {}, [] {}, ended);
}

absl::Status Cluster::Aftermath() {
  const double begin = MonotonicSeconds();
  const absl::Time deadline = absl::Now() + kAftermath;
  auto running = [&] {
    size_t n = 0;
    for (const Process& p : processes_) n += p.open;
    return n;
  };
  while (running() > 0 && absl::Now() < deadline) {
    Round(absl::Milliseconds(20), [](size_t, const DemoJson&) {});
  }
  const size_t stuck = running();
  for (Process& p : processes_) {
    if (p.open) p.child.Kill();
  }
  const Process* dead = nullptr;      // killed from outside
  const Process* cause = nullptr;     // reported an error that is its own
  const Process* survivor = nullptr;  // reported another one's death
  for (const Process& p : processes_) {
    const bool echo = HasCode(p.error, ErrorCode::kPeerLost) || HasCode(p.error, ErrorCode::kAborted);
    if (!p.open && p.error.ok() && !p.end.empty() && dead == nullptr) dead = &p;
    if (!p.error.ok() && !echo && cause == nullptr) cause = &p;
    if (!p.error.ok() && echo && survivor == nullptr) survivor = &p;
  }
  const std::string after =
      stuck == 0 ? absl::StrFormat("; the others ended %.1f s later", MonotonicSeconds() - begin)
                 : absl::StrCat("; ", stuck, " others were stopped after ", absl::FormatDuration(kAftermath));
  if (dead != nullptr) {
    return Error(ErrorCode::kPeerLost,
                 absl::StrCat(dead->child.name(), " (pid ", dead->child.pid(), ") ", dead->end, after,
                              survivor == nullptr
                                  ? ""
                                  : absl::StrCat(". ", survivor->child.name(), " said: ", survivor->error.message())));
  }
  if (cause == nullptr) cause = survivor;
  if (cause == nullptr) return Error(ErrorCode::kPeerLost, absl::StrCat("a process ended before its time", after));
  return ErrorFromName(CodeOf(cause->error), absl::StrCat(cause->child.name(), ": ", cause->error.message(), after));
}

absl::StatusOr<std::string> RunProgram(const std::string& name, const std::string& program,
                                       const std::vector<std::string>& arguments, absl::Time deadline,
                                       const std::function<absl::Status()>& pump, std::string* end) {
  HR_ASSIGN_OR_RETURN(ChildProcess child, ChildProcess::Start(name, program, arguments));
  std::string output;
  while (true) {
    HR_RETURN_IF_ERROR(pump());
    if (absl::Now() > deadline) return Error(ErrorCode::kDeadline, absl::StrCat(name, " did not end in time"));
    pollfd fd = {child.output_fd(), POLLIN, 0};
    if (poll(&fd, 1, 5) <= 0) continue;
    std::vector<std::string> lines;
    const bool more = child.ReadLines(&lines);
    for (const std::string& line : lines) absl::StrAppend(&output, line, "\n");
    if (more) continue;
    *end = child.Wait();
    return output;
  }
}

}  // namespace headrace
