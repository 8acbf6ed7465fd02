#ifndef HEADRACE_LOADER_TRANSPORT_UCX_ENDPOINT_H_
#define HEADRACE_LOADER_TRANSPORT_UCX_ENDPOINT_H_

// The endpoint behind NewUcxTransport: one UCX context and worker. Private to this folder.
//
// How operations end: UCX calls OnSent or OnReceived, or has ended them by the time that the post returns; both go to
// Done. A peer that died (OnPeerLost), was disconnected or aborted has its operations marked with the reason (End) and
// its UCX endpoint closed (Close); once that is closed, what UCX still holds is given up (AdvanceClosing).

#include <ucp/api/ucp.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "loader/transport/transport.h"
#include "loader/transport/ucx/library.h"
#include "loader/transport/ucx/ucx.h"

namespace headrace::ucx {

class UcxTransport : public Transport {
 public:
  explicit UcxTransport(const Library* library);
  ~UcxTransport() override;

  // Once, before anything else; the errors of NewUcxTransport.
  absl::Status Start(const UcxOptions& options);

  absl::string_view name() const override { return "ucx"; }
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
  struct Peer {
    UcxTransport* transport = nullptr;
    PeerId id = 0;
    uint32_t remote_id = 0;
    std::string address;
    ucp_ep_h ep = nullptr;    // null once it is being closed
    bool used = false;        // something was sent
    absl::Status lost;        // not OK once UCX reported the peer's death
    void* closing = nullptr;  // UCX's request to close the endpoint
  };

  struct Operation {
    UcxTransport* transport = nullptr;
    OpId id = 0;
    PeerId peer = 0;
    bool is_receive = false;
    size_t size = 0;
    void* request = nullptr;  // UCX's; null when it completed at once
    bool done = false;
    ucs_status_t status = UCS_OK;
    size_t received = 0;
    absl::Status ended;  // why it was ended from this side, if it was
  };

  absl::Status ChooseDevices(const UcxOptions& options, ucp_config_t* config) const;

  static void OnSent(void* request, ucs_status_t status, void* operation);
  static void OnReceived(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info, void* operation);
  static void OnPeerLost(void* peer, ucp_ep_h ep, ucs_status_t status);

  absl::Status UcsError(ucs_status_t status, absl::string_view what) const;
  // The peer, when operations with it may be posted.
  absl::StatusOr<Peer*> Reach(PeerId peer, uint64_t tag, size_t size);
  Operation* NewOperation(PeerId peer, bool is_receive, size_t size);
  // Takes note of what UCX answered to a post.
  OpId Posted(Operation* operation, ucs_status_ptr_t request);
  void Done(Operation* operation, ucs_status_t status);
  absl::Status Outcome(const Operation& operation) const;
  // Marks the peer's operations as ended by `why` and takes back receives that nothing has matched yet.
  void End(PeerId peer, const absl::Status& why);
  // Closes the peer's endpoint at once, unless that was begun already.
  void Close(const std::shared_ptr<Peer>& peer);
  // Closes lost peers, and forgets peers that are closed.
  void AdvanceClosing();
  void Progress();
  void Collect(std::vector<Completion>* completions);
  // Blocks until UCX has something to do, at most until `deadline`.
  void Wait(absl::Time deadline);
  template <typename Condition>
  void ProgressUntil(absl::Time deadline, Condition condition);

  const Library* const ucx_;
  Capabilities capabilities_;
  uint32_t id_ = 0;
  std::string address_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;  // the worker's

  std::atomic<bool> woken_ = false;
  absl::Status aborted_;
  std::map<PeerId, std::shared_ptr<Peer>> peers_;
  std::list<std::shared_ptr<Peer>> closing_;  // UCX calls back with the peer's address until its endpoint is closed
  PeerId next_peer_ = 1;
  OpId next_op_ = 1;
  std::map<OpId, std::unique_ptr<Operation>> pending_;
  // Ended while UCX still holds their request (a message that broke off half-way): nothing writes to their buffers any
  // more, since the connection is closed, but UCX may still call back.
  std::list<std::unique_ptr<Operation>> orphans_;
  std::vector<OpId> done_;  // pending operations that are done
  bool any_lost_ = false;   // some peer is lost and not closed yet
};

}  // namespace headrace::ucx

#endif  // HEADRACE_LOADER_TRANSPORT_UCX_ENDPOINT_H_
