#ifndef HEADRACE_LOADER_TRANSPORT_CONFORMANCE_INTERNAL_H_
#define HEADRACE_LOADER_TRANSPORT_CONFORMANCE_INTERNAL_H_

// Shared by the conformance suite's files.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/transport/conformance.h"
#include "loader/transport/transport.h"
#include "planner/status.h"

namespace headrace::conformance {

enum class Needs { kNothing, kMap, kRead, kTwoSided };

struct Case {
  std::string name;
  Needs needs;
  std::function<void(const NewEndpoint&)> body;
};

std::vector<Case> GeneralCases();
std::vector<Case> MapCases();
std::vector<Case> ReadCases();
std::vector<Case> MessageCases();
std::vector<Case> ProcessCases();

// What a process started by ProcessCases does: talks over standard input and output. Returns its exit code.
int RunPeerProcess(int argc, char** argv, const ConformanceBackend& backend);
inline constexpr char kPeerFlag[] = "--conformance-peer";

// A guard against hangs, never an expectation of speed.
inline absl::Time Soon() { return absl::Now() + absl::Minutes(3); }

MATCHER_P(HasErrorCode, code, std::string("has the code ") + std::string(CodeName(code))) {
  *result_listener << arg;
  return HasCode(arg, code);
}

// Pseudo-random bytes; different seeds or offsets do not agree.
std::vector<std::byte> Pattern(size_t size, uint64_t seed);
// The tests' seed: HEADRACE_TEST_SEED, otherwise random; printed once.
uint64_t TestSeed();
// HEADRACE_TEST_SHARE percent of `count`, at least 1.
int Share(int count);

// Into a region, and out of a region or a mapping, by the backend's `copy`.
void Write(const std::vector<std::byte>& bytes, absl::Span<std::byte> region);
std::vector<std::byte> Contents(absl::Span<const std::byte> memory);

// Two endpoints of one world that know each other.
struct Pair {
  explicit Pair(const NewEndpoint& new_endpoint);
  std::unique_ptr<Transport> a, b;
  PeerId a_to_b = 0, b_to_a = 0;
};

// Polls all endpoints in turn until `count` operations have completed, or until Soon(). Statuses by endpoint and op.
std::map<std::pair<Transport*, OpId>, absl::Status> PollUntil(const std::vector<Transport*>& endpoints, size_t count);

}  // namespace headrace::conformance

#endif  // HEADRACE_LOADER_TRANSPORT_CONFORMANCE_INTERNAL_H_
