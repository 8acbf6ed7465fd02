"""One real server with one engine, through everything that may happen to it between two generations.

The tests share the server: each leaves it serving, and none depends on the order. Sources of the reported faults are
named by repository and number.
"""

from __future__ import annotations

import json
import tempfile
import threading
import unittest
from pathlib import Path
from typing import Any

import models
from headrace.driver import Driver
from headrace.errors import Error
from support import Failed, Server, Trainer

LONG = [9 + i % 60 for i in range(300)]  # more than a block of the prefix cache
TOKENS = 600


class ServerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory(prefix="headrace-server-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cls.model = models.make_qwen3(cls.folder / "model", tied=False)
        cls.fault = cls.folder / "fault"
        cls.server = Server(cls.model, prepacking=True, fault=cls.fault)
        cls.addClassCleanup(cls.server.stop)
        cls.server.ready()

    def setUp(self) -> None:
        self.assertEqual(self.server.complete([5])[0], 200)

    def trainer(self, shadow: str = "host", **join: Any) -> Trainer:
        trainer = Trainer(self.model)
        self.addCleanup(trainer.kill)
        trainer.call("join", engines=[self.server.url], shadow=shadow, **join)
        return trainer

    def heal(self) -> None:
        """A good update, without a restart."""
        with self.trainer() as trainer:
            trainer.swap(0, 1)
            trainer.call("close")
        self.assertEqual(self.server.complete([5])[0], 200)

    def in_flight(self, tokens: int = TOKENS) -> tuple[threading.Thread, list[Any]]:
        """A request that has begun when this returns."""
        replies: list[Any] = []
        thread = threading.Thread(target=lambda: replies.append(self.server.complete(LONG, tokens)))
        thread.start()
        self.until_running(thread)
        return thread, replies

    def until_running(self, thread: threading.Thread) -> None:
        """Returns when the server works on a request, or the thread that sent it is through."""

        def running() -> float:
            lines = self.server.call("/metrics", method="GET")[1].splitlines()
            return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running"))

        while running() == 0 and thread.is_alive():
            pass

    # ---- requests that are running

    def test_kept_requests_go_on_and_nothing_of_the_old_cache_serves(self) -> None:
        trainer = self.trainer(pause_mode="keep")
        thread, replies = self.in_flight()
        trainer.swap(1, 1)
        thread.join()
        status, body = replies[0]
        self.assertEqual((status, body["choices"][0]["finish_reason"]), (200, "length"))
        self.assertEqual(len(body["choices"][0]["token_ids"]), TOKENS)
        # NVIDIA-NeMo/RL#4018: the prefix that was cached with the old weights must not serve.
        self.server.complete(LONG, 1)
        self.assertGreater(self.cached(self.server.complete(LONG, 1)[1]), 0)
        trainer.swap(2, 2)
        self.assertEqual(self.cached(self.server.complete(LONG, 1)[1]), 0)

    def test_a_kept_request_carries_the_version_of_each_token(self) -> None:
        trainer = self.trainer(pause_mode="keep")
        trainer.swap(1, 1)
        body = {"token_ids": LONG, "sampling_params": {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}}
        # On a busy machine a request may be through before the trainer has begun.
        for generation in range(2, 10):
            replies: list[Any] = []

            def generate() -> None:
                replies.append(self.server.call("/inference/v1/generate", {"model": "model", **body}))

            thread = threading.Thread(target=generate)
            thread.start()
            self.until_running(thread)
            trainer.swap(generation, generation)
            thread.join()
            status, reply = replies[0]
            self.assertEqual(status, 200, reply)
            spans = reply["choices"][0]["weight_versions"]
            if len(spans) > 1:
                break
        self.assertEqual([span["version"] for span in spans], [str(generation - 1), str(generation)])
        self.assertEqual((spans[0]["start"], spans[0]["end"], spans[1]["end"]), (0, spans[1]["start"], TOKENS))

    def test_waiting_lets_requests_end(self) -> None:
        trainer = self.trainer(pause_mode="wait")
        thread, replies = self.in_flight(200)
        trainer.swap(1, 1)
        thread.join()
        self.assertEqual((replies[0][0], replies[0][1]["choices"][0]["finish_reason"]), (200, "length"))

    def test_aborting_ends_requests_and_says_so(self) -> None:
        trainer = self.trainer(pause_mode="abort")
        for generation in range(1, 9):  # as above
            thread, replies = self.in_flight()
            trainer.swap(generation, generation)
            thread.join()
            if replies[0][1]["choices"][0]["finish_reason"] == "abort":
                break
        self.assertEqual((replies[0][0], replies[0][1]["choices"][0]["finish_reason"]), (200, "abort"))

    # ---- what must not change

    def test_addresses_stay_and_what_nobody_sends_keeps_its_bits(self) -> None:
        """vllm-project/vllm#48251: captured graphs use addresses. #44371: a scalar that is never sent was reset."""
        before = self.server.rpc("probe_tensors")[0]
        sent = {p["name"] for p in self.server.rpc("headrace_explain")[0]["parameters"] if p["tensors"]}
        trainer = self.trainer()
        for generation in (1, 2):
            trainer.swap(generation, generation)
            after = self.server.rpc("probe_tensors")[0]
            self.assertEqual({n: a for n, (a, _) in after.items()}, {n: a for n, (a, _) in before.items()})
            unsent = before.keys() - sent
            self.assertTrue(any(name.endswith("_k_scale") for name in unsent))
            self.assertEqual({n: after[n] for n in unsent}, {n: before[n] for n in unsent})

    def test_the_same_weights_again_change_nothing(self) -> None:
        """vllm-project/vllm#48284."""
        trainer = self.trainer()
        trainer.swap(1, 1)
        tensors, outputs = self.server.rpc("probe_tensors"), self.server.outputs()
        trainer.swap(1, 2)
        self.assertEqual(self.server.rpc("probe_tensors"), tensors)
        self.assertEqual(self.server.outputs(), outputs)

    # ---- what fails

    def test_storage_that_moved_is_noticed_before_anything_is_written(self) -> None:
        """NVIDIA-NeMo/RL#3739: updates went into memory that nobody reads."""
        trainer = self.trainer()
        trainer.swap(1, 1)
        name = "model.norm.weight"
        self.server.rpc("probe_move", name)
        before = self.server.outputs()
        with self.assertRaises(Failed) as raised:
            trainer.swap(2, 2)
        self.assertEqual(raised.exception.code, "destination_moved")
        self.assertEqual(raised.exception.error["buffer"], name)
        self.assertEqual(self.server.outputs(), before)
        trainer.swap(2, 3)  # joins anew, where the storage lies now
        self.assertNotEqual(self.server.outputs(), before)

    def test_a_trainer_killed_at_any_moment_is_healed_by_the_next(self) -> None:
        self.heal()
        base = self.server.outputs()
        for shadow in ("host", "off"):
            for rank in (0, 1):  # 0 has the coordinator and the driver
                with self.subTest(shadow=shadow, rank=rank):
                    trainer = self.trainer(shadow=shadow)
                    trainer.call("set", variant=2)
                    trainer.call("publish", generation=1)
                    trainer.kill(rank)
                    trainer.kill()
                    self.heal()
                    self.assertEqual(self.server.outputs(), base)

    def test_a_trainer_that_dies_while_live_weights_are_written_poisons_until_a_full_generation(self) -> None:
        """vllm-project/vllm#57854: a failed update left layers of two generations."""
        # Its second rank stops before it sends, while the first rank's bytes arrive.
        trainer = self.trainer(shadow="off", transport="ucx")
        trainer.swap(1, 1)
        trainer.call("set", variant=2)
        trainer.tell("publish", generation=2, stop=1)
        self.assertEqual(trainer.reply(0), {"report": None})
        trainer.tell("wait")
        trainer.kill(1)
        self.assertIn(trainer.reply(0)["error"]["code"], ("peer_lost", "poisoned", "RuntimeError"))
        self.assertIsNone(self.server.status()[0]["serving"])
        self.assertEqual(self.server.complete([5])[0], 503)
        self.heal()

    def test_an_exception_of_the_host_poisons_and_a_good_update_heals(self) -> None:
        for shadow in ("host", "off"):
            with self.subTest(shadow=shadow):
                trainer = self.trainer(shadow=shadow)
                trainer.swap(1, 1)
                self.fault.touch()
                try:
                    with self.assertRaises(Failed) as raised:
                        trainer.swap(2, 2)
                finally:
                    self.fault.unlink()
                self.assertEqual(raised.exception.code, "poisoned", raised.exception)
                self.assertTrue(all(raised.exception.errors), "every rank of the trainer learns it")
                self.assertIsNone(self.server.status()[0]["serving"])
                status, body = self.server.complete([5])
                self.assertEqual(status, 503)
                self.assertIn("poisoned", json.dumps(body))
                self.assertEqual(self.server.call("/health", method="GET")[0], 503)
                self.assertEqual(self.server.call("/resume")[0], 409)
                self.assertEqual(self.server.complete([5])[0], 503)
                trainer.swap(2, 3)  # the same trainer joins anew
                self.assertEqual(self.server.complete([5])[0], 200)
                self.assertEqual(self.server.status()[0]["serving"], 3)

    def test_what_does_not_fit_is_refused_by_name_and_the_old_weights_serve(self) -> None:
        before = self.server.outputs()
        missing, unknown = "model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.foo.weight"
        wide = {"model.layers.0.mlp.up_proj.weight": "model.layers.0.mlp.down_proj.weight"}
        wide |= {b: a for a, b in wide.items()}  # two tensors under each other's names: other shapes
        cases = [
            ({"drop": [missing]}, "uncovered", missing),
            # sgl-project/sglang#9379: "not mine", "unknown" and "missing" are three things.
            ({"rename": {missing: unknown}}, "unwanted", unknown),
            ({"rename": wide}, "shape_mismatch", None),
        ]
        for join, code, tensor in cases:
            with self.subTest(code=code), Trainer(self.model) as trainer:
                with self.assertRaises(Failed) as raised:
                    trainer.call("join", engines=[self.server.url], shadow="host", **join)
                self.assertEqual(raised.exception.code, code, raised.exception)
                if tensor:
                    self.assertIn(tensor, raised.exception.error["message"])
                self.assertEqual(self.server.outputs(), before)
        self.heal()

    def test_stale_versions(self) -> None:
        trainer = self.trainer()
        trainer.swap(1, 5)
        before = self.server.outputs()
        for stale in (5, 4):
            with self.assertRaises(Failed) as raised:
                trainer.swap(2, stale)
            self.assertEqual(raised.exception.code, "generation_not_growing")
            self.assertEqual(self.server.outputs(), before)
        trainer.swap(2, 6)
        self.assertNotEqual(self.server.outputs(), before)

    def test_calls_out_of_order(self) -> None:
        before = self.server.outputs()
        status, body = self.server.call("/update_weights", {"update_info": {"generation": 1, "job": "j"}})
        self.assertGreaterEqual(status, 400, body)  # without a start
        status, body = self.server.call("/init_weight_transfer_engine", {"init_info": {"shadw": "host"}})
        self.assertEqual((status, body["error"]["code"]), (400, "invalid_option"))
        self.assertIn("shadw", body["error"]["message"])
        self.assertEqual(self.server.outputs(), before)

    def test_a_second_trainer_takes_over(self) -> None:
        first = self.trainer()
        first.swap(1, 1)
        before = self.server.outputs()
        second = self.trainer()  # init again, while the first is there
        self.assertEqual(self.server.outputs(), before)
        second.swap(2, 1)
        self.assertNotEqual(self.server.outputs(), before)

    def test_a_wrong_token_and_a_foreign_job(self) -> None:
        from headrace import core

        before = self.server.outputs()
        with core.Coordinator(job="mine", publishers=1, workers=[1], token="right", incarnation="1") as coordinator:
            for job, token, code in (("mine", "wrong", "unauthenticated"), ("other", "right", "wrong_job")):
                info = {"coordinator": coordinator.address, "job": job, "token": token}
                driver = Driver([self.server.url], options={"shadow": "host", "join_timeout": 20}, **info)
                with self.assertRaises(Error) as raised:
                    driver.init()
                self.assertEqual(raised.exception.code, code)
                self.assertNotIn("right", str(raised.exception).replace("right now", ""))
        self.assertEqual(self.server.outputs(), before)

    @staticmethod
    def cached(body: Any) -> int:
        return (body["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0


if __name__ == "__main__":
    unittest.main()
