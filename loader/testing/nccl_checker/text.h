#ifndef HEADRACE_LOADER_TESTING_NCCL_CHECKER_TEXT_H_
#define HEADRACE_LOADER_TESTING_NCCL_CHECKER_TEXT_H_

// Text of parts one behind the other. The checker uses nothing but the standard library: it is loaded beside any.

#include <sstream>
#include <string>

namespace headrace::nccl_checker {

template <typename... Parts>
std::string Text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace headrace::nccl_checker

#endif  // HEADRACE_LOADER_TESTING_NCCL_CHECKER_TEXT_H_
