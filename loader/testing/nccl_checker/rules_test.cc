// Every rule is broken by a process of its own: once where a violation ends it, and once where the call fails.

#include "loader/testing/nccl_checker/rules.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>
#include <thread>

#include "loader/testing/nccl_checker/checker_testing.h"
#include "loader/testing/nccl_checker/nccl_checker.h"

namespace headrace::nccl_checker {
namespace {

// The call that breaks the rule; comes here only where violations do not end the process.
void Break(int result) { _exit(result == 0 ? 4 : 0); }

// Waits until the communicator's asynchronous error is there.
void AwaitError(nccl::Comm comm) {
  nccl::Result error = nccl::kSuccess;
  while (error == nccl::kSuccess || error == nccl::kInProgress) {
    MUST(lib().ncclCommGetAsyncError(comm, &error));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  Break(error);
}

// A stream in which a host function waits for ever.
Rank BusyStream() {
  Rank rank(0);
  MUST(lib().cudaLaunchHostFunc(
      rank.stream, [](void*) { pause(); }, nullptr));
  return rank;
}

nccl::UniqueId NewId() {
  nccl::UniqueId id;
  MUST(lib().ncclGetUniqueId(&id));
  return id;
}

void Send(Rank& rank, Buffer& buffer, size_t count, int type, int peer) {
  MUST(lib().ncclSend(buffer.data, count, type, peer, rank.comm, rank.stream));
}
void Receive(Rank& rank, Buffer& buffer, size_t count, int type, int peer) {
  MUST(lib().ncclRecv(buffer.data, count, type, peer, rank.comm, rank.stream));
}

void CallInHostFunction(int which) {
  static int s_which;
  s_which = which;
  Rank rank(0);
  MUST(lib().cudaLaunchHostFunc(
      rank.stream,
      [](void*) {
        int version;
        Break(s_which == 0 ? lib().cudaStreamQuery(nullptr) : lib().ncclGetVersion(&version));
      },
      nullptr));
  pause();
}

void MemcpyOfDeviceAsHost() {
  Rank rank(0);
  Buffer a(0, 64), b(0, 64);
  Break(lib().cudaMemcpyAsync(a.data, b.data, 64, cuda::kMemcpyHostToDevice, rank.stream));
}

void MemsetOfHost() {
  Rank rank(0);
  char text[8];
  Break(lib().cudaMemsetAsync(text, 0, sizeof(text), rank.stream));
}

void MemcpyBeyond() {
  Rank rank(0);
  Buffer a(0, 64), b(0, 32);
  Break(lib().cudaMemcpyAsync(a.data, b.data + 1, 32, cuda::kMemcpyDefault, rank.stream));
}

void FreeInside() { Break(lib().cudaFree(Buffer(0, 64).data + 1)); }

void FreeTwice() {
  Buffer a(0, 64);
  MUST(lib().cudaFree(a.data));
  Break(lib().cudaFree(a.data));
}

void FreeHostOfDevice() { Break(lib().cudaFreeHost(Buffer(0, 64).data)); }

void FreeUnderCopy() {
  Rank rank = BusyStream();
  Buffer a(0, 64), b(0, 64);
  MUST(lib().cudaMemcpyAsync(a.data, b.data, 64, cuda::kMemcpyDeviceToDevice, rank.stream));
  Break(lib().cudaFree(b.data));
}

void FreeUnderKernel() {
  std::vector<Rank> ranks = MakeRanks(2);
  Buffer a(0, 64);
  MUST(ranks[0].Group([&] { Receive(ranks[0], a, 64, nccl::kUint8, 1); }));
  Break(lib().cudaFree(a.data));
}

void ExportInside() {
  cuda::IpcMemHandle handle;
  Buffer a(0, 64);
  Break(lib().cudaIpcGetMemHandle(&handle, a.data + 16));
}

void Importer() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  cuda::IpcMemHandle handle;
  void* pointer;
  Must(!std::cin.read(handle.reserved, sizeof(handle.reserved)), "read");
  MUST(lib().cudaIpcOpenMemHandle(&pointer, handle, cuda::kIpcMemLazyEnablePeerAccess));
  std::cout << "open" << std::endl;
  pause();
}

void FreeOpenExport() {
  cuda::IpcMemHandle handle;
  Buffer a(0, 64);
  MUST(lib().cudaIpcGetMemHandle(&handle, a.data));
  Child importer("Importer", {}, std::string(handle.reserved, sizeof(handle.reserved)));
  Must(importer.ReadLine() != "open", "the importer");
  const int result = lib().cudaFree(a.data);
  importer.Kill();
  Break(result);
}

void StreamTwice() {
  Rank rank(0);
  MUST(lib().cudaStreamDestroy(rank.stream));
  Break(lib().cudaStreamDestroy(rank.stream));
}

void EventOfOtherDevice() {
  Rank zero(0), one(1);
  cuda::Event event;
  MUST(lib().cudaEventCreateWithFlags(&event, cuda::kEventDisableTiming));
  Break(lib().cudaEventRecord(event, zero.stream));
}

void SendInStreamOfOtherDevice() {
  std::vector<Rank> ranks = MakeRanks(2);
  Buffer a(0, 64);
  Break(lib().ncclSend(a.data, 64, nccl::kUint8, 1, ranks[0].comm, ranks[1].stream));
}

void DestroyBusyStream() {
  Rank rank = BusyStream();
  Break(lib().cudaStreamDestroy(rank.stream));
}

void StreamBeforeLaunch(int which) {
  std::vector<Rank> ranks = MakeRanks(2);
  Rank& rank = ranks[0];
  Buffer a(0, 64);
  cuda::Event event;
  MUST(lib().cudaEventCreateWithFlags(&event, cuda::kEventDisableTiming));
  Must(lib().ncclSend(a.data, 64, nccl::kUint8, 1, rank.comm, rank.stream) != nccl::kInProgress, "ncclSend");
  switch (which) {
    case 0:
      return Break(lib().cudaEventRecord(event, rank.stream));
    case 1:
      return Break(lib().cudaLaunchHostFunc(
          rank.stream, [](void*) {}, nullptr));
    case 2:
      return Break(lib().cudaStreamSynchronize(rank.stream));
    case 3:
      return Break(lib().cudaMemsetAsync(a.data, 0, 1, rank.stream));
    default:
      return Break(lib().cudaStreamDestroy(rank.stream));
  }
}

void EventTwice() {
  cuda::Event event;
  MUST(lib().cudaEventCreateWithFlags(&event, cuda::kEventDisableTiming));
  MUST(lib().cudaEventDestroy(event));
  Break(lib().cudaEventQuery(event));
}

void DestroyBusyEvent() {
  Rank rank = BusyStream();
  cuda::Event event;
  MUST(lib().cudaEventCreateWithFlags(&event, cuda::kEventDisableTiming));
  MUST(lib().cudaEventRecord(event, rank.stream));
  Break(lib().cudaEventDestroy(event));
}

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
  _exit(0);
}

void WrongOrder() {
  std::vector<Rank> ranks = MakeRanks(2);
  Buffer a(0, 64), b(1, 64);
  for (int i : {0, 1}) MUST(ranks[i].Group([&] { Send(ranks[i], i == 0 ? a : b, 64, nccl::kUint8, 1 - i); }));
  for (int i : {0, 1}) ranks[i].Group([&] { Receive(ranks[i], i == 0 ? a : b, 64, nccl::kUint8, 1 - i); });
  AwaitError(ranks[0].comm);
}

void RecordInGroup() {
  std::vector<Rank> ranks = MakeRanks(1);
  Buffer a(0, 64);
  cuda::Event event;
  MUST(lib().cudaEventCreateWithFlags(&event, cuda::kEventDisableTiming));
  MUST(lib().ncclGroupStart());
  Send(ranks[0], a, 64, nccl::kUint8, 0);
  Break(lib().cudaEventRecord(event, ranks[0].stream));
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

struct Case {
  const char* rule;
  std::function<void()> run;
  std::vector<std::string> environment = {};
};

const std::map<std::string, Case>& Cases() {
  static const auto* const cases = new std::map<std::string, Case>{
      {"CudaInHostFunction", {"call-in-host-function", [] { CallInHostFunction(0); }}},
      {"NcclInHostFunction", {"call-in-host-function", [] { CallInHostFunction(1); }}},
      {"MemcpyOfDeviceAsHost", {"memcpy-kind", MemcpyOfDeviceAsHost}},
      {"MemsetOfHost", {"memcpy-kind", MemsetOfHost}},
      {"MemcpyBeyond", {"memcpy-bounds", MemcpyBeyond}},
      {"FreeInside", {"free", FreeInside}},
      {"FreeTwice", {"free", FreeTwice}},
      {"FreeHostOfDevice", {"free", FreeHostOfDevice}},
      {"FreeUnderCopy", {"free-in-use", FreeUnderCopy}},
      {"FreeUnderKernel", {"free-in-use", FreeUnderKernel}},
      {"ExportInside", {"ipc-base", ExportInside}},
      {"FreeOpenExport", {"ipc-free-open", FreeOpenExport}},
      {"StreamTwice", {"stream-handle", StreamTwice}},
      {"EventOfOtherDevice", {"stream-device", EventOfOtherDevice}},
      {"SendInStreamOfOtherDevice", {"stream-device", SendInStreamOfOtherDevice}},
      {"DestroyBusyStream", {"stream-destroy-busy", DestroyBusyStream}},
      {"RecordBeforeLaunch", {"stream-before-launch", [] { StreamBeforeLaunch(0); }}},
      {"HostFunctionBeforeLaunch", {"stream-before-launch", [] { StreamBeforeLaunch(1); }}},
      {"SynchronizeBeforeLaunch", {"stream-before-launch", [] { StreamBeforeLaunch(2); }}},
      {"MemsetBeforeLaunch", {"stream-before-launch", [] { StreamBeforeLaunch(3); }}},
      {"RecordInGroup", {"stream-before-launch", RecordInGroup}},
      {"DestroyStreamBeforeLaunch", {"stream-destroy-busy", [] { StreamBeforeLaunch(4); }}},
      {"EventTwice", {"event-handle", EventTwice}},
      {"DestroyBusyEvent", {"event-destroy-busy", DestroyBusyEvent}},
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
      {"SendOfHostMemory", {"buffer-memory", [] { SendOf(&Cases()); }}},
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
  return *cases;
}

// What was appended to the violations file.
std::string Contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class RulesTest : public testing::TestWithParam<std::string> {
 protected:
  Outcome Run(const std::string& mode) {
    file_ = testing::TempDir() + "/violations_" + GetParam() + "_" + mode;
    unlink(file_.c_str());
    std::vector<std::string> environment = Cases().at(GetParam()).environment;
    environment.push_back(std::string(kViolationsFileVariable) + "=" + file_);
    // A case ends in the middle of what it does.
    const char* tsan = std::getenv("TSAN_OPTIONS");
    environment.push_back(std::string("TSAN_OPTIONS=report_thread_leaks=0:") + (tsan == nullptr ? "" : tsan));
    if (mode == "return") environment.push_back(std::string(kOnViolationVariable) + "=return");
    return Child(GetParam(), environment).Wait();
  }
  std::string Line() const { return std::string("NCCL CHECKER: ") + Cases().at(GetParam()).rule + ": "; }

  std::string file_;
};

TEST_P(RulesTest, EndsTheProcess) {
  const Outcome outcome = Run("abort");
  EXPECT_TRUE(WIFSIGNALED(outcome.status) && WTERMSIG(outcome.status) == SIGABRT) << outcome.status;
  EXPECT_NE(outcome.errors.find(Line()), std::string::npos) << outcome.errors;
  if (GetParam() != "SameRankInTwoProcesses") {  // there it is the other one that has no file
    EXPECT_EQ(Contents(file_).find(Line()), 0u) << Contents(file_);
  }
}

TEST_P(RulesTest, HasTheCallFail) {
  const Outcome outcome = Run("return");
  EXPECT_TRUE(WIFEXITED(outcome.status) && WEXITSTATUS(outcome.status) == 0) << outcome.status << outcome.errors;
  EXPECT_NE(outcome.errors.find(Line()), std::string::npos) << outcome.errors;
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const auto& [name, rule] : Cases()) names.push_back(name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(All, RulesTest, testing::ValuesIn(Names()), [](const auto& info) { return info.param; });

TEST(RulesTableTest, EveryRuleIsBrokenAndHasASource) {
  std::set<std::string> broken, rules;
  for (const auto& [name, rule] : Cases()) broken.insert(rule.rule);
  for (int i = 1; i <= static_cast<int>(Rule::kDeadlock); ++i) {
    const RuleText& text = TextOf(static_cast<Rule>(i));
    rules.insert(text.id);
    EXPECT_GT(std::string(text.source).size(), 10u) << text.id;
    EXPECT_NE(text.result, nccl::kSuccess) << text.id;
  }
  EXPECT_EQ(broken, rules);
}

}  // namespace

std::map<std::string, std::function<void()>> RuleProcesses() {
  std::map<std::string, std::function<void()>> processes{{"Importer", Importer}, {"Joiner", Joiner}};
  for (const auto& [name, rule] : Cases()) processes[name] = rule.run;
  return processes;
}

}  // namespace headrace::nccl_checker

int main(int argc, char** argv) {
  return headrace::nccl_checker::CheckerTestMain(argc, argv, headrace::nccl_checker::RuleProcesses());
}
