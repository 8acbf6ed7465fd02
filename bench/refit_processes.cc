#include "bench/refit_processes.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/one_copy_floor.h"
#include "bench/refit_model.h"
#include "loader/publisher.h"
#include "loader/receiver.h"
#include "loader/transport/factory.h"
#include "planner/status.h"

namespace headrace::bench {
namespace {

constexpr size_t kMaxPacket = 64 << 10;
constexpr absl::Duration kPatience = absl::Minutes(2);

double Seconds(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// The buffers of one rank, each on a cache line, in private memory that was touched. Lives as long as the process.
class RankMemory {
 public:
  static absl::StatusOr<RankMemory> Allocate(const std::vector<Buffer>& buffers, int64_t rank) {
    RankMemory memory;
    std::map<int, size_t> offsets;
    size_t bytes = 0;
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (buffers[i].rank != rank) continue;
      offsets[static_cast<int>(i)] = bytes;
      bytes += (static_cast<size_t>(SpanBytes(buffers[i], buffers[i].dtype)) + 63) / 64 * 64;
    }
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (data == MAP_FAILED) {
      return Error(ErrorCode::kOutOfMemory, absl::StrCat("the rank's buffers need ", bytes, " bytes"));
    }
    memory.bytes_ = {static_cast<std::byte*>(data), bytes};
    for (const auto& [i, offset] : offsets) memory.first_[i] = memory.bytes_.data() + offset;
    return memory;
  }

  // The first element of each of the rank's buffers, by its index in the manifest's list.
  const std::map<int, std::byte*>& first() const { return first_; }
  void Clear() const { std::memset(bytes_.data(), 0, bytes_.size()); }

 private:
  absl::Span<std::byte> bytes_;
  std::map<int, std::byte*> first_;
};

// The engine of a destination rank, and which of its workers the rank is.
std::pair<int, int> EngineAndWorker(const Topology& topology, int rank) {
  std::map<std::string, std::pair<int, int>> engines;  // their numbers, and how many workers so far
  for (const Placement& p : topology.destination) {
    const auto engine = engines.emplace(p.engine, std::pair(static_cast<int>(engines.size()), 0)).first;
    if (p.rank == rank) return engine->second;
    ++engine->second.second;
  }
  return {0, rank};
}

JobOptions JobOf(const Json& order) {
  JobOptions job;
  job.job = "refit_bench";
  job.token = order["token"];
  job.coordinator = order["coordinator"];
  job.host = "localhost";
  job.timeouts = PatientTimeouts();
  return job;
}

class RankProcess {
 public:
  virtual ~RankProcess() = default;
  virtual absl::StatusOr<Json> Do(const std::string& what, const Json& order) = 0;
};

class PublisherProcess final : public RankProcess {
 public:
  PublisherProcess(const Manifest& manifest, int rank, std::string transport, RankMemory memory)
      : manifest_(manifest), rank_(rank), transport_(std::move(transport)), memory_(std::move(memory)) {}

  absl::StatusOr<Json> Do(const std::string& what, const Json& order) override {
    if (what == "join") return Join(order);
    if (what == "fill") {
      for (const auto& [i, first] : memory_.first()) {
        FillRefit(manifest_, manifest_.source[i], order["generation"], first);
      }
      return Json::object();
    }
    if (what == "refit") {
      const uint64_t generation = order["generation"];
      const double begun = MonotonicSeconds(), begin = ProcessCpuSeconds(), copying = ThreadCpuSeconds();
      HR_RETURN_IF_ERROR(publisher_->Publish(generation, absl::Now() + kPatience));
      const double copied = ThreadCpuSeconds(), published = MonotonicSeconds();
      HR_RETURN_IF_ERROR(publisher_->AwaitCommit(generation, absl::Now() + kPatience));
      return Json{{"cpu", ProcessCpuSeconds() - begin},
                  {"snapshot", copied - copying},
                  {"at", {begun, published, MonotonicSeconds()}}};
    }
    if (what == "close") {
      const PublisherStats stats = publisher_->stats();
      HR_RETURN_IF_ERROR(publisher_->Close(absl::Now() + kPatience));
      return Json{{"slot_bytes", stats.snapshot_bytes}, {"peak_staging_bytes", stats.peak_staging_bytes}};
    }
    return Error(ErrorCode::kInvalidOption, absl::StrCat("publishers do not ", what));
  }

 private:
  absl::StatusOr<Json> Join(const Json& order) {
    PublisherOptions options;
    options.job = JobOf(order);
    options.rank = rank_;
    Manifest part;
    part.tensors = manifest_.tensors;
    part.topology.source = {Placement{rank_, "", "", ""}};
    std::map<std::string, const std::byte*> memory;
    for (const auto& [i, first] : memory_.first()) {
      part.source.push_back(manifest_.source[i]);
      memory[manifest_.source[i].name] = first;
    }
    HR_ASSIGN_OR_RETURN(auto transport, NewTransport(transport_));
    HR_ASSIGN_OR_RETURN(publisher_, Publisher::Join(options, part, std::move(memory), std::move(transport)));
    return Json::object();
  }

