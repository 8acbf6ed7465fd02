import asyncio
import json
import logging
import types
import unittest
from collections.abc import Awaitable, Callable

from headrace.errors import DataLossError
from headrace.vllm.gate import Gate

_ERROR = DataLossError("verification_failed", "tensor w differs", tensor="w", rank=1, peer="publisher 0").to_json()


class Host:
    """An app with an engine, paused for an update of generation 1 that is over. It answers 200 unless told otherwise,
    and its engine says what the workers serve."""

    def __init__(self):
        self.serving: list[int | None] = [1, 1]
        self.errors: list[dict | None] = [None, None]
        self.fail: dict[str, Exception | tuple[int, dict]] = {}
        self.during: dict[str, Callable[[], Awaitable[None]]] = {}  # by path, or by method of the engine
        self.reached: list[str] = []
        self.dead = False
        self.paused: bool | Exception = True
        self.version: str | Exception = "1"
        self.state = types.SimpleNamespace(engine_client=self)

    async def collective_rpc(self, method):
        assert method == "headrace_status"
        if self.dead:
            raise ConnectionError("the engine core is gone")
        workers = [{"worker": i, "serving": s, "error": self.errors[i]} for i, s in enumerate(self.serving)]
        if method in self.during:
            await self.during[method]()
        return workers

    async def is_paused(self):
        return self._said(self.paused)

    async def get_weight_version(self):
        return self._said(self.version)

    async def pause_generation(self, *, mode, clear_cache):
        assert (mode, clear_cache) == ("keep", False)
        self._said(None)
        self.paused = True

    def _said(self, answer):
        if self.dead:
            raise ConnectionError("the engine core is gone")
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def app(self, scope, receive, send):
        self.reached.append(scope["path"])
        if scope["path"] in self.during:
            await self.during[scope["path"]]()
        status, body = 200, {"ok": True}
        failure = self.fail.get(scope["path"])
        if isinstance(failure, Exception):
            raise failure
        if failure is not None:
            status, body = failure
        if scope["path"] == "/resume" and status == 200:
            self.paused = False
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})


class GateCase(unittest.TestCase):
    def setUp(self):
        self.host = Host()
        self.gate = Gate(self.host.app)

    def call(self, path, kind="http", root_path=""):
        return asyncio.run(self.send(path, kind, root_path))

    async def send(self, path, kind="http", root_path=""):
        sent = []
        parts = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.request", "body": b"}"}]

        async def receive():
            return parts.pop(0)

        async def send(message):
            sent.append(message)

        scope = {"type": kind, "path": root_path + path, "root_path": root_path, "app": self.host}
        await self.gate(scope, receive, send)
        if kind != "http":
            return sent
        headers = dict(sent[0]["headers"])
        return sent[0]["status"], json.loads(sent[1]["body"]), headers

    def poison(self):
        self.host.serving = [1, None]
        self.host.errors = [None, _ERROR]
        self.host.fail["/update_weights"] = Exception("Call failed: verification_failed: tensor w differs")
        result = self.call("/update_weights")
        del self.host.fail["/update_weights"]
        return result


