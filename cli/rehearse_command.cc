#include "cli/rehearse_command.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <iostream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/pattern.h"
#include "cli/process.h"
#include "cli/rehearsal.h"
#include "cli/report.h"
#include "loader/control/coordinator_service.h"
#include "loader/transport/anonymous_memory.h"
#include "loader/transport/factory.h"
#include "loader/transport/memory/memory.h"
#include "planner/manifest_json.h"
#include "planner/plan.h"
#include "planner/status.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

// A member of the rehearsal: publisher `index`, or worker `index` of engine `engine`.
struct Role {
  bool publisher = false;
  int engine = 0;
  int index = 0;

  std::string Name() const {
    return publisher ? absl::StrCat("publisher rank ", index) : absl::StrCat("engine ", engine, " worker ", index);
  }
};

std::vector<Role> RolesOf(const Cast& cast) {
  std::vector<Role> roles;
  for (int p = 0; p < static_cast<int>(cast.publishers.size()); ++p) roles.push_back({true, 0, p});
  for (int e = 0; e < static_cast<int>(cast.engines.size()); ++e) {
    for (int w = 0; w < static_cast<int>(cast.engines[e].size()); ++w) roles.push_back({false, e, w});
  }
  return roles;
}

absl::StatusOr<ReceiverReport> RunRole(const Role& role, const Manifest& manifest, const JobOptions& job,
                                       std::unique_ptr<Transport> transport) {
  if (!role.publisher) return RehearseReceiver(manifest, role.engine, role.index, job, std::move(transport));
  HR_RETURN_IF_ERROR(RehearsePublisher(manifest, role.index, job, std::move(transport)));
  return ReceiverReport{};
}

// Collects what the ranks report; the first error that is not another rank's death is the cause.
class Results {
 public:
  Results(size_t ranks, bool progress) : ranks_(ranks) { progress_.emplace("rehearse", progress); }

  // All ranks have reported: takes the bar away.
  void EndProgress() { progress_.reset(); }

  void Add(const Role& role, absl::StatusOr<ReceiverReport> report) {
    std::lock_guard<std::mutex> lock(mutex_);
    ++reported_;
    progress_->Update(static_cast<double>(reported_) / static_cast<double>(ranks_),
                      absl::StrCat(reported_, " of ", ranks_, " ranks are done"));
    if (report.ok()) {
      stats_.copies += report->stats.copies;
      stats_.bytes += report->stats.bytes;
      stats_.transfer_seconds = std::max(stats_.transfer_seconds, report->stats.transfer_seconds);
      stats_.commit_seconds = std::max(stats_.commit_seconds, report->stats.commit_seconds);
      stats_.peak_staging_bytes = std::max(stats_.peak_staging_bytes, report->stats.peak_staging_bytes);
      for (DumpedBuffer& b : report->buffers) buffers_[{b.rank, b.buffer}] = std::move(b.bytes);
      return;
    }
    absl::Status named =
        ErrorFromName(CodeOf(report.status()), absl::StrCat(role.Name(), ": ", report.status().message()));
    const bool echo = HasCode(named, ErrorCode::kPeerLost) || HasCode(named, ErrorCode::kAborted);
    if (error_.ok() || (echo_ && !echo)) {
      error_ = named;
      echo_ = echo;
    }
  }

  const absl::Status& error() const { return error_; }
  const ReceiverStats& stats() const { return stats_; }
  const std::vector<std::byte>& Bytes(const Buffer& b) const { return buffers_.at({b.rank, b.name}); }

 private:
  const size_t ranks_;
  std::optional<ProgressBar> progress_;
  std::mutex mutex_;
  size_t reported_ = 0;
  absl::Status error_;
  bool echo_ = false;
  ReceiverStats stats_;
  std::map<std::pair<int64_t, std::string>, std::vector<std::byte>> buffers_;
};

void RunThreads(const Manifest& manifest, const std::vector<Role>& roles, const JobOptions& job, Results* results) {
  MemoryFabric fabric;
  std::vector<std::thread> threads;
  for (const Role& role : roles) {
    threads.emplace_back(
        [&, role,
         endpoint = std::shared_ptr<std::unique_ptr<Transport>>(new std::unique_ptr<Transport>(fabric.NewEndpoint()))] {
          results->Add(role, RunRole(role, manifest, job, std::move(*endpoint)));
        });
  }
  for (std::thread& t : threads) t.join();
}

