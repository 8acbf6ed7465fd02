#include "loader/transport/memory/memory.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "loader/transport/anonymous_memory.h"
#include "planner/status.h"

namespace headrace {
namespace {

using EndpointId = uint64_t;
using Clock = std::chrono::steady_clock;

// Messages of one (sender, receiver, tag) match in order.
using ChannelKey = std::tuple<EndpointId, EndpointId, uint64_t>;

struct Operation {
  PeerId peer = 0;
  ChannelKey channel;
  std::byte* data = nullptr;  // a send's bytes are only read
  size_t size = 0;
  // Of a send: when it arrives (in steps), and what happens to it.
  int64_t arrives = 0;
  bool dropped = false;
  bool corrupted = false;
};

struct Channel {
  std::deque<std::pair<EndpointId, OpId>> sends, receives;
};

struct Endpoint {
  absl::Status ended;  // not OK after Abort or Cut: every later call fails with it
  std::map<PeerId, EndpointId> peers;
  PeerId next_peer = 1;
  OpId next_op = 1;
  std::map<OpId, Operation> pending;
  std::vector<Completion> ready;
  bool woken = false;
  std::condition_variable wake;  // `ready` is not empty, or `woken`
};

constexpr absl::string_view kAddressPrefix = "headrace-memory/";

}  // namespace

struct MemoryFabric::State {
  struct SharedRegion {
    EndpointId owner;
    std::shared_ptr<AnonymousMemory> memory;
  };
  struct Registered {
    EndpointId owner;
    absl::Span<const std::byte> memory;
  };

  std::mutex mutex;  // guards everything below
  MemoryOptions options;
  std::mt19937_64 random;
  int64_t step = 0;
  uint64_t next_id = 1;
  std::map<EndpointId, std::unique_ptr<Endpoint>> endpoints;  // the living ones, and those that were cut
  std::map<std::string, SharedRegion> regions;
  std::map<std::string, Registered> registrations;
  std::map<ChannelKey, Channel> channels;
  int64_t regions_held = 0, region_bytes_held = 0, mappings_held = 0;
  std::set<ChannelKey> delayed;  // channels whose first send has not arrived yet

  bool Alive(EndpointId id) const {
    auto it = endpoints.find(id);
    return it != endpoints.end() && !HasCode(it->second->ended, ErrorCode::kPeerLost);
  }

  // The endpoint behind a peer of `self`, when it can be used.
  absl::StatusOr<EndpointId> Reach(const Endpoint& self, PeerId peer) const {
    HR_RETURN_IF_ERROR(self.ended);
    auto it = self.peers.find(peer);
    if (it == self.peers.end()) return Error(ErrorCode::kTransport, absl::StrCat("no peer ", peer, " here"));
    if (!Alive(it->second)) return Error(ErrorCode::kPeerLost, absl::StrCat("peer ", peer, " is dead"));
    return it->second;
  }

  bool Happens(double probability) { return std::uniform_real_distribution<double>(0, 1)(random) < probability; }

  void Complete(EndpointId id, OpId op, absl::Status status) {
    Endpoint& endpoint = *endpoints.at(id);
    endpoint.pending.erase(op);
    endpoint.ready.push_back({op, std::move(status)});
    if (options.reorder_completions) {
      std::uniform_int_distribution<size_t> place(0, endpoint.ready.size() - 1);
      std::swap(endpoint.ready.back(), endpoint.ready[place(random)]);
    }
    endpoint.wake.notify_all();
  }

