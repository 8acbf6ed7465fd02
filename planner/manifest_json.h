#ifndef HEADRACE_PLANNER_MANIFEST_JSON_H_
#define HEADRACE_PLANNER_MANIFEST_JSON_H_

// The one schema of a manifest in its two encodings: JSON text for people, tests and the CLI, and CBOR (RFC 8949) of
// the same document for the wire. docs/manifest.md lists the fields.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/manifest.h"

namespace headrace {

// Reads a manifest. Checks syntax and types only; call Validate (validate.h) before planning with it.
//   kMalformed: not JSON, a duplicate key, a missing or unknown field, a value of the wrong type. The message gives
//     the path, e.g. `source[2].pieces[0].shape`. The top-level fields "title" and "expect" are skipped.
//   kOutOfBounds: an integer outside of 64 bits. What Validate finds before kOutOfBounds is reported first.
absl::StatusOr<Manifest> ParseManifest(absl::string_view json);
absl::StatusOr<Manifest> ParseManifestCbor(absl::string_view cbor);

// Inverse of the above: ParseManifest(ManifestToJson(m)) equals m. Strides are written only where not row-major.
std::string ManifestToJson(const Manifest& manifest);
std::string ManifestToCbor(const Manifest& manifest);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_MANIFEST_JSON_H_
