"""The last line of defence: a worker whose weights may not be served computes nothing with them.

The gate of an API server turns requests away and keeps the engine paused, but a step may come around it: an in-process
vllm.LLM has no gate, requests that a pause kept are in the engine already, and another API server process, or an RPC
of the operator's own, may resume. Here every step of a worker passes, whoever asked for it.

A refused step raises out of LLM.generate() in-process. A full generation heals the LLM, but vLLM keeps the requests of
a step that raised and cannot run them any more: they must be aborted before it generates again. A server's engine core
ends by a refused step, as by any exception of one: better than an answer of mixed weights, and a restart loads a whole
checkpoint.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from headrace.errors import StateError


def refuse_when_poisoned(execute_model: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps execute_model of vLLM's Worker. In the worker's main thread, as all of its calls.

    StateError poisoned: the step computes tokens and the worker's weight transfer engine says, by `may_serve`, that
    its weights may not be served. Steps without tokens (they only hand requests back) pass, and so does everything on
    a worker without an engine or with another backend's, which has no `may_serve`.
    """

    @functools.wraps(execute_model)
    def guarded(worker: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        may_serve = getattr(worker.weight_transfer_engine, "may_serve", True)
        if not may_serve and scheduler_output.total_num_scheduled_tokens > 0:
            raise StateError(
                "poisoned",
                f"worker {worker.rank}: its weights may be of two generations. Nothing is computed with them until a "
                "full generation has landed",
                rank=worker.rank,
            )
        return execute_model(worker, scheduler_output, *args, **kwargs)

    return guarded
