#include "loader/session/engine_votes.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using RunState = proto::WorkerRun;

constexpr int64_t kNow = 1000, kDecision = 30, kCommit = 600;

RunState RunOf(uint64_t holds, RunState::Stage stage = RunState::IDLE, uint64_t running = 0, uint64_t committed = 0) {
  RunState run;
  run.set_holds(holds);
  run.set_stage(stage);
  run.set_running(running);
  run.set_committed(std::max(holds, committed));
  return run;
}
EngineVotes Engine(int workers) { return EngineVotes("engine 0", workers, kDecision, kCommit); }

std::string TextOf(const std::vector<EngineVotes::Outcome>& outcomes) {
  std::string text;
  for (const auto& outcome : outcomes)
    absl::StrAppend(&text, text.empty() ? "" : ", ", outcome.commit ? "commit " : "abort ", outcome.generation);
  return text;
}
std::string TextOf(const std::vector<RunState>& runs, uint64_t newest) {
  std::string text = absl::StrCat("newest ", newest);
  for (const RunState& run : runs)
    absl::StrAppend(&text, "; holds ", run.holds(), " of ", run.committed(), " ", RunState::Stage_Name(run.stage()),
                    " ", run.running());
  return text;
}

// ---- Every way in which two or three workers can come into an epoch --------------------------------------------

bool Has(const RunState& run, uint64_t generation) {  // it serves it, or said yes to it and stands by that
  return run.holds() >= generation || (run.stage() >= RunState::VOTED && run.running() == generation);
}
bool Any(const std::vector<RunState>& runs, const std::function<bool(const RunState&)>& is) {
  return std::any_of(runs.begin(), runs.end(), is);
}
bool All(const std::vector<RunState>& runs, const std::function<bool(const RunState&)>& is) {
  return std::all_of(runs.begin(), runs.end(), is);
}

// Whether the protocol can bring workers there: a decision needs all of them, and each epoch settles it for all.
bool CanBe(const std::vector<RunState>& runs) {
  for (const RunState& run : runs) {
    const uint64_t g = run.running();
    if (run.stage() >= RunState::COMMITTING && !All(runs, [&](const RunState& other) {
          return Has(other, g) || (other.holds() == 0 && other.stage() == RunState::IDLE);
        }))
      return false;
    // Who serves a generation knows that all committed it; a worker without it lost it with its process.
    if (run.holds() != 0 && !All(runs, [&](const RunState& other) {
          return other.holds() == run.holds() || other.holds() == 0 ||
                 (other.stage() == RunState::COMMITTED && other.running() == run.holds()) ||
                 (run.stage() == RunState::COMMITTED && run.running() == other.holds());
        }))
      return false;
  }
  return true;
}

using Check = std::function<std::string(const std::vector<RunState>&, uint64_t newest, EngineVotes&,
                                        const std::vector<EngineVotes::Outcome>&)>;

// Every state x every newest generation; `check` returns what is wrong.
void ForAll(const Check& check) {
  std::vector<RunState> one = {RunOf(0, RunState::IDLE, 0, 4), RunOf(0, RunState::IDLE, 0, 5)};  // poisoned
  for (uint64_t holds : {0, 4, 5}) {
    one.push_back(RunOf(holds));
    for (uint64_t running : {5, 6}) {
      if (running <= holds) continue;
      for (const RunState::Stage stage :
           {RunState::READING, RunState::VOTED, RunState::COMMITTING, RunState::COMMITTED})
        one.push_back(RunOf(holds, stage, running));
    }
  }
  int states = 0, wrong = 0;
  std::vector<RunState> runs;
  const std::function<void(int)> add = [&](int workers) {
    if (workers > 0) {
      for (const RunState& run : one) {
        runs.push_back(run);
        add(workers - 1);
        runs.pop_back();
      }
      return;
    }
    if (!CanBe(runs)) return;
    for (uint64_t newest : {0, 4, 5, 6}) {
      ++states;
      EngineVotes votes = Engine(static_cast<int>(runs.size()));
      const auto outcomes = votes.Resume(runs, newest, 0, kNow);
      const std::string what = check(runs, newest, votes, outcomes);
      if (what.empty()) continue;
      if (++wrong <= 3) ADD_FAILURE() << TextOf(runs, newest) << " -> " << TextOf(outcomes) << ": " << what;
    }
  };
  add(2);
  add(3);
  EXPECT_EQ(wrong, 0) << "of " << states;
  EXPECT_GT(states, 5000);
}

