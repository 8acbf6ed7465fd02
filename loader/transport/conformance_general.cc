// Conformance: what holds for every endpoint, whatever its capabilities.

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "loader/transport/conformance_internal.h"

namespace headrace::conformance {
namespace {

void CapabilitiesAreConsistent(const NewEndpoint& new_endpoint) {
  auto endpoint = new_endpoint();
  const Capabilities& capabilities = endpoint->capabilities();
  EXPECT_EQ(capabilities.map, capabilities.map_reason.empty()) << capabilities.map_reason;
  EXPECT_EQ(capabilities.read, capabilities.read_reason.empty()) << capabilities.read_reason;
  EXPECT_EQ(capabilities.two_sided, capabilities.max_message_bytes > 0);
  EXPECT_EQ(capabilities.two_sided, capabilities.tag_bits >= 32);
  EXPECT_EQ(endpoint->address(), endpoint->address());
  EXPECT_NE(endpoint->address(), new_endpoint()->address());
}

void RegionsAreZeroFilledAlignedAndWritable(const NewEndpoint& new_endpoint) {
  auto endpoint = new_endpoint();
  for (int64_t size : {int64_t{1}, int64_t{4095}, int64_t{4096}, int64_t{4097}, (int64_t{5} << 20) + 3}) {
    auto region = endpoint->AllocateRegion(size);
    ASSERT_TRUE(region.ok()) << region.status();
    absl::Span<std::byte> bytes = (*region)->bytes();
    ASSERT_EQ(bytes.size(), static_cast<size_t>(size));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % 4096, 0u);
    EXPECT_TRUE(Contents(bytes) == std::vector<std::byte>(bytes.size()));
    const std::vector<std::byte> pattern = Pattern(size, TestSeed());
    Write(pattern, bytes);
    EXPECT_TRUE(Contents(bytes) == pattern);
    EXPECT_EQ((*region)->key().empty(), !endpoint->capabilities().map);
  }
}

void RegionsOfImpossibleSizesAreRefused(const NewEndpoint& new_endpoint) {
  auto endpoint = new_endpoint();
  for (int64_t size : {int64_t{0}, int64_t{-1}, INT64_MIN}) {
    EXPECT_THAT(endpoint->AllocateRegion(size).status(), HasErrorCode(ErrorCode::kInvalidOption));
  }
  for (int64_t size : {int64_t{1} << 46, INT64_MAX}) {
    const absl::Status status = endpoint->AllocateRegion(size).status();
    EXPECT_THAT(status, HasErrorCode(ErrorCode::kOutOfMemory));
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(absl::StrCat(size)));
  }
}

void RegionsOutliveTheirEndpoint(const NewEndpoint& new_endpoint) {
  auto endpoint = new_endpoint();
  auto region = endpoint->AllocateRegion(10000);
  ASSERT_TRUE(region.ok()) << region.status();
  endpoint.reset();
  const std::vector<std::byte> pattern = Pattern(10000, TestSeed());
  Write(pattern, (*region)->bytes());
  EXPECT_TRUE(Contents((*region)->bytes()) == pattern);
}

void ConnectRefusesWhatIsNoAddress(const NewEndpoint& new_endpoint) {
  auto endpoint = new_endpoint();
  auto other = new_endpoint();
  const std::string good = other->address();
  for (const std::string& bad : {std::string(), std::string("x"), std::string(200, '\0'), good.substr(0, 10),
                                 absl::StrCat("x", good), good.substr(0, good.find_last_of('/') + 1)}) {
    EXPECT_THAT(endpoint->Connect(bad, Soon()).status(), HasErrorCode(ErrorCode::kTransport));
  }
}

void ConnectingTwiceKeepsTheId(const NewEndpoint& new_endpoint) {
  auto endpoint = new_endpoint();
  auto x = new_endpoint(), y = new_endpoint();
  auto first = endpoint->Connect(x->address(), Soon());
  auto second = endpoint->Connect(y->address(), Soon());
  auto again = endpoint->Connect(x->address(), Soon());
  ASSERT_TRUE(first.ok() && second.ok() && again.ok()) << first.status() << second.status() << again.status();
  EXPECT_NE(*first, *second);
  EXPECT_EQ(*first, *again);
}

void UnknownPeersAreRefused(const NewEndpoint& new_endpoint) {
  auto endpoint = new_endpoint();
  std::byte buffer[8] = {};
  EXPECT_THAT(endpoint->Send(77, 1, buffer).status(), HasErrorCode(ErrorCode::kTransport));
  EXPECT_THAT(endpoint->Receive(77, 1, absl::MakeSpan(buffer)).status(), HasErrorCode(ErrorCode::kTransport));
  EXPECT_THAT(endpoint->Map(77, "0123456789abcdef", Soon()).status(), HasErrorCode(ErrorCode::kTransport));
  EXPECT_THAT(endpoint->CheckRead(77), HasErrorCode(ErrorCode::kTransport));
  EXPECT_THAT(endpoint->OpenRemote(77, "0123456789abcdef", Soon()).status(), HasErrorCode(ErrorCode::kTransport));
  endpoint->Disconnect(77);
}

