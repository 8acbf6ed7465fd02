#ifndef HEADRACE_ENGINE_ADAPTERS_SAFETENSORS_TESTING_H_
#define HEADRACE_ENGINE_ADAPTERS_SAFETENSORS_TESTING_H_

// Test only: safetensors files put together by hand, and directories to put them in.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace headrace::testing {

// The bytes of a safetensors file: the header's length, the header, the data.
std::string FileOf(const std::string& header, const std::string& data);

// 8 bytes, little-endian.
std::string LengthOf(uint64_t bytes);

struct NamedTensor {
  std::string name;
  std::string dtype;  // BF16 or F32
  std::vector<int64_t> shape;
};

// A file of these tensors in this order, each byte of the data its place in the data modulo 251.
std::string FileOf(const std::vector<NamedTensor>& tensors);

// A new empty directory under TEST_TMPDIR.
std::string NewDirectory();

void WriteFile(const std::string& path, const std::string& bytes);

}  // namespace headrace::testing

#endif  // HEADRACE_ENGINE_ADAPTERS_SAFETENSORS_TESTING_H_