TEST(EngineVotesResumeTest, CommitsOnlyWhatEveryWorkerHolds) {
  ForAll([](const std::vector<RunState>& runs, uint64_t, EngineVotes& votes, const auto& outcomes) -> std::string {
    for (const auto& outcome : outcomes)
      if (outcome.commit && !All(runs, [&](const RunState& run) { return Has(run, outcome.generation); }))
        return "a worker neither said yes nor has it";
    const uint64_t committed = votes.committed();
    // Also where a worker came back without what another one serves.
    if (committed != 0 && !Any(runs, [&](const RunState& run) { return run.holds() >= committed; }) &&
        !All(runs,
             [&](const RunState& run) { return run.stage() == RunState::COMMITTED && run.running() == committed; }))
      return absl::StrCat("committed() = ", committed);
    return "";
  });
}

TEST(EngineVotesResumeTest, CommitsWhatAllSaidYesTo) {
  ForAll([](const std::vector<RunState>& runs, uint64_t, EngineVotes& votes, const auto& outcomes) -> std::string {
    for (const RunState& run : runs) {
      const uint64_t g = run.running();
      if (run.stage() < RunState::VOTED || !All(runs, [&](const RunState& other) { return Has(other, g); })) continue;
      const bool complete = All(runs, [&](const RunState& other) {
        return other.holds() >= g || (other.stage() == RunState::COMMITTED && other.running() == g);
      });
      if (complete && votes.committed() != g) return "all committed it, and that does not show";
      if (!complete &&
          std::none_of(outcomes.begin(), outcomes.end(), [&](const auto& o) { return o.commit && o.generation == g; }))
        return "it is decided, and that is not told";
    }
    return "";
  });
}

// Whoever serves a generation knows that all committed it. A worker that has it whole must not be told to give it up.
TEST(EngineVotesResumeTest, GivesUpNothingThatIsServedAlready) {
  ForAll([](const std::vector<RunState>& runs, uint64_t, EngineVotes&, const auto& outcomes) -> std::string {
    for (const auto& outcome : outcomes) {
      const uint64_t g = outcome.generation;
      if (!outcome.commit && Any(runs, [&](const RunState& run) { return run.holds() >= g; }) &&
          Any(runs, [&](const RunState& run) { return run.stage() == RunState::COMMITTED && run.running() == g; }))
        return "one worker serves it, and one that committed it is poisoned";
    }
    return "";
  });
}

TEST(EngineVotesResumeTest, LeavesNobodyWithoutAnAnswer) {
  ForAll(
      [](const std::vector<RunState>& runs, uint64_t newest, EngineVotes& votes, const auto& outcomes) -> std::string {
        for (const RunState& run : runs) {
          if (run.stage() == RunState::IDLE) continue;
          const uint64_t g = run.running();
          if (g == newest || votes.committed() >= g) continue;
          if (std::none_of(outcomes.begin(), outcomes.end(), [&](const auto& o) { return o.generation == g; }))
            return absl::StrCat("who runs generation ", g, " never hears of it again");
        }
        return "";
      });
}

