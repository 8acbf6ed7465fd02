"""One session of a trainer's publisher: its coordinator, its members, and the thread in which engines are swapped.

A session ends for the trainer's ranks when one of them is lost; a publisher then makes another one (publisher.py). An
engine that is lost ends its own part alone, and joins again at the next swap.
"""

import contextlib
import logging
import secrets
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

import torch

from headrace import core
from headrace.driver import Driver
from headrace.engines import Engine
from headrace.errors import DeadlineError, Error, PeerError
from headrace.torch.group import Group
from headrace.torch.names import Names, refuse_strangers
from headrace.torch.sources import Sources, Wanted, places, refuse_unwanted, sources
from headrace.torch.streams import current_stream

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SessionOptions:
    """Where the members meet and how bytes travel; equal on all ranks. publisher.py says what each is."""

    engines: Sequence[Engine | str]
    shadow: str
    transport: str
    publishing: str
    names: Names | None
    pause_mode: str
    job: str
    listen: str
    timeout: float
    join_timeout: float
    commit_timeout: float
    rejoin: float
    policy: str
    tls: core.ClientTls | None
    coordinator_tls: core.ServerTls | None
    trust_network: bool
    engine_options: Mapping[str, Any]
    publisher_options: Mapping[str, Any]


class Session:
    """Made by all ranks together, which then hold it together. Thread rules: those of Publisher."""

    def __init__(self, group: Group, tensors: Mapping[str, torch.Tensor], options: SessionOptions) -> None:
        """Joins all ranks and all engines. Raises on every rank when one of them or an engine fails."""
        self._group = group
        self._timeout = options.timeout
        self._coordinator: core.Coordinator | None = None
        self._driver: Driver | None = None
        self._publisher: core.Publisher | None = None
        self._swaps = ThreadPoolExecutor(1, thread_name_prefix="headrace-swap")
        try:
            meeting = group.first(lambda: self._open(options))
            offer = _offer(group, tensors, meeting["tensors"], options.names)
            self._places = places(tensors)
            self._tensors = offer.tensors
            self._gpu = offer.gpu
            group.each(lambda: self._join(offer, meeting, options))
        except BaseException:
            self.abandon()
            raise

    def _open(self, options: SessionOptions) -> dict[str, Any]:
        """Rank 0: asks the engines what they read, and starts the coordinator. Returns what all ranks must know."""
        token, incarnation = secrets.token_hex(32), secrets.token_hex(8)
        engine_options = {
            "shadow": options.shadow,
            "transport": options.transport,
            "join_timeout": options.join_timeout,
            "commit_timeout": options.commit_timeout,
            **({"trust_network": True} if options.trust_network else {}),
            **options.engine_options,
        }
        asked = Driver(options.engines, options=engine_options, deadline=options.timeout).describe()
        self._coordinator = core.Coordinator(
            job=options.job,
            publishers=self._group.size,
            workers=asked["workers"],
            token=token,
            incarnation=incarnation,
            listen=options.listen,
            policy=options.policy,
            tls=options.coordinator_tls,
            trust_network=options.trust_network,
            timeouts=_timeouts(options),
        )
        self._driver = Driver(
            options.engines,
            job=options.job,
            token=token,
            coordinator=self._coordinator.address,
            options=engine_options,
            pause_mode=options.pause_mode,
            deadline=options.timeout,
        )
        return {
            "tensors": asked["tensors"],
            "token": token,
            "incarnation": incarnation,
            "coordinator": self._coordinator.address,
        }

    def _join(self, offer: Sources, meeting: dict[str, Any], options: SessionOptions) -> None:
        engines = _Engines(self._driver, self._coordinator) if self._driver else None
        own: Error | None = None
        try:
            self._publisher = core.Publisher(
                offer.part,
                offer.memory,
                coordinator=meeting["coordinator"],
                token=meeting["token"],
                job=options.job,
                rank=self._group.rank,
                incarnation=meeting["incarnation"],
                transport=options.transport,
                publishing=options.publishing,
                gpu=offer.gpu,
                tls=options.tls,
                trust_network=options.trust_network,
                connect_timeout=options.join_timeout,
                timeouts=_timeouts(options),
                **options.publisher_options,
            )
        except Error as error:
            own = error
            if self._coordinator:
                self._coordinator.stop()  # the engines would wait for this rank
        theirs = engines.joined() if engines else None
        # What both were told is the session's end; what only one of them knows is its cause.
        if own is not None and (theirs is None or not isinstance(own, (PeerError, DeadlineError))):
            raise own
        if theirs is not None:
            raise theirs

    def ended(self) -> str | None:
        """Why this rank can publish nothing more in this session; None while it can."""
        try:
            self._publisher.status()
        except Error as error:
            return str(error)
        return None

    def moved(self, tensors: Mapping[str, torch.Tensor]) -> list[str]:
        """The tensors that are not where, or not cut as, they were when this rank joined."""
        now = places(tensors)
        return sorted(name for name in now.keys() | self._places.keys() if now.get(name) != self._places.get(name))

    def publish(self, generation: int) -> dict[str, Any]:
        """This rank's snapshot, after what this thread has enqueued on its GPU. Returns its stats."""
        self._publisher.publish(generation, self._timeout, current_stream(self._gpu))
        return {"rank": self._group.rank, **self._publisher.stats}

    def release(self, generation: int) -> None:
        """The swap of `generation` is over: this rank's weights may change."""
        with contextlib.suppress(Error):  # what an engine did not read is void; a session that ended says so elsewhere
            self._publisher.await_release(generation, 0.0)

    def swap(self, generation: int) -> "Future[dict[str, Any]] | None":
        """Rank 0: has the engines take `generation`, after those of before, in a thread; those that were lost join again
        first. None on other ranks."""
        return self._swaps.submit(self._swap, generation) if self._driver else None

    def _swap(self, generation: int) -> dict[str, Any]:
        return self._driver.swap(generation, rejoin=self.ended() is None)

    def close(self) -> None:
        """All ranks: leaves in order, after the last swap: the engines, which free their shadows and mappings, the
        publishers, the coordinator."""
        try:
            self._group.each(self._dismiss)
            self._group.each(self._leave)
        finally:
            self.abandon()

    def _dismiss(self) -> None:
        if self._driver:
            for error in self._driver.shutdown():
                if error is not None:
                    _log.info("Headrace: %s", error)  # an engine that does not answer has left

    def _leave(self) -> None:
        with contextlib.suppress(PeerError):  # the session had ended before
            self._publisher.close(self._timeout)

    def abandon(self) -> None:
        """This rank alone: leaves at once. What is being swapped fails."""
        if self._coordinator:
            self._coordinator.stop()
        self._swaps.shutdown(wait=False, cancel_futures=True)
        if self._publisher:
            with contextlib.suppress(Error):  # it is left all the same
                self._publisher.close(0.0)
        self._publisher = self._coordinator = None


