#include "loader/transport/nccl/nccl_abi.h"

#include "gtest/gtest.h"

#if __has_include(<nccl.h>)
#include <nccl.h>
#define HEADRACE_HAS_NCCL 1
#endif

namespace headrace::nccl {
namespace {

TEST(NcclAbiTest, IsTheLibrarys) {
#ifndef HEADRACE_HAS_NCCL
  GTEST_SKIP() << "no nccl.h here";
#else
  EXPECT_EQ(kSuccess, ncclSuccess);
  EXPECT_EQ(kUnhandledCudaError, ncclUnhandledCudaError);
  EXPECT_EQ(kSystemError, ncclSystemError);
  EXPECT_EQ(kInternalError, ncclInternalError);
  EXPECT_EQ(kInvalidArgument, ncclInvalidArgument);
  EXPECT_EQ(kInvalidUsage, ncclInvalidUsage);
  EXPECT_EQ(kRemoteError, ncclRemoteError);
  EXPECT_EQ(kInProgress, ncclInProgress);
  EXPECT_EQ(kUint8, ncclUint8);
  EXPECT_EQ(sizeof(UniqueId), sizeof(ncclUniqueId));
  EXPECT_LE(sizeof(Config), sizeof(ncclConfig_t));
  EXPECT_EQ(offsetof(Config, version), offsetof(ncclConfig_t, version));
  EXPECT_EQ(offsetof(Config, blocking), offsetof(ncclConfig_t, blocking));
  EXPECT_EQ(offsetof(Config, cga_cluster_size), offsetof(ncclConfig_t, cgaClusterSize));
  EXPECT_EQ(offsetof(Config, min_ctas), offsetof(ncclConfig_t, minCTAs));
  EXPECT_EQ(offsetof(Config, max_ctas), offsetof(ncclConfig_t, maxCTAs));
  EXPECT_EQ(offsetof(Config, net_name), offsetof(ncclConfig_t, netName));
  EXPECT_EQ(offsetof(Config, split_share), offsetof(ncclConfig_t, splitShare));
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(Config().magic, theirs.magic);
  EXPECT_EQ(Config().blocking, theirs.blocking);
  EXPECT_EQ(Config().net_name, theirs.netName);
#endif
}

}  // namespace
}  // namespace headrace::nccl