// The newest generation is given up, or it becomes the engine's when those that lack it say yes and commit.
TEST(EngineVotesResumeTest, TheNewestGenerationIsGivenUpOrCanBeCommitted) {
  ForAll(
      [](const std::vector<RunState>& runs, uint64_t newest, EngineVotes& votes, const auto& outcomes) -> std::string {
        if (newest == 0 || All(runs, [&](const RunState& run) { return run.holds() >= newest; })) return "";
        const int workers = static_cast<int>(runs.size());
        bool given_up = false;
        for (const auto& outcome : outcomes) given_up |= !outcome.commit && outcome.generation == newest;
        std::vector<uint64_t> has(workers);
        std::vector<bool> said(workers, false);
        for (int w = 0; w < workers; ++w) {
          has[w] = runs[w].holds();
          // One that may have written live bytes of what is given up reads anew; nobody knows better here.
          for (const auto& outcome : outcomes)
            if (!outcome.commit && runs[w].stage() >= RunState::COMMITTING && outcome.generation == runs[w].running())
              has[w] = 0;
          said[w] = runs[w].stage() == RunState::VOTED && runs[w].running() == newest;
        }
        // As the members do: what is decided is committed by those that have not, then the newest is read and voted on.
        const auto commit = [&](uint64_t g, bool voted) -> std::string {
          for (int w = 0; w < workers; ++w) {
            const bool again = std::any_of(outcomes.begin(), outcomes.end(),
                                           [&](const auto& o) { return !o.commit && o.generation == g; });
            const bool did = runs[w].stage() == RunState::COMMITTED && runs[w].running() == g && !again;
            if ((voted || has[w] < g) && !did)
              if (const auto all = votes.Commit(w, g); !all.ok()) return std::string(all.status().message());
            has[w] = std::max(has[w], g);
          }
          return votes.committed() == g ? "" : absl::StrCat("not committed: ", g);
        };
        for (const auto& outcome : outcomes) {
          if (!outcome.commit) continue;
          if (const std::string wrong = commit(outcome.generation, false); !wrong.empty()) return wrong;
        }
        if (votes.committed() >= newest) return "";
        if (Any(runs, [&](const RunState& run) { return run.committed() > newest; }))
          return given_up ? "" : "a worker lacks it, reads it, and has nobody to vote for";
        // One that was given up may be read anew; then the votes on it count, or nobody is waiting for them.
        if (given_up && votes.idle()) return "";
        bool decided = false;
        for (int w = 0; w < workers; ++w) {
          if (said[w] && !given_up) continue;
          const auto outcome = votes.Vote(w, newest, absl::OkStatus(), kNow);
          if (!outcome.ok()) return absl::StrCat("vote: ", outcome.status().message());
          if (outcome->has_value()) decided = (*outcome)->commit;
        }
        if (!decided) return "all said yes or have it, and nothing comes of it";
        return commit(newest, true);
      });
}

// ---- What a new epoch does to numbers ---------------------------------------------------------------------------

TEST(EngineVotesTest, WhatWasGivenUpForWantOfBytesMayBePublishedAgain) {
  EngineVotes votes = Engine(2);
  EXPECT_EQ(TextOf(votes.Resume({RunOf(4, RunState::READING, 5), RunOf(4)}, 0, 0, kNow)), "abort 5");
  // A publisher that came back empty publishes what the others still hold.
  EXPECT_FALSE(votes.Announce(5).has_value());
  EXPECT_FALSE(votes.Vote(0, 5, absl::OkStatus(), kNow)->has_value());
  EXPECT_EQ(votes.deadline_ns(), kNow + kDecision);
  const auto decided = votes.Vote(1, 5, absl::OkStatus(), kNow);
  ASSERT_TRUE(decided.ok() && decided->has_value());
  EXPECT_TRUE((*decided)->commit);
}

TEST(EngineVotesTest, AfterAnOlderNewestTheNextOneStillCounts) {
  EngineVotes votes = Engine(2);
  EXPECT_EQ(TextOf(votes.Resume({RunOf(3, RunState::READING, 5), RunOf(3)}, 4, 0, kNow)), "abort 5");
  EXPECT_FALSE(votes.Vote(0, 4, absl::OkStatus(), kNow)->has_value());
  const auto decided = votes.Vote(1, 4, absl::OkStatus(), kNow);
  ASSERT_TRUE(decided.ok() && decided->has_value());
  EXPECT_EQ((*decided)->generation, 4u);
}

TEST(EngineVotesTest, OneVoteOfTheLastEpochStandsAndTimes) {
  EngineVotes votes = Engine(2);
  EXPECT_THAT(votes.Resume({RunOf(4, RunState::VOTED, 5), RunOf(4, RunState::READING, 5)}, 5, 0, kNow), IsEmpty());
  EXPECT_FALSE(votes.quiet());
  EXPECT_EQ(votes.deadline_ns(), kNow + kDecision);
  EXPECT_EQ(CodeOf(votes.Vote(0, 5, absl::OkStatus(), kNow).status()), "malformed");  // it counts once
  EXPECT_TRUE(votes.Vote(1, 5, absl::OkStatus(), kNow)->value().commit);
  EXPECT_EQ(votes.deadline_ns(), kNow + kCommit);
}

TEST(EngineVotesTest, ANoAfterAVoteOfTheLastEpochDecides) {
  EngineVotes votes = Engine(2);
  EXPECT_THAT(votes.Resume({RunOf(4, RunState::VOTED, 5), RunOf(4, RunState::READING, 5)}, 5, 0, kNow), IsEmpty());
  const auto outcome = votes.Vote(1, 5, Error(ErrorCode::kVerificationFailed, "tile 3"), kNow);
  EXPECT_FALSE(outcome->value().commit);
  EXPECT_THAT(outcome->value().why.message(), HasSubstr("engine 0 worker 1 gave generation 5 up: tile 3"));
  EXPECT_TRUE(votes.idle());
}

