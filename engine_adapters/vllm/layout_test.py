"""Layouts of real engines in this process. Oracle: every element of the live memory, read by address, against a loop
over the manifest's pieces and the weights that were written into the checkpoint."""

import ctypes
import itertools
import tempfile
import unittest
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch

from headrace import core
from headrace.errors import InputError, StateError
from headrace.torch.dtypes import spelling, torch_dtype
from headrace.vllm import liveness, testing
from headrace.vllm.checkpoint import Checkpoint
from headrace.vllm.decide import make_pieces
from headrace.vllm.layout import analyse
from headrace.vllm.trace import TensorSpec, trace

_SMOLLM2 = Path(__file__).resolve().parents[2] / ".models" / "smollm2"


def bits(values: torch.Tensor) -> np.ndarray:
    integer = {2: torch.int16, 4: torch.int32}[values.element_size()]
    return values.detach().contiguous().view(integer).numpy()


def at_address(memory: core.BufferMemory, itemsize: int) -> np.ndarray:
    """The integers that lie there now."""
    span = 1 + sum((n - 1) * s for n, s in zip(memory.shape, memory.strides))
    kind = {2: ctypes.c_int16, 4: ctypes.c_int32}[itemsize]
    flat = np.ctypeslib.as_array((kind * span).from_address(memory.address))
    return np.lib.stride_tricks.as_strided(flat, memory.shape, [s * itemsize for s in memory.strides])


def from_pieces(shape, pieces, tensors: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """What the pieces write, element by element, and how often each element is covered."""
    values, count = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for piece in pieces:
        axes = piece.get("axes", list(range(len(piece["shape"]))))
        source = None  # a fill: zeros
        if "tensor" in piece:
            source = tensors[piece["tensor"]].reshape(piece.get("view", tensors[piece["tensor"]].shape))
        for index in itertools.product(*map(range, piece["shape"])):
            place = list(piece["buffer_offset"])
            for axis, i in zip(axes, index):
                place[axis] += i
            if source is not None:
                values[tuple(place)] = source[tuple(o + i for o, i in zip(piece["tensor_offset"], index))]
            count[tuple(place)] += 1
    return values, count


class EngineTest(unittest.TestCase):
    """One engine for the tests of a class. tied, packed, dtype of the engine, options: of the engine."""

    config = testing.QWEN3
    tied, packed, dtype, options = False, False, "float32", {}
    checkpoint_dtype = torch.float32

    @classmethod
    def setUpClass(cls):
        if cls is EngineTest:
            raise unittest.SkipTest("a base")
        stack = ExitStack()
        cls.addClassCleanup(stack.close)
        cls.directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cls.config = {**cls.config, "tie_word_embeddings": cls.tied}
        cls.weights = cls.make_weights()
        testing.save_model(cls.directory, cls.config, cls.weights)
        stack.enter_context(testing.prepacking(cls.packed))
        cls.llm = stack.enter_context(testing.engine(cls.directory, dtype=cls.dtype, **cls.options))
        cls.model = testing.model_of(cls.llm)
        cls.vllm_config = cls.llm.llm_engine.vllm_config

    @classmethod
    def make_weights(cls):
        return testing.random_weights(cls.config, cls.checkpoint_dtype)

    def analyse(self, tensors=None):
        from vllm.config import set_current_vllm_config

        with set_current_vllm_config(self.vllm_config):
            return analyse(self.model, self.vllm_config.model_config, self.vllm_config.load_config, tensors)

    def installs(self, layout):
        return {p.name: p.install for p in layout.parameters if p.install != "kept"}

    def tokens(self):
        from vllm import SamplingParams

        sampling = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, detokenize=False)
        (result,) = self.llm.generate([{"prompt_token_ids": [3, 4, 5]}], sampling, use_tqdm=False)
        return list(result.outputs[0].token_ids)

    def live(self):
        return [(n, id(t)) for n, t in (*self.model.named_parameters(), *self.model.named_buffers())]

    def bytes_of(self, modules):
        return sum(self.weights[tensor].nbytes for _, _, tensors in modules for tensor in tensors)

    def check_live(self, layout):
        """All live memory of the direct buffers, and the staging, is what the part says of the weights."""
        part, memory = layout.part(rank=5, engine=1, worker=0), layout.memory()
        self.assertEqual(set(memory), {b["buffer"] for b in part["destination"]})
        tensors = {t["name"]: bits(self.weights[t["name"]].to(torch_dtype(t["dtype"]))) for t in part["tensors"]}
        for t in part["tensors"]:
            self.assertEqual(list(tensors[t["name"]].shape), t["shape"])
        for b in part["destination"]:
            self.assertEqual(b["rank"], 5)
            self.assertEqual(tuple(memory[b["buffer"]].shape), tuple(b["shape"]), b["buffer"])
            live = at_address(memory[b["buffer"]], torch_dtype(b["dtype"]).itemsize)
            pieces = b["pieces"]
            if "alias_of" in b:
                pieces = next(o["pieces"] for o in part["destination"] if o["buffer"] == b["alias_of"])
                self.assertEqual(memory[b["buffer"]].address, memory[b["alias_of"]].address)
            values, count = from_pieces(b["shape"], pieces, tensors)
            self.assertTrue((count == 1).all(), b["buffer"])
            if b["buffer"].startswith("loader:"):
                live[...] = values
            else:
                np.testing.assert_array_equal(values, live, b["buffer"])
        for name, _, names in layout.loader_modules:
            for tensor in names:
                np.testing.assert_array_equal(bits(layout.checkpoint_tensor(tensor)), tensors[tensor], name)
        self.check_plan(part)

    def check_plan(self, part):
        """The core takes the part, beside a source that offers each tensor whole."""
        source = [
            {"rank": 0, "buffer": t["name"], "dtype": t["dtype"], "shape": t["shape"],
             "pieces": [{"tensor": t["name"], "tensor_offset": [0] * len(t["shape"]), "shape": t["shape"],
                         "buffer_offset": [0] * len(t["shape"])}]}
            for t in part["tensors"]
        ]
        topology = {"source": [{"rank": 0}], "destination": [dict(p) for p in part["topology"]["destination"]]}
        core.plan({**part, "source": source, "topology": topology})


