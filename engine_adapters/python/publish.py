"""A checkpoint directory as a publisher: one call hot-swaps it into running engines.

The engines say what they read, under which names and in which dtypes. The checkpoint must have exactly that, under the
same names; where its dtype is another one, the snapshot is converted, rounding to nearest even.
"""

from __future__ import annotations

import os
import secrets
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from collections.abc import Collection
from typing import Any, Callable, Sequence

from headrace import core
from headrace.driver import Driver, describe
from headrace.engines import Engine
from headrace.errors import DeadlineError, InputError, PeerError
from headrace.swap import Progress

# Between which publishers convert (docs/manifest.md).
CONVERTIBLE = ("F16", "BF16", "F32", "F64")

_POLL_S = 0.02
_JOIN_S = 120.0

# How many names an error lists.
_NAMES = 20


def publish(
    directory: str | os.PathLike[str],
    engines: Sequence[Engine],
    *,
    shadow: str | None = None,
    transport: str = "host",
    generation: int | None = None,
    pause_mode: str = "keep",
    listen: str = "127.0.0.1:0",
    tls: core.ClientTls | None = None,
    coordinator_tls: core.ServerTls | None = None,
    trust_network: bool = False,
    timeout: float = 600.0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Swaps the weights in `directory` into all `engines` and returns Driver.swap's report with "publisher" (stats).

    shadow: None: what all engines are configured with. generation: None: one more than the largest that is served.
    listen: where the coordinator listens; members on other hosts need an address that they reach. Beyond loopback:
    coordinator_tls, and tls for this process's own publisher (the engines are configured with theirs); or trust_network,
    which the engines are told. timeout: seconds for joining, and again for the swap. The engines leave the job at the
    end.

    Errors: InputError: `io` for the directory; `unwanted` and `uncovered` for tensors that only one side has, listed;
    `shape_mismatch`, `dtype_mismatch`; `invalid_option`. Those of Driver.init and Driver.swap.
    """
    described = describe(engines)
    shadow = shadow or _configured_shadow(described["shadow"])
    served = _newest_served(engines)
    if generation is None:
        generation = served + 1
    elif generation <= served:
        message = f"generation {generation}: the engines serve {served} already; leave it out, or give a larger one"
        raise InputError("invalid_option", message)
    with core.Checkpoint(directory) as checkpoint:
        part = checkpoint_part(checkpoint.part(0), described["tensors"], described["unread"])
        # A member of its own job: its token is never seen by anybody but the members.
        job = {
            "job": f"publish-{secrets.token_hex(8)}",
            "token": secrets.token_hex(32),
        }
        timeouts = core.Timeouts(join=timeout, plan=timeout, commit=timeout)
        with core.Coordinator(
            **job,
            publishers=1,
            workers=described["workers"],
            incarnation=secrets.token_hex(8),
            listen=listen,
            tls=coordinator_tls,
            trust_network=trust_network,
            timeouts=timeouts,
        ) as coordinator:
            # While a server joins it answers nothing; what it joins is here already.
            more = {"join_timeout": min(timeout, _JOIN_S), "transfer_timeout": timeout, "commit_timeout": timeout}
            if trust_network:
                more["trust_network"] = True
            driver = Driver(
                engines,
                **job,
                coordinator=coordinator.address,
                options={"shadow": shadow, "transport": transport, **more},
                pause_mode=pause_mode,
                deadline=timeout,
                progress=progress,
            )
            publisher = join_both(
                driver.init,
                coordinator,
                lambda: core.Publisher(
                    part,
                    checkpoint.memory,
                    **job,
                    coordinator=coordinator.address,
                    rank=0,
                    transport=transport,
                    # The file does not change, so that a copy of it is needed only where dtypes differ.
                    publishing="snapshot" if any("convert" in buffer for buffer in part["source"]) else "hold",
                    tls=tls,
                    trust_network=trust_network,
                    connect_timeout=timeout,
                    timeouts=timeouts,
                ),
            )
            with publisher:
                publisher.publish(generation, timeout)
                report = driver.swap(generation)
                for engine, error in zip(report["engines"], driver.shutdown()):  # receivers leave before publishers
                    if error is not None:
                        engine["notes"].append(f"it did not leave the job ({error})")
                return report | {"publisher": publisher.stats}


def checkpoint_part(
    part: dict[str, Any], wanted: dict[str, dict[str, Any]], unread: Collection[str] = ()
) -> dict[str, Any]:
    """A checkpoint's part (one source buffer per tensor, of its name) in the dtypes that the engines read.

    wanted: {name: {"shape", "dtype"}}. unread: what the engines skip of their own checkpoint, left out here too (the
    head that a tied model was saved with). Errors: InputError as for publish().
    """
    found = {tensor["name"]: tensor for tensor in part["tensors"] if tensor["name"] not in unread}
    unwanted = [name for name in found if name not in wanted]
    if unwanted:
        message = f"the engines read no tensors of these names, which the checkpoint has: {_listed(unwanted)}"
        raise InputError("unwanted", message, tensor=unwanted[0])
    missing = [name for name in wanted if name not in found]
    if missing:
        message = f"the engines read tensors that the checkpoint lacks: {_listed(missing)}"
        raise InputError("uncovered", message, tensor=missing[0])
    tensors, buffers = [], []
    for name, tensor in found.items():
        if list(tensor["shape"]) != list(wanted[name]["shape"]):
            message = f'tensor "{name}": the checkpoint has {tensor["shape"]}, the engines read {wanted[name]["shape"]}'
            raise InputError("shape_mismatch", message, tensor=name)
        tensors.append(tensor | {"dtype": wanted[name]["dtype"]})
    for buffer in part["source"]:
        if buffer["buffer"] in unread:
            continue
        have, want = buffer["dtype"], wanted[buffer["buffer"]]["dtype"]
        if have != want:
            if have not in CONVERTIBLE or want not in CONVERTIBLE:
                name = buffer["buffer"]
                message = f'tensor "{name}": the checkpoint has {have}, the engines read {want}; there is no conversion'
                raise InputError("dtype_mismatch", message, tensor=name)
            buffer = buffer | {"convert": "rne"}
        buffers.append(buffer)
    return part | {"tensors": tensors, "source": buffers}


def _configured_shadow(configured: list[str | None]) -> str:
    if None in configured or len(set(configured)) > 1:
        told = ", ".join(shadow or "none" for shadow in configured)
        message = f'say where weights land, shadow "host", "device" or "off"; the engines are configured with: {told}'
        raise InputError("invalid_option", message)
    return str(configured[0])


def _newest_served(engines: Sequence[Engine]) -> int:
    return max(worker["serving"] or 0 for engine in engines for worker in engine.status())


def join_both(
    init_engines: Callable[[], None], coordinator: core.Coordinator, join_publisher: Callable[[], core.Publisher]
) -> core.Publisher:
    """Joins the engines and publisher rank 0 at once, since each waits for the other. Both calls raise Error.

    The first error stops the coordinator, which ends the wait of all.
    """
    with ThreadPoolExecutor(2, thread_name_prefix="headrace-join") as threads:
        engines, publisher = threads.submit(init_engines), threads.submit(join_publisher)
        wait((engines, publisher), return_when=FIRST_EXCEPTION)
        errors = [future.exception() for future in (engines, publisher) if future.done() and future.exception()]
        if not errors:
            return publisher.result()
        # A publisher that has not met the coordinator yet would look for it for as long as it may.
        while not publisher.done() and "publisher rank 0" in coordinator.status()["waiting_for"]:
            time.sleep(_POLL_S)
        coordinator.stop()
    errors += [future.exception() for future in (engines, publisher) if future.exception()]
    if publisher.exception() is None:
        publisher.result().close(0.0)
    # What the other side says is often only that the job has ended.
    own = [error for error in errors if not isinstance(error, (PeerError, DeadlineError))]
    raise (own or errors)[0]


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more
