#ifndef HEADRACE_LOADER_TRANSPORT_SECRET_H_
#define HEADRACE_LOADER_TRANSPORT_SECRET_H_

// What an endpoint's address carries that nobody can guess: who presents it was given the address.

#include <array>
#include <cstddef>

#include "absl/status/status.h"

namespace headrace {

using Cookie = std::array<unsigned char, 32>;

// Bytes of the kernel's random number generator; at most 256. kTransport when it gives none.
absl::Status FillRandom(void* bytes, size_t size);

// Takes the same time wherever the two differ.
bool EqualInConstantTime(const Cookie& a, const Cookie& b);

}  // namespace headrace

#endif  // HEADRACE_LOADER_TRANSPORT_SECRET_H_
