#include "loader/transport/host/server.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace::host {

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Name& name, const Cookie& cookie,
                                                      std::shared_ptr<RegionTable> table) {
  HR_ASSIGN_OR_RETURN(Descriptor listener, Listen(name));
  Descriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (wake.get() < 0) return Error(ErrorCode::kTransport, absl::StrCat("host transport: eventfd: ", strerror(errno)));
  std::unique_ptr<Server> server(new Server(std::move(listener), std::move(wake), cookie, std::move(table)));
  // The process's signals are not this thread's to handle.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  absl::Status status;
  try {
    server->thread_ = std::thread([s = server.get()] { s->Run(); });
  } catch (const std::system_error& error) {
    status = Error(ErrorCode::kTransport, absl::StrCat("host transport: no thread: ", error.what()));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  HR_RETURN_IF_ERROR(status);
  return server;
}

Server::Server(Descriptor listener, Descriptor wake, const Cookie& cookie, std::shared_ptr<RegionTable> table)
    : listener_(std::move(listener)), wake_(std::move(wake)), cookie_(cookie), table_(std::move(table)) {}

Server::~Server() {
  if (!thread_.joinable()) return;
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

void Server::Run() {
  bool accepting = true;
  while (true) {
    std::vector<pollfd> events;
    events.push_back({wake_.get(), POLLIN, 0});
    events.push_back({accepting ? listener_.get() : -1, POLLIN, 0});
    for (const Client& client : clients_) events.push_back({client.socket.get(), POLLIN, 0});
    // Without a free descriptor the listener would stay readable and this loop would spin: look again later.
    if (poll(events.data(), events.size(), accepting ? -1 : 100) < 0 && errno != EINTR) return;
    if (events[0].revents != 0) return;
    for (size_t i = clients_.size(); i-- > 0;) {
      if (events[i + 2].revents != 0 && !Serve(clients_[i])) clients_.erase(clients_.begin() + i);
    }
    accepting = !accepting || events[1].revents == 0 || Accept();
  }
}

bool Server::Accept() {
  Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.get() < 0) return errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS;
  if (!PeerIsSameUser(socket.get())) return true;
  if (clients_.size() == kMaxClients) {
    auto silent = std::find_if(clients_.begin(), clients_.end(), [](const Client& c) { return !c.authenticated; });
    if (silent == clients_.end()) return true;
    clients_.erase(silent);
  }
  clients_.push_back({std::move(socket)});
  return true;
}

bool Server::Serve(Client& client) {
  char packet[sizeof(Hello) + 1];
  static_assert(sizeof(Request) < sizeof(Hello));
  const ssize_t size = recv(client.socket.get(), packet, sizeof packet, 0);
  if (size < 0) return errno == EAGAIN || errno == EINTR;
  if (!client.authenticated) {
    Hello hello;
    if (size != sizeof hello) return false;
    std::memcpy(&hello, packet, sizeof hello);
    if (!EqualInConstantTime(hello.cookie, cookie_) || hello.protocol != kProtocol) return false;
    client.authenticated = true;
    const HelloReply reply{kProtocol, table_->identity.stamp()};
    return SendPacket(client.socket.get(), &reply, sizeof reply, -1);
  }
  Request request;
  if (size != sizeof request) return false;
  std::memcpy(&request, packet, sizeof request);
  // The lock keeps the descriptor open while it is sent; the send does not block.
  std::lock_guard<std::mutex> lock(table_->mutex);
  Reply reply{};
  reply.sequence = request.sequence;
  int attached = -1;
  if (request.kind == kMap) {
    if (auto region = table_->regions.find(request.key); region != table_->regions.end()) {
      reply.found = 1;
      reply.bytes = region->second.bytes;
      attached = region->second.fd;
    }
  } else if (request.kind == kOpen) {
    if (auto memory = table_->registrations.find(request.key); memory != table_->registrations.end()) {
      reply.found = 1;
      reply.bytes = memory->second.bytes;
      reply.address = reinterpret_cast<uint64_t>(memory->second.data);
      reply.stamp = memory->second.stamp->stamp();
    }
  } else {
    return false;
  }
  return SendPacket(client.socket.get(), &reply, sizeof reply, attached);
}

}  // namespace headrace::host