  const Manifest& manifest_;
  const int rank_;
  const std::string transport_;
  const RankMemory memory_;
  std::unique_ptr<Publisher> publisher_;
};

class ReceiverProcess final : public RankProcess {
 public:
  ReceiverProcess(const Manifest& manifest, const Plan& plan, int rank, RefitOptions options, RankMemory memory)
      : manifest_(manifest), plan_(plan), rank_(rank), options_(std::move(options)), memory_(std::move(memory)) {}

  absl::StatusOr<Json> Do(const std::string& what, const Json& order) override {
    if (what == "join") return Join(order);
    if (what == "refit") return Refit(order["generation"]);
    if (what == "floor" && order["how"] == "whole") {
      // Touched before it is measured, as everything is.
      if (whole_.empty()) whole_.resize(static_cast<size_t>(floor_->bytes_of_slots()), std::byte{1});
      const double begin = ThreadCpuSeconds();
      HR_RETURN_IF_ERROR(floor_->RunWhole(order["generation"], absl::MakeSpan(whole_)));
      return Json{{"cpu", ThreadCpuSeconds() - begin}};
    }
    if (what == "floor") {
      const double begin = ThreadCpuSeconds();
      HR_RETURN_IF_ERROR(floor_->Run(
          order["generation"], order["how"] == "memcpy" ? FloorCopy::kMemcpy : FloorCopy::kKernel, memory_.first()));
      return Json{{"cpu", ThreadCpuSeconds() - begin}};
    }
    if (what == "clear") {
      memory_.Clear();
      return Json::object();
    }
    if (what == "check") {
      int64_t wrong = 0;
      for (const auto& [i, first] : memory_.first()) {
        wrong += CheckRefit(manifest_, manifest_.destination[i], order["generation"], first);
      }
      return Json{{"wrong", wrong}};
    }
    if (what == "close") {
      const ReceiverStats stats = receiver_->stats();
      HR_RETURN_IF_ERROR(receiver_->Close(absl::Now() + kPatience));
      return Json{{"copies", stats.copies},
                  {"bytes", stats.bytes},
                  {"shadow_bytes", stats.shadow_bytes},
                  {"peak_staging_bytes", stats.peak_staging_bytes}};
    }
    return Error(ErrorCode::kInvalidOption, absl::StrCat("receivers do not ", what));
  }

 private:
  absl::StatusOr<Json> Join(const Json& order) {
    ReceiverOptions options;
    options.job = JobOf(order);
    std::tie(options.engine, options.worker) = EngineAndWorker(manifest_.topology, rank_);
    options.shadow = options_.shadow ? Shadow::kHost : Shadow::kOff;
    Manifest part;
    part.topology.destination = {Placement{rank_, "", "", ""}};
    for (const auto& [i, first] : memory_.first()) {
      const Buffer& b = manifest_.destination[i];
      part.destination.push_back(b);
      live_[b.name] = {first, b.shape, b.strides};
    }
    HR_ASSIGN_OR_RETURN(auto transport, NewTransport(options_.transport));
    HR_ASSIGN_OR_RETURN(receiver_, Receiver::Join(options, part, live_, KeepMappings(std::move(transport), &regions_)));
    floor_.emplace(manifest_, plan_, rank_, regions_);
    return Json::object();
  }

  absl::StatusOr<Json> Refit(uint64_t generation) {
    const double begin = ProcessCpuSeconds();
    HR_ASSIGN_OR_RETURN(const uint64_t next, receiver_->NextGeneration(absl::Now() + kPatience));
    if (next != generation) return Error(ErrorCode::kInternal, absl::StrCat("generation ", next, " was announced"));
    const double staging = ThreadCpuSeconds(), announced = MonotonicSeconds();
    HR_RETURN_IF_ERROR(receiver_->Stage(generation, live_));
    const double committing = ThreadCpuSeconds(), staged = MonotonicSeconds();
    HR_RETURN_IF_ERROR(receiver_->Commit(generation));
    const double end = ThreadCpuSeconds();
    // Stamps and sums are compared without waiting, so that the wall time of it is CPU time.
    const double verify = receiver_->stats().verify_seconds;
    return Json{{"cpu", ProcessCpuSeconds() - begin},
                {"transfer", committing - staging - verify},
                {"verify", verify},
                {"commit", end - committing},
                {"at", {announced, staged, MonotonicSeconds()}}};
  }

