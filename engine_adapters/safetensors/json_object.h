#ifndef HEADRACE_ENGINE_ADAPTERS_SAFETENSORS_JSON_OBJECT_H_
#define HEADRACE_ENGINE_ADAPTERS_SAFETENSORS_JSON_OBJECT_H_

// JSON out of files that nobody vouches for. Pure and thread-safe.

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace headrace {

// The most bytes that are read as JSON: the limit of the safetensors format for its header
// (https://github.com/huggingface/safetensors, safetensors/src/tensor.rs, MAX_HEADER_SIZE), kept for its index and the
// model's config too.
inline constexpr size_t kMaxJsonBytes = 100'000'000;

// The object that `text` holds, with nothing but white space beside it. `where` names the text in messages.
//   io  more than kMaxJsonBytes, not JSON, not an object, a key twice in one object, nesting over 64 levels
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, absl::string_view where);

// `name` in double quotes, control characters escaped: names come out of files too.
std::string Quoted(absl::string_view name);

}  // namespace headrace

#endif  // HEADRACE_ENGINE_ADAPTERS_SAFETENSORS_JSON_OBJECT_H_
