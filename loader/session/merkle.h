#ifndef HEADRACE_LOADER_SESSION_MERKLE_H_
#define HEADRACE_LOADER_SESSION_MERKLE_H_

// The digest of a whole plan, which no rank holds: a Merkle tree over the digests of its edges.

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "loader/session/message.pb.h"

namespace headrace {

// 32 bytes. The edges in any order; they are sorted by (publisher, engine, worker).
// The tree is MerkleRoot of planner/digest.h over leaves of publisher, engine and worker as 32-bit little endian
// numbers and the digest.
std::string MerkleRoot(absl::Span<const proto::Edge> edges);

}  // namespace headrace

#endif  // HEADRACE_LOADER_SESSION_MERKLE_H_
