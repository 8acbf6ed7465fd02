#include "loader/transport/host/host.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/transport/conformance.h"
#include "loader/transport/host/region.h"
#include "loader/transport/host/remote.h"
#include "loader/transport/host/server.h"
#include "loader/transport/host/wire.h"
#include "planner/status.h"

extern char** environ;

namespace headrace {
namespace {

using host::Name;
using testing::HasSubstr;

absl::Time Soon() { return absl::Now() + absl::Minutes(3); }

// A connection to the owner that has said nothing yet; its cookie.
Descriptor Dial(Transport& owner, Cookie* cookie) {
  Name name;
  EXPECT_TRUE(host::ParseAddress(owner.address(), &name, cookie).ok());
  auto socket = host::ConnectTo(name, 60000);
  EXPECT_TRUE(socket.ok()) << socket.status();
  return socket.ok() ? *std::move(socket) : Descriptor();
}

// What the owner says: the size of its packet; 0 when it closed the connection.
ssize_t Answer(const Descriptor& socket) {
  char packet[100];
  Descriptor fd;
  const ssize_t size = host::ReceivePacket(socket.get(), packet, sizeof packet, &fd);
  EXPECT_LT(fd.get(), 0);
  return size < 0 && errno == ECONNRESET ? 0 : size;
}

// Runs main again with these arguments; its exit code.
int RunAgain(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "/proc/self/exe");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t pid;
  EXPECT_EQ(posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, argv.data(), environ), 0);
  int status;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

constexpr int kCannotTest = 77;

TEST(Host, NothingIsSaidWithoutTheCookie) {
  auto owner = NewHostTransport().value();
  Cookie cookie;
  for (int i = 0; i < 4; ++i) {
    Descriptor socket = Dial(*owner, &cookie);
    host::Hello hello{host::kProtocol, cookie};
    size_t size = sizeof hello;
    if (i == 0) hello.cookie[0] ^= 1;
    if (i == 1) hello.cookie[31] ^= 128;
    if (i == 2) size -= 1;
    if (i == 3) hello.protocol += 1;
    ASSERT_TRUE(host::SendPacket(socket.get(), &hello, size, -1));
    EXPECT_EQ(Answer(socket), 0) << i;
  }
  Descriptor socket = Dial(*owner, &cookie);
  const host::Request request{};
  ASSERT_TRUE(host::SendPacket(socket.get(), &request, sizeof request, -1));
  EXPECT_EQ(Answer(socket), 0) << "a request before the cookie";
}

TEST(Host, BrokenRequestsEndTheConnection) {
  auto owner = NewHostTransport().value();
  Cookie cookie;
  Descriptor socket = Dial(*owner, &cookie);
  const host::Hello hello{host::kProtocol, cookie};
  ASSERT_TRUE(host::SendPacket(socket.get(), &hello, sizeof hello, -1));
  EXPECT_EQ(Answer(socket), static_cast<ssize_t>(sizeof(host::HelloReply)));
  const std::vector<char> large(100000, 'x');
  ASSERT_TRUE(host::SendPacket(socket.get(), large.data(), large.size(), -1));
  EXPECT_EQ(Answer(socket), 0);
}

TEST(Host, SilentClientsBlockNobodyAndMakeRoom) {
  auto owner = NewHostTransport().value();
  auto region = owner->AllocateRegion(10).value();
  Cookie cookie;
  std::vector<Descriptor> silent;
  for (size_t i = 0; i < host::Server::kMaxClients + 20; ++i) {
    silent.push_back(Dial(*owner, &cookie));
    ASSERT_GE(silent.back().get(), 0);
  }
  auto reader = NewHostTransport().value();
  auto peer = reader->Connect(owner->address(), Soon());
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_TRUE(reader->Map(*peer, region->key(), Soon()).ok());
  EXPECT_EQ(Answer(silent[0]), 0) << "the oldest made room";
}

TEST(Host, OwnersThatDoNotAnswerMeetTheDeadline) {
  Name name;
  Cookie cookie;
  ASSERT_TRUE(FillRandom(name.data(), name.size()).ok() && FillRandom(cookie.data(), cookie.size()).ok());
  auto listener = host::Listen(name);
  ASSERT_TRUE(listener.ok()) << listener.status();
  auto reader = NewHostTransport().value();
  const std::string address = host::FormatAddress(name, cookie);
  EXPECT_TRUE(HasCode(reader->Connect(address, absl::Now() + absl::Milliseconds(20)).status(), ErrorCode::kDeadline));
  EXPECT_TRUE(HasCode(reader->Connect(address, absl::InfinitePast()).status(), ErrorCode::kDeadline));
}

TEST(Host, MappingsCannotBeMadeWritable) {
  auto owner = NewHostTransport().value();
  auto reader = NewHostTransport().value();
  auto region = owner->AllocateRegion(5000).value();
  const PeerId peer = reader->Connect(owner->address(), Soon()).value();
  auto mapping = reader->Map(peer, region->key(), Soon()).value();
  void* data = const_cast<std::byte*>(mapping->bytes().data());
  EXPECT_EQ(mprotect(data, 5000, PROT_READ | PROT_WRITE), -1);
  EXPECT_EQ(errno, EACCES);
}

TEST(Host, OnlySealedMemfdsOfTheRightSizeAreMapped) {
  const int all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  const auto sealed = [](int seals) {
    Descriptor fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(ftruncate(fd.get(), 8192), 0);
    EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    return fd;
  };
  EXPECT_TRUE(host::MapSealed(sealed(all), 8192).ok());
  for (int missing : {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE, F_SEAL_SEAL, all}) {
    EXPECT_TRUE(HasCode(host::MapSealed(sealed(all & ~missing), 8192).status(), ErrorCode::kTransport)) << missing;
  }
  for (uint64_t bytes : {uint64_t{0}, uint64_t{8191}, uint64_t{8193}, ~uint64_t{0}}) {
    EXPECT_TRUE(HasCode(host::MapSealed(sealed(all), bytes).status(), ErrorCode::kTransport)) << bytes;
  }
  Descriptor file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_TRUE(HasCode(host::MapSealed(std::move(file), 8192).status(), ErrorCode::kTransport));
  EXPECT_TRUE(HasCode(host::MapSealed(Descriptor(), 8192).status(), ErrorCode::kTransport));
}

TEST(Host, DescriptorsCloseOnExec) {
  const int inherited = RunAgain({"--count-descriptors"});
  auto owner = NewHostTransport().value();
  auto reader = NewHostTransport().value();
  auto region = owner->AllocateRegion(10).value();
  ASSERT_TRUE(reader->Connect(owner->address(), Soon()).ok());
  EXPECT_EQ(RunAgain({"--count-descriptors"}), inherited);
}

TEST(Host, LimitsAreTypedErrors) { EXPECT_EQ(RunAgain({"--limits"}), 0); }

TEST(Host, OtherUsersAreRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  auto owner = NewHostTransport().value();
  const int result = RunAgain({"--other-user", owner->address()});
  if (result == kCannotTest) GTEST_SKIP() << "cannot become another user here";
  EXPECT_EQ(result, 0);
}

TEST(Host, WhoCannotReadTheOwnerSaysWhyAndMapsAllTheSame) {
  auto owner = NewHostTransport().value();
  auto region = owner->AllocateRegion(10).value();
  // Without this a reader of another namespace and without capabilities could still have the right.
  ASSERT_EQ(prctl(PR_SET_DUMPABLE, 0), 0);
  for (const std::string flag : {"--without-capabilities", "--other-pid-namespace"}) {
    SCOPED_TRACE(flag);
    const int result = RunAgain({flag, owner->address(), absl::BytesToHexString(region->key())});
    if (result != kCannotTest) {
      EXPECT_EQ(result, 0);
    }
  }
  ASSERT_EQ(prctl(PR_SET_DUMPABLE, 1), 0);
}

TEST(Host, AProcessWithoutTheStampsIsNotTheOwner) {
  host::StampMemory identity, stamp, other;
  ASSERT_TRUE(identity.Set().ok() && stamp.Set().ok() && other.Set().ok());
  const std::byte memory[10] = {std::byte{1}, std::byte{2}};
  const auto read = [&](pid_t pid, const host::Stamp& identity, const host::Stamp& stamp) {
    auto owner = std::make_shared<host::Owner>();
    owner->pid = pid;
    owner->identity = identity;
    auto remote = host::NewRemoteMemory(owner, reinterpret_cast<uint64_t>(memory), sizeof memory, stamp);
    EXPECT_TRUE(remote.ok()) << remote.status();
    std::byte out[2] = {};
    const ReadRange range{0, 2};
    return (*remote)->Read({&range, 1}, out, Soon());
  };
  const auto wrong = [&](const host::StampMemory& at) { return host::Stamp{at.stamp().address, other.stamp().value}; };
  EXPECT_TRUE(read(getpid(), identity.stamp(), stamp.stamp()).ok());
  // Another process that got the number, or another program in the same process.
  EXPECT_TRUE(HasCode(read(getpid(), wrong(identity), wrong(stamp)), ErrorCode::kPeerLost));
  EXPECT_TRUE(HasCode(read(getpid(), {8, identity.stamp().value}, {8, stamp.stamp().value}), ErrorCode::kPeerLost));
  // The owner itself, which revoked.
  EXPECT_TRUE(HasCode(read(getpid(), identity.stamp(), wrong(stamp)), ErrorCode::kTransport));
  EXPECT_TRUE(HasCode(read(getpid(), identity.stamp(), {8, stamp.stamp().value}), ErrorCode::kTransport));
  const host::Stamp revoked = stamp.stamp();
  stamp.Wipe();
  EXPECT_TRUE(HasCode(read(getpid(), identity.stamp(), revoked), ErrorCode::kTransport));
  EXPECT_TRUE(HasCode(read(INT32_MAX, identity.stamp(), revoked), ErrorCode::kPeerLost));

  EXPECT_TRUE(host::ProbeOwner(getpid(), identity.stamp())->readable.ok());
  for (const auto& [pid, at, why] : {std::tuple(pid_t{0}, identity.stamp(), "PID namespace"),
                                     std::tuple(getpid(), wrong(identity), "not the owner's"),
                                     std::tuple(getpid(), host::Stamp{8, {}}, "not the owner's"),
                                     std::tuple(pid_t{INT32_MAX}, identity.stamp(), "the owner ended")}) {
    const absl::Status status = host::ProbeOwner(pid, at)->readable;
    EXPECT_TRUE(HasCode(status, ErrorCode::kTransport)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }
}

TEST(Host, RemoteMemoryMustBeARangeOfAddresses) {
  for (const auto& [address, bytes] : {std::pair<uint64_t, uint64_t>{4096, 0},
                                       {4096, ~uint64_t{0}},
                                       {~uint64_t{0} - 9, 11},
                                       {4096, uint64_t{1} << 63}}) {
    EXPECT_TRUE(HasCode(host::NewRemoteMemory(std::make_shared<host::Owner>(), address, bytes, {}).status(),
                        ErrorCode::kTransport))
        << bytes;
  }
}

// In a process that may not read the owner's memory.
int TestCannotRead(const std::string& address, const std::string& key, const std::string& why) {
  auto reader = NewHostTransport().value();
  auto peer = reader->Connect(address, Soon());
  EXPECT_TRUE(peer.ok()) << peer.status();
  const absl::Status status = reader->CheckRead(*peer);
  EXPECT_TRUE(HasCode(status, ErrorCode::kTransport)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  EXPECT_EQ(reader->OpenRemote(*peer, "0123456789abcdef", Soon()).status(), status);
  EXPECT_TRUE(reader->Map(*peer, absl::HexStringToBytes(key), Soon()).ok());
  return testing::Test::HasFailure() ? 1 : 0;
}

int TestWithoutCapabilities(const std::string& address, const std::string& key) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  const __user_cap_data_struct none[2] = {};
  if (syscall(SYS_capset, &header, none) != 0) return kCannotTest;
  return TestCannotRead(address, key, "the kernel does not let this process read the memory of process");
}

int TestOtherPidNamespace(const std::string& address, const std::string& key) {
  if (unshare(CLONE_NEWPID) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) return kCannotTest;
  const pid_t pid = fork();
  if (pid == 0) _exit(TestCannotRead(address, key, "not visible in this PID namespace"));
  int status;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  // Not exit: a process whose new PID namespace has lost its first process starts no other, as a leak checker would.
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

// In a process of its own: limits stay.
int TestLimits() {
  auto owner = NewHostTransport().value();
  rlimit limit{1 << 20, 1 << 20};
  setrlimit(RLIMIT_FSIZE, &limit);
  EXPECT_TRUE(owner->AllocateRegion(1 << 20).ok());
  const absl::Status too_large = owner->AllocateRegion((1 << 20) + 1).status();
  EXPECT_TRUE(HasCode(too_large, ErrorCode::kOutOfMemory)) << too_large;
  EXPECT_THAT(std::string(too_large.message()), testing::AllOf(HasSubstr("1048577"), HasSubstr("1048576")));
  limit = {8, 8};
  setrlimit(RLIMIT_NOFILE, &limit);
  std::vector<std::unique_ptr<Region>> regions;
  absl::Status status;
  while (status.ok() && regions.size() < 20) {
    auto region = owner->AllocateRegion(10);
    status = region.status();
    if (region.ok()) regions.push_back(*std::move(region));
  }
  EXPECT_TRUE(HasCode(status, ErrorCode::kTransport)) << status;
  return testing::Test::HasFailure() ? 1 : 0;
}

int TestOtherUser(const std::string& address) {
  if (setresuid(65534, 65534, 65534) != 0) return kCannotTest;
  auto reader = NewHostTransport().value();
  const absl::Status status = reader->Connect(address, Soon()).status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kTransport)) << status;
  // The owner's own check, for those that do not look first.
  Cookie cookie;
  Name name;
  EXPECT_TRUE(host::ParseAddress(address, &name, &cookie).ok());
  auto socket = host::ConnectTo(name, 60000);
  EXPECT_TRUE(socket.ok()) << socket.status();
  const host::Hello hello{host::kProtocol, cookie};
  if (host::SendPacket(socket->get(), &hello, sizeof hello, -1)) {
    EXPECT_EQ(Answer(*socket), 0);
  }
  return testing::Test::HasFailure() ? 1 : 0;
}

int CountDescriptors() {
  int count = 0;
  for (int fd = 0; fd < 1000; ++fd) count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  const std::string flag = argc > 1 ? argv[1] : "";
  if (flag == "--limits") return headrace::TestLimits();
  if (flag == "--other-user") return headrace::TestOtherUser(argv[2]);
  if (flag == "--without-capabilities") return headrace::TestWithoutCapabilities(argv[2], argv[3]);
  if (flag == "--other-pid-namespace") return headrace::TestOtherPidNamespace(argv[2], argv[3]);
  if (flag == "--count-descriptors") return headrace::CountDescriptors();
  return headrace::RunConformance(argc, argv,
                                  {"host", [] { return [] { return headrace::NewHostTransport().value(); }; }, true});
}
