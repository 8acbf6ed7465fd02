#include "cli/demo/run.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/demo/cluster.h"
#include "cli/report.h"
#include "engine_adapters/safetensors/llama_config.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr uint64_t kGenerations = 2;
constexpr int64_t kRequestsOfEach = 3;  // at least, of every engine and generation
constexpr absl::Duration kPatience = absl::Minutes(5);

std::string EngineName(int engine) { return absl::StrCat("e", engine); }

// A folder for the oracle's job files, removed at the end.
class WorkFolder {
 public:
  static absl::StatusOr<std::unique_ptr<WorkFolder>> Make() {
    const char* base = getenv("TMPDIR");
    std::string path = absl::StrCat(base == nullptr || *base == '\0' ? "/tmp" : base, "/headrace-demo-XXXXXX");
    if (mkdtemp(path.data()) == nullptr) return Error(ErrorCode::kIo, absl::StrCat("cannot make a folder ", path));
    return std::unique_ptr<WorkFolder>(new WorkFolder(path));
  }
  ~WorkFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  absl::StatusOr<std::string> Write(const std::string& name, const DemoJson& document) const {
    const std::string path = path_ + "/" + name;
    std::ofstream file(path);
    file << document.dump();
    file.close();
    if (!file) return Error(ErrorCode::kIo, absl::StrCat("cannot write ", path, "; is the disk full?"));
    return path;
  }

