"""A programmable engine for tests: workers, caches and a host that fails where it is told to.

It knows nothing of the driver. `check()` says whether the state that requests would meet is a legal one, and is asked
after every call.
"""

from __future__ import annotations

import http.server
import json
import threading
import urllib.parse
from typing import Any, Callable

from headrace.errors import DataLossError, Error, InternalError, PeerError

STEPS = ("status", "pause", "start", "update", "finish", "set_version", "reset_caches", "resume")


class FakeEngine:
    """Implements headrace.driver.Engine. Any thread may call it; one at a time is let in, as in the host.

    faults: step -> list of what becomes of its next calls: None (nothing), "before" (fails and does nothing), "after"
    (does it, then the response is lost), or a callable that is called with the engine. The last one stays if it is in
    `forever`. update is special: "torn" leaves worker 0 without weights, "half" commits on worker 0 alone.
    """

    def __init__(self, name: str = "fake", workers: int = 2, shadow: str = "host") -> None:
        self.name = name
        self.shadow = shadow
        self.calls: list[str] = []
        self.faults: dict[str, list[Any]] = {}
        self.forever: set[str] = set()
        self.paused = False
        self.version = "unset"
        self.workers = [
            {"serving": 0, "inherited": True, "staged": None, "joined": True, "error": None, "session": False}
            for _ in range(workers)
        ]
        self.announced: list[int] = []  # what publishers offer
        self.cached = {0}  # generations whose KV lies in caches
        self.polls_until_staged = 0
        self.info: dict[str, Any] = {}
        self.tensors = [{"name": "w", "shape": [4, 2], "dtype": "F32"}]
        self._lock = threading.RLock()

    # What a test does to it.

    def publish(self, generation: int) -> None:
        self.announced.append(generation)

    def fail_worker(self, worker: int, error: Error, serving: Any) -> None:
        self.workers[worker] |= {"error": error.to_json(), "serving": serving, "staged": None}

    def check(self) -> None:
        serving = {worker["serving"] for worker in self.workers}
        if not self.paused:
            assert None not in serving, f"{self.name} answers requests with a worker that has no weights"
            assert len(serving) == 1, f"{self.name} answers requests with mixed weights {serving}"
            assert self.cached <= serving, f"{self.name} serves {serving} with caches of {self.cached}"

    def request(self) -> None:
        """A request that computes and leaves its KV."""
        self.check()
        assert not self.paused
        self.cached |= {self.workers[0]["serving"]}

    # The engine.

    def describe(self) -> list[dict[str, Any]]:
        return [
            {"worker": i, "workers": len(self.workers), "tensors": self.tensors, "unread": [], "shadow": self.shadow}
            for i in range(len(self.workers))
        ]

    def init(self, info: dict[str, Any]) -> None:
        self._call("init", lambda: setattr(self, "info", info))

    def status(self) -> list[dict[str, Any]]:
        return self._call("status", self._status)

    def explain(self) -> list[dict[str, Any]]:
        parameters = [
            {"name": "w", "tensors": ["w"], "install": "direct", "reason": "a plain copy", "bytes": 32},
            {"name": "packed", "tensors": ["a", "b"], "install": "loader", "reason": "prepacked", "bytes": 2048},
        ]
        return [{"worker": 0, "parameters": parameters, "loader_bytes": 2048, "shadow_bytes": 32}]

    def pause(self, mode: str) -> None:
        self._call(f"pause {mode}", lambda: setattr(self, "paused", True))

    def start(self) -> None:
        self._call("start", self._start)

    def update(self, info: dict[str, Any]) -> None:
        self._call("update", lambda: self._update(info["generation"]))

    def finish(self, weight_version: str | None) -> None:
        self._call("finish", lambda: self._finish(weight_version))

    def set_version(self, weight_version: str) -> None:
        self._call("set_version", lambda: setattr(self, "version", weight_version))

    def reset_caches(self) -> None:
        self._call("reset_caches", self.cached.clear)

    def resume(self) -> None:
        self._call("resume", lambda: setattr(self, "paused", False))

    def shutdown(self) -> None:
        self._call("shutdown", lambda: None)

    def _call(self, call: str, effect: Callable[[], Any]) -> Any:
        step = call.split()[0]
        with self._lock:
            self.calls.append(call)
            plan = self.faults.get(step, [])
            fault = plan[0] if plan else None
            if plan and not (len(plan) == 1 and step in self.forever):
                plan.pop(0)
            try:
                if callable(fault):
                    fault(self)
                if fault == "before":
                    raise InternalError("internal", f"{step} failed by plan")
                if fault in ("torn", "half"):
                    self._tear(fault)
                result = effect()
                if fault == "after":
                    raise PeerError("peer_lost", f"the response of {step} was lost by plan")
                return result
            finally:
                self.check()

    def _status(self) -> list[dict[str, Any]]:
        if self.polls_until_staged > 0:
            self.polls_until_staged -= 1
        elif self.shadow != "off" and self.announced:
            for worker in self.workers:
                if worker["error"] is None and (worker["inherited"] or worker["serving"] != self.announced[0]):
                    worker["staged"] = self.announced[0]
        return [
            {
                "worker": i,
                "job": "j",
                "joined": worker["joined"],
                "serving": worker["serving"],
                "inherited": worker["inherited"],
                "staging": None,
                "staged": worker["staged"],
                "streamed_bytes": 32 if worker["staged"] else 8,
                "needed_bytes": 32,
                "shadow": self.shadow,
                "error": worker["error"],
                "stats": {"bytes": 32},
                "waiting_for": "publisher rank 3",
            }
            for i, worker in enumerate(self.workers)
        ]

    def _start(self) -> None:
        # Each worker has its own flag; all are asked even if one fails.
        open_before = [worker["session"] for worker in self.workers]
        for worker in self.workers:
            worker["session"] = True
        if any(open_before):
            raise InternalError("internal", "start_weight_update called while a weight update is already active")

    def _update(self, generation: int) -> None:
        # What is cached stays: dropping it is the driver's duty.
        assert self.paused, "an update of a running engine"
        if not all(worker["session"] for worker in self.workers):
            raise InternalError("internal", "start_weight_update must be called before update_weights")
        assert self.announced and self.announced[0] == generation, (self.announced, generation)
        self.announced.pop(0)
        for worker in self.workers:
            worker |= {"serving": generation, "inherited": False, "staged": None, "error": None}

    def _tear(self, how: str) -> None:
        generation = self.announced.pop(0)
        if how == "torn":
            self.fail_worker(0, DataLossError("verification_failed", "tile 3 of tensor w", tensor="w"), None)
        else:
            self.workers[0] |= {"serving": generation, "inherited": False, "staged": None}
        for worker in self.workers:
            worker["session"] = False
        raise InternalError("internal", "EngineCore failed")

    def _finish(self, version: str | None) -> None:
        had = [worker["session"] for worker in self.workers]
        for worker in self.workers:
            worker["session"] = False
        if not all(had):
            raise InternalError("internal", "finish_weight_update called without a matching start_weight_update")
        if version is not None:
            self.version = version


