#include "cli/demo/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

DemoJson Stepped(int64_t generation) { return {{"event", "stepped"}, {"generation", generation}}; }
DemoJson InFlight(int64_t generation) { return {{"event", "in_flight"}, {"generation", generation}}; }
DemoJson Announced(uint64_t generation, double at = 1) {
  return {{"event", "announced"}, {"generation", generation}, {"at", at}};
}
DemoJson Staged(uint64_t generation, double seconds = 0, int64_t count = 0) {
  return {{"event", "staged"},
          {"generation", generation},
          {"transfer_seconds", seconds},
          {"verify_seconds", 2 * seconds},
          {"decision_seconds", 3 * seconds},
          {"copies", count},
          {"bytes", 10 * count},
          {"peak_staging_bytes", 100 * count}};
}
DemoJson Committed(uint64_t generation, double seconds = 0) {
  return {{"event", "committed"}, {"generation", generation}, {"commit_seconds", seconds}};
}

// The orders as words: "step 0 to 0, 1".
std::string Orders(Engine* engine) {
  std::map<std::string, std::vector<int>> by_order;
  for (const auto& [worker, order] : engine->Next()) {
    by_order[order.begin().key() + " " + order.begin().value().dump()].push_back(worker);
  }
  std::string words;
  for (const auto& [order, workers] : by_order) {
    words += (words.empty() ? "" : "; ") + order + " to";
    for (int w : workers) words += " " + std::to_string(w);
  }
  return words;
}

void ToAll(Engine* engine, int workers, const DemoJson& event) {
  for (int w = 0; w < workers; ++w) engine->OnEvent(w, event);
}

// A request of two workers, from idle to idle; the step's answers by worker.
void Request(Engine* engine, const std::vector<std::pair<int64_t, int64_t>>& answers) {
  for (size_t step = 0; step < answers.size(); ++step) {
    EXPECT_EQ(Orders(engine), "step " + std::to_string(step) + " to 0 1");
    engine->OnEvent(1, Stepped(answers[step].second));
    engine->OnEvent(0, Stepped(answers[step].first));
  }
  EXPECT_FALSE(engine->idle());
  EXPECT_EQ(Orders(engine), "");
  EXPECT_TRUE(engine->idle());
}

TEST(Engine, StepsInLockStep) {
  Engine engine(2, /*in_place=*/false);
  EXPECT_TRUE(engine.idle());
  EXPECT_EQ(Orders(&engine), "step 0 to 0 1");
  EXPECT_EQ(Orders(&engine), "");
  engine.OnEvent(1, Stepped(0));
  EXPECT_EQ(Orders(&engine), "");
  engine.OnEvent(0, Stepped(0));
  EXPECT_EQ(Orders(&engine), "step 1 to 0 1");
  engine.OnEvent(0, Stepped(0));
  EXPECT_EQ(Orders(&engine), "");
  engine.OnEvent(1, Stepped(0));
  EXPECT_EQ(Orders(&engine), "step 2 to 0 1");
  ToAll(&engine, 2, Stepped(0));
  EXPECT_EQ(Orders(&engine), "");  // the request is over
  EXPECT_EQ(Orders(&engine), "step 0 to 0 1");
  EXPECT_THAT(engine.requests(), ElementsAre(Pair(0, 1)));
  EXPECT_EQ(engine.torn(), 0);
}

TEST(Engine, CountsRequestsByTheirGenerationAndTornOnesApart) {
  Engine engine(2, /*in_place=*/false);
  Request(&engine, {{0, 0}, {0, 0}, {0, 0}});
  Request(&engine, {{4, 4}, {4, 4}, {4, 4}});
  Request(&engine, {{4, 4}, {4, 4}, {4, 4}});
  EXPECT_EQ(engine.torn(), 0);
  Request(&engine, {{4, 4}, {4, 5}, {4, 4}});  // a worker
  EXPECT_EQ(engine.torn(), 1);
  Request(&engine, {{4, 4}, {4, 4}, {5, 5}});  // a step
  EXPECT_EQ(engine.torn(), 2);
  Request(&engine, {{-1, 4}, {4, 4}, {4, 4}});  // bytes of no generation
  EXPECT_EQ(engine.torn(), 3);
  Request(&engine, {{-1, -1}, {-1, -1}, {-1, -1}});
  EXPECT_EQ(engine.torn(), 4);
  Request(&engine, {{5, 5}, {5, 5}, {5, 5}});  // the next one starts anew
  EXPECT_EQ(engine.torn(), 4);
  EXPECT_THAT(engine.requests(), ElementsAre(Pair(0, 1), Pair(4, 2), Pair(5, 1)));
}

