#include "loader/testing/nccl_checker/rendezvous.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "loader/testing/nccl_checker/segment.h"
#include "loader/testing/nccl_checker/socket.h"

namespace headrace::nccl_checker {
namespace {

constexpr char kMagic[8] = {'H', 'R', 'N', 'C', 'C', 'L', 'I', 'D'};

class Rendezvous {
 public:
  explicit Rendezvous(int listener) : listener_(listener) {}

  void Run();
  void AwaitLeft(uint64_t joiner);

 private:
  struct Rank {
    int socket;
    Hello hello;
  };

  void Accept();
  // Closes the connections at which the other side is gone; true when there were any.
  bool DropTheLost();
  bool Complete() const {
    return !lost_ && !ranks_.empty() && static_cast<int>(ranks_.size()) == ranks_.front().hello.ranks;
  }
  // False when a rank was refused.
  bool CheckDevices();
  void HandOut();
  void TellAll(const Welcome& welcome) {
    for (const Rank& rank : ranks_) SendMessage(rank.socket, &welcome, sizeof(welcome));
  }

  const int listener_;
  std::vector<Rank> ranks_;
  bool lost_ = false;  // a rank went away: it never gets complete
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<uint64_t> joiners_;  // whose connections are held
  bool ended_ = false;
};

// The rendezvous of this process that have not ended.
struct Table {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Rendezvous>> running;
};

Table& table() {
  static Table* const instance = new Table;
  return *instance;
}

void Rendezvous::Run() {
  bool came = false;
  while (!(came && ranks_.empty())) {
    std::vector<pollfd> events{{listener_, POLLIN, 0}};
    for (const Rank& rank : ranks_) events.push_back({rank.socket, POLLIN, 0});
    if (poll(events.data(), events.size(), -1) < 0) continue;
    if (DropTheLost() && !lost_) lost_ = true;
    if (events[0].revents != 0) Accept();
    came |= !ranks_.empty();
    if (Complete()) {
      if (CheckDevices()) HandOut();
      break;
    }
  }
  for (const Rank& rank : ranks_) close(rank.socket);
  close(listener_);
  std::lock_guard lock(mutex_);
  ended_ = true;
  joiners_.clear();
  changed_.notify_all();
}

bool Rendezvous::DropTheLost() {
  int gone = -1;
  for (size_t i = ranks_.size(); i-- > 0;) {
    if (!HungUp(ranks_[i].socket)) continue;
    gone = ranks_[i].hello.rank;
    close(ranks_[i].socket);
    {
      std::lock_guard lock(mutex_);
      joiners_.erase(ranks_[i].hello.joiner);
      changed_.notify_all();
    }
    ranks_.erase(ranks_.begin() + i);
  }
  if (gone < 0) return false;
  TellAll(Welcome{Welcome::kRankLost, 0, gone, 0});
  return true;
}

void Rendezvous::Accept() {
  const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (socket < 0) return;
  const timeval patience{1, 0};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  Hello hello;
  if (!ReceiveMessage(socket, &hello, sizeof(hello))) {
    close(socket);
    return;
  }
  Welcome refusal{Welcome::kRefused, 0, 0, 0};
  for (const Rank& other : ranks_) {
    refusal.rank = other.hello.rank;
    if (other.hello.ranks != hello.ranks) refusal.rule = static_cast<int32_t>(Rule::kInitMismatch);
    if (other.hello.rank == hello.rank) refusal.rule = static_cast<int32_t>(Rule::kIdReuse);
    if (refusal.rule != 0) break;
  }
  if (refusal.rule != 0) {
    SendMessage(socket, &refusal, sizeof(refusal));
    close(socket);
    return;
  }
  if (lost_) {
    const Welcome lost{Welcome::kRankLost, 0, -1, 0};
    SendMessage(socket, &lost, sizeof(lost));
  }
  {
    std::lock_guard lock(mutex_);
    joiners_.insert(hello.joiner);
    changed_.notify_all();
  }
  ranks_.push_back({socket, hello});
}

bool Rendezvous::CheckDevices() {
  for (const Rank& a : ranks_) {
    for (const Rank& b : ranks_) {
      if (&a == &b || a.hello.device != b.hello.device || (a.hello.multi_rank_gpu && b.hello.multi_rank_gpu)) continue;
      TellAll(Welcome{Welcome::kRefused, static_cast<int32_t>(Rule::kDuplicateGpu), a.hello.rank, 0});
      return false;
    }
  }
  return true;
}

void Rendezvous::HandOut() {
  const int count = ranks_.size();
  const int64_t ring_bytes = ranks_.front().hello.ring_bytes;
  std::sort(ranks_.begin(), ranks_.end(), [](const Rank& a, const Rank& b) { return a.hello.rank < b.hello.rank; });
  const int memory = memfd_create("headrace_nccl_checker_communicator", MFD_CLOEXEC);
  if (memory < 0 || ftruncate(memory, Segment::Bytes(count, ring_bytes)) != 0) {
    if (memory >= 0) close(memory);
    return;  // all are disconnected
  }
  std::vector<int> reading, writing;
  for (int i = 0; i < count; ++i) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) break;
    reading.push_back(ends[0]);
    writing.push_back(ends[1]);
  }
  const Welcome welcome{Welcome::kComplete, 0, 0, ring_bytes};
  for (int i = 0; i < count && static_cast<int>(reading.size()) == count; ++i) {
    std::vector<int> descriptors{memory, writing[i]};
    for (int other = 0; other < count; ++other) {
      if (other != i) descriptors.push_back(reading[other]);
    }
    SendMessage(ranks_[i].socket, &welcome, sizeof(welcome), descriptors);
  }
  close(memory);
  for (const int fd : reading) close(fd);
  for (const int fd : writing) close(fd);
}

