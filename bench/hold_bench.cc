// What the paths out of private memory cost (`hold`): a publisher's process and a receiver's on one host, CPU-seconds
// of both, in turns. Prints one JSON document; bench/README.md lists the fields.
//
// By run length, which the constants of loader/hold_path.h come from, and for layouts of refit_model.h: everything
// read, everything packed, and each copy by the path that hold_path chooses.

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/refit_model.h"
#include "kernels/strided_copy.h"
#include "loader/edge_stream.h"
#include "loader/hold_path.h"
#include "loader/lowering.h"
#include "loader/pack_ring.h"
#include "loader/remote_copy.h"
#include "loader/transport/host/host.h"
#include "planner/status.h"

namespace headrace::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  int rounds = 7;
  Index layers = 2;
  int64_t runs_mib = 128;
  bool huge_pages = false;
};

absl::Time Soon() { return absl::Now() + absl::Minutes(2); }

double CpuSeconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

enum Method { kSpans, kRuns, kRead, kPack, kHold, kMethods };
constexpr const char* kMethodNames[] = {"read_spans", "read_runs", "read", "pack", "hold"};

// What moves: a plan's copies, and the memory of its buffers in one block for each side.
struct Job {
  Plan plan;
  std::vector<int64_t> source, destination;  // where each buffer begins
  int64_t source_bytes = 0, destination_bytes = 0;
  Manifest manifest;  // of a refit; empty otherwise
  bool huge_pages = false;

  HoldSplit Split(Method method) const {
    HoldCosts costs;
    // The forms alone, to compare.
    if (method == kSpans) costs = {.read_byte_ns = 0, .read_range_ns = 0, .read_call_ns = 0};
    if (method == kRuns) costs = {.read_byte_ns = 1, .read_range_ns = -1e6, .read_call_ns = 0};
    return SplitForHold(plan, {0, 0, 0, plan.copies.size()}, {method != kPack, method == kPack || method == kHold},
                        costs);
  }
};

int64_t Place(int64_t bytes, int64_t* total) {
  const int64_t at = *total;
  *total += (bytes + 63) / 64 * 64;
  return at;
}

// Copies of `run` bytes out of rows `pitch` apart, into a dense destination.
Job RunsJob(int64_t run, int64_t pitch, int64_t payload) {
  Job job;
  const int64_t box = int64_t{1} << 20, count = std::max<int64_t>(1, box / run);
  for (int64_t at = 0; at < payload; at += count * run) {
    Copy c;
    c.run_bytes = run;
    c.source_offset = at / run * pitch;
    c.destination_offset = c.position = at;
    if (count > 1) c.loops = {{count, pitch, run, run}};
    job.plan.copies.push_back(c);
  }
  job.source = {Place(static_cast<int64_t>(job.plan.copies.size()) * count * pitch, &job.source_bytes)};
  job.destination = {Place(static_cast<int64_t>(job.plan.copies.size()) * count * run, &job.destination_bytes)};
  return job;
}

absl::StatusOr<Job> RefitJob(const RefitModel& model) {
  Job job;
  HR_ASSIGN_OR_RETURN(job.manifest, RefitManifest(model));
  HR_ASSIGN_OR_RETURN(job.plan, BuildPlan(job.manifest));
  for (const Buffer& b : job.manifest.source) job.source.push_back(Place(SpanBytes(b, b.dtype), &job.source_bytes));
  for (const Buffer& b : job.manifest.destination) {
    job.destination.push_back(Place(SpanBytes(b, b.dtype), &job.destination_bytes));
  }
  return job;
}

// Zeros.
std::byte* Touched(int64_t bytes, bool huge_pages) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  madvise(data, bytes, huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  std::memset(data, 0, bytes);
  return static_cast<std::byte*>(data);
}

// Packets between the two processes; the end of the other one ends this one.
template <typename T>
void Tell(int socket, const T& value) {
  if (send(socket, &value, sizeof value, MSG_NOSIGNAL) != sizeof value) _exit(1);
}
template <typename T>
T Hear(int socket) {
  T value;
  if (recv(socket, &value, sizeof value, MSG_WAITALL) != sizeof value) _exit(1);
  return value;
}
using Text = std::array<char, 128>;
Text AsText(const std::string& s) {
  Text text{};
  text[0] = static_cast<char>(s.size());
  std::copy(s.begin(), s.end(), text.begin() + 1);
  return text;
}
std::string AsString(const Text& text) { return std::string(text.data() + 1, static_cast<unsigned char>(text[0])); }

struct Order {
  int method;
  uint64_t tag;
  int check;
};
struct Answer {
  double cpu;
  uint64_t sum;
  int64_t wrong;
};

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << "hold_bench: " << status << "\n";
  _exit(1);
}
template <typename T>
T Must(absl::StatusOr<T> value) {
  Must(value.status());
  return *std::move(value);
}

