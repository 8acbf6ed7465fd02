// Conformance: peers in other processes, which are this binary started again; some are killed.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "loader/transport/conformance_internal.h"

extern char** environ;

namespace headrace::conformance {
namespace {

using Bytes = std::vector<std::byte>;

// A line without its newline; empty at the end or after Soon().
std::string ReadLine(int fd) {
  std::string line;
  char c;
  const absl::Time deadline = Soon();
  while (absl::Now() < deadline) {
    pollfd event{fd, POLLIN, 0};
    if (::poll(&event, 1, 1000) != 1) continue;
    if (read(fd, &c, 1) != 1 || c == '\n') break;
    line.push_back(c);
  }
  return line;
}

void WriteLine(int fd, const std::string& line) {
  const std::string text = line + "\n";
  EXPECT_EQ(write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

// This binary as another process. posix_spawn, not fork: this process has threads.
class PeerProcess {
 public:
  explicit PeerProcess(const std::string& arguments) {
    int to_child[2], from_child[2];
    EXPECT_EQ(pipe2(to_child, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(from_child, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to_child[0], 0);
    posix_spawn_file_actions_adddup2(&actions, from_child[1], 1);
    std::vector<std::string> words = absl::StrSplit(arguments, ' ');
    words.insert(words.begin(), {"/proc/self/exe", kPeerFlag});
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(to_child[0]);
    close(from_child[1]);
    in_ = to_child[1];
    out_ = from_child[0];
  }
  ~PeerProcess() {
    if (pid_ > 0) Kill();
    close(in_);
    close(out_);
  }

  std::string Ask(const std::string& line) {
    WriteLine(in_, line);
    return ReadLine(out_);
  }
  std::string Read() { return ReadLine(out_); }
  void Tell(const std::string& line) { WriteLine(in_, line); }
  void Kill() {
    kill(pid_, SIGKILL);
    int status;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
  }
  // Lets it end by itself; its exit code.
  int Finish() {
    Tell("quit");
    int status;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
};

std::string Hex(const std::string& bytes) { return bytes.empty() ? "-" : absl::BytesToHexString(bytes); }
std::string Unhex(const std::string& hex) { return hex == "-" ? "" : absl::HexStringToBytes(hex); }

// The child. Commands and its answers:
//   region BYTES SEED      the key of a region with the pattern
//   register BYTES SEED    the key of registered memory with the pattern
//   revoke                 "revoked": all registrations
//   unmap                  "unmapped": all memory that was registered, and stays so
//   connect ADDRESS        "connected"
//   send COUNT BYTES SEED  "sent": messages of the tags 0 to COUNT - 1 completed
//   quit
// It polls while it waits for a command.
struct Child {
  std::unique_ptr<Transport> endpoint;
  std::vector<std::unique_ptr<Region>> regions;
  std::vector<std::unique_ptr<Registration>> registrations;
  std::vector<absl::Span<std::byte>> memory;
  PeerId peer = 0;
  std::string failure;

  void Do(const std::vector<std::string>& words) {
    int64_t count = 0, bytes = 0, seed = 0;
    if (words[0] == "region" && absl::SimpleAtoi(words[1], &bytes) && absl::SimpleAtoi(words[2], &seed)) {
      auto region = endpoint->AllocateRegion(bytes);
      if (!region.ok()) return Fail(region.status());
      Write(Pattern(bytes, seed), (*region)->bytes());
      WriteLine(1, Hex((*region)->key()));
      regions.push_back(*std::move(region));
    } else if (words[0] == "register" && absl::SimpleAtoi(words[1], &bytes) && absl::SimpleAtoi(words[2], &seed)) {
      void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      memory.push_back({static_cast<std::byte*>(data), static_cast<size_t>(bytes)});
      const Bytes pattern = Pattern(bytes, seed);
      std::copy(pattern.begin(), pattern.end(), memory.back().begin());
      auto registration = endpoint->Register(memory.back());
      if (!registration.ok()) return Fail(registration.status());
      WriteLine(1, Hex((*registration)->key()));
      registrations.push_back(*std::move(registration));
    } else if (words[0] == "revoke") {
      registrations.clear();
      WriteLine(1, "revoked");
    } else if (words[0] == "unmap") {
      for (absl::Span<std::byte> bytes : memory) munmap(bytes.data(), bytes.size());
      WriteLine(1, "unmapped");
    } else if (words[0] == "connect") {
      auto connected = endpoint->Connect(Unhex(words[1]), Soon());
      if (!connected.ok()) return Fail(connected.status());
      peer = *connected;
      WriteLine(1, "connected");
    } else if (words[0] == "send" && absl::SimpleAtoi(words[1], &count) && absl::SimpleAtoi(words[2], &bytes) &&
               absl::SimpleAtoi(words[3], &seed)) {
      std::vector<Bytes> messages;
      for (int64_t i = 0; i < count; ++i) messages.push_back(Pattern(bytes, seed + i));
      for (int64_t i = 0; i < count; ++i) {
        auto op = endpoint->Send(peer, i, messages[i]);
        if (!op.ok()) return Fail(op.status());
      }
      for (const auto& [op, status] : PollUntil({endpoint.get()}, count)) {
        if (!status.ok()) return Fail(status);
      }
      WriteLine(1, "sent");
    } else {
      failure = "an unknown command";
    }
  }
  void Fail(const absl::Status& status) { failure = status.ToString(); }
};

PeerId ConnectTo(Transport& endpoint, const std::string& hex_address) {
  auto peer = endpoint.Connect(Unhex(hex_address), Soon());
  EXPECT_TRUE(peer.ok()) << peer.status();
  return peer.ok() ? *peer : 0;
}

void MappingsSurviveAKilledOwner(const NewEndpoint& new_endpoint) {
  auto endpoint = new_endpoint();
  PeerProcess owner("run");
  const PeerId peer = ConnectTo(*endpoint, owner.Read());
  const Bytes pattern = Pattern(3000001, TestSeed() % 1000);
  const std::string key = Unhex(owner.Ask(absl::StrCat("region 3000001 ", TestSeed() % 1000)));
  auto mapping = endpoint->Map(peer, key, Soon());
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  const auto holds = [&] { return Contents((*mapping)->bytes()) == pattern; };
  EXPECT_TRUE(holds());
  owner.Kill();
  EXPECT_TRUE(holds());
  EXPECT_THAT(endpoint->Map(peer, key, Soon()).status(), HasErrorCode(ErrorCode::kPeerLost));
}

void ConnectToAKilledProcess(const NewEndpoint& new_endpoint) {
  auto endpoint = new_endpoint();
  PeerProcess process("run");
  const std::string address = Unhex(process.Read());
  process.Kill();
  auto peer = endpoint->Connect(address, Soon());
  if (peer.ok()) {
    // Found out at the first operation.
    Bytes buffer(100);
    auto op = endpoint->Receive(*peer, 1, absl::MakeSpan(buffer));
    ASSERT_TRUE(op.ok()) << op.status();
    for (const auto& [id, status] : PollUntil({endpoint.get()}, 1)) {
      EXPECT_THAT(status, HasErrorCode(ErrorCode::kPeerLost));
    }
  } else {
    EXPECT_THAT(peer.status(), HasErrorCode(ErrorCode::kPeerLost));
  }
}

void MessagesCrossProcesses(const NewEndpoint& new_endpoint) {
  auto endpoint = new_endpoint();
  PeerProcess sender("run");
  const PeerId peer = ConnectTo(*endpoint, sender.Read());
  ASSERT_EQ(sender.Ask(absl::StrCat("connect ", Hex(endpoint->address()))), "connected");
  for (size_t size : {100u, 20000u, 1u << 20}) {
    std::vector<Bytes> received(20, Bytes(size));
    for (size_t i = received.size(); i-- > 0;) {
      ASSERT_TRUE(endpoint->Receive(peer, i, absl::MakeSpan(received[i])).ok());
    }
    sender.Tell(absl::StrCat("send 20 ", size, " ", size));
    for (const auto& [op, status] : PollUntil({endpoint.get()}, 20)) EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(sender.Read(), "sent");
    for (size_t i = 0; i < received.size(); ++i) EXPECT_TRUE(received[i] == Pattern(size, size + i)) << i;
  }
  EXPECT_EQ(sender.Finish(), 0);
}

// Kills a peer at a random moment of a stream of messages to us, while we also wait for one that it will never send.
void AKilledSenderIsLost(const NewEndpoint& new_endpoint) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < Share(20); ++round) {
    auto endpoint = new_endpoint();
    PeerProcess sender("run");
    const PeerId peer = ConnectTo(*endpoint, sender.Read());
    // Now and then it dies before it knows us.
    const bool connected = round % 5 != 0;
    if (connected) {
      ASSERT_EQ(sender.Ask(absl::StrCat("connect ", Hex(endpoint->address()))), "connected");
    }
    const size_t size = 1 + random() % 400000;
    constexpr size_t kCount = 50;
    std::vector<Bytes> received(kCount + 1, Bytes(size));
    std::map<OpId, size_t> tags;
    for (size_t i = 0; i <= kCount; ++i) {
      auto op = endpoint->Receive(peer, i, absl::MakeSpan(received[i]));
      ASSERT_TRUE(op.ok()) << op.status();
      tags[*op] = i;
    }
    const Bytes large(endpoint->capabilities().max_message_bytes);
    auto send = endpoint->Send(peer, 1, large);
    ASSERT_TRUE(send.ok()) << send.status();
    size_t done = 0;
    const auto take = [&](const std::vector<Completion>& completions) {
      for (const Completion& c : completions) {
        ++done;
        if (c.status.ok() && tags.count(c.op) != 0) {
          EXPECT_LT(tags[c.op], kCount);
          EXPECT_TRUE(received[tags[c.op]] == Pattern(size, 7 + tags[c.op]));
        } else if (!c.status.ok()) {
          EXPECT_THAT(c.status, HasErrorCode(ErrorCode::kPeerLost));
        }
      }
    };
    const absl::Time deadline = Soon();
    std::vector<Completion> completions;
    if (connected) {
      sender.Tell(absl::StrCat("send ", kCount, " ", size, " 7"));
      const size_t before = random() % kCount;
      while (done < before && absl::Now() < deadline) {
        completions.clear();
        endpoint->Poll(absl::Milliseconds(5), &completions);
        take(completions);
      }
    }
    sender.Kill();
    while (done < kCount + 2 && absl::Now() < deadline) {
      completions.clear();
      endpoint->Poll(absl::Seconds(1), &completions);
      take(completions);
    }
    ASSERT_EQ(done, kCount + 2) << "round " << round << ", size " << size;
  }
}

// A process with registered memory, opened at an endpoint of ours.
struct ReadingProcess {
  ReadingProcess(const NewEndpoint& new_endpoint, size_t size)
      : endpoint(new_endpoint()), pattern(Pattern(size, TestSeed() % 1000)) {
    peer = ConnectTo(*endpoint, owner.Read());
    key = Unhex(owner.Ask(absl::StrCat("register ", size, " ", TestSeed() % 1000)));
    auto opened = endpoint->OpenRemote(peer, key, Soon());
    EXPECT_TRUE(opened.ok()) << opened.status();
    remote = *std::move(opened);
  }

  absl::Status ReadAll(Bytes* got) {
    got->assign(pattern.size(), std::byte{0xEE});
    const ReadRange all{0, static_cast<int64_t>(got->size())};
    return remote->Read({&all, 1}, got->data(), Soon());
  }

  std::unique_ptr<Transport> endpoint;
  PeerProcess owner{"run"};
  const Bytes pattern;
  PeerId peer = 0;
  std::string key;
  std::unique_ptr<RemoteMemory> remote;
};

void ReadsCrossProcesses(const NewEndpoint& new_endpoint) {
  ReadingProcess process(new_endpoint, 3000001);
  Bytes got;
  ASSERT_TRUE(process.ReadAll(&got).ok());
  EXPECT_TRUE(got == process.pattern);
  EXPECT_EQ(process.owner.Ask("revoke"), "revoked");
  EXPECT_THAT(process.ReadAll(&got), HasErrorCode(ErrorCode::kTransport));
  EXPECT_EQ(process.owner.Finish(), 0);
  EXPECT_THAT(process.ReadAll(&got), HasErrorCode(ErrorCode::kPeerLost));
}

void UnmappedMemoryIsRefused(const NewEndpoint& new_endpoint) {
  ReadingProcess process(new_endpoint, 3000001);
  Bytes got;
  ASSERT_TRUE(process.ReadAll(&got).ok());
  EXPECT_EQ(process.owner.Ask("unmap"), "unmapped");
  EXPECT_THAT(process.ReadAll(&got), HasErrorCode(ErrorCode::kTransport));
  EXPECT_EQ(process.owner.Finish(), 0);
}

// Kills the owner while it is being read, at a random moment.
void AKilledOwnerIsLost(const NewEndpoint& new_endpoint) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < Share(20); ++round) {
    ReadingProcess process(new_endpoint, 1 + random() % (8 << 20));
    std::atomic<int> reads{0};
    const int before = random() % 20;
    std::thread killer([&] {
      while (reads < before) std::this_thread::yield();
      process.owner.Kill();
    });
    Bytes got;
    absl::Status status;
    while (true) {
      status = process.ReadAll(&got);
      ++reads;
      if (!status.ok()) break;
      ASSERT_TRUE(got == process.pattern);
    }
    killer.join();
    EXPECT_THAT(status, HasErrorCode(ErrorCode::kPeerLost)) << "round " << round;
    EXPECT_THAT(process.ReadAll(&got), HasErrorCode(ErrorCode::kPeerLost));
    EXPECT_THAT(process.endpoint->OpenRemote(process.peer, process.key, Soon()).status(),
                HasErrorCode(ErrorCode::kPeerLost));
  }
}

}  // namespace

int RunPeerProcess(int, char**, const ConformanceBackend& backend) {
  Child child;
  child.endpoint = backend.new_world()();
  WriteLine(1, Hex(child.endpoint->address()));
  std::vector<Completion> completions;
  while (child.failure.empty()) {
    child.endpoint->Poll(absl::Milliseconds(1), &completions);
    pollfd event{0, POLLIN, 0};
    if (::poll(&event, 1, 0) != 1) continue;
    const std::string line = ReadLine(0);
    if (line.empty() || line == "quit") return 0;
    child.Do(absl::StrSplit(line, ' '));
  }
  std::fprintf(stderr, "the peer process failed: %s\n", child.failure.c_str());
  return 1;
}

std::vector<Case> ProcessCases() {
  return {Case{"MappingsSurviveAKilledOwner", Needs::kMap, MappingsSurviveAKilledOwner},
          Case{"ConnectToAKilledProcess", Needs::kNothing, ConnectToAKilledProcess},
          Case{"MessagesCrossProcesses", Needs::kTwoSided, MessagesCrossProcesses},
          Case{"ReadsCrossProcesses", Needs::kRead, ReadsCrossProcesses},
          Case{"UnmappedMemoryIsRefused", Needs::kRead, UnmappedMemoryIsRefused},
          Case{"AKilledOwnerIsLost", Needs::kRead, AKilledOwnerIsLost},
          Case{"AKilledSenderIsLost", Needs::kTwoSided, AKilledSenderIsLost}};
}

}  // namespace headrace::conformance
