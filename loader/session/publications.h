#ifndef HEADRACE_LOADER_SESSION_PUBLICATIONS_H_
#define HEADRACE_LOADER_SESSION_PUBLICATIONS_H_

// Which publisher of an epoch holds which generation in which slot, and which receiver may still read it: the
// coordinator's own record, against which every Published is checked. A generation that all publishers hold is
// complete, unless their replicas differ: then it is void.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "loader/session/types.h"

namespace headrace {

class Publications {
 public:
  // Once, before anything else: what each publisher of the epoch (by rank) holds, the receivers, and the slots of each
  // publisher. Held numbers that cannot be are left out. Complete is what all hold, and of which no replicas differ.
  void Start(const std::map<int, proto::Planned>& publishers, const std::vector<MemberKey>& receivers, int slots);

  // kGenerationNotGrowing, naming both numbers. kOutOfBounds: no such slot. kMalformed: not as many sums as replicas.
  // kGenerationChanged: the slot's last generation is still leased, by the receivers named. True when `published`
  // completes its generation, which is newest() then.
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
  // A generation that can never be complete, since a publisher has published a newer one without it (OK), or since
  // replicas differ: kReplicaDivergence, naming the tensors and the publishers.
  struct Void {
    uint64_t generation = 0;
    absl::Status why;
  };
  // Each once.
  std::vector<Void> TakeVoid();
  // Publishers that lack the oldest generation that is published but not complete; empty when there is none.
  std::vector<MemberKey> Lagging() const;

 private:
  struct Publisher {
    uint64_t last = 0;
    std::vector<uint64_t> slots;  // the generation in each, 0: none
    int replicas = 0;             // sums of each generation
  };
  // One publisher's part of a generation.
  struct Part {
    int slot = 0;
    std::vector<uint64_t> sums;
  };
  using Parts = std::map<int, Part>;  // by publisher
  // Bytes that are offered more than once.
  struct Replicated {
    std::string tensor;
    std::vector<std::pair<int, int>> sums;  // publisher, and which of its sums
  };

  void FindVoid();
  // Nobody offers it any more.
  void GiveUp(uint64_t generation, const Parts& parts, const absl::Status& why);
  // All publishers hold it, their replicas are equal, and it is the newest.
  bool Complete(uint64_t generation);
  absl::Status CompareReplicas(uint64_t generation, const Parts& parts) const;

  std::map<int, Publisher> publishers_;
  std::map<uint64_t, Replicated> replicas_;  // by id
  std::map<MemberKey, uint64_t> released_;   // each receiver's newest release
  std::map<uint64_t, Parts> incomplete_;     // by generation
  std::map<int, int> newest_slots_;          // publisher -> slot
  uint64_t newest_ = 0;
  std::vector<Void> void_;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_SESSION_PUBLICATIONS_H_
