#ifndef HEADRACE_LOADER_TESTING_SIDE_MEMORY_H_
#define HEADRACE_LOADER_TESTING_SIDE_MEMORY_H_

// Test only. Real memory under a manifest's buffers, and what it must hold, by element loops that share no code with
// the planner, the lowering or the kernels. Elements lie least significant bit first, so that 4- and 6-bit ones are
// packed. One thread.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "planner/manifest.h"

namespace headrace::testing {

inline constexpr std::byte kPoison{0xA5};

// Made-up bits for an element of a tensor in a generation.
uint64_t ValueBits(uint64_t generation, int tensor, Index element, int bits);

uint64_t GetBits(const std::byte* first, Index element, int bits);
void SetBits(std::byte* first, Index element, int bits, uint64_t value);

// Exact widening of BF16 or F16 bits to F32 or F64 and of F32 to F64, NaNs and denormals too.
uint64_t Widen(Dtype from, uint64_t bits, Dtype to);

// Calls f(element of the tensor, element behind the buffer's first) for each element of a tensor piece; for fills the
// first is -1.
void VisitPiece(const Manifest& manifest, const Buffer& buffer, const Piece& piece,
                const std::function<void(Index, Index)>& f);

int TensorIndex(const Manifest& manifest, const std::string& name);

// One block for each storage and for each buffer that names none, aliases included, filled with kPoison, with guards.
class SideMemory {
 public:
  explicit SideMemory(const std::vector<Buffer>& buffers);

  std::byte* First(const Buffer& b) { return blocks_.at(Key(b)).data() + Offset(b); }
  // Every block whole, with its guards.
  std::vector<absl::Span<std::byte>> blocks();
  // Empty, or the first byte that differs.
  std::string Difference(const SideMemory& other) const;

 private:
  static std::string Key(const Buffer& b);
  static size_t Offset(const Buffer& b);

  std::map<std::string, std::vector<std::byte>> blocks_;
};

// Every source element of `generation`; a source that converts holds it widened.
void PaintSource(const Manifest& manifest, uint64_t generation, SideMemory* memory);
// What a destination rank's memory is after `generation`: tensor elements and zero fills; all else as it was.
void PaintDestination(const Manifest& manifest, int64_t rank, uint64_t generation, SideMemory* memory);

// Makes about half of the source buffers that can wider ones, which the publisher converts.
void WidenSources(uint64_t seed, Manifest* manifest);

}  // namespace headrace::testing

#endif  // HEADRACE_LOADER_TESTING_SIDE_MEMORY_H_
