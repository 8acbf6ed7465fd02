#ifndef HEADRACE_KERNELS_NEG_EXP_H_
#define HEADRACE_KERNELS_NEG_EXP_H_

// Mamba's A = -exp(A_log), which engines store where trainers have A_log.

#include "kernels/cast.h"

namespace headrace::kernels {

// Sets each F32 element of the destination to -exp of the source's, correctly rounded but for about one value in 10^7,
// where it is the neighbour; never more than one unit in the last place from the exact value. Infinities and zeros are
// exact: -exp(-inf) = -0, -exp(inf) = -inf, -exp(0) = -1; a NaN gives the quiet NaN 0x7FC00000. Both sides are F32; the
// rest is as for Cast. The GPU's results are the same bits.
void NegExp(const StridedCast& c);

}  // namespace headrace::kernels

#endif  // HEADRACE_KERNELS_NEG_EXP_H_
