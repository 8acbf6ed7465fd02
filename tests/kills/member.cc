// One process of a job whose processes are killed: the coordinator, a publisher or an engine worker. Orders are lines
// of JSON on standard input, the first of which says who this is; each is answered by a line with its "id", the status'
// "code" ("" is OK) and "message". Orders to the session run one after the other in a thread of their own; "step",
// "status", "arm" and "release" (holds.h) are answered at once, whatever the session does.
//
// A worker's "step" is a forward step as far as weights are concerned: it looks at every live byte, gaps and guards
// too, and says which generation they are ("holds"; -1: none) and which one the session says may be served. What a
// generation is comes from loader/testing/side_memory, by element loops.

#include <condition_variable>
#include <deque>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "loader/control/coordinator_service.h"
#include "loader/publisher.h"
#include "loader/receiver.h"
#include "loader/testing/side_memory.h"
#include "loader/transport/factory.h"
#include "planner/manifest_json.h"
#include "planner/status.h"
#include "tests/kills/holds.h"

namespace headrace::kills {
namespace {

using Json = nlohmann::json;
using testing::PaintDestination;
using testing::PaintSource;
using testing::SideMemory;

constexpr int64_t kSecond = 1'000'000'000;
constexpr size_t kGenerationsKnown = 6;

absl::Time Soon() { return absl::Now() + absl::Seconds(30); }

SessionTimeouts Timeouts() {
  SessionTimeouts timeouts;
  timeouts.heartbeat_timeout_ns = 30 * kSecond;  // a busy machine is no death here
  timeouts.rejoin_ns = 600 * kSecond;
  return timeouts;
}

bool NextOrder(Json* order) {
  std::string line;
  if (!std::getline(std::cin, line)) return false;
  *order = Json::parse(line);
  return true;
}

void Answer(const Json& order, const absl::Status& status, Json answer = Json::object()) {
  answer["id"] = order["id"];
  answer["code"] = std::string(CodeOf(status));
  answer["message"] = std::string(status.message());
  WriteLine(answer.dump());
}

int RunCoordinator(const Json& order) {
  CoordinatorOptions coordinator;
  coordinator.job = "kills";
  coordinator.incarnation = "run-1";
  coordinator.publishers = order["publishers"];
  coordinator.workers = order["workers"].get<std::vector<int>>();
  coordinator.timeouts = Timeouts();
  ControlServerOptions server;
  server.token = order["token"];
  server.port = order["port"];
  const auto service = CoordinatorService::Start(coordinator, server);
  Answer(order, service.status(), {{"port", service.ok() ? (*service)->port() : 0}});
  if (!service.ok()) return 0;
  for (Json next; NextOrder(&next);) {
    const CoordinatorStatus status = (*service)->status();
    Answer(next, status.status, {{"epoch", status.epoch}, {"waiting_for", status.waiting_for}});
  }
  (*service)->Stop();
  return 0;
}

JobOptions JobOf(const Json& order) {
  JobOptions job;
  job.job = "kills";
  job.token = order["token"];
  job.coordinator = "127.0.0.1:" + std::to_string(order["port"].get<int>());
  job.host = "here";
  job.connect_timeout = absl::Seconds(30);
  job.timeouts = Timeouts();
  return job;
}

absl::StatusOr<std::unique_ptr<Transport>> TransportOf(const Json& order) {
  HR_ASSIGN_OR_RETURN(auto transport, NewTransport(order["transport"].get<std::string>()));
  return NewHoldingTransport(std::move(transport));
}

class Role {
 public:
  virtual ~Role() = default;
  virtual absl::Status Join() = 0;
  virtual absl::Status Do(const Json& order, Json* answer) = 0;
  // At once, in the thread that reads orders. False: not such an order.
  virtual bool DoNow(const Json& order) = 0;
  // What "copy" and "apply" touch.
  virtual absl::Span<std::byte> Memory() = 0;
};

// The largest buffer.
absl::Span<std::byte> Largest(const std::vector<Buffer>& buffers, SideMemory* memory) {
  absl::Span<std::byte> largest;
  for (const Buffer& b : buffers) {
    const auto bytes = static_cast<size_t>(SpanBytes(b, b.dtype));
    if (bytes > largest.size()) largest = absl::MakeSpan(memory->First(b), bytes);
  }
  return largest;
}

class PublisherRole final : public Role {
 public:
  PublisherRole(const Json& order, const Manifest& whole) : order_(order), part_(PartOf(whole, order["rank"])) {}

  absl::Status Join() override {
    std::map<std::string, const std::byte*> memory;
    for (const Buffer& b : part_.source) memory[b.name] = source_.First(b);
    PublisherOptions options;
    options.job = JobOf(order_);
    options.rank = order_["rank"];
    options.chunk_bytes = order_["chunk_bytes"];
    HR_ASSIGN_OR_RETURN(auto transport, TransportOf(order_));
    HR_ASSIGN_OR_RETURN(publisher_, Publisher::Join(options, part_, memory, std::move(transport)));
    return absl::OkStatus();
  }

  absl::Status Do(const Json& order, Json*) override {
    const std::string what = order["do"];
    if (what == "leave") return publisher_->Close(Soon());
    const uint64_t generation = order["generation"];
    if (what == "await") return publisher_->AwaitCommit(generation, Soon());
    if (what == "paint") return PaintSource(part_, generation, &source_), absl::OkStatus();
    return publisher_->Publish(generation, Soon());
  }
  bool DoNow(const Json&) override { return false; }
  absl::Span<std::byte> Memory() override { return Largest(part_.source, &source_); }

