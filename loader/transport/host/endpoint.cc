#include "loader/transport/host/endpoint.h"

#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "loader/transport/host/region.h"
#include "loader/transport/host/remote.h"
#include "loader/transport/host/server.h"
#include "loader/transport/host/wire.h"
#include "planner/status.h"

namespace headrace::host {
namespace {

// What is left until `deadline`, at least 1 ms and at most a day (a socket timeout of zero would mean for ever).
// kDeadline when nothing is left.
absl::StatusOr<int> MillisecondsLeft(absl::Time deadline, absl::string_view what) {
  const absl::Duration left = deadline - absl::Now();
  if (left <= absl::ZeroDuration()) {
    return Error(ErrorCode::kDeadline, absl::StrCat(what, ": the deadline passed before the owner answered"));
  }
  return absl::ToInt64Milliseconds(std::clamp(left, absl::Milliseconds(1), absl::Hours(24)));
}

struct Peer {
  std::string address;
  Descriptor socket;
  std::shared_ptr<Owner> owner;
  uint64_t last_sequence = 0;
};

// Receives one packet of a fixed size before the deadline.
template <typename Packet>
absl::Status ReceiveBefore(int socket, absl::Time deadline, absl::string_view what, Packet* packet,
                           Descriptor* attached) {
  HR_ASSIGN_OR_RETURN(const int left_ms, MillisecondsLeft(deadline, what));
  const timeval timeout{left_ms / 1000, left_ms % 1000 * 1000};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  const ssize_t size = ReceivePacket(socket, packet, sizeof *packet, attached);
  if (size == sizeof *packet) return absl::OkStatus();
  // A forked child of a dead owner may hold the connection open: then this, too, is the deadline.
  if (size < 0 && errno == EAGAIN) return MillisecondsLeft(absl::InfinitePast(), what).status();
  if (size == 0 || (size < 0 && errno == ECONNRESET)) {
    return Error(ErrorCode::kPeerLost,
                 absl::StrCat(what, ": the owner closed the connection: it ended, or refused us"));
  }
  return Error(ErrorCode::kTransport,
               absl::StrCat(what, ": ", size < 0 ? strerror(errno) : "a packet of another size"));
}

class Endpoint final : public Transport {
 public:
  Endpoint(std::string name, Capabilities capabilities, std::unique_ptr<RegionMemory> memory, std::string address,
           std::shared_ptr<RegionTable> table, std::unique_ptr<Server> server)
      : name_(std::move(name)),
        capabilities_(std::move(capabilities)),
        memory_(std::move(memory)),
        address_(std::move(address)),
        table_(std::move(table)),
        server_(std::move(server)) {}

  ~Endpoint() override {
    const absl::Status gone = Error(ErrorCode::kTransport, "read: the endpoint was destroyed");
    for (auto& [id, peer] : peers_) peer.owner->ended.Update(gone);
    server_.reset();  // it must not hand out stamps that were wiped
    std::lock_guard<std::mutex> lock(table_->mutex);
    table_->identity.Wipe();
    for (auto& [key, registered] : table_->registrations) registered.stamp->Wipe();
  }

  absl::string_view name() const override { return name_; }
  const Capabilities& capabilities() const override { return capabilities_; }
  std::string address() const override { return address_; }

  absl::StatusOr<std::unique_ptr<Region>> AllocateRegion(int64_t bytes) override { return memory_->New(table_, bytes); }

  absl::StatusOr<PeerId> Connect(absl::string_view address, absl::Time deadline) override {
    HR_RETURN_IF_ERROR(aborted_);
    for (const auto& [id, peer] : peers_) {
      if (peer.address == address) return id;
    }
    Name name;
    Hello hello{kProtocol, {}};
    HR_RETURN_IF_ERROR(ParseAddress(address, &name, &hello.cookie));
    HR_ASSIGN_OR_RETURN(const int left_ms, MillisecondsLeft(deadline, "connect"));
    HR_ASSIGN_OR_RETURN(Descriptor socket, ConnectTo(name, left_ms));
    // Whoever took the name after its owner died must not get the cookie.
    if (!PeerIsSameUser(socket.get())) {
      return Error(ErrorCode::kTransport, "connect: the owner runs under another user id");
    }
    if (!SendPacket(socket.get(), &hello, sizeof hello, -1)) {
      return Error(ErrorCode::kPeerLost, absl::StrCat("connect: the owner closed the connection: ", strerror(errno)));
    }
    HelloReply reply;
    Descriptor none;
    HR_RETURN_IF_ERROR(ReceiveBefore(socket.get(), deadline, "connect", &reply, &none));
    if (reply.protocol != kProtocol) return Error(ErrorCode::kTransport, "connect: another protocol");
    auto owner = ProbeOwner(PeerProcess(socket.get()), reply.identity);
    peers_[next_peer_] = {std::string(address), std::move(socket), std::move(owner)};
    return next_peer_++;
  }

  void Disconnect(PeerId id) override {
    auto peer = peers_.find(id);
    if (peer == peers_.end()) return;
    peer->second.owner->ended.Update(
        Error(ErrorCode::kTransport, absl::StrCat("read: peer ", id, " was disconnected")));
    peers_.erase(peer);
  }

  absl::StatusOr<std::unique_ptr<Mapping>> Map(PeerId id, absl::string_view key, absl::Time deadline) override {
    HR_ASSIGN_OR_RETURN(Peer * peer, Find(id, "map"));
    Descriptor fd;
    HR_ASSIGN_OR_RETURN(const Reply reply, Ask(peer, kMap, key, deadline, "map", &fd));
    if (!reply.found) return NotAKey("map", id);
    if (fd.get() < 0) return Error(ErrorCode::kTransport, "map: no descriptor arrived (descriptor limit reached?)");
    return memory_->Map(std::move(fd), reply.bytes);
  }

