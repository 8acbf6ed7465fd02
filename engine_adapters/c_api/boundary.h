#ifndef HEADRACE_ENGINE_ADAPTERS_C_API_BOUNDARY_H_
#define HEADRACE_ENGINE_ADAPTERS_C_API_BOUNDARY_H_

// What every function of the C interface does at its edge: statuses become JSON texts, exceptions become statuses.

#include <nlohmann/json.hpp>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace headrace {

// The object of headrace.h; null for OK.
nlohmann::ordered_json ErrorJson(const absl::Status& status);
// The inverse, as far as messages can carry it. kInvalidOption where it is not such an object.
absl::Status ErrorFromJson(absl::string_view text, absl::Status* error);

// A malloc'ed copy for the caller.
char* NewText(absl::string_view text);
// The same of a document; bytes that are not UTF-8 become U+FFFD.
char* NewText(const nlohmann::ordered_json& document);

// Runs `body` and returns its error as a text, NULL for OK. An exception that leaves it is kOutOfMemory (bad_alloc) or
// kInternal.
char* Guard(absl::FunctionRef<absl::Status()> body) noexcept;

}  // namespace headrace

#endif  // HEADRACE_ENGINE_ADAPTERS_C_API_BOUNDARY_H_
