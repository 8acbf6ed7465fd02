#ifndef HEADRACE_ENGINE_ADAPTERS_SAFETENSORS_SAFETENSORS_H_
#define HEADRACE_ENGINE_ADAPTERS_SAFETENSORS_SAFETENSORS_H_

// The safetensors format (https://github.com/huggingface/safetensors, README.md and safetensors/src/tensor.rs): 8 bytes
// of header length (little-endian), a JSON header, the data. The header maps each tensor's name to its "dtype", "shape"
// and "data_offsets" [begin, end), which count bytes from the start of the data; "__metadata__" maps strings to
// strings.

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "planner/manifest.h"

namespace headrace {

struct CheckpointTensor {
  TensorSpec spec;
  // Row-major, elements little-endian, sub-byte types packed; exactly as long as shape and dtype say. Not aligned to
  // the element: the format promises no alignment.
  absl::Span<const std::byte> bytes;
};

// The tensors of one file, sorted by name; their bytes lie inside `file`. `path` names the file in messages. Pure and
// thread-safe; safe on any bytes. Together the tensors hold every byte of the data once.
//   io  anything else than the format allows; the message names the file, the tensor and the fault:
//       a file that is too short (or too long) for its header, a header over 100 MB, one that does not start with '{',
//       is not JSON or names a tensor twice; fields missing or unknown; an unknown dtype; a shape or offset that is no
//       natural number; a tensor that reaches 2^63 bits (extents of 0 taken as 1); sub-byte elements that do not fill
//       whole bytes; offsets that do not fit shape and dtype, overlap, or leave a hole
absl::StatusOr<std::vector<CheckpointTensor>> ReadSafetensors(absl::Span<const std::byte> file, absl::string_view path);

}  // namespace headrace

#endif  // HEADRACE_ENGINE_ADAPTERS_SAFETENSORS_SAFETENSORS_H_
