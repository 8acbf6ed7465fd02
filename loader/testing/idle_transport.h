#ifndef HEADRACE_LOADER_TESTING_IDLE_TRANSPORT_H_
#define HEADRACE_LOADER_TESTING_IDLE_TRANSPORT_H_

// Test only. An endpoint that has capabilities and moves nothing.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "loader/transport/transport.h"
#include "planner/status.h"

namespace headrace::testing {

class IdleTransport : public Transport {
 public:
  IdleTransport(std::string name, Capabilities capabilities)
      : name_(std::move(name)), capabilities_(std::move(capabilities)) {}

  absl::string_view name() const override { return name_; }
  const Capabilities& capabilities() const override { return capabilities_; }
  std::string address() const override { return ""; }
  absl::StatusOr<std::unique_ptr<Region>> AllocateRegion(int64_t) override { return Unused(); }
  absl::StatusOr<PeerId> Connect(absl::string_view, absl::Time) override { return Unused(); }
  void Disconnect(PeerId) override {}
  absl::StatusOr<std::unique_ptr<Mapping>> Map(PeerId, absl::string_view, absl::Time) override { return Unused(); }
  absl::StatusOr<OpId> Send(PeerId, uint64_t, absl::Span<const std::byte>) override { return Unused(); }
  absl::StatusOr<OpId> Receive(PeerId, uint64_t, absl::Span<std::byte>) override { return Unused(); }
  void Poll(absl::Duration, std::vector<Completion>*) override {}
  void Wake() override {}
  void Abort(const absl::Status&) override {}

 private:
  static absl::Status Unused() { return Error(ErrorCode::kInternal, "used"); }

  const std::string name_;
  const Capabilities capabilities_;
};

}  // namespace headrace::testing

#endif  // HEADRACE_LOADER_TESTING_IDLE_TRANSPORT_H_
