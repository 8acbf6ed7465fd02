#include "cli/pattern.h"

#include <cstring>
#include <map>
#include <string>

namespace headrace {
namespace {

uint64_t SplitMix64(uint64_t z) {
  z += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

struct Format {
  int exponent, mantissa;
};

// A float's field widths; zeros for other dtypes.
Format FormatOf(Dtype d) {
  switch (d) {
    case Dtype::kF16:
      return {5, 10};
    case Dtype::kBF16:
      return {8, 7};
    case Dtype::kF32:
      return {8, 23};
    case Dtype::kF64:
      return {11, 52};
    default:
      return {0, 0};
  }
}

// The bits of the same value in a float that is not narrower.
uint64_t Widen(uint64_t bits, const Format& f, const Format& t) {
  const uint64_t sign = bits >> (f.exponent + f.mantissa) & 1;
  uint64_t exponent = bits >> f.mantissa & ((uint64_t{1} << f.exponent) - 1);
  uint64_t mantissa = bits & ((uint64_t{1} << f.mantissa) - 1);
  const int64_t rebias = (int64_t{1} << (t.exponent - 1)) - (int64_t{1} << (f.exponent - 1));
  if (exponent == (uint64_t{1} << f.exponent) - 1) {
    exponent = (uint64_t{1} << t.exponent) - 1;  // infinity, NaN
  } else if (exponent != 0) {
    exponent += rebias;
  } else if (mantissa != 0 && rebias > 0) {  // a denormal becomes normal
    int shift = 0;
    while (!(mantissa >> f.mantissa & 1)) mantissa <<= 1, ++shift;
    mantissa &= (uint64_t{1} << f.mantissa) - 1;
    exponent = rebias + 1 - shift;
  }
  return sign << (t.exponent + t.mantissa) | exponent << t.mantissa | mantissa << (t.mantissa - f.mantissa);
}

void Store(Dtype dtype, uint64_t value, Index slot, std::vector<std::byte>* bytes) {
  const Index bits = DtypeBits(dtype);
  if (bits % 8 == 0) {
    std::memcpy(bytes->data() + slot * bits / 8, &value, bits / 8);  // little endian
    return;
  }
  for (Index i = 0; i < bits; ++i) {
    const Index at = slot * bits + i;
    const std::byte mask{static_cast<uint8_t>(1 << (at % 8))};
    std::byte& b = (*bytes)[at / 8];
    b = value >> i & 1 ? b | mask : b & ~mask;
  }
}

// Calls f(memory element, tensor or -1, element) for every element that the buffer's pieces name, `keep` left out.
template <typename F>
void ForEachElement(const Manifest& manifest, const Buffer& buffer, F&& f) {
  for (const Piece& p : buffer.pieces) {
    if (p.kind == PieceKind::kKeep) continue;
    int tensor = -1;
    Extents shape;
    if (p.kind == PieceKind::kTensor) {
      while (manifest.tensors[++tensor].name != p.tensor) {
      }
      shape = p.view ? *p.view : manifest.tensors[tensor].shape;
    }
    Index count = 1;
    for (Index e : p.shape) count *= e;
    Extents at(p.shape.size(), 0);
    for (Index n = 0; n < count; ++n) {
      Index slot = 0, element = 0;
      for (size_t i = 0; i < at.size(); ++i) {
        slot += p.buffer_offset[i] * buffer.strides[i];
        slot += at[i] * buffer.strides[p.axes.empty() ? i : p.axes[i]];
        if (tensor >= 0) element = element * shape[i] + p.tensor_offset[i] + at[i];
      }
      f(slot, tensor, element);
      for (size_t i = at.size(); i-- > 0;) {
        if (++at[i] < p.shape[i]) break;
        at[i] = 0;
      }
    }
  }
}

}  // namespace

bool Widens(Dtype from, Dtype to) {
  const Format f = FormatOf(from), t = FormatOf(to);
  return from == to || (f.exponent > 0 && t.exponent >= f.exponent && t.mantissa >= f.mantissa);
}

Pattern::Pattern(const Manifest& manifest, bool inverted) : inverted_(inverted) {
  std::map<std::string, size_t> index;
  for (const TensorSpec& t : manifest.tensors) {
    index.emplace(t.name, held_.size());
    held_.push_back(t.dtype);
  }
  for (const Buffer& b : manifest.source) {
    for (const Piece& p : b.pieces) {
      if (p.kind != PieceKind::kTensor) continue;
      Dtype& held = held_[index.at(p.tensor)];
      if (Widens(b.dtype, held)) held = b.dtype;
    }
  }
}

uint64_t Pattern::Bits(int tensor, Index element, Dtype as) const {
  const Dtype held = held_[tensor];
  const uint64_t mixed = SplitMix64((static_cast<uint64_t>(tensor) << 40) + static_cast<uint64_t>(element));
  const uint64_t bits = (inverted_ ? ~mixed : mixed) >> (64 - DtypeBits(held));
  return held == as || !Widens(held, as) ? bits : Widen(bits, FormatOf(held), FormatOf(as));
}

void Paint(const Manifest& manifest, const Buffer& buffer, const Pattern& pattern, std::vector<std::byte>* bytes) {
  ForEachElement(manifest, buffer, [&](Index slot, int tensor, Index element) {
    Store(buffer.dtype, tensor < 0 ? 0 : pattern.Bits(tensor, element, buffer.dtype), slot, bytes);
  });
}

std::string FirstUnlike(const Manifest& manifest, const Buffer& buffer, const Pattern& pattern,
                        const std::vector<std::byte>& bytes) {
  std::string tensor_name;
  ForEachElement(manifest, buffer, [&](Index slot, int tensor, Index element) {
    if (tensor < 0 || !tensor_name.empty()) return;
    if (ElementAt(buffer.dtype, bytes, slot) != pattern.Bits(tensor, element, buffer.dtype)) {
      tensor_name = manifest.tensors[tensor].name;
    }
  });
  return tensor_name;
}

uint64_t ElementAt(Dtype dtype, const std::vector<std::byte>& bytes, Index index) {
  const Index bits = DtypeBits(dtype);
  uint64_t value = 0;
  if (bits % 8 == 0) {
    std::memcpy(&value, bytes.data() + index * bits / 8, bits / 8);
    return value;
  }
  for (Index i = 0; i < bits; ++i) {
    const Index at = index * bits + i;
    value |= static_cast<uint64_t>(std::to_integer<int>(bytes[at / 8]) >> (at % 8) & 1) << i;
  }
  return value;
}

}  // namespace headrace
