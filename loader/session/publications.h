#ifndef HEADRACE_LOADER_SESSION_PUBLICATIONS_H_
#define HEADRACE_LOADER_SESSION_PUBLICATIONS_H_

// Which publisher of an epoch holds which generation in which slot, and which receiver may still read it: the
// coordinator's own record, against which every Published is checked.

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
  // Once, before anything else: what each publisher of the epoch (by rank) holds, the receivers, and the slots of each
  // publisher. Held numbers that cannot be are left out.
  void Start(const std::map<int, proto::Planned>& publishers, const std::vector<MemberKey>& receivers, int slots);

  // kGenerationNotGrowing, naming both numbers. kOutOfBounds: no such slot. kGenerationChanged: the slot's last
  // generation is still leased, by the receivers named. True when `published` completes its generation, which is
  // newest() then.
  absl::StatusOr<bool> Publish(int publisher, const proto::Published& published);
  // The publisher holds it no more. Whether it was complete, so that it was announced.
  bool Withdraw(int publisher, uint64_t generation);
  // kMalformed: the generation is not complete. Releasing twice is no error.
  absl::Status Release(const MemberKey& receiver, uint64_t generation);
  // The receiver left: it holds nothing.
  void Leave(const MemberKey& receiver) { released_.erase(receiver); }

  // The newest generation that every publisher of the epoch holds; 0: none.
  uint64_t newest() const { return newest_; }
  // newest(), where it is.
  proto::Announced Announcement() const;
  // Generations that can never be complete, since a publisher has published a newer one without it: each once.
  std::vector<uint64_t> TakeVoid();
  // Publishers that lack the oldest generation that is published but not complete; empty when there is none.
  std::vector<MemberKey> Lagging() const;

 private:
  struct Publisher {
    uint64_t last = 0;
    std::vector<uint64_t> slots;  // the generation in each, 0: none
  };

  void FindVoid();
  // All publishers hold it, and it is the newest.
  bool Complete(uint64_t generation);

  std::map<int, Publisher> publishers_;
  std::map<MemberKey, uint64_t> released_;             // each receiver's newest release
  std::map<uint64_t, std::map<int, int>> incomplete_;  // generation -> publisher -> slot
  std::map<int, int> newest_slots_;                    // publisher -> slot
  uint64_t newest_ = 0;
  std::vector<uint64_t> void_;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_SESSION_PUBLICATIONS_H_
