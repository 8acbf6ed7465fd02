#ifndef HEADRACE_LOADER_STAGING_H_
#define HEADRACE_LOADER_STAGING_H_

#include <cstdint>

#include "absl/status/status.h"
#include "loader/transport/transport.h"

namespace headrace {

// Below this, headers would outweigh what they carry.
inline constexpr int64_t kMinChunkBytes = 64;

// Whether chunks of this size fit the transport's messages (else kInvalidOption) and the staging cap (else
// kStagingTooSmall, which names the bytes that are needed).
absl::Status CheckStaging(const Transport& transport, int64_t chunk_bytes, int64_t staging_bytes);

}  // namespace headrace

#endif  // HEADRACE_LOADER_STAGING_H_
