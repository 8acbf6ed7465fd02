#ifndef HEADRACE_CLI_PROCESS_H_
#define HEADRACE_CLI_PROCESS_H_

// Child processes that run one rank each. A child gets its orders on standard input (they hold the job's token, which
// must not show in a process list), reports lines of JSON on standard output, and dies with its parent.

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace headrace {

class ChildProcess {
 public:
  // Runs `program` (looked up in PATH; empty: this program again) with `arguments`; `name` is for messages.
  // kOutOfMemory or kIo when it cannot start; a program that does not exist ends with status 127.
  static absl::StatusOr<ChildProcess> Start(std::string name, const std::string& program,
                                            const std::vector<std::string>& arguments);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  // Kills the child if it still runs.
  ~ChildProcess();

  const std::string& name() const { return name_; }
  pid_t pid() const { return pid_; }
  int output_fd() const { return output_; }  // for poll(2)

  // Writes a line to the child's input; false when it is gone.
  bool WriteLine(const std::string& line);
  // Reads what is there (call when output_fd is readable) and appends complete lines. False at the end of the output.
  bool ReadLines(std::vector<std::string>* lines);
  // Waits for the end and says how: "exited with status 1", "was killed by signal 9"; empty for status 0.
  std::string Wait();
  // Whether it ended already, without waiting.
  bool Ended();
  void Kill();

 private:
  ChildProcess(std::string name, pid_t pid, int input, int output)
      : name_(std::move(name)), pid_(pid), input_(input), output_(output) {}

  std::string name_;
  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;
  bool ended_ = false;
  int status_ = 0;
  std::string partial_;
};

// A random token of 32 hexadecimal digits, from the system's generator.
std::string RandomToken();

}  // namespace headrace

#endif  // HEADRACE_CLI_PROCESS_H_
