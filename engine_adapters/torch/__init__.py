"""Headrace in a torch trainer: `headrace.torch.Publisher`, and the layout rules that it stands on.

Nothing is imported until it is used: `import headrace.torch` costs no torch.
"""

import importlib
from typing import Any

_HOMES = {"Publisher": "headrace.torch.publisher"}

__all__ = ["Publisher"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