  const Manifest& manifest_;
  const Plan& plan_;
  const int rank_;
  const RefitOptions options_;
  const RankMemory memory_;
  std::map<std::string, BufferMemory> live_;
  MappedRegions regions_;  // before the receiver, whose transport refers to it
  std::unique_ptr<Receiver> receiver_;
  std::optional<OneCopyFloor> floor_;
  std::vector<std::byte> whole_;  // where RunWhole copies to
};

absl::StatusOr<std::unique_ptr<RankProcess>> NewRank(const Manifest& manifest, const Plan& plan, bool publisher,
                                                     int rank, const RefitOptions& options) {
  HR_ASSIGN_OR_RETURN(RankMemory memory,
                      RankMemory::Allocate(publisher ? manifest.source : manifest.destination, rank));
  if (publisher) return std::make_unique<PublisherProcess>(manifest, rank, options.transport, std::move(memory));
  return std::make_unique<ReceiverProcess>(manifest, plan, rank, options, std::move(memory));
}

bool SendJson(int socket, const Json& json) {
  const std::string text = json.dump();
  return send(socket, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

std::optional<Json> ReceiveJson(int socket) {
  std::string text(kMaxPacket, '\0');
  ssize_t size;
  do {
    size = recv(socket, text.data(), text.size(), 0);
  } while (size < 0 && errno == EINTR);
  if (size <= 0) return std::nullopt;
  text.resize(static_cast<size_t>(size));
  return Json::parse(text);
}

// The life of a rank's process.
void Serve(int socket, const Manifest& manifest, const Plan& plan, bool publisher, int rank,
           const RefitOptions& options) {
  auto process = NewRank(manifest, plan, publisher, rank, options);
  while (std::optional<Json> order = ReceiveJson(socket)) {
    const std::string what = (*order)["do"];
    const absl::StatusOr<Json> answer = process.ok() ? (*process)->Do(what, *order) : process.status();
    SendJson(socket, answer.ok() ? *answer : Json{{"error", std::string(answer.status().message())}});
    if (!answer.ok() || what == "close") return;
  }
}

}  // namespace

SessionTimeouts PatientTimeouts() {
  SessionTimeouts timeouts;
  for (int64_t* ns : {&timeouts.heartbeat_timeout_ns, &timeouts.join_ns, &timeouts.plan_ns, &timeouts.decision_ns}) {
    *ns = absl::ToInt64Nanoseconds(kPatience);
  }
  return timeouts;
}

double ProcessCpuSeconds() { return Seconds(CLOCK_PROCESS_CPUTIME_ID); }
double ThreadCpuSeconds() { return Seconds(CLOCK_THREAD_CPUTIME_ID); }
double MonotonicSeconds() { return Seconds(CLOCK_MONOTONIC); }

absl::StatusOr<RefitProcesses> RefitProcesses::Fork(const Manifest& manifest, const Plan& plan,
                                                    const RefitOptions& options) {
  RefitProcesses processes;
  const pid_t parent = getpid();
  auto start = [&](bool publisher, int rank) -> absl::Status {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
      return Error(ErrorCode::kIo, absl::StrCat("socketpair: ", std::strerror(errno)));
    }
    const pid_t pid = fork();
    if (pid < 0) return Error(ErrorCode::kOutOfMemory, absl::StrCat("fork: ", std::strerror(errno)));
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      for (const Rank& other : processes.ranks_) close(other.socket);
      close(ends[0]);
      Serve(ends[1], manifest, plan, publisher, rank, options);
      _exit(0);
    }
    close(ends[1]);
    processes.ranks_.push_back({publisher, rank, pid, ends[0]});
    return absl::OkStatus();
  };
  for (const Placement& p : manifest.topology.source) HR_RETURN_IF_ERROR(start(true, static_cast<int>(p.rank)));
  for (const Placement& p : manifest.topology.destination) HR_RETURN_IF_ERROR(start(false, static_cast<int>(p.rank)));
  return processes;
}

RefitProcesses::~RefitProcesses() {
  for (const Rank& rank : ranks_) {
    close(rank.socket);
    kill(rank.pid, SIGKILL);
    waitpid(rank.pid, nullptr, 0);
  }
}

double RefitProcesses::CpuSeconds() const {
  double seconds = 0;
  for (const Rank& rank : ranks_) {
    clockid_t clock;
    if (clock_getcpuclockid(rank.pid, &clock) == 0) seconds += Seconds(clock);
  }
  return seconds;
}

absl::StatusOr<std::vector<Json>> RefitProcesses::Order(To to, const Json& order) {
  std::vector<const Rank*> addressed;
  for (const Rank& rank : ranks_) {
    if (to == To::kAll || rank.publisher == (to == To::kPublishers)) addressed.push_back(&rank);
  }
  for (const Rank* rank : addressed) SendJson(rank->socket, order);  // a death shows in the missing answer
  std::vector<Json> answers;
  for (const Rank* rank : addressed) {
    const std::string name = absl::StrCat(rank->publisher ? "publisher rank " : "worker ", rank->rank);
    std::optional<Json> answer = ReceiveJson(rank->socket);
    if (!answer) return Error(ErrorCode::kPeerLost, absl::StrCat(name, " died"));
    if (answer->contains("error")) {
      return Error(ErrorCode::kInternal, absl::StrCat(name, ": ", (*answer)["error"].get<std::string>()));
    }
    answers.push_back(*std::move(answer));
  }
  return answers;
}

}  // namespace headrace::bench
