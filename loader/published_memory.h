#ifndef HEADRACE_LOADER_PUBLISHED_MEMORY_H_
#define HEADRACE_LOADER_PUBLISHED_MEMORY_H_

// One publisher's buffers: where they are, on the host or on a GPU, and who copies, converts, sums and packs them
// there.
//
// Thread rules: AwaitTrainer from the thread that publishes, packing() for the one that sends, what MeansFor gives for
// one thread at a time; the rest from any.

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "loader/box_work.h"
#include "loader/gpu/gpu_memory.h"
#include "loader/publisher.h"
#include "loader/snapshot.h"
#include "loader/transport/transport.h"
#include "planner/manifest.h"

namespace headrace {

class PublishedMemory {
 public:
  // `part` and `memory` as given to Publisher::Join, whose errors these are. `transport` has the slots and takes the
  // bytes.
  static absl::StatusOr<std::unique_ptr<PublishedMemory>> Create(const PublisherOptions& options, const Manifest& part,
                                                                 std::map<std::string, const std::byte*> memory,
                                                                 const Transport& transport);

  // The first element of each of the rank's buffers, by its index in manifest.source; empty ones may lack.
  // kInvalidOption: there is no memory for one.
  absl::StatusOr<std::map<int, const std::byte*>> Of(const Manifest& manifest, int64_t rank) const;
  // For what Of gave; as long as this lives.
  SnapshotMeans MeansFor(const Manifest& manifest, const std::map<int, const std::byte*>& memory) const;
  // What packs for messages; outlives those that are in flight, as this does.
  BoxWork* packing() const { return packing_ == nullptr ? OnCpu() : packing_.get(); }
  // A slot that copies of a GPU go to; null where none do, or where the driver pins none.
  std::unique_ptr<PinnedMemory> PinSlot(absl::Span<std::byte> slot) const;
  // Waits for the trainer's work on its stream (gpu/gpu_memory.h).
  absl::Status AwaitTrainer(cuda::Stream stream, absl::Time deadline) const;

 private:
  PublishedMemory(const PublisherOptions& options, std::map<std::string, const std::byte*> memory)
      : options_(options), memory_(std::move(memory)) {}
  bool hold() const { return options_.publishing == Publishing::kHold; }
  absl::Status CheckHeld(const Manifest& part, const Transport& transport) const;
  absl::Status CheckSlotsOnGpu(const Manifest& part, const Transport& transport) const;
  absl::Status MakeWork(const Transport& transport);

  const PublisherOptions options_;
  const std::map<std::string, const std::byte*> memory_;
  GpuMemory gpu_memory_;
  bool slots_on_gpu_ = false;
  // Null where nothing is published in the memory of a GPU: neither slots nor weights that are held.
  std::unique_ptr<BoxWork> published_;
  std::unique_ptr<BoxWork> packing_;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_PUBLISHED_MEMORY_H_
