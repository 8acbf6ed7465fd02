#include "loader/transport/ucx/ucx.h"

#include <poll.h>
#include <sys/random.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "loader/transport/private_region.h"
#include "loader/transport/ucx/address.h"
#include "loader/transport/ucx/devices.h"
#include "loader/transport/ucx/endpoint.h"
#include "loader/transport/ucx/library.h"
#include "planner/status.h"

namespace headrace::ucx {
namespace {

constexpr int64_t kMaxMessageBytes = int64_t{4} << 20;
constexpr int kTagBits = 32;
// A flush is a round trip: it ends early only while the peer polls.
constexpr absl::Duration kCloseTime = absl::Milliseconds(250);

}  // namespace

UcxTransport::UcxTransport(const Library* library) : ucx_(library) {
  capabilities_.two_sided = true;
  capabilities_.map_reason = "ucx moves messages between hosts; memory of this host is mapped by the host transport";
  capabilities_.read_reason =
      "ucx reads a peer's memory only while its owner makes progress, which a publisher that computes does not";
  capabilities_.max_message_bytes = kMaxMessageBytes;
  capabilities_.tag_bits = kTagBits;
}

void UcxTransport::OnSent(void*, ucs_status_t status, void* user_data) {
  auto* operation = static_cast<Operation*>(user_data);
  operation->transport->Done(operation, status);
}

void UcxTransport::OnReceived(void*, ucs_status_t status, const ucp_tag_recv_info_t* info, void* user_data) {
  auto* operation = static_cast<Operation*>(user_data);
  operation->received = info->length;
  operation->transport->Done(operation, status);
}

void UcxTransport::OnPeerLost(void* user_data, ucp_ep_h, ucs_status_t status) {
  auto* peer = static_cast<Peer*>(user_data);
  UcxTransport* transport = peer->transport;
  peer->lost = Error(ErrorCode::kPeerLost,
                     absl::StrCat("ucx: peer ", peer->id, " is dead: ", transport->ucx_->ucs_status_string(status)));
  transport->any_lost_ = true;
}

absl::Status UcxTransport::UcsError(ucs_status_t status, absl::string_view what) const {
  ErrorCode code = ErrorCode::kTransport;
  switch (status) {
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_SHMEM_SEGMENT:
      code = ErrorCode::kOutOfMemory;
      break;
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_REJECTED:
    case UCS_ERR_CANCELED:
    case UCS_ERR_IO_ERROR:
    case UCS_ERR_TIMED_OUT:
    case UCS_ERR_UNREACHABLE:
      code = ErrorCode::kPeerLost;
      break;
    default:
      break;
  }
  return Error(code, absl::StrCat("ucx: ", what, ": ", ucx_->ucs_status_string(status)));
}

absl::Status UcxTransport::ChooseDevices(const UcxOptions& options, ucp_config_t* config) const {
  const char* environment = getenv("UCX_NET_DEVICES");
  const bool told = options.devices.empty() && environment != nullptr;
  const std::string devices = told ? environment : options.devices.empty() ? "lo" : options.devices;
  HR_RETURN_IF_ERROR(CheckDevices(devices, DevicesHere(), told ? "UCX_NET_DEVICES" : "the option `devices`"));
  const ucs_status_t status = ucx_->ucp_config_modify(config, "NET_DEVICES", devices.c_str());
  if (status == UCS_OK) return absl::OkStatus();
  return Error(ErrorCode::kInvalidOption, absl::StrCat("ucx: the list of devices '", devices, "' is refused"));
}

absl::Status UcxTransport::Start(const UcxOptions& options) {
  if (getrandom(&id_, sizeof id_, 0) != sizeof id_) return Error(ErrorCode::kTransport, "ucx: no random numbers");

  ucp_config_t* config = nullptr;
  if (ucs_status_t s = ucx_->ucp_config_read(nullptr, nullptr, &config); s != UCS_OK) {
    return UcsError(s, "reading the UCX_ variables of the environment");
  }
  const char* environment = getenv("UCX_TLS");
  std::string tls = options.tls;
  if (tls.empty()) tls = environment != nullptr ? environment : "^posix,sysv";
  ucs_status_t status = ucx_->ucp_config_modify(config, "TLS", tls.c_str());
  if (status != UCS_OK) {
    ucx_->ucp_config_release(config);
    return Error(ErrorCode::kInvalidOption, absl::StrCat("ucx: the list of transports '", tls, "' is refused"));
  }
  if (absl::Status chosen = ChooseDevices(options, config); !chosen.ok()) {
    ucx_->ucp_config_release(config);
    return chosen;
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  status = ucx_->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  ucx_->ucp_config_release(config);
  if (status != UCS_OK) {
    return UcsError(status, absl::StrCat("no context with the transports '", tls, "' (", ucx_->path, ")"));
  }
  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  status = ucx_->ucp_worker_create(context_, &worker_params, &worker_);
  if (status != UCS_OK) {
    return UcsError(status, absl::StrCat("no worker with the transports '", tls, "'",
                                         status == UCS_ERR_NO_MEMORY
                                             ? "; if they include shared memory (posix, sysv, mm, sm, shm, all), "
                                               "/dev/shm is full or too small: enlarge it or leave them out"
                                             : ""));
  }
  if (status = ucx_->ucp_worker_get_efd(worker_, &event_fd_); status != UCS_OK) {
    return UcsError(status, "no event descriptor");
  }
  ucp_address_t* worker_address = nullptr;
  size_t size = 0;
  if (status = ucx_->ucp_worker_get_address(worker_, &worker_address, &size); status != UCS_OK) {
    return UcsError(status, "no worker address");
  }
  address_ = FormatAddress(id_, {reinterpret_cast<const char*>(worker_address), size});
  ucx_->ucp_worker_release_address(worker_, worker_address);
  return absl::OkStatus();
}

UcxTransport::~UcxTransport() {
  if (worker_ != nullptr) {
    // Completed sends may still lie in UCX's buffers: they go out first. (Closing gently would do that too, but cannot
    // be given up at a deadline: UCX 1.13 then fails an assertion.)
    std::vector<void*> flushes;
    for (const auto& [id, peer] : peers_) {
      const bool sending = std::any_of(pending_.begin(), pending_.end(), [id = id](const auto& entry) {
        return entry.second->peer == id && !entry.second->is_receive && !entry.second->done;
      });
      if (!peer->used || sending || !peer->lost.ok() || peer->ep == nullptr) continue;
      ucp_request_param_t params{};
      void* flush = ucx_->ucp_ep_flush_nbx(peer->ep, &params);
      if (flush != nullptr && !UCS_PTR_IS_ERR(flush)) flushes.push_back(flush);
    }
    ProgressUntil(absl::Now() + kCloseTime, [&] {
      return std::all_of(flushes.begin(), flushes.end(),
                         [this](void* flush) { return ucx_->ucp_request_check_status(flush) != UCS_INPROGRESS; });
    });
    Abort(Error(ErrorCode::kAborted, "ucx: the endpoint is being destroyed"));
    ProgressUntil(absl::Now() + kCloseTime, [this] { return closing_.empty(); });
    for (void* flush : flushes) ucx_->ucp_request_free(flush);
    ucx_->ucp_worker_destroy(worker_);
  }
  if (context_ != nullptr) ucx_->ucp_cleanup(context_);
}

absl::StatusOr<std::unique_ptr<Region>> UcxTransport::AllocateRegion(int64_t bytes) {
  return PrivateRegion::Allocate(bytes);
}

absl::StatusOr<PeerId> UcxTransport::Connect(absl::string_view address, absl::Time) {
  HR_RETURN_IF_ERROR(aborted_);
  auto peer = std::make_shared<Peer>();
  std::string worker_address;
  HR_RETURN_IF_ERROR(ParseAddress(address, &peer->remote_id, &worker_address));
  for (const auto& [id, other] : peers_) {
    if (other->address == address) return id;
    if (other->remote_id == peer->remote_id) {
      return Error(ErrorCode::kTransport, absl::StrCat("ucx: connect: the peer drew the same random id as peer ", id,
                                                       ": make one of the endpoints again"));
    }
  }
  peer->transport = this;
  peer->id = next_peer_++;
  peer->address = std::string(address);
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(worker_address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = OnPeerLost;
  params.err_handler.arg = peer.get();
  if (ucs_status_t s = ucx_->ucp_ep_create(worker_, &params, &peer->ep); s != UCS_OK) {
    return UcsError(s,
                    "connect: nobody listens there any more, or no device in common with the peer (both ends use "
                    "loopback only, unless `devices` or UCX_NET_DEVICES says otherwise)");
  }
  const PeerId id = peer->id;
  peers_[id] = std::move(peer);
  return id;
}

void UcxTransport::Disconnect(PeerId id) {
  auto it = peers_.find(id);
  if (it == peers_.end()) return;
  End(id, Error(ErrorCode::kAborted, absl::StrCat("ucx: peer ", id, " was disconnected")));
  Close(it->second);
  peers_.erase(it);
}

absl::StatusOr<std::unique_ptr<Mapping>> UcxTransport::Map(PeerId, absl::string_view, absl::Time) {
  HR_RETURN_IF_ERROR(aborted_);
  return Error(ErrorCode::kTransport, absl::StrCat("map: ", capabilities_.map_reason));
}

absl::StatusOr<UcxTransport::Peer*> UcxTransport::Reach(PeerId id, uint64_t tag, size_t size) {
  HR_RETURN_IF_ERROR(aborted_);
  auto it = peers_.find(id);
  if (it == peers_.end()) return Error(ErrorCode::kTransport, absl::StrCat("ucx: no peer ", id, " here"));
  HR_RETURN_IF_ERROR(it->second->lost);
  if (tag >> kTagBits != 0) {
    return Error(ErrorCode::kTransport, absl::StrCat("ucx: tag ", tag, " has more than ", kTagBits, " bits"));
  }
  if (size > static_cast<size_t>(kMaxMessageBytes)) {
    return Error(ErrorCode::kTransport,
                 absl::StrCat("ucx: a message of ", size, " bytes is above the limit of ", kMaxMessageBytes));
  }
  return it->second.get();
}

UcxTransport::Operation* UcxTransport::NewOperation(PeerId peer, bool is_receive, size_t size) {
  auto operation = std::make_unique<Operation>();
  operation->transport = this;
  operation->id = next_op_++;
  operation->peer = peer;
  operation->is_receive = is_receive;
  operation->size = size;
  return (pending_[operation->id] = std::move(operation)).get();
}

absl::StatusOr<OpId> UcxTransport::Send(PeerId id, uint64_t tag, absl::Span<const std::byte> message) {
  HR_ASSIGN_OR_RETURN(Peer * peer, Reach(id, tag, message.size()));
  Operation* operation = NewOperation(id, /*is_receive=*/false, message.size());
  peer->used = true;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = OnSent;
  params.user_data = operation;
  return Posted(operation, ucx_->ucp_tag_send_nbx(peer->ep, message.data(), message.size(),
                                                  uint64_t{id_} << kTagBits | tag, &params));
}

absl::StatusOr<OpId> UcxTransport::Receive(PeerId id, uint64_t tag, absl::Span<std::byte> message) {
  HR_ASSIGN_OR_RETURN(Peer * peer, Reach(id, tag, message.size()));
  Operation* operation = NewOperation(id, /*is_receive=*/true, message.size());
  ucp_request_param_t params{};
  // Without immediate completion: 1.13 does not fill recv_info for all messages that arrived before.
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  params.cb.recv = OnReceived;
  params.user_data = operation;
  return Posted(operation, ucx_->ucp_tag_recv_nbx(worker_, message.data(), message.size(),
                                                  uint64_t{peer->remote_id} << kTagBits | tag, ~uint64_t{0}, &params));
}

OpId UcxTransport::Posted(Operation* operation, ucs_status_ptr_t request) {
  // There is no callback for what ended at once, well (null) or not (an error of this message: its size, say).
  if (request == nullptr) {
    Done(operation, UCS_OK);
  } else if (UCS_PTR_IS_ERR(request)) {
    Done(operation, UCS_PTR_STATUS(request));
  } else {
    operation->request = request;
  }
  return operation->id;
}

void UcxTransport::Done(Operation* operation, ucs_status_t status) {
  operation->done = true;
  operation->status = status;
  done_.push_back(operation->id);
}

absl::Status UcxTransport::Outcome(const Operation& operation) const {
  if (operation.status == UCS_ERR_MESSAGE_TRUNCATED ||
      (operation.status == UCS_OK && operation.is_receive && operation.received != operation.size)) {
    return Error(ErrorCode::kTransport, absl::StrCat("ucx: a receive of ", operation.size, " bytes from peer ",
                                                     operation.peer, " got a message of another size"));
  }
  if (operation.status == UCS_OK) return absl::OkStatus();
  if (!operation.ended.ok()) return operation.ended;
  return UcsError(operation.status, absl::StrCat(operation.is_receive ? "a receive from" : "a send to", " peer ",
                                                 operation.peer, " of ", operation.size, " bytes"));
}

void UcxTransport::End(PeerId peer, const absl::Status& why) {
  for (const auto& [id, operation] : pending_) {
    if (operation->peer != peer || operation->done) continue;
    operation->ended = why;
    // Sends cannot be taken back: closing the endpoint ends them.
    if (operation->is_receive) ucx_->ucp_request_cancel(worker_, operation->request);
  }
}

void UcxTransport::Close(const std::shared_ptr<Peer>& peer) {
  if (peer->ep == nullptr) return;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t request = ucx_->ucp_ep_close_nbx(std::exchange(peer->ep, nullptr), &params);
  peer->closing = UCS_PTR_IS_ERR(request) ? nullptr : request;
  closing_.push_back(peer);
}

void UcxTransport::AdvanceClosing() {
  if (std::exchange(any_lost_, false)) {
    for (const auto& [id, peer] : peers_) {
      if (peer->lost.ok() || peer->ep == nullptr) continue;
      End(id, peer->lost);
      Close(peer);  // the peer stays known: later posts say why they fail
    }
  }
  std::erase_if(closing_, [this](const std::shared_ptr<Peer>& peer) {
    if (peer->closing != nullptr) {
      if (ucx_->ucp_request_check_status(peer->closing) == UCS_INPROGRESS) return false;
      ucx_->ucp_request_free(peer->closing);
    }
    // What UCX has not ended by now waits for bytes that cannot come any more.
    for (const auto& [id, operation] : pending_) {
      if (operation->peer == peer->id && !operation->done) Done(operation.get(), UCS_ERR_CANCELED);
    }
    return true;
  });
}

void UcxTransport::Progress() {
  // Stops at the first completion: a busy peer must not keep it from the caller.
  while (ucx_->ucp_worker_progress(worker_) != 0 && done_.empty()) {
  }
}

void UcxTransport::Collect(std::vector<Completion>* completions) {
  const auto held_by_ucx = [this](const Operation& operation) {
    return operation.request != nullptr && ucx_->ucp_request_check_status(operation.request) == UCS_INPROGRESS;
  };
  const auto release = [this](const Operation& operation) {
    if (operation.request != nullptr) ucx_->ucp_request_free(operation.request);
  };
  std::erase_if(orphans_, [&](const std::unique_ptr<Operation>& orphan) {
    if (held_by_ucx(*orphan)) return false;
    release(*orphan);
    return true;
  });
  for (OpId id : std::exchange(done_, {})) {
    auto it = pending_.find(id);
    if (it == pending_.end()) continue;  // an orphan
    completions->push_back({id, Outcome(*it->second)});
    if (held_by_ucx(*it->second)) {
      orphans_.push_back(std::move(it->second));
    } else {
      release(*it->second);
    }
    pending_.erase(it);
  }
}

void UcxTransport::Wait(absl::Time deadline) {
  const ucs_status_t armed = ucx_->ucp_worker_arm(worker_);
  if (armed == UCS_ERR_BUSY) return;  // something arrived in between
  absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
  // An event descriptor that cannot be armed wakes nobody: look again soon.
  if (armed != UCS_OK) left = std::min(left, absl::Milliseconds(1));
  pollfd event{event_fd_, POLLIN, 0};
  const timespec timeout = absl::ToTimespec(left);
  ppoll(&event, 1, left == absl::InfiniteDuration() ? nullptr : &timeout, nullptr);
}

template <typename Condition>
void UcxTransport::ProgressUntil(absl::Time deadline, Condition condition) {
  while (true) {
    Progress();
    AdvanceClosing();
    std::vector<Completion> nobody_asks;
    Collect(&nobody_asks);
    if (condition() || absl::Now() >= deadline) return;
    Wait(deadline);
  }
}

void UcxTransport::Poll(absl::Duration max_wait, std::vector<Completion>* completions) {
  const absl::Time deadline = absl::Now() + max_wait;
  const size_t before = completions->size();
  while (true) {
    Progress();
    AdvanceClosing();
    Collect(completions);
    if (completions->size() > before || max_wait <= absl::ZeroDuration() || absl::Now() >= deadline) return;
    if (woken_.exchange(false)) return;
    Wait(deadline);
  }
}

void UcxTransport::Wake() {
  woken_ = true;
  ucx_->ucp_worker_signal(worker_);
}

void UcxTransport::Abort(const absl::Status& reason) {
  if (!aborted_.ok()) return;
  aborted_ = Error(ErrorCode::kAborted, reason.message());
  while (!peers_.empty()) {
    const std::shared_ptr<Peer> peer = peers_.extract(peers_.begin()).mapped();
    End(peer->id, aborted_);
    Close(peer);
  }
}

}  // namespace headrace::ucx

namespace headrace {

absl::StatusOr<std::unique_ptr<Transport>> NewUcxTransport(const UcxOptions& options) {
  HR_ASSIGN_OR_RETURN(const ucx::Library* library, ucx::LoadLibrary());
  auto transport = std::make_unique<ucx::UcxTransport>(library);
  HR_RETURN_IF_ERROR(transport->Start(options));
  return transport;
}

}  // namespace headrace
