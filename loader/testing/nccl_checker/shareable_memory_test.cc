// cuMem*: memory that is created, mapped, and shared between processes.

#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>

#include "loader/testing/nccl_checker/checker_testing.h"
#include "loader/testing/nccl_checker/nccl_checker.h"

namespace headrace::nccl_checker {
namespace {

using testing::Each;
using Bytes = std::vector<unsigned char>;

constexpr size_t kUnit = 64 << 10;

Bytes Counted(size_t size) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<unsigned char>(i * 7 + i / 251);
  return bytes;
}

void Set(const Shareable& memory, const Bytes& bytes, const Rank& rank) {
  MUST(lib().cudaMemcpyAsync(memory.data(), bytes.data(), bytes.size(), cuda::kMemcpyHostToDevice, rank.stream));
}

Bytes Get(const Shareable& memory, const Rank& rank) {
  Bytes bytes(memory.bytes);
  MUST(lib().cudaMemcpyAsync(bytes.data(), memory.data(), bytes.size(), cuda::kMemcpyDeviceToHost, rank.stream));
  return bytes;
}

size_t FreeBytes(int device) {
  size_t free, total;
  MUST(lib().cudaSetDevice(device));
  MUST(lib().cudaMemGetInfo(&free, &total));
  return free;
}

int ExportDescriptor(const Shareable& memory) {
  int fd = -1;
  MUST(lib().cuMemExportToShareableHandle(&fd, memory.handle, cuda::kHandleTypePosixFd, 0));
  return fd;
}

cuda::Result ImportDescriptor(cuda::AllocationHandle* handle, int fd) {
  return lib().cuMemImportFromShareableHandle(handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                              cuda::kHandleTypePosixFd);
}

std::string ExportFabric(const Shareable& memory) {
  cuda::FabricHandle handle;
  MUST(lib().cuMemExportToShareableHandle(&handle, memory.handle, cuda::kHandleTypeFabric, 0));
  return std::string(reinterpret_cast<const char*>(handle.data), sizeof(handle.data));
}

cuda::Result ImportFabric(cuda::AllocationHandle* handle, const std::string& from) {
  cuda::FabricHandle fabric{};
  std::memcpy(fabric.data, from.data(), std::min(from.size(), sizeof(fabric.data)));
  return lib().cuMemImportFromShareableHandle(handle, &fabric, cuda::kHandleTypeFabric);
}

TEST(ShareableMemoryTest, IsFilledCountedAndCopied) {
  Rank rank(2);
  const size_t before = FreeBytes(2);
  {
    Shareable memory(2, 2 * kUnit);
    EXPECT_EQ(before - FreeBytes(2), 2 * kUnit);
    memory.MapFor(2);
    EXPECT_THAT(Get(memory, rank), Each(0xCB));
    const Bytes bytes = Counted(2 * kUnit);
    Set(memory, bytes, rank);
    MUST(lib().cuMemRelease(std::exchange(memory.handle, 0)));
    EXPECT_EQ(Get(memory, rank), bytes) << "it is mapped still";
    EXPECT_EQ(before - FreeBytes(2), 2 * kUnit);
    cuda::PointerAttributes attributes;
    MUST(lib().cudaPointerGetAttributes(&attributes, memory.data() + 2 * kUnit - 1));
    EXPECT_EQ(attributes.type, cuda::kDevice);
    EXPECT_EQ(attributes.device, 2);
    MUST(lib().cudaMemsetAsync(memory.data(), 9, 2 * kUnit, rank.stream));
    EXPECT_THAT(Get(memory, rank), Each(9));
  }
  EXPECT_EQ(FreeBytes(2), before);
  cuda::AllocationHandle handle;
  const cuda::AllocationProp prop = PropOf(2, cuda::kHandleTypePosixFd);
  EXPECT_EQ(lib().cuMemCreate(&handle, before + kUnit, &prop, 0), cuda::kResultOutOfMemory);
}

TEST(ShareableMemoryTest, MappingsOfItAreTheSameMemoryEachWithItsOwnAccess) {
  Rank zero(0), one(1);
  Shareable memory(0, kUnit);
  memory.MapFor(0);
  cuda::AllocationHandle handle;
  const int fd = ExportDescriptor(memory);
  MUST(ImportDescriptor(&handle, fd));
  close(fd);
  const size_t free = FreeBytes(0);
  Shareable again(handle, kUnit);
  again.MapFor(1);
  EXPECT_EQ(FreeBytes(0), free) << "it is no new memory";
  EXPECT_NE(memory.address, again.address);
  Set(memory, Counted(kUnit), zero);
  EXPECT_EQ(Get(again, one), Counted(kUnit));

  unsigned long long flags = 7;
  const cuda::MemLocation on_zero{cuda::kMemLocationDevice, 0}, on_one{cuda::kMemLocationDevice, 1};
  MUST(lib().cuMemGetAccess(&flags, &on_zero, again.address));
  EXPECT_EQ(flags, static_cast<unsigned>(cuda::kAccessNone));
  again.SetAccess(0, cuda::kAccessRead);
  MUST(lib().cuMemGetAccess(&flags, &on_zero, again.address));
  EXPECT_EQ(flags, static_cast<unsigned>(cuda::kAccessRead));
  MUST(lib().cuMemGetAccess(&flags, &on_one, again.address));
  EXPECT_EQ(flags, static_cast<unsigned>(cuda::kAccessReadWrite));
}

TEST(ShareableMemoryTest, OneRangeHoldsSeveralMappings) {
  Rank rank(0);
  Shareable first(0, kUnit), second(0, kUnit);
  cuda::DevicePointer range;
  MUST(lib().cuMemAddressReserve(&range, 2 * kUnit, 1 << 20, 0, 0));
  EXPECT_EQ(range % (1 << 20), 0u);
  MUST(lib().cuMemMap(range + kUnit, kUnit, 0, second.handle, 0));
  MUST(lib().cuMemMap(range, kUnit, 0, first.handle, 0));
  const cuda::AccessDesc access{{cuda::kMemLocationDevice, 0}, cuda::kAccessReadWrite};
  MUST(lib().cuMemSetAccess(range, 2 * kUnit, &access, 1));
  MUST(lib().cudaMemsetAsync(reinterpret_cast<void*>(range + kUnit), 1, kUnit, rank.stream));
  MUST(lib().cudaStreamSynchronize(rank.stream));
  MUST(lib().cuMemUnmap(range, 2 * kUnit));
  MUST(lib().cuMemMap(range, kUnit, 0, second.handle, 0));  // reserved as before
  MUST(lib().cuMemSetAccess(range, kUnit, &access, 1));
  Bytes bytes(kUnit);
  MUST(lib().cudaMemcpyAsync(bytes.data(), reinterpret_cast<void*>(range), kUnit, cuda::kMemcpyDeviceToHost,
                             rank.stream));
  EXPECT_THAT(bytes, Each(1));
  MUST(lib().cuMemUnmap(range, kUnit));
  MUST(lib().cuMemAddressFree(range, 2 * kUnit));
}

TEST(ShareableMemoryTest, GroupsMoveIt) {
  std::vector<Rank> ranks = MakeRanks(2);
  Shareable from(1, kUnit), to(0, kUnit);  // `from` is the other device's: a mapped peer
  from.MapFor(0);
  to.MapFor(1);
  Set(from, Counted(kUnit), ranks[0]);
  MUST(lib().cudaStreamSynchronize(ranks[0].stream));
  MUST(ranks[0].Group(
      [&] { MUST(lib().ncclSend(from.data(), kUnit, nccl::kUint8, 1, ranks[0].comm, ranks[0].stream)); }));
  MUST(
      ranks[1].Group([&] { MUST(lib().ncclRecv(to.data(), kUnit, nccl::kUint8, 0, ranks[1].comm, ranks[1].stream)); }));
  EXPECT_EQ(Get(to, ranks[1]), Counted(kUnit));
  for (Rank& rank : ranks) MUST(lib().cudaStreamSynchronize(rank.stream));
  FinishAll(&ranks);
}

// Maps the memory for device 0, which it is not on, and adds one to each of its bytes.
void AddOne(cuda::AllocationHandle handle) {
  Rank rank(0);
  Shareable memory(handle, kUnit);
  memory.MapFor(0);
  cuda::PointerAttributes attributes;
  MUST(lib().cudaPointerGetAttributes(&attributes, memory.data()));
  Must(attributes.type != cuda::kDevice || attributes.device != 1, "the attributes");
  Bytes bytes = Get(memory, rank);
  for (unsigned char& byte : bytes) ++byte;
  Set(memory, bytes, rank);
}

// Its input names the descriptor.
void DescriptorAdder() {
  int fd = -1;
  std::cin >> fd;
  cuda::AllocationHandle handle;
  MUST(ImportDescriptor(&handle, fd));
  close(fd);
  AddOne(handle);
}

// Its input is the handle.
void FabricAdder() {
  std::string from(sizeof(cuda::FabricHandle), '\0');
  Must(!std::cin.read(from.data(), from.size()), "read");
  cuda::AllocationHandle handle;
  MUST(ImportFabric(&handle, from));
  AddOne(handle);
}

TEST(ShareableMemoryTest, DescriptorsPassItToOtherProcesses) {
  Rank rank(1);
  Bytes bytes = Counted(kUnit);
  int fd;
  {
    Shareable memory(1, kUnit);
    memory.MapFor(1);
    Set(memory, bytes, rank);
    fd = ExportDescriptor(memory);
  }
  EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  fcntl(fd, F_SETFD, 0);
  // The descriptor is all that is left of it here.
  const Outcome outcome = Child("DescriptorAdder", {}, std::to_string(fd)).Wait();
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
  cuda::AllocationHandle handle;
  MUST(ImportDescriptor(&handle, fd));
  close(fd);
  Shareable memory(handle, kUnit);
  memory.MapFor(1);
  for (unsigned char& byte : bytes) ++byte;
  EXPECT_EQ(Get(memory, rank), bytes);
}

TEST(ShareableMemoryTest, FabricHandlesPassItToOtherProcesses) {
  Rank rank(1);
  Bytes bytes = Counted(kUnit);
  std::string handle;
  {
    Shareable memory(1, kUnit);
    memory.MapFor(1);
    Set(memory, bytes, rank);
    handle = ExportFabric(memory);
    const Outcome outcome = Child("FabricAdder", {}, handle).Wait();
    EXPECT_EQ(outcome.status, 0) << outcome.errors;
    for (unsigned char& byte : bytes) ++byte;
    EXPECT_EQ(Get(memory, rank), bytes);
  }
  Shareable other(1, kUnit);  // in the descriptor that the first one had
  EXPECT_NE(Child("FabricAdder", {}, handle).Wait().status, 0) << "the memory is gone";
}

// Writes its handle as hexadecimal digits, and stays.
void FabricExporter() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Shareable memory(1, kUnit);
  for (const char c : ExportFabric(memory)) std::printf("%02x", static_cast<unsigned char>(c));
  std::printf("\n");
  std::fflush(stdout);
  pause();
}

