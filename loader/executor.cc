#include "loader/executor.h"

#include "absl/strings/str_cat.h"
#include "loader/mapped_executor.h"
#include "loader/streamed_executor.h"
#include "planner/status.h"

namespace headrace {

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(const Manifest& manifest, const Plan& plan,
                                                           Transport* transport, std::vector<IncomingEdge> edges,
                                                           uint64_t incarnation, const ExecutorOptions& options,
                                                           CancelledChunks* cancelled, BoxWork* work) {
  if (transport->capabilities().map) {
    return std::make_unique<MappedExecutor>(manifest, plan, std::move(edges), incarnation, work);
  }
  return StreamedExecutor::Create(manifest, plan, transport, std::move(edges), options, cancelled, work);
}

std::optional<int64_t> FirstOf(const std::vector<int64_t>& chain, const std::set<int64_t>& absent) {
  for (int64_t rank : chain) {
    if (!absent.contains(rank)) return rank;
  }
  return std::nullopt;
}

absl::Status Executor::Run(Request request, TransferStats* stats) {
  Begin(std::move(request));
  std::optional<absl::Status> over;
  while (!over) over = Step(absl::Milliseconds(20));
  *stats = stats_;
  return *over;
}

absl::Status Executor::CheckSum(const IncomingEdge& edge, size_t copy, uint64_t wanted, uint64_t got) const {
  if (wanted == got) return absl::OkStatus();
  const Copy& c = plan_.copies[copy];
  const Buffer& destination = manifest_.destination[c.destination];
  return About(Error(ErrorCode::kVerificationFailed,
                     absl::StrCat("tensor \"", manifest_.tensors[c.tensor].name, "\" from ", edge.name, ", buffer \"",
                                  manifest_.source[c.source].name, "\" to rank ", destination.rank, ", buffer \"",
                                  destination.name,
                                  "\": the bytes that arrived are "
                                  "not those that were published. The generation was not committed")),
               {manifest_.tensors[c.tensor].name, destination.name, destination.rank, edge.name});
}

void Executor::CountCopy(size_t copy) {
  ++stats_.copies;
  stats_.bytes += plan_.copies[copy].bytes();
}

}  // namespace headrace
