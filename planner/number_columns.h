#ifndef HEADRACE_PLANNER_NUMBER_COLUMNS_H_
#define HEADRACE_PLANNER_NUMBER_COLUMNS_H_

// Lists of numbers that come from nested loops, written in a few bytes.
//
// What a layout counts (layers, experts, offsets) goes up in even steps, and again from the start for the next layer.
// A column is cut into runs of even steps; their starts, steps and lengths are columns themselves, and so on:
//
//   0 1 2 .. 255  0 1 2 .. 255  (58 times)   ->   58 runs: starts 0 0 0 ..   steps 1 1 1 ..   lengths 256 256 256 ..
//                                            ->   one run each: 15 bytes
//
// Pure and thread-safe.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace headrace {

// LEB128.
void AppendVarint(uint64_t value, std::string* out);
// Takes one off the front.
//   kMalformed: the end, or more than 64 bits
absl::StatusOr<uint64_t> TakeVarint(absl::string_view* in);

// Appends the code of a column. How many numbers it has is not in it.
void AppendColumn(absl::Span<const int64_t> values, std::string* out);
// Takes a column of `count` numbers off the front. Memory: the numbers', so check the count first.
//   kMalformed: bytes that AppendColumn does not write for so many numbers
absl::StatusOr<std::vector<int64_t>> TakeColumn(absl::string_view* in, size_t count);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_NUMBER_COLUMNS_H_
