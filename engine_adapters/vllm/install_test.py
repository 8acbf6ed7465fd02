"""The loader install and the restoration of what it left half done, in real engines whose linear layers are packed."""

import itertools
import tempfile
import unittest
from pathlib import Path

from headrace.vllm import testing

import torch
from vllm import SamplingParams
from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader.reload import initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import LAYERWISE_INFO
from vllm.model_executor.model_loader.reload.meta import to_meta_tensor

from headrace.errors import InternalError
from headrace.vllm.install import LoaderInstall
from headrace.vllm.layout import analyse
from headrace.vllm.ledger import Ledger
from headrace.vllm.restore import restore

_PROMPTS = [{"prompt_token_ids": list(range(3, 19))}, {"prompt_token_ids": [5, 6, 7]}]


def generate(llm):
    """Greedy tokens and log-probabilities."""
    llm.reset_prefix_cache()
    outputs = llm.generate(_PROMPTS, SamplingParams(temperature=0, max_tokens=8, logprobs=1), use_tqdm=False)
    completions = [output.outputs[0] for output in outputs]
    return [(list(c.token_ids), [p[t].logprob for t, p in zip(c.token_ids, c.logprobs)]) for c in completions]


def _box(offset, shape):
    return tuple(slice(o, o + n) for o, n in zip(offset, shape))


class InstallTest(unittest.TestCase):
    tied = False

    @classmethod
    def setUpClass(cls):
        config = {**testing.QWEN3, "tie_word_embeddings": cls.tied}
        directory = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.weights = [testing.random_weights(config, seed=seed) for seed in (0, 1)]
        paths = [testing.save_model(directory / str(i), config, weights) for i, weights in enumerate(cls.weights)]
        with testing.engine(paths[1], dtype="float32") as llm:
            cls.fresh = generate(llm)
        cls.llm = cls.enterClassContext(testing.engine(paths[0], dtype="float32"))
        cls.model = testing.model_of(cls.llm)
        cls.config = testing.worker_of(cls.llm).vllm_config
        with set_current_vllm_config(cls.config):
            cls.layout = analyse(cls.model, cls.config.model_config, cls.config.load_config)
            cls.install = LoaderInstall(cls.model, cls.config.model_config, cls.layout)

    def land(self, weights):
        """What the receiver does: direct parameters in place, the rest into the loader's memory."""
        live = dict(itertools.chain(self.model.named_parameters(), self.model.named_buffers()))
        for buffer in self.layout.part(rank=0, engine=0, worker=0)["destination"]:
            memory = self.layout.staging.get(buffer["buffer"], live.get(buffer["buffer"]))
            for piece in buffer["pieces"]:
                if "tensor" in piece:
                    there = _box(piece["buffer_offset"], piece["shape"])
                    memory.data[there] = weights[piece["tensor"]][_box(piece["tensor_offset"], piece["shape"])]

    def run_install(self, weights):
        self.land(weights)
        with set_current_vllm_config(self.config):
            self.install.run()

    def addresses(self):
        return {n: t.data_ptr() for n, t in itertools.chain(self.model.named_parameters(), self.model.named_buffers())}

    def test_there_and_back(self):
        before, addresses = generate(self.llm), self.addresses()
        self.run_install(self.weights[1])
        self.assertEqual(generate(self.llm), self.fresh)
        self.run_install(self.weights[0])
        self.assertEqual(generate(self.llm), before)
        self.assertEqual(self.addresses(), addresses)

    def dying(self, change):
        """Runs an install whose load_weights sees what `change` makes of the tensors; returns the error."""
        original = self.model.load_weights
        self.model.load_weights = lambda tensors: original(change(list(tensors)))
        try:
            with self.assertRaises(Exception) as raised:
                self.run_install(self.weights[1])
        finally:
            del self.model.load_weights
        return raised.exception

    def test_a_tensor_that_does_not_arrive_is_missed(self):
        for change in (
            lambda tensors: tensors[1:],
            lambda tensors: tensors[:-1],
            lambda tensors: [tensors[0]] * len(tensors) if len(tensors) > 1 else [],
        ):
            error = self.dying(change)
            self.assertIsInstance(error, InternalError)
            self.assertEqual(error.code, "uncovered")
            self.assertIn(error.tensor, self.weights[0])
            restore(self.model)
        self.run_install(self.weights[1])
        self.assertEqual(generate(self.llm), self.fresh)

    def test_an_exception_half_way_is_restored(self):
        calls = itertools.count()

        def third(tensors):
            if next(calls) < 2:
                yield from tensors
            else:
                yield tensors[0]
                raise RuntimeError("host")

        self.run_install(self.weights[0])
        addresses = self.addresses()
        self.assertIsInstance(self.dying(third), RuntimeError)
        restored = restore(self.model)
        self.assertEqual(len({".".join(name.split(".")[:3]) for name in restored}), 1, restored)  # one decoder layer
        self.assertEqual(self.addresses(), addresses)
        self.assertFalse(any(info.can_load() for info in LAYERWISE_INFO.values()))
        generate(self.llm)  # of mixed weights, but the engine lives
        self.run_install(self.weights[1])
        self.assertEqual(generate(self.llm), self.fresh)

    def test_a_whole_model_that_was_left_on_meta_is_restored(self):
        before, addresses = generate(self.llm), self.addresses()
        initialize_layerwise_reload(self.model)
        self.assertTrue(any(p.is_meta for p in self.model.parameters()))
        self.assertIn("model.norm", restore(self.model))
        self.assertEqual(self.addresses(), addresses)
        self.assertEqual(generate(self.llm), before)
        self.assertEqual(restore(self.model), [])

    def test_buffers_that_nobody_sends_keep_their_bits(self):
        # As in vLLM's pull request 44371: a scalar that is registered, and in no checkpoint.
        name, layer, _ = self.layout.loader_modules[0]
        value = torch.tensor(0.018798828125, dtype=torch.bfloat16)
        for persistent in (True, False):
            with self.subTest(persistent=persistent):
                layer.register_buffer("layer_scalar", value.clone(), persistent=persistent)
                metadata = LAYERWISE_INFO[layer].restore_metadata[1]
                metadata["layer_scalar"] = to_meta_tensor(layer.layer_scalar)
                try:
                    for weights in (self.weights[1], self.weights[0]):
                        self.run_install(weights)
                        self.assertEqual(layer.layer_scalar, value)
                finally:
                    del layer.layer_scalar, metadata["layer_scalar"]


