"""Whole refits of an engine in this process, with the real core: models whose layers are no plain linear ones.

Each engine is swapped to other weights and back; what it says is compared with a fresh engine's. With vLLM's packing
on, as CPUs have it.
"""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path
from typing import Any

from headrace.vllm import plugin, testing  # before vllm: it sets how vllm starts

import torch
from headrace.engines import LocalEngine
from headrace.errors import Error
from headrace.torch import Publisher
from transformers import AutoConfig, AutoModelForCausalLM

_COMMON = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 100,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
# Biases of q, k and v: vLLM's reload loads a bias twice, the first time as a rehearsal on the live one.
QWEN2 = {**_COMMON, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "tie_word_embeddings": False}
# Its logits are computed with the embedding itself, which has no head that could be tied to it.
GEMMA2 = {
    **_COMMON,
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 64,
    "tie_word_embeddings": True,
}
PROMPTS = [[5], [3 + i % 50 for i in range(11)], [7 + (i * i) % 80 for i in range(20)]]


def weights(config: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    fields = {k: v for k, v in config.items() if k != "model_type"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **fields))
    named = dict(model.named_parameters())  # a tied head is not among them
    return {name: 0.2 * torch.randn(p.shape) + (1 if "norm" in name else 0) for name, p in named.items()}


def outputs(llm: Any) -> list[Any]:
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1)
    said = []
    for prompt in PROMPTS:
        reply = llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)[0].outputs[0]
        said += [(token, round(step[token].logprob, 3)) for token, step in zip(reply.token_ids, reply.logprobs)]
    return said


class FamiliesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        plugin.register()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)

    def engine(self, model: Path) -> Any:
        backend = {"weight_transfer_config": {"backend": "headrace"}, "dtype": "float32"}
        return testing.engine(model, **backend, additional_config={"headrace": {"shadow": "host"}})

    def refit(self, config: dict[str, Any]) -> None:
        one, two = (weights(config, seed) for seed in (1, 2))
        models = [
            testing.save_model(self.folder / f"{config['model_type']}{i}", config, w) for i, w in enumerate((one, two))
        ]
        with self.engine(models[1]) as llm:
            fresh = outputs(llm)
        with self.engine(models[0]) as llm:
            first = outputs(llm)
            self.assertNotEqual(first, fresh)
            tensors = {name: w.clone() for name, w in one.items()}
            with Publisher(tensors, [LocalEngine(llm)], shadow="host", timeout=60.0) as publisher:
                for generation, (source, expected) in enumerate(((two, fresh), (one, first), (two, fresh)), 1):
                    for name, tensor in tensors.items():
                        tensor.copy_(source[name])
                    publisher.publish(generation, wait=True)
                    self.assertEqual(outputs(llm), expected, f"generation {generation}")

    def test_biases(self) -> None:
        self.refit(QWEN2)

    def test_an_embedding_that_is_the_head(self) -> None:
        self.refit(GEMMA2)

    def test_packed_experts_are_refused(self) -> None:
        model = testing.make_model(self.folder / "moe", testing.QWEN3_MOE)
        with self.engine(model) as llm:
            with self.assertRaisesRegex(Error, "experts.*not proven"):
                LocalEngine(llm).describe()


if __name__ == "__main__":
    unittest.main()
