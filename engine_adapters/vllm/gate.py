"""Keeps an API server from answering with weights that must not be served.

A pure ASGI middleware in the API server's process. When an update leaves a worker poisoned, requests that need the
model get 503 with the reason, /resume is refused with 409, and both go on until a full generation has landed on all
workers. Routes that update weights, pause, or tell a state stay open. Failed calls of the weight routes say why: the
worker's typed error in place of the host's bare 500.

With several API server processes each has a gate of its own, and learns of a failure by the calls that it carries;
/resume asks the workers in any of them.
"""

from __future__ import annotations

import json
import logging
from typing import Any

logger = logging.getLogger("vllm.headrace")

_WEIGHT_ROUTES = (
    "/init_weight_transfer_engine",
    "/start_weight_update",
    "/update_weights",
    "/finish_weight_update",
)
# What an operator or a driver needs while nothing is served. Everything else is held to need the model.
_OPEN_ROUTES = frozenset(
    (
        *_WEIGHT_ROUTES,
        "/shutdown_weight_transfer_engine",
        "/start_draft_weight_update",
        "/update_weight_version",
        "/weight_info",
        "/weight_checker",
        "/collective_rpc",
        "/get_world_size",
        "/pause",
        "/is_paused",
        "/is_sleeping",
        "/abort_requests",
        "/reset_prefix_cache",
        "/reset_mm_cache",
        "/reset_encoder_cache",
        "/server_info",
        "/version",
        "/load",
        "/metrics",
        "/v1/models",
        "/docs",
        "/openapi.json",
    )
)
_RETRY_AFTER_SECONDS = 5
_HTTP_STATUS = {"input": 400, "credentials": 403, "state": 409, "resource": 507, "peer": 502, "deadline": 504}
# How the host words a call that does not belong to this moment.
_OUT_OF_ORDER = ("must be called before", "is already active", "without a matching start_weight_update")


class Gate:
    """See above. One per app; all calls on the app's event loop."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._poison: dict[str, Any] | None = None  # the error body to answer with; None: open

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if scope["type"] == "http" and path in _WEIGHT_ROUTES:
            await self._update(path, scope, receive, send)
        elif path == "/resume":
            await self._resume(scope, receive, send)
        elif self._poison is None or path in _OPEN_ROUTES:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1013, "reason": "no weights that may be served"})
        else:
            await _reply(send, 503, self._poison, retry_after=_RETRY_AFTER_SECONDS)

    async def _update(self, path: str, scope: Any, receive: Any, send: Any) -> None:
        held: list[dict[str, Any]] = []

        async def hold(message: dict[str, Any]) -> None:
            held.append(message)

        failure: Exception | None = None
        try:
            await self._app(scope, receive, hold)
        except Exception as error:
            failure = error
        status = next((m["status"] for m in held if m["type"] == "http.response.start"), 500)
        if failure is None and status < 400:
            # Between the start and the update nothing is decided, and each call lengthens the pause.
            if path in ("/init_weight_transfer_engine", "/finish_weight_update"):
                await self._ask_workers(scope)
            for message in held:
                await send(message)
            return
        workers = await self._ask_workers(scope)
        if workers is None and failure is not None:
            raise failure  # the engine is dead, which the host handles itself
        text = str(failure) if failure is not None else _message(held)
        error = _typed(text, workers or [])
        http = _HTTP_STATUS.get(error["kind"], 500)
        await _reply(send, http if failure is not None or status >= 500 else status, error)

    async def _resume(self, scope: Any, receive: Any, send: Any) -> None:
        await self._ask_workers(scope)
        if self._poison is None or scope["type"] != "http":
            await self._app(scope, receive, send)
        else:
            await _reply(send, 409, self._poison)

    async def _ask_workers(self, scope: Any) -> list[dict[str, Any]] | None:
        """Opens or closes the gate by what the workers may serve. None: they do not answer, and it is closed."""
        try:
            workers = await scope["app"].state.engine_client.collective_rpc("headrace_status")
        except Exception as error:
            logger.exception("Headrace: the workers do not say what they serve")
            self._close(None, f"the workers do not say what they serve: {error}")
            return None
        poisoned = [worker for worker in workers if worker["serving"] is None]
        served = {worker["serving"] for worker in workers}
        if poisoned:
            self._close(poisoned[0], "its weights may be of two generations")
        elif len(served) > 1:
            self._close(workers[0], f"the workers hold generations {sorted(served)}")
        elif self._poison is not None:
            logger.info("Headrace: generation %s is whole on all workers: requests are answered again", served.pop())
            self._poison = None
        return workers

    def _close(self, worker: dict[str, Any] | None, why: str) -> None:
        cause = (worker or {}).get("error") or {}
        because = f" ({cause['code']}: {cause['message']})" if cause else ""
        where = "" if worker is None else f"worker {worker['worker']}: "
        if self._poison is None:
            logger.error("Headrace: nothing is served: %s%s%s", where, why, because)
        self._poison = {
            "code": "poisoned",
            "kind": "state",
            "message": f"{where}{why}{because}. Nothing is served until a full generation has landed",
            "tensor": cause.get("tensor"),
            "buffer": cause.get("buffer"),
            "rank": cause.get("rank"),
            "peer": cause.get("peer"),
            "worker": None if worker is None else worker["worker"],
        }


def _typed(text: str, workers: list[dict[str, Any]]) -> dict[str, Any]:
    """The body for a failed call that the host explains by `text`: the error of the worker that it quotes."""
    for worker in workers:
        error = worker["error"]
        if error is not None and f"{error['code']}: {error['message']}" in text:
            return {**error, "worker": worker["worker"]}
    out_of_order = any(words in text for words in _OUT_OF_ORDER)
    return {
        "code": "malformed" if out_of_order else "internal",
        "kind": "state" if out_of_order else "internal",
        "message": text,
        "tensor": None,
        "buffer": None,
        "rank": None,
        "peer": None,
        "worker": None,
    }


def _message(held: list[dict[str, Any]]) -> str:
    """What the host's own error body says."""
    body = b"".join(m.get("body", b"") for m in held if m["type"] == "http.response.body")
    try:
        decoded = json.loads(body)
    except ValueError:
        return body.decode(errors="replace")
    error = decoded.get("error", decoded) if isinstance(decoded, dict) else decoded
    message = error.get("message", error.get("detail")) if isinstance(error, dict) else error
    return message if isinstance(message, str) else json.dumps(decoded)


async def _reply(send: Any, status: int, error: dict[str, Any], retry_after: int | None = None) -> None:
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if retry_after is not None:
        headers.append((b"retry-after", str(retry_after).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
