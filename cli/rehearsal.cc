#include "cli/rehearsal.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/pattern.h"
#include "loader/publisher.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr size_t kGuardBytes = 64;
constexpr absl::Duration kPatience = absl::Seconds(60);

// The memory of one rank's buffers: one block for each storage, or for each buffer that names none.
class RankMemory {
 public:
  RankMemory(const std::vector<Buffer>& buffers, int64_t rank) {
    for (const Buffer& b : buffers) {
      if (b.rank != rank) continue;
      std::vector<std::byte>& block = blocks_[Key(b)];
      block.resize(std::max(block.size(), kGuardBytes * 2 + Offset(b) + static_cast<size_t>(SpanBytes(b, b.dtype))),
                   kPoison);
    }
  }

  std::byte* First(const Buffer& b) { return blocks_.at(Key(b)).data() + kGuardBytes + Offset(b); }

  std::vector<std::byte> Bytes(const Buffer& b) {
    const std::byte* first = First(b);
    return {first, first + SpanBytes(b, b.dtype)};
  }
  void SetBytes(const Buffer& b, const std::vector<std::byte>& bytes) {
    std::copy(bytes.begin(), bytes.end(), First(b));  // may be empty
  }
  bool operator==(const RankMemory&) const = default;

 private:
  static std::string Key(const Buffer& b) {
    if (b.storage) return absl::StrCat("storage ", b.storage->id);
    return absl::StrCat("buffer ", b.alias_of ? *b.alias_of : b.name);
  }
  static size_t Offset(const Buffer& b) { return b.storage ? static_cast<size_t>(b.storage->offset_bytes) : 0; }

  std::map<std::string, std::vector<std::byte>> blocks_;
};

// What the rank's memory must hold when the buffers of `part` hold a generation.
void PaintAll(const Manifest& manifest, const std::vector<Buffer>& buffers, int64_t rank, bool inverted,
              RankMemory* memory) {
  const Pattern pattern(manifest, inverted);
  for (const Buffer& b : buffers) {
    if (b.rank != rank) continue;
    std::vector<std::byte> bytes = memory->Bytes(b);
    Paint(manifest, b, pattern, &bytes);
    memory->SetBytes(b, bytes);
  }
}

absl::Status FirstDifference(const std::vector<Buffer>& buffers, int64_t rank, RankMemory* got, RankMemory* wanted) {
  for (const Buffer& b : buffers) {
    if (b.rank != rank) continue;
    const std::vector<std::byte> have = got->Bytes(b), want = wanted->Bytes(b);
    for (Index i = 0; i < SpanElements(b); ++i) {
      if (ElementAt(b.dtype, have, i) == ElementAt(b.dtype, want, i)) continue;
      return Error(ErrorCode::kInternal,
                   absl::StrCat("rank ", rank, ", buffer \"", b.name, "\": element slot ", i, " holds ",
                                ElementAt(b.dtype, have, i), ", not ", ElementAt(b.dtype, want, i)));
    }
  }
  return Error(ErrorCode::kInternal, absl::StrCat("rank ", rank, ": bytes outside of all buffers were written"));
}

}  // namespace

int64_t RehearsalBytes(const Manifest& manifest) {
  int64_t total = 0;
  // Of a source: its memory and two slots. Of a destination: its memory, the shadow, what is wanted, and a dump.
  auto add = [&](const std::vector<Buffer>& buffers, int copies) {
    for (const Buffer& b : buffers) {
      int64_t bytes = SpanBytes(b, b.dtype);
      if (__builtin_add_overflow(bytes, b.storage ? b.storage->offset_bytes : 0, &bytes) ||
          __builtin_mul_overflow(bytes, copies, &bytes) || __builtin_add_overflow(total, bytes, &total)) {
        total = std::numeric_limits<int64_t>::max();
        return;
      }
    }
  };
  add(manifest.source, 3);
  if (total < std::numeric_limits<int64_t>::max()) add(manifest.destination, 4);
  return total;
}

absl::Status CheckSourcesAgree(const Manifest& manifest) {
  std::map<std::string, Dtype> dtypes;
  for (const TensorSpec& t : manifest.tensors) dtypes[t.name] = t.dtype;
  for (const Buffer& b : manifest.source) {
    for (const Piece& p : b.pieces) {
      if (p.kind != PieceKind::kTensor) continue;
      const Dtype to = dtypes.at(p.tensor);
      if (Widens(b.dtype, to) || Widens(to, b.dtype)) continue;
      return Error(ErrorCode::kDtypeMismatch,
                   absl::StrCat("source rank ", b.rank, ", buffer \"", b.name, "\", tensor \"", p.tensor,
                                "\": ", DtypeName(b.dtype), " and ", DtypeName(to),
                                " hold different values, so that a rehearsal cannot tell right from wrong; it plans"));
    }
  }
  for (int64_t rank : CastOf(manifest).publishers) {
    RankMemory memory(manifest.source, rank);
    PaintAll(manifest, manifest.source, rank, /*inverted=*/false, &memory);
    const Pattern pattern(manifest, /*inverted=*/false);
    for (const Buffer& b : manifest.source) {
      if (b.rank != rank) continue;
      const std::string tensor = FirstUnlike(manifest, b, pattern, memory.Bytes(b));
      if (tensor.empty()) continue;
      return Error(ErrorCode::kConflict,
                   absl::StrCat("source rank ", rank, ", buffer \"", b.name, "\", tensor \"", tensor,
                                "\": an element stands for other elements too; a rehearsal needs one value for each"));
    }
  }
  return absl::OkStatus();
}

