#ifndef HEADRACE_LOADER_TRANSPORT_NCCL_PAIR_TESTING_H_
#define HEADRACE_LOADER_TRANSPORT_NCCL_PAIR_TESTING_H_

// Two endpoints on the checker that exchange messages of known content, and what tests of faults and limits do with
// them, in processes of their own too, where a failure ends the process.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "loader/transport/transport.h"

namespace headrace::nccl {

using Bytes = std::vector<std::byte>;

absl::Time Soon();
std::unique_ptr<Transport> OnGpu(int gpu);
void Require(bool holds, const std::string& what);
// Made up out of a key and the size.
Bytes Content(uint64_t key, size_t bytes);

// An endpoint and its operations with one peer.
struct End {
  explicit End(std::unique_ptr<Transport> endpoint) : transport(std::move(endpoint)) {}
  void Connect(const std::string& address);
  void Send(uint64_t tag, uint64_t key, size_t bytes);
  // Of a message that Content makes.
  void Receive(uint64_t tag, uint64_t key, size_t bytes);
  void Poll(absl::Duration wait = absl::ZeroDuration());

  struct Operation {
    std::unique_ptr<Bytes> memory;
    std::optional<Bytes> wanted;
    std::string what;
  };
  void Posted(const absl::StatusOr<OpId>& op, Operation operation);
  void Fail(const absl::Status& status, const std::string& what);

  std::unique_ptr<Transport> transport;
  PeerId peer = 0;
  std::map<OpId, Operation> pending;
  std::vector<absl::Status> errors;
  std::vector<std::string> failed;
  bool check = true;
};

struct Ends {
  Ends() : a(OnGpu(0)), b(OnGpu(1)) {}
  void Connect();
  void Disconnect();
  // What was under way has ended by then.
  static void Forgotten(End& end);
  void Poll();
  // Until both have nothing pending, or an operation failed. False: one failed.
  bool Settle();
  // Settle, where nothing may fail.
  void MustSettle();
  End a, b;
};

size_t SomeBytes(std::mt19937_64& random, size_t least = 0);
// Messages both ways, whose keys begin with `key`.
void Exchange(Ends& ends, std::mt19937_64& random, uint64_t key, uint64_t tag, size_t messages, size_t least = 0);

// Fewer where the sanitizers take their time.
int RoundsOf(int all);
// Of a process that goes on with this one's seed, and `more`.
std::vector<std::string> Variables(const std::vector<std::string>& more);
void ExpectEndsWell(const std::string& name, const std::vector<std::string>& variables);
// Runs the tests, or the case that this process is to run.
int PairTestMain(int argc, char** argv, const std::map<std::string, std::function<void()>>& cases);

}  // namespace headrace::nccl

#endif  // HEADRACE_LOADER_TRANSPORT_NCCL_PAIR_TESTING_H_
