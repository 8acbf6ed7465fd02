#include "loader/transport/nccl/endpoint.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "loader/transport/boot_id.h"
#include "loader/transport/private_region.h"
#include "planner/status.h"

namespace headrace::nccl {
namespace {

constexpr int64_t kMaxMessageBytes = Lane::kMaxGroupBytes;
constexpr int kTagBits = 48;
// Lanes of each side that may run at once: 2 * 16 * Lane::kCtas thread blocks, half of what the smallest GPU that NCCL
// supports well (an A100 has 108) runs at once.
constexpr int kMaxLanes = 16;
constexpr int kMultiRankVersion = 23000;
constexpr size_t kMaxCallers = 4096;
constexpr size_t kMaxSilent = 256;                               // of them, those that said nothing yet
constexpr size_t kMaxTaken = 1024;                               // at a time
constexpr absl::Duration kAcceptRest = absl::Milliseconds(100);  // where there is no descriptor for a caller
constexpr absl::Duration kHelloTime = absl::Seconds(10);
constexpr absl::Duration kLateFrames = absl::Seconds(1);  // of a peer that seems to be lost
constexpr absl::Duration kCloseTime = absl::Milliseconds(250);
// How often to ask about what nothing tells: joining, launching; and whether what runs failed.
constexpr absl::Duration kProgressTurn = absl::Microseconds(300);
constexpr absl::Duration kHealthTurn = absl::Milliseconds(20);

absl::Status PeerClosed() { return Error(ErrorCode::kPeerLost, "nccl: the peer closed its connection: it ended"); }

}  // namespace

NcclTransport::NcclTransport(const GpuOptions& libraries) : libraries_(libraries) {
  capabilities_.two_sided = true;
  capabilities_.map_reason = "nccl moves messages between GPUs; memory of this host is mapped by the host transport";
  capabilities_.read_reason = "nccl reads no memory of a peer that does not send it";
  capabilities_.max_message_bytes = kMaxMessageBytes;
  capabilities_.tag_bits = kTagBits;
}

absl::Status NcclTransport::Start(const NcclOptions& options) {
  HR_ASSIGN_OR_RETURN(gpu_.cuda, LoadCudaRuntime(libraries_.cuda_runtime));
  HR_ASSIGN_OR_RETURN(gpu_.nccl, LoadLibrary(libraries_.nccl));
  const CudaRuntime& cuda = *gpu_.cuda;
  HR_ASSIGN_OR_RETURN(gpu_.device, GpuOfEndpoint(cuda, options.gpu, "nccl"));
  char bus_id[64] = {};
  HR_RETURN_IF_ERROR(
      cuda.Check(cuda.cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, gpu_.device), "nccl: the GPU's bus id"));
  gpu_bus_id_ = bus_id;
  capabilities_.gpu = gpu_.device;
  host_ = BootId();
  Descriptor ended(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (ended.get() < 0) return Error(ErrorCode::kTransport, absl::StrCat("nccl: eventfd: ", strerror(errno)));
  gpu_.ended = std::make_shared<Descriptor>(std::move(ended));
  for (auto& pool : gpu_.staging) {
    pool = std::make_shared<StagingPool>(cuda, Lane::kStagingBuffers, Lane::kStagingBytes);
  }
  {
    const CurrentDevice current(cuda, gpu_.device);
    HR_RETURN_IF_ERROR(
        cuda.Check(cuda.cudaStreamCreateWithFlags(&gpu_.copies, cuda::kStreamNonBlocking), "nccl: making a stream"));
  }
  HR_ASSIGN_OR_RETURN(listener_, ListenOn(options.device));
  HR_RETURN_IF_ERROR(FillRandom(cookie_.data(), cookie_.size()));
  address_ = FormatAddress({cookie_, listener_.ip, listener_.port});
  return absl::OkStatus();
}

NcclTransport::~NcclTransport() {
  if (gpu_.ended == nullptr) return;  // did not start
  // Small messages count as sent when they were given to their connection.
  Flush(absl::Now() + kCloseTime);
  Abort(Error(ErrorCode::kAborted, "nccl: the endpoint is being destroyed"));
  const CurrentDevice current(*gpu_.cuda, gpu_.device);
  gpu_.staging = {};
  if (gpu_.copies != nullptr) gpu_.cuda->cudaStreamDestroy(gpu_.copies);
}

absl::StatusOr<std::unique_ptr<Region>> NcclTransport::AllocateRegion(int64_t bytes) {
  return PrivateRegion::Allocate(bytes);
}

absl::StatusOr<std::unique_ptr<Mapping>> NcclTransport::Map(PeerId, absl::string_view, absl::Time) {
  HR_RETURN_IF_ERROR(aborted_);
  return Error(ErrorCode::kTransport, absl::StrCat("map: ", capabilities_.map_reason));
}

wire::Frame NcclTransport::HelloTo(const Cookie& cookie) const {
  wire::Frame frame;
  wire::Hello* hello = frame.mutable_hello();
  hello->set_cookie(cookie.data(), cookie.size());
  hello->set_address(address_);
  hello->set_host(host_);
  hello->set_gpu(gpu_bus_id_);
  hello->set_nccl_version(gpu_.nccl->version);
  return frame;
}

absl::StatusOr<PeerId> NcclTransport::Connect(absl::string_view address, absl::Time deadline) {
  HR_RETURN_IF_ERROR(aborted_);
  HR_ASSIGN_OR_RETURN(const Address to, ParseAddress(address));
  const CurrentDevice current(*gpu_.cuda, gpu_.device);
  const auto find = [&] {
    return std::find_if(peers_.begin(), peers_.end(), [&](const Peer& p) { return p.address == address; });
  };
  auto peer = find();
  if (peer != peers_.end() && peer->id == 0) {
    // What the peer gave up, or that it lost the link, must be known before anything new is posted.
    while (Hear(*peer) && absl::Now() < deadline) {
    }
    Look(absl::InfinitePast());
    peer = find();
    // Who closes what this end writes to has lost the link.
    if (peer != peers_.end() && peer->out_closed) {
      peer->link->End(PeerClosed());
      peers_.erase(peer);
      peer = peers_.end();
    }
  }
  if (peer == peers_.end()) {
    HR_ASSIGN_OR_RETURN(Descriptor socket, Dial(to.ip, to.port, deadline));
    auto connection = std::make_unique<Connection>(std::move(socket));
    connection->Queue(HelloTo(to.cookie));
    connection->Flush();
    peer = peers_.emplace(peers_.end());
    peer->address = std::string(address);
    peer->link = std::make_unique<Link>(gpu_, absl::StrCat(to.ip, " port ", to.port), std::move(connection), &done_);
    Introduce();
  }
  if (peer->id == 0) peer->id = next_peer_++;
  return peer->id;
}

NcclTransport::Peer* NcclTransport::Find(PeerId id) {
  const auto peer = std::find_if(peers_.begin(), peers_.end(), [&](const Peer& p) { return p.id == id; });
  return id == 0 || peer == peers_.end() ? nullptr : &*peer;
}

void NcclTransport::Disconnect(PeerId id) {
  Peer* peer = Find(id);
  if (peer == nullptr) return;
  const CurrentDevice current(*gpu_.cuda, gpu_.device);
  peer->id = 0;
  if (!peer->link->lost().ok()) return;
  peer->link->GiveUp(Error(ErrorCode::kAborted, absl::StrCat("nccl: peer ", id, " was disconnected")));
  peer->link->out()->Flush();
  if (!peer->out_closed) Trust(*peer);  // the communicator that failed is no more
}

absl::StatusOr<Link*> NcclTransport::Reach(PeerId id, uint64_t tag, size_t size) {
  HR_RETURN_IF_ERROR(aborted_);
  const Peer* peer = Find(id);
  if (peer == nullptr) return Error(ErrorCode::kTransport, absl::StrCat("nccl: no peer ", id, " here"));
  HR_RETURN_IF_ERROR(peer->link->lost());
  if (tag >> kTagBits != 0) {
    return Error(ErrorCode::kTransport, absl::StrCat("nccl: tag ", tag, " has more than ", kTagBits, " bits"));
  }
  if (size > static_cast<size_t>(kMaxMessageBytes)) {
    return Error(ErrorCode::kTransport,
                 absl::StrCat("nccl: a message of ", size, " bytes is above the limit of ", kMaxMessageBytes));
  }
  return peer->link.get();
}

absl::StatusOr<OpId> NcclTransport::Send(PeerId peer, uint64_t tag, absl::Span<const std::byte> message) {
  const CurrentDevice current(*gpu_.cuda, gpu_.device);
  HR_ASSIGN_OR_RETURN(Link * link, Reach(peer, tag, message.size()));
  const OpId op = next_op_++;
  link->Send(op, tag, message);
  // What is small is sent already, so that nobody needs to poll for it; a broken connection shows in Poll.
  link->out()->Flush();
  return op;
}

absl::StatusOr<OpId> NcclTransport::Receive(PeerId peer, uint64_t tag, absl::Span<std::byte> message) {
  const CurrentDevice current(*gpu_.cuda, gpu_.device);
  HR_ASSIGN_OR_RETURN(Link * link, Reach(peer, tag, message.size()));
  const OpId op = next_op_++;
  link->Receive(op, tag, message);
  return op;
}

void NcclTransport::Poll(absl::Duration max_wait, std::vector<Completion>* completions) {
  const CurrentDevice current(*gpu_.cuda, gpu_.device);
  const absl::Time deadline = absl::Now() + max_wait;
  absl::Time until = absl::InfinitePast();
  while (true) {
    Look(until);  // after Abort, for Wake alone
    AdvanceLinks();
    if (!done_.empty() || absl::Now() >= deadline || woken_.exchange(false)) break;
    until = deadline;
  }
  std::move(done_.begin(), done_.end(), std::back_inserter(*completions));
  done_.clear();
}

void NcclTransport::Wake() {
  woken_ = true;
  const uint64_t one = 1;
  (void)!write(gpu_.ended->get(), &one, sizeof one);
}

void NcclTransport::Abort(const absl::Status& reason) {
  if (!aborted_.ok()) return;
  const CurrentDevice current(*gpu_.cuda, gpu_.device);
  aborted_ = Error(ErrorCode::kAborted, reason.message());
  for (Peer& peer : peers_) peer.link->End(aborted_);
  peers_.clear();
  callers_.clear();
  listener_.socket.Reset();
}

absl::Time NcclTransport::LookAgain() const {
  absl::Time soonest = absl::InfiniteFuture();
  const absl::Time now = absl::Now();
  for (const Peer& peer : peers_) {
    if (peer.link->in_progress()) soonest = std::min(soonest, now + kProgressTurn);
    if (peer.link->sending() || peer.link->receiving()) soonest = std::min(soonest, now + kHealthTurn);
    soonest = std::min(soonest, peer.given_up_at);
  }
  for (const Caller& caller : callers_) soonest = std::min(soonest, caller.deadline);
  if (accept_again_ > now) soonest = std::min(soonest, accept_again_);
  return soonest;
}

void NcclTransport::Look(absl::Time until) {
  // What to do with what became readable or broke.
  const int listener = accept_again_ > absl::Now() ? -1 : listener_.socket.get();
  std::vector<pollfd> events = {{listener, POLLIN, 0}, {gpu_.ended->get(), POLLIN, 0}};
  std::vector<std::function<void()>> then = {[this] { TakeCallers(); },
                                             [this] {
                                               uint64_t count;
                                               (void)!read(gpu_.ended->get(), &count, sizeof count);
                                             }};
  for (Caller& caller : callers_) {
    // One that is known waits, with what it says, for Connect.
    events.push_back({caller.connection->socket(), static_cast<short>(caller.known ? POLLRDHUP : POLLIN), 0});
    then.push_back([this, &caller] { Hear(caller); });
  }
  for (Peer& peer : peers_) {
    if (Connection* out = peer.link->out(); out != nullptr && !peer.out_closed) {
      events.push_back({out->socket(), static_cast<short>(POLLIN | (out->unwritten() ? POLLOUT : 0)), 0});
      then.push_back([this, &peer, at = events.size() - 1, &events] {
        // Nobody writes to it.
        if ((events[at].revents & ~POLLOUT) == 0) return;
        peer.out_closed = true;
        Suspect(peer, PeerClosed());
      });
    }
    if (Connection* in = peer.link->in()) {
      events.push_back({in->socket(), POLLIN, 0});
      then.push_back([this, &peer] { Hear(peer); });
    }
  }
  const absl::Duration wait = std::max(std::min(until, LookAgain()) - absl::Now(), absl::ZeroDuration());
  const timespec timeout = absl::ToTimespec(wait);
  if (ppoll(events.data(), events.size(), wait == absl::InfiniteDuration() ? nullptr : &timeout, nullptr) < 0) return;
  for (size_t i = 0; i < events.size(); ++i) {
    if (events[i].revents != 0) then[i]();
  }
  callers_.remove_if(
      [now = absl::Now()](const Caller& caller) { return caller.connection == nullptr || caller.deadline < now; });
  Introduce();
  for (Peer& peer : peers_) {
    if (peer.link->lost().ok() && peer.given_up_at < absl::Now()) peer.link->End(peer.suspicion);
  }
  peers_.remove_if([](const Peer& peer) { return peer.id == 0 && !peer.link->lost().ok(); });
}

void NcclTransport::TakeCallers() {
  size_t silent = std::count_if(callers_.begin(), callers_.end(), [](const Caller& caller) { return !caller.known; });
  for (size_t taken = 0; taken < kMaxTaken; ++taken) {
    Descriptor socket = TakeConnection(listener_);
    const bool full = socket.get() < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM);
    if (socket.get() < 0 && !full) return;
    if (full || silent >= kMaxSilent) {
      if (!HangUpOnSilent() && full) {
        accept_again_ = absl::Now() + kAcceptRest;
        return;
      }
      silent = 0;
      if (full) continue;
    }
    // Where all said who they are, the oldest makes room.
    if (callers_.size() >= kMaxCallers) {
      const auto oldest = std::find_if(callers_.begin(), callers_.end(),
                                       [](const Caller& caller) { return caller.connection != nullptr; });
      if (oldest != callers_.end()) oldest->connection.reset();
    }
    callers_.push_back({std::make_unique<Connection>(std::move(socket)), absl::Now() + kHelloTime, false, {}});
    ++silent;
  }
}

