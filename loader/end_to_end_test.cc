// Publishers and receivers of a whole job in one process.
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/testing/job.h"
#include "loader/testing/naive_copy.h"
#include "loader/testing/transports.h"
#include "loader/testing/two_engines.h"
#include "planner/status.h"
#include "planner/testing/element_oracle.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using testing::FirstError;
using ::testing::HasSubstr;
using testing::HasUcx;
using testing::Job;
using testing::JobConfig;
using testing::OnMemory;
using testing::OnNcclChecker;
using testing::OnTransport;
using testing::SideMemory;
using testing::Soon;
using testing::TwoEngines;

void ExpectError(const absl::Status& status, ErrorCode code, const std::string& a = "", const std::string& b = "") {
  EXPECT_TRUE(HasCode(status, code)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(a), HasSubstr(b)));
}

struct Way {
  std::string name;
  std::function<std::unique_ptr<Transport>()> transport;
  std::vector<Shadow> shadow;
};

std::vector<Way> Ways() {
  const std::vector<Shadow> hosts = {Shadow::kHost, Shadow::kHost}, off = {Shadow::kOff, Shadow::kOff},
                            mixed = {Shadow::kOff, Shadow::kHost};
  std::vector<Way> ways = {{"mapped, shadow", OnMemory(true), hosts},   {"mapped, in place", OnMemory(true), off},
                           {"streams, shadow", OnMemory(false), hosts}, {"streams, in place", OnMemory(false), off},
                           {"streams, mixed", OnMemory(false), mixed},  {"host, shadow", OnTransport("host"), hosts},
                           {"host, mixed", OnTransport("host"), mixed}, {"nccl, mixed", OnNcclChecker(), mixed}};
  if (HasUcx()) ways.push_back({"ucx, mixed", OnTransport("ucx"), mixed});
  return ways;
}

TEST(EndToEndTest, ManyGenerationsOfTwoEngines) {
  uint64_t seed = 1;
  for (const Way& way : Ways()) {
    for (bool shuffled : {false, true}) {
      SCOPED_TRACE(way.name);
      Manifest m = TwoEngines();
      if (shuffled) testing::ShuffleSources(seed, &m);
      JobConfig config;
      config.transport = way.transport;
      config.shadow = way.shadow;
      config.seed = ++seed;
      Job job(m, config);
      ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
      for (uint64_t generation : {1, 2, 3, 7, 8}) {
        ASSERT_EQ(job.Round(generation), absl::OkStatus());
        ASSERT_EQ(job.Difference(), "");
        for (size_t w = 0; w < job.workers().size(); ++w) EXPECT_EQ(job.receiver(w).serving(), generation);
      }
      EXPECT_LE(job.publisher(0).stats().peak_staging_bytes, config.staging_bytes);
      EXPECT_LE(job.receiver(0).stats().peak_staging_bytes, config.staging_bytes);
      EXPECT_EQ(job.receiver(2).stats().bytes, (48 + 24 + 48 + 60) * 2 + 24);
      EXPECT_EQ(job.Close(), absl::OkStatus());
    }
  }
}

TEST(EndToEndTest, RandomManifests) {
  for (int seed = 0; seed < testing::Share(40); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const Manifest m = RandomManifest(random);
    if (SourcesContradict(m)) continue;
    JobConfig config;
    config.transport = OnMemory(seed % 2 == 0);
    config.shadow = {seed % 3 == 0 ? Shadow::kOff : Shadow::kHost};
    config.chunk_bytes = 64;
    config.seed = seed;
    Job job(m, config);
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    for (uint64_t generation : {1, 2}) {
      ASSERT_EQ(job.Round(generation), absl::OkStatus());
      ASSERT_EQ(job.Difference(), "");
    }
    ASSERT_EQ(job.Close(), absl::OkStatus());
  }
}

// The trainer runs ahead by both slots while the engines are busy.
TEST(EndToEndTest, PublishingAhead) {
  JobConfig config;
  config.transport = OnMemory(false);
  Job job(TwoEngines(), config);
  ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
  for (uint64_t generation = 1; generation < 12; generation += 2) {
    ASSERT_EQ(job.Publish(generation), absl::OkStatus());
    ASSERT_EQ(job.Publish(generation + 1), absl::OkStatus());
    for (uint64_t g : {generation, generation + 1}) {
      ASSERT_EQ(FirstError(job.Take(g)), absl::OkStatus());
      ASSERT_EQ(job.Difference(), "");
    }
  }
  EXPECT_EQ(job.Close(), absl::OkStatus());
}

