// Machine resources that run out: each a typed error at every member, with nothing written. The limits are set in a
// process of its own, which is this program with a filter.
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/testing/job.h"
#include "loader/transport/factory.h"
#include "planner/status.h"
#include "planner/testing/manifest_parts.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using testing::Job;
using testing::JobConfig;

// Runs one of the disabled tests below in a child. Skips where the child skipped.
void RunInChild(const std::string& test) {
  char self[4096] = {};
  ASSERT_GT(readlink("/proc/self/exe", self, sizeof self - 1), 0);
  const std::string command = std::string("'") + self +
                              "' --gtest_also_run_disabled_tests --gtest_filter=" + "InAChild.DISABLED_" + test +
                              " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  char line[4096];
  while (fgets(line, sizeof line, pipe) != nullptr) output += line;
  const int status = pclose(pipe);
  if (output.find("[  SKIPPED ]") != std::string::npos) GTEST_SKIP() << output;
  EXPECT_EQ(status, 0) << output;
  EXPECT_THAT(output, HasSubstr("[  PASSED  ] 1 test."));
}

// The member that ran out says so by its code; the others are told whom they lost and why.
void ExpectRefused(const std::vector<absl::Status>& statuses, ErrorCode code, const std::string& word) {
  int own = 0;
  for (const absl::Status& status : statuses) {
    own += HasCode(status, code);
    EXPECT_TRUE(HasCode(status, code) || HasCode(status, ErrorCode::kPeerLost)) << status;
    if (HasCode(status, ErrorCode::kPeerLost)) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(CodeName(code))));
    }
    EXPECT_THAT(std::string(status.message()), HasSubstr(word));
  }
  EXPECT_GE(own, 1);
}

JobConfig Over(const std::string& transport) {
  JobConfig config;
  config.transport = [transport] {
    auto endpoint = NewTransport(transport);
    EXPECT_TRUE(endpoint.ok()) << endpoint.status();
    return *std::move(endpoint);
  };
  return config;
}

// Snapshots of 1 MiB; the limit is below.
TEST(InAChild, DISABLED_FileSizeLimit) {
  Job job(WholeManifest({{"w", {1 << 20}, Dtype::kU8}}), Over("host"));
  const rlimit limit{1 << 16, 1 << 16};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  ExpectRefused(job.Join(), ErrorCode::kOutOfMemory, "65536");
  EXPECT_EQ(job.Difference(), "");
}

TEST(ResourceLimitsTest, SnapshotMemoryRefusedByAFileSizeLimit) { RunInChild("FileSizeLimit"); }

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they reserve terabytes of address space
TEST(InAChild, DISABLED_AddressSpaceLimit) {
  Job job(WholeManifest({{"w", {Index{1} << 28}, Dtype::kU8}}), {});
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  ASSERT_TRUE(statm >> pages);
  // Room for threads, not for two slots and the shadow.
  const rlim_t bytes = pages * static_cast<rlim_t>(getpagesize()) + (rlim_t{700} << 20);
  const rlimit limit{bytes, bytes};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  ExpectRefused(job.Join(), ErrorCode::kOutOfMemory, "bytes");
  EXPECT_EQ(job.Difference(), "");
}

TEST(ResourceLimitsTest, MemoryRefusedByAnAddressSpaceLimit) { RunInChild("AddressSpaceLimit"); }
#endif

TEST(InAChild, DISABLED_FullSharedMemory) {
  if (unshare(CLONE_NEWNS) != 0) GTEST_SKIP() << "no mount namespace of our own: " << strerror(errno);
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=8k") != 0) {
    GTEST_SKIP() << "no small tmpfs of our own: " << strerror(errno);
  }
  std::ofstream("/dev/shm/fill") << std::string(8192, 'x');
  const auto endpoint = NewTransport("ucx");
  if (endpoint.ok()) {
    // UCX found ways that need no shared memory: then a job works over them.
    Job job(WholeManifest({{"w", {1000}, Dtype::kBF16}}), Over("ucx"));
    const absl::Status joined = testing::FirstError(job.Join());
    ASSERT_EQ(joined, absl::OkStatus());
    ASSERT_EQ(job.Round(1), absl::OkStatus());
    EXPECT_EQ(job.Difference(), "");
    return;
  }
  EXPECT_TRUE(HasCode(endpoint.status(), ErrorCode::kOutOfMemory) || HasCode(endpoint.status(), ErrorCode::kTransport))
      << endpoint.status();
  std::puts(endpoint.status().ToString().c_str());
}

TEST(ResourceLimitsTest, AFullDevShmUnderUcx) { RunInChild("FullSharedMemory"); }

TEST(ResourceLimitsTest, APortInUse) {
  Job job(WholeManifest({{"w", {4}, Dtype::kBF16}}), {});
  CoordinatorOptions options;
  options.job = "other";
  options.incarnation = "run-1";
  options.workers = {1};
  ControlServerOptions server;
  server.token = "secret";
  server.port = job.coordinator().port();
  const absl::Status status = CoordinatorService::Start(options, server).status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kAddressInUse)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(server.port)));
  // Who had it first goes on.
  ASSERT_EQ(testing::FirstError(job.Join()), absl::OkStatus());
  ASSERT_EQ(job.Round(1), absl::OkStatus());
  EXPECT_EQ(job.Difference(), "");
}

TEST(ResourceLimitsTest, AStagingCapBelowAChunk) {
  JobConfig config;
  MemoryOptions memory;
  memory.map = false;
  auto fabric = std::make_shared<MemoryFabric>(memory);
  config.transport = [fabric] { return fabric->NewEndpoint(); };
  config.staging_bytes = 255;
  Job job(WholeManifest({{"w", {4}, Dtype::kBF16}}), config);
  ExpectRefused(job.Join(), ErrorCode::kStagingTooSmall, "255");
  EXPECT_EQ(job.Difference(), "");
}

}  // namespace
}  // namespace headrace
