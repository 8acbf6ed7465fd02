"""Headrace: weights go from a trainer straight into the buffers of a running inference server.

headrace.core     publisher, receiver, coordinator, planner (over libheadrace.so)
headrace.driver   pause, swap and resume engines
headrace.vllm     the receive side inside vLLM
headrace.torch    the trainer side for torch modules and state dicts
headrace.errors   what all of them raise

Nothing is loaded before it is used: `import headrace` is cheap, and safe in processes that only ask for its version.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.driver import Driver, HttpEngine, LocalEngine
    from headrace.errors import Error

__version__ = "0.1.0"

_LAZY = {
    "Driver": "headrace.driver",
    "HttpEngine": "headrace.driver",
    "LocalEngine": "headrace.driver",
    "Error": "headrace.errors",
}

__all__ = ["Driver", "Error", "HttpEngine", "LocalEngine", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
