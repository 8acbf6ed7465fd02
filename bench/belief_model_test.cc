#include "bench/belief_model.h"

#include <vector>

#include "bench/belief_cases.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/status.h"

namespace headrace::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// Every cost a round number that is its own, so that a prediction tells which of them it is made of.
Json Document() {
  Json document = Json::parse(R"({
    "format": 1, "cores": 2,
    "host": {
      "chunk_bytes": 1024, "staging_bytes": 65536,
      "runs": [{"run_bytes": 64, "snapshot": 1, "direct": 8, "direct_shadow": 3, "commit": 4},
               {"run_bytes": 4096, "snapshot": 1, "direct": 2, "direct_shadow": 3, "commit": 4}],
      "crowds": [{"trainers": 1, "workers": 1, "direct": 2}, {"trainers": 2, "workers": 2, "direct": 2}],
      "tiny": [{"trainers": 1, "workers": 1, "seconds": 300e-9}, {"trainers": 2, "workers": 2, "seconds": 500e-9},
               {"trainers": 4, "workers": 2, "seconds": 700e-9}]
    },
    "ucx": {
      "chunk_bytes": 1024, "staging_bytes": 65536,
      "runs": [{"run_bytes": 64, "snapshot": 1, "pack": 2, "unpack": 1, "commit": 4},
               {"run_bytes": 4096, "snapshot": 1, "pack": 0.5, "unpack": 0.25, "commit": 4}],
      "crowds": [{"trainers": 1, "workers": 1, "transfer.trainer": 2.5, "transfer.worker": 3.25},
                 {"trainers": 1, "workers": 4, "transfer.trainer": 4.5, "transfer.worker": 5.25},
                 {"trainers": 4, "workers": 1, "transfer.trainer": 6.5, "transfer.worker": 7.25},
                 {"trainers": 4, "workers": 4, "transfer.trainer": 8.5, "transfer.worker": 9.25}],
      "whole": {"transfer.trainer": 2.5, "transfer.worker": 3.25, "transfer_shadow.worker": 4},
      "small_chunk_bytes": 512,
      "small_chunks": {"transfer.trainer": 3, "transfer.worker": 3.5}
    }
  })");
  document["ucx"]["tiny"] = document["host"]["tiny"];
  // Runs that lie one behind the other cost half.
  for (const char* transport : {"host", "ucx"}) {
    Json dense = document[transport]["runs"][0];
    for (const char* name : {"snapshot", "direct", "direct_shadow", "pack", "unpack"}) {
      if (dense.contains(name)) dense[name] = dense[name].get<double>() / 2;
    }
    document[transport]["dense_runs"] = {dense};
  }
  return document;
}

Calibration Parsed() {
  const absl::StatusOr<Calibration> calibration = ParseCalibration(Document());
  EXPECT_TRUE(calibration.ok()) << calibration.status();
  return *calibration;
}

double NsOf(const CopyCost& cost) { return 1e9 / cost.bytes_per_second; }

struct Job {
  explicit Job(const Matrices& m) : manifest(*MatricesManifest(m)), plan(*BuildPlan(manifest)) {}
  Manifest manifest;
  Plan plan;
};

TEST(RunCosts, IsLinearInTheLogarithmAndFlatOutside) {
  RunCosts costs;
  costs.Add(64, 8);
  costs.Add(4096, 2);
  EXPECT_DOUBLE_EQ(costs.NsPerByte(64), 8);
  EXPECT_DOUBLE_EQ(costs.NsPerByte(512), 5);  // half of the way from 2^6 to 2^12
  EXPECT_DOUBLE_EQ(costs.NsPerByte(4096), 2);
  EXPECT_DOUBLE_EQ(costs.NsPerByte(8), 8);
  EXPECT_DOUBLE_EQ(costs.NsPerByte(1 << 20), 2);
}

