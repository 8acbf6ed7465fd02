"""Keeps an API server from answering with weights that must not be served.

A pure ASGI middleware in the API server's process. When an update leaves a worker poisoned, requests that need the
model get 503 with the reason, /resume is refused with 409, and both go on until a full generation has landed on all
workers. Routes that update weights, pause, or tell a state stay open. Failed calls of the weight routes say why: the
worker's typed error in place of the host's bare 500.

Requests that a pause keeps reach the model without passing here, so the engine itself must stand still while its
weights may not be served:

    start, update    are refused with 409 unless the engine is paused
    /resume          waits for an update that runs, then asks the workers; it is refused with 409 as well when they
                     serve a generation that the server does not report as its weight version: that update was never
                     finished, and what is cached was computed with older weights
    poison           pauses an engine that runs all the same, before the call that found it is answered

With several API server processes each has a gate of its own, and learns of a failure by the calls that it carries;
/resume asks the workers in any of them. A resume in one and an update in another are not ordered: headrace.vllm.guard
stops what gets through.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from headrace.errors import StateError

logger = logging.getLogger("vllm.headrace")

_WEIGHT_ROUTES = (
    "/init_weight_transfer_engine",
    "/start_weight_update",
    "/update_weights",
    "/finish_weight_update",
    "/shutdown_weight_transfer_engine",
)
_NEED_A_PAUSE = ("/start_weight_update", "/update_weights")
_RESUMING_ROUTES = ("/resume", "/wake_up")
# What an operator or a driver needs while nothing is served. Everything else is held to need the model.
_OPEN_ROUTES = frozenset(
    (
        *_WEIGHT_ROUTES,
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
_OUT_OF_ORDER = (
    "must be called before",
    "is already active",
    "without a matching start_weight_update",
    "during a weight update",
)


class Gate:
    """See above. One per app; all calls on the app's event loop."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._poison: dict[str, Any] | None = None  # the error body to answer with; None: open
        self._order = asyncio.Lock()  # one weight route, or one that resumes, at a time

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if scope["type"] == "http" and path in _WEIGHT_ROUTES:
            receive = await _received(receive)  # before the others wait: a client may die while it sends
            async with self._order:
                await self._update(path, scope, receive, send)
        elif scope["type"] == "http" and path in _RESUMING_ROUTES:
            async with self._order:
                await self._resume(scope, receive, send)
        elif self._poison is None or path in _OPEN_ROUTES:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1013, "reason": "no weights that may be served"})
        else:
            await _reply(send, 503, self._poison, retry_after=_RETRY_AFTER_SECONDS)

    async def _update(self, path: str, scope: Any, receive: Any, send: Any) -> None:
        if path in _NEED_A_PAUSE and not await self._is_paused(scope):
            message = "the engine is not paused: call /pause first, and /resume when the update is finished"
            return await _reply(send, 409, _state_error(message))
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
        workers = await self._ask_workers(scope)
        refusal = self._poison or await _unfinished(scope, workers[0]["serving"])
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await _reply(send, 409, refusal)

    async def _is_paused(self, scope: Any) -> bool:
        try:
            return await _engine(scope).is_paused()
        except Exception:
            if await self._ask_workers(scope) is None:
                raise  # the engine is dead, which the host handles itself
            return False  # its cores disagree

    async def _ask_workers(self, scope: Any) -> list[dict[str, Any]] | None:
        """Opens or closes the gate by what the workers may serve. None: they do not answer, and it is closed."""
        try:
            workers = await _engine(scope).collective_rpc("headrace_status")
        except Exception as error:
            logger.exception("Headrace: the workers do not say what they serve")
            await self._close(scope, None, f"the workers do not say what they serve: {error}")
            return None
        poisoned = [worker for worker in workers if worker["serving"] is None]
        served = {worker["serving"] for worker in workers}
        if poisoned:
            await self._close(scope, poisoned[0], "its weights may be of two generations")
        elif len(served) > 1:
            await self._close(scope, workers[0], f"the workers hold generations {sorted(served)}")
        elif self._poison is not None:
            logger.info("Headrace: generation %s is whole on all workers: requests are answered again", served.pop())
            self._poison = None
        return workers

    async def _close(self, scope: Any, worker: dict[str, Any] | None, why: str) -> None:
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
        await _stop(_engine(scope))


def _engine(scope: Any) -> Any:
    """The server's vllm AsyncLLM."""
    return scope["app"].state.engine_client


async def _stop(engine: Any) -> None:
    """Pauses an engine that is not paused; the requests that it has are kept. Never raises."""
    try:
        if await engine.is_paused():
            return
    except Exception as error:
        logger.warning("Headrace: the engine does not say whether it is paused: %s", error)
    try:
        await engine.pause_generation(mode="keep", clear_cache=False)
        logger.error("Headrace: the engine ran with weights that must not be served; it is paused now")
    except Exception:
        logger.exception("Headrace: an engine that may serve nothing could not be paused")


async def _unfinished(scope: Any, generation: int) -> dict[str, Any] | None:
    """Why an engine whose workers all serve `generation` may not go on: the last step of a swap, which sets the weight
    version, was never made. None: it may."""
    if generation == 0:
        return None  # the weights that it was started with, under whatever version
    try:
        version = await _engine(scope).get_weight_version()
    except Exception as error:
        version = f"unknown ({error})"
    if version == str(generation):
        return None
    return _state_error(
        f"the update to generation {generation} was not finished: the server's weight version is {version}. Run the "
        f"swap of {generation} again (`headrace drive --generation {generation}`): it finishes the update and resets "
        "the caches"
    )


async def _received(receive: Any) -> Any:
    """A `receive` that starts with the request's whole body, which has come when this returns."""
    messages = [await receive()]
    while messages[-1]["type"] == "http.request" and messages[-1].get("more_body", False):
        messages.append(await receive())
    messages.reverse()

    async def replay() -> Any:
        return messages.pop() if messages else await receive()

    return replay


def _state_error(message: str) -> dict[str, Any]:
    return {**StateError("malformed", message).to_json(), "worker": None}


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
