"""The core's classes for Python: plan, Coordinator, Publisher, Receiver, Checkpoint.

Weights are never copied between Python and the core: buffers are given as addresses, and whoever allocated them keeps
them alive and in place until close(). No torch is needed; headrace.torch and headrace.vllm make parts and addresses
from tensors.

A *part* is a manifest (docs/manifest.md) as a dict with one member's side filled; "tensors", "source" and
"destination" must be there. Shapes and strides count elements; dtypes are spelled as safetensors does. Timeouts are
seconds (math.inf: no limit).

Addresses may be memory of one GPU, whose CUDA device number is the member's `gpu`; without it no CUDA is loaded. A
stream is a cudaStream_t as an integer: torch.cuda.current_stream(device).cuda_stream, or 0 for the legacy default
stream, which is also what a member without a GPU gives.

Errors are headrace.errors.Error. After close(), methods raise StateError "closed".

Thread rules: any thread may call anything; the interpreter's lock is given up in every call. Methods of one object that
must not overlap (each class says which) wait for each other, those that have a timeout up to it (DeadlineError).
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple

from headrace import _native
from headrace.errors import DeadlineError, Error, InputError


def plan(manifest: Mapping[str, Any], policy: Literal["auto", "hybrid"] = "auto") -> dict[str, Any]:
    """Validates, plans and proves a manifest of both sides by a Job's `policy`.

    Returns the figures of `headrace plan --json` (docs/manifest.md) without its lists: "policy", "tensors", "copies",
    "streams", "needed_bytes", "wire_bytes", ..., "digest", "plan_seconds".
    Raises InputError with the manifest's codes: malformed, unknown_tensor, shape_mismatch, ..., uncovered, unwanted.
    """
    return _native.call_json("hr_plan", _document(manifest, "malformed"), policy.encode())


@dataclasses.dataclass(frozen=True)
class Timeouts:
    """Time limits of a session in seconds; the same at all members of a job (docs/operations.md)."""

    join: float = 60.0  # until all members are there
    plan: float = 60.0  # from then until all agreed on the plan
    decision: float = 30.0  # from an engine's first vote to the decision
    commit: float = 600.0  # from then to the engine's commit: the host brings its engine to a pause meanwhile
    heartbeat_period: float = 0.5
    heartbeat_timeout: float = 6.0  # silence that means death
    # The coordinator's counts: how long a job waits for a member that it lost, and members for a lost coordinator,
    # before it is over; 0: not at all. Where others hold what a lost publisher offered, nobody waits.
    rejoin: float = 0.0


@dataclasses.dataclass(frozen=True)
class ServerTls:
    """The coordinator's PEM files; docs/operations.md says how they are made. They are read when it starts."""

    certificate: str | os.PathLike[str]
    key: str | os.PathLike[str]
    client_ca: str | os.PathLike[str] | None = None  # demands a certificate of this CA from every member


@dataclasses.dataclass(frozen=True)
class ClientTls:
    """A member's PEM files, read when it joins."""

    ca: str | os.PathLike[str]  # whose certificates are believed
    certificate: str | os.PathLike[str] | None = None  # with `key`, where the coordinator demands one
    key: str | os.PathLike[str] | None = None
    server_name: str | None = None  # in the coordinator's certificate; None: the host that is connected to


class BufferMemory(NamedTuple):
    """One buffer as the host has it now: the address of its first element, shape and strides in elements.

    live: False where the engine does not compute with it (what its own loading code is fed from): then stage() writes
    it also with a shadow, which has no second copy of it.
    """

    address: int
    shape: Sequence[int]
    strides: Sequence[int]
    live: bool = True


