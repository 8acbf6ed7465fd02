"""One engine's way from one generation to the next; see driver.py for what holds whatever fails."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import Any, Callable, Iterator, TypeVar

from headrace.engines import Engine
from headrace.errors import CredentialsError, DeadlineError, Error, InputError, InternalError, StateError

T = TypeVar("T")

_FIRST_POLL_S = 0.02
_LONGEST_POLL_S = 0.1
# After a failure the workers are asked, and caches are reset, for up to this long even if the deadline has passed.
_SETTLE_S = 30.0

# Called with an engine's index, the generation and the workers' status while they stream, from that engine's thread.
Progress = Callable[[int, int, list[dict[str, Any]]], None]


class EngineSwap:
    """One engine's way from one generation to the next."""

    def __init__(
        self,
        index: int,
        engine: Engine,
        generation: int,
        shadow: str,
        pause_mode: str,
        deadline_s: float,
        progress: Progress | None,
        job: str | None,
        errors_before: list[Any] | None,
        join: Callable[[], None] | None = None,
    ) -> None:
        """job: whose generation it is; None: of the job that the engine is in. errors_before: what the workers' last
        errors were before the generation was published; None: not known, the first status tells. join: joins the engine
        to the job; called first where a worker is in none."""
        self._index = index
        self._engine = engine
        self._generation = generation
        self._shadow = shadow
        self._pause_mode = pause_mode
        self._deadline_s = deadline_s
        self._end = time.monotonic() + deadline_s
        self._progress = progress
        self._job = job
        self._join = join
        self._session = False  # the host may have an update session open
        self._errors_before = errors_before
        self.errors: list[Any] | None = errors_before  # the workers' last errors as they were last seen
        self.report: dict[str, Any] = {
            "engine": index,
            "name": getattr(engine, "name", type(engine).__name__),
            "outcome": "failed",
            "state": "untouched",
            "seconds": {},
            "workers": [],
            "error": None,
            "notes": [],
        }

    def run(self) -> None:
        try:
            with about(self._index, self._engine):
                self._run()
            self.report["outcome"] = "swapped"
        except Error as error:
            self.report["error"] = error.to_json()
            raise

    def _run(self) -> None:
        before = self._status()
        if self._errors_before is None:
            self._errors_before = self.errors
        committed = self._serve(before)
        if not committed and self._join is not None and not all(worker["joined"] for worker in before):
            before = self._join_again(before)
            committed = self._serve(before)
        if not committed:
            self._check_joined(before)
        if not committed and self._shadow != "off":
            with self._timed("staged"):
                self._await_staged()
        with self._timed("paused"):
            self.report["state"] = "paused"
            try:
                with self._timed("pause"):
                    self._engine.pause(self._pause_mode)
                if not committed:
                    with self._timed("start"):
                        self._start()
                    with self._timed("update"):
                        self._update()
            except Error as error:
                raise self._settle(error) from error
            # Before the version shows: who sees it may resume.
            with self._timed("reset"):
                self._reset_caches("")
            try:
                with self._timed("finish"):
                    self._finish()
            except Error as error:
                raise self._settle(error) from error
            with self._timed("resume"):
                self._resume("")

    def _join_again(self, workers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A worker was lost, or the engine was started again. Returns its workers' status afterwards."""
        lost = self._worker_error(workers)
        with self._timed("join"):
            self._join()
        self.report["notes"].append(f"it joined the job again ({lost or 'it was in none'})")
        workers = self._status()
        self._errors_before = self.errors
        return workers

    def _await_staged(self) -> None:
        """Until every worker of the engine has voted for the generation, which then lies in all shadows."""
        pause = _FIRST_POLL_S
        while True:
            workers = self._status()
            self._check_joined(workers)
            failed = self._worker_error(workers)
            if failed is not None:
                raise failed
            if all(worker["staged"] == self._generation for worker in workers):
                return
            left = self._end - time.monotonic()
            if left <= 0:
                raise DeadlineError("deadline", self._late(workers))
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, _LONGEST_POLL_S)

    def _check_joined(self, workers: list[dict[str, Any]]) -> None:
        """Raises where the generation can never come."""
        for worker in workers:
            if not worker["joined"]:
                failed = self._worker_error(workers)
                message = f"worker {worker['worker']} is in no job: init() comes first, and again after a session's end"
                raise failed or StateError("malformed", message, rank=worker["worker"])
            self._job = self._job or worker["job"]
            if worker["job"] != self._job:
                message = f"worker {worker['worker']} is in job {worker['job']!r}, not in {self._job!r}: another trainer took it"
                raise StateError("wrong_job", message, rank=worker["worker"])
            if (worker["staged"] or 0) > self._generation:
                message = f"worker {worker['worker']} has staged generation {worker['staged']} already"
                raise StateError("generation_not_growing", message, rank=worker["worker"])

    def _late(self, workers: list[dict[str, Any]]) -> str:
        late = []
        for worker in workers:
            if worker["staged"] != self._generation:
                why = [f"waits for {worker['waiting_for']}"] if worker.get("waiting_for") else []
                why += [f"last error {_said(worker['error'])}"] if worker.get("error") else []
                late.append(f"worker {worker['worker']}" + (f" ({', '.join(why)})" if why else ""))
        return f"generation {self._generation} was not staged within {self._deadline_s:g} s on {', '.join(late)}"

    def _start(self) -> None:
        self._session = True
        try:
            self._engine.start()
        except Error as error:
            # A driver that died, or a host that failed while finishing, leaves its session open: every start fails.
            if not self._close_session():
                raise
            self._session = True
            self._engine.start()
            self.report["notes"].append(f"an update session of before was closed ({error})")

    def _update(self) -> None:
        try:
            self._engine.update({"generation": self._generation, "job": self._job})
        except Error as error:
            if not self._serve(self._status_at_last()):
                raise
            self.report["notes"].append(f"the update was made, its response was lost ({error})")
        else:
            if not self._serve(self._status_at_last()):
                message = f"the update returned without an error, and not every worker serves {self._generation}"
                raise InternalError("internal", message)

    def _finish(self) -> None:
        """Of an update that is committed on all workers: the version must be shown, however the session ends."""
        version = str(self._generation)
        if not self._session:  # a swap of before ended after its commit
            self._close_session()
            self._engine.set_version(version)
            return
        try:
            self._engine.finish(version)
            self._session = False
        except Error as error:
            if not self._serve(self._status_at_last()):
                raise
            self._engine.set_version(version)
            self.report["notes"].append(f"the host failed while finishing, after the commit ({error})")

    def _close_session(self) -> bool:
        """Ends an update session that may be open; finish does nothing in Headrace's workers."""
        try:
            self._engine.finish(None)
        except Error:
            return False  # none was open, or the engine is gone: what follows will tell
        finally:
            self._session = False
        return True

    def _settle(self, error: Error) -> Error:
        """After a failure in the pause: resumes the engine if it may serve. Returns the error to raise."""
        if self._session:
            self._close_session()
        try:
            workers = self._status_at_last()
        except Error as silent:
            message = f"{error.message}; then its workers did not say what they serve ({silent}): it stays paused"
            return _with_message(error, message)
        cause = self._worker_error(workers) or error
        serving = {worker["serving"] for worker in workers}
        if None in serving or len(serving) > 1:
            return self._poisoned(workers, str(cause))
        served = serving.pop()
        self._reset_caches(f"after {cause} ")
        if served > 0:  # a driver that died may have left it without its version
            self._retried(lambda: self._engine.set_version(str(served)))
        self._resume(f"after {cause} ")
        return _with_message(cause, f"{cause.message}; it serves generation {served} on")

    def _poisoned(self, workers: list[dict[str, Any]], why: str) -> Error:
        empty = [worker["worker"] for worker in workers if worker["serving"] is None]
        held = ", ".join(f"worker {w['worker']} {'nothing' if w['serving'] is None else w['serving']}" for w in workers)
        message = f"{why}; serving now: {held}. It stays paused until a full generation has committed on all workers"
        return StateError("poisoned", message, rank=empty[0] if empty else None)

    def _worker_error(self, workers: list[dict[str, Any]]) -> Error | None:
        """The error that ended this generation or the session on a worker: its own before those it has from others."""
        found = []
        for worker, before in zip(workers, self._errors_before or []):
            error = worker.get("error")
            if error and (error != before or not worker["joined"]):
                made = Error.from_json(error)
                made.rank = worker["worker"] if made.rank is None else made.rank
                found.append(_with_message(made, f"worker {worker['worker']}: {made.message}"))
        return min(found, key=lambda e: e.code in ("aborted", "poisoned", "peer_lost"), default=None)

    def _status(self) -> list[dict[str, Any]]:
        workers = self._engine.status()
        self.errors = [worker.get("error") for worker in workers]
        self.report["workers"] = [worker.get("stats") or {} for worker in workers]
        if self._progress is not None:
            self._progress(self._index, self._generation, workers)
        return workers

    def _status_at_last(self) -> list[dict[str, Any]]:
        return self._retried(self._status)

    def _serve(self, workers: list[dict[str, Any]]) -> bool:
        """They committed it in this session: a job before may have had a generation of the same number."""
        return all(worker["serving"] == self._generation and not worker["inherited"] for worker in workers)

    def _reset_caches(self, after: str) -> None:
        """Must succeed before the engine may serve: what is cached was computed with the old weights."""
        try:
            self._retried(self._engine.reset_caches)
        except Error as error:
            if self._session:
                self._close_session()
            message = f"{after}its caches were not reset ({error.message}): it stays paused; swap again"
            raise _with_message(error, message) from error

    def _resume(self, after: str) -> None:
        self.report["state"] = "unknown"
        try:
            self._retried(self._engine.resume)
        except Error as error:
            message = f"{after}it did not confirm its resume ({error.message}): it may be paused; swap again"
            raise _with_message(error, message) from error
        self.report["state"] = "serving"

    def _retried(self, call: Callable[[], T]) -> T:
        """`call`, again and again until the deadline, but for at least a while after a failure."""
        end = max(self._end, time.monotonic() + min(self._deadline_s, _SETTLE_S))
        pause = _FIRST_POLL_S
        while True:
            try:
                return call()
            except (InputError, CredentialsError):
                raise
            except Error:
                if time.monotonic() + pause >= end:
                    raise
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_POLL_S)

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        finally:
            self.report["seconds"][step] = time.monotonic() - begin


def engine_name(index: int, engine: Engine) -> str:
    return f"engine {index} ({getattr(engine, 'name', type(engine).__name__)})"


@contextmanager
def about(index: int, engine: Engine) -> Iterator[None]:
    """Has errors name the engine."""
    try:
        yield
    except Error as error:
        name = engine_name(index, engine)
        named = _with_message(error, f"{name}: {error.message}")
        named.peer = error.peer or name
        raise named from error


def _said(error: dict[str, Any]) -> str:
    return f"{error['code']}: {error['message']}"


def _with_message(error: Error, message: str) -> Error:
    return Error.from_json(error.to_json() | {"message": message})
