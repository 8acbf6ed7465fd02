"""After a refit a server says what a fresh engine on the new weights says, token by token and log-probability by
log-probability: over engines, trainers, installs and ways of landing. Two generations and back.

HEADRACE_VLLM_MATRIX=full runs all combinations; otherwise a part in which each pair of choices is met.
"""

from __future__ import annotations

import math
import os
import tempfile
import unittest
from pathlib import Path

import models
from support import Server, Trainer, fresh_outputs

FULL = os.environ.get("HEADRACE_VLLM_MATRIX") == "full"
TRAINERS = {"fsdp2": 2, "fsdp2_tp2": 4}
ALL = [(trainer, shadow) for trainer in TRAINERS for shadow in ("host", "off")]

# Which parameters of a server go through its own loader, by the end of their names; the others are direct.
# On CPUs vLLM packs the linear layers; a tied head keeps a packed copy of the embedding, which goes along.
LINEARS = ("qkv_proj.weight", "o_proj.weight", "gate_up_proj.weight", "down_proj.weight")
TIED = ("embed_tokens.weight", "lm_head.weight")


class Matrix(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="headrace-matrix-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def check(self, model: Path, prepacking: bool, tp: int, through_loader: tuple[str, ...], cases: list) -> None:
        checkpoints = [models.write_variant(model, variant, self.folder / str(variant)) for variant in range(3)]
        fresh = fresh_outputs(checkpoints, prepacking, tp)
        self.assertEqual(len({str(outputs) for outputs in fresh}), 3)  # the variants can be told apart
        server = Server(checkpoints[0], prepacking=prepacking, tp=tp)
        self.addCleanup(server.stop)
        server.ready()
        self.assert_same(server.outputs(), fresh[0], "before")
        self.assert_installs(server, through_loader)
        for layout, shadow in cases if not FULL else ALL:
            if layout == "fsdp2_tp2" and model == models.SMOLLM2:
                continue  # three KV heads do not go over two ranks
            with self.subTest(trainer=layout, shadow=shadow), Trainer(checkpoints[0], layout, TRAINERS[layout]) as trainer:
                trainer.call("join", engines=[server.url], shadow=shadow)
                for generation, variant in ((1, 1), (2, 2), (3, 0)):
                    trainer.swap(variant, generation)
                    self.assert_same(server.outputs(), fresh[variant], f"generation {generation}")
                    self.assertEqual([w["serving"] for w in server.status()], [generation] * tp)
                trainer.call("close")

    def assert_same(self, got: list, wanted: list, when: str) -> None:
        for (tokens, logprobs), (wanted_tokens, wanted_logprobs) in zip(got, wanted, strict=True):
            self.assertEqual(tokens, wanted_tokens, when)
            for a, b in zip(logprobs, wanted_logprobs, strict=True):
                self.assertTrue(math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-5), f"{when}: {a} and {b}")

    def assert_installs(self, server: Server, through_loader: tuple[str, ...]) -> None:
        for worker in server.rpc("headrace_explain"):
            # The rest is not in the checkpoint: the attention's own scales.
            installs = {p["name"]: p["install"] for p in worker["parameters"] if p["tensors"]}
            expected = {n: "loader" if n.endswith(through_loader) else "direct" for n in installs}
            self.assertEqual(installs, expected)
            self.assertIn("direct", installs.values())

    def test_smollm2(self) -> None:
        self.check(models.SMOLLM2, True, 1, (*LINEARS, *TIED), [("fsdp2", "host"), ("fsdp2", "off")])

    def test_qwen3_tied_live_weights(self) -> None:
        model = models.make_qwen3(self.folder / "model", tied=True)
        self.check(model, False, 1, (), [("fsdp2", "off"), ("fsdp2_tp2", "host")])

    def test_qwen3_untied_packed(self) -> None:
        model = models.make_qwen3(self.folder / "model", tied=False)
        self.check(model, True, 1, (*LINEARS, "lm_head.weight"), [("fsdp2_tp2", "off"), ("fsdp2", "host")])

    def test_qwen3_untied_tensor_parallel(self) -> None:
        model = models.make_qwen3(self.folder / "model", tied=False)
        self.check(model, False, 2, (), [("fsdp2_tp2", "host"), ("fsdp2", "off")])

    @unittest.skipUnless(FULL, "the whole matrix")
    def test_smollm2_live_weights(self) -> None:
        self.check(models.SMOLLM2, False, 1, (), ALL)

    @unittest.skipUnless(FULL, "the whole matrix")
    def test_qwen3_tied_packed(self) -> None:
        model = models.make_qwen3(self.folder / "model", tied=True)
        self.check(model, True, 1, (*LINEARS, *TIED), ALL)

    @unittest.skipUnless(FULL, "the whole matrix")
    def test_qwen3_untied_live_weights(self) -> None:
        model = models.make_qwen3(self.folder / "model", tied=False)
        self.check(model, False, 1, (), ALL)

    @unittest.skipUnless(FULL, "the whole matrix")
    def test_qwen3_tensor_parallel_packed(self) -> None:
        for tied in (True, False):
            model = models.make_qwen3(self.folder / f"model-{tied}", tied=tied)
            head = TIED if tied else ("lm_head.weight",)
            with self.subTest(tied=tied):
                self.check(model, True, 2, (*LINEARS, *head), ALL)

    @unittest.skipUnless(FULL, "the whole matrix")
    def test_qwen3_tied_tensor_parallel_live_weights(self) -> None:
        model = models.make_qwen3(self.folder / "model", tied=True)
        self.check(model, False, 2, (), ALL)


if __name__ == "__main__":
    unittest.main()
