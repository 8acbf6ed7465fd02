#include "loader/transport/nccl/link.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace::nccl {
namespace {

absl::Status OtherSize(const Match& match) {
  return Error(ErrorCode::kTransport,
               absl::StrCat("nccl: a receive of ", match.receive.bytes, " bytes met a message of ", match.offer.bytes));
}

void Append(const Group& group, std::vector<OpId>* ops) {
  for (const Message& message : group) ops->push_back(message.op);
}

}  // namespace

// A receive on the host and a send of device memory, or the other way round, go together: each end looks at its own.
Message Link::MessageAt(OpId op, std::byte* memory, size_t bytes) const {
  cuda::PointerAttributes attributes = {};
  const bool known = gpu_.cuda->cudaPointerGetAttributes(&attributes, memory) == cuda::kSuccess;
  return {op, memory, bytes, known && attributes.type == cuda::kDevice};
}

absl::Status Link::Broken(absl::string_view what) const {
  return Error(ErrorCode::kTransport, absl::StrCat("nccl: the peer at ", peer_, " breaks the protocol: ", what));
}

void Link::Say(const wire::Frame& frame) { out_->Queue(frame); }

void Link::Send(OpId op, uint64_t tag, absl::Span<const std::byte> message) {
  wire::Frame frame;
  wire::Offer* offer = frame.mutable_offer();
  offer->set_tag(tag);
  offer->set_bytes(message.size());
  const uint64_t number = offers_made_++;
  // NCCL does not write to what it sends.
  const Message sent = MessageAt(op, const_cast<std::byte*>(message.data()), message.size());
  if (message.empty() || (message.size() <= kInlineBytes && !sent.on_device)) {
    offer->set_content(message.data(), message.size());
    Done(op);
  } else {
    offered_.emplace(number, sent);
  }
  Say(frame);
}

void Link::Receive(OpId op, uint64_t tag, absl::Span<std::byte> message) {
  std::optional<Match> match = matching_.Add(PostedReceive{op, message.data(), message.size(), tag});
  if (!match.has_value()) return;
  if (absl::Status met = Met(*std::move(match)); !met.ok()) End(met);
}

absl::Status Link::Met(Match match) {
  const PostedReceive& receive = match.receive;
  const bool whole = match.offer.content.has_value();
  if (match.offer.bytes != receive.bytes) {
    if (whole) {
      Done(receive.op, OtherSize(match));
      return absl::OkStatus();
    }
    wire::Frame frame;
    frame.set_refused(match.offer.number);
    Say(frame);
    refused_.emplace(match.offer.number, std::move(match));
    return absl::OkStatus();
  }
  Message message = MessageAt(receive.op, receive.to, receive.bytes);
  message.tag = receive.tag;
  if (!whole) {
    matched_.push_back({match.offer.number, message});
    return absl::OkStatus();
  }
  absl::Status copied;
  if (message.on_device) {
    cuda::Error error = gpu_.cuda->cudaMemcpyAsync(receive.to, match.offer.content->data(), receive.bytes,
                                                   cuda::kMemcpyHostToDevice, gpu_.copies);
    if (error == cuda::kSuccess) error = gpu_.cuda->cudaStreamSynchronize(gpu_.copies);
    copied = gpu_.cuda->Check(error, "nccl: copying a message to the device");
  } else if (receive.bytes > 0) {
    std::memcpy(receive.to, match.offer.content->data(), receive.bytes);
  }
  Done(receive.op, copied);
  return copied;
}

