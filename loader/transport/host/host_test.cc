#include "loader/transport/host/host.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/transport/conformance.h"
#include "loader/transport/host/region.h"
#include "loader/transport/host/server.h"
#include "loader/transport/host/wire.h"
#include "planner/status.h"

extern char** environ;

namespace headrace {
namespace {

using host::Cookie;
using host::Descriptor;
using host::Name;
using testing::HasSubstr;

absl::Time Soon() { return absl::Now() + absl::Seconds(60); }

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
  const host::MapRequest request{};
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
  ASSERT_TRUE(host::FillRandom(name.data(), name.size()).ok() && host::FillRandom(cookie.data(), cookie.size()).ok());
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
  if (flag == "--count-descriptors") return headrace::CountDescriptors();
  return headrace::RunConformance(argc, argv,
                                  {"host", [] { return [] { return headrace::NewHostTransport().value(); }; }, true});
}