  void Match(const ChannelKey& key) {
    Channel& channel = channels[key];
    while (!channel.sends.empty() && !channel.receives.empty()) {
      const auto [sender, send_id] = channel.sends.front();
      const auto [receiver, receive_id] = channel.receives.front();
      const Operation& send = endpoints.at(sender)->pending.at(send_id);
      const Operation& receive = endpoints.at(receiver)->pending.at(receive_id);
      if (send.arrives > step) {
        delayed.insert(key);
        return;
      }
      channel.sends.pop_front();
      channel.receives.pop_front();
      if (send.dropped) continue;  // both stay pending, matched with nothing
      absl::Status status;
      if (send.size != receive.size) {
        status = Error(ErrorCode::kTransport, absl::StrCat("a receive of ", receive.size, " bytes got a message of ",
                                                           send.size, " bytes (tag ", std::get<2>(key), ")"));
      } else if (send.size > 0) {
        std::memcpy(receive.data, send.data, send.size);
        if (send.corrupted) receive.data[random() % send.size] ^= std::byte{1} << (random() % 8);
      }
      Complete(receiver, receive_id, std::move(status));
      Complete(sender, send_id, absl::OkStatus());
    }
    delayed.erase(key);
    if (channel.sends.empty() && channel.receives.empty()) channels.erase(key);
  }

  // One step of the fabric's clock: delayed messages may arrive. Returns whether some are still on their way.
  bool Step() {
    ++step;
    for (const ChannelKey& key : std::vector<ChannelKey>(delayed.begin(), delayed.end())) Match(key);
    return !delayed.empty();
  }

  // Ends the pending operations of `id` for which `ends` is true, with `status`.
  template <typename Predicate>
  void End(EndpointId id, const absl::Status& status, Predicate ends) {
    std::vector<std::pair<OpId, ChannelKey>> ended;
    for (const auto& [op, operation] : endpoints.at(id)->pending) {
      if (ends(operation)) ended.emplace_back(op, operation.channel);
    }
    for (const auto& [op, key] : ended) {
      if (auto channel = channels.find(key); channel != channels.end()) {
        std::erase(channel->second.sends, std::make_pair(id, op));
        std::erase(channel->second.receives, std::make_pair(id, op));
      }
      Complete(id, op, status);
    }
    // What waited behind a delayed send may go on, and an empty channel goes away.
    for (const auto& [op, key] : ended) Match(key);
  }

  void Kill(EndpointId id) {
    const absl::Status lost = Error(ErrorCode::kPeerLost, absl::StrCat("endpoint ", id, " of the memory fabric died"));
    endpoints.at(id)->ended = lost;
    End(id, lost, [](const Operation&) { return true; });
    for (auto& [other, endpoint] : endpoints) {
      End(other, lost,
          [&](const Operation& o) { return std::get<0>(o.channel) == id || std::get<1>(o.channel) == id; });
    }
  }
};

namespace {

using State = MemoryFabric::State;

class MemoryRegion : public Region {
 public:
  // Under the fabric's lock.
  MemoryRegion(std::shared_ptr<State> state, std::shared_ptr<AnonymousMemory> memory, std::string key)
      : state_(std::move(state)), memory_(std::move(memory)), key_(std::move(key)) {
    ++state_->regions_held;
    state_->region_bytes_held += static_cast<int64_t>(memory_->bytes().size());
  }
  ~MemoryRegion() override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    --state_->regions_held;
    state_->region_bytes_held -= static_cast<int64_t>(memory_->bytes().size());
    state_->regions.erase(key_);
  }
  absl::Span<std::byte> bytes() override { return memory_->bytes(); }
  std::string key() const override { return key_; }

 private:
  std::shared_ptr<State> state_;
  std::shared_ptr<AnonymousMemory> memory_;
  std::string key_;
};

class MemoryMapping : public Mapping {
 public:
  // Under the fabric's lock.
  MemoryMapping(std::shared_ptr<State> state, std::shared_ptr<AnonymousMemory> memory)
      : state_(std::move(state)), memory_(std::move(memory)) {
    ++state_->mappings_held;
  }
  ~MemoryMapping() override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    --state_->mappings_held;
  }
  absl::Span<const std::byte> bytes() const override { return memory_->bytes(); }

 private:
  std::shared_ptr<State> state_;
  std::shared_ptr<AnonymousMemory> memory_;
};