TEST(ParseCalibration, SplitsWhatWasMeasured) {
  const Calibration calibration = Parsed();
  EXPECT_EQ(calibration.cores, 2);
  EXPECT_EQ(calibration.memory_bytes_per_second, 0);  // two are as fast as one
  const TransportCosts& host = calibration.costs.at("host");
  EXPECT_NEAR(host.rank_ns, 100, 1);
  EXPECT_NEAR(host.fixed_ns, 100, 1);
  const TransportCosts& ucx = calibration.costs.at("ucx");
  // Half as large chunks cost 0.5 and 0.25 a byte more: 1 / 512 - 1 / 1024 messages a byte more.
  EXPECT_NEAR(ucx.sender_ns_per_message, 512, 1);
  EXPECT_NEAR(ucx.receiver_ns_per_message, 256, 1);
  // Packing, unpacking and the messages that the bytes were measured with are taken out.
  EXPECT_NEAR(ucx.sender.NsPerByte(1, 1), 2.5 - 0.5 - 0.5, 1e-3);
  EXPECT_NEAR(ucx.receiver.NsPerByte(1, 1), 3.25 - 0.25 - 0.25, 1e-3);
  EXPECT_NEAR(ucx.receiver_shadow_ns_per_byte, 0.75, 1e-9);
}

TEST(CrowdCosts, IsLinearInTheLogarithmsOfBoth) {
  CrowdCosts costs;
  costs.Add(1, 1, 1);
  costs.Add(1, 4, 3);
  costs.Add(4, 1, 5);
  costs.Add(4, 4, 11);
  EXPECT_DOUBLE_EQ(costs.NsPerByte(4, 4), 11);
  EXPECT_DOUBLE_EQ(costs.NsPerByte(1, 2), 2);
  EXPECT_DOUBLE_EQ(costs.NsPerByte(2, 1), 3);
  EXPECT_DOUBLE_EQ(costs.NsPerByte(2, 2), 5);  // half of the way from 2 to 8
  EXPECT_DOUBLE_EQ(costs.NsPerByte(32, 9), 11);
}

TEST(ParseCalibration, TwoThatHinderEachOtherLimitTheMemory) {
  Json document = Document();
  document["host"]["crowds"][1]["direct"] = 4;
  const absl::StatusOr<Calibration> calibration = ParseCalibration(document);
  ASSERT_TRUE(calibration.ok()) << calibration.status();
  EXPECT_DOUBLE_EQ(calibration->memory_bytes_per_second, 2e9 / 4);
}

TEST(ParseCalibration, NamesWhatIsMissing) {
  Json document = Document();
  document["ucx"]["runs"][0].erase("pack");
  const absl::Status status = ParseCalibration(document).status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kMalformed)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"pack\""));
  EXPECT_TRUE(HasCode(ParseCalibration(Json::array()).status(), ErrorCode::kMalformed));
}

// Rows of 64 elements, two bytes each: a worker's half is 64 bytes of each.
const Matrices kColumns{.rows = 64, .columns = 64, .trainers = 2, .workers = 2, .worker_axis = 1};

TEST(Runs, OfColumnsAreHalfRows) {
  const Job job(kColumns);
  EXPECT_THAT(CopiedRuns(job.plan), ElementsAre(Pair(Runs{64, false}, 64 * 64 * 2)));
  EXPECT_THAT(SnapshotRuns(job.plan, 0), ElementsAre(Pair(Runs{64, false}, 32 * 64 * 2)));
}

TEST(Runs, OfTrainersThatCutColumnsLieOneBehindTheOther) {
  Matrices m = kColumns;
  m.trainer_axis = 1;
  m.workers = 1;
  const Job job(m);
  EXPECT_THAT(CopiedRuns(job.plan), ElementsAre(Pair(Runs{64, true}, 64 * 64 * 2)));
  EXPECT_DOUBLE_EQ(NsOf(CostModelOf(Parsed(), job.manifest, job.plan, {})->direct), 4);
}

TEST(Runs, WhatTwoEnginesReadIsCopiedOnceByTheSnapshot) {
  Matrices m = kColumns;
  m.engines = 2;
  const Job job(m);
  EXPECT_THAT(CopiedRuns(job.plan), ElementsAre(Pair(Runs{64, false}, 2 * 64 * 64 * 2)));
  EXPECT_THAT(SnapshotRuns(job.plan, 1), ElementsAre(Pair(Runs{64, false}, 32 * 64 * 2)));
}

