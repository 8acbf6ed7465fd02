// Joining, planning and leaving.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "loader/session/coordinator.h"
#include "loader/session/merkle.h"
#include "planner/status.h"

namespace headrace {

absl::Status Coordinator::CheckHello(const proto::Envelope& message) const {
  const MemberKey key = MemberKey::From(message.from());
  // Identity first, whatever the message is: a stranger learns nothing but that it is at the wrong door.
  if (message.job() != options_.job)
    return Error(ErrorCode::kWrongJob, absl::StrCat("this coordinator serves job \"", options_.job, "\", but ",
                                                    NameOf(key), " is of job \"", message.job(), "\""));
  if (!message.incarnation().empty() && message.incarnation() != options_.incarnation)
    return Error(ErrorCode::kWrongJob,
                 absl::StrCat("this is incarnation \"", options_.incarnation, "\" of job \"", options_.job, "\", but ",
                              NameOf(key), " is of incarnation \"", message.incarnation(), "\""));
  if (!message.has_hello())
    return Error(ErrorCode::kMalformed,
                 absl::StrCat("message ", BodyName(message), " of ", NameOf(key), " came before Hello"));
  if (message.epoch() != 0 && message.epoch() != options_.epoch)
    return Error(ErrorCode::kStaleEpoch,
                 absl::StrCat(NameOf(key), " is of epoch ", message.epoch(), ", this is epoch ", options_.epoch));
  if (phase_ == Phase::kEnded) return status_;
  if (!IsExpected(key)) {
    std::string engines;
    for (int workers : options_.workers) absl::StrAppend(&engines, engines.empty() ? "" : " + ", workers);
    return Error(ErrorCode::kInvalidOption, absl::StrCat(NameOf(key), " is not expected: this epoch has ",
                                                         options_.publishers, " publishers and ", engines, " workers"));
  }
  const auto it = members_.find(key);
  if (it != members_.end())
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat(NameOf(key, message.hello().host(), message.hello().pid()), ": ", Describe(key),
                              it->second.left ? " has left this epoch" : " has joined already"));
  return absl::OkStatus();
}

void Coordinator::HandleHello(ConnectionId connection, const proto::Envelope& message, int64_t now_ns,
                              CoordinatorActions* actions) {
  if (absl::Status status = CheckHello(message); !status.ok()) return Reject(connection, status, actions);
  const MemberKey key = MemberKey::From(message.from());
  connections_[connection] = Connection{key, kNoDeadline};
  Member& member = members_[key];
  member.connection = connection;
  member.host = message.hello().host();
  member.pid = message.hello().pid();
  member.last_heard_ns = now_ns;
  proto::Envelope welcome;
  welcome.mutable_welcome();
  Send(key, std::move(welcome), actions);
}

absl::Status Coordinator::HandleLayout(const MemberKey& from, const proto::Layout& layout, int64_t now_ns,
                                       CoordinatorActions* actions) {
  Member& member = members_.at(from);
  if (member.has_layout) return Error(ErrorCode::kMalformed, absl::StrCat(NameOf(from), " sent a second Layout"));
  if (layout.slots() < 1)
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat(NameOf(from), " has ", layout.slots(), " snapshot slots; at least 1 is needed"));
  // Both sides would otherwise wait for bytes that the other cuts differently.
  for (const auto& [key, other] : members_) {
    if (!other.has_layout) continue;
    const auto differs = [&](absl::string_view option, auto mine, auto theirs) {
      End(Error(ErrorCode::kInvalidOption,
                absl::StrCat(Describe(from), " has ", option, " = ", mine, ", but ", Describe(key), " has ", theirs,
                             "; set the same at all members of the job")),
          now_ns, actions);
      return absl::OkStatus();
    };
    if (layout.transport() != other.layout.transport())
      return differs("transport", layout.transport(), other.layout.transport());
    if (layout.slots() != other.layout.slots()) return differs("slots", layout.slots(), other.layout.slots());
    if (layout.chunk_bytes() != other.layout.chunk_bytes())
      return differs("chunk_bytes", layout.chunk_bytes(), other.layout.chunk_bytes());
    break;  // those that are here agree already
  }
  member.layout = layout;
  member.has_layout = true;
  const std::vector<MemberKey> everyone = Everyone();
  const bool complete = std::all_of(everyone.begin(), everyone.end(), [&](const MemberKey& key) {
    const auto it = members_.find(key);
    return it != members_.end() && it->second.has_layout;
  });
  if (!complete) return absl::OkStatus();
  phase_ = Phase::kPlanning;
  phase_deadline_ns_ = now_ns + options_.timeouts.plan_ns;
  proto::Envelope start;
  std::vector<MemberKey> receivers;
  for (const MemberKey& key : everyone) {
    const Member& from_member = members_.at(key);
    proto::EpochStart::Member* entry = start.mutable_epoch_start()->add_members();
    *entry->mutable_id() = key.ToProto();
    entry->set_host(from_member.host);
    entry->set_pid(from_member.pid);
    *entry->mutable_layout() = from_member.layout;
    if (key.role == proto::RECEIVER) receivers.push_back(key);
  }
  publications_.Start(receivers, layout.slots());
  Broadcast(start, actions);
  return absl::OkStatus();
}

