// How the rules of making and ending communicators are broken.

#include <signal.h>
#include <sys/wait.h>

#include <cstdlib>
#include <iostream>

#include "loader/testing/nccl_checker/nccl_checker.h"
#include "loader/testing/nccl_checker/rule_cases_testing.h"

namespace headrace::nccl_checker {
namespace {

void NullCommunicator() {
  nccl::Result error;
  Break(lib().ncclCommGetAsyncError(nullptr, &error));
}

void ForeignCommunicator() {
  int something = 0;
  Rank rank(0);
  Buffer a(0, 64);
  Break(lib().ncclSend(a.data, 64, nccl::kUint8, 0, reinterpret_cast<nccl::Comm>(&something), rank.stream));
}

void UseAfter(bool abort) {
  std::vector<Rank> ranks = MakeRanks(1);
  const nccl::Comm comm = ranks[0].comm;
  if (abort) {
    MUST(lib().ncclCommAbort(comm));
  } else {
    FinishAll(&ranks);
  }
  ranks[0].comm = nullptr;
  nccl::Result error;
  Break(abort ? lib().ncclCommAbort(comm) : lib().ncclCommGetAsyncError(comm, &error));
}

void SendBeforeInit() {
  Rank rank(NewId(), 0, 2, 0);
  Buffer a(0, 64);
  Break(lib().ncclSend(a.data, 64, nccl::kUint8, 1, rank.comm, rank.stream));
}

void GroupBeforeReady() {
  std::vector<Rank> ranks = MakeRanks(1);
  Rank& rank = ranks[0];
  Buffer a(0, 64), b(0, 64);
  MUST(lib().ncclGroupStart());
  Send(rank, a, 64, nccl::kUint8, 0);
  Receive(rank, b, 64, nccl::kUint8, 0);
  Must(lib().ncclGroupEnd() != nccl::kInProgress, "ncclGroupEnd");
  Break(lib().ncclCommFinalize(rank.comm));
}

void SendAfterFinalize() {
  std::vector<Rank> ranks = MakeRanks(1);
  Must(lib().ncclCommFinalize(ranks[0].comm) != nccl::kInProgress, "ncclCommFinalize");
  Must(Settled(ranks[0].comm), "ncclCommFinalize");
  Buffer a(0, 64);
  Break(lib().ncclSend(a.data, 64, nccl::kUint8, 0, ranks[0].comm, ranks[0].stream));
}

void ConfigWithoutMagic() {
  nccl::Config config;
  config.magic = 0;
  nccl::Comm comm;
  Break(lib().ncclCommInitRankConfig(&comm, 1, NewId(), 0, &config));
}

void RankBeyond() {
  nccl::Config config;
  nccl::Comm comm;
  Break(lib().ncclCommInitRankConfig(&comm, 2, NewId(), 2, &config));
}

void ForeignId() {
  nccl::Config config;
  nccl::Comm comm;
  Break(lib().ncclCommInitRankConfig(&comm, 1, nccl::UniqueId{}, 0, &config));
}

void SameRankTwice() {
  const nccl::UniqueId id = NewId();
  Rank rank(id, 0, 2, 0);
  nccl::Config config;
  nccl::Comm comm;
  Break(lib().ncclCommInitRankConfig(&comm, 2, id, 0, &config));
}

void SecondCommunicator() {
  const nccl::UniqueId id = NewId();
  Rank rank(id, 0, 1, 0);
  Must(Settled(rank.comm), "the init");
  nccl::Config config;
  nccl::Comm comm;
  Break(lib().ncclCommInitRankConfig(&comm, 2, id, 1, &config));
}

void SameRankInTwoProcesses() {
  const nccl::UniqueId id = NewId();
  Rank rank(id, 0, 2, 0);
  Child other("Joiner", {std::string(kOnViolationVariable) + "=abort"}, Hex(id));
  const Outcome outcome = other.Wait();
  std::cerr << outcome.errors;
  if (std::getenv(kOnViolationVariable) == nullptr) raise(SIGABRT);  // what became of the other
  Break(WIFSIGNALED(outcome.status));
}

void Joiner() {
  std::string id;
  std::cin >> id;
  Rank rank(Unhex(id), 0, 2, 0);
  Settled(rank.comm);
}

void DifferentCounts() {
  const nccl::UniqueId id = NewId();
  Rank zero(id, 0, 2, 0), one(id, 1, 3, 1);
  // One of the two, whoever comes second, is refused; the other waits.
  nccl::Result a = nccl::kInProgress, b = nccl::kInProgress;
  while (a == nccl::kInProgress && b == nccl::kInProgress) {
    MUST(lib().ncclCommGetAsyncError(zero.comm, &a));
    MUST(lib().ncclCommGetAsyncError(one.comm, &b));
  }
  Break(a == nccl::kInProgress ? b : a);
}

void OneDevice() {
  const nccl::UniqueId id = NewId();
  Rank zero(id, 0, 2, 3), one(id, 1, 2, 3);
  Break(Settled(zero.comm));
}

void DestroyWithoutFinalize() {
  std::vector<Rank> ranks = MakeRanks(1);
  Break(lib().ncclCommDestroy(ranks[0].comm));
}

void DestroyWhileFinalizing() {
  std::vector<Rank> ranks = MakeRanks(2);
  Must(lib().ncclCommFinalize(ranks[0].comm) != nccl::kInProgress, "ncclCommFinalize");
  Break(lib().ncclCommDestroy(ranks[0].comm));
}

void DestroyUnderKernel() {
  std::vector<Rank> ranks = MakeRanks(2);
  Buffer a(0, 64);
  MUST(ranks[0].Group([&] { Receive(ranks[0], a, 64, nccl::kUint8, 1); }));
  Break(lib().ncclCommDestroy(ranks[0].comm));
}

}  // namespace

std::map<std::string, RuleCase> CommunicatorRuleCases() {
  return {
      {"Joiner", {nullptr, Joiner}},
      {"NullCommunicator", {"comm-handle", NullCommunicator}},
      {"ForeignCommunicator", {"comm-handle", ForeignCommunicator}},
      {"UseAfterAbort", {"comm-after-free", [] { UseAfter(true); }}},
      {"UseAfterDestroy", {"comm-after-free", [] { UseAfter(false); }}},
      {"SendBeforeInit", {"comm-before-ready", SendBeforeInit}},
      {"GroupBeforeReady", {"comm-before-ready", GroupBeforeReady}},
      {"SendAfterFinalize", {"comm-after-finalize", SendAfterFinalize}},
      {"ConfigWithoutMagic", {"comm-config", ConfigWithoutMagic}},
      {"RankBeyond", {"rank-range", RankBeyond}},
      {"ForeignId", {"id-foreign", ForeignId}},
      {"SameRankTwice", {"id-reuse", SameRankTwice}},
      {"SecondCommunicator", {"id-reuse", SecondCommunicator}},
      {"SameRankInTwoProcesses", {"id-reuse", SameRankInTwoProcesses}},
      {"DifferentCounts", {"init-mismatch", DifferentCounts}},
      {"OneDevice", {"duplicate-gpu", OneDevice}},
      {"DestroyWithoutFinalize", {"destroy-unfinalized", DestroyWithoutFinalize}},
      {"DestroyWhileFinalizing", {"destroy-unfinalized", DestroyWhileFinalizing}},
      {"DestroyUnderKernel", {"destroy-busy", DestroyUnderKernel}},
  };
}

}  // namespace headrace::nccl_checker
