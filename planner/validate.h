#ifndef HEADRACE_PLANNER_VALIDATE_H_
#define HEADRACE_PLANNER_VALIDATE_H_

// What a manifest must satisfy before it is planned, apart from what the two sides owe each other (uncovered,
// unwanted: see intersect.h). The checks run in this order over the whole manifest, so that the first code that
// applies anywhere is the one reported:
//
//   kMalformed        duplicate tensor, buffer, placement, ignore or coupling; bad axes; `zero` in a source; an alias
//                     that does not match its buffer; a rank without placement in a topology that places others
//   kUnknownTensor    a piece, ignore or coupling names a tensor that is not declared
//   kShapeMismatch    numbers of axes differ; a view with another number of elements; a scale of another shape
//   kOutOfBounds      a negative extent, offset or stride; a product past 2^63; a box outside of its tensor or buffer
//   kDtypeMismatch    a buffer of another dtype than its tensor's, without a conversion that exists
//   kOverlap          two pieces of a destination buffer share an element; a destination buffer's strides put two
//                     elements at one place; two destination buffers that are no aliases share a byte of a storage
//   kMisalignedBlock  a destination box cuts a scale block; a box or zero fill of a sub-byte dtype cuts a byte
//   kConflict         a destination rank holds a block without its scale

#include "absl/status/status.h"
#include "planner/manifest.h"

namespace headrace {

// kOutOfMemory where the exact answer would take too long (memory_overlap.h, lower.h).
absl::Status Validate(const Manifest& manifest);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_VALIDATE_H_