TEST(EndToEndTest, AFailedVerificationAbortsItsEngineAlone) {
  for (const Way& way : Ways()) {
    if (way.transport()->capabilities().map) continue;
    SCOPED_TRACE(way.name);
    const Shadow shadow = way.shadow[0];
    JobConfig config;
    config.transport = way.transport;
    config.shadow = way.shadow;
    config.chunk_bytes = 64;
    config.staging_bytes = 192;
    Job job(TwoEngines(), config);
    testing::TransportTap tap;
    job.receiver_transport = [&](size_t worker) {
      return worker == 1 ? testing::NewTappedTransport(config.transport(), &tap) : nullptr;
    };
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    ASSERT_EQ(job.Round(1), absl::OkStatus());
    uint64_t generation = 1;
    for (int repeat = 0; repeat < 5; ++repeat) {
      const uint64_t good = generation;
      const SideMemory before(job.live());
      tap.corrupt = true;
      ASSERT_EQ(job.Publish(++generation), absl::OkStatus());
      const auto statuses = job.Take(generation);
      ExpectError(statuses[0], ErrorCode::kVerificationFailed, "engine 0 worker 1", "tensor \"");
      ExpectError(statuses[1], ErrorCode::kVerificationFailed, "tensor \"", "publisher rank");
      EXPECT_EQ(statuses[2], absl::OkStatus());
      for (size_t p = 0; p < job.publishers(); ++p) {
        ExpectError(job.publisher(p).AwaitCommit(generation, Soon()), ErrorCode::kVerificationFailed,
                    "engine 0 worker 1", "tensor \"");
      }
      if (shadow == Shadow::kHost) {
        EXPECT_EQ(job.Difference(), "");
        EXPECT_EQ(job.receiver(0).serving(), good);
        EXPECT_EQ(job.receiver(1).serving(), good);
      } else {
        EXPECT_EQ(job.receiver(0).serving(), std::nullopt);
        EXPECT_TRUE(job.receiver(1).Carry().poisoned);
      }
      EXPECT_EQ(job.receiver(2).serving(), generation);
      tap.corrupt = false;
      ASSERT_EQ(job.Round(++generation), absl::OkStatus());
      ASSERT_EQ(job.Difference(), "");
      EXPECT_EQ(job.receiver(0).serving(), generation);
      EXPECT_FALSE(job.receiver(1).Carry().poisoned);
    }
    EXPECT_EQ(job.Close(), absl::OkStatus());
  }
}

// Of every second generation messages are lost, or they are not looked at, until another worker gives it up: all chunks
// come back, at both ends, and the next generation is whole.
TEST(EndToEndTest, AWorkerIsInterruptedWhileItWaitsForBytes) {
  Manifest m = TwoEngines();
  std::erase_if(m.destination, [](const Buffer& b) { return b.rank == 2; });
  m.topology.destination.pop_back();
  MemoryOptions memory;
  memory.map = false;
  MemoryFabric fabric(memory);
  const auto endpoint = [&] { return fabric.NewEndpoint(); };
  std::vector<Way> ways = {{"lost", endpoint, {Shadow::kHost}},
                           {"held", endpoint, {Shadow::kOff}},
                           {"held, nccl", OnNcclChecker(), {Shadow::kHost}}};
  if (HasUcx()) ways.push_back({"held, ucx", OnTransport("ucx"), {Shadow::kHost}});
  for (const Way& way : ways) {
    SCOPED_TRACE(way.name);
    JobConfig config;
    config.transport = way.transport;
    config.shadow = way.shadow;
    config.chunk_bytes = 64;
    config.staging_bytes = 192;
    Job job(m, config);
    testing::TransportTap tap;
    job.receiver_transport = [&](size_t worker) {
      return worker == 0 ? testing::NewTappedTransport(config.transport(), &tap) : nullptr;
    };
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    for (uint64_t generation = 1; generation < 12; ++generation) {
      SCOPED_TRACE(::testing::Message() << "generation " << generation);
      const bool lost = generation % 2 == 0;
      MemoryOptions faults = memory;
      faults.drop_probability = lost && way.name == "lost" ? 1 : 0;
      fabric.SetFaults(faults);
      tap.hold = lost && way.name != "lost";
      if (!lost) {
        ASSERT_EQ(job.Round(generation), absl::OkStatus());
        ASSERT_EQ(job.Difference(), "");
        continue;
      }
      const int before = tap.receives;
      ASSERT_EQ(job.Publish(generation), absl::OkStatus());
      const auto statuses = testing::ForAll(2, [&](size_t worker) {
        EXPECT_TRUE(job.receiver(worker).NextGeneration(Soon()).ok());
        if (worker == 0) return job.receiver(0).Stage(generation, job.ReceiverMemory(0));
        tap.receives.wait(before);
        return job.receiver(1).Stage(generation, {});
      });
      for (const absl::Status& status : statuses) {
        ExpectError(status, ErrorCode::kDestinationMoved, "engine 0 worker 1");
      }
    }
    EXPECT_EQ(job.Close(), absl::OkStatus());
  }
}

