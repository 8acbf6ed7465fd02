#ifndef HEADRACE_LOADER_TRANSPORT_NCCL_LINK_H_
#define HEADRACE_LOADER_TRANSPORT_NCCL_LINK_H_

// What an endpoint and one of its peers have going: their two connections, what was offered, and a lane each way.
//
//   this end                                  peer
//   Send     -> Offer                 ->      meets a receive
//            <- Communicator, Group   <-      launches receives
//   launches sends
//   completed <- Arrived              <-      the group ended; receives completed
//
// A link lasts as long as both endpoints. Either end may give up all that it has under way, and go on: what it has not
// taken yet of the other one's messages stays. Receives of the other end that met what was taken back wait again for
// what comes; its sends that were in a group are stranded: they complete when that end gives up, too, or when the peer
// is lost.
//
// Used by one thread at a time, whose current device is the endpoint's.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "loader/transport/nccl/connection.h"
#include "loader/transport/nccl/lane.h"
#include "loader/transport/nccl/matching.h"
#include "loader/transport/nccl/wire.pb.h"
#include "loader/transport/transport.h"

namespace headrace::nccl {

class Link {
 public:
  // Messages up to this size travel with their offer.
  static constexpr size_t kInlineBytes = 16;
  // Messages of the peer that may wait for a receive; with one more the link is lost. Each takes some 200 bytes here,
  // its content of up to kInlineBytes included, so that a peer can make this end keep about 13 MB. A sender of Headrace
  // has at most staging_bytes / chunk_bytes on the way (256 by default), and leaves a few signals behind for each
  // generation that was given up.
  static constexpr size_t kMaxWaiting = 1 << 16;

  // `out` was dialled; `peer` names the one who was, in errors. Completions are appended to `done`, which outlives the
  // link.
  Link(const Gpu& gpu, std::string peer, std::unique_ptr<Connection> out, std::vector<Completion>* done)
      : gpu_(gpu), peer_(std::move(peer)), out_(std::move(out)), done_(done) {}

  // Not OK once the peer cannot be reached any more: why.
  const absl::Status& lost() const { return lost_; }
  Connection* out() { return out_.get(); }
  Connection* in() { return in_.get(); }

  // The peer dialled, too.
  void Attach(std::unique_ptr<Connection> in) { in_ = std::move(in); }
  void Send(OpId op, uint64_t tag, absl::Span<const std::byte> message);
  void Receive(OpId op, uint64_t tag, absl::Span<std::byte> message);

  // Takes a frame of the peer. kTransport: it breaks the protocol, or more than kMaxWaiting of its messages wait; the
  // errors of Lane.
  absl::Status Take(const wire::Frame& frame);
  void Say(const wire::Frame& frame);

  // Goes on with what is under way. Launches sends or receives where `may_send` and `may_receive` say that one more
  // lane may run.
  absl::Status Advance(bool may_send, bool may_receive);
  bool sending() const { return sending_ != nullptr && sending_->running() > 0; }
  bool receiving() const { return receiving_ != nullptr && receiving_->running() > 0; }
  // Something goes on that nothing tells about.
  bool in_progress() const {
    return (sending_ != nullptr && sending_->in_progress()) || (receiving_ != nullptr && receiving_->in_progress());
  }

  // Completes all that is pending with `why`, and goes on.
  void GiveUp(const absl::Status& why);
  // How often the peer gave up a communicator.
  uint64_t broken_off() const { return broken_off_; }
  // Completes all that is pending with `why`, which the link is lost by.
  void End(const absl::Status& why);

 private:
  absl::Status Broken(absl::string_view what) const;
  Message MessageAt(OpId op, std::byte* memory, size_t bytes) const;
  absl::Status Met(Match match);
  absl::Status TakenBack();
  absl::Status AdvanceReceiving(bool may_launch);
  absl::Status AdvanceSending(bool may_launch);
  void CompleteSent();
  // End what comes or goes, at this end; what was pending. Messages that are not in a group yet stay.
  std::vector<Message> EndReceiving();
  std::vector<OpId> EndSending();
  void Done(OpId op, absl::Status status = absl::OkStatus()) { done_->push_back({op, std::move(status)}); }

  const Gpu gpu_;
  const std::string peer_;
  std::unique_ptr<Connection> out_, in_;
  std::vector<Completion>* const done_;
  absl::Status lost_;

  // Receiving.
  struct Matched {
    uint64_t offer = 0;
    Message message;
  };
  uint64_t offers_taken_ = 0;
  Matching matching_;
  std::deque<Matched> matched_;
  std::map<uint64_t, Match> refused_;  // by the offer, of another size; until the peer says that it dropped it
  std::unique_ptr<Lane> receiving_;
  uint64_t arrived_ = 0;        // groups, of this communicator
  uint64_t seen_give_ups_ = 0;  // of the peer's sending

  // Sending.
  uint64_t offers_made_ = 0;
  std::unordered_map<uint64_t, Message> offered_;
  std::deque<Group> asked_for_;
  std::unique_ptr<Lane> sending_;
  std::deque<Group> left_;                              // groups that ended here
  uint64_t groups_completed_ = 0, groups_arrived_ = 0;  // of this communicator
  uint64_t give_ups_ = 0;
  std::vector<OpId> stranded_;
  uint64_t broken_off_ = 0;
};

}  // namespace headrace::nccl

#endif  // HEADRACE_LOADER_TRANSPORT_NCCL_LINK_H_
