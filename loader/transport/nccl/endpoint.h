#ifndef HEADRACE_LOADER_TRANSPORT_NCCL_ENDPOINT_H_
#define HEADRACE_LOADER_TRANSPORT_NCCL_ENDPOINT_H_

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "loader/transport/nccl/address.h"
#include "loader/transport/nccl/connection.h"
#include "loader/transport/nccl/link.h"
#include "loader/transport/nccl/nccl.h"
#include "loader/transport/transport.h"

namespace headrace::nccl {

class NcclTransport : public Transport {
 public:
  explicit NcclTransport(const GpuOptions& libraries);
  ~NcclTransport() override;

  // Once, before anything else; the errors of NewNcclTransport.
  absl::Status Start(const NcclOptions& options);

  absl::string_view name() const override { return "nccl"; }
  const Capabilities& capabilities() const override { return capabilities_; }
  std::string address() const override { return address_; }
  absl::StatusOr<std::unique_ptr<Region>> AllocateRegion(int64_t bytes) override;
  absl::StatusOr<PeerId> Connect(absl::string_view address, absl::Time deadline) override;
  void Disconnect(PeerId peer) override;
  absl::StatusOr<std::unique_ptr<Mapping>> Map(PeerId peer, absl::string_view key, absl::Time deadline) override;
  absl::StatusOr<OpId> Send(PeerId peer, uint64_t tag, absl::Span<const std::byte> message) override;
  absl::StatusOr<OpId> Receive(PeerId peer, uint64_t tag, absl::Span<std::byte> message) override;
  void Poll(absl::Duration max_wait, std::vector<Completion>* completions) override;
  void Wake() override;
  void Abort(const absl::Status& reason) override;

 private:
  // A connection that was made to this endpoint. It becomes a link's when this endpoint connected to the one that it
  // comes from; what arrives before that waits in it.
  struct Caller {
    std::unique_ptr<Connection> connection;
    absl::Time deadline;  // for its hello
    bool known = false;   // it said a hello
    wire::Hello hello;
  };
  struct Peer {
    std::string address;
    PeerId id = 0;  // 0: this endpoint's user disconnected; the link stays, for when he connects again
    std::unique_ptr<Link> link;
    bool out_closed = false;  // the connection to which this end writes
    // The peer seems to be lost; what it wrote before may still arrive, and say more, until this time.
    absl::Status suspicion;
    absl::Time given_up_at = absl::InfiniteFuture();
    uint64_t broken_off = 0;  // Link's, at the suspicion
  };

  // The link, when operations with the peer may be posted.
  absl::StatusOr<Link*> Reach(PeerId peer, uint64_t tag, size_t size);
  Peer* Find(PeerId peer);
  absl::Status CheckGpus(const wire::Hello& hello) const;
  wire::Frame HelloTo(const Cookie& cookie) const;

  // When something may have happened that no descriptor tells.
  absl::Time LookAgain() const;
  // Waits for news at most until `until`, and takes in what there is.
  void Look(absl::Time until);
  void TakeCallers();
  bool HangUpOnSilent();
  void Hear(Caller& caller);
  // Whether it said something, and the link lasts.
  bool Hear(Peer& peer);
  void Suspect(Peer& peer, const absl::Status& why);
  void Trust(Peer& peer);
  void Introduce();
  void AdvanceLinks();
  void Flush(absl::Time deadline);

  const GpuOptions libraries_;
  Capabilities capabilities_;
  Gpu gpu_;
  std::string gpu_bus_id_;
  std::string host_;
  Listener listener_;
  Cookie cookie_ = {};
  std::string address_;

  std::atomic<bool> woken_ = false;
  absl::Status aborted_;
  PeerId next_peer_ = 1;
  OpId next_op_ = 1;
  std::vector<Completion> done_;
  std::list<Peer> peers_;
  std::list<Caller> callers_;
  absl::Time accept_again_ = absl::InfinitePast();
};

}  // namespace headrace::nccl

#endif  // HEADRACE_LOADER_TRANSPORT_NCCL_ENDPOINT_H_