TEST(CostModelOf, TakesTheCostsOfTheRunsThatThePlanHas) {
  const Calibration calibration = Parsed();
  const Job columns(kColumns);
  const auto model = CostModelOf(calibration, columns.manifest, columns.plan, {});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_DOUBLE_EQ(NsOf(model->direct), 8);
  EXPECT_TRUE(model->nvlink.mapped);
  Matrices m = kColumns;
  m.worker_axis = 0;  // 32 whole rows: one run of 4096 bytes
  const Job rows(m);
  EXPECT_DOUBLE_EQ(NsOf(CostModelOf(calibration, rows.manifest, rows.plan, {})->direct), 2);
  EXPECT_DOUBLE_EQ(NsOf(CostModelOf(calibration, rows.manifest, rows.plan, {.shadow = true})->direct), 3);
  const auto ucx = CostModelOf(calibration, columns.manifest, columns.plan, {.transport = "ucx"});
  ASSERT_TRUE(ucx.ok()) << ucx.status();
  EXPECT_DOUBLE_EQ(NsOf(ucx->pack), 2);
  EXPECT_DOUBLE_EQ(NsOf(ucx->unpack), 1);
  EXPECT_FALSE(ucx->nvlink.mapped);
  EXPECT_EQ(ucx->window, 32);  // 64 chunks of staging for the edges to two workers
  EXPECT_NEAR(ucx->nvlink.sender_ns_per_byte, (1.5 + 3.5 + 5.5 + 7.5) / 4, 1e-3);  // two of each: in the middle
  const absl::Status unknown =
      CostModelOf(calibration, rows.manifest, rows.plan, {.transport = "carrier pigeon"}).status();
  EXPECT_TRUE(HasCode(unknown, ErrorCode::kInvalidOption)) << unknown;
}

double Predicted(const Matrices& m, const RefitOptions& options) {
  const Job job(m);
  const absl::StatusOr<Simulation> simulation = Predict(Parsed(), job.manifest, job.plan, options);
  EXPECT_TRUE(simulation.ok()) << simulation.status();
  return simulation.ok() ? simulation->seconds * 1e9 : 0;
}

// Costs by hand: 8192 bytes in all, snapshot 1 ns a byte, fixed 100 and 100 for each rank.
TEST(Predict, OneTrainerAndOneWorkerOneAfterTheOther) {
  const Matrices one{.rows = 64, .columns = 64, .trainers = 1, .workers = 1};
  EXPECT_NEAR(Predicted(one, {}), 8192 * (1 + 2) + 300, 1);
  EXPECT_NEAR(Predicted(one, {.shadow = true}), 8192 * (1 + 3 + 4) + 300, 1);
}

TEST(Predict, MoreProcessesThanCoresTakeTurns) {
  Matrices m{.rows = 64, .columns = 64, .trainers = 2, .workers = 2};
  EXPECT_NEAR(Predicted(m, {}), 4096 * (1 + 2) + 500, 1);
  // Four workers have a quarter each, in one run of 2048 bytes: five of six steps from 2^6 to 2^12, where the snapshot
  // costs 0.5 and 1, a copy 4 and 2. Two of them run at a time.
  m.workers = 4;
  EXPECT_NEAR(Predicted(m, {}), 4096 * (11. / 12 + 7. / 3) + 700, 1);
}

TEST(Predict, TwoEnginesCopyTwice) {
  Matrices m{.rows = 64, .columns = 64, .trainers = 1, .workers = 1, .engines = 2};
  // 8192 bytes each, at once.
  EXPECT_NEAR(Predicted(m, {}), 8192 * (1 + 2) + 400, 1);
}

TEST(Predict, SendingAndReceivingShareTheCores) {
  // 8192 bytes in 8 messages. The sender needs 0.5 + 1.5 and 0.5 for messages, the receiver 0.25 + 2.75 and 0.25: on
  // two cores the receiver's 3.25 a byte count, and the first message's sending before it.
  const Matrices one{.rows = 64, .columns = 64, .trainers = 1, .workers = 1};
  EXPECT_NEAR(Predicted(one, {.transport = "ucx"}), 8192 * 1 + 1024 * 2.5 + 8192 * 3.25 + 300, 40);
}

}  // namespace
}  // namespace headrace::bench