// Whether there were any. Look forgets them.
bool NcclTransport::HangUpOnSilent() {
  bool any = false;
  for (Caller& caller : callers_) {
    if (caller.known || caller.connection == nullptr) continue;
    Hear(caller);
    if (!caller.known) {
      caller.connection.reset();
      any = true;
    }
  }
  return any;
}

void NcclTransport::Hear(Caller& caller) {
  if (caller.connection == nullptr) return;
  std::vector<wire::Frame> frames;
  const bool open = !caller.known && caller.connection->Read(&frames, 1);
  Cookie cookie;
  // It may have said all that it had to say, and closed.
  const bool hello =
      !frames.empty() && frames.front().has_hello() && frames.front().hello().cookie().size() == cookie.size();
  if (hello) std::memcpy(cookie.data(), frames.front().hello().cookie().data(), cookie.size());
  if (open && frames.empty()) return;
  // It closed, is a stranger, or was known and closed.
  if (!hello || !EqualInConstantTime(cookie, cookie_)) {
    caller.connection.reset();
    return;
  }
  caller.known = true;
  caller.hello = frames.front().hello();
  // Of one peer the newest counts.
  for (Caller& other : callers_) {
    if (&other != &caller && other.known && other.hello.address() == caller.hello.address()) other.connection.reset();
  }
  caller.deadline = absl::InfiniteFuture();
}

