#include "loader/control/control_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "loader/control/control.grpc.pb.h"
#include "loader/control/grpc_status.h"
#include "planner/status.h"

namespace headrace {
namespace {

// One stream. At most one read and one write are outstanding; the write is of queue_.front(). A hold keeps the stream
// from being done while this side may still start operations.
class ClientStream final : public grpc::ClientBidiReactor<proto::Envelope, proto::Envelope> {
 public:
  explicit ClientStream(const ControlClientOptions& options) : options_(options) {}

  absl::Status Connect(absl::Time deadline) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(options_.max_message_bytes);
    arguments.SetMaxSendMessageSize(options_.max_message_bytes);
    // A stream of its own, whatever else this process talks to, and never by way of a proxy from the environment.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 2000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3000);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    channel_ = grpc::CreateCustomChannel(options_.address, grpc::InsecureChannelCredentials(), arguments);
    stub_ = proto::Control::NewStub(channel_);
    context_.set_wait_for_ready(true);
    context_.AddMetadata(kAuthorizationKey, AuthorizationValue(options_.token));
    std::unique_lock lock(mutex_);
    started_ = held_ = true;
    stub_->async()->Session(&context_, this);
    AddHold();
    ReadLocked();
    StartCall();
    changed_.wait_for(lock, absl::ToChronoNanoseconds(std::max(absl::ZeroDuration(), deadline - absl::Now())),
                      [this] { return accepted_ || done_; });
    if (accepted_) return absl::OkStatus();
    if (done_ && !FromGrpc(status_, "").ok()) return FromGrpc(status_, Peer());
    return Error(ErrorCode::kPeerLost, absl::StrCat("no coordinator answers at ", options_.address,
                                                    "; is it running, and is this its address?"));
  }

  absl::Status Send(const proto::Envelope& message) {
    std::lock_guard lock(mutex_);
    if (ended_ || finishing_) return Error(ErrorCode::kPeerLost, absl::StrCat("the stream to ", Peer(), " is over"));
    const int64_t bytes = static_cast<int64_t>(message.ByteSizeLong());
    if (bytes > options_.max_message_bytes)
      return Error(ErrorCode::kInvalidOption, absl::StrCat("a ", BodyName(message), " message of ", bytes,
                                                           " bytes exceeds the limit of ", options_.max_message_bytes));
    if (queued_bytes_ + bytes > options_.max_queued_bytes) {
      context_.TryCancel();
      return Error(ErrorCode::kPeerLost,
                   absl::StrCat(Peer(), " does not read: ", queued_bytes_, " bytes are waiting for it"));
    }
    queue_.push_back(message);
    queued_bytes_ += bytes;
    WriteLocked();
    return absl::OkStatus();
  }

  void Finish(absl::Time deadline) {
    std::unique_lock lock(mutex_);
    finishing_ = true;
    WriteLocked();
    // The server's answer to the half-close proves that it has read everything: a cut stream may lose its tail.
    ReadLocked();
    changed_.wait_for(lock, absl::ToChronoNanoseconds(std::max(absl::ZeroDuration(), deadline - absl::Now())),
                      [this] { return done_; });
  }

  // Ends the stream, and returns when gRPC is done with it.
  void Stop() {
    std::unique_lock lock(mutex_);
    if (!started_) return;
    context_.TryCancel();
    EndLocked();
    changed_.wait(lock, [this] { return done_; });
  }

  EventQueue& events() { return events_; }

 private:
  std::string Peer() const { return absl::StrCat("the coordinator at ", options_.address); }

  void OnReadInitialMetadataDone(bool ok) override {
    std::lock_guard lock(mutex_);
    accepted_ = ok && context_.GetServerInitialMetadata().count(kAcceptedKey) == 1;
    changed_.notify_all();
  }

  void OnReadDone(bool ok) override {
    std::unique_lock lock(mutex_);
    reading_ = false;
    if (!ok) return EndLocked();
    if (finishing_) return ReadLocked();
    ControlEvent event;
    event.kind = ControlEvent::Kind::kMessage;
    event.message = std::move(incoming_);
    incoming_ = proto::Envelope();
    lock.unlock();
    events_.Push(std::move(event), [this] {
      std::lock_guard lock(mutex_);
      ReadLocked();
    });
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    writing_ = false;
    queued_bytes_ -= static_cast<int64_t>(queue_.front().ByteSizeLong());
    queue_.pop_front();
    if (!ok) queue_.clear();
    WriteLocked();
  }

  void OnDone(const grpc::Status& status) override {
    ControlEvent event;
    event.kind = ControlEvent::Kind::kDisconnected;
    event.status = FromGrpc(status, Peer());
    events_.Push(std::move(event));
    // The last use of this object by gRPC: Stop() may return and destroy it once the mutex is free.
    std::lock_guard lock(mutex_);
    status_ = status;
    done_ = ended_ = true;
    changed_.notify_all();
  }

  void ReadLocked() {
    if (reading_ || ended_) return;
    reading_ = true;
    StartRead(&incoming_);
  }
  void WriteLocked() {
    if (writing_ || ended_) return;
    if (!queue_.empty()) {
      writing_ = true;
      StartWrite(&queue_.front());
    } else if (finishing_ && !half_closed_) {
      half_closed_ = true;
      StartWritesDone();
    }
  }

  // No operation is started any more.
  void EndLocked() {
    ended_ = true;
    if (!held_) return;
    held_ = false;
    RemoveHold();
  }

  const ControlClientOptions options_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<proto::Control::Stub> stub_;
  grpc::ClientContext context_;
  EventQueue events_;

  std::mutex mutex_;
  std::condition_variable changed_;
  proto::Envelope incoming_;
  std::deque<proto::Envelope> queue_;
  int64_t queued_bytes_ = 0;
  grpc::Status status_;
  bool started_ = false;
  bool held_ = false;
  bool accepted_ = false;
  bool reading_ = false;
  bool writing_ = false;
  bool finishing_ = false;    // half-close when the queue is empty
  bool half_closed_ = false;  // StartWritesDone was called
  bool ended_ = false;        // no operation may start
  bool done_ = false;
};

class GrpcControlClient final : public ControlClient {
 public:
  explicit GrpcControlClient(const ControlClientOptions& options) : stream_(options) {}
  ~GrpcControlClient() override { stream_.Stop(); }

  absl::Status Connect(absl::Time deadline) { return stream_.Connect(deadline); }
  absl::Status Send(const proto::Envelope& message) override { return stream_.Send(message); }
  void Finish(absl::Time deadline) override { stream_.Finish(deadline); }
  EventQueue& events() override { return stream_.events(); }

 private:
  ClientStream stream_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ControlClient>> ControlClient::Connect(const ControlClientOptions& options,
                                                                      absl::Time deadline) {
  if (options.address.empty())
    return Error(ErrorCode::kInvalidOption, "the coordinator's address is empty; give host:port");
  HR_RETURN_IF_ERROR(CheckToken(options.token));
  auto client = std::make_unique<GrpcControlClient>(options);
  HR_RETURN_IF_ERROR(client->Connect(deadline));
  return client;
}

}  // namespace headrace
