#include "loader/streamed_executor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "loader/staging.h"
#include "loader/stream_signal.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr int kMaxWindow = 4;
constexpr absl::Duration kCancelTimeout = absl::Seconds(2);
constexpr absl::Duration kTellTimeout = absl::Milliseconds(200);

// A transport's error, with the sender's name before its message.
absl::Status Naming(const absl::Status& status, const std::string& name) {
  const ErrorCode code = HasCode(status, ErrorCode::kPeerLost)   ? ErrorCode::kPeerLost
                         : HasCode(status, ErrorCode::kDeadline) ? ErrorCode::kDeadline
                                                                 : ErrorCode::kTransport;
  return About(Error(code, absl::StrCat("receiving from ", name, ": ", status.message())), {.peer = name});
}

double Seconds(absl::Time since) { return absl::ToDoubleSeconds(absl::Now() - since); }

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> StreamedExecutor::Create(const Manifest& manifest, const Plan& plan,
                                                                   Transport* transport,
                                                                   std::vector<IncomingEdge> edges,
                                                                   const ExecutorOptions& options,
                                                                   CancelledChunks* cancelled, BoxWork* work) {
  if (!edges.empty()) HR_RETURN_IF_ERROR(CheckStaging(*transport, options.chunk_bytes, options.staging_bytes));
  HR_ASSIGN_OR_RETURN(const StreamTags tags, StreamTags::Create(*transport, plan, options.epoch));
  return std::unique_ptr<Executor>(
      new StreamedExecutor(manifest, plan, transport, std::move(edges), options, tags, cancelled, work));
}

StreamedExecutor::StreamedExecutor(const Manifest& manifest, const Plan& plan, Transport* transport,
                                   std::vector<IncomingEdge> edges, const ExecutorOptions& options, StreamTags tags,
                                   CancelledChunks* cancelled, BoxWork* work)
    : Executor(manifest, plan, std::move(edges)),
      transport_(transport),
      options_(options),
      tags_(tags),
      cancelled_(cancelled),
      work_(work) {
  if (edges_.empty()) return;
  const int64_t chunks = options.staging_bytes / options.chunk_bytes;
  window_ = static_cast<int>(std::clamp<int64_t>(chunks / static_cast<int64_t>(edges_.size()), 1, kMaxWindow));
  for (const IncomingEdge& edge : edges_) streams_.emplace_back(plan, edge.edge, options.chunk_bytes);
}

StreamedExecutor::~StreamedExecutor() {
  if (running_) BreakOff();
}

void StreamedExecutor::Begin(Request request) {
  request_ = std::move(request);
  stats_ = {};
  streamed_bytes_ = 0;
  running_ = true;
  prepared_ = false;
  connect_deadline_ = request_.deadline;
  begin_ = absl::Now();
  flows_ = std::vector<Flow>(edges_.size());
  for (size_t e = 0; e < edges_.size(); ++e) Link(e);
  started_.clear();
  lost_.clear();
  chunks_.emplace(work_, options_.chunk_bytes, options_.staging_bytes, cancelled_);
  next_edge_ = active_ = finished_ = 0;
}

void StreamedExecutor::Link(size_t edge) {
  bool behind = false;
  for (const ChainMember& member : edges_[edge].chain) {
    if (member.rank == edges_[edge].edge.destination_rank) {
      behind = true;
    } else if (!request_.absent.contains(member.rank)) {
      const ChainMember*& beside = behind ? flows_[edge].next : flows_[edge].previous;
      if (!behind || beside == nullptr) beside = &member;
    }
  }
}

void StreamedExecutor::Decline(const Request& request) {
  Begin(request);
  TellThoseBeside();
  running_ = false;
}

