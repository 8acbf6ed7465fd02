#ifndef HEADRACE_KERNELS_SUM_H_
#define HEADRACE_KERNELS_SUM_H_

// The verification sum: a keyed sum over the bytes of a tensor, independent of dtype and of layout.
//
// The byte of value v at position p of tensor t (p counts bytes of the tensor in row-major order, from 0) contributes
//
//     (v * 2^(8 * (p & 3)) + 1) * K[(p >> 2) mod 1024] * H(t, p >> 12)    mod 2^64
//
// with 1024 fixed distinct odd 32-bit keys K and an odd 64-bit mix H of the tensor's key and the 4 KiB block
// (kernels/sum_keys.h). The sum of a set of bytes is the sum of its terms mod 2^64: it splits exactly at any byte and
// adds up in any order, so that two sides that cut a tensor differently compare the sums of common tiles. The + 1
// counts bytes: a zero that was not delivered, or delivered twice, changes the sum. Words exchanged inside a block
// always change it; other accidents pass with a chance of about 2^-32. It is no defence against an adversary.

#include <cstddef>
#include <cstdint>

namespace headrace::kernels {

// The sum of the `n` bytes at `p`, which are the bytes [first_byte, first_byte + n) of the tensor with `tensor_key`.
// `n` and `first_byte` are not negative. Thread-safe; any alignment.
uint64_t SumRun(uint64_t tensor_key, int64_t first_byte, const std::byte* p, int64_t n);

}  // namespace headrace::kernels

#endif  // HEADRACE_KERNELS_SUM_H_
