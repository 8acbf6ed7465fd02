"""A vLLM plugin for the benchmark: the backend "gloo_broadcast", and a clock inside of the worker."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

BACKEND = "gloo_broadcast"

spent: dict[str, float] = {}  # seconds by step, since they were last asked for


def register() -> None:
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, "gloo_broadcast", "GlooBroadcastEngine")


def timed(step: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def run(*arguments: Any, **named: Any) -> Any:
        begin = time.monotonic()
        try:
            return call(*arguments, **named)
        finally:
            spent[step] = spent.get(step, 0.0) + time.monotonic() - begin

    return run


class Probe:
    """For --worker-extension-cls."""

    def bench_watch(self) -> None:
        """Starts the clock: what follows is timed in this worker. Call it once."""
        from headrace.vllm.install import LoaderInstall
        from headrace.vllm.receiving import Receiving
        from vllm import _custom_ops

        for step in ("obtain", "apply", "commit"):
            setattr(Receiving, step, timed(step, getattr(Receiving, step)))
        LoaderInstall.run = timed("loader", LoaderInstall.run)
        # oneDNN's own layout of a linear layer's weight.
        _custom_ops.create_onednn_mm = timed("repack", _custom_ops.create_onednn_mm)

    def bench_spent(self) -> dict[str, float]:
        """Seconds by step since the last call."""
        found = dict(spent)
        spent.clear()
        return found
