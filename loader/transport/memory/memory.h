#ifndef HEADRACE_LOADER_TRANSPORT_MEMORY_MEMORY_H_
#define HEADRACE_LOADER_TRANSPORT_MEMORY_MEMORY_H_

// All ranks in one process: the shortest reading of the contract in transport.h, with programmable faults.
//
// Sends are never buffered: a send completes when the peer's Receive took the bytes straight out of its buffer. Code
// that relies on buffering by a real transport stops here.

#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"
#include "loader/transport/transport.h"

namespace headrace {

struct MemoryOptions {
  // Capabilities of every endpoint of the fabric.
  bool map = true;
  bool read = true;
  bool two_sided = true;
  int64_t max_message_bytes = int64_t{4} << 20;

  // Faults, drawn from `seed` for each message when it is sent; probabilities are in [0, 1]. The draws follow the order
  // of the calls: a run repeats by its seed when one thread drives all endpoints.
  uint64_t seed = 1;
  bool reorder_completions = false;  // completions that wait to be polled are shuffled
  double delay_probability = 0;      // the message, and those of its sender and tag behind it, arrives late by
  int max_delay_steps = 0;           // 1 to this many steps. A step is a Poll of any endpoint of the fabric
  double drop_probability = 0;       // neither the send nor the receive that it matches completes, until Abort,
                                     // Disconnect or the peer's death
  double corrupt_probability = 0;    // one bit of the bytes that arrive is flipped; drawn for each Read too
};

// What a fabric holds now: all zero when every endpoint, region, mapping and registration is gone.
struct MemoryUsage {
  int64_t endpoints = 0;  // those that were cut too
  int64_t regions = 0;
  int64_t region_bytes = 0;
  int64_t mappings = 0;
  int64_t registrations = 0;
  int64_t pending = 0;   // sends and receives that did not complete
  int64_t channels = 0;  // of the messages that are not matched
};

// Shared by the endpoints of one process. Endpoints and the fabric may be used by different threads, each endpoint by
// one at a time; endpoints and regions may outlive the fabric.
class MemoryFabric {
 public:
  explicit MemoryFabric(const MemoryOptions& options = {});
  ~MemoryFabric();

  std::unique_ptr<Transport> NewEndpoint();

  // Kills the endpoint at `address`: its own pending operations and those of its peers with it complete with
  // kPeerLost, later calls fail likewise. Its regions stay readable to those who hold a mapping. An address that is
  // not (or no longer) in the fabric is left alone.
  void Cut(absl::string_view address);

  // Replaces the faults for the messages sent from now on; `map`, `read`, `two_sided` and
  // `max_message_bytes` are not changed.
  void SetFaults(const MemoryOptions& options);

  MemoryUsage Usage() const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_TRANSPORT_MEMORY_MEMORY_H_
