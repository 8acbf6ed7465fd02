#ifndef HEADRACE_PLANNER_UTF8_H_
#define HEADRACE_PLANNER_UTF8_H_

#include "absl/strings/string_view.h"

namespace headrace {

// Whether the text is UTF-8 (RFC 3629): no overlong forms, no surrogates. Names from manifests go into messages and
// JSON, which must be.
bool IsUtf8(absl::string_view text);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_UTF8_H_
