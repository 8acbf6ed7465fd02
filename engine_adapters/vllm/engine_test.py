"""The engine in a real vLLM worker, with a receiver that the test commands."""

import json
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from headrace.vllm import plugin, testing

from headrace import core
from headrace.errors import InputError, InternalError, PeerError, ResourceError, StateError
from headrace.vllm.receiving_testing import FakeReceiver

_LOST = PeerError("peer_lost", "publisher 0 is gone", peer="publisher 0")
_INFO = {"coordinator": "127.0.0.1:1", "token": "secret", "job": "job"}


class EngineTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        plugin.register()
        directory = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        model = testing.make_model(directory, testing.QWEN3)
        cls.llm = cls.enterClassContext(
            testing.engine(
                model,
                dtype="float32",
                weight_transfer_config={"backend": "headrace"},
                additional_config={"headrace": {"shadow": "host", "transfer_timeout": 20}},
            )
        )
        cls.worker = testing.worker_of(cls.llm)
        cls.model = testing.model_of(cls.llm)

    def setUp(self):
        self.joins: list[dict] = []
        self.join_error = None
        self.enterContext(mock.patch("headrace.vllm.engine.core.Receiver", self.join))
        self.addCleanup(self.call, "shutdown_weight_transfer_engine")

    def join(self, part, memory, **options):
        self.joins.append({**options, "part": part})
        if self.join_error is not None:
            raise self.join_error
        self.receiver = FakeReceiver(options["shadow"], options["carried"])
        return self.receiver

    def call(self, method, *args):
        return self.llm.collective_rpc(method, args=args)[0]

    def init(self, **more):
        self.call("init_weight_transfer_engine", {**_INFO, **more})

    def update(self, generation, announce=True):
        if announce:
            self.receiver.announced.put(generation)
        self.call("start_weight_update")
        self.call("update_weights", {"generation": generation, "job": "job"})

    def status(self):
        return json.loads(json.dumps(self.call("headrace_status")))

    def test_described_explained_and_asked_without_a_session(self):
        described = json.loads(json.dumps(self.call("headrace_describe")))
        self.assertEqual((described["worker"], described["workers"], described["shadow"]), (0, 1, "host"))
        self.assertIn({"name": "model.norm.weight", "shape": [64], "dtype": "F32"}, described["tensors"])
        explained = json.loads(json.dumps(self.call("headrace_explain")))
        installs = {p["name"]: p["install"] for p in explained["parameters"]}
        self.assertEqual(installs["model.norm.weight"], "direct")
        self.assertEqual(installs["model.layers.0.self_attn.qkv_proj.weight"], "loader")
        self.assertFalse(self.status()["joined"])

    def test_options_reach_the_receiver(self):
        self.init(engine=2, chunk_bytes=4096, shadow="off")
        options = self.joins[0]
        self.assertEqual((options["engine"], options["worker"], options["shadow"]), (2, 0, "off"))
        self.assertEqual((options["chunk_bytes"], options["transfer_timeout"]), (4096, 20.0))
        self.assertNotIn("staging_bytes", options)
        self.assertEqual((options["workers"], options["tls"], options["trust_network"]), (1, None, False))
        self.assertNotIn("devices", options)
        self.init(tls={"ca": "/ca.crt", "server_name": "trainer"}, devices=["eth0"], trust_network=True)
        options = self.joins.pop()
        self.assertEqual(options["tls"], core.ClientTls("/ca.crt", server_name="trainer"))
        self.assertEqual((options["devices"], options["trust_network"]), (["eth0"], True))
        self.init(engine=3)
        ranks = [join["part"]["topology"]["destination"][0]["rank"] for join in self.joins]
        self.assertNotEqual(*ranks)

    def test_updates_in_both_modes_and_a_second_init(self):
        for shadow in ("host", "off"):
            self.init(shadow=shadow)
            for generation in (1, 2):
                self.update(generation)
                self.call("finish_weight_update")
                self.assertEqual(self.status()["serving"], generation)
            first = self.receiver
            self.init(shadow=shadow)
            self.assertTrue(first.closed)
            self.assertEqual(self.joins[-1]["carried"]["committed_generation"], 2)
            self.assertEqual(self.status()["serving"], 2)

    def test_joining_fails_and_the_next_init_succeeds(self):
        self.init()
        self.update(1)
        self.call("finish_weight_update")
        self.join_error = PeerError("peer_lost", "nobody answers")
        with self.assertRaises(PeerError):
            self.init()
        status = self.status()
        self.assertEqual((status["serving"], status["joined"], status["error"]["code"]), (1, False, "peer_lost"))
        with self.assertRaisesRegex(StateError, "no session"):
            self.call("start_weight_update")
        self.join_error = None
        self.init()
        self.assertEqual((self.status()["serving"], self.status()["error"]), (1, None))

    def test_the_last_error_is_the_last(self):
        self.init()
        self.receiver.end(_LOST)  # noticed by nobody yet
        with self.assertRaises(InputError):
            self.call("init_weight_transfer_engine", {"shadw": "host"})
        self.assertEqual(self.status()["error"]["code"], "invalid_option")

    def test_a_death_before_the_commit_poisons_nothing(self):
        self.init()
        self.receiver.announced.put(1)
        session = self.worker.weight_transfer_engine._session
        session.obtain(1)
        self.receiver.end(_LOST)
        status = self.status()
        self.assertFalse(status["joined"])
        self.assertEqual((status["error"]["code"], status["error"]["peer"]), ("peer_lost", "publisher 0"))
        serving = status["serving"]
        with self.assertRaises(PeerError):
            self.update(1, announce=False)
        self.assertEqual(self.status()["serving"], serving)
        self.assertIsNotNone(serving)

    def test_an_exception_in_the_model_s_loader(self):
        for shadow in ("host", "off"):
            with self.subTest(shadow=shadow):
                self.init(shadow=shadow)
                with mock.patch.object(self.model, "load_weights", side_effect=RuntimeError("boom")):
                    with self.assertRaisesRegex(InternalError, "RuntimeError in the host or the model: boom"):
                        self.update(1)
                self.assertEqual(self.receiver.log, ["stage 1", "apply 1", "abandon internal"])
                status = self.status()
                self.assertEqual((status["serving"], status["error"]["code"]), (None, "internal"))
                self.assertFalse(any(p.is_meta for p in self.model.parameters()))
                self.init(shadow=shadow)
                self.assertTrue(self.joins[-1]["carried"]["poisoned"])
                self.assertIsNone(self.status()["serving"])
                self.update(2)
                self.call("finish_weight_update")
                self.assertEqual(self.status()["serving"], 2)

    def test_finishing_fails_in_the_host_and_the_next_update_begins(self):
        self.init()
        self.update(1)
        with mock.patch.object(self.worker.model_runner, "reset_lora_state", side_effect=RuntimeError("host")):
            with self.assertRaisesRegex(RuntimeError, "host"):
                self.call("finish_weight_update")
        with mock.patch.object(self.worker.weight_transfer_engine, "finish_weight_update", side_effect=RuntimeError):
            self.update(2)
            with self.assertRaises(RuntimeError):
                self.call("finish_weight_update")
        self.assertTrue(self.worker._weight_update_active)
        self.update(3)
        self.call("finish_weight_update")
        self.assertEqual(self.status()["serving"], 3)

    def test_the_host_s_order_is_kept(self):
        self.init()
        with self.assertRaisesRegex(RuntimeError, "must be called before"):
            self.call("update_weights", {"generation": 1, "job": "job"})
        self.call("start_weight_update")
        with self.assertRaisesRegex(RuntimeError, "already"):
            self.call("start_weight_update")
        self.receiver.announced.put(1)
        self.call("update_weights", {"generation": 1, "job": "job"})
        self.call("finish_weight_update")

    def test_bad_calls_are_refused_before_anything_changes(self):
        for wrong in ({}, {"generation": "1"}, {"generation": 0}, {"generation": True}, {"generation": 1, "names": []}):
            self.init()
            self.call("start_weight_update")
            with self.assertRaises(InputError):
                self.call("update_weights", wrong)
        joined = self.receiver
        for wrong in ({"coordinator": 1}, {"colour": 1}, {"shadow": "disk"}):
            with self.assertRaises(InputError):
                self.init(**wrong)
        with self.assertRaises(ResourceError):
            self.init(loader_bytes=1)
        with mock.patch.object(self.worker.vllm_config.parallel_config, "enable_eplb", True):
            with self.assertRaises(StateError):
                self.init()
        self.assertFalse(joined.closed)
        self.assertTrue(self.status()["joined"])


if __name__ == "__main__":
    unittest.main()
