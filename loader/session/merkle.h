#ifndef HEADRACE_LOADER_SESSION_MERKLE_H_
#define HEADRACE_LOADER_SESSION_MERKLE_H_

// The digest of a whole plan, which no rank holds: a Merkle tree over the digests of its edges.

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "loader/session/message.pb.h"

namespace headrace {

// 32 bytes. The edges in any order; they are sorted by (publisher, engine, worker).
//   leaf = SHA-256(0x00, publisher, engine, worker as 32-bit little endian, digest)
//   node = SHA-256(0x01, left, right); the last node of an odd level moves up unchanged
//   no edges: SHA-256 of nothing
// The prefixes keep a leaf from being read as a node (RFC 6962, section 2.1).
std::string MerkleRoot(absl::Span<const proto::Edge> edges);

}  // namespace headrace

#endif  // HEADRACE_LOADER_SESSION_MERKLE_H_
