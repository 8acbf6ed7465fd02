#ifndef HEADRACE_PLANNER_MANIFEST_WIRE_H_
#define HEADRACE_PLANNER_MANIFEST_WIRE_H_

// A manifest as members send it: as rules, not as a list.
//
// A rank of a model of 45,000 tensors has 45,000 buffers of a dozen kinds. Entries that differ in numbers alone, also
// those in names, are of one kind:
//
//   model.layers.3.mlp.experts.7.w1   [64, 7168]  at (0, 0)     ->  kind "model.layers.#.mlp.experts.#.w1 ..."
//   model.layers.3.mlp.experts.8.w1   [64, 7168]  at (1, 0)         numbers 3 7 64 7168 0 0,  3 8 64 7168 1 0
//
// Written are the kinds once each, which entry is of which kind, and each number of a kind as a column
// (number_columns.h). So the bytes are in proportion to the layout's rules. Lossless: every manifest is read back as it
// was, the order of all lists included.
//
//   bytes    = 0x01, kinds, lists, columns
//   kinds    = varint count, then each: varint length, bytes
//   lists    = for tensors, source, destination, topology.source, topology.destination, ignore, coupled, and the pieces
//              of all buffers: varint count, column of the entries' kinds
//   columns  = for each kind: varint number of columns, columns
//
// Pure and thread-safe.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/manifest.h"

namespace headrace {

std::string ManifestToWire(const Manifest& manifest);

// The inverse. Checks form only; call Validate (validate.h) before planning with it.
//   kMalformed: bytes that ManifestToWire does not write; text that is not UTF-8
//   kOutOfMemory: a manifest of more than 1 GiB
absl::StatusOr<Manifest> ParseManifestWire(absl::string_view bytes);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_MANIFEST_WIRE_H_
