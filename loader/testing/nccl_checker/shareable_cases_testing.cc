// How the rules of cuMem* are broken.

#include <unistd.h>

#include "loader/testing/nccl_checker/rule_cases_testing.h"

namespace headrace::nccl_checker {
namespace {

constexpr size_t kUnit = 64 << 10;

int CopyFrom(const Shareable& memory, const Rank& rank) {
  static Buffer to(rank.device, 64);  // until the process ends, as what copies into it may
  return lib().cudaMemcpyAsync(to.data, memory.data(), 64, cuda::kMemcpyDefault, rank.stream);
}

void CreateUneven() {
  const cuda::AllocationProp prop = PropOf(0, cuda::kHandleTypePosixFd);
  cuda::AllocationHandle handle;
  Break(lib().cuMemCreate(&handle, kUnit + 4096, &prop, 0));
}

void ReserveUneven() {
  cuda::DevicePointer pointer;
  Break(lib().cuMemAddressReserve(&pointer, kUnit + 4096, 0, 0, 0));
}

void MapPart(size_t at, size_t bytes, size_t offset) {
  Shareable memory(0, 2 * kUnit);
  memory.Reserve();
  Break(lib().cuMemMap(memory.address + at, bytes, offset, memory.handle, 0));
}

void ReleaseTwice() {
  Shareable memory(0, kUnit);
  MUST(lib().cuMemRelease(memory.handle));
  Break(lib().cuMemRelease(memory.handle));
}

void MapOfReleased() {
  Shareable memory(0, kUnit);
  memory.Reserve();
  MUST(lib().cuMemRelease(memory.handle));
  Break(lib().cuMemMap(memory.address, kUnit, 0, memory.handle, 0));
}

void ExportUnrequested() {
  Shareable memory(0, kUnit, cuda::kHandleTypePosixFd);
  cuda::FabricHandle handle;
  Break(lib().cuMemExportToShareableHandle(&handle, memory.handle, cuda::kHandleTypeFabric, 0));
}

void MapUnreserved() {
  Shareable memory(0, kUnit);
  memory.Reserve();
  MUST(lib().cuMemAddressFree(memory.address, kUnit));
  Break(lib().cuMemMap(memory.address, kUnit, 0, memory.handle, 0));
}

void MapTwice() {
  Shareable memory(0, kUnit);
  memory.Reserve();
  memory.Map();
  Break(lib().cuMemMap(memory.address, kUnit, 0, memory.handle, 0));
}

void MapMoreThanThereIs() {
  Shareable memory(0, kUnit), larger(0, 2 * kUnit);
  larger.Reserve();
  Break(lib().cuMemMap(larger.address, 2 * kUnit, 0, memory.handle, 0));
}

void AccessBeforeMap() {
  Shareable memory(0, kUnit);
  memory.Reserve();
  const cuda::AccessDesc access{{cuda::kMemLocationDevice, 0}, cuda::kAccessReadWrite};
  Break(lib().cuMemSetAccess(memory.address, kUnit, &access, 1));
}

void AccessToPart() {
  Shareable memory(0, 2 * kUnit);
  memory.Reserve();
  memory.Map();
  const cuda::AccessDesc access{{cuda::kMemLocationDevice, 0}, cuda::kAccessReadWrite};
  Break(lib().cuMemSetAccess(memory.address, kUnit, &access, 1));
}

void UnmapPart() {
  Shareable memory(0, 2 * kUnit);
  memory.MapFor(0);
  Break(lib().cuMemUnmap(memory.address, kUnit));
}

void UnmapTwice() {
  Shareable memory(0, kUnit);
  memory.MapFor(0);
  MUST(lib().cuMemUnmap(memory.address, kUnit));
  Break(lib().cuMemUnmap(memory.address, kUnit));
}

void AddressFreeMapped() {
  Shareable memory(0, kUnit);
  memory.MapFor(0);
  Break(lib().cuMemAddressFree(memory.address, kUnit));
}

void AddressFreePart() {
  Shareable memory(0, 2 * kUnit);
  memory.Reserve();
  Break(lib().cuMemAddressFree(memory.address, kUnit));
}

void CopyWithoutAccess() {
  Rank rank(0);
  Shareable memory(0, kUnit);
  memory.Reserve();
  memory.Map();
  Break(CopyFrom(memory, rank));
}

void CopyByOtherDevice() {
  Rank rank(1);
  Shareable memory(0, kUnit);
  memory.MapFor(0);
  Break(CopyFrom(memory, rank));
}

void FillOfReadOnly() {
  Rank rank(0);
  Shareable memory(0, kUnit);
  memory.MapFor(0);
  memory.SetAccess(0, cuda::kAccessRead);
  Break(lib().cudaMemsetAsync(memory.data(), 0, 1, rank.stream));
}

void CopyToReadOnly() {
  Rank rank(0);
  Shareable memory(0, kUnit);
  memory.MapFor(0);
  memory.SetAccess(0, cuda::kAccessRead);
  Buffer from(0, 64);
  Break(lib().cudaMemcpyAsync(memory.data(), from.data, 64, cuda::kMemcpyDefault, rank.stream));
}

void CopyOfUnmapped() {
  Rank rank(0);
  Shareable memory(0, kUnit);
  memory.MapFor(0);
  MUST(lib().cuMemUnmap(memory.address, kUnit));
  Buffer to(0, 64);
  Break(lib().cudaMemcpyAsync(to.data, memory.data(), 64, cuda::kMemcpyDeviceToDevice, rank.stream));
}

void SendOfOthersMapping() {
  std::vector<Rank> ranks = MakeRanks(1);
  Shareable memory(0, kUnit);
  memory.MapFor(1);
  Break(lib().ncclSend(memory.data(), 64, nccl::kUint8, 0, ranks[0].comm, ranks[0].stream));
}

void ReceiveToReadOnly() {
  std::vector<Rank> ranks = MakeRanks(1);
  Shareable memory(0, kUnit);
  memory.MapFor(0);
  memory.SetAccess(0, cuda::kAccessRead);
  Break(lib().ncclRecv(memory.data(), 64, nccl::kUint8, 0, ranks[0].comm, ranks[0].stream));
}

void UnmapUnderCopy() {
  Rank rank = BusyStream();
  Shareable memory(0, kUnit);
  memory.MapFor(0);
  MUST(CopyFrom(memory, rank));
  Break(lib().cuMemUnmap(memory.address, kUnit));
}

void TakeAccessUnderCopy() {
  Rank rank = BusyStream();
  Shareable memory(0, kUnit);
  memory.MapFor(0);
  MUST(lib().cudaMemsetAsync(memory.data(), 0, 1, rank.stream));
  const cuda::AccessDesc access{{cuda::kMemLocationDevice, 0}, cuda::kAccessRead};
  Break(lib().cuMemSetAccess(memory.address, kUnit, &access, 1));
}

void FreeOfMapped() {
  Shareable memory(0, kUnit);
  memory.MapFor(0);
  Break(lib().cudaFree(memory.data()));
}

void DriverInHostFunction() {
  static cuda::AllocationHandle s_handle;
  Rank rank(0);
  Shareable memory(0, kUnit);
  s_handle = memory.handle;
  MUST(lib().cudaLaunchHostFunc(
      rank.stream, [](void*) { Break(lib().cuMemRelease(s_handle)); }, nullptr));
  pause();
}

}  // namespace

std::map<std::string, RuleCase> ShareableRuleCases() {
  return {
      {"CreateUneven", {"vmm-granularity", CreateUneven}},
      {"ReserveUneven", {"vmm-granularity", ReserveUneven}},
      {"MapUnevenBytes", {"vmm-granularity", [] { MapPart(0, 4096, 0); }}},
      {"MapAtUnevenAddress", {"vmm-granularity", [] { MapPart(4096, kUnit, 0); }}},
      {"MapFromOffset", {"vmm-granularity", [] { MapPart(0, kUnit, kUnit); }}},
      {"ReleaseTwice", {"vmm-handle", ReleaseTwice}},
      {"ReleaseOfUnknown", {"vmm-handle", [] { Break(lib().cuMemRelease(1)); }}},
      {"MapOfReleased", {"vmm-handle", MapOfReleased}},
      {"ExportUnrequested", {"vmm-export", ExportUnrequested}},
      {"MapUnreserved", {"vmm-map", MapUnreserved}},
      {"MapTwice", {"vmm-map", MapTwice}},
      {"MapBeyondReservation", {"vmm-map", [] { MapPart(kUnit, 2 * kUnit, 0); }}},
      {"MapMoreThanThereIs", {"vmm-map", MapMoreThanThereIs}},
      {"AccessBeforeMap", {"vmm-range", AccessBeforeMap}},
      {"AccessToPart", {"vmm-range", AccessToPart}},
      {"UnmapPart", {"vmm-range", UnmapPart}},
      {"UnmapTwice", {"vmm-range", UnmapTwice}},
      {"AddressFreeMapped", {"vmm-address-free", AddressFreeMapped}},
      {"AddressFreePart", {"vmm-address-free", AddressFreePart}},
      {"CopyWithoutAccess", {"vmm-access", CopyWithoutAccess}},
      {"CopyByOtherDevice", {"vmm-access", CopyByOtherDevice}},
      {"CopyToReadOnly", {"vmm-access", CopyToReadOnly}},
      {"FillOfReadOnly", {"vmm-access", FillOfReadOnly}},
      {"CopyOfUnmapped", {"memcpy-kind", CopyOfUnmapped}},
      {"SendOfOthersMapping", {"buffer-memory", SendOfOthersMapping}},
      {"ReceiveToReadOnly", {"buffer-memory", ReceiveToReadOnly}},
      {"UnmapUnderCopy", {"free-in-use", UnmapUnderCopy}},
      {"TakeAccessUnderCopy", {"free-in-use", TakeAccessUnderCopy}},
      {"FreeOfMapped", {"free", FreeOfMapped}},
      {"DriverInHostFunction", {"call-in-host-function", DriverInHostFunction}},
  };
}

}  // namespace headrace::nccl_checker
