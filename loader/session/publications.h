#ifndef HEADRACE_LOADER_SESSION_PUBLICATIONS_H_
#define HEADRACE_LOADER_SESSION_PUBLICATIONS_H_

// Which publisher holds which generation in which slot, and which receiver may still read it: the coordinator's own
// record, against which every Published is checked.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "loader/session/types.h"

namespace headrace {

class Publications {
 public:
  explicit Publications(int publishers) : publishers_(publishers) {}

  // Once, before anything else: the receivers of the epoch and the slots of each publisher.
  void Start(const std::vector<MemberKey>& receivers, int slots);

  // kGenerationNotGrowing, naming both numbers. kOutOfBounds: no such slot. kGenerationChanged: the slot's last
  // generation is still leased, by the receivers named. Otherwise the announcement, when `published` completes its
  // generation.
  absl::StatusOr<std::optional<proto::Announced>> Publish(int publisher, const proto::Published& published);
  // kMalformed: the generation was never announced. Releasing twice is no error.
  absl::Status Release(const MemberKey& receiver, uint64_t generation);
  // The receiver left: it holds nothing.
  void Leave(const MemberKey& receiver) { released_.erase(receiver); }

  uint64_t last_announced() const { return last_announced_; }
  // Publishers that lack the oldest generation that is published but not announced; empty when there is none.
  std::vector<MemberKey> Lagging() const;

 private:
  struct Publisher {
    uint64_t last = 0;
    std::vector<uint64_t> slots;  // the generation in each, 0: none
  };

  std::vector<Publisher> publishers_;
  std::map<MemberKey, uint64_t> released_;             // each receiver's newest release
  std::map<uint64_t, std::map<int, int>> incomplete_;  // generation -> publisher -> slot
  uint64_t last_announced_ = 0;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_SESSION_PUBLICATIONS_H_