std::optional<absl::Status> StreamedExecutor::Step(absl::Duration max_wait) {
  absl::Status status = finished_ < edges_.size() || !pending_.empty() ? Advance(max_wait) : absl::OkStatus();
  if (status.ok() && (finished_ < edges_.size() || !pending_.empty())) return std::nullopt;
  if (!status.ok()) BreakOff();
  // Whoever has all bytes needs nobody any more.
  if (HasCode(status, ErrorCode::kDeadline) && AllArrived()) status = absl::OkStatus();
  running_ = false;
  // What was not passed on is let go, too: another epoch's executor may need all chunks.
  arrived_.clear();
  for (Flow& flow : flows_) flow.kept.clear();
  stats_.peak_staging_bytes = chunks_->peak_bytes();
  chunks_.reset();
  stats_.transfer_seconds = Seconds(begin_);
  if (!status.ok()) return status;
  return Verify();
}

absl::Status StreamedExecutor::Advance(absl::Duration max_wait) {
  if (!std::exchange(prepared_, true)) HR_RETURN_IF_ERROR(Prepare());
  HR_RETURN_IF_ERROR(BeginEdges());
  HR_RETURN_IF_ERROR(request_.interrupted());
  if (absl::Now() > request_.deadline) return Late();
  const std::vector<Completion> completions = Poll(max_wait);
  absl::Status status;
  arrived_.clear();
  for (const Completion& c : completions) {
    const auto it = pending_.find(c.op);
    if (it == pending_.end()) continue;
    Pending done = std::move(it->second);
    pending_.erase(it);
    --under_way_[*done.address];
    // Nobody will say again that the others ended.
    if (status.ok()) status = Handle(std::move(done), c.status);
  }
  // Also where that failed: what was begun refers to chunks and destinations.
  const absl::Status unpacked = work_->Finish();
  if (status.ok()) status = unpacked;
  for (Arrived& arrived : arrived_) {
    const size_t edge = arrived.edge;
    if (status.ok()) status = Arrive(std::move(arrived));
    if (status.ok()) FinishWhenOver(edge);
  }
  return status;
}

// Also on behalf of transfers that broke off.
std::vector<Completion> StreamedExecutor::Poll(absl::Duration max_wait) {
  std::vector<Completion> completions;
  transport_->Poll(max_wait, &completions);
  for (const Completion& c : completions) cancelled_->Complete(c.op);
  return completions;
}

// What others say is listened for from the beginning on, also on edges that begin later.
absl::Status StreamedExecutor::Prepare() {
  for (size_t e = 0; e < edges_.size(); ++e) {
    flows_[e].passes_on = flows_[e].next != nullptr;
    HR_RETURN_IF_ERROR(PostAnswer(e));
    if (flows_[e].previous == nullptr) continue;
    const absl::Status connected = PeerOf(SenderAddress(e)).status();
    if (!connected.ok()) return Naming(connected, SenderName(e));
  }
  return absl::OkStatus();
}

absl::Status StreamedExecutor::BeginEdges() {
  while (next_edge_ < edges_.size() && chunks_->Holds(static_cast<int64_t>(active_ + 1) * window_)) {
    const size_t e = next_edge_++;
    Flow& flow = flows_[e];
    flow.wanted.assign(streams_[e].boxes(), 0);
    flow.got.assign(edges_[e].edge.count, 0);
    flow.begun = true;
    ++active_;
    HR_RETURN_IF_ERROR(PostReceives(e));
    HR_RETURN_IF_ERROR(Ask(e));
  }
  return absl::OkStatus();
}

absl::Status StreamedExecutor::PostReceives(size_t edge) {
  Flow& flow = flows_[edge];
  while (flow.begun && flow.posted < streams_[edge].messages() && flow.held < window_) {
    HR_ASSIGN_OR_RETURN(Chunk chunk, chunks_->Take(KindOf(edge, flow.posted)));
    if (chunk == nullptr) return Error(ErrorCode::kInternal, "an edge that has begun lacks a chunk of its window");
    const absl::Span<std::byte> message(chunk.get(), streams_[edge].message_bytes(flow.posted));
    absl::StatusOr<OpId> op =
        Post(SenderAddress(edge), [&](PeerId peer) { return transport_->Receive(peer, TagOf(edge), message); });
    if (!op.ok()) return Naming(op.status(), SenderName(edge));
    Track(*op, {Kind::kReceive, edge, flow.posted, &SenderAddress(edge), std::move(chunk)});
    ++flow.posted;
    ++flow.held;
  }
  return absl::OkStatus();
}