TEST(Engine, CommitsBetweenRequestsWhatEveryWorkerStaged) {
  Engine engine(2, /*in_place=*/false);
  ToAll(&engine, 2, Announced(1));
  EXPECT_EQ(Orders(&engine), "step 0 to 0 1");  // announced is not staged
  ToAll(&engine, 2, Staged(1));
  EXPECT_EQ(Orders(&engine), "");
  ToAll(&engine, 2, Stepped(0));
  EXPECT_EQ(Orders(&engine), "step 1 to 0 1");  // not inside of a request
  ToAll(&engine, 2, Stepped(0));
  EXPECT_EQ(Orders(&engine), "step 2 to 0 1");
  ToAll(&engine, 2, Stepped(0));
  EXPECT_EQ(Orders(&engine), "");
  EXPECT_EQ(Orders(&engine), "commit 1 to 0 1");
  EXPECT_FALSE(engine.idle());
  engine.OnEvent(1, Committed(1));
  EXPECT_EQ(Orders(&engine), "");
  EXPECT_EQ(engine.committed(), 0u);
  engine.OnEvent(0, Committed(1));
  EXPECT_EQ(Orders(&engine), "");
  EXPECT_EQ(engine.committed(), 1u);
  EXPECT_EQ(Orders(&engine), "step 0 to 0 1");  // once is enough
}

TEST(Engine, CountsStepsThatMetTheSwapTheyWereInFlightAt) {
  for (const bool in_place : {false, true}) {
    Engine engine(2, in_place);
    const auto swap = [&](uint64_t generation, int64_t first, int64_t second) {
      ToAll(&engine, 2, Announced(generation));
      if (in_place) EXPECT_EQ(Orders(&engine), "stage " + std::to_string(generation) + " to 0 1");
      ToAll(&engine, 2, Staged(generation));
      EXPECT_EQ(Orders(&engine), "commit " + std::to_string(generation) + " to 0 1");
      engine.OnEvent(0, Committed(generation));
      engine.OnEvent(0, InFlight(first));
      engine.OnEvent(1, Committed(generation));
      EXPECT_EQ(Orders(&engine), "");  // before the other one said what it used
      engine.OnEvent(1, InFlight(second));
    };
    swap(1, 0, 0);
    swap(3, 1, 1);
    EXPECT_EQ(engine.torn(), 0);
    swap(4, 3, 4);  // what was being written
    EXPECT_EQ(engine.torn(), 1);
    swap(5, -1, 3);  // a mixture; what was written over before
    EXPECT_EQ(engine.torn(), 3);
  }
}

TEST(Engine, WaitsForAWorkerThatLags) {
  Engine engine(2, /*in_place=*/false);
  engine.OnEvent(0, Staged(1));
  Request(&engine, {{0, 0}, {0, 0}, {0, 0}});  // the other one has staged nothing
  engine.OnEvent(1, Staged(1));
  EXPECT_EQ(Orders(&engine), "commit 1 to 0 1");
  ToAll(&engine, 2, Committed(1));
  EXPECT_EQ(Orders(&engine), "");
  engine.OnEvent(0, Staged(3));
  Request(&engine, {{1, 1}, {1, 1}, {1, 1}});  // the other one's last is 1
  engine.OnEvent(1, Staged(2));
  Request(&engine, {{1, 1}, {1, 1}, {1, 1}});  // 3 and 2 are no generation
  engine.OnEvent(1, Staged(3));
  EXPECT_EQ(Orders(&engine), "commit 3 to 0 1");
}

TEST(Engine, InPlaceStagesWhileNoRequestRunsAndThenCommits) {
  Engine engine(2, /*in_place=*/true);
  engine.OnEvent(0, Announced(1));
  EXPECT_EQ(Orders(&engine), "step 0 to 0 1");  // worker 1 lags
  engine.OnEvent(1, Announced(1));
  ToAll(&engine, 2, Stepped(0));
  EXPECT_EQ(Orders(&engine), "step 1 to 0 1");
  ToAll(&engine, 2, Stepped(0));
  EXPECT_EQ(Orders(&engine), "step 2 to 0 1");
  ToAll(&engine, 2, Stepped(0));
  EXPECT_EQ(Orders(&engine), "");
  EXPECT_EQ(Orders(&engine), "stage 1 to 0 1");
  EXPECT_FALSE(engine.idle());
  EXPECT_EQ(Orders(&engine), "");
  engine.OnEvent(1, Staged(1));
  EXPECT_EQ(Orders(&engine), "");
  engine.OnEvent(0, Staged(1));
  EXPECT_EQ(Orders(&engine), "commit 1 to 0 1");
  ToAll(&engine, 2, Committed(1));
  EXPECT_EQ(Orders(&engine), "");
  EXPECT_EQ(engine.committed(), 1u);
  Request(&engine, {{1, 1}, {1, 1}, {1, 1}});
}