def _timeouts(options: SessionOptions) -> core.Timeouts:
    return core.Timeouts(
        join=options.join_timeout,
        plan=options.join_timeout,
        commit=options.commit_timeout,
        rejoin=options.rejoin,
    )


def _offer(group: Group, tensors: Mapping[str, torch.Tensor], wanted: Wanted, names: Names | None) -> Sources:
    """All ranks: this one's sources, when all could make theirs and together they offer nothing that no engine reads."""
    made = []

    def offer() -> tuple[set[str], set[str], list[str]]:
        made.append(sources(tensors, wanted, names, group.rank))
        return made[0].unwanted, made[0].offered, list(tensors)

    ranks = group.each(offer)
    refuse_strangers([parameter for _, _, parameters in ranks for parameter in parameters], names)
    refuse_unwanted([(unwanted, offered) for unwanted, offered, _ in ranks])
    return made[0]


class _Engines:
    """The engines' way into the session, in a thread, while this rank's publisher joins."""

    def __init__(self, driver: Driver, coordinator: core.Coordinator) -> None:
        self._error: Exception | None = None
        self._driver = driver
        self._coordinator = coordinator
        self._thread = threading.Thread(target=self._run, name="headrace-join", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._driver.init()
        except Exception as error:  # raised by joined(), in the thread that can
            self._error = error
            self._coordinator.stop()  # the publishers would wait for the engines

    def joined(self) -> Exception | None:
        """Waits until all engines have joined, or why one has not."""
        self._thread.join()
        return self._error
