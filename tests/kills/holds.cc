#include "tests/kills/holds.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "planner/status.h"

namespace headrace::kills {
namespace {

constexpr size_t kPage = 4096;
constexpr int kSomeMessages = 3;

enum Place : int { kNowhere, kPlan, kCopy, kSend, kStream, kApply };
constexpr const char* kNames[] = {"", "plan", "copy", "send", "stream", "apply"};

std::atomic<int> armed = kNowhere;
std::atomic<int> messages = 0;  // that passed since a place was armed
int release_pipe[2];

// Memory that must not be touched. The signal's handler may not lock: entries are complete when `begin` is set.
struct Trap {
  std::atomic<uintptr_t> begin = 0;
  size_t bytes = 0;
  int usual = 0;  // protection
};
std::array<Trap, 64> traps;

// Async-signal-safe.
void Stand(int place) {
  char line[32] = "{\"held\":\"";
  std::strcat(line, kNames[place]);
  std::strcat(line, "\"}\n");
  char go;
  if (write(STDOUT_FILENO, line, std::strlen(line)) < 0 || read(release_pipe[0], &go, 1) != 1) _exit(3);
}

void StandIfArmed(int place) {
  int expected = place;
  if (armed.compare_exchange_strong(expected, kNowhere)) Stand(place);
}

void Disarm() {
  for (Trap& trap : traps) {
    if (const uintptr_t begin = trap.begin.exchange(0); begin != 0) {
      mprotect(reinterpret_cast<void*>(begin), trap.bytes, trap.usual);
    }
  }
}

void OnFault(int signal, siginfo_t* info, void*) {
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Trap& trap : traps) {
    const uintptr_t begin = trap.begin;
    if (begin == 0 || at < begin || at - begin >= trap.bytes) continue;
    if (const int place = armed.exchange(kNowhere); place != kNowhere) Stand(place);
    Disarm();
    return;  // and touches it again
  }
  ::signal(signal, SIG_DFL);
}

// The second half of `memory`, in whole pages inside of it.
void SetTrap(absl::Span<const std::byte> memory, int protection, int usual) {
  const auto first = reinterpret_cast<uintptr_t>(memory.data());
  const uintptr_t begin = (first + memory.size() / 2 + kPage - 1) / kPage * kPage;
  const uintptr_t end = (first + memory.size()) / kPage * kPage;
  if (begin >= end) return;
  for (Trap& trap : traps) {
    if (trap.begin != 0) continue;
    trap.bytes = end - begin;
    trap.usual = usual;
    trap.begin = begin;
    mprotect(reinterpret_cast<void*>(begin), trap.bytes, protection);
    return;
  }
  std::abort();
}

// What this process maps of its peers.
std::mutex mapped_mutex;
std::vector<absl::Span<const std::byte>> mapped;

// A publisher's name of a region is what it tells others when it has planned.
class NamedRegion final : public Region {
 public:
  explicit NamedRegion(std::unique_ptr<Region> inner) : inner_(std::move(inner)) {}
  absl::Span<std::byte> bytes() override { return inner_->bytes(); }
  std::string key() const override {
    StandIfArmed(kPlan);
    return inner_->key();
  }

 private:
  const std::unique_ptr<Region> inner_;
};

class TrackedMapping final : public Mapping {
 public:
  explicit TrackedMapping(std::unique_ptr<Mapping> inner) : inner_(std::move(inner)) {
    std::lock_guard<std::mutex> lock(mapped_mutex);
    mapped.push_back(bytes());
    if (armed == kStream) SetTrap(bytes(), PROT_NONE, PROT_READ);
  }
  ~TrackedMapping() override {
    std::lock_guard<std::mutex> lock(mapped_mutex);
    std::erase_if(mapped, [&](const auto& span) { return span.data() == bytes().data(); });
    const auto first = reinterpret_cast<uintptr_t>(bytes().data());
    for (Trap& trap : traps) {
      if (trap.begin >= first && trap.begin < first + bytes().size()) trap.begin = 0;
    }
  }
  absl::Span<const std::byte> bytes() const override { return inner_->bytes(); }