void Rendezvous::AwaitLeft(uint64_t joiner) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return joiners_.count(joiner) == 0; });
  // The last one to leave ends it.
  changed_.wait_for(lock, std::chrono::seconds(5), [&] { return ended_ || !joiners_.empty(); });
}

}  // namespace

std::string NameIn(const nccl::UniqueId& id) {
  if (std::memcmp(id.internal, kMagic, sizeof(kMagic)) != 0) return "";
  return std::string(id.internal + sizeof(kMagic), strnlen(id.internal + sizeof(kMagic), 100));
}

bool MakeId(nccl::UniqueId* id) {
  const std::string name = RandomSocketName();
  const int listener = ListenAt(name);
  if (listener < 0) return false;
  *id = {};
  std::memcpy(id->internal, kMagic, sizeof(kMagic));
  std::memcpy(id->internal + sizeof(kMagic), name.data(), name.size());
  auto rendezvous = std::make_shared<Rendezvous>(listener);
  {
    std::lock_guard lock(table().mutex);
    table().running[name] = rendezvous;
  }
  std::thread([rendezvous, name] {
    rendezvous->Run();
    std::lock_guard lock(table().mutex);
    table().running.erase(name);
  }).detach();
  return true;
}

int SayHello(const std::string& name, const Hello& hello) {
  const int socket = ConnectTo(name);
  if (socket >= 0 && SendMessage(socket, &hello, sizeof(hello))) return socket;
  if (socket >= 0) close(socket);
  return -1;
}

bool AwaitWelcome(int socket, Welcome* welcome, std::vector<int>* descriptors) {
  return ReceiveMessage(socket, welcome, sizeof(*welcome), descriptors);
}

void AwaitLeft(const std::string& name, uint64_t joiner) {
  std::shared_ptr<Rendezvous> rendezvous;
  {
    std::lock_guard lock(table().mutex);
    const auto found = table().running.find(name);
    if (found == table().running.end()) return;
    rendezvous = found->second;
  }
  rendezvous->AwaitLeft(joiner);
}

}  // namespace headrace::nccl_checker