class TiedInstallTest(InstallTest):
    """The head computes with a packed copy of the embedding, which the host's own reload leaves old."""

    tied = True


class LedgerTest(unittest.TestCase):
    def setUp(self):
        self.module = torch.nn.Linear(4, 2, bias=False)
        self.tensor = torch.randn(2, 4)

    @torch.no_grad()
    def count(self, load):
        with Ledger({"m": self.module}, {"t": self.tensor}) as ledger:
            load(self.module.weight.data, self.tensor)
        return ledger

    def test_views_and_computed_copies_count(self):
        def load(weight, tensor):
            weight[0] = tensor[0]
            weight[1] = -tensor[1].exp()

        ledger = self.count(load)
        self.assertEqual(ledger.copied, {("t", "m.weight"): 8})
        ledger.check({("t", "m.weight"): 8})

    def test_copies_by_way_of_another_tensor_count(self):
        def load(weight, tensor):
            between = torch.empty(2, 4)
            between.copy_(tensor)
            weight.copy_(between)

        self.count(load).check({("t", "m.weight"): 8})

    def test_too_few_too_many_and_unknown(self):
        def twice(weight, tensor):
            weight.copy_(tensor)
            weight[0] = tensor[0]

        for expected, code in ((13, "uncovered"), (8, "overlap")):
            with self.assertRaises(InternalError) as raised:
                self.count(twice).check({("t", "m.weight"): expected})
            self.assertEqual((raised.exception.code, raised.exception.buffer), (code, "m.weight"))
        with self.assertRaises(InternalError):
            self.count(twice).check({})


if __name__ == "__main__":
    unittest.main()
