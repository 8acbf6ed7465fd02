"""HttpEngine against a programmable server, LocalEngine against a stand-in for vllm.LLM."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import threading
import unittest
from typing import Any
from unittest import mock

from headrace.driver import PAUSE_MODES, Driver
from headrace.driver_testing import FakeEngine, FakeServer
from headrace.engines import HttpEngine, LocalEngine
from headrace.errors import (
    CredentialsError,
    DeadlineError,
    Error,
    InputError,
    InternalError,
    PeerError,
    ResourceError,
    StateError,
)


class HttpTest(unittest.TestCase):
    def setUp(self) -> None:
        self.fake = FakeEngine()
        self.server = FakeServer(self.fake)
        self.addCleanup(self.server.close)

    def paths(self) -> list[str]:
        return [path for path, _, _ in self.server.requests if path != "/collective_rpc"]

    def test_a_swap(self) -> None:
        for generation, mode in enumerate(PAUSE_MODES, 1):
            with self.subTest(mode=mode):
                self.server.requests.clear()
                self.fake.request()
                self.fake.publish(generation)
                driver = Driver([self.server.url + "/"], options={"shadow": "host"}, pause_mode=mode)
                driver.swap(generation)
                self.assertEqual(self.fake.version, str(generation))
                resets = ["/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache"]
                steps = ["/pause", "/start_weight_update", "/update_weights"]
                self.assertEqual(self.paths(), steps + resets + ["/finish_weight_update", "/resume"])
                said = {path: (query, body) for path, query, body in self.server.requests}
                self.assertEqual(said["/pause"][0], {"mode": mode, "clear_cache": "false"})
                self.assertEqual(said["/update_weights"][1], {"update_info": {"generation": generation, "job": "j"}})
                self.assertEqual(said["/finish_weight_update"][1], {"weight_version": str(generation)})
                wanted = {"reset_running_requests": "true", "reset_external": "true"}
                self.assertEqual(said["/reset_prefix_cache"][0], wanted)
                self.assertEqual(said["/collective_rpc"][1], {"method": "headrace_status", "args": []})

    def test_every_failure_over_http(self) -> None:
        steps = ("pause", "start", "update", "finish", "reset_caches", "resume")
        for generation, (step, fault) in enumerate(itertools.product(steps, ("before", "after")), 1):
            with self.subTest(step=step, fault=fault):
                self.fake.announced = [generation]
                self.fake.faults = {step: [fault]}
                failed = False
                try:
                    Driver([self.server.url], options={"shadow": "host"}).swap(generation)
                except Error as error:
                    failed = True
                    self.assertIn(self.server.url, error.message)
                self.assertFalse(self.fake.paused)
                self.fake.request()  # checks that no weights or caches are mixed
                self.assertEqual(self.fake.workers[0]["serving"] == generation, not failed)
                for worker in self.fake.workers:
                    worker["staged"] = None

    def test_an_update_times_out_and_was_made(self) -> None:
        self.fake.publish(1)
        end = threading.Event()
        self.addCleanup(end.set)

        def late(handler: Any) -> bool:
            self.fake.update({"generation": 1, "job": "j"})
            end.wait(30)
            return False

        self.server.rules["/update_weights"] = late
        engine = HttpEngine(self.server.url, timeout=0.2)
        report = Driver([engine], options={"shadow": "host"}).swap(1)
        self.assertIn("did not answer within 0.2 s", report["engines"][0]["notes"][0])
        self.assertEqual(self.fake.version, "1")
        self.fake.request()

    def test_the_prefix_cache_is_held_for_a_while(self) -> None:
        self.fake.publish(1)
        held = [True, True]

        def holding(handler: Any) -> bool:
            if not held:
                return True
            held.pop()
            handler.reply(200, {"success": False})
            return False

        self.server.rules["/reset_prefix_cache"] = holding
        Driver([self.server.url], options={"shadow": "host"}).swap(1)
        self.assertEqual(self.paths().count("/reset_prefix_cache"), 3)
        self.fake.request()

    def test_replies(self) -> None:
        gate = {"error": StateError("poisoned", "worker 1 has no weights", rank=1).to_json()}
        own = {"error": ResourceError("out_of_memory", "needs 3 GiB", buffer="qkv").to_json()}
        host = {"error": {"message": "EngineCore failed", "type": "InternalServerError", "code": 500}}
        cases: list[tuple[int, Any, type[Error], str, str]] = [
            (503, gate, StateError, "poisoned", "worker 1 has no weights"),
            (500, own, ResourceError, "out_of_memory", "needs 3 GiB"),
            (500, host, InternalError, "internal", "EngineCore failed"),
            (503, {"error": "starting"}, PeerError, "peer_lost", "starting"),
            (404, {"detail": "Not Found"}, InputError, "invalid_option", "VLLM_SERVER_DEV_MODE=1"),
            (401, {"error": "Unauthorized"}, CredentialsError, "unauthenticated", "Unauthorized"),
            (400, {"error": "bad mode"}, InputError, "invalid_option", "bad mode"),
            (422, {"detail": []}, InputError, "invalid_option", "422"),
            (501, None, InternalError, "internal", "501"),
        ]
        for status, body, kind, code, said in cases:
            with self.subTest(status=status, body=body):

                def refusing(handler: Any) -> bool:
                    handler.reply(status, body)
                    return False

                for path in ("/pause", "/collective_rpc"):
                    self.server.rules = {path: refusing}
                    engine = HttpEngine(self.server.url)
                    with self.assertRaises(kind) as raised:
                        engine.pause("keep") if path == "/pause" else engine.status()
                    self.assertEqual(raised.exception.code, code)
                    self.assertIn(said, raised.exception.message)
                    self.assertIn(self.server.url + path, raised.exception.message)
        self.assertEqual(self.fake.calls, [])

    def test_a_server_without_the_plug_in(self) -> None:
        def refusing(handler: Any) -> bool:
            handler.reply(500, {"error": {"message": "no attribute headrace_status", "code": 500}})
            return False

        self.server.rules["/collective_rpc"] = refusing
        with self.assertRaises(InternalError) as raised:
            HttpEngine(self.server.url).status()
        self.assertIn("--weight-transfer-config", raised.exception.message)

    def test_replies_that_make_no_sense(self) -> None:
        for body in (None, [], {"results": []}, {"results": ["text"]}, {"results": [{"no": 1}]}):
            with self.subTest(body=body):

                def odd(handler: Any) -> bool:
                    handler.reply(200, body)
                    return False

                self.server.rules["/collective_rpc"] = odd
                with self.assertRaises(InternalError):
                    HttpEngine(self.server.url).status()

    def test_workers_are_in_order(self) -> None:
        def mixed(handler: Any) -> bool:
            handler.reply(200, {"results": [{"worker": 1}, {"worker": 0}]})
            return False

        self.server.rules["/collective_rpc"] = mixed
        self.assertEqual(HttpEngine(self.server.url).status(), [{"worker": 0}, {"worker": 1}])

    def test_key(self) -> None:
        HttpEngine(self.server.url, api_key="k3y").resume()
        self.assertEqual(self.server.headers[-1]["Authorization"], "Bearer k3y")
        with self.assertRaises(InputError):
            HttpEngine(self.server.url, api_key="a\nb")

    def test_no_proxy_is_asked(self) -> None:
        code = "import sys; from headrace.engines import HttpEngine; HttpEngine(sys.argv[1]).resume()"
        proxies = {"http_proxy": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1", "no_proxy": ""}
        subprocess.run([sys.executable, "-c", code, self.server.url], env=os.environ | proxies, check=True)
        self.assertEqual(self.paths(), ["/resume"])


class NobodyTest(unittest.TestCase):
    def test_refused(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))  # bound and not listening
            url = f"http://127.0.0.1:{free.getsockname()[1]}"
            with self.assertRaises(PeerError) as raised:
                HttpEngine(url).status()
        self.assertEqual(raised.exception.code, "peer_lost")
        self.assertIn(url, raised.exception.message)

    def test_silent(self) -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            with self.assertRaises(DeadlineError) as raised:
                HttpEngine(url, timeout=0.05).status()
        self.assertIn(f"{url}/collective_rpc did not answer within 0.05 s", raised.exception.message)

    def test_addresses(self) -> None:
        for url in ("", "localhost:8000", "ftp://a", "http://", "http://a?x=1", "http://user:pass@a"):
            with self.subTest(url=url), self.assertRaises(InputError) as raised:
                HttpEngine(url)
            self.assertNotIn("pass", raised.exception.message)
        with self.assertRaises(InputError):
            HttpEngine("http://a", timeout=0)


class LocalTest(unittest.TestCase):
    def test_a_swap(self) -> None:
        llm = mock.Mock()
        served = [0]

        def rpc(method: str) -> list[dict[str, Any]]:
            self.assertEqual(method, "headrace_status")
            fields = {"job": "j", "inherited": served[0] == 0, "staged": 1, "joined": True, "error": None, "stats": {}}
            return [{"worker": 0, "serving": served[0]} | fields]

        llm.collective_rpc.side_effect = rpc
        llm.update_weights.side_effect = lambda request: served.__setitem__(0, request["update_info"]["generation"])
        Driver([LocalEngine(llm)], options={"shadow": "host"}).swap(1)
        calls = [call[0] for call in llm.mock_calls if not call[0].startswith(("collective_rpc", "reset_prefix_cache."))]
        resets = ["reset_prefix_cache", "reset_mm_cache", "llm_engine.reset_encoder_cache"]
        self.assertEqual(calls, ["start_weight_update", "update_weights", *resets, "finish_weight_update"])
        llm.finish_weight_update.assert_called_once_with("1")
        llm.reset_prefix_cache.assert_called_once_with(reset_running_requests=True, reset_connector=True)

    def test_errors(self) -> None:
        llm = mock.Mock()
        llm.start_weight_update.side_effect = RuntimeError("already active")
        with self.assertRaises(InternalError) as raised:
            LocalEngine(llm).start()
        self.assertIn("already active", raised.exception.message)
        llm.start_weight_update.side_effect = StateError("poisoned", "no weights")
        with self.assertRaises(StateError):
            LocalEngine(llm).start()
        llm.reset_prefix_cache.return_value = False
        with self.assertRaises(PeerError):
            LocalEngine(llm).reset_caches()


if __name__ == "__main__":
    unittest.main()