Json ToJson(const absl::StatusOr<ReceiverReport>& report) {
  if (!report.ok()) {
    return {{"code", std::string(CodeOf(report.status()))}, {"message", std::string(report.status().message())}};
  }
  Json buffers = Json::array();
  for (const DumpedBuffer& b : report->buffers) {
    buffers.push_back({{"rank", b.rank},
                       {"buffer", b.buffer},
                       {"bytes", absl::Base64Escape({reinterpret_cast<const char*>(b.bytes.data()), b.bytes.size()})}});
  }
  const ReceiverStats& s = report->stats;
  return {{"copies", s.copies},
          {"bytes", s.bytes},
          {"transfer_seconds", s.transfer_seconds},
          {"commit_seconds", s.commit_seconds},
          {"peak_staging_bytes", s.peak_staging_bytes},
          {"buffers", std::move(buffers)}};
}

absl::StatusOr<ReceiverReport> FromJson(const Json& j) {
  if (j.contains("code")) return ErrorFromName(j["code"].get<std::string>(), j["message"].get<std::string>());
  ReceiverReport report;
  report.stats.copies = j["copies"];
  report.stats.bytes = j["bytes"];
  report.stats.transfer_seconds = j["transfer_seconds"];
  report.stats.commit_seconds = j["commit_seconds"];
  report.stats.peak_staging_bytes = j["peak_staging_bytes"];
  for (const Json& b : j["buffers"]) {
    std::string raw;
    absl::Base64Unescape(b["bytes"].get<std::string>(), &raw);
    const std::byte* first = reinterpret_cast<const std::byte*>(raw.data());
    report.buffers.push_back({b["rank"], b["buffer"], {first, first + raw.size()}});
  }
  return report;
}

absl::Status RunProcesses(const std::string& manifest_text, const std::string& transport,
                          const std::vector<Role>& roles, const JobOptions& job, Results* results) {
  std::vector<ChildProcess> children;
  for (const Role& role : roles) {
    HR_ASSIGN_OR_RETURN(ChildProcess child, ChildProcess::Start(role.Name(), "", {"rehearse-rank"}));
    const Json orders = {{"publisher", role.publisher},
                         {"engine", role.engine},
                         {"index", role.index},
                         {"transport", transport},
                         {"job", job.job},
                         {"token", job.token},
                         {"coordinator", job.coordinator},
                         {"manifest", manifest_text},
                         {"gpu", children.size()}};
    child.WriteLine(orders.dump());
    children.push_back(std::move(child));
  }
  std::vector<std::vector<std::string>> lines(children.size());
  std::vector<bool> open(children.size(), true);
  for (size_t left = children.size(); left > 0;) {
    std::vector<pollfd> fds;
    std::vector<size_t> index;
    for (size_t i = 0; i < children.size(); ++i) {
      if (!open[i]) continue;
      fds.push_back({children[i].output_fd(), POLLIN, 0});
      index.push_back(i);
    }
    poll(fds.data(), fds.size(), -1);
    for (size_t k = 0; k < fds.size(); ++k) {
      if (fds[k].revents == 0 || children[index[k]].ReadLines(&lines[index[k]])) continue;
      const size_t i = index[k];
      open[i] = false;
      --left;
      const std::string end = children[i].Wait();
      results->Add(roles[i], lines[i].empty()
                                 ? Error(ErrorCode::kInternal, absl::StrCat("the process ", end, " without a report"))
                                 : FromJson(Json::parse(lines[i].back())));
    }
  }
  return absl::OkStatus();
}

Json Dump(const Manifest& manifest, const Results& results) {
  Json destination = Json::array();
  for (const Buffer& b : manifest.destination) {
    std::vector<uint64_t> values;
    for (Index i = 0; i < SpanElements(b); ++i) values.push_back(ElementAt(b.dtype, results.Bytes(b), i));
    destination.push_back({{"rank", b.rank}, {"buffer", b.name}, {"values", std::move(values)}});
  }
  return destination;
}

