"""Keeps the replies of an engine's workers in step with the calls.

With several worker processes, vLLM's executor stops at the first worker that answers a call with an error, and leaves
the other workers' answers in their queues. Every later call then reads the answers of the call before: an update that
failed is reported by the next good one, and results go to whom they do not belong. So that a failed update can be
repaired without a restart, all workers' answers to a call are taken before the first is looked at.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import time
from typing import Any

_MODULE = "vllm.v1.executor.multiproc_executor"


class WholeReplies(list):
    """The executor's reply queues. Each iteration stands for one call: whichever queue is asked first, one answer is
    taken from all of them."""

    def __iter__(self) -> Any:
        queues = list(super().__iter__())
        answers: list[Any] = []
        return iter([_Reply(queues, i, answers) for i in range(len(queues))])


class _Reply:
    """One worker's queue within one call."""

    def __init__(self, queues: list[Any], index: int, answers: list[Any]) -> None:
        self._queues, self._index, self._answers = queues, index, answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queues[self._index], name)

    def dequeue(self, timeout: float | None = None) -> Any:
        if not self._answers:
            deadline = None if timeout is None else time.monotonic() + timeout
            for queue in self._queues:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                self._answers.append(queue.dequeue(timeout=left))
        return self._answers[self._index]


def keep_in_step() -> None:
    """Makes it so for all executors of this process, now or when their module is imported."""
    module = sys.modules.get(_MODULE)
    if module is not None:
        _mend(module)
    elif not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported())


def _mend(module: Any) -> None:
    original = module.MultiprocExecutor.collective_rpc
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def collective_rpc(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self.response_mqs, WholeReplies):
            self.response_mqs = WholeReplies(self.response_mqs)
        return original(self, *args, **kwargs)

    module.MultiprocExecutor.collective_rpc = collective_rpc


class _WhenImported(importlib.abc.MetaPathFinder):
    """The executor's module brings hundreds of others; it is mended when somebody needs it."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_mend(module: Any) -> None:
            execute(module)
            _mend(module)

        spec.loader.exec_module = execute_and_mend  # type: ignore[method-assign]
        return spec
