#include "loader/session/merkle.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "planner/digest.h"

namespace headrace {
namespace {

void AppendLittleEndian(int32_t value, std::string* out) {
  for (int shift = 0; shift < 32; shift += 8)
    out->push_back(static_cast<char>((static_cast<uint32_t>(value) >> shift) & 0xFF));
}

}  // namespace

std::string MerkleRoot(absl::Span<const proto::Edge> edges) {
  std::vector<const proto::Edge*> sorted;
  for (const proto::Edge& edge : edges) sorted.push_back(&edge);
  std::sort(sorted.begin(), sorted.end(), [](const proto::Edge* a, const proto::Edge* b) {
    return std::make_tuple(a->publisher(), a->engine(), a->worker()) <
           std::make_tuple(b->publisher(), b->engine(), b->worker());
  });
  std::vector<std::string> leaves;
  for (const proto::Edge* edge : sorted) {
    std::string& leaf = leaves.emplace_back();
    AppendLittleEndian(edge->publisher(), &leaf);
    AppendLittleEndian(edge->engine(), &leaf);
    AppendLittleEndian(edge->worker(), &leaf);
    leaf += edge->digest();
  }
  return MerkleRoot(leaves);
}

}  // namespace headrace
