// Messages that nobody should send, in any state and over epochs, crash no machine.
#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/session/coordinator_testing.h"
#include "loader/session/publisher_session.h"
#include "loader/session/receiver_session.h"

namespace headrace {
namespace {

using namespace ::headrace::testing;  // NOLINT: the words of this folder's tests

// Any small numbers, by reflection, also in what lies inside.
void Fill(google::protobuf::Message* message, std::mt19937& random) {
  const auto* type = message->GetDescriptor();
  const auto* reflection = message->GetReflection();
  for (int i = 0; i < type->field_count(); ++i) {
    const auto* field = type->field(i);
    if (field->cpp_type() == field->CPPTYPE_MESSAGE) {
      const bool fault = field->message_type() == proto::Fault::descriptor();
      if (field->is_repeated())
        for (unsigned n = random() % 3; n > 0; --n) Fill(reflection->AddMessage(message, field), random);
      else if (random() % (fault ? 4 : 2) == 0)
        Fill(reflection->MutableMessage(message, field), random);
    } else if (field->is_repeated()) {
      if (field->cpp_type() == field->CPPTYPE_UINT64 && random() % 4 == 0)
        reflection->AddUInt64(message, field, random() % 2);
    } else if (field->cpp_type() == field->CPPTYPE_UINT64) {
      reflection->SetUInt64(message, field, random() % 5);
    } else if (field->cpp_type() == field->CPPTYPE_INT32) {
      reflection->SetInt32(message, field, static_cast<int>(random() % 5) - 1);
    } else if (field->cpp_type() == field->CPPTYPE_BOOL) {
      reflection->SetBool(message, field, random() % 2);
    } else if (field->cpp_type() == field->CPPTYPE_ENUM) {
      reflection->SetEnumValue(message, field, static_cast<int>(random() % 6));
    }
  }
}
proto::Envelope Garbage(MemberKey from, MemberKey to, uint64_t epoch, std::mt19937& random) {
  proto::Envelope message = From(from, to, epoch);
  const auto* type = proto::Envelope::descriptor();
  const auto* field = type->field(5 + static_cast<int>(random() % (type->field_count() - 5)));
  Fill(message.GetReflection()->MutableMessage(&message, field), random);
  return message;
}
MemberKey AnyKey(std::mt19937& random) {
  return {static_cast<proto::Role>(random() % 5), static_cast<int>(random() % 4) - 1,
          static_cast<int>(random() % 4) - 1};
}

class GarbageTest : public CoordinatorTest {};

TEST_F(GarbageTest, NeverCrashesTheCoordinator) {
  int epochs = 0;
  for (uint32_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    CoordinatorOptions options = Options();
    options.timeouts.rejoin_ns = seed % 2 == 0 ? 0 : 20 * kSecond;
    Restart(options);
    std::vector<ConnectionId> at = {0, 1, 2, 3, 4};
    ConnectionId last = 100;
    if (seed % 3 != 0) MakeReady();
    const auto plan = [&](int i) {
      proto::Envelope planned = PlanOf(kMembers[i]);
      planned.set_epoch(machine_->epoch());
      // Only with those that are there; which ones they are it does not know: so some fail.
      if (random() % 4 == 0) Fill(planned.mutable_planned()->mutable_run(), random);
      for (unsigned n = random() % 3; n > 0; --n) Fill(planned.mutable_planned()->add_held(), random);
      if (random() % 4 == 0) Fill(planned.mutable_planned()->add_replicas(), random);
      Tell(at[i], planned);
    };
    for (int i = 0; i < 300; ++i) {
      const int m = static_cast<int>(random() % 5);
      switch (random() % 12) {
        case 0:
          if (random() % 4 == 0) Die(at[m]);
          break;
        case 1: {  // it comes again, or somebody else does
          const bool late = random() % 3 == 0;
          const MemberKey key = late ? MemberKey::Receiver(2, static_cast<int>(random() % 2)) : kMembers[m];
          actions_ = {};
          machine_->OnConnected(++last, now_, &actions_);
          Tell(last, Hello(key, late ? 2 : 0));
          proto::Envelope layout = From(key);
          *layout.mutable_layout() = LayoutOf();
          Tell(last, layout);
          if (!late) at[m] = last;
          break;
        }
        case 2:
          for (int p = 0; p < 5; ++p) plan(p);
          break;
        case 3: {  // what makes sense
          proto::Envelope message = random() % 2 == 0 ? PublishedOf(m % 2, random() % 6, random() % 2)
                                                      : VoteOf(kMembers[2 + m % 3], random() % 6, random() % 4 != 0);
          message.set_epoch(machine_->epoch());
          Tell(at[At(MemberKey::From(message.from()))], message);
          break;
        }
        default: {
          const uint64_t epoch = random() % 8 == 0 ? random() % 5 : machine_->epoch();
          const MemberKey to = random() % 2 == 0 ? MemberKey::Coordinator() : AnyKey(random);
          Tell(random() % 8 == 0 ? random() % 8 : at[m], Garbage(kMembers[m], to, epoch, random));
        }
      }
      if (random() % 10 == 0) Tick(kSecond / 4);
      machine_->NextDeadline();
      machine_->WaitingFor();
    }
    epochs = std::max(epochs, static_cast<int>(machine_->epoch()));
  }
  EXPECT_GT(epochs, 5);  // else it has seen little
}

TEST_F(GarbageTest, NeverCrashesAMember) {
  int ready = 0;
  for (uint32_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    MemberOptions options;
    options.job = "job";
    options.self = seed % 2 == 0 ? MemberKey::Publisher(0) : MemberKey::Receiver(0, 0);
    options.layout = LayoutOf();
    std::optional<PublisherSession> publisher;
    std::optional<ReceiverSession> receiver;
    if (seed % 2 == 0)
      publisher.emplace(options);
    else
      receiver.emplace(options, ReceiverState());
    MemberSession& session = seed % 2 == 0 ? static_cast<MemberSession&>(*publisher) : *receiver;
    int64_t now = kSecond;
    for (int i = 0; i < 300; ++i) {
      MemberActions actions;
      const uint64_t g = 1 + random() % 4;
      if (session.phase() == MemberSession::Phase::kNew || session.phase() == MemberSession::Phase::kLost) {
        session.OnConnected(now, &actions);
        proto::Envelope welcome = From(MemberKey::Coordinator(), options.self, 1 + i / 50);
        welcome.mutable_welcome()->set_rejoin_ns(20 * kSecond);
        session.OnMessage(welcome, now, &actions);
      }
      if (random() % 10 == 0) {
        proto::Envelope start = From(MemberKey::Coordinator(), options.self, session.epoch() + random() % 2);
        for (const MemberKey& key : kMembers) *start.mutable_epoch_start()->add_members()->mutable_id() = key.ToProto();
        session.OnMessage(start, now, &actions);
        (void)session.Planned(session.epoch(), Edges{EdgeOf(0, 0, 0)}, now, &actions);
        if (random() % 4 != 0) {
          proto::Envelope message = From(MemberKey::Coordinator(), options.self, session.epoch());
          message.mutable_epoch_ready()->set_newest(random() % 3);
          session.OnMessage(message, now, &actions);
        }
      }
      ready += session.phase() == MemberSession::Phase::kReady;
      proto::Envelope message = Garbage(random() % 4 == 0 ? AnyKey(random) : MemberKey::Coordinator(), options.self,
                                        random() % 8 == 0 ? random() % 5 : session.epoch(), random);
      if (!message.has_failed() || random() % 8 == 0) session.OnMessage(message, now, &actions);
      if (publisher.has_value()) {
        (void)publisher->Publish(g + i / 20, now + kSecond, now, &actions);
        if (random() % 2 == 0) (void)publisher->Snapshotted(g + i / 20, now, &actions);
        if (random() % 8 == 0) (void)publisher->AbandonSlot(g + i / 20);
      } else {
        (void)receiver->ExpectGeneration(now + kSecond, now, &actions);
        (void)receiver->Begin(g, random() % 2);
        (void)receiver->RequestStart(0, {}, &actions);
        if (random() % 2 == 0) (void)receiver->Vote(receiver->running(), absl::OkStatus(), now, &actions);
        (void)receiver->Stopped(receiver->running(), now, &actions);
        if (receiver->BeginCommit(receiver->running()).ok() && random() % 2 == 0)
          (void)receiver->Committed(receiver->running(), now, &actions);
        // What may be served and what is handed on never differ.
        EXPECT_EQ(receiver->serving().has_value(), !receiver->Carry().poisoned);
      }
      if (random() % 40 == 0) session.OnDisconnected(Error(ErrorCode::kPeerLost, "reset"), now, &actions);
      now += static_cast<int64_t>(random() % 400) * 1'000'000;
      session.OnTick(now, &actions);
      session.NextDeadline();
      session.WaitingFor();
    }
  }
  EXPECT_GT(ready, 1000);  // else it has seen little
}

}  // namespace
}  // namespace headrace
