#ifndef HEADRACE_PLANNER_DIGEST_H_
#define HEADRACE_PLANNER_DIGEST_H_

// A plan's canonical text and its seal. Both ends of an edge compare its digest before a byte moves; the coordinator
// keeps the Merkle root over all edges, since no rank needs the whole plan.

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "planner/plan.h"

namespace headrace {

// SHA-256 (FIPS 180-4), 32 bytes.
std::string Sha256(absl::string_view bytes);

// One line per copy of an edge:
//   TENSOR SOURCE_BUFFER+OFFSET -> DESTINATION_BUFFER+OFFSET @POSITION run BYTES
//   [EXTENTxSOURCE,DESTINATION,POSITION]...
// with names quoted, under a heading line "edge SOURCE_RANK -> DESTINATION_RANK". Numbers are decimal bytes. On an edge
// of a stream the whole stream comes before the copies, so that all edges of a chain seal it, and each copy's line ends
// in " part INDEX":
//   stream INDEX: SOURCE_RANK -> RANK -> RANK...
//   part TENSOR SOURCE_BUFFER+OFFSET @POSITION run BYTES [EXTENTxSOURCE,POSITION]...
std::string CanonicalText(const Manifest& manifest, const Plan& plan, const Edge& edge);
// All edges, then one "zero" line per fill.
std::string CanonicalText(const Manifest& manifest, const Plan& plan);

// SHA-256 of the edge's canonical text.
std::string EdgeDigest(const Manifest& manifest, const Plan& plan, const Edge& edge);

// The root of a binary Merkle tree over the leaves in their order: leaves are hashed with prefix 0x00, pairs with 0x01,
// an odd last node moves up (RFC 6962, section 2.1, has the same prefixes and, for powers of two, the same shape; they
// keep a leaf from being read as a node). SHA-256 of nothing without leaves.
std::string MerkleRoot(absl::Span<const std::string> leaves);

// The Merkle root over the plan's edges: "the plan's digest".
std::string PlanDigest(const Manifest& manifest, const Plan& plan);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_DIGEST_H_
