#include "loader/standby.h"

#include <algorithm>
#include <set>

#include "loader/session/types.h"

namespace headrace {

Manifest SourcePartOf(const StandbyOptions& options, const Manifest& part, const Manifest& job) {
  const int64_t rank = MemberKey::Standby(options.engine, options.worker).rank;
  Manifest source;
  std::set<std::string> tensors;
  for (const Buffer& b : part.destination) {
    if (b.alias_of) continue;
    Buffer offered = b;
    offered.rank = rank;
    offered.storage.reset();
    std::erase_if(offered.pieces, [](const Piece& p) { return p.kind != PieceKind::kTensor; });
    if (offered.pieces.empty()) continue;
    for (const Piece& p : offered.pieces) tensors.insert(p.tensor);
    source.source.push_back(std::move(offered));
  }
  for (const TensorSpec& t : job.tensors)
    if (tensors.contains(t.name)) source.tensors.push_back(t);
  for (const auto& coupling : job.coupled)
    if (tensors.contains(coupling.weight) && tensors.contains(coupling.scale)) source.coupled.push_back(coupling);
  Placement placement;
  if (!part.topology.destination.empty()) placement = part.topology.destination[0];
  placement.rank = rank;
  placement.engine.clear();
  source.topology.source = {placement};
  return source;
}

}  // namespace headrace
