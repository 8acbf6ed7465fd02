"""The engines that a driver steers: a vLLM server over HTTP, or a vllm.LLM in this process.

Every method of an engine blocks, may be called from any thread, and raises headrace.errors.Error. A worker's own error
comes back typed where the host lets it through; a host that only says "internal server error" gives InternalError, and
`status()` then has the worker's error.
"""

from __future__ import annotations

import http.client
import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Callable, Protocol, TypeVar

from headrace.errors import CredentialsError, DeadlineError, Error, InputError, InternalError, PeerError

T = TypeVar("T")

# Without a proxy: this is control traffic inside a cluster.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

# vLLM keeps its current configuration in a variable of the process, and sets it around these calls.
_HOST_LOCK = threading.Lock()


class Engine(Protocol):
    """What a driver needs of an engine. The lists have one dict per worker, in the order of global ranks."""

    def describe(self) -> list[dict[str, Any]]: ...

    def status(self) -> list[dict[str, Any]]: ...

    def init(self, info: dict[str, Any]) -> None:
        """Joins the job `info` on every worker. Returns when all members of the job have joined."""

    def pause(self, mode: str) -> None:
        """No step runs when it returns. Mode `keep` holds requests, `wait` drains, `abort` ends them."""

    def start(self) -> None: ...

    def update(self, info: dict[str, Any]) -> None:
        """Commits generation info["generation"] on every worker."""

    def finish(self, weight_version: str | None) -> None:
        """Ends the update session. None leaves the version that the server reports."""

    def set_version(self, weight_version: str) -> None: ...

    def reset_caches(self) -> None:
        """Drops prefix (running requests included), multi-modal and encoder caches. Raises where any is left."""

    def resume(self) -> None: ...

    def shutdown(self) -> None:
        """The workers leave their job; the engine serves on."""


def typed(body: Any, where: str) -> Error | None:
    """The typed error in {"error": {"code": str, "message": str, ...}}, said of `where`; None when it is no such body.

    vLLM's own error bodies have the same shape with a number as the code.
    """
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("code"), str) or "message" not in error:
        return None
    known = dict.fromkeys(("kind", "tensor", "buffer", "rank", "peer")) | error
    made = Error.from_json(known | {"message": f"{where}: {error['message']}"})
    made.peer = made.peer or where
    return made


class HttpEngine:
    """A vLLM server at `url`, started with VLLM_SERVER_DEV_MODE=1. Holds no connection between calls.

    `timeout`: seconds for each call, which bounds how long an update may take. `api_key`: the server's --api-key.
    """

    def __init__(self, url: str, api_key: str | None = None, timeout: float = 600.0) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
            raise InputError("invalid_option", f'"{url}" is no address of a server; write http://HOST:PORT')
        if parts.username is not None or parts.password is not None:
            raise InputError("invalid_option", "give the server's key as api_key, not inside of the address")
        if api_key is not None and (not api_key.isascii() or not api_key.isprintable()):
            raise InputError("invalid_option", "api_key has characters that no HTTP header may hold")
        if not timeout > 0:
            raise InputError("invalid_option", f"timeout is {timeout}; it must be above 0")
        self.name = url.rstrip("/")
        self._timeout = timeout
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def describe(self) -> list[dict[str, Any]]:
        return self._rpc("headrace_describe")

    def status(self) -> list[dict[str, Any]]:
        return self._rpc("headrace_status")

    def explain(self) -> list[dict[str, Any]]:
        return self._rpc("headrace_explain")

    def init(self, info: dict[str, Any]) -> None:
        self._post("/init_weight_transfer_engine", {"init_info": info})

    def pause(self, mode: str) -> None:
        # The caches are dropped after the update: dropping them here too would lengthen the pause.
        self._post("/pause?" + urllib.parse.urlencode({"mode": mode, "clear_cache": "false"}))

    def start(self) -> None:
        self._post("/start_weight_update")

    def update(self, info: dict[str, Any]) -> None:
        self._post("/update_weights", {"update_info": info})

    def finish(self, weight_version: str | None) -> None:
        self._post("/finish_weight_update", {"weight_version": weight_version})

    def set_version(self, weight_version: str) -> None:
        self._post("/update_weight_version", {"new_version": weight_version})

    def reset_caches(self) -> None:
        reply = self._post("/reset_prefix_cache?reset_running_requests=true&reset_external=true")
        if not isinstance(reply, dict) or reply.get("success") is not True:
            raise _cache_held(self.name)
        self._post("/reset_mm_cache")
        self._post("/reset_encoder_cache")

    def resume(self) -> None:
        self._post("/resume")

    def shutdown(self) -> None:
        self._post("/shutdown_weight_transfer_engine")

    def _rpc(self, method: str) -> list[dict[str, Any]]:
        try:
            reply = self._post("/collective_rpc", {"method": method, "args": []})
        except InternalError as error:
            hint = "the server needs headrace installed and --weight-transfer-config '{\"backend\": \"headrace\"}'"
            raise InternalError(error.code, f"{error.message} ({method}; {hint})", peer=self.name) from None
        return _workers(reply.get("results") if isinstance(reply, dict) else None, method, self.name)

    def _post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The reply's JSON; None for an empty reply."""
        data = json.dumps(body or {}).encode()
        request = urllib.request.Request(self.name + path, data, self._headers, method="POST")
        where = self.name + path.partition("?")[0]
        try:
            with _opener.open(request, timeout=self._timeout) as response:
                text = response.read()
        except urllib.error.HTTPError as reply:
            raise self._refused(reply, where) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                message = f"{where} did not answer within {self._timeout:g} s"
                raise DeadlineError("deadline", message, peer=self.name) from None
            what = str(reason) or type(reason).__name__
            raise PeerError("peer_lost", f"{where} does not answer: {what}", peer=self.name) from None
        if not text:
            return None
        try:
            return json.loads(text)
        except ValueError:
            raise InputError("invalid_option", f"{where} did not answer in JSON: it is no vLLM server") from None

    def _refused(self, reply: urllib.error.HTTPError, where: str) -> Error:
        try:
            text = reply.read().decode(errors="replace")
        except (OSError, http.client.HTTPException):
            text = ""
        try:
            body = json.loads(text)
        except ValueError:
            body = None
        own = typed(body, where)
        if own is not None:
            return own
        said = body.get("error", text) if isinstance(body, dict) else text
        said = said.get("message", said) if isinstance(said, dict) else said
        message = f"{where} answered {reply.code}: {str(said).strip()[:2000] or reply.reason}"
        if reply.code == 404:
            message = f"{where} is not there (404): start the vLLM server with VLLM_SERVER_DEV_MODE=1"
            return InputError("invalid_option", message, peer=self.name)
        if reply.code in (401, 403):
            return CredentialsError("unauthenticated", message, peer=self.name)
        if reply.code in (502, 503, 504):
            return PeerError("peer_lost", message, peer=self.name)
        if reply.code < 500:
            return InputError("invalid_option", message, peer=self.name)
        return InternalError("internal", message, peer=self.name)