class MemoryRegistration : public Registration {
 public:
  MemoryRegistration(std::shared_ptr<State> state, std::string key) : state_(std::move(state)), key_(std::move(key)) {}
  ~MemoryRegistration() override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->registrations.erase(key_);
  }
  std::string key() const override { return key_; }

 private:
  std::shared_ptr<State> state_;
  std::string key_;
};

// Reads under the fabric's lock, so that memory is never read after its registration was destroyed.
class MemoryRemote : public RemoteMemory {
 public:
  MemoryRemote(std::shared_ptr<State> state, EndpointId self, PeerId peer, std::string key, int64_t bytes)
      : state_(std::move(state)), self_(self), peer_(peer), key_(std::move(key)), bytes_(bytes) {}

  int64_t bytes() const override { return bytes_; }

  absl::Status Read(absl::Span<const ReadRange> ranges, std::byte* out, absl::Time deadline) override {
    HR_RETURN_IF_ERROR(CheckRanges(ranges, bytes_));
    std::lock_guard<std::mutex> lock(state_->mutex);
    auto self = state_->endpoints.find(self_);
    if (self == state_->endpoints.end()) return Error(ErrorCode::kTransport, "read: the endpoint was destroyed");
    HR_RETURN_IF_ERROR(state_->Reach(*self->second, peer_).status());
    if (deadline <= absl::Now()) return Error(ErrorCode::kDeadline, "read: the deadline has passed");
    auto registered = state_->registrations.find(key_);
    if (registered == state_->registrations.end()) {
      return Error(ErrorCode::kTransport, absl::StrCat("read: peer ", peer_, " revoked this memory"));
    }
    int64_t total = 0;
    for (const ReadRange& range : ranges) {
      if (range.bytes > 0) std::memcpy(out + total, registered->second.memory.data() + range.offset, range.bytes);
      total += range.bytes;
    }
    if (total > 0 && state_->Happens(state_->options.corrupt_probability)) {
      out[state_->random() % total] ^= std::byte{1} << (state_->random() % 8);
    }
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<State> state_;
  const EndpointId self_;
  const PeerId peer_;
  const std::string key_;
  const int64_t bytes_;
};

class MemoryTransport : public Transport {
 public:
  explicit MemoryTransport(std::shared_ptr<State> state) : state_(std::move(state)) {
    std::lock_guard<std::mutex> lock(state_->mutex);
    id_ = state_->next_id++;
    self_ = state_->endpoints.emplace(id_, std::make_unique<Endpoint>()).first->second.get();
    capabilities_.map = state_->options.map;
    capabilities_.read = state_->options.read;
    capabilities_.two_sided = state_->options.two_sided;
    if (!capabilities_.read) capabilities_.read_reason = "the memory fabric was made without read";
    if (!capabilities_.map) capabilities_.map_reason = "the memory fabric was made without map";
    if (capabilities_.two_sided) {
      capabilities_.max_message_bytes = state_->options.max_message_bytes;
      capabilities_.tag_bits = 64;
    }
  }

  ~MemoryTransport() override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->Kill(id_);
    state_->endpoints.erase(id_);
  }

  absl::string_view name() const override { return "memory"; }
  const Capabilities& capabilities() const override { return capabilities_; }
  std::string address() const override { return absl::StrCat(kAddressPrefix, id_); }

  absl::StatusOr<std::unique_ptr<Region>> AllocateRegion(int64_t bytes) override {
    HR_ASSIGN_OR_RETURN(std::shared_ptr<AnonymousMemory> memory, AnonymousMemory::Allocate(bytes));
    std::lock_guard<std::mutex> lock(state_->mutex);
    std::string key;
    if (capabilities_.map) {
      key = absl::StrCat("region/", state_->next_id++);
      state_->regions[key] = {id_, memory};
    }
    return std::make_unique<MemoryRegion>(state_, std::move(memory), std::move(key));
  }