absl::Status NcclTransport::CheckGpus(const wire::Hello& hello) const {
  if (hello.host() != host_ || hello.gpu() != gpu_bus_id_) return absl::OkStatus();
  if (libraries_.multi_rank_gpu && std::min(hello.nccl_version(), gpu_.nccl->version) >= kMultiRankVersion)
    return absl::OkStatus();
  return Error(ErrorCode::kTransport,
               absl::StrCat("nccl: both ends are on the GPU ", gpu_bus_id_,
                            ": give each its own, use the transport host, or (NCCL 2.30 or later, at both ends) set "
                            "NCCL_MULTI_RANK_GPU_ENABLE=1"));
}

void NcclTransport::Introduce() {
  for (Peer& peer : peers_) {
    for (auto caller = callers_.begin(); caller != callers_.end();) {
      if (caller->connection == nullptr || !caller->known || caller->hello.address() != peer.address ||
          !peer.link->lost().ok()) {
        ++caller;
      } else if (peer.link->in() != nullptr) {
        // It lost its connection and made another, which waits until this end has done so, too.
        Hear(peer);
        peer.link->End(PeerClosed());
      } else if (absl::Status gpus = CheckGpus(caller->hello); !gpus.ok()) {
        peer.link->End(gpus);
      } else {
        peer.link->Attach(std::move(caller->connection));
        caller = callers_.erase(caller);
        Hear(peer);
      }
    }
  }
}

