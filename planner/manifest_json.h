#ifndef HEADRACE_PLANNER_MANIFEST_JSON_H_
#define HEADRACE_PLANNER_MANIFEST_JSON_H_

// A manifest as JSON text, for people, tests and the CLI (manifest_wire.h is what members send). docs/manifest.md lists
// the fields.

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

// The inverse: ParseManifest(ManifestToJson(m)) equals m. Strides are written only where not row-major.
std::string ManifestToJson(const Manifest& manifest);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_MANIFEST_JSON_H_
