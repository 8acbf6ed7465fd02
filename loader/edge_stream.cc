#include "loader/edge_stream.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "kernels/strided_copy.h"
#include "loader/lowering.h"

namespace headrace {
namespace {

int64_t CeilDiv(int64_t n, int64_t d) { return (n + d - 1) / d; }

}  // namespace

EdgeStream::EdgeStream(const Plan& plan, const Edge& edge, int64_t chunk_bytes)
    : plan_(plan), edge_(edge), chunk_bytes_(chunk_bytes) {
  starts_.push_back(0);
  for (size_t i = 0; i < edge.count; ++i) starts_.push_back(starts_.back() + plan.copies[edge.first + i].bytes());
  sum_messages_ = CeilDiv(static_cast<int64_t>(edge.count * sizeof(uint64_t)), chunk_bytes);
  data_messages_ = CeilDiv(starts_.back(), chunk_bytes);
}

int64_t EdgeStream::message_bytes(int64_t message) const {
  const int64_t total = is_sums(message) ? static_cast<int64_t>(edge_.count * sizeof(uint64_t)) : starts_.back();
  const int64_t index = is_sums(message) ? message : message - sum_messages_;
  return std::min(chunk_bytes_, total - index * chunk_bytes_);
}

size_t EdgeStream::CopyAt(int64_t byte) const {
  return std::upper_bound(starts_.begin(), starts_.end(), byte) - starts_.begin() - 1;
}

void EdgeStream::PackSums(int64_t message, absl::Span<const std::byte> sums, absl::Span<std::byte> out) const {
  if (is_sums(message)) std::memcpy(out.data(), sums.data() + message * chunk_bytes_, out.size());
}

void EdgeStream::UnpackSums(int64_t message, absl::Span<const std::byte> in, absl::Span<uint64_t> wanted) const {
  if (!is_sums(message)) return;
  std::memcpy(reinterpret_cast<std::byte*>(wanted.data()) + message * chunk_bytes_, in.data(), in.size());
}

void EdgeStream::PackPart(size_t copy, int64_t first, const std::byte* source, absl::Span<std::byte> out) const {
  kernels::Pack(Lower(plan_.copies[copy], source, nullptr), first, std::span(out.data(), out.size()));
}

uint64_t EdgeStream::UnpackPart(size_t copy, int64_t first, absl::Span<const std::byte> in,
                                std::byte* destination) const {
  return kernels::UnpackAndSum(Lower(plan_.copies[copy], nullptr, destination), first, std::span(in.data(), in.size()));
}

}  // namespace headrace