class FakeServer:
    """A FakeEngine behind vLLM's routes.

    rules: path -> function(handler) that answers instead, or returns True for the engine to answer.
    """

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.requests: list[tuple[str, dict[str, str], Any]] = []  # path, query, body
        self.headers: list[dict[str, str]] = []
        self.rules: dict[str, Callable[[Any], bool]] = {}
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                url = urllib.parse.urlsplit(self.path)
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"null")
                fake.requests.append((url.path, dict(urllib.parse.parse_qsl(url.query)), body))
                fake.headers.append(dict(self.headers))
                rule = fake.rules.get(url.path)
                if rule is None or rule(self):
                    fake.answer(self, url.path, fake.requests[-1][1], body)

            def reply(self, status: int, body: Any) -> None:
                text = b"" if body is None else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, handler: Any, path: str, query: dict[str, str], body: Any) -> None:
        engine = self.engine
        rpcs = {f"headrace_{name}": getattr(engine, name) for name in ("describe", "status", "explain")}
        routes: dict[str, Callable[[], Any]] = {
            "/collective_rpc": lambda: {"results": rpcs[body["method"]]()},
            "/init_weight_transfer_engine": lambda: engine.init(body["init_info"]),
            "/shutdown_weight_transfer_engine": engine.shutdown,
            "/pause": lambda: engine.pause(query["mode"]),
            "/start_weight_update": engine.start,
            "/update_weights": lambda: engine.update(body["update_info"]),
            "/finish_weight_update": lambda: engine.finish(body["weight_version"]),
            "/update_weight_version": lambda: engine.set_version(body["new_version"]),
            "/reset_prefix_cache": lambda: engine.reset_caches() or {"success": True},
            "/reset_mm_cache": lambda: None,
            "/reset_encoder_cache": lambda: None,
            "/resume": engine.resume,
        }
        if path not in routes:
            handler.reply(404, {"detail": "Not Found"})
            return
        try:
            result = routes[path]()
        except PeerError:
            return  # the connection closes without a response
        except Error as error:
            handler.reply(500, {"error": {"message": error.message, "type": "InternalServerError", "code": 500}})
            return
        quiet = path in ("/reset_mm_cache", "/reset_encoder_cache")
        handler.reply(200, None if quiet else result if result is not None else {"message": "ok"})
