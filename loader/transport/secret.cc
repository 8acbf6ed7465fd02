#include "loader/transport/secret.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {

absl::Status FillRandom(void* bytes, size_t size) {
  // Up to 256 bytes come whole.
  ssize_t got;
  do {
    got = getrandom(bytes, size, 0);
  } while (got < 0 && errno == EINTR);
  if (got == static_cast<ssize_t>(size)) return absl::OkStatus();
  return Error(ErrorCode::kTransport, absl::StrCat("no random numbers: getrandom: ", strerror(errno)));
}

bool EqualInConstantTime(const Cookie& a, const Cookie& b) {
  volatile unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference = difference | (a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace headrace
