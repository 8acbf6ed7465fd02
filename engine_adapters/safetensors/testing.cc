#include "engine_adapters/safetensors/testing.h"

#include <cstdlib>
#include <fstream>
#include <iostream>

namespace headrace::testing {

std::string LengthOf(uint64_t bytes) {
  std::string length;
  for (int i = 0; i < 8; ++i) length.push_back(static_cast<char>(bytes >> (8 * i)));
  return length;
}

std::string FileOf(const std::string& header, const std::string& data) {
  return LengthOf(header.size()) + header + data;
}

std::string FileOf(const std::vector<NamedTensor>& tensors) {
  std::string header = "{";
  size_t at = 0;
  for (const NamedTensor& tensor : tensors) {
    size_t bytes = tensor.dtype == "F32" ? 4 : 2;
    std::string shape;
    for (const int64_t extent : tensor.shape) {
      bytes *= static_cast<size_t>(extent);
      shape += (shape.empty() ? "" : ",") + std::to_string(extent);
    }
    header += (header.size() > 1 ? ",\"" : "\"") + tensor.name + "\":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":[" +
              shape + "],\"data_offsets\":[" + std::to_string(at) + "," + std::to_string(at + bytes) + "]}";
    at += bytes;
  }
  std::string data(at, 0);
  for (size_t i = 0; i < at; ++i) data[i] = static_cast<char>(i % 251);
  return FileOf(header + "}", data);
}

std::string NewDirectory() {
  const char* base = std::getenv("TEST_TMPDIR");
  std::string path = std::string(base != nullptr ? base : "/tmp") + "/checkpoint.XXXXXX";
  if (mkdtemp(path.data()) == nullptr) {
    std::cerr << "cannot make " << path << "\n";
    std::abort();
  }
  return path;
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) {
    std::cerr << "cannot write " << path << "\n";
    std::abort();
  }
}

}  // namespace headrace::testing
