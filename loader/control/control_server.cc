#include "loader/control/control_server.h"

#include <grpcpp/grpcpp.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "loader/control/control.grpc.pb.h"
#include "loader/control/grpc_status.h"
#include "loader/control/listen_address.h"
#include "loader/control/tls.h"
#include "planner/status.h"

namespace headrace {
namespace {

// In a time that depends on neither value: both are hashed to one length first.
bool SameSecret(absl::string_view a, absl::string_view b) {
  unsigned char hash_a[EVP_MAX_MD_SIZE], hash_b[EVP_MAX_MD_SIZE];
  unsigned int size_a = 0, size_b = 0;
  if (EVP_Digest(a.data(), a.size(), hash_a, &size_a, EVP_sha256(), nullptr) != 1) return false;
  if (EVP_Digest(b.data(), b.size(), hash_b, &size_b, EVP_sha256(), nullptr) != 1) return false;
  return CRYPTO_memcmp(hash_a, hash_b, size_a) == 0;
}

class Stream;

// What outlives a stream: others reach it through this, under the mutex.
struct StreamHandle {
  std::mutex mutex;
  Stream* stream = nullptr;  // null once the stream is done
};

// All streams of one server.
struct Hub {
  ControlServerOptions options;
  EventQueue* events = nullptr;

  std::mutex mutex;
  std::condition_variable idle;
  std::map<ConnectionId, std::shared_ptr<StreamHandle>> streams;
  ConnectionId next_id = 1;
  int64_t refused = 0;

  std::shared_ptr<StreamHandle> Find(ConnectionId id) {
    std::lock_guard lock(mutex);
    const auto it = streams.find(id);
    return it == streams.end() ? nullptr : it->second;
  }
  void Remove(ConnectionId id) {
    std::lock_guard lock(mutex);
    streams.erase(id);
    if (streams.empty()) idle.notify_all();
  }
};

// One member's stream. At most one read and one write are outstanding; the write is of queue_.front().
class Stream final : public grpc::ServerBidiReactor<proto::Envelope, proto::Envelope> {
 public:
  Stream(Hub* hub, ConnectionId id, std::shared_ptr<StreamHandle> handle, grpc::CallbackServerContext* context)
      : hub_(hub), id_(id), handle_(std::move(handle)), context_(context), peer_(context->peer()) {}

  void Begin() {
    std::lock_guard lock(handle_->mutex);
    context_->AddInitialMetadata(kAcceptedKey, "1");
    StartSendInitialMetadata();
    StartRead(&incoming_);
  }

  // The functions with Locked in their names are called under handle_->mutex.
  void SendLocked(const proto::Envelope& message) {
    if (finished_ || closing_ || !cut_.ok()) return;
    const int64_t bytes = static_cast<int64_t>(message.ByteSizeLong());
    if (bytes > hub_->options.max_message_bytes)
      return CutLocked(Error(ErrorCode::kInvalidOption,
                             absl::StrCat("a ", BodyName(message), " message of ", bytes,
                                          " bytes exceeds the limit of ", hub_->options.max_message_bytes)));
    if (queued_bytes_ + bytes > hub_->options.max_queued_bytes)
      return CutLocked(Error(ErrorCode::kPeerLost,
                             absl::StrCat(peer_, " does not read: ", queued_bytes_, " bytes are waiting for it")));
    queue_.push_back(message);
    queued_bytes_ += bytes;
    WriteLocked();
  }
  void CloseLocked() {
    silent_ = true;
    closing_ = true;
    FinishIfDrainedLocked();
  }
  void CutLocked(const absl::Status& reason) {
    if (finished_ || !cut_.ok()) return;
    cut_ = reason;
    context_->TryCancel();
  }
  bool closing() const { return closing_; }
  void ReadNextLocked() {
    if (!finished_ && !read_ended_) StartRead(&incoming_);
  }