class UntiedLiveTest(EngineTest):
    """Prepacking off: all that is loaded goes direct."""

    def test_all_direct(self):
        layout = self.analyse()
        self.assertEqual(self.installs(layout), {name: "direct" for name, _ in self.model.named_parameters()})
        self.assertEqual((layout.loader_modules, layout.staging, layout.loader_bytes, layout.unread), ([], {}, 0, []))
        self.assertEqual({t["name"] for t in layout.tensors}, set(self.weights))
        self.assertEqual(layout.direct_bytes, sum(p.nbytes for p in self.model.parameters()))
        self.check_live(layout)
        kept = {p.name for p in layout.parameters if p.install == "kept"}
        self.assertEqual(kept, {name for name, _ in self.model.named_buffers(remove_duplicate=True)})

    def test_elements_that_the_ledger_expects(self):
        copies = self.analyse().expected_copies
        qkv = {(t, p): n for (t, p), n in copies.items() if p == "model.layers.0.self_attn.qkv_proj.weight"}
        prefix = "model.layers.0.self_attn."
        self.assertEqual({t.removeprefix(prefix): n for (t, _), n in qkv.items()},
                         {"q_proj.weight": 8192, "k_proj.weight": 4096, "v_proj.weight": 4096})
        self.assertEqual({t for t, _ in copies}, set(self.weights))

    def test_repacked_in_place_with_equal_shape_is_demoted(self):
        name = "model.layers.1.mlp.down_proj.weight"
        weight = self.model.get_parameter(name)
        original = weight.detach().clone()
        try:
            weight.data.copy_(original.t().contiguous().reshape(original.shape))
            layout = self.analyse()
            self.assertEqual([n for n, install in self.installs(layout).items() if install == "loader"], [name])
            reason = next(p.reason for p in layout.parameters if p.name == name)
            self.assertRegex(reason, f"live values .* are not those of {name}")
            self.assertEqual([(n, t) for n, _, t in layout.loader_modules], [("model.layers.1.mlp.down_proj", [name])])
        finally:
            weight.data.copy_(original)
        self.assertNotIn("loader", self.installs(self.analyse()).values())

    def test_a_module_goes_to_the_loader_as_a_whole_and_takes_its_tensors_along(self):
        """A second parameter in a module that is reloaded, and a second reader of a loader tensor."""
        from headrace.vllm import decide
        from headrace.vllm.trace import Trace, Written

        def written(module, name, *tensors):
            return Written(module, name, (1,), (1,), torch.float32, reads={t: [] for t in tensors})

        parts = [written("a", "weight", "t"), written("a", "scale", "s"), written("b", "weight", "s")]
        parts.append(written("c", "w", "u"))
        traced = Trace({w.full_name: w for w in parts}, [])
        reasons = {"a.weight": "x", "a.scale": None, "b.weight": None, "c.w": None}
        decide._spread(traced, reasons)
        self.assertEqual(reasons["a.scale"], "its module is reloaded for 'a.weight'")
        self.assertEqual(reasons["b.weight"], "tensor 's' also goes through the loader for 'a.scale'")
        self.assertIsNone(reasons["c.w"])

    def test_moved_and_replaced_storage_shows_up(self):
        layout = self.analyse()
        before = layout.memory()
        norm = self.model.get_submodule("model.norm")
        saved = norm.weight
        try:
            norm.weight = torch.nn.Parameter(saved.detach().clone(), requires_grad=False)
            after = layout.memory()
            self.assertEqual([n for n in before if before[n] != after[n]], ["model.norm.weight"])
            norm.weight = torch.nn.Parameter(saved.detach().to(torch.bfloat16), requires_grad=False)
            with self.assertRaisesRegex(StateError, "destination_moved: .*model.norm.weight.* is torch.bfloat16"):
                layout.memory()
            del norm.weight
            with self.assertRaisesRegex(StateError, "destination_moved: .*model.norm.weight.* is gone"):
                layout.memory()
        finally:
            norm._parameters["weight"] = saved
        self.assertEqual(layout.memory(), before)

    def test_an_exception_in_the_middle_of_a_trace_leaves_the_engine_as_it_was(self):
        tokens = self.tokens()
        identities = self.live()
        specs = [TensorSpec(n, tuple(t.shape), t.dtype) for n, t in self.weights.items()]
        specs[len(specs) // 2] = TensorSpec(specs[len(specs) // 2].name, (7, 7), torch.float32)
        with self.assertRaises(InputError) as caught:
            trace(self.model, specs)
        self.assertEqual(caught.exception.tensor, specs[len(specs) // 2].name)
        with self.assertRaisesRegex(InputError, "unknown_tensor.*model.nowhere.weight"):
            trace(self.model, [*specs[:3], TensorSpec("model.nowhere.weight", (2,), torch.float32)])
        self.assertEqual(self.live(), identities)
        self.assertEqual(self.tokens(), tokens)
        self.check_live(self.analyse())

    def test_a_probe_puts_the_bits_back_when_the_layer_raises(self):
        module = self.model.get_submodule("model.layers.0.mlp.down_proj")
        self.assertIsNone(liveness.why_not_live(module))
        before = module.weight.detach().clone()
        before.view(torch.int32)[0, 0] = 0x7FC01234  # a NaN with a payload
        module.weight.data.copy_(before)

        def fails(*_, **__):
            raise RuntimeError("no kernel")

        module.quant_method.apply = fails
        try:
            self.assertRegex(liveness.why_not_live(module), "not provable: .* raised RuntimeError: no kernel")
        finally:
            del module.quant_method.apply
        self.assertTrue(torch.equal(module.weight.view(torch.int32), before.view(torch.int32)))
        module.weight.data[0, 0] = self.weights["model.layers.0.mlp.down_proj.weight"][0, 0]

    def test_slices_of_two_ranks(self):
        """The parts of TP2's ranks, from layers that were built for them: what load_weights wrote is what they say."""
        for rank in range(2):
            with self.subTest(rank=rank), testing.as_rank(rank, 2):
                model = testing.load_unprocessed(self.llm)
                check_unprocessed(self, model, self.weights)
                qkv = model.get_submodule("model.layers.0.self_attn.qkv_proj").weight
                self.assertEqual(tuple(qkv.shape), (64 + 32 + 32, 64))


def check_unprocessed(test, model, weights):
    specs = {n: TensorSpec(n, tuple(t.shape), t.dtype) for n, t in weights.items()}
    traced = trace(model, list(specs.values()))
    tensors = {n: bits(t) for n, t in weights.items()}
    live = dict(model.named_parameters())
    test.assertEqual(set(traced.written), set(live))
    for name, written in traced.written.items():
        pieces = make_pieces(written, specs)
        values, count = from_pieces(written.shape, pieces, tensors)
        test.assertTrue((count == 1).all(), name)
        np.testing.assert_array_equal(values, bits(live[name]), name)
    return traced


class UntiedPackedTest(EngineTest):
    packed = True

    def test_exactly_linears_and_head_go_through_the_loader(self):
        layout = self.analyse()
        linears = [f"model.layers.{i}.{m}" for i in range(2)
                   for m in ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")]
        loaders = {n for n, install in self.installs(layout).items() if install == "loader"}
        self.assertEqual(loaders, {f"{m}.weight" for m in linears} | {"lm_head.weight"})
        reasons = {p.name: p.reason for p in layout.parameters}
        self.assertRegex(reasons["lm_head.weight"], "computes with a packed copy: its results do not follow the weight")
        self.assertRegex(reasons[f"{linears[0]}.weight"], "computes with a packed copy: .* without elements")
        self.assertEqual(sorted(n for n, _, _ in layout.loader_modules), sorted([*linears, "lm_head"]))
        self.assertEqual(layout.loader_bytes, self.bytes_of(layout.loader_modules))
        self.check_live(layout)
        self.assertIs(layout.checkpoint_tensor("lm_head.weight"), layout.staging["loader:lm_head.weight"])

    def test_staging_holds_a_ranks_slices_alone(self):
        with testing.as_rank(1, 2):
            from vllm.model_executor.model_loader.utils import process_weights_after_loading

            model = testing.load_unprocessed(self.llm)
            process_weights_after_loading(model, self.vllm_config.model_config, torch.device("cpu"))
        layout = analyse(model, self.vllm_config.model_config, self.vllm_config.load_config)
        o_proj = "model.layers.0.self_attn.o_proj.weight"
        self.assertEqual(tuple(layout.staging[f"loader:{o_proj}"].shape), (64, 64))  # the second half of 128 columns
        piece = next(b for b in layout.part(0, 0, 0)["destination"] if b["buffer"] == f"loader:{o_proj}")["pieces"][0]
        self.assertEqual((piece["tensor_offset"], piece["shape"]), ([0, 64], [64, 64]))
        layout.staging[f"loader:{o_proj}"].copy_(self.weights[o_proj][:, 64:])
        full = layout.checkpoint_tensor(o_proj)
        self.assertEqual(tuple(full.shape), (64, 128))
        self.assertTrue(torch.equal(full[:, 64:], self.weights[o_proj][:, 64:]))
        self.assertLess(layout.loader_bytes, 0.6 * self.bytes_of(layout.loader_modules))


class TiedLiveTest(EngineTest):
    tied = True

    def test_all_direct_and_the_head_is_an_alias(self):
        layout = self.analyse()
        self.assertEqual(set(self.installs(layout).values()), {"direct"})
        head = next(p for p in layout.parameters if p.name == "lm_head.weight")
        self.assertEqual(head.tensors, ["model.embed_tokens.weight"])
        self.assertEqual(head.reason, "shares the memory of 'model.embed_tokens.weight'")
        buffer = next(b for b in layout.part(0, 0, 0)["destination"] if b["buffer"] == "lm_head.weight")
        self.assertEqual((buffer["alias_of"], buffer["pieces"]), ("model.embed_tokens.weight", []))
        self.check_live(layout)


class TiedPackedTest(EngineTest):
    tied, packed = True, True

    def test_the_embedding_goes_through_the_loader_for_the_heads_packed_copy(self):
        layout = self.analyse()
        reasons = {p.name: (p.install, p.reason) for p in layout.parameters}
        self.assertEqual(reasons["model.embed_tokens.weight"][0], "loader")
        self.assertRegex(reasons["model.embed_tokens.weight"][1], r"packed copy: .*\[lm_head\]")
        self.assertEqual(reasons["lm_head.weight"], ("loader", "shares the memory of 'model.embed_tokens.weight'"))
        self.assertNotIn("lm_head", [n for n, _, _ in layout.loader_modules])
        self.check_live(layout)


class RedundantHeadTest(EngineTest):
    """The config ties, and the checkpoint holds the head all the same."""

    tied = True

    @classmethod
    def make_weights(cls):
        weights = testing.random_weights(cls.config)
        return {**weights, "lm_head.weight": weights["model.embed_tokens.weight"].clone()}

    def test_a_tensor_that_nobody_reads_is_reported(self):
        layout = self.analyse()
        self.assertEqual(layout.unread, ["lm_head.weight"])
        self.assertNotIn("lm_head.weight", [t["name"] for t in layout.tensors])
        self.check_live(layout)


class ConvertedTest(EngineTest):
    """A checkpoint in FP32, an engine in BF16."""

    dtype = "bfloat16"

    def test_tensors_have_the_parameters_dtype(self):
        layout = self.analyse()
        self.assertEqual({t["dtype"] for t in layout.tensors}, {"BF16"})
        self.assertEqual(set(self.installs(layout).values()), {"direct"})
        self.check_live(layout)


class Bf16PackedTest(EngineTest):
    dtype, packed, checkpoint_dtype = "bfloat16", True, torch.bfloat16

    def test_loader_and_direct(self):
        layout = self.analyse()
        packs = torch.cpu._is_avx512_supported()  # without it oneDNN computes with BF16 weights where they lie
        self.assertEqual({p.name for p in layout.parameters if p.install == "direct"},
                         {n for n, _ in self.model.named_parameters() if not packs or "norm" in n or "embed" in n})
        self.check_live(layout)


class DummyTest(EngineTest):
    options = {"load_format": "dummy"}

    def given(self):
        return [{"name": n, "shape": list(t.shape), "dtype": spelling(t.dtype)} for n, t in self.weights.items()]

    def test_probe_values_prove_the_same(self):
        self.assertEqual(set(self.installs(self.analyse(self.given())).values()), {"direct"})

    def test_a_loader_that_writes_otherwise_than_it_says_is_demoted(self):
        """Processing after loading that repacks in the same shape, as kernels do."""
        module = self.model.get_submodule("model.layers.0.mlp.down_proj")
        process = module.quant_method.process_weights_after_loading

        def repack(layer):
            process(layer)
            layer.weight.data.copy_(layer.weight.data.flip(0))

        module.quant_method.process_weights_after_loading = repack
        try:
            layout = self.analyse(self.given())
        finally:
            del module.quant_method.process_weights_after_loading
        loaders = [n for n, install in self.installs(layout).items() if install == "loader"]
        self.assertEqual(loaders, ["model.layers.0.mlp.down_proj.weight"])

    def test_names_are_needed(self):
        for tensors, code in ((None, "malformed"), ([], "malformed"), ([{"name": "a"}], "malformed")):
            with self.assertRaises(InputError) as caught:
                self.analyse(tensors)
            self.assertEqual(caught.exception.code, code)
        with self.assertRaisesRegex(InputError, "unknown_tensor"):
            self.analyse([*self.given(), {"name": "model.foo.weight", "shape": [2], "dtype": "F32"}])

    def test_a_tensor_that_the_trainer_does_not_have_leaves_its_parameter_kept(self):
        layout = self.analyse([t for t in self.given() if t["name"] != "model.norm.weight"])
        self.assertEqual({p.name: p.install for p in layout.parameters}["model.norm.weight"], "kept")


class MoeTest(EngineTest):
    config = testing.QWEN3_MOE

    def test_experts_are_not_provable(self):
        layout = self.analyse()
        loaders = {n for n, install in self.installs(layout).items() if install == "loader"}
        self.assertEqual(loaders, {n for n, _ in self.model.named_parameters() if "experts" in n})
        for p in layout.parameters:
            if p.name in loaders:
                self.assertRegex(p.reason, "not provable|live values|the engine keeps it as")
        self.check_live(layout)

    def test_experts_as_pieces(self):
        for rank, size in ((0, 1), (0, 2), (1, 2)):
            with self.subTest(rank=rank, size=size), testing.as_rank(rank, size):
                traced = check_unprocessed(self, testing.load_unprocessed(self.llm), self.weights)
                fused = [w for n, w in traced.written.items() if n.endswith("w13_weight")]
                self.assertEqual([len(w.copies) for w in fused], [8, 8])


@unittest.skipUnless(_SMOLLM2.exists(), "tools/model/convert_gguf.py makes it")
class SmolLM2Test(unittest.TestCase):
    def test_layouts(self):
        for packed in (False, True):
            with self.subTest(packed=packed), testing.prepacking(packed):
                with testing.engine(_SMOLLM2, dtype="float32") as llm:
                    model, config = testing.model_of(llm), llm.llm_engine.vllm_config
                    layout = analyse(model, config.model_config, config.load_config)
                    checkpoint = Checkpoint(model, config.model_config, config.load_config)
                    shapes = {s.name: list(s.shape) for s in checkpoint.tensors}
                    self.assertEqual({t["name"]: t["shape"] for t in layout.tensors}, shapes)
                    self.assertEqual({t["dtype"] for t in layout.tensors}, {"F32"})
                    installs = {p.name: p.install for p in layout.parameters if p.install != "kept"}
                    loaders = {n for n, install in installs.items() if install == "loader"}
                    packed_names = {n for n in installs if "_proj" in n or "embed" in n or "lm_head" in n}
                    self.assertEqual(loaders, packed_names if packed else set())


if __name__ == "__main__":
    unittest.main()