void NcclTransport::Suspect(Peer& peer, const absl::Status& why) {
  if (peer.given_up_at != absl::InfiniteFuture()) return;
  peer.suspicion = why;
  peer.given_up_at = absl::Now() + kLateFrames;
  peer.broken_off = peer.link->broken_off();
}

void NcclTransport::Trust(Peer& peer) {
  peer.suspicion = absl::OkStatus();
  peer.given_up_at = absl::InfiniteFuture();
}

bool NcclTransport::Hear(Peer& peer) {
  if (peer.link->in() == nullptr) return false;
  std::vector<wire::Frame> frames;
  const bool open = peer.link->in()->Read(&frames);
  for (const wire::Frame& frame : frames) {
    if (absl::Status taken = peer.link->Take(frame); !taken.ok()) {
      peer.link->End(taken);
      return false;
    }
  }
  if (!open) {
    peer.link->End(PeerClosed());
    return false;
  }
  // The communicator that failed was given up by the peer, which lives.
  if (peer.broken_off != peer.link->broken_off() && !peer.out_closed) Trust(peer);
  return !frames.empty();
}

void NcclTransport::AdvanceLinks() {
  int sending = 0, receiving = 0;
  for (const Peer& peer : peers_) {
    sending += peer.link->sending();
    receiving += peer.link->receiving();
  }
  for (Peer& peer : peers_) {
    Link& link = *peer.link;
    if (!link.lost().ok()) continue;
    sending -= link.sending();
    receiving -= link.receiving();
    absl::Status status;
    if (peer.suspicion.ok()) status = link.Advance(sending < kMaxLanes, receiving < kMaxLanes);
    if (HasCode(status, ErrorCode::kPeerLost)) {
      Suspect(peer, status);
    } else if (!status.ok()) {
      link.End(status);
    }
    sending += link.sending();
    receiving += link.receiving();
    if (link.out() != nullptr) link.out()->Flush();
  }
  // Whoever was first is last the next time.
  if (peers_.size() > 1) peers_.splice(peers_.end(), peers_, peers_.begin());
}

void NcclTransport::Flush(absl::Time deadline) {
  while (true) {
    std::vector<pollfd> events;
    for (Peer& peer : peers_) {
      Connection* out = peer.link->out();
      if (out != nullptr && out->Flush() && out->unwritten()) events.push_back({out->socket(), POLLOUT, 0});
    }
    const absl::Duration left = deadline - absl::Now();
    if (events.empty() || left <= absl::ZeroDuration()) return;
    const timespec timeout = absl::ToTimespec(left);
    ppoll(events.data(), events.size(), &timeout, nullptr);
  }
}

}  // namespace headrace::nccl

namespace headrace {

absl::StatusOr<std::unique_ptr<Transport>> NewNcclTransport(const NcclOptions& options) {
  auto transport = std::make_unique<nccl::NcclTransport>(options.libraries);
  HR_RETURN_IF_ERROR(transport->Start(options));
  return transport;
}

}  // namespace headrace
