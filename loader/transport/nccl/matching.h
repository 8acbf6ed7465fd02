#ifndef HEADRACE_LOADER_TRANSPORT_NCCL_MATCHING_H_
#define HEADRACE_LOADER_TRANSPORT_NCCL_MATCHING_H_

// Which receive a peer's message meets: by tag, in posting order. Pure.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "loader/transport/transport.h"

namespace headrace::nccl {

struct IncomingOffer {
  uint64_t number = 0;
  uint64_t bytes = 0;
  std::optional<std::string> content;  // of a small message
};

struct PostedReceive {
  OpId op = 0;
  std::byte* to = nullptr;
  size_t bytes = 0;
  uint64_t tag = 0;
};

struct Match {
  IncomingOffer offer;
  PostedReceive receive;
};

class Matching {
 public:
  std::optional<Match> Add(uint64_t tag, IncomingOffer offer) {
    Queues& queues = by_tag_[tag];
    if (queues.receives.empty()) {
      queues.offers.push_back(std::move(offer));
      ++waiting_offers_;
      return std::nullopt;
    }
    Match match{std::move(offer), queues.receives.front()};
    queues.receives.pop_front();
    Forget(tag, queues);
    return match;
  }

  std::optional<Match> Add(PostedReceive receive) {
    Queues& queues = by_tag_[receive.tag];
    if (queues.offers.empty()) {
      queues.receives.push_back(receive);
      return std::nullopt;
    }
    Match match{TakeOffer(queues), receive};
    Forget(receive.tag, queues);
    return match;
  }

  // Receives whose offers are no more wait again, in their old places.
  std::vector<Match> PutBack(std::vector<PostedReceive> receives) {
    std::sort(receives.begin(), receives.end(),
              [](const PostedReceive& a, const PostedReceive& b) { return a.op > b.op; });
    for (const PostedReceive& receive : receives) by_tag_[receive.tag].receives.push_front(receive);
    std::vector<Match> matches;
    for (const PostedReceive& receive : receives) {
      const auto entry = by_tag_.find(receive.tag);
      if (entry == by_tag_.end()) continue;
      Queues& queues = entry->second;
      while (!queues.offers.empty() && !queues.receives.empty()) {
        matches.push_back({TakeOffer(queues), queues.receives.front()});
        queues.receives.pop_front();
      }
      Forget(receive.tag, queues);
    }
    return matches;
  }

  // Takes back the receives that met nothing.
  std::vector<OpId> TakeReceives() {
    std::vector<OpId> waiting;
    for (auto entry = by_tag_.begin(); entry != by_tag_.end();) {
      Queues& queues = entry->second;
      for (const PostedReceive& receive : queues.receives) waiting.push_back(receive.op);
      queues.receives.clear();
      entry = queues.offers.empty() ? by_tag_.erase(entry) : std::next(entry);
    }
    return waiting;
  }

  // Forgets the offers whose content did not come with them.
  void ForgetOffers() {
    for (auto entry = by_tag_.begin(); entry != by_tag_.end();) {
      Queues& queues = entry->second;
      waiting_offers_ -=
          std::erase_if(queues.offers, [](const IncomingOffer& offer) { return !offer.content.has_value(); });
      entry = queues.offers.empty() && queues.receives.empty() ? by_tag_.erase(entry) : std::next(entry);
    }
  }

  // Offers that met nothing yet.
  size_t waiting_offers() const { return waiting_offers_; }

 private:
  struct Queues {  // one of them is empty; lists, since an empty one takes no memory of its own
    std::list<IncomingOffer> offers;
    std::list<PostedReceive> receives;
  };

  IncomingOffer TakeOffer(Queues& queues) {
    IncomingOffer offer = std::move(queues.offers.front());
    queues.offers.pop_front();
    --waiting_offers_;
    return offer;
  }

  void Forget(uint64_t tag, const Queues& queues) {
    if (queues.offers.empty() && queues.receives.empty()) by_tag_.erase(tag);
  }

  std::unordered_map<uint64_t, Queues> by_tag_;
  size_t waiting_offers_ = 0;
};

}  // namespace headrace::nccl

#endif  // HEADRACE_LOADER_TRANSPORT_NCCL_MATCHING_H_