  absl::StatusOr<PeerId> Connect(absl::string_view address, absl::Time) override {
    EndpointId id = 0;
    if (!absl::ConsumePrefix(&address, kAddressPrefix) || !absl::SimpleAtoi(address, &id)) {
      return Error(ErrorCode::kTransport, "connect: not an address of the memory transport");
    }
    std::lock_guard<std::mutex> lock(state_->mutex);
    HR_RETURN_IF_ERROR(self_->ended);
    if (!state_->Alive(id)) {
      return Error(ErrorCode::kPeerLost, absl::StrCat("connect: endpoint ", id, " of the memory fabric is gone"));
    }
    for (const auto& [peer, endpoint] : self_->peers) {
      if (endpoint == id) return peer;
    }
    self_->peers[self_->next_peer] = id;
    return self_->next_peer++;
  }

  void Disconnect(PeerId peer) override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->End(id_, Error(ErrorCode::kAborted, absl::StrCat("peer ", peer, " was disconnected")),
                [&](const Operation& o) { return o.peer == peer; });
    self_->peers.erase(peer);
  }

  absl::StatusOr<std::unique_ptr<Mapping>> Map(PeerId peer, absl::string_view key, absl::Time) override {
    if (!capabilities_.map) return Error(ErrorCode::kTransport, capabilities_.map_reason);
    std::lock_guard<std::mutex> lock(state_->mutex);
    HR_ASSIGN_OR_RETURN(EndpointId owner, state_->Reach(*self_, peer));
    auto region = state_->regions.find(std::string(key));
    if (region == state_->regions.end() || region->second.owner != owner) {
      return Error(ErrorCode::kTransport, absl::StrCat("map: not the key of a region of peer ", peer));
    }
    return std::make_unique<MemoryMapping>(state_, region->second.memory);
  }

  absl::StatusOr<std::unique_ptr<Registration>> Register(absl::Span<const std::byte> memory) override {
    if (!capabilities_.read) return Transport::Register(memory);
    if (memory.empty()) return Error(ErrorCode::kInvalidOption, "register: there are no bytes");
    std::lock_guard<std::mutex> lock(state_->mutex);
    HR_RETURN_IF_ERROR(self_->ended);
    const std::string key = absl::StrCat("registration/", state_->next_id++);
    state_->registrations[key] = {id_, memory};
    return std::make_unique<MemoryRegistration>(state_, key);
  }

  absl::Status CheckRead(PeerId peer) const override {
    if (!capabilities_.read) return Transport::CheckRead(peer);
    std::lock_guard<std::mutex> lock(state_->mutex);
    if (self_->peers.count(peer) == 0) return Error(ErrorCode::kTransport, absl::StrCat("no peer ", peer, " here"));
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<RemoteMemory>> OpenRemote(PeerId peer, absl::string_view key,
                                                           absl::Time deadline) override {
    if (!capabilities_.read) return Transport::OpenRemote(peer, key, deadline);
    std::lock_guard<std::mutex> lock(state_->mutex);
    HR_ASSIGN_OR_RETURN(EndpointId owner, state_->Reach(*self_, peer));
    auto registered = state_->registrations.find(std::string(key));
    if (registered == state_->registrations.end() || registered->second.owner != owner) {
      return Error(ErrorCode::kTransport, absl::StrCat("open: not the key of memory that peer ", peer, " registered"));
    }
    return std::make_unique<MemoryRemote>(state_, id_, peer, std::string(key), registered->second.memory.size());
  }

  absl::StatusOr<OpId> Send(PeerId peer, uint64_t tag, absl::Span<const std::byte> message) override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    HR_ASSIGN_OR_RETURN(EndpointId receiver, state_->Reach(*self_, peer));
    const MemoryOptions& faults = state_->options;
    Operation operation{peer, {id_, receiver, tag}, const_cast<std::byte*>(message.data()), message.size()};
    operation.dropped = state_->Happens(faults.drop_probability);
    operation.corrupted = state_->Happens(faults.corrupt_probability);
    operation.arrives = state_->step;
    if (state_->Happens(faults.delay_probability)) {
      operation.arrives += std::uniform_int_distribution<int>(1, std::max(1, faults.max_delay_steps))(state_->random);
    }
    return Post(operation, &Channel::sends);
  }

  absl::StatusOr<OpId> Receive(PeerId peer, uint64_t tag, absl::Span<std::byte> message) override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    HR_ASSIGN_OR_RETURN(EndpointId sender, state_->Reach(*self_, peer));
    return Post({peer, {sender, id_, tag}, message.data(), message.size()}, &Channel::receives);
  }

  void Poll(absl::Duration max_wait, std::vector<Completion>* completions) override {
    std::unique_lock<std::mutex> lock(state_->mutex);
    // The clock stands still unless somebody polls: a Poll that may wait lets it run until all has arrived.
    while (state_->Step() && max_wait > absl::ZeroDuration() && self_->ready.empty()) {
    }
    if (max_wait > absl::ZeroDuration()) {
      const auto arrived = [this] { return !self_->ready.empty() || std::exchange(self_->woken, false); };
      if (max_wait == absl::InfiniteDuration()) {
        self_->wake.wait(lock, arrived);
      } else {
        self_->wake.wait_until(lock, Clock::now() + absl::ToChronoNanoseconds(max_wait), arrived);
      }
    }
    for (Completion& completion : self_->ready) completions->push_back(std::move(completion));
    self_->ready.clear();
  }

  void Wake() override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    self_->woken = true;
    self_->wake.notify_all();
  }

  void Abort(const absl::Status& reason) override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    if (self_->ended.ok()) self_->ended = Error(ErrorCode::kAborted, reason.message());
    state_->End(id_, self_->ended, [](const Operation&) { return true; });
  }

 private:
  absl::StatusOr<OpId> Post(const Operation& operation, std::deque<std::pair<EndpointId, OpId>> Channel::*side) {
    if (!capabilities_.two_sided) return Error(ErrorCode::kTransport, "the memory fabric was made without two_sided");
    if (operation.size > static_cast<uint64_t>(capabilities_.max_message_bytes)) {
      return Error(ErrorCode::kTransport, absl::StrCat("a message of ", operation.size, " bytes is above the limit of ",
                                                       capabilities_.max_message_bytes));
    }
    const OpId op = self_->next_op++;
    self_->pending[op] = operation;
    (state_->channels[operation.channel].*side).emplace_back(id_, op);
    state_->Match(operation.channel);
    return op;
  }

  std::shared_ptr<State> state_;
  EndpointId id_ = 0;
  Endpoint* self_ = nullptr;  // owned by state_
  Capabilities capabilities_;
};

}  // namespace

