"""For tests: a receiver whose announcements and failures are the test's to give."""

from __future__ import annotations

import queue
import threading
from typing import Any

from headrace.errors import DeadlineError, Error, StateError


class FakeReceiver:
    """The methods of headrace.core.Receiver that the engine uses, with its rules: it refuses calls from two threads at
    once and calls after close(), and an ended session answers with its error."""

    def __init__(self, shadow: str = "host", carried: dict[str, Any] | None = None) -> None:
        self.shadow = shadow
        self.announced: queue.Queue[int] = queue.Queue()
        self.stage_errors: dict[int, Error] = {}
        self.commit_errors: dict[int, Error] = {}  # end the session, unless `survives`
        self.survives = False
        self.wait_errors: list[Error] = []  # of the next waits that end without a generation
        self.may_stage = threading.Event()  # cleared: stage() waits
        self.may_stage.set()
        self.memory: dict[str, Any] | None = None  # what stage() expects; None: whatever the first one gives
        self.log: list[str] = []
        self.refused: list[int] = []  # generations whose buffers had moved
        self.closed = False
        self.waiting_for = ""
        self._served = (carried or {}).get("committed_generation", 0)
        self._poisoned = (carried or {}).get("poisoned", False)
        self._ended: Error | None = None
        self._turn = threading.Lock()
        self._staged: int | None = None

    def end(self, error: Error) -> None:
        """The session ends: a publisher died."""
        self._ended = error

    def status(self) -> None:
        self._check_open()
        if self._ended is not None:
            raise self._ended

    def next_generation(self, timeout: float) -> int:
        with _Alone(self._turn):
            self.status()
            try:
                return self.announced.get(timeout=timeout)
            except queue.Empty:
                self.status()
                if self.wait_errors:
                    raise self.wait_errors.pop(0) from None
                raise DeadlineError("deadline", "nothing was announced") from None

    def stage(self, generation: int, memory: Any, stream: int) -> None:
        with _Alone(self._turn):
            self.may_stage.wait(30)
            self.status()
            self.memory = memory if self.memory is None else self.memory
            if memory != self.memory:
                self.refused.append(generation)
                raise StateError("destination_moved", "buffers are gone")
            self.log.append(f"stage {generation}")
            if generation in self.stage_errors:
                self._poisoned |= self.shadow == "off"
                raise self.stage_errors[generation]
            self._staged = generation

    def apply(self, generation: int, stream: int = 0) -> None:
        with _Alone(self._turn):
            self.status()
            self.log.append(f"apply {generation}" + (f" after {stream}" if stream else ""))
            assert self._staged == generation
            self._poisoned = True

    def commit(self, generation: int) -> None:
        with _Alone(self._turn):
            self.status()
            self.log.append(f"commit {generation}")
            assert self._staged == generation
            self._staged = None
            if generation in self.commit_errors:
                self._poisoned = True
                error = self.commit_errors.pop(generation)
                self._ended = None if self.survives else error
                raise error
            self._served, self._poisoned = generation, False

    def abandon(self, error: Error) -> None:
        self._check_open()
        self.log.append(f"abandon {error.code}")
        self._ended, self._poisoned = error, True

    @property
    def serving(self) -> int | None:
        self._check_open()
        return None if self._poisoned else self._served

    @property
    def stats(self) -> dict[str, Any]:
        self._check_open()
        return {"bytes": 0, "shadow_bytes": 64}

    def carry(self) -> dict[str, Any]:
        return {"committed_generation": self._served, "committed_incarnation": "i", "poisoned": self._poisoned}

    def close(self, timeout: float) -> None:
        with _Alone(self._turn):
            self.closed = True
            if self._ended is not None:
                raise self._ended

    def _check_open(self) -> None:
        if self.closed:
            raise StateError("closed", "the receiver is closed")


class _Alone:
    def __init__(self, turn: threading.Lock) -> None:
        self._turn = turn

    def __enter__(self) -> None:
        assert self._turn.acquire(blocking=False), "two threads are inside the receiver"

    def __exit__(self, *_: Any) -> None:
        self._turn.release()