  absl::StatusOr<std::unique_ptr<Registration>> Register(absl::Span<const std::byte> memory) override {
    if (!capabilities_.read) return Transport::Register(memory);
    HR_RETURN_IF_ERROR(aborted_);
    if (memory.empty()) return Error(ErrorCode::kInvalidOption, "register: there are no bytes");
    return RegisterMemory(table_, memory);
  }

  absl::Status CheckRead(PeerId id) const override {
    if (!capabilities_.read) return Transport::CheckRead(id);
    auto peer = peers_.find(id);
    if (peer == peers_.end()) return Error(ErrorCode::kTransport, absl::StrCat("read: no peer ", id, " here"));
    return peer->second.owner->readable;
  }

  absl::StatusOr<std::unique_ptr<RemoteMemory>> OpenRemote(PeerId id, absl::string_view key,
                                                           absl::Time deadline) override {
    HR_ASSIGN_OR_RETURN(Peer * peer, Find(id, "open"));
    HR_RETURN_IF_ERROR(CheckRead(id));
    Descriptor none;
    HR_ASSIGN_OR_RETURN(const Reply reply, Ask(peer, kOpen, key, deadline, "open", &none));
    if (!reply.found) return NotAKey("open", id);
    return NewRemoteMemory(peer->owner, reply.address, reply.bytes, reply.stamp);
  }

  absl::StatusOr<OpId> Send(PeerId, uint64_t, absl::Span<const std::byte>) override { return NoMessages(); }
  absl::StatusOr<OpId> Receive(PeerId, uint64_t, absl::Span<std::byte>) override { return NoMessages(); }

  // Nothing is ever pending.
  void Poll(absl::Duration max_wait, std::vector<Completion>*) override {
    std::unique_lock<std::mutex> lock(wake_mutex_);
    const auto woken = [this] { return std::exchange(woken_, false); };
    if (max_wait == absl::InfiniteDuration()) {
      wake_.wait(lock, woken);
    } else {
      wake_.wait_for(lock, absl::ToChronoNanoseconds(max_wait), woken);
    }
  }

  void Wake() override {
    std::lock_guard<std::mutex> lock(wake_mutex_);
    woken_ = true;
    wake_.notify_all();
  }

  void Abort(const absl::Status& reason) override {
    if (aborted_.ok()) aborted_ = Error(ErrorCode::kAborted, reason.message());
    for (auto& [id, peer] : peers_) peer.owner->ended.Update(aborted_);
  }

 private:
  absl::StatusOr<Peer*> Find(PeerId id, absl::string_view what) {
    HR_RETURN_IF_ERROR(aborted_);
    auto it = peers_.find(id);
    if (it == peers_.end()) return Error(ErrorCode::kTransport, absl::StrCat(what, ": no peer ", id, " here"));
    return &it->second;
  }

  // The owner's answer about a key, which is not found when it is none. `attached` takes its descriptor.
  static absl::StatusOr<Reply> Ask(Peer* peer, RequestKind kind, absl::string_view key, absl::Time deadline,
                                   absl::string_view what, Descriptor* attached) {
    Request request{++peer->last_sequence, kind, {}};
    if (key.size() != request.key.size()) return Reply{};
    std::memcpy(request.key.data(), key.data(), key.size());
    if (!SendPacket(peer->socket.get(), &request, sizeof request, -1)) {
      return Error(ErrorCode::kPeerLost, absl::StrCat(what, ": the connection to the owner: ", strerror(errno)));
    }
    Reply reply{};
    do {
      attached->Reset();
      HR_RETURN_IF_ERROR(ReceiveBefore(peer->socket.get(), deadline, what, &reply, attached));
    } while (reply.sequence != request.sequence);
    return reply;
  }

  static absl::Status NotAKey(absl::string_view what, PeerId id) {
    return Error(ErrorCode::kTransport, absl::StrCat(what, ": not a key of peer ", id));
  }

  absl::Status NoMessages() const {
    HR_RETURN_IF_ERROR(aborted_);
    return Error(ErrorCode::kTransport, absl::StrCat("the transport ", name_, " maps memory; it has no messages"));
  }

  const std::string name_;
  const Capabilities capabilities_;
  const std::unique_ptr<RegionMemory> memory_;
  const std::string address_;
  const std::shared_ptr<RegionTable> table_;
  std::unique_ptr<Server> server_;
  std::mutex wake_mutex_;
  std::condition_variable wake_;
  bool woken_ = false;  // under wake_mutex_
  absl::Status aborted_;
  std::map<PeerId, Peer> peers_;
  PeerId next_peer_ = 1;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> NewEndpoint(std::string name, Capabilities capabilities,
                                                       std::unique_ptr<RegionMemory> memory) {
  Name socket;
  Cookie cookie;
  HR_RETURN_IF_ERROR(FillRandom(socket.data(), socket.size()));
  HR_RETURN_IF_ERROR(FillRandom(cookie.data(), cookie.size()));
  auto table = std::make_shared<RegionTable>();
  HR_RETURN_IF_ERROR(table->identity.Set());
  HR_ASSIGN_OR_RETURN(std::unique_ptr<Server> server, Server::Start(socket, cookie, table));
  return std::make_unique<Endpoint>(std::move(name), std::move(capabilities), std::move(memory),
                                    FormatAddress(socket, cookie), std::move(table), std::move(server));
}

}  // namespace headrace::host
