#include "loader/testing/side_memory.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"

namespace headrace::testing {
namespace {

constexpr size_t kGuardBytes = 64;

uint64_t Mix(uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// The raw bits of a tensor's element. F64 ones are widened F32, so that a narrower source can hold them.
uint64_t TensorBits(const Manifest& manifest, uint64_t generation, int tensor, Index element) {
  const Dtype dtype = manifest.tensors[tensor].dtype;
  if (dtype == Dtype::kF64) return Widen(Dtype::kF32, ValueBits(generation, tensor, element, 32), dtype);
  return ValueBits(generation, tensor, element, DtypeBits(dtype));
}

}  // namespace

uint64_t ValueBits(uint64_t generation, int tensor, Index element, int bits) {
  return Mix(Mix(generation * 1000 + static_cast<uint64_t>(tensor)) + static_cast<uint64_t>(element)) >> (64 - bits);
}

uint64_t GetBits(const std::byte* first, Index element, int bits) {
  uint64_t value = 0;
  for (int i = 0; i < bits; ++i) {
    const Index at = element * bits + i;
    value |= static_cast<uint64_t>((static_cast<unsigned>(first[at / 8]) >> (at % 8)) & 1) << i;
  }
  return value;
}

void SetBits(std::byte* first, Index element, int bits, uint64_t value) {
  for (int i = 0; i < bits; ++i) {
    const Index at = element * bits + i;
    const std::byte bit = std::byte{1} << (at % 8);
    first[at / 8] = (value >> i) & 1 ? first[at / 8] | bit : first[at / 8] & ~bit;
  }
}

uint64_t Widen(Dtype from, uint64_t bits, Dtype to) {
  uint32_t f32 = static_cast<uint32_t>(bits);
  if (from == Dtype::kBF16) {
    f32 = static_cast<uint32_t>(bits) << 16;
  } else if (from == Dtype::kF16) {
    const uint32_t sign = (bits >> 15) & 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    if (exponent == 31) {
      f32 = sign << 31 | 255u << 23 | fraction << 13;
    } else {
      const float value =
          std::ldexp(static_cast<float>(exponent == 0 ? fraction : 1024 + fraction), std::max(1, int(exponent)) - 25);
      f32 = std::bit_cast<uint32_t>(value) | sign << 31;
    }
  }
  if (to == Dtype::kF32) return f32;
  if (((f32 >> 23) & 255) == 255) {
    return uint64_t{f32 >> 31} << 63 | uint64_t{2047} << 52 | uint64_t{f32 & 0x7fffff} << 29;
  }
  return std::bit_cast<uint64_t>(static_cast<double>(std::bit_cast<float>(f32)));
}

void VisitPiece(const Manifest& manifest, const Buffer& buffer, const Piece& piece,
                const std::function<void(Index, Index)>& f) {
  const bool fill = piece.kind != PieceKind::kTensor;
  Extents counted = piece.shape;
  if (!fill) counted = piece.view ? *piece.view : manifest.tensors[TensorIndex(manifest, piece.tensor)].shape;
  const Index axes = static_cast<Index>(piece.shape.size());
  Index volume = 1;
  for (Index e : piece.shape) volume *= e;
  for (Index n = 0; n < volume; ++n) {
    Index rest = n, element = 0, weight = 1, place = 0;
    for (Index i = axes - 1; i >= 0; --i) {
      const Index at = rest % piece.shape[i];
      rest /= piece.shape[i];
      if (!fill) element += (piece.tensor_offset[i] + at) * weight;
      weight *= counted[i];
      const int axis = piece.axes.empty() ? static_cast<int>(i) : piece.axes[i];
      place += (piece.buffer_offset[axis] + at) * buffer.strides[axis];
    }
    f(fill ? -1 : element, place);
  }
}

int TensorIndex(const Manifest& manifest, const std::string& name) {
  for (size_t i = 0; i < manifest.tensors.size(); ++i) {
    if (manifest.tensors[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

std::string SideMemory::Key(const Buffer& b) {
  if (b.storage) return absl::StrCat("rank ", b.rank, " storage ", b.storage->id);
  return absl::StrCat("rank ", b.rank, " buffer ", b.alias_of ? *b.alias_of : b.name);
}

size_t SideMemory::Offset(const Buffer& b) {
  return kGuardBytes + (b.storage ? static_cast<size_t>(b.storage->offset_bytes) : 0);
}

SideMemory::SideMemory(const std::vector<Buffer>& buffers) {
  for (const Buffer& b : buffers) {
    std::vector<std::byte>& block = blocks_[Key(b)];
    const size_t bytes = Offset(b) + static_cast<size_t>(SpanBytes(b, b.dtype)) + kGuardBytes;
    if (block.size() < bytes) block.resize(bytes, kPoison);
  }
}

std::vector<absl::Span<std::byte>> SideMemory::blocks() {
  std::vector<absl::Span<std::byte>> blocks;
  for (auto& [key, block] : blocks_) blocks.push_back(absl::MakeSpan(block));
  return blocks;
}

std::string SideMemory::Difference(const SideMemory& other) const {
  for (const auto& [key, block] : blocks_) {
    const std::vector<std::byte>& theirs = other.blocks_.at(key);
    for (size_t i = 0; i < block.size(); ++i) {
      if (block[i] == theirs[i]) continue;
      return absl::StrCat(key, ": byte ", static_cast<int64_t>(i) - static_cast<int64_t>(kGuardBytes), " is ",
                          static_cast<int>(block[i]), ", not ", static_cast<int>(theirs[i]));
    }
  }
  return "";
}

void PaintSource(const Manifest& manifest, uint64_t generation, SideMemory* memory) {
  for (const Buffer& b : manifest.source) {
    for (const Piece& p : b.pieces) {
      if (p.kind != PieceKind::kTensor) continue;
      const int tensor = TensorIndex(manifest, p.tensor);
      const Dtype dtype = manifest.tensors[tensor].dtype;
      VisitPiece(manifest, b, p, [&](Index element, Index place) {
        const uint64_t value = dtype == Dtype::kF64 && b.dtype == Dtype::kF32
                                   ? ValueBits(generation, tensor, element, 32)
                                   : TensorBits(manifest, generation, tensor, element);
        SetBits(memory->First(b), place, DtypeBits(b.dtype),
                DtypeBits(b.dtype) > DtypeBits(dtype) ? Widen(dtype, value, b.dtype) : value);
      });
    }
  }
}

void PaintDestination(const Manifest& manifest, int64_t rank, uint64_t generation, SideMemory* memory) {
  for (const Buffer& b : manifest.destination) {
    if (b.rank != rank) continue;
    for (const Piece& p : b.pieces) {
      if (p.kind == PieceKind::kKeep) continue;
      const int tensor = p.kind == PieceKind::kZero ? 0 : TensorIndex(manifest, p.tensor);
      VisitPiece(manifest, b, p, [&](Index element, Index place) {
        const uint64_t value = element < 0 ? 0 : TensorBits(manifest, generation, tensor, element);
        SetBits(memory->First(b), place, DtypeBits(b.dtype), value);
      });
    }
  }
}

void WidenSources(uint64_t seed, Manifest* manifest) {
  std::mt19937_64 random(seed);
  for (Buffer& b : manifest->source) {
    const bool narrow = b.dtype == Dtype::kBF16 || b.dtype == Dtype::kF16;
    if ((!narrow && b.dtype != Dtype::kF32) || b.storage || random() % 2 == 0) continue;
    b.dtype = narrow && random() % 2 == 0 ? Dtype::kF32 : Dtype::kF64;
    b.convert_rne = true;
  }
}

}  // namespace headrace::testing