 private:
  const std::unique_ptr<Mapping> inner_;
};

class HoldingTransport final : public Transport {
 public:
  explicit HoldingTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}

  absl::string_view name() const override { return inner_->name(); }
  const Capabilities& capabilities() const override { return inner_->capabilities(); }
  std::string address() const override { return inner_->address(); }
  absl::StatusOr<std::unique_ptr<Region>> AllocateRegion(int64_t bytes) override {
    HR_ASSIGN_OR_RETURN(std::unique_ptr<Region> region, inner_->AllocateRegion(bytes));
    return std::make_unique<NamedRegion>(std::move(region));
  }
  absl::StatusOr<PeerId> Connect(absl::string_view address, absl::Time deadline) override {
    return inner_->Connect(address, deadline);
  }
  void Disconnect(PeerId peer) override { inner_->Disconnect(peer); }
  absl::StatusOr<std::unique_ptr<Mapping>> Map(PeerId peer, absl::string_view key, absl::Time deadline) override {
    HR_ASSIGN_OR_RETURN(std::unique_ptr<Mapping> mapping, inner_->Map(peer, key, deadline));
    return std::make_unique<TrackedMapping>(std::move(mapping));
  }
  absl::StatusOr<OpId> Send(PeerId peer, uint64_t tag, absl::Span<const std::byte> message) override {
    if (++messages > kSomeMessages) StandIfArmed(kSend);
    return inner_->Send(peer, tag, message);
  }
  absl::StatusOr<OpId> Receive(PeerId peer, uint64_t tag, absl::Span<std::byte> message) override {
    return inner_->Receive(peer, tag, message);
  }
  void Poll(absl::Duration max_wait, std::vector<Completion>* completions) override {
    const size_t before = completions->size();
    inner_->Poll(max_wait, completions);
    messages += static_cast<int>(completions->size() - before);
    if (messages > kSomeMessages) StandIfArmed(kStream);
  }
  void Wake() override { inner_->Wake(); }
  void Abort(const absl::Status& reason) override { inner_->Abort(reason); }

 private:
  const std::unique_ptr<Transport> inner_;
};

}  // namespace

void WriteLine(std::string line) {
  line += "\n";
  // Longer ones than the pipe takes in one piece are not written here.
  if (write(STDOUT_FILENO, line.data(), line.size()) != static_cast<ssize_t>(line.size())) _exit(3);
}

void Arm(const std::string& place, absl::Span<std::byte> memory) {
  static const bool ready = [] {
    struct sigaction action = {};
    action.sa_sigaction = OnFault;
    action.sa_flags = SA_SIGINFO;
    return pipe(release_pipe) == 0 && sigaction(SIGSEGV, &action, nullptr) == 0;
  }();
  if (!ready) std::abort();
  int which = kNowhere;
  for (int i = kPlan; i <= kApply; ++i) {
    if (place == kNames[i]) which = i;
  }
  if (which == kNowhere) std::abort();
  messages = 0;
  std::lock_guard<std::mutex> lock(mapped_mutex);
  armed = which;
  if (which == kCopy) SetTrap(memory, PROT_NONE, PROT_READ | PROT_WRITE);
  if (which == kApply) SetTrap(memory, PROT_READ, PROT_READ | PROT_WRITE);
  if (which == kStream) {
    for (const auto& span : mapped) SetTrap(span, PROT_NONE, PROT_READ);
  }
}

void Release() {
  const char go = 0;
  if (write(release_pipe[1], &go, 1) != 1) _exit(3);
}

std::unique_ptr<Transport> NewHoldingTransport(std::unique_ptr<Transport> inner) {
  return std::make_unique<HoldingTransport>(std::move(inner));
}

}  // namespace headrace::kills
