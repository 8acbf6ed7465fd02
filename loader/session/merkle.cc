#include "loader/session/merkle.h"

#include <openssl/evp.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace headrace {
namespace {

std::string Sha256(const std::string& text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_Digest(text.data(), text.size(), digest, &size, EVP_sha256(), nullptr);
  return std::string(reinterpret_cast<char*>(digest), size);
}

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
  std::vector<std::string> level;
  for (const proto::Edge* edge : sorted) {
    std::string leaf(1, '\0');
    AppendLittleEndian(edge->publisher(), &leaf);
    AppendLittleEndian(edge->engine(), &leaf);
    AppendLittleEndian(edge->worker(), &leaf);
    leaf += edge->digest();
    level.push_back(Sha256(leaf));
  }
  if (level.empty()) return Sha256("");
  while (level.size() > 1) {
    std::vector<std::string> above;
    for (size_t i = 0; i + 1 < level.size(); i += 2) above.push_back(Sha256("\x01" + level[i] + level[i + 1]));
    if (level.size() % 2 == 1) above.push_back(std::move(level.back()));
    level = std::move(above);
  }
  return level.front();
}

}  // namespace headrace