class GateTest(GateCase):
    def test_open_from_the_start_and_asks_nobody(self):
        self.host.dead = True
        for path in ("/v1/completions", "/health", "/generate"):
            self.assertEqual(self.call(path)[0], 200)

    def test_a_failed_update_says_why_and_closes(self):
        status, body, _ = self.poison()
        self.assertEqual(status, 500)
        self.assertEqual(body["error"], {**_ERROR, "worker": 1})
        for path in ("/v1/completions", "/v1/chat/completions", "/generate", "/health", "/ping", "/new"):
            with self.subTest(path=path):
                self.host.reached.clear()
                status, body, headers = self.call(path)
                self.assertEqual((status, body["error"]["code"]), (503, "poisoned"))
                self.assertIn("tensor w differs", body["error"]["message"])
                self.assertGreater(int(headers[b"retry-after"]), 0)
                self.assertEqual(self.host.reached, [])

    def test_what_repairs_it_stays_reachable(self):
        self.poison()
        for path in ("/pause", "/collective_rpc", "/start_weight_update", "/is_paused", "/metrics", "/reset_mm_cache"):
            self.assertEqual(self.call(path)[0], 200, path)

    def test_resume_is_refused_until_a_whole_generation(self):
        self.poison()
        self.host.reached.clear()
        self.assertEqual(self.call("/resume")[0], 409)
        self.assertEqual(self.host.reached, [])
        self.host.serving, self.host.version = [2, 2], "2"
        self.assertEqual(self.call("/update_weights")[0], 200)
        self.assertEqual(self.call("/v1/completions")[0], 503)  # not before the finish
        self.assertEqual(self.call("/finish_weight_update")[0], 200)
        self.assertEqual(self.call("/v1/completions")[0], 200)
        self.assertEqual(self.call("/resume")[0], 200)

    def test_workers_of_two_generations(self):
        self.host.serving = [1, 2]
        self.assertEqual(self.call("/finish_weight_update")[0], 200)
        status, body, _ = self.call("/v1/completions")
        self.assertEqual(status, 503)
        self.assertIn("[1, 2]", body["error"]["message"])

    def test_resume_learns_what_another_server_process_did(self):
        self.host.serving = [None, None]
        self.assertEqual(self.call("/resume")[0], 409)
        self.assertEqual(self.call("/v1/completions")[0], 503)

    def test_an_update_that_failed_early_leaves_it_open(self):
        self.host.errors = [_ERROR, None]
        self.host.fail["/update_weights"] = Exception("verification_failed: tensor w differs")
        self.assertEqual(self.call("/update_weights")[1]["error"]["worker"], 0)
        self.assertEqual(self.call("/v1/completions")[0], 200)

    def test_errors_that_are_the_hosts(self):
        self.host.errors = [_ERROR, None]  # an old one, which the host does not quote
        self.host.fail["/update_weights"] = Exception("start_weight_update must be called before update_weights.")
        status, body, _ = self.call("/update_weights")
        self.assertEqual((status, body["error"]["code"]), (409, "malformed"))
        self.host.fail["/update_weights"] = (500, {"error": {"message": "boom", "code": 500}})
        status, body, _ = self.call("/update_weights")
        self.assertEqual((status, body["error"]["code"], body["error"]["message"]), (500, "internal", "boom"))
        self.host.fail["/update_weights"] = (422, {"detail": "no such field"})
        self.assertEqual(self.call("/update_weights")[0], 422)

    def test_a_dead_engine_is_the_hosts_to_handle(self):
        self.host.dead = True
        self.host.fail["/update_weights"] = ConnectionError("the engine core is gone")
        with self.assertRaises(ConnectionError):
            self.call("/update_weights")
        self.assertEqual(self.call("/v1/completions")[0], 503)

    def test_below_a_root_path(self):
        self.poison()
        self.assertEqual(self.call("/v1/completions", root_path="/proxy")[0], 503)
        self.assertEqual(self.call("/pause", root_path="/proxy")[0], 200)

    def test_websockets(self):
        self.poison()
        self.assertEqual(self.call("/v1/realtime", kind="websocket")[0]["type"], "websocket.close")


