#ifndef HEADRACE_TESTS_REPORTS_REPORT_H_
#define HEADRACE_TESTS_REPORTS_REPORT_H_

// Test only. What the reports have in common: destinations start as 0xA5 bytes with guards on either side, two
// generations run, then two more of a new job whose sources are in another order, for every way that bytes travel and
// land.

#include <functional>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/testing/job.h"
#include "planner/status.h"
#include "planner/testing/manifest_parts.h"

namespace headrace::testing {

// Calls body(job) for new jobs on the manifest, before their members joined.
inline void ForEachWay(const Manifest& manifest, const std::function<void(Job&)>& body) {
  for (bool map : {true, false}) {
    for (Shadow shadow : {Shadow::kHost, Shadow::kOff}) {
      for (bool shuffled : {false, true}) {
        SCOPED_TRACE(::testing::Message()
                     << (map ? "mapped" : "streams") << (shadow == Shadow::kHost ? ", shadow" : ", in place")
                     << (shuffled ? ", shuffled" : ""));
        Manifest m = manifest;
        if (shuffled) ShuffleSources(7, &m);
        MemoryOptions memory;
        memory.map = map;
        auto fabric = std::make_shared<MemoryFabric>(memory);
        JobConfig config;
        config.transport = [fabric] { return fabric->NewEndpoint(); };
        config.shadow = {shadow, shadow};
        Job job(m, config);
        body(job);
      }
    }
  }
}

// Both generations land, byte for byte, and nothing else changes.
inline void ExpectTwoGenerations(Job& job) {
  ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
  for (uint64_t generation : {1, 2}) {
    ASSERT_EQ(job.Round(generation), absl::OkStatus());
    ASSERT_EQ(job.Difference(), "");
  }
  EXPECT_EQ(job.Close(), absl::OkStatus());
}

// Every member is told this error, and no destination byte was written.
inline void ExpectRefusedAtJoin(const Manifest& manifest, ErrorCode code, const std::string& word) {
  ForEachWay(manifest, [&](Job& job) {
    for (const absl::Status& status : job.Join()) {
      EXPECT_TRUE(HasCode(status, code)) << status;
      EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(word));
    }
    EXPECT_EQ(job.Difference(), "");
  });
}

}  // namespace headrace::testing

#endif  // HEADRACE_TESTS_REPORTS_REPORT_H_