 private:
  void OnReadDone(bool ok) override {
    ControlEvent event;
    event.connection = id_;
    std::lock_guard lock(handle_->mutex);
    if (ok && silent_) return ReadNextLocked();
    if (ok) {
      event.kind = ControlEvent::Kind::kMessage;
      event.message = std::move(incoming_);
      incoming_ = proto::Envelope();
      // The next read waits until this message was taken, so a flood stays in the sender's own window.
      hub_->events->Push(std::move(event), [handle = handle_] {
        std::lock_guard lock(handle->mutex);
        if (handle->stream != nullptr) handle->stream->ReadNextLocked();
      });
      return;
    }
    read_ended_ = true;
    ReportEndLocked();
    closing_ = true;
    FinishIfDrainedLocked();
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(handle_->mutex);
    writing_ = false;
    queued_bytes_ -= static_cast<int64_t>(queue_.front().ByteSizeLong());
    queue_.pop_front();
    if (!ok) queue_.clear();
    WriteLocked();
    FinishIfDrainedLocked();
  }

  void OnCancel() override {
    std::lock_guard lock(handle_->mutex);
    cancelled_ = true;
    ReportEndLocked();
    closing_ = true;
    // A write that is outstanding fails now, and its OnWriteDone goes on.
    while (queue_.size() > (writing_ ? 1 : 0)) queue_.pop_back();
    FinishIfDrainedLocked();
  }

  void OnDone() override {
    {
      std::lock_guard lock(handle_->mutex);
      ReportEndLocked();
      handle_->stream = nullptr;
    }
    hub_->Remove(id_);
    delete this;
  }

  void WriteLocked() {
    if (writing_ || finished_ || queue_.empty()) return;
    writing_ = true;
    StartWrite(&queue_.front());
  }
  void FinishIfDrainedLocked() {
    if (!closing_ || writing_ || finished_ || !queue_.empty()) return;
    finished_ = true;
    Finish(cancelled_ ? grpc::Status(grpc::StatusCode::CANCELLED, std::string(cut_.message())) : grpc::Status::OK);
  }
  // Once. A half-close that the client asked for is an orderly end.
  void ReportEndLocked() {
    if (silent_) return;
    silent_ = true;
    ControlEvent event;
    event.kind = ControlEvent::Kind::kDisconnected;
    event.connection = id_;
    if (!cut_.ok())
      event.status = cut_;
    else if (cancelled_ || context_->IsCancelled())
      event.status = Error(ErrorCode::kPeerLost, "connection closed");
    hub_->events->Push(std::move(event));
  }

  Hub* const hub_;
  const ConnectionId id_;
  const std::shared_ptr<StreamHandle> handle_;
  grpc::CallbackServerContext* const context_;
  const std::string peer_;
  // The rest is under handle_->mutex.
  proto::Envelope incoming_;
  std::deque<proto::Envelope> queue_;
  int64_t queued_bytes_ = 0;
  bool writing_ = false;
  bool read_ended_ = false;
  bool silent_ = false;    // no further events
  bool closing_ = false;   // finish when the queue is empty
  bool finished_ = false;  // Finish was called: no operation may start
  bool cancelled_ = false;
  absl::Status cut_;  // why this side cut the stream
};

class RefusedStream final : public grpc::ServerBidiReactor<proto::Envelope, proto::Envelope> {
 public:
  RefusedStream() { Finish(grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "wrong job token")); }
  void OnDone() override { delete this; }
};

class Service final : public proto::Control::CallbackService {
 public:
  explicit Service(Hub* hub) : hub_(hub), authorization_(AuthorizationValue(hub->options.token)) {}

  grpc::ServerBidiReactor<proto::Envelope, proto::Envelope>* Session(grpc::CallbackServerContext* context) override {
    const auto [begin, end] = context->client_metadata().equal_range(kAuthorizationKey);
    const bool one = begin != end && std::next(begin) == end;
    if (!one || !SameSecret(absl::string_view(begin->second.data(), begin->second.size()), authorization_)) {
      std::lock_guard lock(hub_->mutex);
      ++hub_->refused;
      return new RefusedStream;
    }
    auto handle = std::make_shared<StreamHandle>();
    ConnectionId id;
    Stream* stream;
    {
      std::lock_guard lock(hub_->mutex);
      id = hub_->next_id++;
      stream = new Stream(hub_, id, handle, context);
      handle->stream = stream;
      hub_->streams[id] = handle;
    }
    ControlEvent event;
    event.connection = id;
    hub_->events->Push(std::move(event));
    stream->Begin();
    return stream;
  }

