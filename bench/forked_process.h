#ifndef HEADRACE_BENCH_FORKED_PROCESS_H_
#define HEADRACE_BENCH_FORKED_PROCESS_H_

// A process that obeys orders one at a time and answers each. Orders and answers are JSON; an order's "do" says what.

#include <sys/types.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"

namespace headrace::bench {

using Json = nlohmann::ordered_json;

class ForkedProcess {
 public:
  // What an order is answered with.
  using Obey = std::function<absl::StatusOr<Json>(const std::string& what, const Json& order)>;

  // `start` runs in the new process and makes what obeys there. The process ends with the first error, with the order
  // "close", and when this process ends. Call before any thread starts. `name` is for errors.
  static absl::StatusOr<ForkedProcess> Fork(std::string name, const std::function<absl::StatusOr<Obey>()>& start);
  ForkedProcess(ForkedProcess&& other) noexcept;
  ForkedProcess& operator=(ForkedProcess&&) = delete;
  // Kills it if it still runs.
  ~ForkedProcess();

  void Tell(const Json& order) const;  // a death shows in the missing answer
  // The answer to the oldest order that has none. Its error, with the process's name; kPeerLost when it died.
  absl::StatusOr<Json> Hear() const;
  absl::StatusOr<Json> Do(const Json& order) const;

  // User and system time of the whole process so far.
  double CpuSeconds() const;

 private:
  ForkedProcess(std::string name, pid_t pid, int socket) : name_(std::move(name)), pid_(pid), socket_(socket) {}

  std::string name_;
  pid_t pid_;
  int socket_;  // -1: moved from
};

// CPU-seconds of this process so far; of the calling thread alone.
double ProcessCpuSeconds();
double ThreadCpuSeconds();
// Of the machine's monotonic clock, which all its processes share.
double MonotonicSeconds();

}  // namespace headrace::bench

#endif  // HEADRACE_BENCH_FORKED_PROCESS_H_