absl::Status Link::Take(const wire::Frame& frame) {
  switch (frame.kind_case()) {
    case wire::Frame::kOffer: {
      IncomingOffer offer{offers_taken_++, frame.offer().bytes(), std::nullopt};
      if (offer.bytes <= kInlineBytes && frame.offer().content().size() == offer.bytes) {
        offer.content = frame.offer().content();
      } else if (!frame.offer().content().empty()) {
        return Broken("an offer's content is not of the size that it says");
      }
      std::optional<Match> match = matching_.Add(frame.offer().tag(), std::move(offer));
      if (match.has_value()) return Met(*std::move(match));
      if (matching_.waiting_offers() <= kMaxWaiting) return absl::OkStatus();
      return Error(ErrorCode::kTransport,
                   absl::StrCat("nccl: more than ", kMaxWaiting, " messages of the peer at ", peer_,
                                " wait for a receive here: it has to await receives, or to send larger messages"));
    }
    case wire::Frame::kCommunicator: {
      if (frame.communicator().give_ups() != give_ups_) return absl::OkStatus();
      UniqueId id;
      if (frame.communicator().id().size() != sizeof id || sending_ != nullptr) return Broken("a second communicator");
      std::memcpy(&id, frame.communicator().id().data(), sizeof id);
      HR_ASSIGN_OR_RETURN(sending_, Lane::Open(gpu_, Lane::Side::kSend, id));
      return absl::OkStatus();
    }
    case wire::Frame::kGroup: {
      if (frame.group().give_ups() != give_ups_) return absl::OkStatus();
      if (sending_ == nullptr || frame.group().offers().empty() ||
          frame.group().offers_size() > static_cast<int>(Lane::kMaxOperations)) {
        return Broken("a group without a communicator, or of too many messages");
      }
      // What is in a group is completed with it, also where the group turns out to be wrong.
      Group& group = asked_for_.emplace_back();
      size_t bytes = 0;
      for (uint64_t number : frame.group().offers()) {
        const auto offer = offered_.find(number);
        if (offer == offered_.end()) return Broken("it asks for what was not offered");
        group.push_back(offer->second);
        bytes += offer->second.bytes;
        offered_.erase(offer);
      }
      return bytes <= Lane::kMaxGroupBytes ? absl::OkStatus() : Broken("a group of too many bytes");
    }
    case wire::Frame::kArrived:
      if (frame.arrived().give_ups() != give_ups_) return absl::OkStatus();
      groups_arrived_ = frame.arrived().groups();
      CompleteSent();
      return absl::OkStatus();
    case wire::Frame::kRefused: {
      const auto offer = offered_.find(frame.refused());
      if (offer == offered_.end()) return absl::OkStatus();  // it was taken back
      Done(offer->second.op);  // its memory is free again, which is all that a send promises
      offered_.erase(offer);
      wire::Frame dropped;
      dropped.set_dropped(frame.refused());
      Say(dropped);
      return absl::OkStatus();
    }
    case wire::Frame::kDropped:
      if (const auto match = refused_.find(frame.dropped()); match != refused_.end()) {
        Done(match->second.receive.op, OtherSize(match->second));
        refused_.erase(match);
      }
      return absl::OkStatus();
    case wire::Frame::kGaveUpReceiving:
      ++broken_off_;
      for (OpId op : EndSending()) stranded_.push_back(op);
      return absl::OkStatus();
    case wire::Frame::kGaveUpSending:
      ++broken_off_;
      ++seen_give_ups_;
      return TakenBack();
    default:
      return Broken("an unknown frame, or a second hello");
  }
}

absl::Status Link::TakenBack() {
  matching_.ForgetOffers();
  std::vector<PostedReceive> again;
  const auto add = [&](const Message& message) {
    again.push_back({message.op, message.memory, message.bytes, message.tag});
  };
  for (const Message& message : EndReceiving()) add(message);
  for (const Matched& matched : std::exchange(matched_, {})) add(matched.message);
  for (const auto& [number, match] : std::exchange(refused_, {})) again.push_back(match.receive);
  absl::Status status;
  for (Match& match : matching_.PutBack(std::move(again))) status.Update(Met(std::move(match)));
  return status;
}

absl::Status Link::Advance(bool may_send, bool may_receive) {
  HR_RETURN_IF_ERROR(AdvanceReceiving(may_receive || receiving()));
  return AdvanceSending(may_send || sending());
}

