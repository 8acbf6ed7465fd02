#include "loader/transport/cuda/cuda.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "loader/gpu/cuda_runtime.h"
#include "loader/gpu/shared_memory.h"
#include "loader/transport/boot_id.h"
#include "loader/transport/cuda/region.h"
#include "loader/transport/host/endpoint.h"
#include "loader/transport/host/wire.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr absl::string_view kPrefix = "headrace-cuda/1/";

// "headrace-cuda/1/" + host + "/" + the local endpoint's address.
struct Address {
  std::string host, local;
};
absl::StatusOr<Address> ParseAddress(absl::string_view text) {
  const size_t end = absl::ConsumePrefix(&text, kPrefix) ? text.find('/') : text.npos;
  if (end == text.npos || end == 0)
    return Error(ErrorCode::kTransport, "connect: not an address of the transport cuda");
  Address address{std::string(text.substr(0, end)), std::string(text.substr(end + 1))};
  host::Name name;
  Cookie cookie;
  HR_RETURN_IF_ERROR(host::ParseAddress(address.local, &name, &cookie));
  return address;
}

// Peers of this host are those of `local`.
class CudaTransport final : public Transport {
 public:
  CudaTransport(std::string host, const SharedMemoryOf& shared, std::unique_ptr<Transport> local)
      : host_(std::move(host)), shared_(shared), local_(std::move(local)) {}

  absl::string_view name() const override { return local_->name(); }
  const Capabilities& capabilities() const override { return local_->capabilities(); }
  std::string address() const override { return absl::StrCat(kPrefix, host_, "/", local_->address()); }

  absl::StatusOr<std::unique_ptr<Region>> AllocateRegion(int64_t bytes) override {
    return local_->AllocateRegion(bytes);
  }

  absl::StatusOr<PeerId> Connect(absl::string_view text, absl::Time deadline) override {
    HR_RETURN_IF_ERROR(aborted_);
    HR_ASSIGN_OR_RETURN(const Address address, ParseAddress(text));
    for (const auto& [id, peer] : peers_) {
      if (peer.address == text) return id;
    }
    Peer peer{std::string(text), std::nullopt};
    if (address.host == host_) {
      HR_ASSIGN_OR_RETURN(peer.local, local_->Connect(address.local, deadline));
    } else if (!shared_.may_have_fabric()) {
      return Error(ErrorCode::kTransport,
                   absl::StrCat("connect: the peer is on another host, whose memory GPU ", shared_.gpu(),
                                " does not map: it has no fabric handles. Take the transport nccl or ucx"));
    }
    peers_[next_peer_] = std::move(peer);
    return next_peer_++;
  }

  void Disconnect(PeerId id) override {
    const auto peer = peers_.find(id);
    if (peer == peers_.end()) return;
    if (peer->second.local.has_value()) local_->Disconnect(*peer->second.local);
    peers_.erase(peer);
  }

  absl::StatusOr<std::unique_ptr<Mapping>> Map(PeerId id, absl::string_view text, absl::Time deadline) override {
    HR_RETURN_IF_ERROR(aborted_);
    const auto peer = peers_.find(id);
    if (peer == peers_.end()) return Error(ErrorCode::kTransport, absl::StrCat("map: no peer ", id, " here"));
    HR_ASSIGN_OR_RETURN(const cuda_regions::RegionKey key, cuda_regions::ParseRegionKey(text));
    // A driver without descriptors shares memory within the host by its fabric handles too.
    const bool by_fd = peer->second.local.has_value() && (shared_.has_fd() || !key.fabric.has_value());
    if (by_fd) return local_->Map(*peer->second.local, key.of_table, deadline);
    return cuda_regions::MapByFabric(shared_, key);
  }

  absl::StatusOr<OpId> Send(PeerId peer, uint64_t tag, absl::Span<const std::byte> message) override {
    return local_->Send(peer, tag, message);
  }
  absl::StatusOr<OpId> Receive(PeerId peer, uint64_t tag, absl::Span<std::byte> message) override {
    return local_->Receive(peer, tag, message);
  }
  void Poll(absl::Duration max_wait, std::vector<Completion>* completions) override {
    local_->Poll(max_wait, completions);
  }
  void Wake() override { local_->Wake(); }

  void Abort(const absl::Status& reason) override {
    if (aborted_.ok()) aborted_ = Error(ErrorCode::kAborted, reason.message());
    local_->Abort(reason);
  }

 private:
  struct Peer {
    std::string address;
    std::optional<PeerId> local;  // none: of another host
  };

  const std::string host_;
  const SharedMemoryOf shared_;
  const std::unique_ptr<Transport> local_;
  absl::Status aborted_;
  std::map<PeerId, Peer> peers_;
  PeerId next_peer_ = 1;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> NewCudaTransport(const CudaOptions& options) {
  HR_ASSIGN_OR_RETURN(const CudaRuntime* cuda, LoadCudaRuntime(options.libraries.cuda_runtime));
  HR_ASSIGN_OR_RETURN(const CudaDriver* driver, LoadCudaDriver(options.libraries.cuda_driver));
  HR_ASSIGN_OR_RETURN(const int gpu, GpuOfEndpoint(*cuda, options.gpu, "cuda"));
  HR_ASSIGN_OR_RETURN(const SharedMemoryOf shared, SharedMemoryOf::Gpu(*cuda, *driver, gpu));
  std::string host = options.host.value_or(BootId());
  if (host.empty()) return Error(ErrorCode::kTransport, "cuda: /proc/sys/kernel/random/boot_id cannot be read");
  Capabilities capabilities;
  capabilities.map = true;
  capabilities.region_gpu = gpu;
  capabilities.read_reason = "a GPU maps what its owner allocated for it; memory of others is not shared";
  HR_ASSIGN_OR_RETURN(auto local,
                      host::NewEndpoint("cuda", std::move(capabilities), cuda_regions::NewGpuRegions(shared)));
  return std::make_unique<CudaTransport>(std::move(host), shared, std::move(local));
}

}  // namespace headrace
