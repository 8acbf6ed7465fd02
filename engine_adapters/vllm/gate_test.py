import asyncio
import json
import logging
import types
import unittest

from headrace.errors import DataLossError
from headrace.vllm.gate import Gate

_ERROR = DataLossError("verification_failed", "tensor w differs", tensor="w", rank=1, peer="publisher 0").to_json()


class Host:
    """An app with an engine: it answers 200 unless told otherwise, and says what its workers serve."""

    def __init__(self):
        self.serving: list[int | None] = [1, 1]
        self.errors: list[dict | None] = [None, None]
        self.fail: dict[str, Exception | tuple[int, dict]] = {}
        self.reached: list[str] = []
        self.dead = False
        self.state = types.SimpleNamespace(engine_client=self)

    async def collective_rpc(self, method):
        assert method == "headrace_status"
        if self.dead:
            raise ConnectionError("the engine core is gone")
        return [{"worker": i, "serving": s, "error": self.errors[i]} for i, s in enumerate(self.serving)]

    async def app(self, scope, receive, send):
        self.reached.append(scope["path"])
        status, body = 200, {"ok": True}
        failure = self.fail.get(scope["path"])
        if isinstance(failure, Exception):
            raise failure
        if failure is not None:
            status, body = failure
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})


class GateTest(unittest.TestCase):
    def setUp(self):
        self.host = Host()
        self.gate = Gate(self.host.app)

    def call(self, path, kind="http", root_path=""):
        sent = []

        async def send(message):
            sent.append(message)

        scope = {"type": kind, "path": root_path + path, "root_path": root_path, "app": self.host}
        asyncio.run(self.gate(scope, None, send))
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
        self.host.serving = [2, 2]
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


def setUpModule() -> None:
    logging.getLogger("vllm.headrace").setLevel(logging.CRITICAL)


if __name__ == "__main__":
    unittest.main()
