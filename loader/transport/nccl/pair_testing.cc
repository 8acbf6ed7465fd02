#include "loader/transport/nccl/pair_testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "loader/testing/nccl_checker/checker_testing.h"
#include "loader/testing/nccl_checker/nccl_checker.h"
#include "loader/transport/nccl/link.h"
#include "loader/transport/nccl/nccl.h"
#include "planner/status.h"

namespace headrace::nccl {

using ::headrace::nccl_checker::Child;
using ::headrace::nccl_checker::Outcome;
using ::headrace::nccl_checker::TestSeed;

absl::Time Soon() { return absl::Now() + absl::Minutes(3); }

std::unique_ptr<Transport> OnGpu(int gpu) {
  NcclOptions options;
  options.gpu = gpu;
  auto transport = NewNcclTransport(options);
  nccl_checker::Must(!transport.ok(), "NewNcclTransport");
  return *std::move(transport);
}

void Require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what.c_str());
  std::fflush(stderr);
  std::_Exit(4);
}

Bytes Content(uint64_t key, size_t bytes) {
  Bytes content(bytes);
  uint64_t x = key * 0x9E3779B97F4A7C15 + bytes;
  for (std::byte& byte : content) {
    x = x * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<std::byte>(x >> 56);
  }
  return content;
}

void End::Connect(const std::string& address) {
  auto connected = transport->Connect(address, Soon());
  Require(connected.ok(), absl::StrCat("Connect: ", connected.status().ToString()));
  peer = *connected;
}

void End::Send(uint64_t tag, uint64_t key, size_t bytes) {
  auto memory = std::make_unique<Bytes>(Content(key, bytes));
  const absl::StatusOr<OpId> op = transport->Send(peer, tag, *memory);
  Posted(op, {std::move(memory), {}, absl::StrCat("send ", key, ", tag ", tag)});
}

void End::Receive(uint64_t tag, uint64_t key, size_t bytes) {
  auto memory = std::make_unique<Bytes>(bytes);
  const absl::StatusOr<OpId> op = transport->Receive(peer, tag, absl::MakeSpan(*memory));
  Posted(op, {std::move(memory), Content(key, bytes), absl::StrCat("receive ", key, ", tag ", tag)});
}

void End::Poll(absl::Duration wait) {
  std::vector<Completion> completions;
  transport->Poll(wait, &completions);
  for (const Completion& completion : completions) {
    const auto op = pending.find(completion.op);
    Require(op != pending.end(), "a completion of nothing that is pending");
    if (!completion.status.ok()) {
      Fail(completion.status, op->second.what);
    } else if (op->second.wanted.has_value() && check) {
      Require(*op->second.memory == *op->second.wanted, "a receive got other bytes than were sent");
    }
    pending.erase(op);
  }
}

void End::Fail(const absl::Status& status, const std::string& what) {
  Require(HasCode(status, ErrorCode::kPeerLost) || HasCode(status, ErrorCode::kAborted) ||
              HasCode(status, ErrorCode::kTransport) || HasCode(status, ErrorCode::kOutOfMemory),
          absl::StrCat("an error of another kind: ", status.ToString()));
  Require(!status.message().empty(), "an error that says nothing");
  errors.push_back(status);
  failed.push_back(what);
}

void End::Posted(const absl::StatusOr<OpId>& op, Operation operation) {
  if (op.ok()) {
    pending.emplace(*op, std::move(operation));
  } else {
    Fail(op.status(), operation.what);
  }
}

void Ends::Connect() {
  a.Connect(b.transport->address());
  b.Connect(a.transport->address());
}

void Ends::Disconnect() {
  a.transport->Disconnect(a.peer);
  b.transport->Disconnect(b.peer);
  Forgotten(a);
  Forgotten(b);
}

void Ends::Forgotten(End& end) {
  end.Poll();
  Require(end.pending.empty(), absl::StrCat(end.pending.size(), " operations pending after Disconnect"));
  end.errors.clear();
}

void Ends::Poll() {
  a.Poll(absl::Milliseconds(1));
  b.Poll(absl::Milliseconds(1));
}

bool Ends::Settle() {
  const absl::Time deadline = Soon();
  while (!(a.pending.empty() && b.pending.empty()) && a.errors.empty() && b.errors.empty()) {
    Require(absl::Now() < deadline,
            absl::StrCat("operations that never end: ", a.pending.size(), " and ", b.pending.size()));
    Poll();
  }
  return a.errors.empty() && b.errors.empty();
}

void Ends::MustSettle() {
  if (Settle()) return;
  for (End* end : {&a, &b}) {
    for (const absl::Status& error : end->errors) Require(false, end->failed.back() + ": " + error.ToString());
  }
}

size_t SomeBytes(std::mt19937_64& random, size_t least) {
  constexpr size_t kSizes[] = {0,      1,      Link::kInlineBytes, Link::kInlineBytes + 1, 257, 1000, 5000, 70000,
                               500000, 3000000};
  return std::max(least, kSizes[random() % std::size(kSizes)]);
}

void Exchange(Ends& ends, std::mt19937_64& random, uint64_t key, uint64_t tag, size_t messages, size_t least) {
  for (size_t i = 0; i < messages; ++i) {
    const bool forth = random() % 2 == 0;
    End &from = forth ? ends.a : ends.b, &to = forth ? ends.b : ends.a;
    const uint64_t t = tag + random() % 3, k = key * 1000 + i;
    const size_t bytes = SomeBytes(random, least);
    if (random() % 2 == 0) {
      from.Send(t, k, bytes);
      to.Receive(t, k, bytes);
    } else {
      to.Receive(t, k, bytes);
      from.Send(t, k, bytes);
    }
    if (random() % 4 == 0) ends.Poll();
  }
}

std::vector<std::string> Variables(const std::vector<std::string>& more) {
  std::vector<std::string> variables = {absl::StrCat("HEADRACE_TEST_SEED=", TestSeed()),
                                        absl::StrCat("HEADRACE_NCCL=", nccl_checker::kLibraryPath)};
  variables.insert(variables.end(), more.begin(), more.end());
  return variables;
}

int RoundsOf(int all) { return std::getenv("HEADRACE_TEST_SHARE") == nullptr ? all : std::max(all / 4, 2); }

void ExpectEndsWell(const std::string& name, const std::vector<std::string>& variables) {
  const Outcome outcome = Child(name, Variables(variables)).Wait();
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
}

int PairTestMain(int argc, char** argv, const std::map<std::string, std::function<void()>>& cases) {
  setenv("HEADRACE_CUDA_RUNTIME", nccl_checker::kLibraryPath, 0);
  setenv("HEADRACE_NCCL", nccl_checker::kLibraryPath, 0);
  return nccl_checker::CheckerTestMain(argc, argv, cases);
}

}  // namespace headrace::nccl
