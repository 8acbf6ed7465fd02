#include "loader/transport/nccl/connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <random>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/status.h"

namespace headrace::nccl {
namespace {

using ::testing::HasSubstr;

wire::Frame Offer(uint64_t tag, size_t content) {
  wire::Frame frame;
  frame.mutable_offer()->set_tag(tag);
  frame.mutable_offer()->set_bytes(content);
  frame.mutable_offer()->set_content(std::string(content, static_cast<char>(tag)));
  return frame;
}

// Both ends of a connection over loopback.
struct Ends {
  Ends() {
    listener = ListenOn("lo").value();
    from = std::make_unique<Connection>(Dial(listener.ip, listener.port, absl::InfiniteFuture()).value());
    Descriptor taken;
    while (taken.get() < 0) taken = TakeConnection(listener);
    to = std::make_unique<Connection>(std::move(taken));
  }
  void AwaitReadable() {
    pollfd event{to->socket(), POLLIN, 0};
    ASSERT_EQ(poll(&event, 1, 60000), 1);
  }
  Listener listener;
  std::unique_ptr<Connection> from, to;
};

TEST(NcclConnectionTest, FramesArriveWholeAndInOrderThroughAFullConnection) {
  Ends ends;
  constexpr int kFrames = 2000;
  size_t queued = 0;
  for (; queued < kFrames; ++queued) ends.from->Queue(Offer(queued, queued * 37 % 9000));
  std::vector<wire::Frame> frames;
  bool was_full = false;
  while (frames.size() < kFrames) {
    ASSERT_TRUE(ends.from->Flush());
    was_full |= ends.from->unwritten();
    ends.AwaitReadable();
    ASSERT_TRUE(ends.to->Read(&frames));
  }
  EXPECT_TRUE(was_full);
  for (int i = 0; i < kFrames; ++i) {
    EXPECT_EQ(frames[i].SerializeAsString(), Offer(i, i * 37 % 9000).SerializeAsString());
  }
}

TEST(NcclConnectionTest, WhatWasNotAskedForStays) {
  Ends ends;
  for (int i = 0; i < 3; ++i) ends.from->Queue(Offer(i, 5));
  ASSERT_TRUE(ends.from->Flush());
  std::vector<wire::Frame> frames;
  while (frames.empty()) ASSERT_TRUE(ends.to->Read(&frames, 1));
  ASSERT_EQ(frames.size(), 1u);
  while (frames.size() < 3) ASSERT_TRUE(ends.to->Read(&frames));
  EXPECT_EQ(frames[2].offer().tag(), 2u);
}

TEST(NcclConnectionTest, TheEndComesAfterWhatWasWritten) {
  Ends ends;
  for (int i = 0; i < 100; ++i) ends.from->Queue(Offer(i, 200));
  ASSERT_TRUE(ends.from->Flush());
  ends.from.reset();
  std::vector<wire::Frame> frames;
  do {
    ends.AwaitReadable();
  } while (ends.to->Read(&frames));
  EXPECT_EQ(frames.size(), 100u);
}

TEST(NcclConnectionTest, WhatIsNoFrameEndsTheConnection) {
  const std::string texts[] = {std::string("\xff\xff\xff\x7f", 4),           // far too long
                               std::string("\x01\x00\x01\x00", 4),           // 65537 bytes
                               std::string("\x02\x00\x00\x00\xff\xff", 6)};  // no message
  for (const std::string& text : texts) {
    Ends ends;
    ASSERT_EQ(send(ends.from->socket(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    std::vector<wire::Frame> frames;
    ends.AwaitReadable();
    EXPECT_FALSE(ends.to->Read(&frames));
    EXPECT_TRUE(frames.empty());
  }
}

TEST(NcclConnectionTest, NobodyListening) {
  uint16_t port;
  {
    const Listener gone = ListenOn("lo").value();
    port = gone.port;
  }
  const absl::Status status = Dial("127.0.0.1", port, absl::InfiniteFuture()).status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kPeerLost)) << status;
}

TEST(NcclConnectionTest, AnInterfaceThatIsNotHereIsNamed) {
  const absl::Status status = ListenOn("nosuch0").status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kInvalidOption)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::AllOf(HasSubstr("'nosuch0'"), HasSubstr("lo")));
}

}  // namespace
}  // namespace headrace::nccl