TEST(EndToEndTest, ADeadMemberIsNamed) {
  for (bool map : {true, false}) {
    JobConfig config;
    config.transport = OnMemory(map);
    Job publisher_dies(TwoEngines(), config);
    ASSERT_EQ(FirstError(publisher_dies.Join()), absl::OkStatus());
    ASSERT_EQ(publisher_dies.Round(1), absl::OkStatus());
    publisher_dies.KillPublisher(1);
    ExpectError(publisher_dies.receiver(0).NextGeneration(Soon()).status(), ErrorCode::kPeerLost, "publisher rank 1");
    ExpectError(publisher_dies.publisher(0).AwaitCommit(2, Soon()), ErrorCode::kPeerLost, "publisher rank 1");
    EXPECT_EQ(publisher_dies.receiver(0).serving(), 1u);
    EXPECT_EQ(publisher_dies.Difference(), "");
    Job receiver_dies(TwoEngines(), config);
    ASSERT_EQ(FirstError(receiver_dies.Join()), absl::OkStatus());
    ASSERT_EQ(receiver_dies.Publish(1), absl::OkStatus());
    ASSERT_TRUE(receiver_dies.receiver(0).NextGeneration(Soon()).ok());  // it is announced
    receiver_dies.KillReceiver(1);
    ASSERT_EQ(receiver_dies.TakeAt(2, 1), absl::OkStatus());  // the other engine is not concerned
    receiver_dies.Expect(2, 1);
    ExpectError(receiver_dies.publisher(2).AwaitCommit(1, Soon()), ErrorCode::kPeerLost, "engine 0 worker 1");
    ExpectError(receiver_dies.TakeAt(0, 1), ErrorCode::kPeerLost, "engine 0 worker 1");
    EXPECT_EQ(receiver_dies.Difference(), "");
  }
}

// Another worker's refusal may come before this one looks.
TEST(EndToEndTest, AGenerationThatWasGivenUpBeforeItWasStaged) {
  Job job(TwoEngines(), {});
  ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
  ASSERT_EQ(job.Publish(1), absl::OkStatus());
  for (size_t w : {0, 1}) EXPECT_EQ(*job.receiver(w).NextGeneration(Soon()), 1u);
  auto moved = job.ReceiverMemory(1);
  moved.erase("norm");
  ExpectError(job.receiver(1).Stage(1, moved), ErrorCode::kDestinationMoved, "\"norm\"");
  ExpectError(job.publisher(0).AwaitCommit(1, absl::Now()), ErrorCode::kDeadline);  // engine 1 has not committed
  ExpectError(job.receiver(0).Stage(1, job.ReceiverMemory(0)), ErrorCode::kDestinationMoved, "engine 0 worker 1",
              "norm");
  ExpectError(job.receiver(0).Commit(1), ErrorCode::kInvalidOption);
  ASSERT_EQ(job.TakeAt(2, 1), absl::OkStatus());
  job.Expect(2, 1);
  ExpectError(job.publisher(0).AwaitCommit(1, Soon()), ErrorCode::kDestinationMoved, "engine 0 worker 1");
  ASSERT_EQ(job.Round(2), absl::OkStatus());
  EXPECT_EQ(job.Difference(), "");
}