class _Closing:
    """What all classes share: `with`, and one close()."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            # The error that is on its way says more than what follows from it.
            with contextlib.suppress(Error):
                self.close()


class Coordinator(_Closing):
    """Knows a job's members, announces generations, decides for each engine. Never sees weights.

    publishers: how many; workers: of each engine that the first epoch waits for, may be empty: engines may also come
    later, with a size of their own; listen: "host:port", port 0 is any; incarnation: a nonce of this start of the
    trainer; policy: "auto" (every tensor is resharded) or "hybrid" (QKV and Mamba weights are broadcast); tls: needed
    where `listen` is not loopback, unless trust_network. Raises InputError (invalid_option, io), StateError
    (address_in_use).
    """

    def __init__(
        self,
        *,
        job: str,
        publishers: int,
        workers: Sequence[int],
        token: str,
        incarnation: str,
        listen: str = "127.0.0.1:0",
        policy: Literal["auto", "hybrid"] = "auto",
        tls: ServerTls | None = None,
        trust_network: bool = False,
        timeouts: Timeouts = Timeouts(),
    ) -> None:
        options = {
            "job": job,
            "token": token,
            "incarnation": incarnation,
            "publishers": publishers,
            "workers": list(workers),
            "listen": listen,
            "policy": policy,
            "trust_network": trust_network,
            "timeouts": dataclasses.asdict(timeouts),
            **_tls(tls),
        }
        address = _native.call_handle("hr_coordinator_start", _document(options, "invalid_option"))
        self._handle = _native.Handle(self, "coordinator", address, _native.library().hr_coordinator_free)

    @property
    def address(self) -> str:
        """"host:port" as members need it."""
        with self._handle.use() as handle:
            return _native.call_text("hr_coordinator_address", handle)

    def status(self) -> dict[str, Any]:
        """{"phase": "joining"|"planning"|"ready"|"suspended"|"ended", "epoch": number, "error": Error.to_json() or
        None, "waiting_for": words, "root": digest, "last_announced": generation, "engine_committed": [generation of
        each engine]}. suspended: the job waits for members without whom no plan can be made. epoch: counts the
        memberships."""
        with self._handle.use() as handle:
            return _native.call_json("hr_coordinator_status", handle)

    def stop(self) -> None:
        """Ends the job for members that are still there (PeerError "aborted" for them). Idempotent."""
        if not self._handle.closed:
            with self._handle.use() as handle:
                _native.call("hr_coordinator_stop", handle)
            self._handle.close()

    close = stop


class _Member(_Closing):
    """What publishers and receivers share."""

    _handle: _native.Handle
    _kind: str  # the functions' prefix

    def __init__(self) -> None:
        self._turn = threading.Lock()

    def status(self) -> None:
        """Returns while the session lives; raises why it ended."""
        with self._handle.use() as handle:
            _native.call(f"hr_{self._kind}_status", handle)

    @property
    def stats(self) -> dict[str, Any]:
        """The fields of PublisherStats (loader/publisher.h) or ReceiverStats (loader/receiver.h)."""
        with self._handle.use() as handle:
            return _native.call_json(f"hr_{self._kind}_stats", handle)

    def _close(self, timeout: float) -> None:
        _check_timeout(timeout)
        with self._alone(timeout, "close"):
            if self._handle.closed:
                return
            try:
                with self._handle.use() as handle:
                    self._last_words(handle)
                    _native.call(f"hr_{self._kind}_close", handle, timeout)
            finally:
                self._handle.close()

    def _last_words(self, handle: int) -> None:
        """What must be asked before the handle is freed."""

    @contextlib.contextmanager
    def _alone(self, timeout: float, what: str) -> Iterator[None]:
        """One at a time; DeadlineError when another thread does not end within `timeout` seconds."""
        if not self._turn.acquire(timeout=min(timeout, threading.TIMEOUT_MAX)):
            raise DeadlineError(
                "deadline",
                f"{what}: another thread is inside this {self._kind} for {timeout:g} seconds; let it end first",
            )
        try:
            yield
        finally:
            self._turn.release()


class Publisher(_Member):
    """The library inside one trainer rank: offers that rank's buffers, generation by generation.

    The constructor blocks until all publishers and the engines that the coordinator was told of have joined and agreed
    on the plan; in a job that runs already, until the next epoch.
    part: tensors, this rank's source buffers, one source placement in the topology. memory: the address of each source
    buffer's first element (an empty buffer may be left out); it must not change during publish().
    publishing: "snapshot": publish() copies the weights; "hold": it makes checksums alone, and receivers read the weights
    themselves, which must not change until await_release() returned or raised. What is converted cannot be held, and
    what is on a GPU over a transport of messages alone ("nccl", "ucx"), all buffers or none. Over "cuda" the copy stays
    on the GPU, on which all buffers are.
    chunk_bytes and staging_bytes are for transports that stream, and equal at all members. devices: the network devices
    of transport "ucx"; none: UCX_NET_DEVICES, or loopback. tls: where the coordinator has it. trust_network: the token
    may cross a network in clear.
    Raises InputError (the manifest's codes, invalid_option), CredentialsError, PeerError, DeadlineError, ResourceError.

    One at a time: publish, await_release, close.
    """

    _kind = "publisher"

    def __init__(
        self,
        part: Mapping[str, Any],
        memory: Mapping[str, int],
        *,
        coordinator: str,
        token: str,
        job: str,
        rank: int,
        incarnation: str = "",
        transport: str = "host",
        devices: Sequence[str] = (),
        tls: ClientTls | None = None,
        trust_network: bool = False,
        publishing: Literal["snapshot", "hold"] = "snapshot",
        gpu: int | None = None,
        chunk_bytes: int = 256 << 10,
        staging_bytes: int = 64 << 20,
        connect_timeout: float = 60.0,
        timeouts: Timeouts = Timeouts(),
    ) -> None:
        super().__init__()
        options: dict[str, Any] = {
            "coordinator": coordinator,
            "token": token,
            "job": job,
            "rank": rank,
            "publishing": publishing,
            "incarnation": incarnation,
            "transport": transport,
            "devices": list(devices),
            "trust_network": trust_network,
            "chunk_bytes": chunk_bytes,
            "staging_bytes": staging_bytes,
            "connect_timeout": connect_timeout,
            "timeouts": dataclasses.asdict(timeouts),
            **_tls(tls),
        }
        if gpu is not None:
            options["gpu"] = gpu
        address = _native.call_handle(
            "hr_publisher_join",
            _document(options, "invalid_option"),
            _document(part, "malformed"),
            _document(list(memory), "invalid_option"),
            _addresses(memory),
            len(memory),
        )
        self._handle = _native.Handle(self, "publisher", address, _native.library().hr_publisher_free)

    def publish(self, generation: int, timeout: float, stream: int = 0) -> None:
        """Copies what the plan reads into a snapshot and returns; the weights may change again afterwards. Waits only
        while receivers read both snapshots (DeadlineError names them). "hold": copies nothing, see await_release.
        With a GPU nothing is read before all that was enqueued on `stream` has ended (DeadlineError when it does not).
        StateError: generation_not_growing."""
        _check_timeout(timeout)
        with self._alone(timeout, "publish"), self._handle.use() as handle:
            _native.call("hr_publisher_publish", handle, _generation(generation), timeout, _stream(stream))

    def await_release(self, generation: int, timeout: float) -> None:
        """Waits until no receiver reads the weights of this generation, which may change then; "snapshot": at once.
        DeadlineError names the receivers that still read: the weights may change all the same, and the generation is
        void: engines that have not decided on it give it up. PeerError."""
        _check_timeout(timeout)
        with self._alone(timeout, "await_release"), self._handle.use() as handle:
            _native.call("hr_publisher_await_release", handle, _generation(generation), timeout)

    def await_commit(self, generation: int, timeout: float) -> None:
        """Waits until every engine of the job committed this generation or a newer one; while there is no engine, for
        one to come. Raises the worker's own error when an engine gave it up, naming the worker; PeerError for one whose
        worker was lost or left, once all others have committed; DeadlineError."""
        _check_timeout(timeout)
        with self._handle.use() as handle:
            _native.call("hr_publisher_await_commit", handle, _generation(generation), timeout)

    def close(self, timeout: float = 30.0) -> None:
        """Waits until no receiver reads a snapshot, then leaves the job and frees all memory. DeadlineError: left all
        the same. Idempotent."""
        self._close(timeout)


class Receiver(_Member):
    """The library inside one engine worker: owns that worker's live weight buffers.

    The constructor blocks as a publisher's does. An engine may come to a job that runs: it gets the newest generation.
    part: this worker's destination buffers and one destination placement. memory: every destination buffer, aliases
    too. shadow: where a generation lands before its commit, "host" (host memory: the engine serves meanwhile), "device"
    (memory of the GPU, likewise) or "off" (the live buffers: the engine is paused). workers: how many this engine has;
    None: as many as the coordinator was told, which is no answer for an engine that it was not told of. carried:
    carry() of this worker's former session. standby: engines that come when no trainer is left may read these buffers
    while they do not change. With buffers on a GPU standby is False, and shadow "device" and "off" want all of them
    there and the transport "cuda", or one of messages ("nccl", "ucx").
    Raises as Publisher; StateError destination_moved when `memory` is not what `part` says.

    A cycle: g = next_generation(t); stage(g, memory); apply(g); commit(g). In mode "off" the engine is paused from
    stage to commit, with a shadow from apply to commit. An error after live bytes were touched leaves the worker
    poisoned: `serving` is None until a whole generation was committed.

    One at a time: next_generation, stage, apply, commit, close.
    """

    _kind = "receiver"

    def __init__(
        self,
        part: Mapping[str, Any],
        memory: Mapping[str, BufferMemory],
        *,
        coordinator: str,
        token: str,
        job: str,
        engine: int,
        worker: int,
        workers: int | None = None,
        shadow: Literal["host", "device", "off"],
        standby: bool = False,
        gpu: int | None = None,
        incarnation: str = "",
        transport: str = "host",
        devices: Sequence[str] = (),
        tls: ClientTls | None = None,
        trust_network: bool = False,
        chunk_bytes: int = 256 << 10,
        staging_bytes: int = 64 << 20,
        transfer_timeout: float = 120.0,
        connect_timeout: float = 60.0,
        carried: Mapping[str, Any] | None = None,
        timeouts: Timeouts = Timeouts(),
    ) -> None:
        super().__init__()
        options: dict[str, Any] = {
            "coordinator": coordinator,
            "token": token,
            "job": job,
            "engine": engine,
            "worker": worker,
            "shadow": shadow,
            "standby": standby,
            "incarnation": incarnation,
            "transport": transport,
            "devices": list(devices),
            "trust_network": trust_network,
            "chunk_bytes": chunk_bytes,
            "staging_bytes": staging_bytes,
            "transfer_timeout": transfer_timeout,
            "connect_timeout": connect_timeout,
            "timeouts": dataclasses.asdict(timeouts),
            **_tls(tls),
        }
        if gpu is not None:
            options["gpu"] = gpu
        if workers is not None:
            options["workers"] = workers
        if carried is not None:
            options["carried"] = dict(carried)
        self._carried: dict[str, Any] = {}
        address = _native.call_handle(
            "hr_receiver_join", _document(options, "invalid_option"), _document(part, "malformed"), *_live(memory)
        )
        self._handle = _native.Handle(self, "receiver", address, _native.library().hr_receiver_free)

    def next_generation(self, timeout: float) -> int:
        """Waits for an announced generation that was not staged yet, or one that was given up before that since the
        trainer's replicas differ, which stage() then says (DataLossError replica_divergence). DeadlineError; PeerError
        (aborted, peer_lost): one is missing without whom none can come, which is not the session's end while status()
        returns; ends of the session."""
        _check_timeout(timeout)
        out = ctypes.c_uint64()
        with self._alone(timeout, "next_generation"), self._handle.use() as handle:
            _native.call("hr_receiver_next_generation", handle, timeout, ctypes.byref(out))
        return out.value

    def stage(self, generation: int, memory: Mapping[str, BufferMemory], stream: int = 0) -> None:
        """Brings `generation` (what next_generation returned) in, verifies it, votes and waits for the decision.
        memory: the buffers as they are now. Returns: every worker of this engine voted yes. Raises this worker's own
        error (StateError destination_moved, DataLossError, ...), or another worker's, naming it. With a GPU and shadow
        "off" it waits first for all that was enqueued on `stream`, the engine's steps."""
        restated = _live(memory)
        with self._alone(math.inf, "stage"), self._handle.use() as handle:
            _native.call("hr_receiver_stage", handle, _generation(generation), *restated, _stream(stream))

    def apply(self, generation: int, stream: int = 0) -> None:
        """The engine is paused: writes the staged generation to the live buffers. A host that derives state from the
        weights does so between this and commit(); until commit() has returned the worker serves nothing.
        With a GPU it waits first for all that was enqueued on `stream`, the engine's steps (DeadlineError after
        transfer_timeout: nothing was begun), and returns when the last byte is written."""
        with self._alone(math.inf, "apply"), self._handle.use() as handle:
            _native.call("hr_receiver_apply", handle, _generation(generation), _stream(stream))

    def commit(self, generation: int, stream: int = 0) -> None:
        """Applies the staged generation unless apply() did, and waits until every worker of the engine has come here.
        An error after the first live byte leaves the worker poisoned; `serving` tells. stream: as apply()."""
        with self._alone(math.inf, "commit"), self._handle.use() as handle:
            _native.call("hr_receiver_commit", handle, _generation(generation), _stream(stream))

    def abandon(self, error: Error) -> None:
        """The host failed between apply() and commit(): ends the session by this error for all members and leaves the
        worker poisoned. Any thread."""
        with self._handle.use() as handle:
            _native.call("hr_receiver_abandon", handle, _document(error.to_json(), "invalid_option"))

    @property
    def serving(self) -> int | None:
        """The generation that may be served now, 0: the weights that were there at first, None: poisoned."""
        out = ctypes.c_uint64()
        with self._handle.use() as handle:
            known = _native.library().hr_receiver_serving(handle, ctypes.byref(out))
        return out.value if known else None

    @property
    def waiting_for(self) -> str:
        """In words, empty: nothing."""
        with self._handle.use() as handle:
            return _native.call_text("hr_receiver_waiting_for", handle)

    def carry(self) -> dict[str, Any]:
        """{"committed_generation", "committed_incarnation", "poisoned"} for this worker's next session. Also after
        close()."""
        if self._handle.closed:
            return dict(self._carried)
        with self._handle.use() as handle:
            return _native.call_json("hr_receiver_carry", handle)

    def close(self, timeout: float = 30.0) -> None:
        """Leaves the job and frees all memory. Idempotent."""
        self._close(timeout)

    def _last_words(self, handle: int) -> None:
        self._carried = _native.call_json("hr_receiver_carry", handle)


class Checkpoint(_Closing):
    """A directory's safetensors files, mapped read-only: a publisher's part and memory.

    Raises InputError io, naming the file and the fault. Close it after the publishers that read it.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        address = _native.call_handle("hr_checkpoint_open", os.fsencode(directory))
        self._handle = _native.Handle(self, "checkpoint", address, _native.library().hr_checkpoint_free)

    def part(self, rank: int = 0) -> dict[str, Any]:
        """Every tensor as a source buffer of its own name at `rank`."""
        with self._handle.use() as handle:
            return _native.call_json("hr_checkpoint_part", handle, rank)

    @property
    def memory(self) -> dict[str, int]:
        """The address of each tensor's first byte, valid until close()."""
        with self._handle.use() as handle:
            return _native.call_json("hr_checkpoint_memory", handle)

    def close(self) -> None:
        """Unmaps the files. Idempotent."""
        self._handle.close()


def _tls(tls: ServerTls | ClientTls | None) -> dict[str, Any]:
    """The option, where it is set."""
    if tls is None:
        return {}
    given = {name: value for name, value in vars(tls).items() if value is not None}
    return {"tls": {name: os.fspath(v) if isinstance(v, os.PathLike) else v for name, v in given.items()}}


def _document(value: Any, code: str) -> bytes:
    try:
        return json.dumps(value if not isinstance(value, Mapping) else dict(value), allow_nan=False).encode()
    except (TypeError, ValueError) as e:
        raise InputError(code, f"cannot be written as JSON: {e}") from e


def _addresses(memory: Mapping[str, int]) -> Any:
    for name, address in memory.items():
        if not isinstance(address, int) or not 0 <= address < 1 << 64:
            raise InputError("invalid_option", f'buffer "{name}": {address!r} is no address', buffer=name)
    return (ctypes.c_void_p * len(memory))(*memory.values())


def _live(memory: Mapping[str, BufferMemory]) -> tuple[bytes, Any, int]:
    buffers = [
        {"name": n, "shape": list(b.shape), "strides": list(b.strides), "live": b.live} for n, b in memory.items()
    ]
    addresses = _addresses({name: b.address for name, b in memory.items()})
    return _document(buffers, "invalid_option"), addresses, len(memory)


def _generation(generation: int) -> int:
    # ctypes would cut larger ones to 64 bits.
    if not 0 <= generation < 1 << 64:
        raise InputError("invalid_option", f"generation {generation} is not from 0 to 2^64 - 1")
    return generation


def _stream(stream: int) -> int:
    if not 0 <= stream < 1 << 64:
        raise InputError("invalid_option", f"stream {stream} is no handle of a CUDA stream")
    return stream


def _check_timeout(timeout: float) -> None:
    if not timeout >= 0:
        raise InputError("invalid_option", f"a timeout of {timeout} seconds is not 0 or more")
