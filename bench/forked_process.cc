#include "bench/forked_process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace::bench {
namespace {

constexpr size_t kMaxPacket = 64 << 10;

double Seconds(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
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

void Serve(int socket, const std::function<absl::StatusOr<ForkedProcess::Obey>()>& start) {
  const absl::StatusOr<ForkedProcess::Obey> obey = start();
  while (std::optional<Json> order = ReceiveJson(socket)) {
    const std::string what = (*order)["do"];
    const absl::StatusOr<Json> answer = obey.ok() ? (*obey)(what, *order) : obey.status();
    SendJson(socket, answer.ok() ? *answer : Json{{"error", std::string(answer.status().message())}});
    if (!answer.ok() || what == "close") return;
  }
}

}  // namespace

absl::StatusOr<ForkedProcess> ForkedProcess::Fork(std::string name,
                                                  const std::function<absl::StatusOr<Obey>()>& start) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return Error(ErrorCode::kIo, absl::StrCat("socketpair: ", std::strerror(errno)));
  }
  const pid_t parent = getpid(), pid = fork();
  if (pid < 0) return Error(ErrorCode::kOutOfMemory, absl::StrCat("fork: ", std::strerror(errno)));
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    close(ends[0]);
    Serve(ends[1], start);
    _exit(0);
  }
  close(ends[1]);
  return ForkedProcess(std::move(name), pid, ends[0]);
}

ForkedProcess::ForkedProcess(ForkedProcess&& other) noexcept
    : name_(std::move(other.name_)), pid_(other.pid_), socket_(std::exchange(other.socket_, -1)) {}

ForkedProcess::~ForkedProcess() {
  if (socket_ < 0) return;
  close(socket_);
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void ForkedProcess::Tell(const Json& order) const { SendJson(socket_, order); }

absl::StatusOr<Json> ForkedProcess::Hear() const {
  std::optional<Json> answer = ReceiveJson(socket_);
  if (!answer) return Error(ErrorCode::kPeerLost, absl::StrCat(name_, " died"));
  if (answer->contains("error")) {
    return Error(ErrorCode::kInternal, absl::StrCat(name_, ": ", (*answer)["error"].get<std::string>()));
  }
  return *std::move(answer);
}

absl::StatusOr<Json> ForkedProcess::Do(const Json& order) const {
  Tell(order);
  return Hear();
}

double ForkedProcess::CpuSeconds() const {
  clockid_t clock;
  return clock_getcpuclockid(pid_, &clock) == 0 ? Seconds(clock) : 0;
}

double ProcessCpuSeconds() { return Seconds(CLOCK_PROCESS_CPUTIME_ID); }
double ThreadCpuSeconds() { return Seconds(CLOCK_THREAD_CPUTIME_ID); }
double MonotonicSeconds() { return Seconds(CLOCK_MONOTONIC); }

}  // namespace headrace::bench
