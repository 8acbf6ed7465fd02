"""Three lines in a trainer:

    publisher = headrace.torch.Publisher(model, ["http://engine:8000"], shadow="host")
    for step in ...:
        ...                       # train
        publisher.publish(step)   # returns when this rank's shard is copied; the engines swap while training goes on

Every rank makes one and makes the same calls. Each offers the shards that it holds; no full tensor is ever gathered.
"""

import logging
import secrets
import time
from concurrent.futures import Future
from typing import Any, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn

from headrace import core
from headrace.engines import Engine
from headrace.errors import InputError, StateError
from headrace.torch.group import Group
from headrace.torch.names import Names
from headrace.torch.session import Session, SessionOptions
from headrace.torch.sources import current_tensors

_log = logging.getLogger(__name__)


class Publisher:
    """A trainer's side of a job: sends its weights to running engines, generation by generation.

    All methods are collective over the trainer's ranks (except that of a `with` block left by an exception), and a
    failure of one rank or engine raises on all of them. Thread rules: one thread per rank. No weight may change while
    publish() runs; before and after it, optimizers may write as they like. With publishing="hold" none may change from
    publish() until wait() returned or raised: engines read the weights themselves, and no memory is taken for a copy.

    An engine that loses a worker leaves the others alone. It joins again, healed by that generation, when the next one
    is swapped in; its "notes" in wait()'s report say so.

    A session ends when a trainer rank is lost. Then, after a swap that failed, and when a tensor has moved in memory or
    is cut in another way than before (by `model.to()` or `load_state_dict(assign=True)`), the next publish() makes a
    new session by itself: engines are asked anew what they read, all join again, and a poisoned engine is healed by that
    generation. wait()'s report says so in "joined", and a warning is logged. Tensors that move at every step make every
    publish() join: correct, but slow.
    """

    def __init__(
        self,
        model: nn.Module | Mapping[str, torch.Tensor],
        engines: Sequence[Engine | str],
        *,
        shadow: str,
        transport: str = "host",
        publishing: str = "snapshot",
        names: Names | None = None,
        group: dist.ProcessGroup | None = None,
        pause_mode: str = "keep",
        job: str | None = None,
        listen: str = "127.0.0.1:0",
        timeout: float = 600.0,
        join_timeout: float = 120.0,
        commit_timeout: float = 600.0,
        rejoin: float = 0.0,
        policy: str = "auto",
        tls: core.ClientTls | None = None,
        coordinator_tls: core.ServerTls | None = None,
        trust_network: bool = False,
        engine_options: Mapping[str, Any] | None = None,
        publisher_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Joins the ranks and the engines; blocks until all agreed on a plan.

        model: a module or a dict of tensors by name, plain ones or DTensors, in host memory or on one GPU of each rank.
          It is looked at again at each publish().
          A plain tensor is offered whole by every rank that has it, so all of them must hold the same values.
        engines: addresses of servers, or Engine objects. Rank 0 talks to them; those of other ranks are not looked at.
        shadow: "host", or "device" in the memory of its GPU: weights arrive beside the live ones while the engine
          serves; "off": the engine is paused.
        publishing: "snapshot": each publish() copies the weights, those on a GPU into host memory (transport "cuda": on
          that GPU) after all that its thread has enqueued on the current stream there; "hold": it does not, see above;
          weights on a GPU can be held over "nccl" and "ucx".
        names: from parameters to the checkpoint's names, see names.py; None: they are the same.
        group: the trainer's ranks; None: the default group, or this process alone when there is none.
        pause_mode: what becomes of running requests: "keep", "wait" or "abort".
        job: its name; None: a random one.
        listen: where rank 0's coordinator listens, HOST:PORT that all members reach. Port 0: any free one. Beyond
          loopback it needs coordinator_tls and tls, or trust_network.
        timeout: seconds for each answer of an engine, each publish() and each swap.
        join_timeout: seconds for all members to come, and again for all to agree on the plan.
        commit_timeout: seconds from an engine's decision to its commit: the driver pauses the engine in between. With
          pause_mode "wait" that takes as long as the longest request.
        rejoin: seconds for which the job waits for a member that was cut off (core.Timeouts); 0: not at all.
        policy: "auto" or "hybrid", see core.Coordinator.
        coordinator_tls: rank 0's PEM files. tls: those of each rank as a member; the engines' are their own, given by
          their operators or in engine_options ("tls", as in docs/vllm.md).
        trust_network: the token may cross the network without TLS, on all ranks and to all engines.
        engine_options: more of the engines' init info. publisher_options: chunk_bytes, staging_bytes, devices.
        Errors: InputError `unwanted` for a tensor that no engine reads and that is no second name of one that is read;
        `uncovered` for one that engines read and the trainer lacks; `shape_mismatch`; others of the plan
        (docs/manifest.md); PeerError when an engine or a rank is not there.
        """
        self._model = model
        self._group = Group(group)
        self._options = SessionOptions(
            engines=list(engines),
            shadow=shadow,
            transport=transport,
            publishing=publishing,
            names=names,
            pause_mode=pause_mode,
            job=self._group.first(lambda: job or f"headrace-{secrets.token_hex(8)}"),
            listen=listen,
            timeout=timeout,
            join_timeout=join_timeout,
            commit_timeout=commit_timeout,
            rejoin=rejoin,
            policy=policy,
            tls=tls,
            coordinator_tls=coordinator_tls,
            trust_network=trust_network,
            engine_options=dict(engine_options or {}),
            publisher_options=dict(publisher_options or {}),
        )
        self._closed = False
        self._published = 0  # the newest generation
        self._failed: str | None = None  # why the session that was is of no use; equal on all ranks
        self._joined: str | None = "the first time"
        self._swap: Future[dict[str, Any]] | None = None  # rank 0: of the newest generation
        self._pending = False  # a swap whose outcome no rank has been told
        self._trainer: list[dict[str, Any]] = []
        self._session: Session | None = self._join()

    def publish(self, generation: int, wait: bool = False) -> dict[str, Any] | None:
        """Offers the weights as they are now as `generation`, which must grow. Returns when they may change again, or
        (publishing="hold") when only wait() is left to do.

        The engines take it while training goes on, one generation after the other; with `wait` it returns wait()'s
        report, otherwise None. The swap before, when nobody has waited for it, is looked at first if it is over: its
        error is raised here, and nothing is published. After an error the same generation may be published again.
        Errors: InputError for what is no generation; StateError `generation_not_growing`; DeadlineError naming the engines that still read both snapshots;
        those of the constructor when it joins anew.
        """
        self._check_open()
        if type(generation) is not int or generation < 1:
            raise InputError("invalid_option", f"generation is {generation!r}; it must be an int from 1 on")
        begin = time.monotonic()
        hold = self._options.publishing == "hold"
        if self._pending and (hold or all(self._group.each(lambda: self._swap is None or self._swap.done()))):
            self.wait()
        tensors: dict[str, torch.Tensor] = {}
        states = self._group.each(lambda: self._look(generation, tensors))
        why = self._failed or next((state for state in states if state is not None), None)
        if why is not None:
            if self._pending:
                self.wait()  # it may still go on, in a session that is about to end
            self._rejoin(why, tensors)
        try:
            stats = self._group.each(lambda: self._session.publish(generation))
        except Exception as error:
            # Some ranks may have published it, and cannot again.
            self._failed = f"generation {generation} was not published: {error}"
            raise
        self._published = generation
        self._swap = self._session.swap(generation)
        self._pending = True
        self._trainer = stats
        stats[self._group.rank]["publish_seconds"] = time.monotonic() - begin
        return self.wait() if wait else None

    def wait(self) -> dict[str, Any]:
        """Waits until every engine has taken the newest generation.

        Returns Driver.swap's report with "trainer": the stats of each rank's publish(), and "joined": None, or why that
        publish() made a new session. Errors: what went wrong in an engine, typed; the next publish() then joins anew.
        StateError when nothing was published since the last call.
        """
        self._check_open()
        if not self._pending:
            raise StateError("invalid_option", "wait() comes after a publish(), once")
        self._pending = False
        joined, self._joined = self._joined, None
        try:
            report = self._group.first(lambda: self._swap.result())
        except Exception as error:
            self._failed = f"the engines did not take generation {self._published}: {error}"
            self._session.release(self._published)
            self._published -= 1  # it may be published again
            raise
        self._session.release(self._published)
        seconds = self._group.each(lambda: self._trainer[self._group.rank]["publish_seconds"])
        for rank, stats in enumerate(self._trainer):
            stats["publish_seconds"] = seconds[rank]
        return {**report, "trainer": self._trainer, "joined": joined}

    def close(self) -> None:
        """Waits for the last swap, then leaves. The engines serve on. Raises the swap's error after it has left."""
        if self._closed:
            return
        try:
            if self._pending:
                self.wait()
        finally:
            self._closed = True
            session, self._session = self._session, None
            if session is not None and self._failed is None:
                session.close()
            elif session is not None:
                session.abandon()

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if kind is None:
            self.close()
            return
        # The other ranks may be anywhere: wait for none of them.
        self._closed = True
        if self._session is not None:
            self._session.abandon()

    def _join(self) -> Session:
        tensors: dict[str, torch.Tensor] = {}
        self._group.each(lambda: tensors.update(current_tensors(self._model)))
        return Session(self._group, tensors, self._options)

    def _rejoin(self, why: str, tensors: Mapping[str, torch.Tensor]) -> None:
        _log.warning("headrace: joining anew: %s", why)
        self._failed = why  # until it has succeeded
        if self._session is not None:
            self._session.abandon()
            self._session = None
        self._session = Session(self._group, tensors, self._options)
        self._failed, self._joined = None, why

    def _look(self, generation: int, tensors: dict[str, torch.Tensor]) -> str | None:
        """Fills `tensors` with the model's as they are now. Returns why this rank must join anew, or None."""
        if generation <= self._published:
            raise StateError(
                "generation_not_growing",
                f"generation {generation} comes after {self._published}, which was published",
                rank=self._group.rank,
            )
        tensors.update(current_tensors(self._model))
        if self._session is None:
            return "the session is over"
        moved = self._session.moved(tensors)
        if moved:
            return f'trainer rank {self._group.rank}: tensor "{moved[0]}" has moved ({len(moved)} in all)'
        return self._session.ended()

    def _check_open(self) -> None:
        if self._closed:
            raise StateError("closed", "this publisher was closed")