Cast CastOf(const Manifest& manifest) {
  Cast cast;
  std::set<int64_t> sources;
  for (const Buffer& b : manifest.source) sources.insert(b.rank);
  if (sources.empty()) sources.insert(0);
  cast.publishers.assign(sources.begin(), sources.end());
  std::map<int64_t, std::string> engine_of;
  for (const Placement& p : manifest.topology.destination) engine_of[p.rank] = p.engine;
  std::map<std::string, std::set<int64_t>> engines;
  for (const Buffer& b : manifest.destination) engines[engine_of[b.rank]].insert(b.rank);
  for (const auto& [name, ranks] : engines) cast.engines.emplace_back(ranks.begin(), ranks.end());
  return cast;
}

Manifest SourcePart(const Manifest& manifest, int64_t rank) {
  Manifest part;
  part.tensors = manifest.tensors;
  part.ignore = manifest.ignore;
  part.coupled = manifest.coupled;
  for (const Buffer& b : manifest.source) {
    if (b.rank == rank) part.source.push_back(b);
  }
  part.topology.source = {Placement{rank, "", "", ""}};
  for (const Placement& p : manifest.topology.source) {
    if (p.rank == rank) part.topology.source[0] = p;
  }
  return part;
}

Manifest DestinationPart(const Manifest& manifest, int64_t rank) {
  Manifest part;
  for (const Buffer& b : manifest.destination) {
    if (b.rank == rank) part.destination.push_back(b);
  }
  part.topology.destination = {Placement{rank, "", "", ""}};
  for (const Placement& p : manifest.topology.destination) {
    if (p.rank == rank) part.topology.destination[0] = p;
  }
  return part;
}

absl::Status RehearsePublisher(const Manifest& manifest, int publisher, const JobOptions& job,
                               std::unique_ptr<Transport> transport) {
  const int64_t rank = CastOf(manifest).publishers[publisher];
  RankMemory memory(manifest.source, rank);
  std::map<std::string, const std::byte*> first;
  for (const Buffer& b : manifest.source) {
    if (b.rank == rank) first[b.name] = memory.First(b);
  }
  PublisherOptions options;
  options.job = job;
  options.rank = publisher;
  HR_ASSIGN_OR_RETURN(auto joined, Publisher::Join(options, SourcePart(manifest, rank), first, std::move(transport)));
  for (uint64_t g = 1; g <= kRehearsedGenerations; ++g) {
    PaintAll(manifest, manifest.source, rank, /*inverted=*/g < kRehearsedGenerations, &memory);
    HR_RETURN_IF_ERROR(joined->Publish(g, absl::Now() + kPatience));
  }
  HR_RETURN_IF_ERROR(joined->AwaitCommit(kRehearsedGenerations, absl::Now() + kPatience));
  return joined->Close(absl::Now() + kPatience);
}

absl::StatusOr<ReceiverReport> RehearseReceiver(const Manifest& manifest, int engine, int worker, const JobOptions& job,
                                                std::unique_ptr<Transport> transport) {
  const int64_t rank = CastOf(manifest).engines[engine][worker];
  RankMemory memory(manifest.destination, rank);
  std::map<std::string, BufferMemory> live;
  for (const Buffer& b : manifest.destination) {
    if (b.rank == rank) live[b.name] = {memory.First(b), b.shape, b.strides};
  }
  ReceiverOptions options;
  options.job = job;
  options.engine = engine;
  options.worker = worker;
  HR_ASSIGN_OR_RETURN(auto joined,
                      Receiver::Join(options, DestinationPart(manifest, rank), live, std::move(transport)));
  RankMemory wanted(manifest.destination, rank);
  for (uint64_t g = 1; g <= kRehearsedGenerations; ++g) {
    HR_ASSIGN_OR_RETURN(uint64_t next, joined->NextGeneration(absl::Now() + kPatience));
    HR_RETURN_IF_ERROR(joined->Stage(next, live));
    HR_RETURN_IF_ERROR(joined->Commit(next));
    PaintAll(manifest, manifest.destination, rank, /*inverted=*/next < kRehearsedGenerations, &wanted);
    if (!(memory == wanted)) return FirstDifference(manifest.destination, rank, &memory, &wanted);
  }
  ReceiverReport report;
  report.stats = joined->stats();
  for (const Buffer& b : manifest.destination) {
    if (b.rank == rank) report.buffers.push_back({rank, b.name, memory.Bytes(b)});
  }
  HR_RETURN_IF_ERROR(joined->Close(absl::Now() + kPatience));
  return report;
}

}  // namespace headrace
