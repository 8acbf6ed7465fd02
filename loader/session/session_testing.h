#ifndef HEADRACE_LOADER_SESSION_SESSION_TESTING_H_
#define HEADRACE_LOADER_SESSION_SESSION_TESTING_H_

// Test only: messages of one job, spelled shortly, and what came out of a machine.

#include <string>
#include <vector>

#include "loader/session/types.h"
#include "planner/status.h"

namespace headrace::testing {

inline constexpr int64_t kSecond = 1'000'000'000;

inline proto::Envelope From(MemberKey from, MemberKey to = MemberKey::Coordinator(), uint64_t epoch = 1) {
  proto::Envelope message;
  message.set_job("job");
  message.set_incarnation("run-1");
  message.set_epoch(epoch);
  *message.mutable_from() = from.ToProto();
  *message.mutable_to() = to.ToProto();
  return message;
}
inline proto::Envelope Hello(MemberKey from, int workers = 0) {
  proto::Envelope message = From(from, MemberKey::Coordinator(), 0);
  message.set_incarnation("");
  message.mutable_hello()->set_host("a");
  message.mutable_hello()->set_pid(70 + from.rank + 10 * from.engine);
  message.mutable_hello()->set_workers(workers);
  return message;
}
inline proto::Layout LayoutOf(int slots = 2, const std::string& transport = "host", int64_t chunk_bytes = 8192) {
  proto::Layout layout;
  layout.set_manifest_fragment("fragment");
  layout.set_transport(transport);
  layout.set_slots(slots);
  layout.set_chunk_bytes(chunk_bytes);
  return layout;
}
inline proto::Edge EdgeOf(int publisher, int engine, int worker, const std::string& digest = "d") {
  proto::Edge edge;
  edge.set_publisher(publisher);
  edge.set_engine(engine);
  edge.set_worker(worker);
  edge.set_digest(digest);
  return edge;
}
inline proto::Envelope VoteOf(MemberKey from, uint64_t generation, bool ok = true) {
  proto::Envelope message = From(from);
  message.mutable_vote()->set_generation(generation);
  if (!ok) {
    message.mutable_vote()->mutable_why_not()->set_code("verification_failed");
    message.mutable_vote()->mutable_why_not()->set_message("tile 3");
  }
  return message;
}
inline proto::Envelope PublishedOf(int rank, uint64_t generation, int slot) {
  proto::Envelope message = From(MemberKey::Publisher(rank));
  message.mutable_published()->set_generation(generation);
  message.mutable_published()->set_slot(slot);
  return message;
}

inline void AddSlot(proto::Envelope* announced, int publisher, int slot) {
  proto::Announced::Slot* of = announced->mutable_announced()->add_slots();
  of->set_publisher(publisher);
  of->set_slot(slot);
}

using Edges = std::vector<proto::Edge>;

// The effects of one kind.
template <typename Effect>
std::vector<Effect> Effects(const MemberActions& actions) {
  std::vector<Effect> found;
  for (const MemberEffect& effect : actions.effects)
    if (const Effect* e = std::get_if<Effect>(&effect)) found.push_back(*e);
  return found;
}

}  // namespace headrace::testing

#endif  // HEADRACE_LOADER_SESSION_SESSION_TESTING_H_
