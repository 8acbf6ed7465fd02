#ifndef HEADRACE_LOADER_OUTLET_H_
#define HEADRACE_LOADER_OUTLET_H_

// How a publisher hands bytes to the receivers that ordered them: in messages (message_outlet.h), or through rings in
// shared memory (ring_outlet.h). Where receivers map its slots it has none. The thread that runs it: sending.h.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "loader/publisher_epoch.h"
#include "loader/session/types.h"
#include "loader/slot.h"

namespace headrace {

// Used by one thread.
class Outlet {
 public:
  struct Order {
    SendToEffect send;
    std::shared_ptr<PublisherEpoch> epoch;
    SourceOf source;  // of the slot
    // Destination ranks that take no part: the first of a chain that does gets what is sent through it.
    std::set<int64_t> absent;
  };

  virtual ~Outlet() = default;
  // An order of another epoch than the last one's drops what that one's receivers ordered.
  virtual void Start(const Order& order) = 0;
  // Drops what the receivers of an engine (none: of all) ordered, or one worker of it.
  virtual void Drop(std::optional<int> engine, std::optional<int> worker) = 0;
  // Goes on with what was ordered, for at most `max_wait`. An error: the bytes cannot be read, and no more is handed
  // over.
  virtual absl::Status Progress(absl::Duration max_wait) = 0;
  // Lets the Progress that waits while nothing is under way, or else the next one that would, return. Any thread.
  virtual void Wake() = 0;
  // What is under way.
  virtual size_t active() const = 0;
  // Whether Progress is to be called also while nothing is.
  virtual bool polled() const = 0;
  // Whether something is still to be read out of this slot.
  virtual bool Reads(int slot) const = 0;
  virtual int64_t peak_staging_bytes() const = 0;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_OUTLET_H_
