"""Headrace as vLLM's weight transfer engine: one object in each worker, made when the model is loaded.

    init_transfer_engine     leaves an old session, joins the new one
    start_weight_update      puts back what a dead update left half done
    receive_weights          waits for the generation, makes it live, loads what goes through the loader
    finish_weight_update     does nothing: the host cannot recover from an error in it

All calls come from the worker's main thread, one at a time. With a shadow, headrace.vllm.receiving streams in a thread
of its own meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer.base import WeightTransferEngine
from vllm.v1.worker.gpu_worker import Worker

from headrace import __version__, core
from headrace.errors import Error, InputError, InternalError, ResourceError, StateError
from headrace.torch.streams import current_stream, use_gpu
from headrace.vllm import layout as layouts
from headrace.vllm import options as option_table
from headrace.vllm import refusals
from headrace.vllm.guard import refuse_when_poisoned
from headrace.vllm.install import LoaderInstall
from headrace.vllm.options import Options
from headrace.vllm.receiving import Receiving
from headrace.vllm.restore import restore

logger = logging.getLogger("vllm.headrace")

# Seconds for a farewell to reach the coordinator.
_LEAVE_S = 10.0

_MAX_WORKERS = 1 << 20  # of one engine


@dataclasses.dataclass(frozen=True)
class UpdateInfo:
    """What an update names: the generation that becomes live, and the job whose it is."""

    generation: int
    job: str


class HeadraceWeightTransferEngine(WeightTransferEngine[Options, UpdateInfo]):
    """See above. Errors are headrace.errors.Error; the last one is in status() until an update succeeds."""

    init_info_cls = Options
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: torch.nn.Module) -> None:
        super().__init__(config, vllm_config, device, model)
        parallel = self.parallel_config
        self._worker = parallel.data_parallel_index * parallel.world_size + parallel.rank
        self._layout: Any = None
        self._install: LoaderInstall | None = None
        self._options: Options | None = None
        self._session: Receiving | None = None
        self._carried: dict[str, Any] | None = None
        self._serving: int | None = 0  # between sessions
        self._error: Error | None = None
        self._update_ended = False

    def parse_init_info(self, init_dict: dict[str, Any]) -> Options:
        with self._remembering_errors():
            return option_table.merge(init_dict, self.vllm_config.additional_config)

    def parse_update_info(self, update_dict: dict[str, Any]) -> UpdateInfo:
        with self._remembering_errors():
            generation = update_dict.get("generation")
            job = update_dict.get("job")
            fits = type(generation) is int and generation >= 1 and type(job) is str
            if set(update_dict) != {"generation", "job"} or not fits:
                form = '{"generation": positive integer, "job": name}'
                raise InputError("invalid_option", f"update_info must be {form}, not {update_dict!r}")
            return UpdateInfo(generation, job)

    def init_transfer_engine(self, init_info: Options) -> None:
        """Leaves an old session and joins the one that `init_info` names. Returns when all of its members agreed.

        InputError, StateError: before anything was left. Errors of joining: the worker is in no session then, and
        serves what it served.
        """
        with self._remembering_errors():
            init_info.check_complete()
            refusals.check(self.vllm_config)
            with set_current_vllm_config(self.vllm_config):
                self._restore()
                layout = self._analysed()
            _check_loader_bytes(layout, init_info.loader_bytes)
            self._leave()
            self._options = init_info
            self._error = None
            self._session = self._join(layout, init_info)
            self._update_ended = True  # what a driver before began is over

    def start_weight_update(self) -> None:
        with self._remembering_errors():
            self._joined()
            self._restore()
            self._update_ended = False

    def update_weights(self, update_info: dict[str, Any]) -> None:
        try:
            self.receive_weights(self.parse_update_info(update_info))
        finally:
            self._update_ended = True
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Makes the generation live on this worker and returns when all workers of the engine hold it.

        An error before the first live byte leaves what is served. A later one leaves this worker poisoned.
        """
        with self._remembering_errors():
            session, generation = self._joined(), update_info.generation
            if update_info.job != self._options.job:
                raise StateError(
                    "wrong_job", f"the update is of job {update_info.job!r}, the engine is in job {self._options.job!r}"
                )
            session.obtain(generation)
            self._error = None
            session.apply(generation)
            self._load(session)
            session.commit(generation)

    def finish_weight_update(self) -> None:
        """Nothing: after an error here the host refuses every later update."""

    def shutdown(self) -> None:
        """Leaves the session. The model serves on."""
        self._leave()

    @property
    def update_ended(self) -> bool:
        """The last started update has succeeded or failed, whether or not the host was told to finish it."""
        return self._update_ended

    @property
    def may_serve(self) -> bool:
        """What this worker holds is one whole generation, or the weights that it was started with."""
        session = self._session
        return (session.serving if session else self._serving) is not None

    def describe(self) -> dict[str, Any]:
        """This worker, the tensors that its engine's own load_weights reads, and those of the checkpoint that it skips."""
        with self._remembering_errors(), set_current_vllm_config(self.vllm_config):
            refusals.check(self.vllm_config)
            layout = self._analysed()
            shadow = option_table.merge({}, self.vllm_config.additional_config).shadow
        return {
            "worker": self._worker,
            "workers": self.parallel_config.world_size_across_dp,
            "tensors": layout.tensors,
            "unread": layout.unread,
            "shadow": shadow,
            "version": __version__,
        }

    def status(self) -> dict[str, Any]:
        """What is served, what comes, and what went wrong. Never raises."""
        session = self._session
        joined = session.joined if session else False
        error = self._error  # looked at after `joined`, which may find one
        stats = session.stats if session else {}
        return {
            "worker": self._worker,
            "job": self._options.job if self._options else None,
            "joined": joined,
            "serving": session.serving if session else self._serving,
            "inherited": session.committed is None if session else True,
            "staging": session.staging if session else None,
            "streamed_bytes": stats.get("streamed_bytes", 0),
            "needed_bytes": stats.get("needed_bytes", 0),
            "staged": session.staged if session else None,
            "shadow": self._options.shadow if self._options else None,
            "error": error.to_json() if error else None,
            "stats": stats,
            "waiting_for": session.waiting_for if session else "",
        }

    def explain(self) -> dict[str, Any]:
        """How each parameter is filled, and why."""
        with self._remembering_errors(), set_current_vllm_config(self.vllm_config):
            layout = self._analysed()
        return {
            "worker": self._worker,
            "parameters": [
                {
                    "name": p.name,
                    "tensors": list(p.tensors),
                    "install": p.install,
                    "reason": p.reason,
                    "bytes": p.bytes,
                }
                for p in layout.parameters
            ],
            "loader_bytes": layout.loader_bytes,
            "shadow_bytes": self._session.stats["shadow_bytes"] if self._session else 0,
        }

    def _analysed(self) -> Any:
        """Once: the proof compares with the checkpoint, which the live weights leave with the first generation."""
        if self._layout is None:
            layout = layouts.analyse(self.model, self.model_config, self.vllm_config.load_config)
            refusals.check_loader_modules(layout.loader_modules)
            self._layout = layout
            self._install = LoaderInstall(self.model, self.model_config, self._layout)
        return self._layout

    def _join(self, layout: Any, options: Options) -> Receiving:
        given = {n: v for n in ("devices", "chunk_bytes", "staging_bytes") if (v := getattr(options, n)) is not None}
        gpu = layout.gpu
        receiver = core.Receiver(
            # Ranks are numbers of the whole job, in which engines do not know each other's sizes.
            layout.part(
                rank=options.engine * _MAX_WORKERS + self._worker, engine=options.engine, worker=self._worker
            ),
            layout.memory(),
            coordinator=options.coordinator,
            token=options.token,
            job=options.job,
            engine=options.engine,
            worker=self._worker,
            workers=self.parallel_config.world_size_across_dp,
            shadow=options.shadow,
            gpu=gpu,
            transport=options.transport,
            tls=core.ClientTls(**options.tls) if options.tls else None,
            trust_network=options.trust_network,
            transfer_timeout=options.transfer_timeout,
            connect_timeout=options.join_timeout,
            carried=self._carried,
            timeouts=core.Timeouts(
                join=options.join_timeout, plan=options.join_timeout, commit=options.commit_timeout
            ),
            **given,
        )
        return Receiving(
            receiver,
            layout.memory,
            shadow=options.shadow != "off",
            transfer_timeout=options.transfer_timeout,
            on_error=self._remember,
            stream=lambda: current_stream(gpu),
            use_gpu=lambda: use_gpu(gpu),
        )

    def _load(self, session: Receiving) -> None:
        try:
            self._install.run()
        except BaseException as cause:
            error = cause if isinstance(cause, Error) else _foreign(cause)
            session.abandon(error)
            self._restore()
            if error is cause or not isinstance(cause, Exception):
                raise
            raise error from cause

    def _leave(self) -> None:
        session = self._session
        if session is None:
            return
        self._session = None
        try:
            self._carried = session.close(_LEAVE_S)
        except Error:
            self._carried = session.carry()
            raise
        finally:
            self._serving = None if self._carried["poisoned"] else self._carried["committed_generation"]

    def _joined(self) -> Receiving:
        if self._session is None:
            raise StateError("malformed", "no session: call init_weight_transfer_engine first")
        return self._session

    def _restore(self) -> None:
        if restored := restore(self.model):
            logger.warning("Headrace: an update that died left %d layers without weights: %s", len(restored), restored)

    def _remember(self, error: Error) -> None:
        self._error = error

    @contextlib.contextmanager
    def _remembering_errors(self) -> Iterator[None]:
        """What leaves the block as an exception becomes the last error."""
        try:
            yield
        except BaseException as error:
            if self._session is not None:
                _ = self._session.joined  # an end of the session that nobody has asked about came before
            self._remember(error if isinstance(error, Error) else _foreign(error))
            raise