TEST(EndToEndTest, StagingOutOfOrder) {
  Job job(TwoEngines(), {});
  ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
  ExpectError(job.receiver(2).Stage(1, job.ReceiverMemory(2)), ErrorCode::kInvalidOption, "generation 1");
  ExpectError(job.receiver(2).Commit(1), ErrorCode::kInvalidOption, "generation 1");
  ASSERT_EQ(job.Publish(1), absl::OkStatus());
  EXPECT_EQ(*job.receiver(2).NextGeneration(Soon()), 1u);
  ExpectError(job.receiver(2).Stage(2, job.ReceiverMemory(2)), ErrorCode::kInvalidOption, "generation 2");
  ASSERT_EQ(FirstError(job.Take(1)), absl::OkStatus());
  EXPECT_EQ(job.Difference(), "");
}

TEST(EndToEndTest, NoGenerationByTheDeadlineSaysWhatIsWaitedFor) {
  Job job(TwoEngines(), {});
  ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
  ExpectError(job.receiver(0).NextGeneration(absl::Now()).status(), ErrorCode::kDeadline, "no generation above 0");
  ASSERT_EQ(job.Round(1), absl::OkStatus());
  ExpectError(job.receiver(0).NextGeneration(absl::Now()).status(), ErrorCode::kDeadline, "no generation above 1");
}

TEST(EndToEndTest, ASlowReceiverIsNamedByPublish) {
  for (bool map : {true, false}) {
    JobConfig config;
    config.transport = OnMemory(map);
    Job job(TwoEngines(), config);
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    ASSERT_EQ(job.Publish(1), absl::OkStatus());
    ASSERT_EQ(job.Publish(2), absl::OkStatus());
    for (size_t w : {0, 1}) ASSERT_TRUE(job.receiver(w).NextGeneration(Soon()).ok());
    // Engine 0 takes both; engine 1 sleeps.
    for (uint64_t g : {1, 2}) {
      ASSERT_EQ(FirstError(testing::ForAll(2, [&](size_t w) { return job.TakeAt(w, g); })), absl::OkStatus());
    }
    const absl::Status late = job.publisher(0).Publish(3, absl::Now() + absl::Milliseconds(50));
    ExpectError(late, ErrorCode::kDeadline, "engine 1 worker 0", "publish(3)");
    ASSERT_EQ(job.publisher(0).status(), absl::OkStatus());
    // It wakes up, and the trainer tries again.
    for (uint64_t g : {1, 2}) ASSERT_EQ(job.TakeAt(2, g), absl::OkStatus());
    for (size_t w : {0, 1, 2}) job.Expect(w, 2);
    ASSERT_EQ(job.Difference(), "");
    ASSERT_EQ(job.Round(3), absl::OkStatus());
    EXPECT_EQ(job.Difference(), "");
    EXPECT_EQ(job.Close(), absl::OkStatus());
  }
}

TEST(EndToEndTest, AReceiverThatLeftIsNamed) {
  for (bool map : {true, false}) {
    JobConfig config;
    config.transport = OnMemory(map);
    Job job(TwoEngines(), config);
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    ASSERT_EQ(job.Round(1), absl::OkStatus());
    ASSERT_EQ(job.receiver(1).Close(Soon()), absl::OkStatus());
    ASSERT_EQ(job.Publish(2), absl::OkStatus());
    ASSERT_EQ(job.TakeAt(2, 2), absl::OkStatus());
    ExpectError(job.publisher(1).AwaitCommit(2, Soon()), ErrorCode::kAborted, "engine 0 worker 1", "left");
    ExpectError(job.TakeAt(0, 2), ErrorCode::kAborted, "engine 0 worker 1");
    EXPECT_EQ(job.receiver(0).serving(), 1u);
    job.Expect(2, 2);
    EXPECT_EQ(job.Difference(), "");
  }
}

TEST(EndToEndTest, APublisherThatLeavesEndsTheWait) {
  Job job(TwoEngines(), {});
  ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
  ASSERT_EQ(job.Round(1), absl::OkStatus());
  ASSERT_EQ(job.publisher(1).Close(Soon()), absl::OkStatus());
  ExpectError(job.receiver(0).NextGeneration(Soon()).status(), ErrorCode::kAborted, "publisher rank 1");
}