void WhatIsNotOfferedIsRefused(const NewEndpoint& new_endpoint) {
  Pair pair(new_endpoint);
  std::byte buffer[8] = {};
  if (!pair.a->capabilities().two_sided) {
    EXPECT_THAT(pair.a->Send(pair.a_to_b, 1, buffer).status(), HasErrorCode(ErrorCode::kTransport));
    EXPECT_THAT(pair.a->Receive(pair.a_to_b, 1, absl::MakeSpan(buffer)).status(), HasErrorCode(ErrorCode::kTransport));
  }
  if (const Capabilities& capabilities = pair.a->capabilities(); !capabilities.read) {
    for (const absl::Status& status : {pair.a->Register(buffer).status(), pair.a->CheckRead(pair.a_to_b),
                                       pair.a->OpenRemote(pair.a_to_b, "key", Soon()).status()}) {
      EXPECT_THAT(status, HasErrorCode(ErrorCode::kTransport));
      EXPECT_THAT(std::string(status.message()), testing::HasSubstr(capabilities.read_reason));
    }
  }
  if (!pair.a->capabilities().map) {
    EXPECT_THAT(pair.a->Map(pair.a_to_b, "key", Soon()).status(), HasErrorCode(ErrorCode::kTransport));
  }
}

void PollWithNothingPendingReturns(const NewEndpoint& new_endpoint) {
  auto endpoint = new_endpoint();
  std::vector<Completion> completions;
  endpoint->Poll(absl::ZeroDuration(), &completions);
  endpoint->Poll(absl::Milliseconds(2), &completions);
  EXPECT_TRUE(completions.empty());
}

void WakeEndsAPoll(const NewEndpoint& new_endpoint) {
  // Would not return in an hour otherwise.
  auto endpoint = new_endpoint();
  std::vector<Completion> completions;
  endpoint->Wake();
  endpoint->Poll(absl::Hours(1), &completions);
  std::thread waker([&] { endpoint->Wake(); });
  endpoint->Poll(absl::Hours(1), &completions);
  waker.join();
  EXPECT_TRUE(completions.empty());
}

void AbortEndsLaterCalls(const NewEndpoint& new_endpoint) {
  Pair pair(new_endpoint);
  auto region = pair.b->AllocateRegion(100);
  ASSERT_TRUE(region.ok()) << region.status();
  pair.a->Abort(Error(ErrorCode::kDeadline, "generation 7 took too long"));
  std::byte buffer[8] = {};
  for (const absl::Status& status :
       {pair.a->Connect(new_endpoint()->address(), Soon()).status(),
        pair.a->Map(pair.a_to_b, (*region)->key(), Soon()).status(), pair.a->Register(buffer).status(),
        pair.a->OpenRemote(pair.a_to_b, "key", Soon()).status(), pair.a->Send(pair.a_to_b, 1, buffer).status(),
        pair.a->Receive(pair.a_to_b, 1, absl::MakeSpan(buffer)).status()}) {
    if (HasCode(status, ErrorCode::kTransport)) continue;  // what is not offered at all
    EXPECT_THAT(status, HasErrorCode(ErrorCode::kAborted));
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("generation 7 took too long"));
  }
  pair.a->Abort(Error(ErrorCode::kDeadline, "again"));
}

void ManyEndpointsLeaveNothingBehind(const NewEndpoint& new_endpoint) {
  // The descriptors and threads are counted around the test.
  for (int i = 0; i < Share(100); ++i) {
    Pair pair(new_endpoint);
    auto region = pair.b->AllocateRegion(5000);
    ASSERT_TRUE(region.ok()) << region.status();
    if (!pair.a->capabilities().map) continue;
    auto mapping = pair.a->Map(pair.a_to_b, (*region)->key(), Soon());
    ASSERT_TRUE(mapping.ok()) << mapping.status();
  }
}

}  // namespace

std::vector<Case> GeneralCases() {
#define HEADRACE_CASE(function) \
  Case { #function, Needs::kNothing, function }
  return {HEADRACE_CASE(CapabilitiesAreConsistent),
          HEADRACE_CASE(RegionsAreZeroFilledAlignedAndWritable),
          HEADRACE_CASE(RegionsOfImpossibleSizesAreRefused),
          HEADRACE_CASE(RegionsOutliveTheirEndpoint),
          HEADRACE_CASE(ConnectRefusesWhatIsNoAddress),
          HEADRACE_CASE(ConnectingTwiceKeepsTheId),
          HEADRACE_CASE(UnknownPeersAreRefused),
          HEADRACE_CASE(WhatIsNotOfferedIsRefused),
          HEADRACE_CASE(PollWithNothingPendingReturns),
          HEADRACE_CASE(WakeEndsAPoll),
          HEADRACE_CASE(AbortEndsLaterCalls),
          HEADRACE_CASE(ManyEndpointsLeaveNothingBehind)};
#undef HEADRACE_CASE
}

}  // namespace headrace::conformance