def _foreign(error: BaseException) -> InternalError:
    return InternalError("internal", f"{type(error).__name__} in the host or the model: {error}")


def _check_loader_bytes(layout: Any, cap: int | None) -> None:
    if cap is not None and layout.loader_bytes > cap:
        raise ResourceError(
            "out_of_memory",
            f"the tensors that go through the loader need {layout.loader_bytes} bytes, and loader_bytes is {cap}",
        )


def _on_worker(method: str) -> Callable[[Worker], dict[str, Any]]:
    def call(self: Worker) -> dict[str, Any]:
        return getattr(self.weight_transfer_engine, method)()

    call.__name__ = f"headrace_{method}"
    return call


def _start_anew(start: Callable[[Worker], None]) -> Callable[[Worker], None]:
    """The host forgets to close a worker's update session when its finish fails, or when another worker's update did,
    and refuses every later start. When the update itself is over, a start begins a new one."""

    @functools.wraps(start)
    def start_weight_update(self: Worker) -> None:
        engine = self.weight_transfer_engine
        if self._weight_update_active and isinstance(engine, HeadraceWeightTransferEngine) and engine.update_ended:
            logger.warning("Headrace: the last update was not finished; a new one begins")
            self._weight_update_active = False
        start(self)

    return start_weight_update


for _method in ("describe", "status", "explain"):
    setattr(Worker, f"headrace_{_method}", _on_worker(_method))
Worker.start_weight_update = _start_anew(Worker.start_weight_update)
Worker.execute_model = refuse_when_poisoned(Worker.execute_model)
