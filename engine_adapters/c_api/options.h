#ifndef HEADRACE_ENGINE_ADAPTERS_C_API_OPTIONS_H_
#define HEADRACE_ENGINE_ADAPTERS_C_API_OPTIONS_H_

// The JSON texts of the C interface as the options structs of the C++ one. Every function: kInvalidOption names the
// field that is missing, unknown, of the wrong type or outside of its range.

#include <cstddef>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "loader/control/control_server.h"
#include "loader/publisher.h"
#include "loader/receiver.h"
#include "loader/session/coordinator.h"
#include "loader/transport/factory.h"

namespace headrace {

struct CoordinatorSetup {
  CoordinatorOptions coordinator;
  ControlServerOptions server;
};
struct PublisherSetup {
  PublisherOptions publisher;
  std::string transport;
  TransportOptions transport_options;
};
struct ReceiverSetup {
  ReceiverOptions receiver;
  bool standby = false;
  std::string transport;
  TransportOptions transport_options;
};

absl::StatusOr<CoordinatorSetup> ReadCoordinatorOptions(const char* json);
absl::StatusOr<PublisherSetup> ReadPublisherOptions(const char* json);
absl::StatusOr<ReceiverSetup> ReadReceiverOptions(const char* json);

absl::StatusOr<std::map<std::string, const std::byte*>> ReadSourceMemory(const char* json, const void* const* addresses,
                                                                         size_t count);
absl::StatusOr<std::map<std::string, BufferMemory>> ReadLiveMemory(const char* json, void* const* addresses,
                                                                   size_t count);

// The time at which a wait of `seconds` that begins now ends. Negative or no number: kInvalidOption.
absl::StatusOr<absl::Time> DeadlineAfter(double seconds);

}  // namespace headrace

#endif  // HEADRACE_ENGINE_ADAPTERS_C_API_OPTIONS_H_