// Lets the bytes come, when there is room for them here and behind.
absl::Status StreamedExecutor::Ask(size_t edge) {
  Flow& flow = flows_[edge];
  if (!flow.begun || flow.asked || (flow.passes_on && !flow.next_ready)) return absl::OkStatus();
  flow.asked = true;
  if (flow.previous == nullptr && started_.insert(edges_[edge].address).second) {
    HR_RETURN_IF_ERROR(request_.start(edge));
  }
  return Signal(SenderAddress(edge), SenderName(edge), edge);
}

absl::Status StreamedExecutor::Handle(Pending done, const absl::Status& status) {
  const size_t edge = done.edge;
  switch (done.kind) {
    case Kind::kReceive:
      if (!status.ok()) return NotReceived(edge, status);
      Unpack(edge, done.message, {done.buffer.get(), static_cast<size_t>(streams_[edge].message_bytes(done.message))});
      arrived_.push_back({edge, done.message, std::move(done.buffer)});
      return absl::OkStatus();
    case Kind::kPassOn:
      Release(edge, done.message, std::move(done.buffer));
      if (!status.ok()) HR_RETURN_IF_ERROR(StopPassingOn(edge));
      HR_RETURN_IF_ERROR(PostReceives(edge));
      break;
    case Kind::kAnswer:
      HR_RETURN_IF_ERROR(HandleAnswer(edge, status));
      break;
  }
  FinishWhenOver(edge);
  return absl::OkStatus();
}

// One that breaks off says so in place of what it was to pass on, which the transport takes for a message of a wrong
// size: it is lost to this transfer, whatever its reason, like one that died.
absl::Status StreamedExecutor::NotReceived(size_t edge, const absl::Status& status) const {
  const absl::Status named = Naming(status, SenderName(edge));
  if (flows_[edge].previous == nullptr || !HasCode(named, ErrorCode::kTransport)) return named;
  return About(Error(ErrorCode::kPeerLost, absl::StrCat(named.message(), "; it broke off")),
               {.peer = SenderName(edge)});
}

void StreamedExecutor::Unpack(size_t edge, int64_t message, absl::Span<const std::byte> bytes) {
  Flow& flow = flows_[edge];
  streams_[edge].Unpack(
      message, bytes, [&](int destination) { return request_.destination.at(destination); },
      absl::MakeSpan(flow.wanted), absl::MakeSpan(flow.got), work_);
}

// A message that was unpacked.
absl::Status StreamedExecutor::Arrive(Arrived arrived) {
  auto& [edge, message, chunk] = arrived;
  Flow& flow = flows_[edge];
  const EdgeStream& stream = streams_[edge];
  streamed_bytes_ += stream.message_bytes(message);
  if (++flow.arrived == stream.messages() && flow.previous != nullptr) {
    // A rank that is gone needs no answer.
    (void)Signal(SenderAddress(edge), SenderName(edge), edge);
  }
  if (flow.passes_on) {
    flow.kept.emplace(message, std::move(chunk));
    return PassOn(edge);
  }
  Release(edge, message, std::move(chunk));
  return PostReceives(edge);
}

// Completions come in any order, but messages match in the order of their posting.
absl::Status StreamedExecutor::PassOn(size_t edge) {
  Flow& flow = flows_[edge];
  while (!flow.kept.empty() && flow.kept.begin()->first == flow.passed) {
    const absl::Span<const std::byte> message(flow.kept.begin()->second.get(),
                                              streams_[edge].message_bytes(flow.passed));
    const std::string& address = flows_[edge].next->address;
    absl::StatusOr<OpId> op = Post(address, [&](PeerId peer) { return transport_->Send(peer, TagOf(edge), message); });
    if (!op.ok()) return StopPassingOn(edge);
    Track(*op, {Kind::kPassOn, edge, flow.passed++, &address, std::move(flow.kept.begin()->second)});
    flow.kept.erase(flow.kept.begin());
  }
  return absl::OkStatus();
}

