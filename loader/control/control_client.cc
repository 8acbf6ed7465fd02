#include "loader/control/control_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "loader/control/control.grpc.pb.h"
#include "loader/control/grpc_status.h"
#include "loader/control/listen_address.h"
#include "loader/control/tls.h"
#include "planner/status.h"

namespace headrace {
namespace {

// Between two tries to reach a server that does not run yet.
constexpr absl::Duration kPause = absl::Milliseconds(100);

// One stream. At most one read and one write are outstanding; the write is of queue_.front(). A hold keeps the stream
// from being done while this side may still start operations.
class ClientStream final : public grpc::ClientBidiReactor<proto::Envelope, proto::Envelope> {
 public:
  ClientStream(const ControlClientOptions& options, const std::shared_ptr<grpc::Channel>& channel)
      : options_(options), stub_(proto::Control::NewStub(channel)) {}

  // One attempt. FromGrpc's errors; OK when the server accepted the token. At the deadline gRPC's own last word.
  grpc::Status Open(absl::Time deadline) {
    context_.AddMetadata(kAuthorizationKey, AuthorizationValue(options_.token));
    std::unique_lock lock(mutex_);
    started_ = held_ = true;
    stub_->async()->Session(&context_, this);
    AddHold();
    ReadLocked();
    StartCall();
    changed_.wait_for(lock, absl::ToChronoNanoseconds(std::max(absl::ZeroDuration(), deadline - absl::Now())),
                      [this] { return accepted_ || done_; });
    if (accepted_) return grpc::Status::OK;
    if (done_ && !status_.ok()) return status_;
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, done_ ? "it ended the stream at once" : "it does not answer");
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
  const std::unique_ptr<proto::Control::Stub> stub_;
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

absl::StatusOr<std::shared_ptr<grpc::Channel>> NewChannel(const ControlClientOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(options.max_message_bytes);
  arguments.SetMaxSendMessageSize(options.max_message_bytes);
  // A stream of its own, whatever else this process talks to, and never by way of a proxy from the environment.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  // A coordinator that starts late may get its name, or another address, only then; gRPC's own wait is 30 s.
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1000);
  // Silence is the session's to judge, by its heartbeats; this only gets rid of a connection whose other end is gone
  // for good. (The timeout is also the kernel's for bytes that are not acknowledged: TCP_USER_TIMEOUT.)
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  if (!options.tls.has_value())
    return grpc::CreateCustomChannel(options.address, grpc::InsecureChannelCredentials(), arguments);
  HR_ASSIGN_OR_RETURN(const PemFiles pem, ReadPem(*options.tls));
  if (!options.tls->server_name.empty()) arguments.SetSslTargetNameOverride(options.tls->server_name);
  return grpc::CreateCustomChannel(options.address, grpc::SslCredentials({pem.ca, pem.key, pem.certificate}),
                                   arguments);
}

class GrpcControlClient final : public ControlClient {
 public:
  explicit GrpcControlClient(const ControlClientOptions& options) : options_(options) {}
  ~GrpcControlClient() override {
    if (stream_ != nullptr) stream_->Stop();
  }

  absl::Status Connect(absl::Time deadline) {
    HR_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, NewChannel(options_));
    // A try at a time, not gRPC's waiting for readiness, which would keep to itself why a handshake fails.
    std::string last_word;
    while (true) {
      stream_ = std::make_unique<ClientStream>(options_, channel);
      const grpc::Status status = stream_->Open(deadline);
      if (status.ok()) return absl::OkStatus();
      stream_->Stop();
      if (status.error_code() != grpc::StatusCode::UNAVAILABLE)
        return FromGrpc(status, absl::StrCat("the coordinator at ", options_.address));
      HR_RETURN_IF_ERROR(WhyNoHandshake(status.error_message()));
      if (last_word.empty() || absl::Now() < deadline) last_word = status.error_message();
      if (absl::Now() >= deadline) return NobodyThere(last_word);
      std::this_thread::sleep_until(absl::ToChronoTime(std::min(deadline, absl::Now() + kPause)));
    }
  }
  absl::Status Send(const proto::Envelope& message) override { return stream_->Send(message); }
  void Finish(absl::Time deadline) override { stream_->Finish(deadline); }
  EventQueue& events() override { return stream_->events(); }

 private:
  // What no further try can mend: an error in gRPC's words, of which the tests hold the ones that are known. Without
  // TLS there is none, whatever words a server sends.
  absl::Status WhyNoHandshake(const std::string& words) const {
    if (!options_.tls.has_value()) return absl::OkStatus();
    const std::string& at = options_.address;
    if (absl::StrContains(words, "certificate verify failed"))
      return Error(ErrorCode::kUnauthenticated,
                   absl::StrCat("the certificate of the coordinator at ", at, " is not signed by a CA in ",
                                options_.tls->ca_file, ", or is not valid at this machine's time; nothing was sent"));
    if (absl::StrContains(words, "is not in peer certificate"))
      return Error(
          ErrorCode::kUnauthenticated,
          absl::StrCat("the certificate of the coordinator at ", at, " is not for ",
                       options_.tls->server_name.empty() ? HostOf(at) : options_.tls->server_name,
                       "; connect by a name or address that is in it, or give that as server_name; nothing was "
                       "sent"));
    if (absl::StrContains(words, "wrong version number"))
      return Error(ErrorCode::kTransport, absl::StrCat("what listens at ", at,
                                                       " speaks no TLS, which this member was "
                                                       "told to use; nothing was sent"));
    if (absl::StrContains(words, "Ssl handshake failed"))
      return Error(ErrorCode::kTransport, absl::StrCat("TLS with the coordinator at ", at, " fails: ", words));
    return absl::OkStatus();
  }

  absl::Status NobodyThere(const std::string& words) const {
    absl::string_view hint = "; is it running, and is this its address?";
    if (absl::StrContains(words, "Socket closed") || absl::StrContains(words, "Connection reset") ||
        absl::StrContains(words, "Broken pipe"))
      hint = options_.tls.has_value()
                 ? "; connections are closed at once: does it demand a certificate of this member, "
                   "or of another CA?"
                 : "; connections are closed at once: does it use TLS, which this member does not?";
    return Error(ErrorCode::kPeerLost,
                 absl::StrCat("no coordinator answers at ", options_.address, hint, " (", words, ")"));
  }

  const ControlClientOptions options_;
  std::unique_ptr<ClientStream> stream_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ControlClient>> ControlClient::Connect(const ControlClientOptions& options,
                                                                      absl::Time deadline) {
  if (options.address.empty())
    return Error(ErrorCode::kInvalidOption, "the coordinator's address is empty; give host:port");
  HR_RETURN_IF_ERROR(CheckToken(options.token));
  if (!options.tls.has_value() && !options.trust_network && !StaysOnThisMachine(options.address))
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat("the job's token would cross the network in clear to the coordinator at ",
                              options.address, NeedsTls()));
  auto client = std::make_unique<GrpcControlClient>(options);
  HR_RETURN_IF_ERROR(client->Connect(deadline));
  return client;
}

}  // namespace headrace