TEST(ShareableMemoryTest, FabricHandlesEndWithTheirProcess) {
  Rank rank(0);
  Child exporter("FabricExporter", {});
  const std::string digits = exporter.ReadLine();
  std::string fabric;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    fabric.push_back(static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16)));
  }
  cuda::AllocationHandle handle;
  MUST(ImportFabric(&handle, fabric));
  const size_t free = FreeBytes(1);
  Shareable memory(handle, kUnit);
  memory.MapFor(0);
  exporter.Kill();
  exporter.Wait();
  EXPECT_EQ(FreeBytes(1), free) << "another process's bytes are its own";
  EXPECT_THAT(Get(memory, rank), Each(0xCB)) << "what was imported stays";
  EXPECT_EQ(ImportFabric(&handle, fabric), cuda::kResultInvalidValue);
}

TEST(ShareableMemoryTest, OtherThingsAreNotImported) {
  cuda::AllocationHandle handle;
  EXPECT_EQ(ImportDescriptor(&handle, -1), cuda::kResultInvalidValue);
  int ends[2];
  MUST(pipe2(ends, O_CLOEXEC));
  EXPECT_EQ(ImportDescriptor(&handle, ends[0]), cuda::kResultInvalidValue);
  close(ends[0]);
  close(ends[1]);
  Shareable memory(0, kUnit);
  std::string fabric = ExportFabric(memory);
  fabric[8] ^= 1;  // of the random number
  EXPECT_EQ(ImportFabric(&handle, fabric), cuda::kResultInvalidValue);
  EXPECT_EQ(ImportFabric(&handle, std::string()), cuda::kResultInvalidValue);
}