absl::Status StreamedExecutor::StopPassingOn(size_t edge) {
  Flow& flow = flows_[edge];
  if (!std::exchange(flow.passes_on, false)) return absl::OkStatus();
  for (auto& [message, chunk] : std::exchange(flow.kept, {})) Release(edge, message, std::move(chunk));
  // Brings back what is under way to it. The rank is lost to this transfer, and so to all other edges.
  if (lost_.insert(flows_[edge].next->address).second) Forget(flows_[edge].next->address);
  HR_RETURN_IF_ERROR(PostReceives(edge));
  return Ask(edge);
}

absl::Status StreamedExecutor::PostAnswer(size_t edge) {
  if (!flows_[edge].passes_on) return absl::OkStatus();
  Chunk answer = NewHostChunk(1);
  const std::string& address = flows_[edge].next->address;
  absl::StatusOr<OpId> op = Post(
      address, [&](PeerId peer) { return transport_->Receive(peer, TagOf(edge), absl::MakeSpan(answer.get(), 1)); });
  if (!op.ok()) return StopPassingOn(edge);
  Track(*op, {Kind::kAnswer, edge, 0, &address, std::move(answer)});
  return absl::OkStatus();
}

absl::Status StreamedExecutor::HandleAnswer(size_t edge, const absl::Status& status) {
  Flow& flow = flows_[edge];
  if (!flow.passes_on) return absl::OkStatus();
  if (!status.ok()) return StopPassingOn(edge);
  if (flow.next_ready) {
    flow.next_done = true;
    return absl::OkStatus();
  }
  flow.next_ready = true;
  HR_RETURN_IF_ERROR(PostAnswer(edge));
  return Ask(edge);
}

ChunkPool::Kind StreamedExecutor::KindOf(size_t edge, int64_t message) const {
  return streams_[edge].is_sums(message) ? ChunkPool::Kind::kSums : ChunkPool::Kind::kData;
}

void StreamedExecutor::Release(size_t edge, int64_t message, Chunk chunk) {
  chunks_->GiveBack(KindOf(edge, message), std::move(chunk));
  --flows_[edge].held;
}

void StreamedExecutor::FinishWhenOver(size_t edge) {
  Flow& flow = flows_[edge];
  if (flow.over || flow.arrived < streams_[edge].messages() || flow.held > 0) return;
  if (flow.passes_on && !flow.next_done) return;
  flow.over = true;
  ++finished_;
  --active_;
}

bool StreamedExecutor::AllArrived() const {
  for (size_t e = 0; e < edges_.size(); ++e) {
    if (flows_[e].arrived < streams_[e].messages()) return false;
  }
  return true;
}

absl::Status StreamedExecutor::Late() const {
  std::set<std::string> missing, unready;
  for (size_t e = 0; e < edges_.size(); ++e) {
    const Flow& flow = flows_[e];
    if (flow.arrived == streams_[e].messages()) continue;
    missing.insert(flow.previous ? absl::StrCat(edges_[e].name, " by way of ", flows_[e].previous->name)
                                 : edges_[e].name);
    if (flow.begun && !flow.asked) unready.insert(flows_[e].next->name);
  }
  return Error(ErrorCode::kDeadline,
               absl::StrCat("the transfer did not end in time; missing bytes of ", absl::StrJoin(missing, ", "),
                            unready.empty() ? "" : "; not ready to have bytes passed on to them: ",
                            absl::StrJoin(unready, ", ")));
}

absl::Status StreamedExecutor::Verify() {
  const absl::Time verify = absl::Now();
  for (size_t e = 0; e < edges_.size(); ++e) {
    for (size_t i = 0; i < edges_[e].edge.count; ++i) {
      const size_t copy = edges_[e].edge.first + i;
      HR_RETURN_IF_ERROR(CheckSum(edges_[e], copy, flows_[e].wanted[streams_[e].BoxOf(i)], flows_[e].got[i]));
      CountCopy(copy);
    }
  }
  stats_.verify_seconds = Seconds(verify);
  return absl::OkStatus();
}

