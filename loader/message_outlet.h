#ifndef HEADRACE_LOADER_MESSAGE_OUTLET_H_
#define HEADRACE_LOADER_MESSAGE_OUTLET_H_

// A publisher's outlet on two-sided transports: connects to the receivers that ordered, and sends (sender.h).

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "loader/outlet.h"
#include "loader/sender.h"
#include "loader/transport/transport.h"

namespace headrace {

class MessageOutlet : public Outlet {
 public:
  // Keeps `transport`, which its thread alone uses for messages, and `work`, which packs. Errors are those of
  // Sender::Create.
  static absl::StatusOr<std::unique_ptr<Outlet>> Create(Transport* transport, int64_t chunk_bytes,
                                                        int64_t staging_bytes, BoxWork* work = OnCpu());

  void Start(const Order& order) override;
  void Drop(std::optional<int> engine, std::optional<int> worker) override;
  absl::Status Progress(absl::Duration max_wait) override { return sender_->Progress(max_wait); }
  void Wake() override { transport_->Wake(); }
  size_t active() const override { return sender_->active(); }
  bool polled() const override { return true; }  // the transport wants to be
  bool Reads(int slot) const override { return sender_->Reads(slot); }
  int64_t peak_staging_bytes() const override { return sender_->peak_staging_bytes(); }

 private:
  struct Peer {
    std::string address;
    PeerId id;
  };

  MessageOutlet(Transport* transport, std::unique_ptr<Sender> sender)
      : transport_(transport), sender_(std::move(sender)) {}

  Transport* const transport_;
  const std::unique_ptr<Sender> sender_;
  std::map<MemberKey, Peer> peers_;
  std::shared_ptr<PublisherEpoch> epoch_;  // whose streams the sender refers to
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_MESSAGE_OUTLET_H_
