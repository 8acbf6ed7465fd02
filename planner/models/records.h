#ifndef HEADRACE_PLANNER_MODELS_RECORDS_H_
#define HEADRACE_PLANNER_MODELS_RECORDS_H_

// Models by name: records of public ones (data/records.json, part of the program) and of users. A record is a family
// and a few numbers; docs/models.md lists them. Pure and thread-safe.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/models/model.h"

namespace headrace {

// The records' names, sorted.
std::vector<std::string> ModelNames();

// invalid_option  no record of that name; the message lists them
absl::StatusOr<Model> ModelNamed(const std::string& name);

// A record as JSON text, {"family": ..., "arch": {...}}; `name` becomes the model's. "same_arch" in the place of "arch"
// names a record whose numbers it has.
//   malformed       not JSON, a field that is missing, unknown or of another type
//   out_of_bounds   a number that is too small or too large; a model of 2^60 bytes or more
//   invalid_option  a family, quantization or record that there is not; numbers that do not go together
// The message names the field.
absl::StatusOr<Model> ParseModelRecord(const std::string& name, absl::string_view json);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_MODELS_RECORDS_H_