void Receive(int socket, const Job& job) {
  auto endpoint = Must(NewHostTransport());
  const PeerId peer = Must(endpoint->Connect(AsString(Hear<Text>(socket)), Soon()));
  Must(endpoint->CheckRead(peer));
  auto remote = Must(endpoint->OpenRemote(peer, AsString(Hear<Text>(socket)), Soon()));
  const PackRingOptions options;
  auto ring = Must(PackRingReader::Create(endpoint.get(), peer, AsString(Hear<Text>(socket)), options, Soon()));
  Tell(socket, AsText(endpoint->address()));
  Tell(socket, AsText(ring->key()));
  std::byte* memory = Touched(job.destination_bytes, job.huge_pages);
  RemoteCopier copier;
  std::vector<HoldSplit> splits;
  for (int m = 0; m < kMethods; ++m) splits.push_back(job.Split(static_cast<Method>(m)));
  while (true) {
    const auto order = Hear<Order>(socket);
    if (order.check != 0) std::memset(memory, 0, job.destination_bytes);
    const HoldSplit& split = splits[order.method];
    const EdgeStream stream(split.packed, split.packed.edges[0], options.slot_bytes);
    std::vector<uint64_t> wanted(split.packed.copies.size()), got(split.packed.copies.size());
    Answer answer{};
    const double begin = CpuSeconds();
    for (const HoldSplit::Read& read : split.reads) {
      const Copy& copy = job.plan.copies[read.copy];
      answer.sum += Must(copier.Run(copy, read.form, *remote, job.source[copy.source],
                                    memory + job.destination[copy.destination], Soon()));
    }
    for (int64_t message = 0; message < stream.messages(); ++message) {
      const auto slot = Must(ring->Next(order.tag, {Soon(), nullptr}));
      if (static_cast<int64_t>(slot.size()) != stream.message_bytes(message)) _exit(1);
      stream.Unpack(
          message, slot, [&](int buffer) { return memory + job.destination[buffer]; }, absl::MakeSpan(wanted),
          absl::MakeSpan(got));
      ring->Release();
    }
    for (uint64_t sum : got) answer.sum += sum;
    answer.cpu = CpuSeconds() - begin;
    if (order.check != 0) {
      for (size_t i = 0; i < job.manifest.destination.size(); ++i) {
        answer.wrong += CheckRefit(job.manifest, job.manifest.destination[i], 1, memory + job.destination[i]);
      }
    }
    Tell(socket, answer);
  }
}

// Medians of the CPU-seconds of each method.
absl::StatusOr<std::vector<double>> Measure(const Job& job, const Options& options) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return Error(ErrorCode::kIo, "socketpair");
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[0]);
    Receive(ends[1], job);
  }
  close(ends[1]);
  const int socket = ends[0];
  std::byte* memory = Touched(job.source_bytes, job.huge_pages);
  if (job.manifest.source.empty()) {
    for (int64_t i = 0; i < job.source_bytes; i += 8) {
      const uint64_t word = RefitWord(0, i / 8, 1);
      std::memcpy(memory + i, &word, 8);
    }
  }
  for (size_t i = 0; i < job.manifest.source.size(); ++i) {
    FillRefit(job.manifest, job.manifest.source[i], 1, memory + job.source[i]);
  }
  uint64_t sum = 0;
  for (const Copy& c : job.plan.copies) sum += kernels::Sum(Lower(c, memory + job.source[c.source], nullptr));
  auto endpoint = Must(NewHostTransport());
  auto registration = Must(endpoint->Register({memory, static_cast<size_t>(job.source_bytes)}));
  const PackRingOptions ring_options;
  auto ring = Must(PackRingWriter::Create(endpoint.get(), ring_options));
  for (const std::string& text : {endpoint->address(), registration->key(), ring->key()}) Tell(socket, AsText(text));
  const PeerId peer = Must(endpoint->Connect(AsString(Hear<Text>(socket)), Soon()));
  Must(ring->Connect(endpoint.get(), peer, AsString(Hear<Text>(socket)), Soon()));

  std::vector<std::vector<double>> samples(kMethods);
  uint64_t tag = 0;
  absl::Status status;
  for (int round = 0; round <= options.rounds && status.ok(); ++round) {
    for (int turn = 0; turn < kMethods && status.ok(); ++turn) {
      const int method = (round + turn) % kMethods;
      const HoldSplit split = job.Split(static_cast<Method>(method));
      const EdgeStream stream(split.packed, split.packed.edges[0], ring_options.slot_bytes);
      const std::vector<std::byte> sums(split.packed.copies.size() * 8);
      const double begin = CpuSeconds();
      Tell(socket, Order{method, ++tag, round == 0 || round == options.rounds});
      for (int64_t message = 0; message < stream.messages(); ++message) {
        const auto slot = Must(ring->Acquire({Soon(), nullptr}));
        const int64_t bytes = stream.message_bytes(message);
        stream.Pack(
            message, sums, [&](const Copy& copy) { return memory + job.source[copy.source]; }, slot.subspan(0, bytes));
        ring->Publish(tag, bytes);
      }
      const auto answer = Hear<Answer>(socket);
      if (round > 0) samples[method].push_back(CpuSeconds() - begin + answer.cpu);
      if (answer.sum != sum || answer.wrong != 0) {
        status = Error(ErrorCode::kInternal, absl::StrCat(kMethodNames[method], ": ", answer.wrong,
                                                          " words are wrong, the sum differs by ", answer.sum - sum));
      }
    }
  }
  close(socket);
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  registration.reset();
  munmap(memory, job.source_bytes);
  HR_RETURN_IF_ERROR(status);
  std::vector<double> medians;
  for (auto& sample : samples) medians.push_back(Median(std::move(sample)));
  return medians;
}