TEST(Engine, DrainEndsTheRequestAndBeginsNoOther) {
  Engine engine(2, /*in_place=*/false);
  EXPECT_EQ(Orders(&engine), "step 0 to 0 1");
  engine.Drain();
  EXPECT_FALSE(engine.idle());
  for (int step = 1; step <= kStepsPerRequest; ++step) {
    ToAll(&engine, 2, Stepped(0));
    EXPECT_EQ(Orders(&engine), step < kStepsPerRequest ? "step " + std::to_string(step) + " to 0 1" : "");
  }
  EXPECT_TRUE(engine.idle());
  EXPECT_EQ(Orders(&engine), "");
  ToAll(&engine, 2, Staged(1));
  EXPECT_EQ(Orders(&engine), "commit 1 to 0 1");  // what is staged is still swapped in
  ToAll(&engine, 2, Committed(1));
  EXPECT_EQ(Orders(&engine), "");
  EXPECT_EQ(Orders(&engine), "");
  EXPECT_EQ(engine.committed(), 1u);
  EXPECT_THAT(engine.requests(), ElementsAre(Pair(0, 1)));
}

TEST(Engine, KeepsTheSlowestWorkersTimesAndTheSumsOfTheRest) {
  Engine engine(2, /*in_place=*/false);
  engine.OnEvent(0, Announced(1, 7.5));
  engine.OnEvent(1, Announced(1, 7.25));
  engine.OnEvent(0, Announced(2, 9.5));
  engine.OnEvent(1, Announced(2, 9.75));
  engine.OnEvent(0, Staged(1, 0.5, 3));
  engine.OnEvent(1, Staged(1, 0.25, 4));
  engine.OnEvent(0, Committed(1, 0.125));
  engine.OnEvent(1, Committed(1, 0.25));
  const EngineGeneration& g = engine.generations().at(1);
  EXPECT_EQ(g.announced_at, 7.25);
  EXPECT_EQ(engine.generations().at(2).announced_at, 9.5);
  EXPECT_EQ(g.transfer_seconds, 0.5);
  EXPECT_EQ(g.verify_seconds, 1);
  EXPECT_EQ(g.decision_seconds, 1.5);
  EXPECT_EQ(g.copies, 7);
  EXPECT_EQ(g.bytes, 70);
  EXPECT_EQ(g.peak_staging_bytes, 400);
  EXPECT_EQ(g.commit_seconds, 0.25);
}

// The pause reaches from the first order of the swap to the last answer to it, in both modes.
TEST(Engine, MeasuresThePause) {
  for (const bool in_place : {false, true}) {
    Engine engine(1, in_place);
    engine.OnEvent(0, Announced(1));
    if (!in_place) engine.OnEvent(0, Staged(1));
    const double before = MonotonicSeconds();
    EXPECT_EQ(Orders(&engine), in_place ? "stage 1 to 0" : "commit 1 to 0");
    const double ordered = MonotonicSeconds();
    if (in_place) {
      engine.OnEvent(0, Staged(1));
      EXPECT_EQ(Orders(&engine), "commit 1 to 0");
    }
    engine.OnEvent(0, Committed(1));
    const double answered = MonotonicSeconds();
    EXPECT_EQ(Orders(&engine), "");
    const double pause = engine.generations().at(1).pause_seconds;
    constexpr double kRounding = 1e-9;
    EXPECT_GE(pause, answered - ordered - kRounding);
    EXPECT_LE(pause, MonotonicSeconds() - before + kRounding);
  }
}

TEST(Engine, IgnoresWhatIsNotItsBusiness) {
  Engine engine(1, /*in_place=*/false);
  engine.OnEvent(0, {{"event", "ready"}, {"file", "x"}});
  EXPECT_EQ(Orders(&engine), "step 0 to 0");
  EXPECT_TRUE(engine.generations().empty());
}

// A worker as the demo has it: a loader that announces and stages one generation after the other, and a main thread
// that answers orders one by one. Its events are on their way for a while.
struct FakeWorker {
  bool in_place = false;
  uint64_t last = 0;  // the last generation that comes
  uint64_t live = 0, announced = 0, staged = 0, allowed = 0;
  std::deque<DemoJson> orders, events;

