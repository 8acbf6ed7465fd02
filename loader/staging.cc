#include "loader/staging.h"

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {

absl::Status CheckStaging(const Transport& transport, int64_t chunk_bytes, int64_t staging_bytes) {
  const int64_t most = transport.capabilities().max_message_bytes;
  if (chunk_bytes < kMinChunkBytes || chunk_bytes > most) {
    return Error(ErrorCode::kInvalidOption, absl::StrCat("chunks of ", chunk_bytes, " bytes; ", transport.name(),
                                                         " takes ", kMinChunkBytes, " to ", most));
  }
  if (staging_bytes < chunk_bytes) {
    return Error(ErrorCode::kStagingTooSmall, absl::StrCat("the staging cap is ", staging_bytes,
                                                           " bytes; one chunk of ", chunk_bytes, " bytes is needed"));
  }
  return absl::OkStatus();
}

}  // namespace headrace
