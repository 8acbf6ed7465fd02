#ifndef HEADRACE_LOADER_TRANSPORT_CONFORMANCE_H_
#define HEADRACE_LOADER_TRANSPORT_CONFORMANCE_H_

// The tests that every backend of transport.h passes. A backend's test has its own main:
//
//   int main(int argc, char** argv) {
//     return headrace::RunConformance(argc, argv, {"host", [] { return [] { return NewHostTransport().value(); }; },
//     true});
//   }
//
// which runs the conformance tests and all other tests of the binary. After each test the process has as many open
// descriptors and threads as before, and no file under /dev/shm was open or mapped at its end.

#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "loader/transport/transport.h"

namespace headrace {

using NewEndpoint = std::function<std::unique_ptr<Transport>()>;

struct ConformanceBackend {
  std::string name;  // what Transport::name() must say
  // Begins a world of its own: the endpoints that its NewEndpoint makes reach each other.
  std::function<NewEndpoint()> new_world;
  // Endpoints in different processes reach each other: also run the tests that start this binary again and kill it.
  bool across_processes = false;
  // Copies to, or out of, regions and mappings that the host does not reach; none: it reaches them.
  std::function<void(std::byte* to, const std::byte* from, size_t bytes)> copy = nullptr;
  // Tests that this backend does not pass, by name ("PeerDeathEndsOperations"); an unknown name is an error.
  std::set<std::string> opt_out = {};
};

// Returns main's result. Needs `argv` as main got it: the binary runs itself with arguments of its own.
int RunConformance(int argc, char** argv, const ConformanceBackend& backend);

}  // namespace headrace

#endif  // HEADRACE_LOADER_TRANSPORT_CONFORMANCE_H_
