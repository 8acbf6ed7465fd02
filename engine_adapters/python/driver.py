"""Swaps a generation into running engines: pause, start, update, finish, cache resets, resume, in the right order.

    driver = Driver(["http://a:8000", "http://b:8000"], job=..., token=..., coordinator=..., options={"shadow": "host"})
    driver.init()     # while the publishers join
    driver.swap(7)    # after generation 7 was published

What holds for every engine, whatever fails:

    - It is resumed only when all its workers serve one and the same generation and its caches hold nothing older.
    - An engine whose workers all still serve the old generation is resumed after a failure.
    - A worker that serves nothing keeps its engine paused (StateError "poisoned") until a later swap has committed a
      full generation on all of its workers.
    - A response that is lost says nothing about what happened: the workers are asked before anything else is done.
    - One engine's failure does not touch the others.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Sequence, TypeVar

from headrace.engines import Engine, HttpEngine, LocalEngine
from headrace.errors import Error, InputError
from headrace.swap import EngineSwap, Progress, about, engine_name

__all__ = ["Driver", "Engine", "HttpEngine", "LocalEngine", "describe"]

T = TypeVar("T")

PAUSE_MODES = ("keep", "wait", "abort")
SHADOWS = ("host", "device", "off")


class Driver:
    """Steers `engines` (addresses of vLLM servers, or Engine objects).

    job, token, coordinator: where the engines join; needed to join them alone. options: "shadow" ("host", "device" or "off",
    required), "engine" (the number in the job of the first of `engines`, the others follow it; 0) and what else the
    engines' init info takes. pause_mode: what becomes of running requests. deadline:
    seconds for each init and each swap. Thread rules: one call at a time.
    """

    def __init__(
        self,
        engines: Sequence[Engine | str],
        *,
        job: str | None = None,
        token: str | None = None,
        coordinator: str | None = None,
        options: dict[str, Any],
        pause_mode: str = "keep",
        deadline: float = 600.0,
        progress: Progress | None = None,
    ) -> None:
        if not engines:
            raise InputError("invalid_option", "a driver needs at least one engine")
        if pause_mode not in PAUSE_MODES:
            raise InputError("invalid_option", f'pause_mode is "{pause_mode}"; it may be {", ".join(PAUSE_MODES)}')
        if options.get("shadow") not in SHADOWS:
            message = f'options["shadow"] is {options.get("shadow")!r}; it must be one of {", ".join(SHADOWS)}'
            raise InputError("invalid_option", message)
        if not deadline > 0:
            raise InputError("invalid_option", f"deadline is {deadline}; it must be above 0")
        self.engines: list[Engine] = [HttpEngine(e, timeout=deadline) if isinstance(e, str) else e for e in engines]
        self._info = {"job": job, "token": token, "coordinator": coordinator}
        self._options = dict(options)
        self._first = self._options.pop("engine", 0)
        if type(self._first) is not int or self._first < 0:
            raise InputError("invalid_option", f'options["engine"] is {self._first!r}; it must be an int from 0 on')
        self._pause_mode = pause_mode
        self._deadline = deadline
        self._progress = progress
        self._errors: list[list[Any] | None] = [None] * len(self.engines)  # its workers' errors as last seen

    def describe(self) -> dict[str, Any]:
        """What the engines read; see the function of this name."""
        return describe(self.engines)

    def init(self) -> None:
        """Joins every engine to the job, all at once. Blocks until they have joined: until all publishers and all
        engines that the coordinator waits for are there, or in a job that runs, until its next epoch.

        Raises as soon as one engine fails. The others may be joining still: they wait for it until the caller stops the
        coordinator.
        """
        self._check_job()
        outcomes: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

        def told(index: int) -> None:
            try:
                with about(self._first + index, self.engines[index]):
                    self._join(index)
            except BaseException as error:
                outcomes.put(error)
            else:
                outcomes.put(None)

        for index in range(len(self.engines)):
            # Daemons: one that still waits when another has failed must not keep the process from ending.
            threading.Thread(target=told, args=(index,), name=f"headrace-init-{index}", daemon=True).start()
        for _ in self.engines:
            error = outcomes.get()
            if error is not None:
                raise error

    def _check_job(self) -> None:
        missing = [name for name, value in self._info.items() if not value]
        if missing:
            message = f"the driver was made without {', '.join(missing)}, which joining needs"
            raise InputError("invalid_option", message)

    def _join(self, index: int) -> None:
        self.engines[index].init(self._info | self._options | {"engine": self._first + index})
        self._errors[index] = [worker.get("error") for worker in self.engines[index].status()]

    def swap(self, generation: int, rejoin: bool = False) -> dict[str, Any]:
        """Swaps a published generation into all engines, concurrently.

        rejoin: joins an engine first that has a worker in no job, since it was lost or has started again; for jobs that
        go on without it. Returns {"generation", "engines": [...]}, for each engine
            "engine" (its number in the job), "name", "outcome" ("swapped", "failed"),
            "state" ("serving", "paused", "untouched"; "unknown": no answer to the resume),
            "seconds" of each step ("staged": the wait for all votes; "paused": from the pause to the resume),
            "workers" (each worker's last stats), "error" (None, or an error's JSON), "notes" (what was mended).
        Errors: that of the first engine that failed, naming engine and worker; its attribute `report` has the report.
        Calling it again with the same generation completes what was begun.
        """
        if generation < 1:
            raise InputError("invalid_option", f"generation is {generation}; generations count from 1")
        if rejoin:
            self._check_job()
        swaps = [
            EngineSwap(
                self._first + index,
                engine,
                generation,
                self._options["shadow"],
                self._pause_mode,
                self._deadline,
                self._progress,
                self._info["job"],
                self._errors[index],
                (lambda i=index: self._join(i)) if rejoin else None,
            )
            for index, engine in enumerate(self.engines)
        ]
        _, errors = _on_each(lambda i: swaps[i].run(), len(swaps))
        for index, error in enumerate(errors):
            self._errors[index] = swaps[index].errors
        report = {"generation": generation, "engines": [swap.report for swap in swaps]}
        _raise_first(errors, report)
        return report

    def shutdown(self) -> list[Error | None]:
        """Has every engine leave the job, before the publishers do. Returns why an engine could not, for each."""

        def leave(index: int) -> None:
            with about(self._first + index, self.engines[index]):
                self.engines[index].shutdown()

        return _on_each(leave, len(self.engines))[1]


def describe(engines: Sequence[Engine]) -> dict[str, Any]:
    """{"workers": [how many each engine has], "shadow": [what each is configured with, or None],
    "tensors": {name: {"shape", "dtype"}}, "unread": [names that their checkpoints have and that no engine reads]}.

    InputError `shape_mismatch` or `dtype_mismatch` names a tensor that two workers read differently.
    """

    def ask(index: int) -> list[dict[str, Any]]:
        with about(index, engines[index]):
            return engines[index].describe()

    answers, errors = _on_each(ask, len(engines))
    _raise_first(errors)
    tensors: dict[str, dict[str, Any]] = {}
    readers: dict[str, str] = {}
    for index, workers in enumerate(answers):
        name = engine_name(index, engines[index])
        if [w["worker"] for w in workers] != list(range(workers[0]["workers"])):
            message = f"{name} has {workers[0]['workers']} workers, and answered for {[w['worker'] for w in workers]}"
            raise InputError("invalid_option", message, peer=name)
        for worker in workers:
            reader = f"{name}, worker {worker['worker']}"
            for tensor in worker["tensors"]:
                seen = tensors.setdefault(tensor["name"], {"shape": tensor["shape"], "dtype": tensor["dtype"]})
                first = readers.setdefault(tensor["name"], reader)
                for field in ("shape", "dtype"):
                    if seen[field] != tensor[field]:
                        message = (
                            f'tensor "{tensor["name"]}": {first} reads {seen[field]}, {reader} reads {tensor[field]}; '
                            "the engines of one job must run the same model in the same dtype"
                        )
                        raise InputError(f"{field}_mismatch", message, tensor=tensor["name"], peer=reader)
    return {
        "workers": [len(workers) for workers in answers],
        "shadow": [workers[0].get("shadow") for workers in answers],
        "tensors": tensors,
        "unread": sorted({name for workers in answers for w in workers for name in w["unread"]} - tensors.keys()),
    }


def _on_each(call: Callable[[int], T], count: int) -> tuple[list[T | None], list[Error | None]]:
    """call(0), ..., call(count - 1), each in a thread of its own; what they returned and what they raised."""
    results: list[T | None] = [None] * count
    errors: list[Error | None] = [None] * count
    with ThreadPoolExecutor(count, thread_name_prefix="headrace-driver") as threads:
        for index, future in enumerate([threads.submit(call, i) for i in range(count)]):
            try:
                results[index] = future.result()
            except Error as error:
                errors[index] = error
    return results, errors


def _raise_first(errors: list[Error | None], report: dict[str, Any] | None = None) -> None:
    failed = [error for error in errors if error is not None]
    if not failed:
        return
    if len(failed) > 1:
        failed[0].message += "; also: " + "; ".join(str(error) for error in failed[1:])
    if report is not None:
        failed[0].report = report
    raise failed[0]