absl::Status Rehearse(const RehearseCommand& command) {
  PlanOptions options;
  HR_ASSIGN_OR_RETURN(options.policy, ParsePolicy(command.policy));
  HR_ASSIGN_OR_RETURN(const std::string text, ReadFile(command.file));
  HR_ASSIGN_OR_RETURN(const Manifest manifest, ParseManifest(text));
  HR_ASSIGN_OR_RETURN(const Plan plan, BuildPlan(manifest, options));
  const int64_t bytes = RehearsalBytes(manifest);
  if (absl::Status fits = CheckMemoryAvailable(std::max<int64_t>(bytes, 1)); !fits.ok()) {
    return Error(ErrorCode::kOutOfMemory, absl::StrCat("the rehearsal needs about ", bytes, " bytes on this machine: ",
                                                       fits.message(), ". headrace plan needs no such memory"));
  }
  HR_RETURN_IF_ERROR(CheckSourcesAgree(manifest));
  const Cast cast = CastOf(manifest);
  const std::vector<Role> roles = RolesOf(cast);
  Results results(roles.size(), !command.json);
  if (!cast.engines.empty()) {
    CoordinatorOptions coordinator;
    coordinator.job = "rehearsal";
    coordinator.incarnation = RandomToken();
    coordinator.publishers = static_cast<int>(cast.publishers.size());
    for (const auto& workers : cast.engines) coordinator.workers.push_back(static_cast<int>(workers.size()));
    coordinator.policy = command.policy;
    ControlServerOptions server;
    server.token = RandomToken();
    HR_ASSIGN_OR_RETURN(auto service, CoordinatorService::Start(coordinator, server));
    JobOptions job;
    job.job = coordinator.job;
    job.token = server.token;
    job.coordinator = service->address();
    job.host = "localhost";
    if (command.transport == "memory") {
      RunThreads(manifest, roles, job, &results);
    } else {
      HR_RETURN_IF_ERROR(RunProcesses(text, command.transport, roles, job, &results));
    }
    HR_RETURN_IF_ERROR(results.error());
  }
  results.EndProgress();
  const PlanFigures f = Measure(manifest, plan);
  if (command.json) {
    Json document = {{"outcome", "ok"},
                     {"transport", command.transport},
                     {"policy", command.policy},
                     {"generations", kRehearsedGenerations},
                     {"copies", f.copies},
                     {"streams", f.streams},
                     {"needed_bytes", f.needed_bytes},
                     {"wire_bytes", results.stats().bytes},
                     {"transfer_seconds", results.stats().transfer_seconds},
                     {"commit_seconds", results.stats().commit_seconds}};
    if (command.dump) document["destination"] = Dump(manifest, results);
    PrintJson(document);
    return absl::OkStatus();
  }
  std::cout << "Every byte of every destination is right after each of " << kRehearsedGenerations << " generations.\n\n"
            << Table({{"ranks", absl::StrCat(cast.publishers.size(), " publishers, ", cast.engines.size(), " engines, ",
                                             roles.size() - cast.publishers.size(), " workers")},
                      {"transport", command.transport},
                      {"policy", command.policy},
                      {"copies", absl::StrCat(f.copies)},
                      {"streams", absl::StrCat(f.streams)},
                      {"needed", HumanBytes(f.needed_bytes)},
                      {"on the wire", HumanBytes(results.stats().bytes)},
                      {"transfer", HumanSeconds(results.stats().transfer_seconds)},
                      {"commit", HumanSeconds(results.stats().commit_seconds)}});
  if (command.dump) std::cout << "\n" << Dump(manifest, results).dump() << "\n";
  return absl::OkStatus();
}

}  // namespace

int Run(const RehearseCommand& command) {
  signal(SIGPIPE, SIG_IGN);  // a child that died is found by its output's end
  absl::Status status = Rehearse(command);
  return status.ok() ? kExitOk : ReportError(status, command.json);
}

int RunRehearsedRank() {
  std::string line;
  std::getline(std::cin, line);
  const Json orders = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (orders.is_discarded() || !orders.contains("manifest")) {
    std::cerr << "headrace: rehearse-rank is started by \"headrace rehearse\"\n";
    return kExitBadInput;
  }
  const Role role{orders["publisher"], orders["engine"], orders["index"]};
  JobOptions job;
  job.job = orders["job"];
  job.token = orders["token"];
  job.coordinator = orders["coordinator"];
  job.host = "localhost";
  auto run = [&]() -> absl::StatusOr<ReceiverReport> {
    HR_ASSIGN_OR_RETURN(const Manifest manifest, ParseManifest(orders["manifest"].get<std::string>()));
    TransportOptions transport_options;
    transport_options.gpu = orders["gpu"].get<int>();
    HR_ASSIGN_OR_RETURN(auto transport, NewTransport(orders["transport"].get<std::string>(), transport_options));
    return RunRole(role, manifest, job, std::move(transport));
  };
  const absl::StatusOr<ReceiverReport> report = run();
  PrintJson(ToJson(report));
  return report.ok() ? kExitOk : kExitFailed;
}

}  // namespace headrace
