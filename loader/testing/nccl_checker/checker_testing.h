#ifndef HEADRACE_LOADER_TESTING_NCCL_CHECKER_CHECKER_TESTING_H_
#define HEADRACE_LOADER_TESTING_NCCL_CHECKER_CHECKER_TESTING_H_

// The checker as its users load it, ranks on it, and this binary started again as a process of a case.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "loader/gpu/cuda_abi.h"
#include "loader/gpu/cuda_driver_abi.h"
#include "loader/transport/nccl/nccl_abi.h"

namespace headrace::nccl_checker {

struct Library {
#define FIELD(name, parameters) cuda::Error(*name) parameters;
  HEADRACE_CUDA_FUNCTIONS(FIELD)
  HEADRACE_CUDA_DRIVER_FUNCTIONS(FIELD)
  HEADRACE_NCCL_FUNCTIONS(FIELD)
#undef FIELD
#define FIELD(name, parameters) const char*(*name)parameters;
  HEADRACE_CUDA_TEXT_FUNCTIONS(FIELD)
  HEADRACE_NCCL_TEXT_FUNCTIONS(FIELD)
#undef FIELD
};
// Loads it at the first call; ends the process where it cannot.
const Library& lib();

// HEADRACE_TEST_SEED or a new one, which is printed.
uint64_t TestSeed();
// Ends the process unless `result` is kSuccess: for cases in processes, and for what is not under test.
void Must(int result, const char* what);
#define MUST(call) ::headrace::nccl_checker::Must(call, #call)

// Asks until the state is no longer kInProgress, at most a minute; then kInProgress.
nccl::Result Settled(nccl::Comm comm);

// One rank on a device with one stream.
struct Rank {
  // Begins to make a non-blocking communicator.
  Rank(const nccl::UniqueId& id, int rank, int ranks, int device, int max_ctas = 16);
  // Without the communicator.
  explicit Rank(int device);
  Rank(Rank&& other) noexcept;
  // Aborts the communicator and destroys the stream, where they are there.
  ~Rank();

  // The outcome of the group that `calls` makes.
  nccl::Result Group(const std::function<void()>& calls);
  void Finish();  // finalize and destroy

  int device;
  nccl::Comm comm = nullptr;
  cuda::Stream stream = nullptr;
};

// All ranks of a communicator in this process, ready.
std::vector<Rank> MakeRanks(
    int ranks, const std::function<int(int)>& device_of = [](int rank) { return rank; });
// ncclCommFinalize at all of them, then ncclCommDestroy.
void FinishAll(std::vector<Rank>* ranks);

// Device memory of the current device.
struct Buffer {
  Buffer(int device, size_t bytes);
  Buffer(Buffer&& other) noexcept;
  ~Buffer();
  // By copies through a stream.
  void Set(const std::vector<unsigned char>& bytes, cuda::Stream stream);
  std::vector<unsigned char> Get(cuda::Stream stream) const;

  unsigned char* data = nullptr;
  size_t bytes = 0;
};

// Memory of cuMemCreate, mapped. All its parts can be taken back one by one.
struct Shareable {
  // On the device, to be exported as all types that `types` has.
  Shareable(int device, size_t bytes, int types = cuda::kHandleTypePosixFd | cuda::kHandleTypeFabric);
  // Imported.
  explicit Shareable(cuda::AllocationHandle handle, size_t bytes) : handle(handle), bytes(bytes) {}
  Shareable(const Shareable&) = delete;
  Shareable& operator=(const Shareable&) = delete;
  // Unmaps, frees and releases what is there.
  ~Shareable();

  void Reserve();
  void Map();
  void SetAccess(int device, int flags = cuda::kAccessReadWrite);
  void MapFor(int device);  // the three
  unsigned char* data() const { return reinterpret_cast<unsigned char*>(address); }

  cuda::AllocationHandle handle = 0;
  size_t bytes = 0;
  cuda::DevicePointer address = 0;
  bool mapped = false;
};
// What cuMemCreate wants for memory of a device.
cuda::AllocationProp PropOf(int device, int types);

// This binary again, running a case of the map that was given to CheckerTestMain.
struct Outcome {
  int status = 0;  // of waitpid
  std::string errors;
};
class Child {
 public:
  // `environment`: name=value. `input` is its standard input, whole.
  Child(const std::string& name, const std::vector<std::string>& environment, const std::string& input = "");
  ~Child();
  std::string ReadLine();  // of its standard output; empty at its end
  void Kill();
  Outcome Wait();
  int pid() const { return pid_; }

 private:
  int pid_ = -1, out_ = -1, errors_ = -1;
};

int CheckerTestMain(int argc, char** argv, const std::map<std::string, std::function<void()>>& cases);

std::string Hex(const nccl::UniqueId& id);
nccl::UniqueId Unhex(const std::string& text);

}  // namespace headrace::nccl_checker

#endif  // HEADRACE_LOADER_TESTING_NCCL_CHECKER_CHECKER_TESTING_H_