class LocalEngine:
    """A `vllm.LLM` in this process. Its caller generates nothing while a swap runs: that is its pause."""

    def __init__(self, llm: Any) -> None:
        self.name = "the LLM of this process"
        self._llm = llm

    def describe(self) -> list[dict[str, Any]]:
        return self._rpc("headrace_describe")

    def status(self) -> list[dict[str, Any]]:
        return self._rpc("headrace_status")

    def explain(self) -> list[dict[str, Any]]:
        return self._rpc("headrace_explain")

    def init(self, info: dict[str, Any]) -> None:
        self._call(lambda: self._llm.init_weight_transfer_engine({"init_info": info}))

    def pause(self, mode: str) -> None:
        """generate() does not run. Requests of one that a poisoned worker refused are still in the engine's books, and
        would be computed half by other weights: they are dropped."""
        if any(worker["serving"] is None for worker in self.status()):
            engine = self._llm.llm_engine
            self._call(lambda: engine.abort_request(list(engine.output_processor.request_states), internal=True))

    def start(self) -> None:
        self._session(self._llm.start_weight_update)

    def update(self, info: dict[str, Any]) -> None:
        self._session(lambda: self._llm.update_weights({"update_info": info}))

    def finish(self, weight_version: str | None) -> None:
        self._session(lambda: self._llm.finish_weight_update(weight_version))

    def set_version(self, weight_version: str) -> None:
        self._call(lambda: self._llm.update_weight_version(weight_version))

    def reset_caches(self) -> None:
        if not self._call(lambda: self._llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True)):
            raise _cache_held(self.name)
        self._call(self._llm.reset_mm_cache)
        self._call(self._llm.llm_engine.reset_encoder_cache)

    def resume(self) -> None:
        """Nothing to do, as for pause."""

    def shutdown(self) -> None:
        self._call(self._llm.shutdown_weight_transfer_engine)

    def _rpc(self, method: str) -> list[dict[str, Any]]:
        return _workers(self._call(lambda: self._llm.collective_rpc(method)), method, self.name)

    def _session(self, call: Callable[[], T]) -> T:
        with _HOST_LOCK:
            return self._call(call)

    def _call(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except Error:
            raise
        except Exception as error:  # the host raises anything
            what = str(error) or type(error).__name__
            raise InternalError("internal", f"{self.name}: {what}", peer=self.name) from error


def _cache_held(name: str) -> Error:
    return PeerError("aborted", f"{name} still holds blocks of its prefix cache; they were computed with old weights")


def _workers(reply: Any, method: str, name: str) -> list[dict[str, Any]]:
    if not isinstance(reply, list) or not reply or not all(isinstance(w, dict) and "worker" in w for w in reply):
        raise InternalError("internal", f"{name} answered {method} with no dict per worker", peer=name)
    return sorted(reply, key=lambda worker: worker["worker"])
