#include "loader/testing/nccl_checker/kernel.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "loader/testing/nccl_checker/faults.h"
#include "loader/testing/nccl_checker/options.h"
#include "loader/testing/nccl_checker/rules.h"
#include "loader/testing/nccl_checker/text.h"

namespace headrace::nccl_checker {
namespace {

using Clock = std::chrono::steady_clock;

// The CTAs of the kernels that run on each device now.
class RunningCtas {
 public:
  RunningCtas(const Communicator& communicator) : communicator_(communicator) {
    std::lock_guard lock(mutex());
    int& sum = sums()[communicator.device];
    sum += communicator.ctas;
    if (sum > options().cta_limit) {
      Violation(Rule::kCtas, Text("with a kernel of ", communicator.Name(), " the kernels on device ",
                                  communicator.device, " may take ", sum, " CTAs; it has ", options().cta_limit,
                                  ": set max_ctas, or run one after the other"));
    }
  }
  ~RunningCtas() {
    std::lock_guard lock(mutex());
    sums()[communicator_.device] -= communicator_.ctas;
  }

 private:
  static std::mutex& mutex() {
    static std::mutex* const instance = new std::mutex;
    return *instance;
  }
  static std::map<int, int>& sums() {
    static auto* const instance = new std::map<int, int>;
    return *instance;
  }
  const Communicator& communicator_;
};

}  // namespace

Kernel::Kernel(CommRef communicator, std::vector<Transfer> transfers)
    : communicator_(std::move(communicator)), transfers_(std::move(transfers)) {
  for (const Transfer& transfer : transfers_) {
    std::vector<Lane>& lanes = transfer.send ? sends_ : receives_;
    auto lane = std::find_if(lanes.begin(), lanes.end(), [&](const Lane& l) { return l.peer == transfer.peer; });
    if (lane == lanes.end()) {
      lanes.emplace_back();
      lane = lanes.end() - 1;
      lane->peer = transfer.peer;
    }
    lane->transfers.push_back(&transfer);
  }
}

std::vector<StreamRef> Kernel::streams() const {
  std::vector<StreamRef> streams;
  for (const Transfer& transfer : transfers_) {
    if (std::find(streams.begin(), streams.end(), transfer.stream) == streams.end()) {
      streams.push_back(transfer.stream);
    }
  }
  return streams;
}

uint64_t Kernel::Piece(uint64_t bytes) {
  if (!options().short_fault || bytes < 2) return bytes;
  return std::min(bytes, 1 + Draw(Choice::kChunk, communicator_->rank, group, ++pieces_) % 4096);
}

bool Kernel::SendSome(Lane* lane) {
  const Segment& segment = communicator_->segment();
  const int rank = communicator_->rank;
  RingControl& ring = segment.ring(rank, lane->peer);
  bool moved = false;
  while (lane->at < lane->transfers.size()) {
    const Transfer& transfer = *lane->transfers[lane->at];
    const uint64_t written = ring.written.load(), space = segment.ring_bytes() - (written - ring.taken.load());
    if (!lane->headed) {
      if (space < sizeof(MessageHeader)) break;
      const MessageHeader header{transfer.count,
                                 transfer.bytes,
                                 group,
                                 transfer.type,
                                 static_cast<uint32_t>(lane->at),
                                 static_cast<uint32_t>(lane->transfers.size()),
                                 kMessageMagic,
                                 {}};
      segment.Write(rank, lane->peer, written, &header, sizeof(header));
      ring.written.store(written + sizeof(header));
      lane->headed = moved = true;
      continue;
    }
    if (const uint64_t piece = Piece(std::min(space, transfer.bytes - lane->moved)); piece > 0) {
      segment.Write(rank, lane->peer, written, transfer.data + lane->moved, piece);
      ring.written.store(written + piece);
      lane->moved += piece;
      moved = true;
    }
    lane->end = ring.written.load();
    if (lane->moved < transfer.bytes) break;
    ++lane->at;
    lane->headed = false;
    lane->moved = 0;
  }
  if (moved) segment.Ring(lane->peer);
  return moved;
}

bool Kernel::ReceiveSome(Lane* lane) {
  const Segment& segment = communicator_->segment();
  const int rank = communicator_->rank;
  RingControl& ring = segment.ring(lane->peer, rank);
  bool moved = false;
  while (lane->at < lane->transfers.size()) {
    const Transfer& transfer = *lane->transfers[lane->at];
    const uint64_t taken = ring.taken.load(), there = ring.written.load() - taken;
    if (!lane->headed) {
      if (there < sizeof(MessageHeader)) break;
      MessageHeader header;
      segment.Read(lane->peer, rank, taken, &header, sizeof(header));
      if (!CheckHeader(*lane, header)) {
        failed_ = true;
        break;
      }
      ring.taken.store(taken + sizeof(header));
      lane->headed = moved = true;
    } else if (const uint64_t piece = Piece(std::min(there, transfer.bytes - lane->moved)); piece > 0) {
      segment.Read(lane->peer, rank, taken, transfer.data + lane->moved, piece);
      ring.taken.store(taken + piece);
      lane->moved += piece;
      moved = true;
    } else if (lane->moved < transfer.bytes) {
      break;
    }
    if (lane->headed && lane->moved == transfer.bytes) {
      ++lane->at;
      lane->headed = false;
      lane->moved = 0;
    }
  }
  if (moved) segment.Ring(lane->peer);
  return moved;
}

bool Kernel::CheckHeader(const Lane& lane, const MessageHeader& header) {
  const Transfer& transfer = *lane.transfers[lane.at];
  const std::string where =
      Text("receive ", lane.at, " of ", lane.transfers.size(), " from rank ", lane.peer, " in group ", group, " of ",
           communicator_->Name(), " meets send ", header.index, " of ", header.total, " of its group ", header.group);
  Rule rule = Rule::kNone;
  std::string detail;
  if (header.total != lane.transfers.size() || header.index != lane.at) {
    rule = Rule::kGroupCut;
  } else if (header.type != transfer.type) {
    rule = Rule::kMatchType;
    detail = Text(": type ", transfer.type, " against ", header.type);
  } else if (header.count != transfer.count) {
    rule = Rule::kMatchCount;
    detail = Text(": count ", transfer.count, " against ", header.count);
  }
  if (rule == Rule::kNone) return true;
  communicator_->SetError(Violation(rule, where + detail), where + detail);
  return false;
}

bool Kernel::Ended(const Lane& lane, bool send) const {
  if (lane.at < lane.transfers.size()) return false;
  return !send || communicator_->segment().ring(communicator_->rank, lane.peer).taken.load() >= lane.end;
}

bool Kernel::AllEnded() const {
  return std::all_of(sends_.begin(), sends_.end(), [&](const Lane& lane) { return Ended(lane, true); }) &&
         std::all_of(receives_.begin(), receives_.end(), [&](const Lane& lane) { return Ended(lane, false); });
}

std::string Kernel::WaitsFor() const {
  std::string text;
  const auto add = [&](const Lane& lane, bool send) {
    if (Ended(lane, send)) return;
    const RankControl& peer = communicator_->segment().rank(lane.peer);
    const bool busy = peer.groups_begun.load() != peer.groups_ended.load();
    const size_t at = std::min(lane.at, lane.transfers.size() - 1);
    text += Text(text.empty() ? "" : ", ", send ? "send " : "receive ", at, " of ", lane.transfers.size(),
                 send ? " to rank " : " from rank ", lane.peer, " (", lane.transfers[at]->bytes, " bytes; that rank ",
                 busy ? "runs its kernel " : "has ended its kernel ", peer.groups_begun.load(), ")");
  };
  for (const Lane& lane : sends_) add(lane, true);
  for (const Lane& lane : receives_) add(lane, false);
  return text;
}

void Kernel::LookForTrouble(Clock::time_point since) {
  for (const std::vector<Lane>* lanes : {&sends_, &receives_}) {
    for (const Lane& lane : *lanes) {
      // Its data never comes, which is nobody's mistake.
      if (!Ended(lane, lanes == &sends_) && communicator_->Lost(lane.peer)) failed_ = true;
    }
  }
  if (failed_ || Clock::now() - since < options().stall) return;
  const std::string text = Text("group ", group, " of ", communicator_->Name(), " has not moved for ",
                                options().stall.count(), " ms and waits for ", WaitsFor());
  communicator_->SetError(Violation(Rule::kDeadlock, text), text);
  failed_ = true;
}

void Kernel::HangUntilAbort() {
  while (!*communicator_->aborted) communicator_->Sleep(1000);
}

void Kernel::Run() {
  if (communicator_->BeginKernel()) {
    {
      const RunningCtas ctas(*communicator_);
      if (options().async_fault &&
          Draw(Choice::kAsyncError, communicator_->rank, group, communicator_->number) % 8 == 0) {
        communicator_->SetError(nccl::kSystemError, communicator_->Name() + ": a kernel fails by seed");
        failed_ = true;
      }
      Clock::time_point moved_at = Clock::now();
      const Segment& segment = communicator_->segment();
      while (!failed_ && !*communicator_->aborted && !AllEnded()) {
        const uint32_t seen = segment.rank(communicator_->rank).doorbell.load();
        bool moved = false;
        for (Lane& lane : sends_) moved |= SendSome(&lane);
        for (Lane& lane : receives_) moved |= ReceiveSome(&lane);
        if (moved) {
          moved_at = Clock::now();
        } else if (!failed_ && !AllEnded()) {
          segment.WaitForRing(communicator_->rank, seen);
          LookForTrouble(moved_at);
        }
      }
      if (failed_) HangUntilAbort();
    }
    communicator_->EndKernel();
  }
  communicator_->EndGroup();
}

}  // namespace headrace::nccl_checker
