"""Live bytes against pieces. Needs torch and vLLM's packages, no engine."""

import unittest

import torch

from headrace.vllm.proof import first_difference, probe_values
from headrace.vllm.trace import TensorSpec


def reader(tensors):
    def read(name, box):
        t = tensors[name]
        return t if box is None else t[tuple(slice(b, b + n) for b, n in zip(*box))]

    return read


class FirstDifferenceTest(unittest.TestCase):
    def setUp(self):
        self.t = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
        self.read = reader({"t": self.t})

    def whole(self, **fields):
        return [{"tensor": "t", "tensor_offset": [0, 0], "shape": [4, 6], "buffer_offset": [0, 0], **fields}]

    def test_equal(self):
        self.assertIsNone(first_difference(self.t.clone(), self.whole(), self.read))
        self.assertIsNone(first_difference(self.t.t().contiguous(), self.whole(axes=[1, 0]), self.read))
        stack = torch.full((3, 4, 6), 9.0)
        stack[1] = self.t
        piece = {"tensor": "t", "tensor_offset": [0] * 3, "shape": [1, 4, 6], "buffer_offset": [1, 0, 0]}
        kept = {"fill": "keep", "shape": [1, 4, 6], "buffer_offset": [0, 0, 0]}
        self.assertIsNone(first_difference(stack, [{**piece, "view": [1, 4, 6]}, kept], self.read))

    def test_converted_as_the_engine_does(self):
        self.assertIsNone(first_difference(self.t.to(torch.bfloat16), self.whole(), self.read))

    def test_one_bit(self):
        live = self.t.clone()
        live.view(torch.int32)[3, 5] ^= 1
        self.assertIn("of shape [4, 6]", first_difference(live, self.whole(), self.read))

    def test_the_sign_of_zero_and_nan_are_bits(self):
        self.t[0, 0] = 0.0
        self.t[0, 1] = float("nan")
        live = self.t.clone()
        self.assertIsNone(first_difference(live, self.whole(), self.read))
        live[0, 0] = -0.0
        self.assertIsNotNone(first_difference(live, self.whole(), self.read))

    def test_repacked_in_the_same_shape(self):
        live = self.t.t().contiguous().reshape(4, 6)
        self.assertIsNotNone(first_difference(live, self.whole(), self.read))

    def test_padding(self):
        pieces = self.whole() + [{"fill": "zero", "shape": [1, 6], "buffer_offset": [4, 0]}]
        live = torch.cat([self.t, torch.zeros(1, 6)])
        self.assertIsNone(first_difference(live, pieces, self.read))
        live[4, 5] = 1
        self.assertIn("zero", first_difference(live, pieces, self.read))


class ProbeTest(unittest.TestCase):
    def test_values_repeat_and_differ(self):
        a, b = TensorSpec("a", (64, 8), torch.float32), TensorSpec("b", (64, 8), torch.float32)
        self.assertTrue(torch.equal(probe_values(a), probe_values(a)))
        self.assertFalse(torch.equal(probe_values(a), probe_values(b)))
        self.assertGreater(probe_values(a).unique().numel(), 500)
        box = ((2, 1), (3, 4))
        self.assertTrue(torch.equal(probe_values(a, box), probe_values(a)[2:5, 1:5]))


if __name__ == "__main__":
    unittest.main()
