"""For tests: an engine in this process, with real receivers, and an oracle that knows nothing of layouts.

Worker w of n holds the w-th of n column blocks of each tensor with two axes or more, and all of the others.
"""

import contextlib
import threading
from typing import Any, Callable, Mapping

import torch

from headrace import core
from headrace.errors import Error, InternalError
from headrace.torch import dtypes


class TestEngine:
    """Implements headrace.engines.Engine. Buffers begin as NaN, or as -1 where the dtype has none."""

    __test__ = False

    def __init__(self, tensors: Mapping[str, tuple[tuple[int, ...], torch.dtype]], workers: int = 1) -> None:
        self.name = "the test's engine"
        self.version: str | None = None
        self.inits = 0
        self.fail: dict[str, Error] = {}  # by step: raised once
        self.workers = [_Worker(index, workers, tensors) for index in range(workers)]

    def describe(self) -> list[dict[str, Any]]:
        self._may_fail("describe")
        return [worker.describe() for worker in self.workers]

    def status(self) -> list[dict[str, Any]]:
        return [worker.status() for worker in self.workers]

    def init(self, info: dict[str, Any]) -> None:
        self._may_fail("init")
        self.inits += 1
        _all([lambda w=worker: w.join(info) for worker in self.workers])

    def pause(self, mode: str) -> None:
        pass

    def start(self) -> None:
        self._may_fail("start")

    def update(self, info: dict[str, Any]) -> None:
        self._may_fail("update")
        _all([lambda w=worker: w.commit(info["generation"]) for worker in self.workers])

    def finish(self, weight_version: str | None) -> None:
        self.version = weight_version or self.version

    def set_version(self, weight_version: str) -> None:
        self.version = weight_version

    def reset_caches(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def shutdown(self) -> None:
        self.close()

    def lose_worker(self) -> None:
        """Worker 0 fails as one that died half way through a commit."""
        self.workers[0].receiver.abandon(InternalError("internal", "the test lost this worker"))

    def close(self) -> None:
        for worker in self.workers:
            worker.leave()

    def check(self, fulls: Mapping[str, torch.Tensor]) -> None:
        """AssertionError unless all workers hold these full tensors, converted to their dtype, bit for bit."""
        for worker in self.workers:
            for name, buffer in worker.buffers.items():
                wanted = worker.part_of(fulls[name]).to(buffer.dtype)
                equal = torch.equal(wanted.contiguous().view(torch.uint8), buffer.view(torch.uint8))
                assert equal, f"{name} of worker {worker.index}: {buffer}, not {wanted}"

    def _may_fail(self, step: str) -> None:
        if step in self.fail:
            raise self.fail.pop(step)


class _Worker:
    def __init__(self, index: int, workers: int, tensors: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
        self.index, self._workers = index, workers
        self._tensors = tensors
        self.buffers: dict[str, torch.Tensor] = {}
        for name, (shape, dtype) in tensors.items():
            fill = float("nan") if dtype.is_floating_point else -1
            self.buffers[name] = self.part_of(torch.full(shape, fill, dtype=dtype)).contiguous()
        self.receiver: core.Receiver | None = None
        self._carried: dict[str, Any] | None = None
        self._job: str | None = None
        self._committed = False  # in this session
        self._staged: int | None = None
        self._error: Error | None = None
        self._left = threading.Event()

    def part_of(self, full: torch.Tensor) -> torch.Tensor:
        return full.tensor_split(self._workers, dim=1)[self.index] if full.ndim > 1 else full

    def describe(self) -> dict[str, Any]:
        tensors = [
            {"name": name, "shape": list(shape), "dtype": dtypes.spelling(dtype)}
            for name, (shape, dtype) in self._tensors.items()
        ]
        return {"worker": self.index, "workers": self._workers, "tensors": tensors, "unread": [], "shadow": None}

    def join(self, info: dict[str, Any]) -> None:
        self.leave()
        self.receiver = core.Receiver(
            self._part(),
            {n: core.BufferMemory(b.data_ptr(), list(b.shape), list(b.stride())) for n, b in self.buffers.items()},
            coordinator=info["coordinator"],
            token=info["token"],
            job=info["job"],
            engine=info["engine"],
            worker=self.index,
            shadow=info["shadow"],
            transport=info["transport"],
            carried=self._carried,
        )
        self._job, self._committed = info["job"], False
        self._staged = self._error = None
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._stage, args=(self.receiver, self._left), daemon=True)
        self._thread.start()

    def _part(self) -> dict[str, Any]:
        buffers = []
        for name, buffer in self.buffers.items():
            columns = [0] * buffer.ndim
            if buffer.ndim > 1:
                before = torch.empty(self._tensors[name][0][1]).tensor_split(self._workers)[: self.index]
                columns[1] = sum(block.numel() for block in before)
            shape = list(buffer.shape)
            piece = {"tensor": name, "tensor_offset": columns, "shape": shape, "buffer_offset": [0] * buffer.ndim}
            buffers.append(
                {
                    "rank": self.index,
                    "buffer": name,
                    "dtype": dtypes.spelling(buffer.dtype),
                    "shape": shape,
                    "pieces": [piece],
                }
            )
        place = {"rank": self.index, "engine": "e0"}
        return {"tensors": [], "source": [], "destination": buffers, "topology": {"source": [], "destination": [place]}}

    def _stage(self, receiver: core.Receiver, left: threading.Event) -> None:
        memory = {n: core.BufferMemory(b.data_ptr(), list(b.shape), list(b.stride())) for n, b in self.buffers.items()}
        while not left.is_set():
            try:
                generation = receiver.next_generation(600.0)
                receiver.stage(generation, memory)
            except Error as error:
                self._error = error
                return
            self._staged, self._taken = generation, threading.Event()
            self._taken.wait()

    def commit(self, generation: int) -> None:
        assert self._staged == generation, (self._staged, generation)
        self.receiver.commit(generation)
        self._committed = True
        self._staged = None
        self._taken.set()

    def status(self) -> dict[str, Any]:
        receiver = self.receiver
        return {
            "worker": self.index,
            "joined": receiver is not None and self._error is None,
            "serving": receiver.serving if receiver else 0,
            "inherited": not self._committed,
            "job": self._job,
            "staged": self._staged,
            "error": self._error and self._error.to_json(),
            "waiting_for": "",
            "stats": receiver.stats if receiver else {},
        }

    def leave(self) -> None:
        if self.receiver is None:
            return
        self._left.set()
        if self._staged is not None:
            self._taken.set()
        receiver, self.receiver = self.receiver, None
        self._carried = receiver.carry()
        if self._error is None:
            receiver.abandon(InternalError("internal", "the engine leaves"))  # the thread may wait in next_generation
        self._thread.join()
        with contextlib.suppress(Error):  # why the session had ended
            receiver.close(10.0)


def _all(calls: list[Callable[[], None]]) -> None:
    """Each in a thread of its own; raises the first error."""
    errors: list[Error] = []

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        except Error as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
