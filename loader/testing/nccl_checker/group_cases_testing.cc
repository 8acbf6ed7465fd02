// How the rules of groups, matching and kernels are broken.

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "loader/testing/nccl_checker/nccl_checker.h"
#include "loader/testing/nccl_checker/rule_cases_testing.h"

namespace headrace::nccl_checker {
namespace {

void EndWithoutStart() { Break(lib().ncclGroupEnd()); }

void ThreadEndsInGroup() {
  std::thread([] { MUST(lib().ncclGroupStart()); }).join();
  _exit(0);  // no call is to blame
}

void BlockingBesideNonBlocking() {
  std::vector<Rank> ranks = MakeRanks(1);
  Rank blocking(1);
  nccl::Config config;
  config.blocking = 1;
  MUST(lib().ncclCommInitRankConfig(&blocking.comm, 1, NewId(), 0, &config));
  Buffer a(0, 64), b(0, 64), c(1, 64), d(1, 64);
  MUST(lib().ncclGroupStart());
  Send(ranks[0], a, 64, nccl::kUint8, 0);
  Receive(ranks[0], b, 64, nccl::kUint8, 0);
  Send(blocking, c, 64, nccl::kUint8, 0);
  Receive(blocking, d, 64, nccl::kUint8, 0);
  Break(lib().ncclGroupEnd());
}

void LargeGroup() {
  std::vector<Rank> ranks = MakeRanks(1);
  Buffer a(0, 1), b(0, 501);
  Break(ranks[0].Group([&] {
    for (int i = 0; i < 501; ++i) {
      Send(ranks[0], a, 1, nccl::kUint8, 0);
      MUST(lib().ncclRecv(b.data + i, 1, nccl::kUint8, 0, ranks[0].comm, ranks[0].stream));
    }
  }));
}

void UnlikeCuts() {
  std::vector<Rank> ranks = MakeRanks(2);
  Buffer a(0, 64), b(1, 64);
  MUST(ranks[0].Group([&] {
    Send(ranks[0], a, 8, nccl::kUint8, 1);
    Send(ranks[0], a, 8, nccl::kUint8, 1);
  }));
  ranks[1].Group([&] { Receive(ranks[1], b, 8, nccl::kUint8, 0); });
  AwaitError(ranks[1].comm);
}

void SendToSelfAlone() {
  std::vector<Rank> ranks = MakeRanks(1);
  Buffer a(0, 64);
  Break(ranks[0].Group([&] { Send(ranks[0], a, 64, nccl::kUint8, 0); }));
}

void Mismatch(size_t count, int type) {
  std::vector<Rank> ranks = MakeRanks(2);
  Buffer a(0, 64), b(1, 64);
  MUST(ranks[0].Group([&] { Send(ranks[0], a, 8, nccl::kUint8, 1); }));
  ranks[1].Group([&] { Receive(ranks[1], b, count, type, 0); });
  AwaitError(ranks[1].comm);
}

void OtherOrder() {
  std::vector<Rank> ranks = MakeRanks(2);
  Buffer a(0, 64), b(1, 64);
  MUST(ranks[0].Group([&] {
    Send(ranks[0], a, 8, nccl::kUint8, 1);
    Send(ranks[0], a, 9, nccl::kUint8, 1);
  }));
  ranks[1].Group([&] {
    Receive(ranks[1], b, 9, nccl::kUint8, 0);
    Receive(ranks[1], b, 8, nccl::kUint8, 0);
  });
  AwaitError(ranks[1].comm);
}

void PeerBeyond() {
  std::vector<Rank> ranks = MakeRanks(1);
  Buffer a(0, 64);
  Break(lib().ncclSend(a.data, 64, nccl::kUint8, 1, ranks[0].comm, ranks[0].stream));
}

void UnknownType() {
  std::vector<Rank> ranks = MakeRanks(1);
  Buffer a(0, 64);
  Break(lib().ncclSend(a.data, 1, 12, 0, ranks[0].comm, ranks[0].stream));
}

void SendOf(const void* pointer) {
  std::vector<Rank> ranks = MakeRanks(1);
  Break(lib().ncclSend(pointer, 64, nccl::kUint8, 0, ranks[0].comm, ranks[0].stream));
}

void TooManyCtas() {
  std::vector<Rank> all;
  Buffer a(0, 64);
  for (int i = 0; i < 2; ++i) {
    const nccl::UniqueId id = NewId();
    all.emplace_back(id, 0, 2, 0, 40);
    all.emplace_back(id, 1, 2, 1, 40);
  }
  for (Rank& rank : all) Must(Settled(rank.comm), "the init");
  for (int i : {0, 2}) MUST(all[i].Group([&] { Receive(all[i], a, 64, nccl::kUint8, 1); }));
  // No call is to blame: wait until it was told.
  const char* file = std::getenv(kViolationsFileVariable);
  while (std::ifstream(file).peek() == EOF) std::this_thread::yield();
  if (std::getenv(kOnViolationVariable) == nullptr) pause();  // it aborts after it was told
  _exit(0);
}

void WrongOrder() {
  std::vector<Rank> ranks = MakeRanks(2);
  Buffer a(0, 64), b(1, 64);
  for (int i : {0, 1}) MUST(ranks[i].Group([&] { Send(ranks[i], i == 0 ? a : b, 64, nccl::kUint8, 1 - i); }));
  for (int i : {0, 1}) ranks[i].Group([&] { Receive(ranks[i], i == 0 ? a : b, 64, nccl::kUint8, 1 - i); });
  AwaitError(ranks[0].comm);
}

void InitBesideSend() {
  std::vector<Rank> ranks = MakeRanks(1);
  Buffer a(0, 64), b(0, 64);
  MUST(lib().ncclGroupStart());
  Send(ranks[0], a, 64, nccl::kUint8, 0);
  Receive(ranks[0], b, 64, nccl::kUint8, 0);
  Rank other(NewId(), 0, 1, 1);
  Break(lib().ncclGroupEnd());
}

// Two communicators of the same ranks in one stream each, used in different orders.
void WrongOrderOfCommunicators() {
  std::vector<Rank> one = MakeRanks(2), two = MakeRanks(2);
  Buffer a(0, 64), b(1, 64);
  const auto use = [&](Rank& rank, cuda::Stream stream, bool send) {
    rank.Group([&] {
      MUST(send ? lib().ncclSend(a.data, 64, nccl::kUint8, 1, rank.comm, stream)
                : lib().ncclRecv(b.data, 64, nccl::kUint8, 0, rank.comm, stream));
    });
  };
  use(one[0], one[0].stream, true);
  use(two[0], one[0].stream, true);
  use(two[1], one[1].stream, false);
  use(one[1], one[1].stream, false);
  AwaitError(one[0].comm);
}

}  // namespace

std::map<std::string, RuleCase> GroupRuleCases() {
  return {
      {"EndWithoutStart", {"group-unbalanced", EndWithoutStart}},
      {"ThreadEndsInGroup", {"group-open-at-thread-end", ThreadEndsInGroup}},
      {"BlockingBesideNonBlocking", {"group-mixed-blocking", BlockingBesideNonBlocking}},
      {"InitBesideSend", {"group-mixed-init", InitBesideSend}},
      {"LargeGroup", {"group-cap", LargeGroup}},
      {"UnlikeCuts", {"group-cut", UnlikeCuts}},
      {"SendToSelfAlone", {"self-unmatched", SendToSelfAlone}},
      {"OtherCount", {"match-count", [] { Mismatch(9, nccl::kUint8); }}},
      {"OtherType", {"match-type", [] { Mismatch(8, 0); }}},
      {"OtherOrder", {"match-count", OtherOrder}},
      {"PeerBeyond", {"argument", PeerBeyond}},
      {"UnknownType", {"argument", UnknownType}},
      {"SendOfHostMemory", {"buffer-memory", [] { SendOf(&lib()); }}},
      {"SendOfOtherDevice", {"buffer-memory", [] { SendOf(Buffer(1, 64).data); }}},
      {"SendOfFreedMemory",
       {"buffer-memory",
        [] {
          unsigned char* freed = Buffer(0, 64).data;
          SendOf(freed);
        }}},
      {"SendBeyond", {"buffer-memory", [] { SendOf(Buffer(0, 63).data); }}},
      {"TooManyCtas", {"ctas", TooManyCtas}},
      {"WrongOrderOfCommunicators", {"deadlock", WrongOrderOfCommunicators, {std::string(kStallMsVariable) + "=200"}}},
      {"WrongOrder", {"deadlock", WrongOrder, {std::string(kStallMsVariable) + "=200"}}},
  };
}

}  // namespace headrace::nccl_checker
