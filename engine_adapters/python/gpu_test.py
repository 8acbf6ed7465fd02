"""Buffers in GPU memory through the C interface, on the checker of loader/testing/nccl_checker in place of CUDA."""

from __future__ import annotations

import ctypes
import os
import threading
import unittest
from pathlib import Path
from typing import Any

from headrace import core
from headrace.core_testing import COLUMNS_OF, ROWS, TENSORS, TOKEN, Live, Source, destination_part, source_part
from headrace.core_testing import together
from headrace.errors import DeadlineError, InputError

_TESTING = Path(__file__).resolve().parents[2] / ".bazel/bin/loader/testing"
CHECKER = _TESTING / "nccl_checker/libheadrace_nccl_checker.so"
KERNELS = _TESTING / "checker_kernels/libheadrace_checker_kernels.so"
TO_DEVICE, TO_HOST = 1, 2  # kinds of copies
_HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Gpu:
    """A device of the checker, with a stream of its own."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._cuda = ctypes.CDLL(str(CHECKER))
        self._functions: list[Any] = []  # the stream's, until it has run them
        stream = ctypes.c_void_p()
        self.call("cudaStreamCreateWithFlags", ctypes.byref(stream), 1)
        self.stream: int = stream.value or 0

    def call(self, name: str, *arguments: Any) -> None:
        self._cuda.cudaSetDevice(self.number)
        error = getattr(self._cuda, name)(*arguments)
        assert error == 0, f"{name}: {error}"

    def allocate(self, size: int) -> int:
        address = ctypes.c_void_p()
        self.call("cudaMalloc", ctypes.byref(address), ctypes.c_size_t(size))
        assert address.value
        return address.value

    def copy(self, to: Any, source: Any, size: int, kind: int) -> None:
        """From or to pageable memory: done when it returns."""
        self.call(
            "cudaMemcpyAsync",
            ctypes.c_void_p(to),
            ctypes.c_void_p(source),
            ctypes.c_size_t(size),
            kind,
            ctypes.c_void_p(self.stream),
        )

    def enqueue(self, function: Any) -> None:
        """Work of the stream, in a thread of the checker's."""
        wrapped = _HostFunction(lambda _: function())
        self._functions.append(wrapped)
        self.call("cudaLaunchHostFunc", ctypes.c_void_p(self.stream), wrapped, None)

    def synchronize(self) -> None:
        self.call("cudaStreamSynchronize", ctypes.c_void_p(self.stream))


class Mirror:
    """Buffers on a GPU, with buffers of the host beside them."""

    def __init__(self, gpu: Gpu, host: dict[str, Any]) -> None:
        self._gpu, self._host = gpu, host
        self.memory = {name: gpu.allocate(len(buffer)) for name, buffer in host.items()}
        self.upload()

    def upload(self) -> None:
        for name, buffer in self._host.items():
            self._gpu.copy(self.memory[name], ctypes.addressof(buffer), len(buffer), TO_DEVICE)

    def download(self) -> None:
        for name, buffer in self._host.items():
            self._gpu.copy(ctypes.addressof(buffer), self.memory[name], len(buffer), TO_HOST)


class GpuTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        if not CHECKER.exists():
            raise unittest.SkipTest(f"{CHECKER} is not built: bazel build //loader/testing/nccl_checker:all")
        os.environ["HEADRACE_CUDA_RUNTIME"] = os.environ["HEADRACE_NCCL"] = str(CHECKER)
        os.environ["HEADRACE_CUDA_DRIVER"] = str(CHECKER)
        os.environ["HEADRACE_CUDA_KERNELS"] = str(KERNELS)

    def setUp(self) -> None:
        self.coordinator = core.Coordinator(job="gpu", publishers=2, workers=[2], token=TOKEN, incarnation="one")
        self.addCleanup(self.coordinator.stop)
        self.gpus = [Gpu(i) for i in range(4)]
        self.sources = [Source(rank) for rank in range(2)]
        self.lives = [Live(worker) for worker in range(2)]
        self.weights = [Mirror(gpu, source.buffers) for gpu, source in zip(self.gpus, self.sources)]
        self.live = [Mirror(gpu, live.buffers) for gpu, live in zip(self.gpus[2:], self.lives)]

    def options(self) -> dict[str, Any]:
        return {"coordinator": self.coordinator.address, "token": TOKEN, "job": "gpu"}

    def live_memory(self, worker: int) -> dict[str, core.BufferMemory]:
        width = COLUMNS_OF[worker][1] - COLUMNS_OF[worker][0]
        return {n: core.BufferMemory(self.live[worker].memory[n], (ROWS, width), (width, 1)) for n in TENSORS}

    def publisher(self, rank: int, **more: Any) -> core.Publisher:
        options = {**self.options(), "rank": rank, "gpu": rank, **more}
        return core.Publisher(source_part(rank), self.weights[rank].memory, **options)

    def receiver(self, worker: int, **more: Any) -> core.Receiver:
        options = {**self.options(), "engine": 0, "worker": worker, "shadow": "host", "gpu": 2 + worker, **more}
        return core.Receiver(destination_part(worker), self.live_memory(worker), **options)

    def content(self, worker: int) -> dict[str, bytes]:
        self.live[worker].download()
        return self.lives[worker].content()

    def test_generations_that_stay_on_gpus(self) -> None:
        for transport, publishing in (("nccl", "hold"), ("cuda", "snapshot")):
            for shadow in ("device", "off"):
                with self.subTest(f"{transport}, {shadow}"):
                    self.setUp()
                    self.generations_that_stay_on_gpus(transport, publishing, shadow)

    def generations_that_stay_on_gpus(self, transport: str, publishing: Any, shadow: Any) -> None:
        members: list[Any] = together(
            *[lambda i=i: self.publisher(i, transport=transport, publishing=publishing) for i in range(2)],
            *[lambda i=i: self.receiver(i, transport=transport, shadow=shadow) for i in range(2)],
        )
        publishers, receivers = members[:2], members[2:]
        for generation in (1, 2):
            for rank in range(2):
                self.sources[rank].write(generation)
                self.weights[rank].upload()
            together(*[lambda i=i: publishers[i].publish(generation, 60, self.gpus[i].stream) for i in range(2)])

            def take(worker: int) -> None:
                receiver, stream = receivers[worker], self.gpus[2 + worker].stream
                self.assertEqual(receiver.next_generation(60), generation)
                receiver.stage(generation, self.live_memory(worker), stream)
                receiver.commit(generation, stream)
                self.assertEqual(self.content(worker), self.lives[worker].expected(generation))

            together(*[lambda i=i: take(i) for i in range(2)])
            together(*[lambda i=i: publishers[i].await_release(generation, 60) for i in range(2)])
        self.assertEqual(publishers[0].stats["snapshot_bytes"] > 64, publishing == "snapshot")
        self.assertEqual(publishers[0].stats["pinned_bytes"], 0)
        self.assertEqual(receivers[0].stats["pinned_bytes"], 0)
        for member in [*receivers, *publishers]:
            member.close()

    def test_generations_between_gpus(self) -> None:
        members: list[Any] = together(
            *[lambda i=i: self.publisher(i) for i in range(2)], *[lambda i=i: self.receiver(i) for i in range(2)]
        )
        publishers, receivers = members[:2], members[2:]
        untouched = {name: b"\xa5" * len(content) for name, content in self.lives[0].expected(1).items()}
        for generation in (1, 2):
            for rank in range(2):
                self.sources[rank].write(generation)
                self.weights[rank].upload()
            # The last write of the trainer's step, which has not ended yet.
            gate, gpu, weight = threading.Event(), self.gpus[0], self.weights[0].memory["wide"]
            size = len(self.sources[0].buffers["wide"])
            late = bytes(self.sources[0].buffers["wide"])
            ctypes.memset(weight, 0, size)  # memory of the checker's devices is the host's
            gpu.enqueue(lambda: (gate.wait(60), ctypes.memmove(weight, late, size)))
            with self.assertRaises(DeadlineError):
                publishers[0].publish(generation, 0.03, gpu.stream)
            gate.set()
            together(*[lambda i=i: publishers[i].publish(generation, 60, self.gpus[i].stream) for i in range(2)])

            def take(worker: int) -> None:
                receiver = receivers[worker]
                self.assertEqual(receiver.next_generation(60), generation)
                receiver.stage(generation, self.live_memory(worker))
                if generation == 1 and worker == 0:
                    self.assertEqual(self.content(0), untouched)
                receiver.apply(generation, self.gpus[2 + worker].stream)
                self.assertEqual(self.content(worker), self.lives[worker].expected(generation))
                receiver.commit(generation)

            together(*[lambda i=i: take(i) for i in range(2)])
        self.assertGreater(publishers[0].stats["pinned_bytes"], 0)
        self.assertEqual(receivers[0].stats["pinned_bytes"], receivers[0].stats["shadow_bytes"])
        for member in [*receivers, *publishers]:
            member.close()

    def test_refusals(self) -> None:
        for make, words in (
            (lambda: self.publisher(0, publishing="hold"), "Publish by snapshot"),
            (lambda: self.publisher(0, gpu=1), "GPU 0"),
            (lambda: self.publisher(0, gpu=-1), "gpu"),
            (lambda: self.receiver(0, shadow="off"), "take a shadow"),
            (lambda: self.receiver(0, standby=True), "standby"),
        ):
            with self.subTest(words), self.assertRaisesRegex(InputError, words) as raised:
                make()
            self.assertEqual(raised.exception.code, "invalid_option")


if __name__ == "__main__":
    unittest.main()