absl::Status Link::AdvanceReceiving(bool may_launch) {
  if (!matched_.empty() && receiving_ == nullptr) {
    UniqueId id;
    HR_RETURN_IF_ERROR(gpu_.nccl->Check(gpu_.nccl->ncclGetUniqueId(&id), "making a communicator's id"));
    HR_ASSIGN_OR_RETURN(receiving_, Lane::Open(gpu_, Lane::Side::kReceive, id));
    wire::Frame frame;
    frame.mutable_communicator()->set_id(id.internal, sizeof id.internal);
    frame.mutable_communicator()->set_give_ups(seen_give_ups_);
    Say(frame);
  }
  if (receiving_ == nullptr) return absl::OkStatus();
  HR_RETURN_IF_ERROR(receiving_->Advance());
  for (Group group = receiving_->Take(); !group.empty(); group = receiving_->Take()) {
    for (const Message& message : group) Done(message.op);
    wire::Frame frame;
    frame.mutable_arrived()->set_groups(++arrived_);
    frame.mutable_arrived()->set_give_ups(seen_give_ups_);
    Say(frame);
  }
  while (may_launch && !matched_.empty() && receiving_->ready()) {
    wire::Frame frame;
    frame.mutable_group()->set_give_ups(seen_give_ups_);
    Group group;
    size_t bytes = 0;
    while (!matched_.empty() && group.size() < Lane::kMaxOperations &&
           bytes + matched_.front().message.bytes <= Lane::kMaxGroupBytes) {
      bytes += matched_.front().message.bytes;
      frame.mutable_group()->add_offers(matched_.front().offer);
      group.push_back(matched_.front().message);
      matched_.pop_front();
    }
    Say(frame);
    HR_RETURN_IF_ERROR(receiving_->Launch(std::move(group)));
  }
  return absl::OkStatus();
}

absl::Status Link::AdvanceSending(bool may_launch) {
  if (sending_ == nullptr) return absl::OkStatus();
  HR_RETURN_IF_ERROR(sending_->Advance());
  for (Group group = sending_->Take(); !group.empty(); group = sending_->Take()) left_.push_back(std::move(group));
  CompleteSent();
  while (may_launch && !asked_for_.empty() && sending_->ready()) {
    Group group = std::move(asked_for_.front());
    asked_for_.pop_front();
    HR_RETURN_IF_ERROR(sending_->Launch(std::move(group)));
  }
  return absl::OkStatus();
}

void Link::CompleteSent() {
  while (!left_.empty() && groups_completed_ < groups_arrived_) {
    for (const Message& message : left_.front()) Done(message.op);
    left_.pop_front();
    ++groups_completed_;
  }
}

std::vector<Message> Link::EndReceiving() {
  std::vector<Message> pending;
  if (receiving_ == nullptr) return pending;
  for (const Group& group : receiving_->Break()) pending.insert(pending.end(), group.begin(), group.end());
  receiving_.reset();
  arrived_ = 0;
  return pending;
}

std::vector<OpId> Link::EndSending() {
  std::vector<OpId> pending;
  if (sending_ == nullptr) return pending;
  for (const Group& group : sending_->Break()) Append(group, &pending);
  sending_.reset();
  for (const Group& group : std::exchange(asked_for_, {})) Append(group, &pending);
  for (const Group& group : std::exchange(left_, {})) Append(group, &pending);
  groups_completed_ = groups_arrived_ = 0;
  return pending;
}

void Link::GiveUp(const absl::Status& why) {
  const auto end = [&](const std::vector<OpId>& pending) {
    for (OpId op : pending) Done(op, why);
  };
  end(matching_.TakeReceives());
  for (const Matched& matched : std::exchange(matched_, {})) {
    Done(matched.message.op, why);
    wire::Frame frame;
    frame.set_refused(matched.offer);
    Say(frame);
  }
  for (const auto& [number, match] : std::exchange(refused_, {})) Done(match.receive.op, why);
  if (receiving_ != nullptr) {
    wire::Frame frame;
    frame.set_gave_up_receiving(true);
    Say(frame);
    out_->Flush();  // before the communicator's own way of telling
    for (const Message& message : EndReceiving()) Done(message.op, why);
  }
  if (sending_ != nullptr || !offered_.empty()) {
    ++give_ups_;
    wire::Frame frame;
    frame.set_gave_up_sending(true);
    Say(frame);
    out_->Flush();
    end(EndSending());
    for (const auto& [number, message] : std::exchange(offered_, {})) Done(message.op, why);
  }
  end(std::exchange(stranded_, {}));
}

void Link::End(const absl::Status& why) {
  if (lost_.ok()) lost_ = why;
  if (out_ != nullptr) GiveUp(why);
  out_.reset();
  in_.reset();
}

}  // namespace headrace::nccl
