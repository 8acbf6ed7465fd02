#ifndef HEADRACE_LOADER_TRANSPORT_HOST_SERVER_H_
#define HEADRACE_LOADER_TRANSPORT_HOST_SERVER_H_

// The owner's side of the protocol in wire.h: one thread that hands out region descriptors and the places of
// registered memory.

#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "loader/transport/host/region.h"
#include "loader/transport/host/wire.h"

namespace headrace::host {

class Server {
 public:
  // Above this many connections those that have not presented the cookie are closed, the oldest first; when all have,
  // the newcomer is.
  static constexpr size_t kMaxClients = 256;

  static absl::StatusOr<std::unique_ptr<Server>> Start(const Name& name, const Cookie& cookie,
                                                       std::shared_ptr<RegionTable> table);
  // Ends the thread and closes all connections.
  ~Server();

 private:
  struct Client {
    Descriptor socket;
    bool authenticated = false;
  };

  Server(Descriptor listener, Descriptor wake, const Cookie& cookie, std::shared_ptr<RegionTable> table);
  void Run();
  // False when no descriptor is left for a new connection.
  bool Accept();
  // Answers one packet; false when the connection has ended or broke the protocol.
  bool Serve(Client& client);

  const Descriptor listener_;
  const Descriptor wake_;  // an eventfd: readable when the thread must end
  const Cookie cookie_;
  const std::shared_ptr<RegionTable> table_;
  std::vector<Client> clients_;  // used by the thread only; oldest first
  std::thread thread_;
};

}  // namespace headrace::host

#endif  // HEADRACE_LOADER_TRANSPORT_HOST_SERVER_H_
