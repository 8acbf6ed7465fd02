#include "loader/edge_stream.h"

#include <algorithm>
#include <cstring>

#include "loader/part_box.h"

namespace headrace {
namespace {

int64_t CeilDiv(int64_t n, int64_t d) { return (n + d - 1) / d; }

}  // namespace

EdgeStream::EdgeStream(const Plan& plan, const Edge& edge, int64_t chunk_bytes)
    : plan_(plan), edge_(edge), chunk_bytes_(chunk_bytes) {
  if (edge.stream < 0) {
    boxes_ = absl::MakeConstSpan(plan.copies).subspan(edge.first, edge.count);
  } else {
    for (const Part& part : plan.streams[edge.stream].parts) parts_.push_back(SourceBoxOf(part));
    boxes_ = parts_;
  }
  starts_.push_back(0);
  for (const Copy& box : boxes_) starts_.push_back(starts_.back() + box.bytes());
  sum_messages_ = CeilDiv(static_cast<int64_t>(boxes_.size() * sizeof(uint64_t)), chunk_bytes);
  data_messages_ = CeilDiv(starts_.back(), chunk_bytes);
}

int64_t EdgeStream::message_bytes(int64_t message) const {
  const int64_t total = is_sums(message) ? static_cast<int64_t>(boxes_.size() * sizeof(uint64_t)) : starts_.back();
  const int64_t index = is_sums(message) ? message : message - sum_messages_;
  return std::min(chunk_bytes_, total - index * chunk_bytes_);
}

size_t EdgeStream::BoxAt(int64_t byte) const {
  return std::upper_bound(starts_.begin(), starts_.end(), byte) - starts_.begin() - 1;
}

size_t EdgeStream::FirstCopyOf(size_t box) const {
  if (edge_.stream < 0) return box;
  const auto first = plan_.copies.begin() + static_cast<int64_t>(edge_.first);
  return std::lower_bound(first, first + static_cast<int64_t>(edge_.count), box,
                          [](const Copy& copy, size_t b) { return static_cast<size_t>(copy.part) < b; }) -
         first;
}

void EdgeStream::PackSums(int64_t message, absl::Span<const std::byte> sums, absl::Span<std::byte> out) const {
  if (is_sums(message)) std::memcpy(out.data(), sums.data() + message * chunk_bytes_, out.size());
}

void EdgeStream::UnpackSums(int64_t message, absl::Span<const std::byte> in, absl::Span<uint64_t> wanted) const {
  if (!is_sums(message)) return;
  std::memcpy(reinterpret_cast<std::byte*>(wanted.data()) + message * chunk_bytes_, in.data(), in.size());
}

}  // namespace headrace
