#ifndef HEADRACE_CLI_PATTERN_H_
#define HEADRACE_CLI_PATTERN_H_

// The recognisable content that a rehearsal moves, and what must come out of it, by plain element loops over the
// manifest: no code shared with the planner.
//
// Element e of the t-th tensor is the top bits of splitmix64(t * 2^40 + e) (Steele, Lea, Flood 2014; constants from
// https://prng.di.unimi.it/splitmix64.c). Memory starts as 0xA5 bytes.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "planner/manifest.h"

namespace headrace {

inline constexpr std::byte kPoison{0xA5};

// A generation's value of an element, as raw bits in the tensor's dtype.
using ElementBits = std::function<uint64_t(int tensor, Index element)>;

// The pattern above for the tensors' dtypes; `inverted` gives the complement of each element's bits, for a generation
// that must be overwritten everywhere.
ElementBits Pattern(const Manifest& manifest, bool inverted);

// Writes the pieces of a buffer into its memory (`bytes` spans it from the first element): tensor elements, in the
// buffer's dtype (exactly widened where a source holds a wider float), and zero fills. Leaves everything else alone.
void Paint(const Manifest& manifest, const Buffer& buffer, const ElementBits& bits, std::vector<std::byte>* bytes);

// The raw bits of the `index`-th element slot of memory that holds elements of this dtype.
uint64_t ElementAt(Dtype dtype, const std::vector<std::byte>& bytes, Index index);

}  // namespace headrace

#endif  // HEADRACE_CLI_PATTERN_H_