absl::StatusOr<Json> Report(const Job& job, const Options& options) {
  HR_ASSIGN_OR_RETURN(const std::vector<double> seconds, Measure(job, options));
  int64_t bytes = 0, packed = 0, runs = 0;
  for (const Copy& c : job.plan.copies) bytes += c.bytes();
  const HoldSplit split = job.Split(kHold);
  for (const Copy& c : split.packed.copies) packed += c.bytes();
  for (const HoldSplit::Read& read : split.reads) {
    if (read.form == ReadForm::kRuns) runs += job.plan.copies[read.copy].bytes();
  }
  Json medians;
  for (int m = 0; m < kMethods; ++m) medians[kMethodNames[m]] = seconds[m];
  const double read = std::min({seconds[kSpans], seconds[kRuns], seconds[kRead]});
  return Json{{"copies", job.plan.copies.size()},
              {"bytes", bytes},
              {"chosen", {{"read_spans", bytes - packed - runs}, {"read_runs", runs}, {"pack", packed}}},
              {"cpu_seconds", medians},
              {"hold_gb_per_cpu_second", static_cast<double>(bytes) / seconds[kHold] * 1e-9},
              {"hold_over_best", seconds[kHold] / std::min(read, seconds[kPack])}};
}

absl::StatusOr<Json> Run(const Options& options) {
  const int64_t payload = options.runs_mib << 20;
  Json document{{"format", 1}, {"rounds", options.rounds}, {"huge_pages", options.huge_pages}};
  document["cores"] = sysconf(_SC_NPROCESSORS_ONLN);
  double worst = 0;
  for (const auto& [trainers, workers] : {std::pair<Index, Index>{4, 2}, {4, 4}, {8, 8}}) {
    RefitModel model;
    model.layers = options.layers;
    model.trainers = trainers;
    model.workers = workers;
    model.kv_heads = std::max(model.kv_heads, workers);
    HR_ASSIGN_OR_RETURN(Job job, RefitJob(model));
    job.huge_pages = options.huge_pages;
    HR_ASSIGN_OR_RETURN(Json report, Report(job, options));
    worst = std::max(worst, report["hold_over_best"].get<double>());
    Json layout{{"trainers", trainers}, {"workers", workers}};
    layout.update(report);
    document["layouts"].push_back(std::move(layout));
  }
  for (const int64_t every : {1, 2, 8}) {
    for (int64_t run = 64; run <= 64 << 10; run *= 4) {
      if (payload == 0 || (every == 1 && run > 64)) continue;
      const int64_t pitch = every == 1 ? 1 << 20 : run * every;
      Job job = RunsJob(every == 1 ? 1 << 20 : run, pitch, payload / every);
      job.huge_pages = options.huge_pages;
      HR_ASSIGN_OR_RETURN(Json report, Report(job, options));
      Json runs{{"run_bytes", every == 1 ? 1 << 20 : run}, {"pitch_bytes", pitch}};
      runs.update(report);
      document["runs"].push_back(std::move(runs));
    }
  }
  document["worst_hold_over_best"] = worst;
  document["target"] = 1.15;
  document["met"] = worst <= 1.15;
  return document;
}

}  // namespace
}  // namespace headrace::bench

int main(int argc, char** argv) {
  headrace::bench::Options options;
  CLI::App app("CPU-seconds of the paths out of private memory that a publisher holds.");
  app.add_option("--rounds", options.rounds)->check(CLI::Range(1, 100))->capture_default_str();
  app.add_option("--layers", options.layers, "of the refit's model; 8 are about 2 GiB")->capture_default_str();
  app.add_option("--runs", options.runs_mib, "MiB of source for each run length; 0 leaves them out")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  app.add_flag("--huge-pages", options.huge_pages, "under the weights of both processes (madvise)");
  CLI11_PARSE(app, argc, argv);
  const auto document = headrace::bench::Run(options);
  if (!document.ok()) {
    std::cerr << "hold_bench: " << document.status().message() << "\n";
    return 1;
  }
  std::cout << document->dump(2) << "\n";
}