// Chunks belong to the transport until their operations end: cancels what is left, and gives it some time. A process
// that was stopped, or UCX while it closes a connection, may take longer. Senders drop their end too, so the next
// transfer connects anew.
void StreamedExecutor::BreakOff() {
  std::set<std::string> unfinished;
  for (const auto& [op, left] : pending_) unfinished.insert(*left.address);
  for (size_t e = 0; e < edges_.size(); ++e) {
    if (flows_[e].begun && flows_[e].arrived < streams_[e].messages()) unfinished.insert(SenderAddress(e));
  }
  for (const std::string& address : unfinished) Forget(address);
  const absl::Time give_up = absl::Now() + kCancelTimeout;
  while (!pending_.empty() && absl::Now() < give_up) {
    for (const Completion& c : Poll(absl::Milliseconds(20))) pending_.erase(c.op);
  }
  for (auto& [op, left] : pending_) {
    cancelled_->Keep(op, std::move(left.buffer), left.kind == Kind::kAnswer ? 0 : options_.chunk_bytes);
  }
  pending_.clear();
  under_way_.clear();
  TellThoseBeside();
}

// Over connections with nothing under way, so that it is heard whenever they listen.
void StreamedExecutor::TellThoseBeside() {
  connect_deadline_ = absl::Now() + kTellTimeout;
  const auto tell = [&](const ChainMember* beside, size_t edge, absl::Span<const std::byte> what) {
    // Who is gone needs no word.
    if (beside == nullptr) return;
    (void)Post(beside->address, [&](PeerId peer) { return transport_->Send(peer, TagOf(edge), what); });
  };
  for (size_t e = 0; e < edges_.size(); ++e) {
    // What was said or sent last may have been taken back with the rest.
    const bool arrived = flows_[e].arrived == streams_[e].messages();
    tell(flows_[e].previous, e, arrived ? StreamSignal() : StreamBrokeOff());
    if (!flows_[e].next_done) tell(flows_[e].next, e, StreamBrokeOff());
  }
  (void)Poll(absl::ZeroDuration());
}

template <typename F>
absl::StatusOr<OpId> StreamedExecutor::Post(const std::string& address, F&& post) {
  // A new connection would work, with nobody there to take or send anything.
  if (lost_.contains(address)) return Error(ErrorCode::kTransport, "it takes part in this transfer no more");
  for (bool again = false;; again = true) {
    const bool known = peers_.contains(address);
    absl::StatusOr<PeerId> peer = PeerOf(address);
    if (!peer.ok()) return peer.status();
    absl::StatusOr<OpId> op = post(*peer);
    // A connection that broke while nothing was under way on it says nothing about the peer.
    const bool stale = known && under_way_[address] == 0 && HasCode(op.status(), ErrorCode::kPeerLost);
    if (op.ok() || again || !stale) return op;
    Forget(address);
  }
}

absl::Status StreamedExecutor::Signal(const std::string& address, const std::string& name, size_t edge) {
  const absl::Status posted =
      Post(address, [&](PeerId peer) { return transport_->Send(peer, TagOf(edge), StreamSignal()); }).status();
  return posted.ok() ? posted : Naming(posted, name);
}

absl::StatusOr<PeerId> StreamedExecutor::PeerOf(const std::string& address) {
  if (auto it = peers_.find(address); it != peers_.end()) return it->second;
  HR_ASSIGN_OR_RETURN(const PeerId peer, transport_->Connect(address, connect_deadline_));
  return peers_[address] = peer;
}

void StreamedExecutor::Forget(const std::string& address) {
  const auto it = peers_.find(address);
  if (it == peers_.end()) return;
  transport_->Disconnect(it->second);
  peers_.erase(it);
}

void StreamedExecutor::Track(OpId op, Pending pending) {
  ++under_way_[*pending.address];
  pending_.emplace(op, std::move(pending));
}

const std::string& StreamedExecutor::SenderName(size_t edge) const {
  return flows_[edge].previous ? flows_[edge].previous->name : edges_[edge].name;
}

const std::string& StreamedExecutor::SenderAddress(size_t edge) const {
  return flows_[edge].previous ? flows_[edge].previous->address : edges_[edge].address;
}

}  // namespace headrace
