// Copies and memsets of rows, and registered memory: what they do, and the rules that break.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <string>
#include <vector>

#include "loader/testing/nccl_checker/checker_testing.h"
#include "loader/testing/nccl_checker/nccl_checker.h"

namespace headrace::nccl_checker {
namespace {

using Bytes = std::vector<unsigned char>;

std::string violations_file;

// The rules that were broken since the last call, one behind the other.
std::string Broken() {
  static size_t seen = 0;
  std::string rules;
  std::ifstream lines(violations_file);
  size_t count = 0;
  for (std::string line; std::getline(lines, line);) {
    if (++count <= seen) continue;
    const size_t begin = std::string("NCCL CHECKER: ").size();
    rules += line.substr(begin, line.find(':', begin) - begin) + " ";
  }
  seen = count;
  return rules;
}

TEST(RowsTest, RowsAreCopiedAndFilled) {
  const Rank rank(0);
  Buffer device(0, 40);
  Bytes host(40), wanted(40, 0xCB);
  for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<unsigned char>(i);
  for (size_t row = 0; row < 3; ++row) {
    for (size_t i = 0; i < 4; ++i) wanted[row * 9 + i] = host[row * 5 + i];
  }
  EXPECT_EQ(lib().cudaMemcpy2DAsync(device.data, 9, host.data(), 5, 4, 3, cuda::kMemcpyHostToDevice, rank.stream), 0);
  EXPECT_EQ(device.Get(rank.stream), wanted);
  for (size_t row = 0; row < 2; ++row) {
    for (size_t i = 0; i < 2; ++i) wanted[1 + row * 20 + i] = 7;
  }
  EXPECT_EQ(lib().cudaMemset2DAsync(device.data + 1, 20, 7, 2, 2, rank.stream), 0);
  EXPECT_EQ(device.Get(rank.stream), wanted);
  EXPECT_EQ(Broken(), "");
}

TEST(RowsTest, RulesOfRows) {
  const Rank rank(0);
  Buffer device(0, 40);
  Bytes host(40);
  const auto copy = [&](size_t to_pitch, size_t from_pitch, size_t width, size_t height, int kind) {
    return lib().cudaMemcpy2DAsync(device.data, to_pitch, host.data(), from_pitch, width, height, kind, rank.stream);
  };
  EXPECT_NE(copy(3, 8, 4, 2, cuda::kMemcpyHostToDevice), 0);
  EXPECT_NE(copy(8, 3, 4, 2, cuda::kMemcpyHostToDevice), 0);
  EXPECT_NE(copy(size_t{1} << 31, 8, 4, 2, cuda::kMemcpyHostToDevice), 0);
  EXPECT_EQ(Broken(), "memcpy-pitch memcpy-pitch memcpy-pitch ");
  EXPECT_EQ(copy(12, 8, 4, 4, cuda::kMemcpyHostToDevice), 0);  // its last byte is the last one
  EXPECT_NE(copy(13, 8, 4, 4, cuda::kMemcpyHostToDevice), 0);
  EXPECT_NE(copy(8, 8, 4, 2, cuda::kMemcpyDeviceToHost), 0);
  EXPECT_EQ(Broken(), "memcpy-bounds memcpy-kind ");
  EXPECT_NE(lib().cudaMemset2DAsync(device.data, 3, 0, 4, 2, rank.stream), 0);
  EXPECT_NE(lib().cudaMemset2DAsync(device.data, 37, 0, 4, 2, rank.stream), 0);
  EXPECT_NE(lib().cudaMemset2DAsync(host.data(), 4, 0, 4, 2, rank.stream), 0);
  EXPECT_EQ(Broken(), "memcpy-pitch memcpy-bounds memcpy-kind ");
  MUST(lib().cudaStreamSynchronize(rank.stream));
}

TEST(RowsTest, RegisteredMemoryIsPinned) {
  Bytes host(64);
  const auto type = [&](const void* at) {
    cuda::PointerAttributes attributes;
    MUST(lib().cudaPointerGetAttributes(&attributes, at));
    return attributes.type;
  };
  EXPECT_EQ(type(host.data()), cuda::kUnregistered);
  ASSERT_EQ(lib().cudaHostRegister(host.data() + 8, 32, cuda::kHostRegisterPortable), 0);
  EXPECT_EQ(type(host.data() + 7), cuda::kUnregistered);
  EXPECT_EQ(type(host.data() + 8), cuda::kHost);
  EXPECT_EQ(type(host.data() + 39), cuda::kHost);
  EXPECT_EQ(type(host.data() + 40), cuda::kUnregistered);
  EXPECT_EQ(Broken(), "");
  EXPECT_NE(lib().cudaHostRegister(host.data() + 39, 8, 0), 0);
  EXPECT_NE(lib().cudaHostRegister(host.data(), 9, 0), 0);
  EXPECT_NE(lib().cudaHostUnregister(host.data() + 9), 0);
  EXPECT_NE(lib().cudaFreeHost(host.data() + 8), 0);
  EXPECT_EQ(Broken(), "host-register host-register host-register free ");
  EXPECT_EQ(lib().cudaHostUnregister(host.data() + 8), 0);
  EXPECT_EQ(type(host.data() + 8), cuda::kUnregistered);
  EXPECT_EQ(Broken(), "");
}

}  // namespace
}  // namespace headrace::nccl_checker

int main(int argc, char** argv) {
  const char* temporary = getenv("TEST_TMPDIR");
  headrace::nccl_checker::violations_file = std::string(temporary == nullptr ? "/tmp" : temporary) + "/violations";
  setenv(headrace::nccl_checker::kViolationsFileVariable, headrace::nccl_checker::violations_file.c_str(), 1);
  setenv(headrace::nccl_checker::kOnViolationVariable, "return", 1);
  return headrace::nccl_checker::CheckerTestMain(argc, argv, {});
}
