"""A small job for the tests of the core: two publishers hold rows, two workers of one engine want columns.

The oracle counts elements one by one with struct; it shares nothing with the code under test.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from headrace import core

TOKEN = "the-token-of-the-tests"
ROWS, COLUMNS = 5, 6
# name -> (dtype, bytes of an element)
TENSORS = {"wide": ("BF16", 2), "narrow": ("F8_E4M3", 1), "master": ("F32", 4)}
ROWS_OF = ((0, 3), (3, 5))  # of each publisher
COLUMNS_OF = ((0, 2), (2, 6))  # of each worker

T = TypeVar("T")


def element(tensor: str, row: int, column: int, generation: int) -> bytes:
    """The bytes of one element: different for every tensor, place and generation as far as its width allows."""
    value = (list(TENSORS).index(tensor) * 7919 + (row * COLUMNS + column) * 257 + generation * 65537) * 2654435761
    return struct.pack("<Q", value >> 7 & 0xFFFFFFFFFFFFFFFF)[: TENSORS[tensor][1]]


def box(tensor: str, rows: tuple[int, int], columns: tuple[int, int], generation: int) -> bytes:
    """A box of a tensor, row-major."""
    return b"".join(element(tensor, r, c, generation) for r in range(*rows) for c in range(*columns))


def _buffer(tensor: str, rank: int, rows: tuple[int, int], columns: tuple[int, int]) -> dict[str, Any]:
    shape = [rows[1] - rows[0], columns[1] - columns[0]]
    piece = {"tensor": tensor, "tensor_offset": [rows[0], columns[0]], "shape": shape, "buffer_offset": [0, 0]}
    return {"rank": rank, "buffer": tensor, "dtype": TENSORS[tensor][0], "shape": shape, "pieces": [piece]}


def source_part(rank: int) -> dict[str, Any]:
    return {
        "tensors": [{"name": n, "shape": [ROWS, COLUMNS], "dtype": d} for n, (d, _) in TENSORS.items()],
        "source": [_buffer(n, rank, ROWS_OF[rank], (0, COLUMNS)) for n in TENSORS],
        "destination": [],
        "topology": {"source": [{"rank": rank}], "destination": []},
    }


def destination_part(worker: int, rank: int | None = None) -> dict[str, Any]:
    """rank: None: the worker's number."""
    rank = worker if rank is None else rank
    return {
        "tensors": [],
        "source": [],
        "destination": [_buffer(n, rank, (0, ROWS), COLUMNS_OF[worker]) for n in TENSORS],
        "topology": {"source": [], "destination": [{"rank": rank}]},
    }


class Source:
    """One publisher's weights."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.buffers = {n: ctypes.create_string_buffer(len(box(n, ROWS_OF[rank], (0, COLUMNS), 1))) for n in TENSORS}

    def write(self, generation: int) -> None:
        for name, buffer in self.buffers.items():
            buffer.raw = box(name, ROWS_OF[self.rank], (0, COLUMNS), generation)

    @property
    def memory(self) -> dict[str, int]:
        return {n: ctypes.addressof(b) for n, b in self.buffers.items()}


class Live:
    """One worker's live buffers; 0xA5 at first."""

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.buffers = {}
        for name in TENSORS:
            size = len(box(name, (0, ROWS), COLUMNS_OF[worker], 1))
            self.buffers[name] = ctypes.create_string_buffer(b"\xa5" * size, size)

    @property
    def memory(self) -> dict[str, core.BufferMemory]:
        width = COLUMNS_OF[self.worker][1] - COLUMNS_OF[self.worker][0]
        return {n: core.BufferMemory(ctypes.addressof(b), (ROWS, width), (width, 1)) for n, b in self.buffers.items()}

    def content(self) -> dict[str, bytes]:
        return {n: b.raw for n, b in self.buffers.items()}

    def expected(self, generation: int) -> dict[str, bytes]:
        return {n: box(n, (0, ROWS), COLUMNS_OF[self.worker], generation) for n in TENSORS}


def together(*calls: Callable[[], T]) -> list[T]:
    """Runs the calls in threads of their own; returns their results, or raises the first error."""
    results: list[Any] = [None] * len(calls)
    errors: list[BaseException] = []

    def run(i: int, call: Callable[[], T]) -> None:
        try:
            results[i] = call()
        except BaseException as e:  # noqa: BLE001: it is raised below
            errors.append(e)

    threads = [threading.Thread(target=run, args=(i, c), daemon=True) for i, c in enumerate(calls)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return results


class Job:
    """A coordinator, two publishers and one engine of two workers, joined in this process; without the engine where
    the coordinator is told of none. `options` are all members'."""

    def __init__(
        self,
        shadow: str = "host",
        *,
        workers: Sequence[int] = (2,),
        policy: Any = "auto",
        timeouts: core.Timeouts = core.Timeouts(),
        coordinator_tls: core.ServerTls | None = None,
        standby: bool = False,
        **options: Any,
    ) -> None:
        self._options = {"timeouts": timeouts, **options}
        self.coordinator = core.Coordinator(
            job="job",
            publishers=2,
            workers=workers,
            token=TOKEN,
            incarnation="first",
            policy=policy,
            tls=coordinator_tls,
            timeouts=timeouts,
        )
        self.sources = [Source(rank) for rank in range(2)]
        self.live = [Live(worker) for worker in range(2)]
        joins: list[Callable[[], Any]] = [lambda s=s: self.publisher(s) for s in self.sources]
        if workers:
            joins += [lambda w=w: self.receiver(w, shadow, standby=standby) for w in self.live]
        try:
            members = together(*joins)
        except BaseException:
            self.coordinator.stop()
            raise
        self.publishers: list[core.Publisher] = members[:2]
        self.receivers: list[core.Receiver] = members[2:]

    def publisher(self, source: Source, **options: Any) -> core.Publisher:
        return core.Publisher(source_part(source.rank), source.memory, rank=source.rank, **self._where(options))

    def receiver(self, live: Live, shadow: Any, **options: Any) -> core.Receiver:
        where = self._where(options)
        return core.Receiver(
            destination_part(live.worker), live.memory, engine=0, worker=live.worker, shadow=shadow, **where
        )

    def _where(self, options: dict[str, Any]) -> dict[str, Any]:
        where = {"coordinator": self.coordinator.address, "token": TOKEN, "job": "job"}
        return {**where, **self._options, **options}

    def publish(self, generation: int) -> None:
        for source in self.sources:
            source.write(generation)
        together(*(lambda p=p: p.publish(generation, 30) for p in self.publishers))

    def stage(self) -> int:
        """Every worker takes the next generation in; returns it."""

        def take(receiver: core.Receiver, live: Live) -> int:
            generation = receiver.next_generation(30)
            receiver.stage(generation, live.memory)
            return generation

        first, second = together(*(lambda r=r, w=w: take(r, w) for r, w in zip(self.receivers, self.live)))
        assert first == second
        return first

    def commit(self, generation: int) -> None:
        together(*(lambda r=r: r.commit(generation) for r in self.receivers))

    def close(self) -> None:
        for member in (*self.receivers, *self.publishers):
            member.__exit__(Exception, Exception(), None)  # a session that a test ended has nothing more to say
        self.coordinator.stop()
