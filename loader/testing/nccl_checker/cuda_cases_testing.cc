// How the rules of CUDA are broken.

#include <unistd.h>

#include "loader/testing/nccl_checker/rule_cases_testing.h"

namespace headrace::nccl_checker {
namespace {

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

void RowsWiderThanTheirPitch() {
  Rank rank(0);
  Buffer a(0, 64), b(0, 64);
  Break(lib().cudaMemcpy2DAsync(a.data, 8, b.data, 16, 9, 2, cuda::kMemcpyDefault, rank.stream));
}

void RegisteredTwice() {
  MUST(lib().cudaSetDevice(0));
  static std::byte memory[64];
  MUST(lib().cudaHostRegister(memory, sizeof(memory), 0));
  Break(lib().cudaHostRegister(memory + 8, 8, 0));
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

void RecordInGroup() {
  std::vector<Rank> ranks = MakeRanks(1);
  Buffer a(0, 64);
  cuda::Event event;
  MUST(lib().cudaEventCreateWithFlags(&event, cuda::kEventDisableTiming));
  MUST(lib().ncclGroupStart());
  Send(ranks[0], a, 64, nccl::kUint8, 0);
  Break(lib().cudaEventRecord(event, ranks[0].stream));
}

}  // namespace

std::map<std::string, RuleCase> CudaRuleCases() {
  return {
      {"CudaInHostFunction", {"call-in-host-function", [] { CallInHostFunction(0); }}},
      {"NcclInHostFunction", {"call-in-host-function", [] { CallInHostFunction(1); }}},
      {"MemcpyOfDeviceAsHost", {"memcpy-kind", MemcpyOfDeviceAsHost}},
      {"MemsetOfHost", {"memcpy-kind", MemsetOfHost}},
      {"MemcpyBeyond", {"memcpy-bounds", MemcpyBeyond}},
      {"RowsWiderThanTheirPitch", {"memcpy-pitch", RowsWiderThanTheirPitch}},
      {"RegisteredTwice", {"host-register", RegisteredTwice}},
      {"FreeInside", {"free", FreeInside}},
      {"FreeTwice", {"free", FreeTwice}},
      {"FreeHostOfDevice", {"free", FreeHostOfDevice}},
      {"FreeUnderCopy", {"free-in-use", FreeUnderCopy}},
      {"FreeUnderKernel", {"free-in-use", FreeUnderKernel}},
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
  };
}

}  // namespace headrace::nccl_checker