class OrderTest(GateCase):
    """What may run while what else does."""

    def together(self, first, during, second, then=lambda: None):
        """Calls `first`; when that is in `during`, calls `second`, and when all stands still runs `then` and lets
        `during` end. Returns both answers, and what had reached the host by then."""

        async def run():
            inside, leave = asyncio.Event(), asyncio.Event()

            async def hold():
                if not inside.is_set():
                    inside.set()
                    await leave.wait()
                    then()

            self.host.during[during] = hold
            one = asyncio.create_task(self.send(first))
            await inside.wait()
            two = asyncio.create_task(self.send(second))
            for _ in range(100):  # turns of the event loop; nothing here waits for anything else
                await asyncio.sleep(0)
            reached = list(self.host.reached)
            leave.set()
            return await one, await two, reached

        return asyncio.run(run())

    def poison_workers(self):
        self.host.serving = [1, None]

    def test_an_update_and_its_start_need_a_pause(self):
        self.host.paused = False
        for path in ("/start_weight_update", "/update_weights"):
            with self.subTest(path=path):
                status, body, _ = self.call(path)
                self.assertEqual((status, body["error"]["code"], body["error"]["kind"]), (409, "malformed", "state"))
                self.assertIn("pause", body["error"]["message"])
        self.assertEqual(self.host.reached, [])
        self.assertEqual(self.call("/v1/completions")[0], 200)
        for path in ("/init_weight_transfer_engine", "/finish_weight_update"):
            self.assertEqual(self.call(path)[0], 200)

    def test_cores_that_disagree_are_not_paused(self):
        self.host.paused = RuntimeError("Engines returned different is_scheduler_paused results")
        self.assertEqual(self.call("/update_weights")[0], 409)
        self.assertEqual(self.host.reached, [])

    def test_an_update_after_a_resume_in_its_pause_is_refused(self):
        self.assertEqual(self.call("/start_weight_update")[0], 200)
        self.assertEqual(self.call("/resume")[0], 200)
        self.assertEqual(self.call("/update_weights")[0], 409)
        self.assertEqual(self.host.reached, ["/start_weight_update", "/resume"])

    def test_what_resumes_waits_for_the_update_and_sees_its_end(self):
        for path in ("/resume", "/wake_up"):
            with self.subTest(path=path):
                self.setUp()
                self.host.fail["/update_weights"] = Exception("verification_failed: tensor w differs")
                update, resume, reached = self.together("/update_weights", "/update_weights", path, self.poison_workers)
                self.assertEqual(reached, ["/update_weights"])
                self.assertEqual((update[0], resume[0]), (500, 409))
                self.assertEqual(self.host.reached, ["/update_weights"])

    def test_an_update_waits_for_the_resume_and_finds_the_engine_running(self):
        resume, update, reached = self.together("/resume", "headrace_status", "/update_weights")
        self.assertEqual(reached, [])
        self.assertEqual((resume[0], update[0]), (200, 409))
        self.assertEqual(self.host.reached, ["/resume"])

    def test_the_body_is_waited_for_outside_of_the_order(self):
        async def run():
            asked, came = asyncio.Event(), asyncio.Event()
            bodies = []

            async def receive():
                if asked.is_set():
                    await came.wait()
                    return {"type": "http.request", "body": b"}"}
                asked.set()
                return {"type": "http.request", "body": b"{", "more_body": True}

            async def app(scope, receive, send):
                if scope["path"] == "/update_weights":
                    bodies.extend([(await receive())["body"], (await receive())["body"]])
                await self.host.app(scope, receive, send)

            async def ignore(message):
                pass

            self.gate = Gate(app)
            scope = {"type": "http", "path": "/update_weights", "app": self.host}
            update = asyncio.create_task(self.gate(scope, receive, ignore))
            await asked.wait()
            resumed = await asyncio.wait_for(self.send("/resume"), 60)
            self.host.paused = True
            came.set()
            await update
            return resumed[0], bodies

        self.assertEqual(asyncio.run(run()), (200, [b"{", b"}"]))

    def test_a_client_that_is_gone_holds_nothing_up(self):
        async def run():
            inside = asyncio.Event()

            async def hang():
                inside.set()
                await asyncio.Event().wait()

            self.host.during["/update_weights"] = hang
            update = asyncio.create_task(self.send("/update_weights"))
            await inside.wait()
            update.cancel()
            return await self.send("/resume")

        self.assertEqual(asyncio.run(run())[0], 200)

    def test_a_poison_stops_an_engine_that_runs(self):
        for found_by in ("/update_weights", "/finish_weight_update", "/resume"):
            with self.subTest(found_by=found_by):
                self.setUp()
                self.poison_workers()
                if found_by == "/update_weights":  # another process resumed while it ran

                    async def resume():
                        self.host.paused = False

                    self.host.during[found_by] = resume
                    self.host.fail[found_by] = Exception("verification_failed: tensor w differs")
                else:
                    self.host.paused = False
                self.call(found_by)
                self.assertIs(self.host.paused, True)
        with self.subTest("cores that disagree"):
            self.setUp()
            self.poison_workers()
            self.host.paused = RuntimeError("Engines returned different is_scheduler_paused results")
            self.assertEqual(self.call("/resume")[0], 409)
            self.assertIs(self.host.paused, True)

    def test_an_update_that_nobody_finished_is_not_resumed(self):
        self.host.serving = [2, 2]
        for path in ("/resume", "/wake_up"):
            for version in ("1", "default", RuntimeError("Engines returned different get_weight_version results")):
                with self.subTest(path=path, version=version):
                    self.host.version = version
                    status, body, _ = self.call(path)
                    self.assertEqual((status, body["error"]["code"]), (409, "malformed"))
                    self.assertIn("headrace drive --generation 2", body["error"]["message"])
        self.assertEqual(self.host.reached, [])
        self.assertEqual(self.call("/v1/completions")[0], 200)  # waits in the engine's queue
        self.host.version = "2"
        self.assertEqual(self.call("/resume")[0], 200)

    def test_what_serves_the_weights_that_it_was_started_with_resumes(self):
        self.host.serving, self.host.version = [0, 0], "default"
        self.assertEqual(self.call("/resume")[0], 200)

    def test_leaving_in_the_middle_of_an_update_is_out_of_order(self):
        self.host.fail["/shutdown_weight_transfer_engine"] = (
            500,
            {"error": {"message": "Cannot release a trainer connection during a weight update", "code": 500}},
        )
        status, body, _ = self.call("/shutdown_weight_transfer_engine")
        self.assertEqual((status, body["error"]["code"], body["error"]["kind"]), (409, "malformed", "state"))


def setUpModule() -> None:
    logging.getLogger("vllm.headrace").setLevel(logging.CRITICAL)


if __name__ == "__main__":
    unittest.main()
