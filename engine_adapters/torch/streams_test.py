import types
import unittest
from unittest import mock

import torch

from headrace.errors import InputError
from headrace.torch import streams


def on(device: str) -> types.SimpleNamespace:
    """As much of a tensor as is looked at: there is no GPU here."""
    return types.SimpleNamespace(device=torch.device(device))


class StreamsTest(unittest.TestCase):
    def test_the_gpu_of_tensors(self) -> None:
        self.assertIsNone(streams.gpu_of([], "rank 0"))
        self.assertIsNone(streams.gpu_of([on("cpu")], "rank 0"))
        self.assertEqual(streams.gpu_of([on("cuda:3"), on("cpu"), on("cuda:3")], "rank 0"), 3)
        with self.assertRaisesRegex(InputError, r"rank 7 has weights on the GPUs \[0, 1\]"):
            streams.gpu_of([on("cuda:1"), on("cuda:0")], "rank 7")

    def test_the_current_stream(self) -> None:
        with mock.patch("torch.cuda.current_stream", side_effect=lambda gpu: mock.Mock(cuda_stream=100 + gpu)):
            self.assertEqual(streams.current_stream(2), 102)
            self.assertEqual(streams.current_stream(None), 0)

    def test_the_current_gpu(self) -> None:
        with mock.patch("torch.cuda.set_device") as set_device:
            streams.use_gpu(None)
            set_device.assert_not_called()
            streams.use_gpu(2)
            set_device.assert_called_once_with(2)


if __name__ == "__main__":
    unittest.main()