TEST(EndToEndTest, AStoppedCoordinatorEndsEverybody) {
  Job job(TwoEngines(), {});
  ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
  ASSERT_EQ(job.Round(1), absl::OkStatus());
  job.coordinator().Stop();
  EXPECT_FALSE(job.receiver(0).NextGeneration(Soon()).ok());
  EXPECT_FALSE(job.publisher(0).AwaitCommit(2, Soon()).ok());
  EXPECT_FALSE(job.publisher(0).Publish(2, Soon()).ok());
  EXPECT_EQ(job.receiver(0).serving(), 1u);
  EXPECT_EQ(job.Difference(), "");
}

// No worker serves a generation before all of its engine hold it.
TEST(EndToEndTest, ACoordinatorThatIsLostBeforeTheCommitLeavesTheOldGeneration) {
  Job job(TwoEngines(), {});
  ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
  ASSERT_EQ(job.Publish(1), absl::OkStatus());
  ASSERT_TRUE(job.receiver(2).NextGeneration(Soon()).ok());
  ASSERT_EQ(job.receiver(2).Stage(1, job.ReceiverMemory(2)), absl::OkStatus());
  EXPECT_EQ(job.receiver(2).serving(), 0u);
  job.coordinator().Stop();
  EXPECT_FALSE(job.receiver(2).NextGeneration(Soon()).ok());
  EXPECT_FALSE(job.receiver(2).Commit(1).ok());
  EXPECT_EQ(job.receiver(2).serving(), 0u);
  EXPECT_FALSE(job.receiver(2).Carry().poisoned);
  EXPECT_EQ(job.Difference(), "");  // nothing was written
}

TEST(EndToEndTest, BetweenApplyAndCommitNothingIsServed) {
  for (const bool abandon : {false, true}) {
    Job job(TwoEngines(), {});
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    ASSERT_EQ(job.Publish(1), absl::OkStatus());
    ASSERT_EQ(FirstError(testing::ForAll(2, [&](size_t w) { return job.TakeAt(w, 1); })), absl::OkStatus());
    ASSERT_TRUE(job.receiver(2).NextGeneration(Soon()).ok());
    ASSERT_EQ(job.receiver(2).Stage(1, job.ReceiverMemory(2)), absl::OkStatus());
    ASSERT_EQ(job.receiver(2).Apply(1), absl::OkStatus());
    EXPECT_EQ(job.receiver(2).serving(), std::nullopt);
    ExpectError(job.receiver(2).Apply(1), ErrorCode::kInvalidOption, "generation 1");
    if (abandon) {
      job.receiver(2).Abandon(Error(ErrorCode::kInternal, "the loader threw"));
      ExpectError(job.publisher(0).AwaitCommit(1, Soon()), ErrorCode::kPeerLost, "the loader threw");
    } else {
      job.coordinator().Stop();
    }
    ExpectError(job.receiver(2).Commit(1), ErrorCode::kPoisoned);
    EXPECT_EQ(job.receiver(2).serving(), std::nullopt);
    EXPECT_TRUE(job.receiver(2).Carry().poisoned);
  }
}

TEST(EndToEndTest, ManifestErrorsReachEveryMemberWithThePlannersCode) {
  Manifest uncovered = TwoEngines(), unknown = TwoEngines(), overlap = TwoEngines();
  uncovered.source.erase(uncovered.source.begin() + 1);
  unknown.destination[2].pieces[0].tensor = "zzz";
  overlap.destination[2].pieces.push_back(PieceOf("norm", {0}, {1}, {5}));
  const std::vector<std::tuple<Manifest, ErrorCode, std::string>> cases = {{uncovered, ErrorCode::kUncovered, "\"k\""},
                                                                           {unknown, ErrorCode::kUnknownTensor, "zzz"},
                                                                           {overlap, ErrorCode::kOverlap, "norm"}};
  for (const auto& [m, code, word] : cases) {
    Job job(m, {});
    for (const absl::Status& status : job.Join()) ExpectError(status, code, word);
    SideMemory untouched(m.destination);
    EXPECT_EQ(job.live().Difference(untouched), "");
  }
}