MemoryFabric::MemoryFabric(const MemoryOptions& options) : state_(std::make_shared<State>()) {
  state_->options = options;
  state_->random.seed(options.seed);
}

MemoryFabric::~MemoryFabric() = default;

std::unique_ptr<Transport> MemoryFabric::NewEndpoint() { return std::make_unique<MemoryTransport>(state_); }

void MemoryFabric::Cut(absl::string_view address) {
  EndpointId id = 0;
  if (!absl::ConsumePrefix(&address, kAddressPrefix) || !absl::SimpleAtoi(address, &id)) return;
  std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->Alive(id)) state_->Kill(id);
}

MemoryUsage MemoryFabric::Usage() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  MemoryUsage usage;
  usage.endpoints = static_cast<int64_t>(state_->endpoints.size());
  usage.regions = state_->regions_held;
  usage.region_bytes = state_->region_bytes_held;
  usage.mappings = state_->mappings_held;
  usage.registrations = static_cast<int64_t>(state_->registrations.size());
  for (const auto& [id, endpoint] : state_->endpoints) usage.pending += static_cast<int64_t>(endpoint->pending.size());
  usage.channels = static_cast<int64_t>(state_->channels.size());
  return usage;
}

void MemoryFabric::SetFaults(const MemoryOptions& options) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  const MemoryOptions before = std::exchange(state_->options, options);
  state_->options.map = before.map;
  state_->options.read = before.read;
  state_->options.two_sided = before.two_sided;
  state_->options.max_message_bytes = before.max_message_bytes;
  state_->random.seed(options.seed);
}

}  // namespace headrace