TEST(ShareableMemoryTest, SaysNoToWhatIsMalformed) {
  cuda::AllocationHandle handle;
  cuda::AllocationProp prop = PropOf(8, cuda::kHandleTypePosixFd);
  EXPECT_EQ(lib().cuMemCreate(&handle, kUnit, &prop, 0), cuda::kResultInvalidDevice);
  prop = PropOf(0, 2);
  EXPECT_EQ(lib().cuMemCreate(&handle, kUnit, &prop, 0), cuda::kResultInvalidValue);
  prop = PropOf(0, cuda::kHandleTypePosixFd);
  prop.type = 0;
  EXPECT_EQ(lib().cuMemCreate(&handle, kUnit, &prop, 0), cuda::kResultInvalidValue);
  size_t granularity = 0;
  EXPECT_EQ(lib().cuMemGetAllocationGranularity(&granularity, &prop, cuda::kGranularityMinimum),
            cuda::kResultInvalidValue);
  prop = PropOf(0, cuda::kHandleTypeNone);
  MUST(lib().cuMemGetAllocationGranularity(&granularity, &prop, cuda::kGranularityMinimum));
  EXPECT_EQ(granularity, kUnit);
  int value = 0;
  EXPECT_EQ(lib().cuDeviceGetAttribute(&value, cuda::kHandleTypeFabricSupported, 8), cuda::kResultInvalidDevice);
  cuda::Device device;
  EXPECT_EQ(lib().cuDeviceGet(&device, 8), cuda::kResultInvalidDevice);
  const char* text = "";
  EXPECT_EQ(lib().cuGetErrorName(cuda::kResultInvalidDevice, &text), cuda::kResultSuccess);
  EXPECT_STREQ(text, "CUDA_ERROR_INVALID_DEVICE");
  EXPECT_EQ(lib().cuGetErrorString(12345, &text), cuda::kResultInvalidValue);
  EXPECT_EQ(text, nullptr);
}

