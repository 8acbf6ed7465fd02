#include "cli/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {

absl::StatusOr<ChildProcess> ChildProcess::Start(std::string name, const std::string& program,
                                                 const std::vector<std::string>& arguments) {
  int input[2], output[2];
  auto failed = [&](const char* what) {
    return Error(errno == EAGAIN || errno == ENOMEM || errno == EMFILE ? ErrorCode::kOutOfMemory : ErrorCode::kIo,
                 absl::StrCat("cannot start ", name, ": ", what, ": ", std::strerror(errno)));
  };
  if (pipe2(input, O_CLOEXEC) != 0) return failed("pipe");
  if (pipe2(output, O_CLOEXEC) != 0) {
    close(input[0]), close(input[1]);
    return failed("pipe");
  }
  std::vector<std::string> words = {program.empty() ? "headrace" : program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    // Only async-signal-safe calls: the parent has threads.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    dup2(input[0], STDIN_FILENO);
    dup2(output[1], STDOUT_FILENO);
    if (program.empty()) {
      execv("/proc/self/exe", argv.data());
    } else {
      execvp(argv[0], argv.data());
    }
    _exit(127);
  }
  close(input[0]);
  close(output[1]);
  if (pid < 0) {
    close(input[1]), close(output[0]);
    return failed("fork");
  }
  return ChildProcess(std::move(name), pid, input[1], output[0]);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : name_(std::move(other.name_)),
      pid_(std::exchange(other.pid_, -1)),
      input_(std::exchange(other.input_, -1)),
      output_(std::exchange(other.output_, -1)),
      ended_(other.ended_),
      status_(other.status_),
      partial_(std::move(other.partial_)) {}

ChildProcess::~ChildProcess() {
  if (input_ >= 0) close(input_);
  if (output_ >= 0) close(output_);
  if (pid_ > 0 && !ended_) {
    Kill();
    Wait();
  }
}

bool ChildProcess::WriteLine(const std::string& line) {
  const std::string all = line + "\n";
  for (size_t done = 0; done < all.size();) {
    const ssize_t n = write(input_, all.data() + done, all.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

bool ChildProcess::ReadLines(std::vector<std::string>* lines) {
  std::array<char, 65536> buffer;
  const ssize_t n = read(output_, buffer.data(), buffer.size());
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return true;
  if (n <= 0) return false;
  partial_.append(buffer.data(), static_cast<size_t>(n));
  size_t begin = 0;
  for (size_t end; (end = partial_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    lines->push_back(partial_.substr(begin, end - begin));
  }
  partial_.erase(0, begin);
  return true;
}

std::string ChildProcess::Wait() {
  while (!ended_) {
    if (waitpid(pid_, &status_, 0) == pid_ || errno != EINTR) ended_ = true;
  }
  if (WIFSIGNALED(status_)) return absl::StrCat("was killed by signal ", WTERMSIG(status_));
  return WEXITSTATUS(status_) == 0 ? "" : absl::StrCat("exited with status ", WEXITSTATUS(status_));
}

bool ChildProcess::Ended() {
  if (!ended_ && waitpid(pid_, &status_, WNOHANG) == pid_) ended_ = true;
  return ended_;
}

void ChildProcess::Kill() {
  if (pid_ > 0 && !ended_) kill(pid_, SIGKILL);
}

std::string RandomToken() {
  std::array<char, 16> bytes;
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = getrandom(bytes.data() + done, bytes.size() - done, 0);
    if (n > 0) done += static_cast<size_t>(n);
  }
  return absl::BytesToHexString({bytes.data(), bytes.size()});
}

}  // namespace headrace