  // Does one thing that it could do, by `pick`; false when there is nothing to do.
  bool Act(std::mt19937_64* pick) {
    const bool load = announced == live ? live < last : staged < announced && (!in_place || allowed == announced);
    if (!load && orders.empty()) return false;
    if (load && (orders.empty() || (*pick)() % 2 == 0)) {
      if (announced == live) {
        events.push_back(Announced(++announced));
      } else {
        staged = announced;
        events.push_back(Staged(staged));
      }
      return true;
    }
    const DemoJson order = orders.front();
    orders.pop_front();
    if (order.contains("step")) {
      events.push_back(Stepped(static_cast<int64_t>(live)));
    } else if (order.contains("stage")) {
      EXPECT_TRUE(in_place);
      EXPECT_EQ(order["stage"].get<uint64_t>(), announced);
      allowed = announced;
    } else {
      EXPECT_EQ(order["commit"].get<uint64_t>(), staged);
      live = staged;
      events.push_back(Committed(live));
    }
    return true;
  }
};

void RunInterleaving(uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 pick(seed);
  const int count = 1 + static_cast<int>(pick() % 4);
  const bool in_place = pick() % 2 == 0;
  constexpr uint64_t kLast = 3;
  Engine engine(count, in_place);
  std::vector<FakeWorker> workers(count);
  for (FakeWorker& w : workers) w.in_place = in_place, w.last = kLast;
  std::set<int> unanswered;         // workers with a step that is not answered
  int64_t steps = 0, requests = 0;  // ordered; ended
  std::vector<uint64_t> commits;
  bool draining = false;
  const auto next = [&] {
    const auto orders = engine.Next();
    if (orders.empty()) return false;
    EXPECT_EQ(static_cast<int>(orders.size()), count);
    EXPECT_TRUE(unanswered.empty()) << "an order while a step is unanswered";
    const DemoJson& first = orders[0].second;
    for (int w = 0; w < count; ++w) {
      EXPECT_EQ(orders[w].first, w);
      EXPECT_EQ(orders[w].second, first);
      workers[w].orders.push_back(first);
    }
    if (first.contains("step")) {
      EXPECT_EQ(first["step"].get<int64_t>(), steps % kStepsPerRequest);
      EXPECT_FALSE(draining && steps % kStepsPerRequest == 0) << "a request begins after Drain";
      ++steps;
      for (int w = 0; w < count; ++w) unanswered.insert(w);
    } else {
      EXPECT_EQ(steps % kStepsPerRequest, 0) << "a swap inside of a request";
      if (first.contains("commit")) {
        commits.push_back(first["commit"]);
        for (const FakeWorker& w : workers) EXPECT_EQ(w.staged, commits.back());
      } else {
        for (const FakeWorker& w : workers) EXPECT_EQ(w.announced, first["stage"].get<uint64_t>());
      }
    }
    return true;
  };
  const auto deliver = [&](int w) {
    if (workers[w].events.empty()) return false;
    const DemoJson event = workers[w].events.front();
    workers[w].events.pop_front();
    if (event["event"] == "stepped") {
      unanswered.erase(w);
      if (unanswered.empty() && steps % kStepsPerRequest == 0) ++requests;
    }
    engine.OnEvent(w, event);
    return true;
  };
  for (int turn = 0; engine.committed() < kLast && turn < 100000; ++turn) {
    const int w = static_cast<int>(pick() % count);
    switch (pick() % 3) {
      case 0:
        next();
        break;
      case 1:
        workers[w].Act(&pick);
        break;
      default:
        deliver(w);
    }
  }
  ASSERT_EQ(engine.committed(), kLast) << "stuck";
  engine.Drain();
  draining = true;
  for (bool moved = true; moved;) {
    moved = false;
    for (int w = 0; w < count; ++w) moved |= workers[w].Act(&pick) || deliver(w);
    moved |= next();
  }
  next();
  EXPECT_TRUE(engine.idle());
  EXPECT_TRUE(unanswered.empty());
  EXPECT_THAT(commits, ElementsAre(1, 2, 3));
  EXPECT_EQ(engine.torn(), 0);
  int64_t counted = 0;
  for (const auto& [generation, n] : engine.requests()) counted += n;
  EXPECT_EQ(counted, requests);
}

TEST(Engine, NeverSwapsWhileAStepIsUnanswered) {
  for (uint64_t seed = 1; seed <= 2000 && !HasFailure(); ++seed) RunInterleaving(seed);
}

}  // namespace
}  // namespace headrace
