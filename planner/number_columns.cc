#include "planner/number_columns.h"

#include <utility>

#include "planner/status.h"

namespace headrace {
namespace {

constexpr char kPlain = 0;  // each number
constexpr char kRuns = 1;   // starts, steps, lengths

uint64_t ZigZag(int64_t value) { return (static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63); }
int64_t UnZigZag(uint64_t code) { return static_cast<int64_t>((code >> 1) ^ (~(code & 1) + 1)); }

// All arithmetic is modulo 2^64, so that every column has runs.
int64_t Step(int64_t from, int64_t to) {
  return static_cast<int64_t>(static_cast<uint64_t>(to) - static_cast<uint64_t>(from));
}

struct Runs {
  std::vector<int64_t> starts, steps, lengths;
};

Runs CutIntoRuns(absl::Span<const int64_t> values) {
  Runs runs;
  for (size_t i = 0; i < values.size();) {
    const int64_t step = i + 1 < values.size() ? Step(values[i], values[i + 1]) : 0;
    size_t end = i + 1;
    while (end < values.size() && Step(values[end - 1], values[end]) == step) ++end;
    runs.starts.push_back(values[i]);
    runs.steps.push_back(step);
    runs.lengths.push_back(static_cast<int64_t>(end - i));
    i = end;
  }
  return runs;
}

absl::Status Malformed() { return Error(ErrorCode::kMalformed, "a column of numbers is damaged"); }

}  // namespace

void AppendVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

absl::StatusOr<uint64_t> TakeVarint(absl::string_view* in) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && !in->empty(); shift += 7) {
    const auto byte = static_cast<uint8_t>(in->front());
    in->remove_prefix(1);
    if (shift == 63 && byte > 1) break;
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  return Malformed();
}

void AppendColumn(absl::Span<const int64_t> values, std::string* out) {
  std::string plain(1, kPlain);
  for (const int64_t value : values) AppendVarint(ZigZag(value), &plain);
  const Runs runs = CutIntoRuns(values);
  // Half as many at least, so that columns of columns come to an end.
  if (!values.empty() && 2 * runs.starts.size() <= values.size()) {
    std::string code(1, kRuns);
    AppendVarint(runs.starts.size(), &code);
    for (const std::vector<int64_t>* column : {&runs.starts, &runs.steps, &runs.lengths}) AppendColumn(*column, &code);
    if (code.size() < plain.size()) {
      *out += code;
      return;
    }
  }
  *out += plain;
}

absl::StatusOr<std::vector<int64_t>> TakeColumn(absl::string_view* in, size_t count) {
  if (in->empty()) return Malformed();
  const char form = in->front();
  in->remove_prefix(1);
  std::vector<int64_t> values;
  if (form == kPlain) {
    if (count > in->size()) return Malformed();  // each takes a byte
    values.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      HR_ASSIGN_OR_RETURN(const uint64_t code, TakeVarint(in));
      values.push_back(UnZigZag(code));
    }
    return values;
  }
  if (form != kRuns) return Malformed();
  HR_ASSIGN_OR_RETURN(const uint64_t runs, TakeVarint(in));
  if (runs > count / 2 || runs == 0) return Malformed();
  HR_ASSIGN_OR_RETURN(const std::vector<int64_t> starts, TakeColumn(in, runs));
  HR_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, TakeColumn(in, runs));
  HR_ASSIGN_OR_RETURN(const std::vector<int64_t> lengths, TakeColumn(in, runs));
  values.reserve(count);
  for (size_t r = 0; r < runs; ++r) {
    if (lengths[r] < 1 || static_cast<uint64_t>(lengths[r]) > count - values.size()) return Malformed();
    auto value = static_cast<uint64_t>(starts[r]);
    for (int64_t i = 0; i < lengths[r]; ++i, value += static_cast<uint64_t>(steps[r])) {
      values.push_back(static_cast<int64_t>(value));
    }
  }
  if (values.size() != count) return Malformed();
  return values;
}

}  // namespace headrace
