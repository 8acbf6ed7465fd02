#include "absl/strings/str_cat.h"
#include "loader/slot.h"
#include "tests/simulation/checks.h"

namespace headrace::simulation {
namespace {

void AtMost(Job& job, const Seat* seat, const char* what, int64_t is, int64_t most) {
  if (is > most)
    job.world.Violate("memory", absl::StrCat(seat == nullptr ? "the fabric" : NameOf(seat->key), " has ", is, " ", what,
                                             ", at most ", most, " are right"));
}

int64_t Members(const Job& job) {
  int64_t members = static_cast<int64_t>(job.trainers.size());
  for (const auto& engine : job.engines) members += static_cast<int64_t>(engine.workers.size());
  return members;
}

}  // namespace

void CheckTrainerMemory(Job& job, const Seat& seat, const TrainerUse& use) {
  AtMost(job, &seat, "bytes of staging", use.staging_bytes, job.options.staging_bytes);
  AtMost(job, &seat, "slots", use.slots, kSnapshotSlots);
  // The planned one, the ready one, the one that is written in and the one that is sent from.
  AtMost(job, &seat, "epochs' sums", use.epochs, 4);
  AtMost(job, &seat, "orders", use.orders, 16 + 8 * Members(job));
}

void CheckWorkerMemory(Job& job, const Seat& seat, const WorkerUse& use) {
  AtMost(job, &seat, "bytes of staging", use.staging_bytes, job.options.staging_bytes);
  AtMost(job, &seat, "mappings", use.mappings, (kSnapshotSlots + 1) * static_cast<int64_t>(job.trainers.size()));
  AtMost(job, &seat, "announced generations", use.announced, kSnapshotSlots + 1);
}

void CheckFabricMemory(Job& job) {
  const MemoryUsage usage = job.fabric.Usage();
  const int64_t trainers = static_cast<int64_t>(job.trainers.size()), members = Members(job);
  AtMost(job, nullptr, "endpoints", usage.endpoints, members);
  AtMost(job, nullptr, "regions", usage.regions, (kSnapshotSlots + 4) * trainers);
  // Those of the slots, and the sums of as many epochs.
  AtMost(job, nullptr, "mappings", usage.mappings, (kSnapshotSlots + 4) * trainers * (members - trainers));
  int64_t queued = 0;
  for (const auto& weak : job.channels)
    if (const auto channel = weak.lock()) queued = std::max<int64_t>(queued, static_cast<int64_t>(channel->queued()));
  AtMost(job, nullptr, "control messages on one stream", queued, 2000);
}

}  // namespace headrace::simulation