absl::Status Coordinator::HandlePlanned(const MemberKey& from, const proto::Planned& planned, int64_t now_ns,
                                        CoordinatorActions* actions) {
  if (phase_ != Phase::kPlanning)
    return Error(ErrorCode::kMalformed, absl::StrCat(NameOf(from), " sent Planned, but nobody is to plan now"));
  for (const proto::Edge& edge : planned.edges())
    for (const MemberKey& end :
         {MemberKey::Publisher(edge.publisher()), MemberKey::Receiver(edge.engine(), edge.worker())})
      if (!IsExpected(end))
        return Error(ErrorCode::kMalformed,
                     absl::StrCat(NameOf(from), " planned an edge of ", NameOf(end), ", which is not in this epoch"));
  HR_RETURN_IF_ERROR(plans_.Add(from, planned));
  for (const MemberKey& key : Everyone())
    if (!plans_.Has(key)) return absl::OkStatus();
  if (absl::Status status = plans_.Compare(); !status.ok()) {
    End(status, now_ns, actions);
    return absl::OkStatus();
  }
  phase_ = Phase::kReady;
  phase_deadline_ns_ = kNoDeadline;
  root_ = MerkleRoot(plans_.Edges());
  proto::Envelope ready;
  ready.mutable_epoch_ready()->set_root(root_);
  for (int rank = 0; rank < options_.publishers; ++rank) {
    auto* regions = ready.mutable_epoch_ready()->add_regions();
    for (const std::string& key : plans_.RegionKeys(rank)) regions->add_keys(key);
  }
  Broadcast(ready, actions);
  return absl::OkStatus();
}

void Coordinator::HandleBye(const MemberKey& from, int64_t now_ns, CoordinatorActions* actions) {
  Member& member = members_.at(from);
  const bool receiver = from.role == proto::RECEIVER;
  actions->close.push_back(member.connection);
  if (receiver && engines_[from.engine].OwesCommit(from.rank))
    return Lose(from, "left between its engine's decision and its commit", now_ns, actions);
  connections_.erase(member.connection);
  member.left = true;
  if (phase_ != Phase::kReady)
    return End(Error(ErrorCode::kAborted, absl::StrCat(Describe(from), " left before the epoch was ready")), now_ns,
               actions);
  proto::Envelope left;
  *left.mutable_left()->mutable_member() = from.ToProto();
  Broadcast(left, actions);
  if (receiver) {
    publications_.Leave(from);
    for (const EngineVotes::Outcome& outcome : engines_[from.engine].Leave(from.rank))
      SendDecision(from.engine, outcome, actions);
  } else if (publisher_left_.ok()) {
    publisher_left_ = Error(ErrorCode::kAborted, absl::StrCat(Describe(from), " left; no generation can be published"));
  }
  if (std::all_of(members_.begin(), members_.end(), [](const auto& entry) { return entry.second.left; }))
    End(Error(ErrorCode::kAborted, "the epoch is over: all members left"), now_ns, actions);
}

}  // namespace headrace