 private:
  Hub* const hub_;
  const std::string authorization_;
};

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> Credentials(const std::optional<ServerTls>& tls) {
  if (!tls.has_value()) return grpc::InsecureServerCredentials();
  HR_ASSIGN_OR_RETURN(const PemFiles pem, ReadPem(*tls));
  grpc::SslServerCredentialsOptions options(pem.ca.empty()
                                                ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                                : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = pem.ca;
  options.pem_key_cert_pairs.push_back({pem.key, pem.certificate});
  return grpc::SslServerCredentials(options);
}

class GrpcControlServer final : public ControlServer {
 public:
  GrpcControlServer(const ControlServerOptions& options, EventQueue* events) {
    hub_.options = options;
    hub_.events = events;
  }

  absl::Status Listen() {
    const ControlServerOptions& options = hub_.options;
    HR_RETURN_IF_ERROR(CheckToken(options.token));
    HR_ASSIGN_OR_RETURN(where_, ResolveListenAddress(options.host, options.port));
    if (!where_.loopback && !options.tls.has_value() && !options.trust_network)
      return Error(ErrorCode::kInvalidOption,
                   absl::StrCat("the job's token would cross the network in clear at ", where_.host, NeedsTls()));
    HR_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ServerCredentials> credentials, Credentials(options.tls));
    service_.emplace(&hub_);
    grpc::ServerBuilder builder;
    // Two coordinators must never share a port.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    builder.SetMaxReceiveMessageSize(options.max_message_bytes);
    builder.SetMaxSendMessageSize(options.max_message_bytes);
    // gRPC decodes percent signs: a zone has one.
    builder.AddListeningPort(absl::StrReplaceAll(where_.HostPort(options.port), {{"%", "%25"}}), credentials, &port_);
    builder.RegisterService(&*service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ <= 0) return WhyNoListen(where_);
    return absl::OkStatus();
  }

  ~GrpcControlServer() override {
    if (server_ == nullptr) return;
    std::map<ConnectionId, std::shared_ptr<StreamHandle>> streams;
    {
      std::lock_guard lock(hub_.mutex);
      streams = hub_.streams;
    }
    for (const auto& [_, handle] : streams) {
      std::lock_guard lock(handle->mutex);
      if (handle->stream != nullptr && !handle->stream->closing())
        handle->stream->CutLocked(Error(ErrorCode::kAborted, "the control server stopped"));
    }
    // Streams that are closing get this long to send what is queued.
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
    std::unique_lock lock(hub_.mutex);
    hub_.idle.wait(lock, [this] { return hub_.streams.empty(); });
  }

  int port() const override { return port_; }
  std::string address() const override { return where_.HostPort(port_); }
  void Send(ConnectionId connection, const proto::Envelope& message) override {
    With(connection, [&](Stream* stream) { stream->SendLocked(message); });
  }
  void Close(ConnectionId connection) override {
    With(connection, [](Stream* stream) { stream->CloseLocked(); });
  }
  int64_t refused() const override {
    std::lock_guard lock(hub_.mutex);
    return hub_.refused;
  }

 private:
  template <typename F>
  void With(ConnectionId connection, F f) {
    const std::shared_ptr<StreamHandle> handle = hub_.Find(connection);
    if (handle == nullptr) return;
    std::lock_guard lock(handle->mutex);
    if (handle->stream != nullptr) f(handle->stream);
  }

  mutable Hub hub_;
  std::optional<Service> service_;
  ListenAddress where_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(const ControlServerOptions& options,
                                                                    EventQueue* events) {
  auto server = std::make_unique<GrpcControlServer>(options, events);
  HR_RETURN_IF_ERROR(server->Listen());
  return server;
}

}  // namespace headrace
