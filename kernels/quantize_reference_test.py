"""FP8 block quantization against torch's float8 casts, numpy's block scales and vLLM's own functions, bit for bit.

Needs torch, numpy and vLLM, and //kernels:quantize_tool built.
"""

import os
import random
import subprocess
import unittest
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
TOOL = os.environ.get("HEADRACE_QUANTIZE_TOOL") or str(ROOT / ".bazel/bin/kernels/quantize_tool")
TYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
NAN = 0x7F


def quantize(scale: str, x: torch.Tensor, row_cut: int, col_cut: int) -> tuple[np.ndarray, np.ndarray]:
    """The tool's elements (codes) and scales: F32 of 128x128 blocks or E8M0 codes of 1x32."""
    rows, cols = x.shape
    command = [TOOL, scale, TYPES[x.dtype], *map(str, (rows, cols, row_cut, col_cut))]
    data = x.contiguous().view(torch.uint8).numpy().tobytes()
    out = subprocess.run(command, input=data, stdout=subprocess.PIPE, check=True, timeout=60).stdout
    elements = np.frombuffer(out[: rows * cols], np.uint8).reshape(rows, cols)
    if scale == "1x32":
        return elements, np.frombuffer(out[rows * cols :], np.uint8).reshape(rows, -(-cols // 32))
    return elements, np.frombuffer(out[rows * cols :], np.float32).reshape(-(-rows // 128), -(-cols // 128))


def to_e4m3(x: torch.Tensor) -> np.ndarray:
    """torch's cast, with one NaN: which sign a computed NaN has is the processor's choice."""
    codes = x.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    return np.where(codes & NAN == NAN, NAN, codes)


def block_maxima(x: torch.Tensor, height: int, width: int) -> np.ndarray:
    """NaN where a block has one."""
    rows, cols = x.shape
    padded = np.zeros((-(-rows // height) * height, -(-cols // width) * width), np.float32)
    padded[:rows, :cols] = np.abs(x.float().numpy())
    return padded.reshape(padded.shape[0] // height, height, padded.shape[1] // width, width).max(axis=(1, 3))


def spread(per_block: np.ndarray, height: int, width: int, shape: torch.Size) -> np.ndarray:
    return per_block.repeat(height, 0).repeat(width, 1)[: shape[0], : shape[1]]


def expect_128(x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(all="ignore"):
        scales = np.maximum(block_maxima(x, 128, 128), np.float32(1e-4)) / np.float32(448)
        product = x.float().numpy() * spread(np.float32(1) / scales, 128, 128, x.shape)
    return to_e4m3(torch.from_numpy(product)), scales


def expect_mx(x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    maxima = block_maxima(x, 1, 32).astype(np.float64)
    finite = np.where(np.isfinite(maxima), maxima, 1.0)
    # ceil(log2(amax / 448)), exactly: 448 is 0.875 * 2^9.
    mantissa, exponent = np.frexp(finite)
    exponents = np.where(finite == 0, -127, exponent - 9 + (mantissa > 0.875))
    codes = np.clip(exponents, -127, 127) + 127
    codes = np.where(np.isnan(maxima), 255, np.where(np.isinf(maxima), 254, codes)).astype(np.uint8)
    power = spread(codes, 1, 32, x.shape).astype(np.int32)
    # Powers of two times F32 are exact in F64; torch rounds F64 to F32 first, which the values here survive unless
    # they are far below the least FP8.
    scaled = np.ldexp(x.double().numpy(), 127 - power)
    scaled[power == 255] = np.nan
    return to_e4m3(torch.from_numpy(scaled).float()), codes


def special_values(dtype: torch.dtype) -> list[float]:
    info = torch.finfo(dtype)
    return [0.0, -0.0, info.smallest_normal / 4, -info.smallest_normal / 2, info.max, info.min, info.smallest_normal,
            float("inf"), -float("inf"), float("nan"), 448.0, 464.0, 1e-4]


class QuantizeReferenceTest(unittest.TestCase):

    def setUp(self) -> None:
        seed = int(os.environ.get("HEADRACE_TEST_SEED") or random.SystemRandom().randrange(2**32))
        print(f"HEADRACE_TEST_SEED={seed}")
        self.random = random.Random(seed)
        torch.manual_seed(seed)

    def matrix(self, dtype: torch.dtype, rows: int, cols: int, specials: int) -> torch.Tensor:
        x = torch.randn(rows, cols) * 2.0 ** self.random.randint(-12, 12)
        x *= torch.exp2(torch.randint(-6, 6, (rows, 1)).float())
        x = x.to(dtype)
        for _ in range(specials):
            row, col = self.random.randrange(rows), self.random.randrange(cols)
            x[row, col] = self.random.choice(special_values(dtype))
        return x

    def check(self, scale: str, x: torch.Tensor, expected: tuple[np.ndarray, np.ndarray]) -> None:
        row_cut, col_cut = self.random.randint(0, x.shape[0]), self.random.randint(0, x.shape[1])
        elements, scales = quantize(scale, x, row_cut, col_cut)
        np.testing.assert_array_equal(scales, expected[1])
        np.testing.assert_array_equal(elements, expected[0])

    def test_128x128_against_numpy_and_torch(self) -> None:
        for dtype in TYPES:
            for specials in (0, 0, 1, 20):
                x = self.matrix(dtype, self.random.randint(1, 400), self.random.randint(1, 400), specials)
                self.check("128x128", x, expect_128(x))

    def test_1x32_against_numpy_and_torch(self) -> None:
        for dtype in TYPES:
            for specials in (0, 0, 1, 200):
                x = self.matrix(dtype, self.random.randint(1, 300), self.random.randint(1, 300), specials)
                self.check("1x32", x, expect_mx(x))

    def test_every_magnitude(self) -> None:
        """A block for each exponent of an F32, with the mantissas around 448's."""
        mantissas = torch.tensor([0, 1, 0x5FFFFF, 0x600000, 0x600001, 0x7FFFFF], dtype=torch.int32)
        bits = (torch.arange(255, dtype=torch.int32)[:, None] << 23) + mantissas
        x = torch.zeros(255 * 6, 32)
        x[:, 5] = bits.view(torch.float32).reshape(-1)
        x[:, 7] = -x[:, 5] / 3
        self.check("1x32", x, expect_mx(x))

    def test_all_casts(self) -> None:
        """A block whose scale is 1, so that the elements are torch's casts themselves: all BF16 values up to 448."""
        bits = torch.arange(65536, dtype=torch.int32).to(torch.int16)
        x = bits.view(torch.bfloat16).reshape(512, 128)
        x = torch.where(x.float().abs() <= 448, x, torch.tensor(448.0, dtype=torch.bfloat16))
        x[::128, 0] = 448.0
        elements, scales = quantize("128x128", x, 100, 60)
        np.testing.assert_array_equal(scales, np.ones((4, 1), np.float32))
        np.testing.assert_array_equal(elements, x.to(torch.float8_e4m3fn).view(torch.uint8).numpy())

    def test_128x128_against_vllm(self) -> None:
        from vllm.utils import deep_gemm

        cast = getattr(deep_gemm.per_block_cast_to_fp8, "_torchdynamo_orig_callable", deep_gemm.per_block_cast_to_fp8)
        for dtype in (torch.float32, torch.bfloat16):
            x = self.matrix(dtype, 300, 257, 0)
            elements, scales = cast(x)
            codes = elements.view(torch.uint8).numpy()
            self.check("128x128", x, (codes, scales.numpy()))

    def test_1x32_against_vllm(self) -> None:
        from vllm.model_executor.layers.quantization.utils import mxfp8_utils

        for dtype in (torch.float32, torch.bfloat16):
            x = self.matrix(dtype, 200, 320, 0)
            x[3] = 0
            elements, scales = mxfp8_utils._mxfp8_e4m3_quantize_torch(x)
            self.check("1x32", x, (elements.view(torch.uint8).numpy(), scales.numpy()))


if __name__ == "__main__":
    unittest.main()
