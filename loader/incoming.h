#ifndef HEADRACE_LOADER_INCOMING_H_
#define HEADRACE_LOADER_INCOMING_H_

// A receiver's connections to the publishers of an epoch: their mapped regions, or their addresses.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "loader/epoch_plan.h"
#include "loader/executor.h"
#include "loader/region_keys.h"
#include "loader/session/types.h"
#include "loader/transport/transport.h"

namespace headrace {

// One edge of this receiver, and what it is to ask its publisher for.
struct ConnectedEdge {
  IncomingEdge edge;
  int publisher = 0;
  ReceiverMeans means;
};

// Used by one thread at a time, the transport's.
class Incoming {
 public:
  explicit Incoming(Transport* transport) : transport_(transport) {}

  // All edges of `self` in plan order. region_keys: EpochReady's, by publisher. What an earlier epoch mapped, and this
  // one has too, is not mapped anew. Keeps a reference to `plan` in the edges. Errors are those of Connect, Map and
  // PackRingReader::Create; kTransport: a region is smaller than the plan says.
  absl::StatusOr<std::vector<ConnectedEdge>> Connect(const EpochPlan& plan, const proto::EpochStart& epoch,
                                                     const MemberKey& self,
                                                     const std::map<int, std::vector<std::string>>& region_keys,
                                                     int64_t chunk_bytes, absl::Time deadline);

  // Lets go of what is mapped of publishers that are not at these addresses. No edge of Connect's is left.
  void Keep(const std::set<std::string>& addresses);

 private:
  // What all edges of a publisher share.
  struct Publisher {
    std::shared_ptr<const SlotLayout> layout;
    std::shared_ptr<const SumsLayout> sums_layout;
    std::vector<std::shared_ptr<const Mapping>> slots;
    std::shared_ptr<const Mapping> sums;
    bool hold = false;
    std::shared_ptr<PackRingReader> ring;
    ReceiverMeans means;
    std::map<int, std::shared_ptr<RemoteMemory>> memory;
  };
  using Mappings = std::map<std::pair<std::string, std::string>, std::shared_ptr<const Mapping>>;

  absl::StatusOr<std::shared_ptr<const Mapping>> Map(const std::string& address, const std::string& key, int64_t bytes,
                                                     const std::string& what, absl::Time deadline);
  absl::Status MapPublisher(const std::string& name, const std::string& address, const RegionKeys& keys,
                            absl::Time deadline, Publisher* publisher);
  absl::Status ConnectToHeld(const std::string& address, const RegionKeys& keys, const MemberKey& self,
                             int64_t chunk_bytes, absl::Time deadline, Publisher* publisher);

  Transport* const transport_;
  // The newest epoch's, by address and key, and the ones of the epoch that is being connected.
  Mappings mappings_, next_mappings_;
  std::map<std::string, PeerId> peers_, next_peers_;  // by address
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_INCOMING_H_