// Prints what the devices say of descriptors and fabric handles, and what cuMemCreate returns.
void Supporter() {
  int fd, fabric;
  MUST(lib().cuDeviceGetAttribute(&fd, cuda::kHandleTypePosixFdSupported, 0));
  MUST(lib().cuDeviceGetAttribute(&fabric, cuda::kHandleTypeFabricSupported, 0));
  std::cout << fd << fabric;
  for (const int types : {cuda::kHandleTypeNone, cuda::kHandleTypePosixFd, cuda::kHandleTypeFabric}) {
    cuda::AllocationHandle handle;
    const cuda::AllocationProp prop = PropOf(0, types);
    std::cout << ' ' << lib().cuMemCreate(&handle, kUnit, &prop, 0);
  }
  std::cout << std::endl;
}

TEST(ShareableMemoryTest, HandleTypesAreThoseOfTheVariable) {
  const std::string variable = std::string(kHandleTypesVariable) + "=";
  EXPECT_EQ(Child("Supporter", {}).ReadLine(), "11 0 0 0");
  EXPECT_EQ(Child("Supporter", {variable}).ReadLine(), "00 0 801 801");
  EXPECT_EQ(Child("Supporter", {variable + "fd"}).ReadLine(), "10 0 0 801");
  EXPECT_EQ(Child("Supporter", {variable + "fabric"}).ReadLine(), "01 0 801 0");
  EXPECT_EQ(Child("Supporter", {variable + "fd,fabric-denied"}).ReadLine(), "11 0 0 800");
  EXPECT_NE(Child("Supporter", {variable + "win32"}).Wait().status, 0);
}

// cuInit comes first.
void Uninitialized() {
  void* const file = dlopen(kLibraryPath, RTLD_NOW | RTLD_LOCAL);
  const auto get = reinterpret_cast<decltype(Library::cuDeviceGet)>(dlsym(file, "cuDeviceGet"));
  cuda::Device device;
  Must(get(&device, 0) != cuda::kResultNotInitialized, "cuDeviceGet");
}

TEST(ShareableMemoryTest, TheDriverIsInitializedFirst) {
  const Outcome outcome = Child("Uninitialized", {}).Wait();
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
}

}  // namespace

std::map<std::string, std::function<void()>> ShareableProcesses() {
  return {{"DescriptorAdder", DescriptorAdder},
          {"FabricAdder", FabricAdder},
          {"FabricExporter", FabricExporter},
          {"Supporter", Supporter},
          {"Uninitialized", Uninitialized}};
}

}  // namespace headrace::nccl_checker

int main(int argc, char** argv) {
  return headrace::nccl_checker::CheckerTestMain(argc, argv, headrace::nccl_checker::ShareableProcesses());
}
