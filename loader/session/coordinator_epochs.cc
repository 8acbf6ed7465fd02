// From one membership to the next.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "loader/session/coordinator.h"
#include "loader/session/merkle.h"
#include "planner/status.h"

namespace headrace {

void Coordinator::Ask(Change change, int64_t now_ns) {
  if (phase_ == Phase::kEnded) return;
  if (change_ == Change::kNone) change_asked_ns_ = now_ns;
  // What is lost counts from now: it may have waited for engines that are quiet.
  if (change == Change::kLost && change_ != Change::kLost) change_asked_ns_ = now_ns;
  change_ = std::max(change_, change);
}

int64_t Coordinator::ChangeDue() const {
  if (change_ == Change::kNone || phase_ == Phase::kEnded) return kNoDeadline;
  bool committing = false, quiet = true, idle = true;
  const bool publisher_comes = PublisherComes();
  for (const auto& [_, engine] : engines_) {
    committing |= engine.committing();
    quiet &= engine.quiet();
    idle &= engine.idle();
  }
  // Whoever comes while others plan would have them begin anew, one after the other.
  if (phase_ == Phase::kPlanning && change_ == Change::kCame) return kNoDeadline;
  // No engine works in an epoch that is being planned or cannot be.
  if (phase_ != Phase::kReady) return change_asked_ns_;
  switch (change_) {
    case Change::kLost:
      // All bytes of a generation that commits are there; those who wait for their peers' commits go on.
      return committing ? change_asked_ns_ + options_.timeouts.heartbeat_timeout_ns : change_asked_ns_;
    case Change::kLeft:
    case Change::kCame:
      // Whoever reads would have to begin anew, and what a publisher that comes does not hold is lost. An engine that
      // nobody drives holds up nobody for ever.
      if (idle && (!publisher_comes || publications_.Lagging().empty())) return change_asked_ns_;
      return quiet ? change_asked_ns_ + options_.timeouts.decision_ns : kNoDeadline;
    case Change::kNone:
      break;
  }
  return kNoDeadline;
}

bool Coordinator::AllPublishersHere() const {
  for (int rank = 0; rank < options_.publishers; ++rank) {
    const auto it = members_.find(MemberKey::Publisher(rank));
    if (it == members_.end() || !it->second.has_layout) return false;
  }
  return true;
}

bool Coordinator::PublisherComes() const {
  return std::any_of(members_.begin(), members_.end(), [](const auto& entry) {
    return entry.first.is_trainer() && entry.second.has_layout && !entry.second.in_epoch;
  });
}

void Coordinator::ChangeIfDue(int64_t now_ns, CoordinatorActions* actions) {
  if (ChangeDue() <= now_ns) StartEpoch(now_ns, actions);
}

bool Coordinator::EngineComplete(int engine) const {
  const int workers = WorkersOf(engine);
  for (int worker = 0; worker < workers; ++worker) {
    const auto it = members_.find(MemberKey::Receiver(engine, worker));
    if (it == members_.end() || !it->second.has_layout) return false;
  }
  return workers > 0;
}

std::set<MemberKey> Coordinator::Sources() const {
  std::map<int, std::set<uint64_t>> held;  // by complete engine: what each worker's standby holds, 0: none is there
  uint64_t newest = 0;
  for (const auto& [key, member] : members_) {
    if (key.is_trainer() && member.has_layout) return {};
    if (key.role != proto::RECEIVER || !EngineComplete(key.engine)) continue;
    const auto standby = members_.find(MemberKey::Standby(key.engine, key.rank));
    const bool there = standby != members_.end() && standby->second.has_layout;
    held[key.engine].insert(there ? standby->second.holds : 0);
  }
  for (const auto& [_, generations] : held)
    if (generations.size() == 1) newest = std::max(newest, *generations.begin());
  std::set<MemberKey> sources;
  bool lacking = false;
  for (const auto& [engine, generations] : held) {
    const bool holds = generations == std::set<uint64_t>{newest};
    lacking |= !holds && engine_committed(engine) <= newest;
    for (int worker = 0; holds && worker < WorkersOf(engine); ++worker)
      sources.insert(MemberKey::Standby(engine, worker));
  }
  return newest != 0 && lacking ? sources : std::set<MemberKey>();
}

std::vector<MemberKey> Coordinator::NextMembers() const {
  const std::set<MemberKey> sources = Sources();
  std::vector<MemberKey> next;
  for (const auto& [key, member] : members_) {
    if (!member.has_layout) continue;
    const bool takes_part = key.is_trainer() || (key.is_standby() ? sources.contains(key) : EngineComplete(key.engine));
    if (takes_part) next.push_back(key);
  }
  return next;
}

void Coordinator::StartEpoch(int64_t now_ns, CoordinatorActions* actions) {
  change_ = Change::kNone;
  std::vector<MemberKey> next = NextMembers();
  if (next.empty() || next.front().role != proto::PUBLISHER)
    return Suspend(Error(ErrorCode::kAborted, "no publisher is there"), now_ns, actions);
  if (numbered_) ++epoch_;
  numbered_ = true;
  epoch_ = std::max(epoch_, newest_epoch_heard_ + 1);
  phase_ = Phase::kPlanning;
  phase_deadline_ns_ = now_ns + options_.timeouts.plan_ns;
  plans_ = PlanTable();
  planned_.clear();
  engines_.clear();
  publications_ = Publications();
  std::vector<MemberKey> idle;  // standbys that are sources no more
  for (auto& [key, member] : members_) {
    if (key.is_standby() && member.in_epoch && std::find(next.begin(), next.end(), key) == next.end())
      idle.push_back(key);
    member.in_epoch = false;
  }
  proto::Envelope start;
  start.mutable_epoch_start()->set_policy(options_.policy);
  for (const MemberKey& key : next) {
    Member& member = members_.at(key);
    member.in_epoch = true;
    proto::EpochStart::Member* entry = start.mutable_epoch_start()->add_members();
    *entry->mutable_id() = key.ToProto();
    entry->set_host(member.host);
    entry->set_pid(member.pid);
    *entry->mutable_layout() = member.layout;
  }
  Broadcast(start, actions);
  for (const MemberKey& key : idle)
    Send(key, SuspendedMessage(Error(ErrorCode::kAborted, "nobody needs it as a source"), /*engine_broken=*/false),
         actions);
  // Those whose engine lacks a worker that left in order.
  for (const auto& [key, member] : members_) {
    if (member.in_epoch || !member.settled || !broken_.contains(key.engine)) continue;
    Send(key, SuspendedMessage(broken_.at(key.engine), /*engine_broken=*/true), actions);
  }
}

proto::Envelope Coordinator::SuspendedMessage(const absl::Status& why, bool engine_broken) {
  proto::Envelope message;
  *message.mutable_suspended()->mutable_why() = ToFault(why);
  message.mutable_suspended()->set_engine_broken(engine_broken);
  return message;
}

void Coordinator::Suspend(const absl::Status& why, int64_t now_ns, CoordinatorActions* actions) {
  for (int rank = 0; rank < options_.publishers; ++rank) {
    const MemberKey key = MemberKey::Publisher(rank);
    if (!members_.contains(key) && !missing_.contains(key))
      missing_[key] = Error(ErrorCode::kPeerLost, absl::StrCat(NameOf(key), " is not there"));
  }
  std::vector<std::string> who;
  bool lost = false;
  absl::Status first;
  for (const auto& [key, status] : missing_) {
    who.push_back(std::string(status.message()));
    if (HasCode(status, ErrorCode::kPeerLost) && !lost) {
      lost = true;
      first = status;
    }
  }
  const std::string text = who.empty() ? std::string(why.message())
                                       : absl::StrCat(absl::StrJoin(who, "; "), "; without it: ", why.message());
  suspended_ = lost ? About(Error(ErrorCode::kPeerLost, text),
                            {SubjectOf(why).tensor, SubjectOf(why).buffer, SubjectOf(why).rank, SubjectOf(first).peer})
                    : Error(ErrorCode::kAborted, text);
  if (lost && missing_deadline_ns_ == kNoDeadline) missing_deadline_ns_ = now_ns + options_.timeouts.rejoin_ns;
  if (lost && now_ns >= missing_deadline_ns_) return End(suspended_, now_ns, actions);
  phase_ = Phase::kSuspended;
  phase_deadline_ns_ = lost ? missing_deadline_ns_ : kNoDeadline;
  engines_.clear();
  for (auto& [_, member] : members_) member.in_epoch = false;
  BroadcastToAll(SuspendedMessage(suspended_, /*engine_broken=*/false), actions);
}

absl::Status Coordinator::HandlePlanned(const MemberKey& from, const proto::Planned& planned, int64_t now_ns,
                                        CoordinatorActions* actions) {
  // One that crossed the loss of a member.
  if (phase_ == Phase::kJoining || phase_ == Phase::kSuspended) return absl::OkStatus();
  if (phase_ != Phase::kPlanning || !members_.at(from).in_epoch)
    return Error(ErrorCode::kMalformed, absl::StrCat(NameOf(from), " sent Planned, but nobody is to plan now"));
  for (const proto::Edge& edge : planned.edges())
    for (const MemberKey& end :
         {MemberKey::Publisher(edge.publisher()), MemberKey::Receiver(edge.engine(), edge.worker())}) {
      const auto it = members_.find(end);
      if (it == members_.end() || !it->second.in_epoch)
        return Error(ErrorCode::kMalformed,
                     absl::StrCat(NameOf(from), " planned an edge of ", NameOf(end), ", which is not in this epoch"));
    }
  HR_RETURN_IF_ERROR(plans_.Add(from, planned));
  planned_[from] = planned;
  if (planned.has_why_not()) {
    PlanFailed(FromFault(planned.why_not()), now_ns, actions);
    return absl::OkStatus();
  }
  for (const auto& [key, member] : members_)
    if (member.in_epoch && !planned_.contains(key)) return absl::OkStatus();
  if (absl::Status status = plans_.Compare(); !status.ok())
    PlanFailed(status, now_ns, actions);
  else
    MakeReady(now_ns, actions);
  return absl::OkStatus();
}

void Coordinator::PlanFailed(const absl::Status& why, int64_t now_ns, CoordinatorActions* actions) {
  if (!started_) return End(why, now_ns, actions);
  // Those that came meanwhile may mend it.
  if (change_ == Change::kCame) return StartEpoch(now_ns, actions);
  // No plan was made since a publisher was lost: that is the reason until it is back.
  if (!missing_.empty() && missing_deadline_ns_ != kNoDeadline && options_.timeouts.rejoin_ns != 0)
    return Suspend(why, now_ns, actions);
  // Publishers that come back one by one wait for each other, and so do engines that come with them.
  const bool some_back = std::any_of(members_.begin(), members_.end(), [](const auto& entry) {
    const auto& [key, member] = entry;
    return key.is_trainer() && member.in_epoch && !member.settled;
  });
  if (some_back && !AllPublishersHere()) return Suspend(why, now_ns, actions);
  // Whoever came last brought it about: engines first, since a publisher can only add to what is there.
  for (const proto::Role role : {proto::RECEIVER, proto::PUBLISHER}) {
    if (role == proto::PUBLISHER && !AllPublishersHere()) break;
    std::vector<MemberKey> newcomers;
    for (const auto& [key, member] : members_)
      if (key.role == role && member.in_epoch && !member.settled) newcomers.push_back(key);
    if (newcomers.empty()) continue;
    for (const MemberKey& key : newcomers) Dismiss(key, why, actions);
    return StartEpoch(now_ns, actions);
  }
  if (AllPublishersHere()) return End(why, now_ns, actions);
  Suspend(why, now_ns, actions);
}

void Coordinator::MakeReady(int64_t now_ns, CoordinatorActions* actions) {
  phase_ = Phase::kReady;
  phase_deadline_ns_ = kNoDeadline;
  missing_deadline_ns_ = kNoDeadline;
  started_ = true;
  suspended_ = absl::OkStatus();
  root_ = MerkleRoot(plans_.Edges());
  std::map<int, proto::Planned> publishers;
  std::vector<MemberKey> receivers;
  int slots = 1;
  proto::Envelope ready;
  ready.mutable_epoch_ready()->set_root(root_);
  for (auto& [key, member] : members_) {
    if (!member.in_epoch) continue;
    member.settled = true;
    if (key.role == proto::RECEIVER) {
      receivers.push_back(key);
      continue;
    }
    slots = member.layout.slots();
    publishers[key.rank] = planned_.at(key);
    auto* regions = ready.mutable_epoch_ready()->add_regions();
    regions->set_publisher(key.rank);
    for (const std::string& region : plans_.RegionKeys(key.rank)) regions->add_keys(region);
  }
  publications_.Start(publishers, receivers, slots);
  last_announced_ = publications_.newest();
  ready.mutable_epoch_ready()->set_newest(publications_.newest());
  const std::vector<Decided> decided = ResumeEngines(now_ns);
  for (const auto& [engine, votes] : engines_) {
    committed_[engine] = std::max(committed_[engine], votes.committed());
    if (votes.committed() == 0) continue;
    proto::EngineCommitted* committed = ready.mutable_epoch_ready()->add_committed();
    committed->set_engine(engine);
    committed->set_generation(votes.committed());
  }
  Broadcast(ready, actions);
  SendVoid(actions);
  AnnounceNewest(decided, actions);
}

std::vector<Coordinator::Decided> Coordinator::ResumeEngines(int64_t now_ns) {
  std::map<int, std::vector<proto::WorkerRun>> runs;
  past_reading_.clear();
  for (const auto& [key, planned] : planned_) {
    if (key.role != proto::RECEIVER) continue;
    runs[key.engine].push_back(planned.run());
    const proto::WorkerRun& run = planned.run();
    const bool voted = run.stage() == proto::WorkerRun::VOTED && run.running() == publications_.newest();
    if (voted || run.holds() >= publications_.newest()) past_reading_.push_back(key);
  }
  planned_.clear();
  std::vector<Decided> decided;
  for (const auto& [engine, workers] : runs) {
    EngineVotes& votes =
        engines_
            .emplace(engine, EngineVotes(absl::StrCat("engine ", engine), static_cast<int>(workers.size()),
                                         options_.timeouts.decision_ns, options_.timeouts.commit_ns))
            .first->second;
    for (EngineVotes::Outcome& outcome :
         votes.Resume(workers, publications_.newest(), engine_committed(engine), now_ns))
      decided.push_back({engine, std::move(outcome)});
  }
  return decided;
}

void Coordinator::AnnounceNewest(const std::vector<Decided>& decided, CoordinatorActions* actions) {
  const auto follows = [](const Decided& d) { return HasCode(d.outcome.why, ErrorCode::kGenerationNotGrowing); };
  for (const Decided& d : decided)
    if (!follows(d)) SendDecision(d.engine, d.outcome, actions);
  if (publications_.newest() != 0) {
    proto::Envelope message;
    *message.mutable_announced() = publications_.Announcement();
    for (const MemberKey& key : past_reading_) *message.mutable_announced()->add_absent() = key.ToProto();
    for (const auto& [key, member] : members_) {
      // Where all workers serve it there is nothing to vote on.
      const bool served = key.role == proto::RECEIVER && member.in_epoch && engines_.at(key.engine).idle() &&
                          committed_.at(key.engine) >= publications_.newest();
      if (member.in_epoch && !served) Send(key, message, actions);
    }
  }
  for (const Decided& d : decided)
    if (follows(d)) SendDecision(d.engine, d.outcome, actions);
}

}  // namespace headrace
