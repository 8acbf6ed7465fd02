#include "planner/digest.h"

#include <openssl/evp.h>

#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace headrace {
namespace {

void AppendLoops(absl::Span<const CopyLoop> loops, std::string* out) {
  for (const CopyLoop& l : loops) {
    absl::StrAppend(out, " ", l.extent, "x", l.source_stride, ",", l.destination_stride, ",", l.position_stride);
  }
}

std::string Quote(absl::string_view name) { return absl::StrCat("\"", absl::CEscape(name), "\""); }

void AppendStream(const Manifest& manifest, const Plan& plan, int index, std::string* out) {
  const Stream& stream = plan.streams[index];
  absl::StrAppend(out, "stream ", index, ": ", stream.source_rank);
  for (int64_t rank : stream.chain) absl::StrAppend(out, " -> ", rank);
  *out += "\n";
  for (const Part& p : stream.parts) {
    absl::StrAppend(out, "part ", Quote(manifest.tensors[p.tensor].name), " ", Quote(manifest.source[p.source].name),
                    "+", p.source_offset, " @", p.position, " run ", p.run_bytes);
    for (const PartLoop& l : p.loops) absl::StrAppend(out, " ", l.extent, "x", l.source_stride, ",", l.position_stride);
    *out += "\n";
  }
}

}  // namespace

std::string Sha256(absl::string_view bytes) {
  std::string digest(32, '\0');
  unsigned int size = 0;
  // Fails only for an unknown algorithm.
  EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()), &size, EVP_sha256(), nullptr);
  return digest;
}

std::string CanonicalText(const Manifest& manifest, const Plan& plan, const Edge& edge) {
  std::string out = absl::StrCat("edge ", edge.source_rank, " -> ", edge.destination_rank, "\n");
  if (edge.stream >= 0) AppendStream(manifest, plan, edge.stream, &out);
  for (size_t i = edge.first; i < edge.first + edge.count; ++i) {
    const Copy& c = plan.copies[i];
    absl::StrAppend(&out, Quote(manifest.tensors[c.tensor].name), " ", Quote(manifest.source[c.source].name), "+",
                    c.source_offset, " -> ", Quote(manifest.destination[c.destination].name), "+",
                    c.destination_offset);
    absl::StrAppend(&out, " @", c.position, " run ", c.run_bytes);
    AppendLoops(c.loops, &out);
    if (c.part >= 0) absl::StrAppend(&out, " part ", c.part);
    out += "\n";
  }
  return out;
}

std::string CanonicalText(const Manifest& manifest, const Plan& plan) {
  std::string out;
  for (const Edge& edge : plan.edges) out += CanonicalText(manifest, plan, edge);
  for (const ZeroFill& z : plan.zero_fills) {
    const Buffer& b = manifest.destination[z.destination];
    absl::StrAppend(&out, "zero ", b.rank, " ", Quote(b.name), "+", z.destination_offset, " run ", z.run_bytes);
    AppendLoops(z.loops, &out);
    out += "\n";
  }
  return out;
}

std::string EdgeDigest(const Manifest& manifest, const Plan& plan, const Edge& edge) {
  return Sha256(CanonicalText(manifest, plan, edge));
}

std::string MerkleRoot(absl::Span<const std::string> leaves) {
  if (leaves.empty()) return Sha256("");
  std::vector<std::string> level;
  for (const std::string& leaf : leaves) level.push_back(Sha256(std::string(1, '\0') + leaf));
  while (level.size() > 1) {
    std::vector<std::string> up;
    for (size_t i = 0; i + 1 < level.size(); i += 2) up.push_back(Sha256(absl::StrCat("\x01", level[i], level[i + 1])));
    if (level.size() % 2) up.push_back(level.back());
    level = std::move(up);
  }
  return level[0];
}

std::string PlanDigest(const Manifest& manifest, const Plan& plan) {
  std::vector<std::string> leaves;
  for (const Edge& edge : plan.edges) leaves.push_back(EdgeDigest(manifest, plan, edge));
  return MerkleRoot(leaves);
}

}  // namespace headrace