TEST(EndToEndTest, AWrongTokenIsRefusedAtOnce) {
  Job job(TwoEngines(), {});
  ReceiverOptions receiver = job.OptionsOfReceiver(0);
  receiver.job.token = "guessed";
  ExpectError(Receiver::Join(receiver, job.ReceiverPart(0), job.ReceiverMemory(0), OnMemory(true)()).status(),
              ErrorCode::kUnauthenticated);
  PublisherOptions publisher = job.OptionsOfPublisher(0);
  publisher.job.token = "guessed";
  ExpectError(Publisher::Join(publisher, job.PublisherPart(0), job.PublisherMemory(0), OnMemory(true)()).status(),
              ErrorCode::kUnauthenticated);
}

TEST(EndToEndTest, NobodyAtTheAddress) {
  Job job(TwoEngines(), {});
  ReceiverOptions options = job.OptionsOfReceiver(0);
  job.coordinator().Stop();
  options.job.coordinator = "127.0.0.1:1";
  options.job.connect_timeout = absl::Milliseconds(100);
  ExpectError(Receiver::Join(options, job.ReceiverPart(0), job.ReceiverMemory(0), OnMemory(true)()).status(),
              ErrorCode::kPeerLost, "127.0.0.1:1");
}

TEST(EndToEndTest, MemoryThatIsNotWhatWasDeclared) {
  Job job(TwoEngines(), {});
  const auto join = [&](const std::map<std::string, BufferMemory>& memory) {
    return Receiver::Join(job.OptionsOfReceiver(2), job.ReceiverPart(2), memory, OnMemory(true)()).status();
  };
  auto missing = job.ReceiverMemory(2), shape = missing, strides = missing, null = missing, tied = missing;
  missing.erase("norm");
  ExpectError(join(missing), ErrorCode::kDestinationMoved, "\"norm\"");
  shape["norm"].shape = {7};
  ExpectError(join(shape), ErrorCode::kDestinationMoved, "\"norm\"");
  strides["q"].strides = {7, 1};
  ExpectError(join(strides), ErrorCode::kDestinationMoved, "\"q\"");
  null["q"].data = nullptr;
  ExpectError(join(null), ErrorCode::kDestinationMoved, "\"q\"");
  // A head that is declared tied, but is a copy: it would keep its old bytes for ever.
  std::vector<std::byte> copy(120);
  tied["lm_head"].data = copy.data();
  ExpectError(join(tied), ErrorCode::kDestinationMoved, "\"lm_head\"", "\"embed\"");
}

TEST(EndToEndTest, StoragesThatLieApart) {
  Manifest m = WholeManifest({{"a", {4}, Dtype::kF32}, {"b", {4}, Dtype::kF32}});
  m.destination[0].storage = Storage{"s", 0};
  m.destination[1].storage = Storage{"s", 16};
  Job job(m, {});
  auto memory = job.ReceiverMemory(0);
  memory["b"].data += 4;
  ExpectError(Receiver::Join(job.OptionsOfReceiver(0), job.ReceiverPart(0), memory, OnMemory(true)()).status(),
              ErrorCode::kDestinationMoved, "\"b\"", "\"a\"");
  ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
  ASSERT_EQ(job.Round(1), absl::OkStatus());
  EXPECT_EQ(job.Difference(), "");
}

TEST(EndToEndTest, APublisherWithoutItsMemory) {
  Job job(WholeManifest({{"a", {4}, Dtype::kF32}}), {});
  const auto statuses = testing::ForAll(2, [&](size_t i) {
    return i == 0
               ? Publisher::Join(job.OptionsOfPublisher(0), job.PublisherPart(0), {}, OnMemory(true)()).status()
               : Receiver::Join(job.OptionsOfReceiver(0), job.ReceiverPart(0), job.ReceiverMemory(0), OnMemory(true)())
                     .status();
  });
  ExpectError(statuses[0], ErrorCode::kInvalidOption, "\"a\"");
  EXPECT_FALSE(statuses[1].ok());
  EXPECT_THAT(std::string(statuses[1].message()), HasSubstr("publisher rank 0"));
}

}  // namespace
}  // namespace headrace