TEST(EngineVotesTest, OneThatCameBackWithoutADecidedGenerationGivesItUpByName) {
  EngineVotes votes = Engine(2);
  const auto outcomes = votes.Resume({RunOf(4, RunState::COMMITTING, 5), RunOf(0)}, 0, 0, kNow);
  ASSERT_EQ(TextOf(outcomes), "abort 5");
  EXPECT_EQ(CodeOf(outcomes[0].why), "aborted");
  EXPECT_THAT(outcomes[0].why.message(), HasSubstr("engine 0 worker 1 came back without generation 5"));
}

// One that serves it says so by a vote and a commit, as its peer does that reads it.
TEST(EngineVotesTest, AWorkerThatServesItIsAskedAsItsPeerIs) {
  EngineVotes votes = Engine(2);
  EXPECT_THAT(votes.Resume({RunOf(5), RunOf(0)}, 5, 0, kNow), IsEmpty());
  EXPECT_FALSE(votes.Vote(0, 5, absl::OkStatus(), kNow)->has_value());
  EXPECT_TRUE(votes.Vote(1, 5, absl::OkStatus(), kNow)->value().commit);
  EXPECT_FALSE(*votes.Commit(0, 5));
  EXPECT_TRUE(votes.OwesCommit(1));
  EXPECT_TRUE(*votes.Commit(1, 5));
  EXPECT_EQ(votes.committed(), 5u);
}

TEST(EngineVotesTest, VotesOnWhatAllServeAreNoError) {
  EngineVotes votes = Engine(2);
  EXPECT_THAT(votes.Resume({RunOf(5), RunOf(5)}, 5, 0, kNow), IsEmpty());
  for (int worker : {0, 1}) EXPECT_FALSE(votes.Vote(worker, 5, absl::OkStatus(), kNow)->has_value());
  EXPECT_TRUE(votes.idle());
}

TEST(EngineVotesTest, BreakGivesUpWhatWasDecidedToo) {
  EngineVotes votes = Engine(1);
  EXPECT_THAT(votes.Resume({RunOf(0)}, 0, 0, kNow), IsEmpty());
  EXPECT_FALSE(votes.Announce(1).has_value());
  EXPECT_TRUE(votes.Vote(0, 1, absl::OkStatus(), kNow)->value().commit);
  EXPECT_FALSE(votes.Announce(2).has_value());
  EXPECT_EQ(TextOf(votes.Break(Error(ErrorCode::kPeerLost, "x"))), "abort 1, abort 2");
  EXPECT_TRUE(votes.idle());
}

TEST(EngineVotesTest, WhatIsTakenBackIsGivenUpWhereItIsUndecided) {
  const absl::Status why = Error(ErrorCode::kDeadline, "its weights change");
  EngineVotes votes = Engine(2);
  EXPECT_THAT(votes.Resume({RunOf(0), RunOf(0)}, 0, 0, kNow), IsEmpty());
  for (uint64_t generation : {1, 2, 3}) EXPECT_FALSE(votes.Announce(generation).has_value());
  EXPECT_FALSE(votes.GiveUp(4, why).has_value());
  // One that is not running: the others are voted on as before.
  EXPECT_EQ(votes.GiveUp(2, why)->generation, 2u);
  EXPECT_FALSE(votes.Vote(0, 1, absl::OkStatus(), kNow)->has_value());
  const auto outcome = votes.GiveUp(1, why);
  EXPECT_FALSE(outcome->commit);
  EXPECT_EQ(outcome->why, why);
  EXPECT_EQ(votes.deadline_ns(), kNoDeadline);
  // A vote that crossed it is no error.
  EXPECT_FALSE(votes.Vote(1, 1, absl::OkStatus(), kNow)->has_value());
  for (int worker : {0, 1}) EXPECT_EQ(votes.Vote(worker, 3, absl::OkStatus(), kNow)->has_value(), worker == 1);
  // Decided: its bytes are all there.
  EXPECT_FALSE(votes.GiveUp(3, why).has_value());
  EXPECT_TRUE(votes.committing());
}

}  // namespace
}  // namespace headrace