 private:
  explicit WorkFolder(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

class ScenarioRun {
 public:
  ScenarioRun(const DemoCommand& command, Shadow shadow, Scenario scenario, std::unique_ptr<WorkFolder> folder)
      : command_(command),
        folder_(std::move(folder)),
        progress_(absl::StrCat("demo ", headrace::NameOf(scenario.kind)), !command.json) {
    report_.scenario = std::move(scenario);
    report_.shadow = shadow;
    for (int tp : report_.scenario.engines) engines_.emplace_back(tp, shadow == Shadow::kOff);
  }

  absl::StatusOr<DemoReport> Do() {
    absl::Status status = Steps();
    int64_t requests = 0, torn = 0;
    for (const Engine& e : engines_) {
      torn += e.torn();
      for (const auto& [generation, n] : e.requests()) requests += n;
    }
    if (torn > 0) {
      return Error(ErrorCode::kInternal,
                   absl::StrCat(torn, " requests, or steps in flight at a swap, used mixed or unknown weights",
                                status.ok() ? "" : absl::StrCat(". ", status.message())));
    }
    if (status.ok()) return std::move(report_);
    return ErrorFromName(CodeOf(status),
                         absl::StrCat(status.message(), ". Until then ", requests, " requests were served, 0 torn"));
  }

 private:
  absl::Status Steps() {
    const double begin = MonotonicSeconds();
    Say(0, "planning");
    HR_RETURN_IF_ERROR(PlanAll());
    Say(0.05, "asking the oracle what to expect");
    HR_RETURN_IF_ERROR(AskDigests());
    Say(0.15, "starting trainers and engines");
    HR_RETURN_IF_ERROR(StartAll());
    for (uint64_t g = 1; g <= kGenerations; ++g) {
      const double base = 0.3 + 0.35 * static_cast<double>(g - 1);
      Say(base, absl::StrCat("generation ", g, ": publishing"));
      HR_RETURN_IF_ERROR(Publish(g));
      Say(base + 0.2, absl::StrCat("generation ", g, ": checking every byte"));
      HR_RETURN_IF_ERROR(CheckBytes(g));
    }
    Say(0.98, "ending");
    HR_RETURN_IF_ERROR(Quit());
    for (size_t e = 0; e < engines_.size(); ++e) {
      report_.engines.push_back(
          {report_.scenario.engines[e], engines_[e].torn(), engines_[e].requests(), engines_[e].generations()});
    }
    report_.seconds = MonotonicSeconds() - begin;
    return absl::OkStatus();
  }

  struct WorkerProcess {
    size_t process;
    int engine, worker;
    bool ready = false;
    std::string file = {};
    DemoJson index = {};
  };

  void Say(double done, const std::string& step) { progress_.Update(done, step); }

  absl::Status PlanAll() {
    HR_ASSIGN_OR_RETURN(const Manifest manifest, WholeManifest(report_.scenario));
    HR_ASSIGN_OR_RETURN(const Plan plan, BuildPlan(manifest));
    report_.figures = Measure(manifest, plan);
    int workers = 0;
    for (int tp : report_.scenario.engines) workers += tp;
    report_.traffic.assign(report_.scenario.trainers, std::vector<Index>(workers, 0));
    for (const Copy& c : plan.copies) {
      report_.traffic[manifest.source[c.source].rank][manifest.destination[c.destination].rank] += c.bytes();
    }
    return absl::OkStatus();
  }

  // Runs the oracle; the cluster goes on meanwhile.
  absl::StatusOr<std::string> AskOracle(const std::string& verb, const DemoJson& job) {
    HR_ASSIGN_OR_RETURN(const std::string path, folder_->Write(verb + ".json", job));
    std::string end;
    HR_ASSIGN_OR_RETURN(std::string output, RunProgram(
                                                "the oracle", command_.python, {command_.oracle, verb, path},
                                                absl::Now() + kPatience, [&] { return PumpOnce(); }, &end));
    if (end.empty()) return output;
    return Error(ErrorCode::kInternal,
                 absl::StrCat("the oracle (", command_.python, " ", command_.oracle, " ", verb, ") ", end,
                              output.empty() ? "" : absl::StrCat(" and said: ", absl::StripAsciiWhitespace(output))));
  }

  DemoJson OracleJob() const {
    return {{"model", command_.model},
            {"scenario", headrace::NameOf(report_.scenario.kind)},
            {"vocab_rows", report_.scenario.engine_vocab_rows}};
  }

  absl::Status AskDigests() {
    DemoJson job = OracleJob();
    job["generations"] = {1, 2};
    job["workers"] = DemoJson::array();
    for (size_t e = 0; e < report_.scenario.engines.size(); ++e) {
      for (int w = 0; w < report_.scenario.engines[e]; ++w) {
        job["workers"].push_back(
            {{"engine", EngineName(static_cast<int>(e))}, {"tp", report_.scenario.engines[e]}, {"rank", w}});
      }
    }
    HR_ASSIGN_OR_RETURN(const std::string output, AskOracle("digest", job));
    for (absl::string_view line : absl::StrSplit(output, '\n', absl::SkipEmpty())) {
      const DemoJson d = DemoJson::parse(line, nullptr, false);
      if (d.is_discarded() || !d.contains("digest")) {
        return Error(ErrorCode::kInternal, absl::StrCat("the oracle answered \"", line, "\""));
      }
      digests_[{d["engine"], d["rank"]}].push_back({{"generation", d["generation"]}, {"digest", d["digest"]}});
    }
    return absl::OkStatus();
  }

  absl::Status StartAll() {
    DemoJson common = {{"model", command_.model},
                       {"scenario", headrace::NameOf(report_.scenario.kind)},
                       {"transport", command_.transport},
                       {"gpu", command_.gpu},
                       {"shadow", headrace::NameOf(report_.shadow)},
                       {"job", "demo"},
                       {"token", RandomToken()},
                       {"incarnation", RandomToken()},
                       {"coordinator", ""}};
    auto start_trainer = [&](int rank) -> absl::Status {
      DemoJson orders = common;
      orders["rank"] = rank;
      HR_ASSIGN_OR_RETURN(size_t process,
                          cluster_.Start(absl::StrCat("publisher rank ", rank), "demo-trainer", orders));
      trainers_.push_back(process);
      return absl::OkStatus();
    };
    HR_RETURN_IF_ERROR(start_trainer(0));
    HR_RETURN_IF_ERROR(Until("the coordinator's start", [&] { return !coordinator_.empty(); }));
    common["coordinator"] = coordinator_;
    for (int r = 1; r < report_.scenario.trainers; ++r) HR_RETURN_IF_ERROR(start_trainer(r));
    for (size_t e = 0; e < report_.scenario.engines.size(); ++e) {
      for (int w = 0; w < report_.scenario.engines[e]; ++w) {
        DemoJson orders = common;
        const int engine = static_cast<int>(e);
        orders["engine"] = engine;
        orders["worker"] = w;
        orders["digests"] = digests_[{EngineName(engine), w}];
        HR_ASSIGN_OR_RETURN(size_t process,
                            cluster_.Start(absl::StrCat("engine ", e, " worker ", w), "demo-worker", orders));
        workers_.push_back({process, engine, w});
      }
    }
    HR_RETURN_IF_ERROR(Until("the start of all ranks", [&] {
      return ready_trainers_ == trainers_.size() &&
             std::all_of(workers_.begin(), workers_.end(), [](const auto& w) { return w.ready; });
    }));
    serving_ = true;
    return Until("the first requests", [&] { return Served(0); });
  }

  // Every engine has served enough requests with the weights of this generation.
  bool Served(int64_t generation) const {
    return std::all_of(engines_.begin(), engines_.end(), [&](const Engine& e) {
      auto it = e.requests().find(generation);
      return it != e.requests().end() && it->second >= kRequestsOfEach;
    });
  }

  absl::Status Publish(uint64_t generation) {
    for (size_t trainer : trainers_) cluster_.Send(trainer, {{"publish", generation}});
    HR_RETURN_IF_ERROR(Until(absl::StrCat("the commit of generation ", generation), [&] {
      return published_[generation] == trainers_.size() && Served(static_cast<int64_t>(generation));
    }));
    PublishReport& p = report_.publishes[generation];
    double announced = 0;
    for (const Engine& e : engines_) {
      const double at = e.generations().at(generation).announced_at;
      announced = announced == 0 ? at : std::min(announced, at);
    }
    p.announce_seconds = std::max(0.0, announced - published_at_[generation]);
    return absl::OkStatus();
  }

  absl::Status CheckBytes(uint64_t generation) {
    DemoJson job = OracleJob();
    job["generation"] = generation;
    job["workers"] = DemoJson::array();
    for (const WorkerProcess& w : workers_) {
      HR_ASSIGN_OR_RETURN(const std::string index,
                          folder_->Write(absl::StrCat("index-", w.engine, "-", w.worker, ".json"), w.index));
      job["workers"].push_back({{"engine", EngineName(w.engine)},
                                {"tp", report_.scenario.engines[w.engine]},
                                {"rank", w.worker},
                                {"file", w.file},
                                {"index", index}});
    }
    HR_RETURN_IF_ERROR(AskOracle("check", job).status());
    for (const WorkerProcess& w : workers_) {
      for (const DemoJson& b : w.index["buffers"]) report_.checked_bytes += b["bytes"].get<int64_t>();
    }
    return absl::OkStatus();
  }

  absl::Status Quit() {
    for (Engine& e : engines_) e.Drain();
    HR_RETURN_IF_ERROR(Until("the end of the last requests", [&] {
      return std::all_of(engines_.begin(), engines_.end(), [](const Engine& e) { return e.idle(); });
    }));
    // Readers before writers, and the coordinator's process last.
    std::vector<size_t> workers;
    for (const WorkerProcess& w : workers_) workers.push_back(w.process);
    HR_RETURN_IF_ERROR(cluster_.Quit(workers, absl::Now() + kPatience));
    HR_RETURN_IF_ERROR(cluster_.Quit({trainers_.begin() + 1, trainers_.end()}, absl::Now() + kPatience));
    return cluster_.Quit({trainers_[0]}, absl::Now() + kPatience);
  }

  void OnEvent(size_t process, const DemoJson& event) {
    const std::string kind = event["event"];
    if (kind == "coordinator") coordinator_ = event["address"];
    for (WorkerProcess& w : workers_) {
      if (w.process != process) continue;
      if (kind == "ready") {
        w.ready = true;
        w.file = event["file"];
        w.index = event["index"];
      }
      if (event.contains("plan_seconds")) SeePlanSeconds(event["plan_seconds"]);
      if (event.contains("peak_staging_bytes")) SeeStaging(event["peak_staging_bytes"]);
      engines_[w.engine].OnEvent(w.worker, event);
      return;
    }
    if (kind == "ready") {
      ++ready_trainers_;
      SeePlanSeconds(event["plan_seconds"]);
    } else if (kind == "published") {
      const uint64_t g = event["generation"];
      ++published_[g];
      published_at_[g] = std::max<double>(published_at_[g], event["at"]);
      PublishReport& p = report_.publishes[g];
      p.snapshot_seconds = std::max<double>(p.snapshot_seconds, event["snapshot_seconds"]);
      p.stall_seconds = std::max<double>(p.stall_seconds, event["stall_seconds"]);
      SeeStaging(event["peak_staging_bytes"]);
    }
  }

  void SeePlanSeconds(double seconds) { report_.plan_seconds = std::max(report_.plan_seconds, seconds); }
  void SeeStaging(int64_t bytes) { report_.peak_staging_bytes = std::max(report_.peak_staging_bytes, bytes); }

  void Drive() {
    if (!serving_) return;
    for (size_t e = 0; e < engines_.size(); ++e) {
      for (const auto& [worker, order] : engines_[e].Next()) {
        for (const WorkerProcess& w : workers_) {
          if (w.engine == static_cast<int>(e) && w.worker == worker) cluster_.Send(w.process, order);
        }
      }
    }
  }

  absl::Status Until(const std::string& what, const std::function<bool()>& done) {
    return cluster_.RunUntil(
        what, absl::Now() + kPatience, [&](size_t p, const DemoJson& e) { OnEvent(p, e); }, [&] { Drive(); }, done);
  }

  // One turn of the event loop, for callers that wait for something else.
  absl::Status PumpOnce() {
    if (cluster_.size() == 0) return absl::OkStatus();
    int turns = 0;
    return Until("one turn", [&] { return ++turns > 1; });
  }

  const DemoCommand& command_;
  const std::unique_ptr<WorkFolder> folder_;
  ProgressBar progress_;
  DemoReport report_;
  std::map<std::pair<std::string, int>, DemoJson> digests_;
  Cluster cluster_;
  std::vector<size_t> trainers_;
  std::vector<WorkerProcess> workers_;
  std::vector<Engine> engines_;
  std::string coordinator_;
  bool serving_ = false;
  size_t ready_trainers_ = 0;
  std::map<uint64_t, size_t> published_;
  std::map<uint64_t, double> published_at_;
};

}  // namespace

absl::StatusOr<DemoReport> RunScenario(const DemoCommand& command, Shadow shadow, TrainerKind kind) {
  HR_ASSIGN_OR_RETURN(auto checkpoint, Checkpoint::Open(command.model));
  HR_ASSIGN_OR_RETURN(const LlamaConfig config, ReadLlamaConfig(*checkpoint));
  HR_ASSIGN_OR_RETURN(Scenario scenario, MakeScenario(kind, config));
  HR_ASSIGN_OR_RETURN(auto folder, WorkFolder::Make());
  return ScenarioRun(command, shadow, std::move(scenario), std::move(folder)).Do();
}

}  // namespace headrace
