#ifndef HEADRACE_LOADER_TESTING_TRANSPORTS_H_
#define HEADRACE_LOADER_TESTING_TRANSPORTS_H_

// Test only. What makes the endpoints of a job's members.

#include <functional>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "loader/transport/factory.h"
#include "loader/transport/memory/memory.h"

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
inline bool HasUcx() { return NewTransport("ucx").ok(); }

}  // namespace headrace::testing

#endif  // HEADRACE_LOADER_TESTING_TRANSPORTS_H_
