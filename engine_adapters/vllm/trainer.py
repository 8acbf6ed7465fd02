"""The trainer-side twin in vLLM's own factory: a trainer that is written against vLLM's weight-transfer API.

    engine = WeightTransferTrainerFactory.trainer_init(
        HeadraceTrainerInitInfo(rank=rank, world_size=1, shadow="host"), client=client, source=ModuleSource(model))
    ...                    # the caller pauses the server
    engine.send_weights()  # on every rank
    ...                    # the caller resets caches and resumes

Each rank offers the shards that it holds: nothing is gathered, and the source is never iterated. The client steers one
server; headrace.torch.Publisher steers several, and also pauses, resets caches and resumes.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, Callable, ClassVar

import torch
import torch.distributed as dist
from vllm.distributed.weight_transfer.base import (
    ModuleSource,
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
)

from headrace import core
from headrace.driver import SHADOWS
from headrace.engines import typed
from headrace.errors import Error, InputError, InternalError
from headrace.publish import CONVERTIBLE, join_both
from headrace.torch.dtypes import spelling
from headrace.torch.group import Group
from headrace.torch.names import checkpoint_names
from headrace.torch.sources import current_tensors, places, sources

# Until every rank and worker has come.
_JOIN_S = 120.0


@dataclass
class HeadraceTrainerInitInfo(TrainerInitInfo):
    """What all ranks give alike, beside their rank.

    world_size: the server's workers (TP * PP * DP). shadow: "host", "device" or "off". dtype: what the server
    computes in, when that is not the parameters' own: they are converted while they are copied. listen: where rank
    0's coordinator listens, HOST:PORT that ranks and workers reach; beyond loopback it needs coordinator_tls and tls
    (the server has its own, see docs/vllm.md), or trust_network. group: the trainer's ranks; None: the default group,
    or this process alone. timeout: seconds for each publish and update.
    """

    backend: ClassVar[str] = "headrace"
    world_size: int
    shadow: str
    transport: str = "host"
    dtype: torch.dtype | None = None
    listen: str = "127.0.0.1:0"
    group: dist.ProcessGroup | None = None
    timeout: float = 600.0
    tls: core.ClientTls | None = None
    coordinator_tls: core.ServerTls | None = None
    trust_network: bool = False


class HeadraceTrainerEngine(TrainerWeightTransferEngine[HeadraceTrainerInitInfo]):
    """All methods are collective over the trainer's ranks; an error of one of them, or of the server, is raised on all
    as headrace.errors.Error. After an error, and when a parameter has moved in memory, the next send_weights() joins
    anew; generations count on from 1."""

    init_info_cls = HeadraceTrainerInitInfo

    def __init__(
        self, info: HeadraceTrainerInitInfo, *, client: VLLMWeightSyncClient, source: WeightSource | None
    ) -> None:
        super().__init__(client=client, source=source, is_sender=info.is_sender)
        self._info = info
        self._group = Group(info.group)
        self._incarnation = self._group.first(lambda: secrets.token_hex(8))
        self._generation = 0
        self._job: str | None = None  # rank 0's
        self._coordinator: core.Coordinator | None = None
        self._publisher: core.Publisher | None = None
        self._tensors: dict[str, torch.Tensor] = {}
        self._places: dict[str, Any] = {}

    @classmethod
    def trainer_init(
        cls,
        init_info: HeadraceTrainerInitInfo,
        *,
        client: VLLMWeightSyncClient,
        source: WeightSource | None = None,
    ) -> HeadraceTrainerEngine:
        """Joins all ranks and the server's workers.

        Errors: InputError: a source other than a ModuleSource, a rank that is not the group's; `unwanted`, `uncovered`,
        `shape_mismatch`, `dtype_mismatch`: what is offered is not what the server reads. What the client raises.
        """
        made = cls(init_info, client=client, source=source)
        made._group.each(made._check)
        made._join()
        return made

    def send_weights(self) -> None:
        """Publishes the parameters as they are now and has the server take them: start, update, finish. The caller has
        paused it."""
        if any(self._group.each(self._is_stale)):
            self.shutdown()
            self._join()
        generation = self._generation + 1
        try:
            self._group.each(lambda: self._publisher.publish(generation, self._info.timeout))
            self._group.first(lambda: self._update(generation))
        except Error:
            self.shutdown()
            raise
        self._generation = generation

    def shutdown(self) -> None:
        """This rank leaves. The server serves on."""
        if self._publisher is not None:
            try:
                self._publisher.close(0.0)
            except Error:
                pass  # it has left all the same
        if self._coordinator is not None:
            self._coordinator.stop()
        self._publisher = self._coordinator = None

    def _check(self) -> None:
        if not isinstance(self.source, ModuleSource):
            kind = type(self.source).__name__
            message = f"the source is a {kind}; Headrace takes a ModuleSource, whose shards it sends as they lie"
            raise InputError("invalid_option", message)
        if self._info.rank != self._group.rank:
            message = f"the init info says rank {self._info.rank}, the group says {self._group.rank}"
            raise InputError("invalid_option", message, rank=self._group.rank)
        if self._info.shadow not in SHADOWS:
            message = f'shadow is "{self._info.shadow}"; it must be one of {", ".join(SHADOWS)}'
            raise InputError("invalid_option", message)

    def _is_stale(self) -> bool:
        if self._publisher is None:
            return True
        try:
            self._publisher.status()
        except Error:
            return True
        return places(self._parameters()) != self._places

    def _parameters(self) -> dict[str, torch.Tensor]:
        module = self.source._module
        tensors = current_tensors(module)  # also puts FSDP2's parameters back into shards
        return {name: tensors[name] for name, _ in module.named_parameters()}

    def _join(self) -> None:
        try:
            meeting = self._group.first(self._open)
            self._group.each(lambda: self._join_job(meeting))
        except Error:
            self.shutdown()
            raise

    def _open(self) -> dict[str, str]:
        """Rank 0: starts the coordinator. Returns what the other members must know."""
        job = {"job": f"trainer-{secrets.token_hex(8)}", "token": secrets.token_hex(32)}
        self._job = job["job"]
        self._coordinator = core.Coordinator(
            **job,
            publishers=self._group.size,
            workers=[self._info.world_size],
            incarnation=self._incarnation,
            listen=self._info.listen,
            tls=self._info.coordinator_tls,
            trust_network=self._info.trust_network,
        )
        return job | {"coordinator": self._coordinator.address}

    def _join_job(self, meeting: dict[str, str]) -> None:
        tensors = self._parameters()
        offer = sources(tensors, self._wanted(tensors), None, self._group.rank)
        self._tensors = tensors  # the memory that is published
        self._places = places(tensors)

        def join() -> core.Publisher:
            return core.Publisher(
                offer.part,
                offer.memory,
                **meeting,
                rank=self._group.rank,
                transport=self._info.transport,
                tls=self._info.tls,
                trust_network=self._info.trust_network,
                connect_timeout=_JOIN_S,
            )

        if self._coordinator is None:
            self._publisher = join()
            return
        info = meeting | {"engine": 0, "shadow": self._info.shadow, "transport": self._info.transport}
        info |= {"transfer_timeout": self._info.timeout}
        if self._info.trust_network:
            info["trust_network"] = True
        self._publisher = join_both(
            lambda: _asked("init_weight_transfer_engine", lambda: self.client.init_weight_transfer_engine(info)),
            self._coordinator,
            join,
        )

    def _wanted(self, tensors: dict[str, torch.Tensor]) -> dict[str, dict[str, Any]]:
        """The parameters by the checkpoint's names, in the dtype that travels."""
        wanted = {}
        for own, name in checkpoint_names(tensors, None).items():
            dtype = spelling(tensors[own].dtype)
            if self._info.dtype is not None and dtype in CONVERTIBLE:
                dtype = spelling(self._info.dtype)
            wanted[name] = {"shape": list(tensors[own].shape), "dtype": dtype}
        return wanted

    def _update(self, generation: int) -> None:
        client = self.client
        _asked("start_weight_update", client.start_weight_update)
        _asked("update_weights", lambda: client.update_weights({"generation": generation, "job": self._job}))
        _asked("finish_weight_update", lambda: client.finish_weight_update(str(generation)))


def _asked(step: str, call: Callable[[], None]) -> None:
    """Calls the client. What it raises becomes an Error: the worker's own, where the server's reply has it."""
    try:
        call()
    except Error:
        raise
    except Exception as error:  # each client raises its transport's
        response = getattr(error, "response", None)
        try:
            body = response.json()
        except Exception:
            body = None
        raise typed(body, step) or InternalError("internal", f"{step}: {type(error).__name__}: {error}") from error