 private:
  static Manifest PartOf(const Manifest& whole, int64_t rank) {
    Manifest part;
    part.tensors = whole.tensors;
    for (const Buffer& b : whole.source)
      if (b.rank == rank) part.source.push_back(b);
    for (const Placement& p : whole.topology.source)
      if (p.rank == rank) part.topology.source.push_back(p);
    return part;
  }

  const Json order_;
  const Manifest part_;
  SideMemory source_{part_.source};
  std::unique_ptr<Publisher> publisher_;
};

class WorkerRole final : public Role {
 public:
  WorkerRole(const Json& order, const Manifest& whole)
      : order_(order), whole_(whole), part_(PartOf(whole, order["rank"])) {
    known_.emplace(0, SideMemory(part_.destination));
  }

  absl::Status Join() override {
    for (const Buffer& b : part_.destination) memory_[b.name] = {live_.First(b), b.shape, b.strides};
    ReceiverOptions options;
    options.job = JobOf(order_);
    options.engine = order_["engine"];
    options.worker = order_["worker"];
    options.shadow = order_["shadow"].get<bool>() ? Shadow::kHost : Shadow::kOff;
    options.chunk_bytes = order_["chunk_bytes"];
    options.transfer_timeout = absl::Seconds(30);
    HR_ASSIGN_OR_RETURN(auto transport, TransportOf(order_));
    HR_ASSIGN_OR_RETURN(auto receiver, Receiver::Join(options, part_, memory_, std::move(transport)));
    std::lock_guard<std::mutex> lock(mutex_);
    receiver_ = std::move(receiver);
    return absl::OkStatus();
  }

  absl::Status Do(const Json& order, Json* answer) override {
    const std::string what = order["do"];
    if (what == "leave") return receiver_->Close(Soon());
    if (what == "next") {
      HR_ASSIGN_OR_RETURN((*answer)["generation"], receiver_->NextGeneration(Soon()));
      return absl::OkStatus();
    }
    const uint64_t generation = order["generation"];
    if (what == "stage") return receiver_->Stage(generation, memory_);
    if (what == "apply") return receiver_->Apply(generation);
    return receiver_->Commit(generation);
  }

  bool DoNow(const Json& order) override {
    if (order["do"] == "know") {  // a generation that may come
      const uint64_t generation = order["generation"];
      SideMemory wanted(part_.destination);
      PaintDestination(whole_, order_["rank"], generation, &wanted);
      known_.insert_or_assign(generation, std::move(wanted));
      if (known_.size() > kGenerationsKnown) known_.erase(std::next(known_.begin()));  // 0 stays
      Answer(order, absl::OkStatus());
      return true;
    }
    if (order["do"] != "step") return false;
    Json answer = {{"holds", -1}, {"serving", nullptr}};
    std::lock_guard<std::mutex> lock(mutex_);
    if (receiver_ != nullptr && receiver_->serving()) answer["serving"] = *receiver_->serving();
    for (const auto& [generation, wanted] : known_) {
      if (live_.Difference(wanted).empty()) answer["holds"] = generation;
    }
    Answer(order, absl::OkStatus(), answer);
    return true;
  }
  absl::Span<std::byte> Memory() override { return Largest(part_.destination, &live_); }

 private:
  static Manifest PartOf(const Manifest& whole, int64_t rank) {
    Manifest part;
    for (const Buffer& b : whole.destination)
      if (b.rank == rank) part.destination.push_back(b);
    for (const Placement& p : whole.topology.destination)
      if (p.rank == rank) part.topology.destination.push_back(p);
    return part;
  }

  const Json order_;
  const Manifest whole_, part_;
  SideMemory live_{part_.destination};
  std::map<std::string, BufferMemory> memory_;
  std::map<uint64_t, SideMemory> known_;  // of the thread that reads orders
  std::mutex mutex_;
  std::unique_ptr<Receiver> receiver_;  // set under the lock
};

// The session's orders, in their order.
class Queue {
 public:
  explicit Queue(Role* role) : role_(role), thread_([this] { Run(); }) {}
  ~Queue() {
    Put(nullptr);
    thread_.join();
  }
  void Put(Json order) {
    std::lock_guard<std::mutex> lock(mutex_);
    orders_.push_back(std::move(order));
    changed_.notify_all();
  }

 private:
  void Run() {
    while (true) {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return !orders_.empty(); });
      const Json order = std::move(orders_.front());
      orders_.pop_front();
      lock.unlock();
      if (order.is_null()) return;
      Json answer = Json::object();
      const absl::Status status = order.contains("role") ? role_->Join() : role_->Do(order, &answer);
      Answer(order, status, std::move(answer));
    }
  }

  Role* const role_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Json> orders_;
  std::thread thread_;
};

int Run() {
  Json order;
  if (!NextOrder(&order)) return 1;
  if (order["role"] == "coordinator") return RunCoordinator(order);
  const auto manifest = ParseManifest(order["manifest"].dump());
  if (!manifest.ok()) return Answer(order, manifest.status()), 1;
  std::unique_ptr<Role> role;
  if (order["role"] == "publisher") {
    role = std::make_unique<PublisherRole>(order, *manifest);
  } else {
    role = std::make_unique<WorkerRole>(order, *manifest);
  }
  if (order.contains("hold")) Arm(order["hold"], role->Memory());
  Queue queue(role.get());
  queue.Put(order);
  for (Json next; NextOrder(&next);) {
    if (next["do"] == "arm") {
      Arm(next["hold"], role->Memory());
      Answer(next, absl::OkStatus());
    } else if (next["do"] == "release") {
      Release();
      Answer(next, absl::OkStatus());
    } else if (!role->DoNow(next)) {
      queue.Put(std::move(next));
    }
  }
  return 0;
}

}  // namespace
}  // namespace headrace::kills

int main() { return headrace::kills::Run(); }
