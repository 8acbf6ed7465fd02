#ifndef HEADRACE_KERNELS_CUDA_BACKEND_API_H_
#define HEADRACE_KERNELS_CUDA_BACKEND_API_H_

// The C interface of the GPU kernels, as libheadrace_cuda.so exports it (kernels/cuda/library.h loads it) and
// kernels/cuda/host_backend.h imitates it on the CPU. Its users need no CUDA headers.
//
// A launch works off one table (kernels/cuda/*_table.h build them): an array of descriptors and the prefix of their
// tiles, both in memory that the device can read. Launches are asynchronous: the table, what its descriptors point
// to, and the other arguments must stay as they are until the stream has passed the launch. Nothing is allocated, no
// stream but the given one is touched, and the calling thread's current device is what it was before. All functions
// are thread-safe.
//
// Each returns 0, or a cudaError_t with its text in *error; then nothing was launched. An empty table is no launch. A
// fault inside a kernel shows, as with any kernel, as an error of a later call on that device.

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEADRACE_KERNELS_VERSION 1
#define HEADRACE_KERNELS_SYMBOL "HeadraceKernels"

typedef struct HeadraceKernelError {
  int32_t code;    // a cudaError_t
  char text[252];  // what failed and CUDA's name and words for it; ends with 0
} HeadraceKernelError;

typedef struct HeadraceLaunch {
  int32_t device;  // ordinal as CUDA numbers them in this process
  void* stream;    // a cudaStream_t of that device; null: its legacy default stream
} HeadraceLaunch;

typedef struct HeadraceTable {
  const void* descriptors;
  const int64_t* first_tile;  // count + 1
  int64_t count;
  int64_t tiles;  // first_tile[count]
} HeadraceTable;

typedef struct HeadraceKernelsV1 {
  int32_t version;  // HEADRACE_KERNELS_VERSION
  // GPUs that the process sees. Without a driver or a GPU: an error with CUDA's words.
  int32_t (*device_count)(int32_t* count, HeadraceKernelError* error);
  // A table of CopyTable. `sums` (device memory, null: no sums): to sums[slot] of each box the sum of its bytes is
  // added, so zero them first, on the stream.
  int32_t (*copy)(const HeadraceLaunch* launch, const HeadraceTable* table, uint64_t* sums, HeadraceKernelError* error);
  // A table of ElementwiseTable.
  int32_t (*elementwise)(const HeadraceLaunch* launch, const HeadraceTable* table, HeadraceKernelError* error);
  // A table of QuantizeTable: the two passes of kernels/quantize.h. The maxima must be zeroed before the first pass,
  // and be combined across the shards of a block before the second.
  int32_t (*block_maxima)(const HeadraceLaunch* launch, const HeadraceTable* table, HeadraceKernelError* error);
  int32_t (*quantize)(const HeadraceLaunch* launch, const HeadraceTable* table, HeadraceKernelError* error);
} HeadraceKernelsV1;

// The type of the exported function HEADRACE_KERNELS_SYMBOL. What it returns lives as long as the process.
typedef const HeadraceKernelsV1* (*HeadraceKernelsFunction)(void);

#ifdef __cplusplus
}
#endif

#endif  // HEADRACE_KERNELS_CUDA_BACKEND_API_H_
