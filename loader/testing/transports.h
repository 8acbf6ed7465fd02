#ifndef HEADRACE_LOADER_TESTING_TRANSPORTS_H_
#define HEADRACE_LOADER_TESTING_TRANSPORTS_H_

// Test only. What makes the endpoints of a job's members.

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "loader/testing/nccl_checker/nccl_checker.h"
#include "loader/transport/factory.h"
#include "loader/transport/memory/memory.h"
#include "loader/transport/nccl/nccl.h"

namespace headrace::testing {

using MakeTransport = std::function<std::unique_ptr<Transport>()>;

// Endpoints of one memory fabric, which lives as long as they are made.
inline MakeTransport OnMemory(const MemoryOptions& options) {
  auto fabric = std::make_shared<MemoryFabric>(options);
  return [fabric] { return fabric->NewEndpoint(); };
}
inline MakeTransport OnMemory(bool map) {
  MemoryOptions options;
  options.map = map;
  return OnMemory(options);
}

// Endpoints of a transport of the machine: "host", or "ucx" where it is installed.
inline MakeTransport OnTransport(const std::string& name) {
  return [name] {
    auto transport = NewTransport(name);
    EXPECT_TRUE(transport.ok()) << transport.status();
    return *std::move(transport);
  };
}

// Endpoints of "nccl" on the GPUs of nccl_checker/, in turn.
inline MakeTransport OnNcclChecker() {
  return [] {
    // A job may have more endpoints than there are GPUs. The checker reads the variable once.
    static const bool shared = setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0) == 0;
    static std::atomic<int> next{0};
    NcclOptions options;
    options.gpu = next++;
    options.libraries.cuda_runtime = options.libraries.nccl = nccl_checker::kLibraryPath;
    options.libraries.multi_rank_gpu = shared;
    auto transport = NewNcclTransport(options);
    EXPECT_TRUE(transport.ok()) << transport.status();
    return *std::move(transport);
  };
}
inline bool HasUcx() { return NewTransport("ucx").ok(); }

}  // namespace headrace::testing

#endif  // HEADRACE_LOADER_TESTING_TRANSPORTS_H_
