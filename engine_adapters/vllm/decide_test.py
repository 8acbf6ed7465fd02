"""Installs and dtypes of small modules, and what the layout makes of them. Needs vLLM's packages, no engine."""

import unittest

import torch
from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

from headrace.vllm.layout import _build
from headrace.vllm.trace import TensorSpec, trace
from headrace.vllm.trace_test import Model, plain


def computed(model, parameter, tensor):
    parameter.data.copy_(-torch.exp(tensor))


class BuildTest(unittest.TestCase):
    def build(self, loaders, tensors, dtypes=None, **shapes):
        """The layout of a Model whose tensors hold `tensors`, loaded by its own code."""
        model = Model(loaders, **shapes)
        for name, dtype in (dtypes or {}).items():
            model.inner._parameters[name] = torch.nn.Parameter(torch.zeros(shapes[name], dtype=dtype), False)
        record_metadata_for_reloading(model)
        model.load_weights(iter(tensors.items()))
        specs = {n: TensorSpec(n, tuple(t.shape), t.dtype) for n, t in tensors.items()}

        def read(name, box):
            t = tensors[name]
            return t if box is None else t[tuple(slice(b, b + n) for b, n in zip(*box))]

        return _build(model, trace(model, list(specs.values())), specs, read)

    def installs(self, layout):
        return {p.name.removeprefix("inner."): (p.install, p.reason) for p in layout.parameters}

    def test_a_module_is_reloaded_as_a_whole(self):
        tensors = {"a": torch.randn(4), "v": torch.randn(3)}
        layout = self.build({"a": computed, "v": plain}, tensors, a=(4,), v=(3,), unsent=(2,))
        installs = self.installs(layout)
        self.assertEqual(installs["v"], ("loader", "its module is reloaded for 'inner.a'"))
        self.assertRegex(installs["a"][1], "values are computed")
        self.assertEqual(installs["unsent"], ("kept", "no tensor of the checkpoint is loaded into it"))
        self.assertEqual([(n, t) for n, _, t in layout.loader_modules], [("inner", ["a", "v"])])
        self.assertEqual(layout.loader_bytes, 28)
        self.assertEqual(set(layout.staging), {"loader:a", "loader:v"})

    def test_several_slices_of_one_tensor(self):
        def ends(model, parameter, tensor):
            parameter.data[:2].copy_(tensor[:2].exp())
            parameter.data[2:].copy_(tensor[5:].exp())

        values = torch.randn(8, 2)
        layout = self.build({"a": ends}, {"a": values}, a=(5, 2))
        shapes = {n: tuple(t.shape) for n, t in layout.staging.items()}
        self.assertEqual(shapes, {"loader:a": (2, 2), "loader:a:1": (3, 2)})
        layout.staging["loader:a"].copy_(values[:2])
        layout.staging["loader:a:1"].copy_(values[5:])
        full = layout.checkpoint_tensor("a")
        self.assertEqual(tuple(full.shape), (8, 2))
        self.assertTrue(torch.equal(full[[0, 1, 5, 6, 7]], values[[0, 1, 5, 6, 7]]))
        pieces = {b["buffer"]: b["pieces"][0] for b in layout.part(0, 0, 0)["destination"]}
        self.assertEqual((pieces["loader:a:1"]["tensor_offset"], pieces["loader:a:1"]["shape"]), ([5, 0], [3, 2]))
        self.assertEqual(layout.expected_copies, {("a", "inner.a"): 10})

    def test_elements_that_nobody_sends_are_kept(self):
        layout = self.build({"w": lambda m, p, t: p.data[1:3].copy_(t)}, {"w": torch.randn(2, 3)}, w=(4, 3))
        (buffer,) = layout.part(0, 0, 0)["destination"]
        self.assertEqual(
            buffer["pieces"],
            [
                {"tensor": "w", "tensor_offset": [0, 0], "shape": [2, 3], "buffer_offset": [1, 0]},
                {"fill": "keep", "shape": [1, 3], "buffer_offset": [0, 0]},
                {"fill": "keep", "shape": [1, 3], "buffer_offset": [3, 0]},
            ],
        )

    def test_the_dtype_that_travels(self):
        """The parameter's; the widest of several, the others are then loaded; the checkpoint's where it is computed."""

        def both(model, parameter, tensor):
            model.inner.n.data.copy_(tensor)
            model.inner.w.data.copy_(tensor)

        cases = [
            ({"n": plain}, {"n": torch.bfloat16}, "BF16", {"n": "direct"}),
            ({"n": computed}, {"n": torch.bfloat16}, "F32", {"n": "loader"}),
            ({"n": both}, {"n": torch.bfloat16, "w": torch.float32}, "F32", {"n": "loader", "w": "loader"}),
            ({"n": plain}, {"n": torch.int32}, "F32", {"n": "loader"}),
        ]
        for loaders, dtypes, travels, expected in cases:
            with self.subTest(travels=travels, expected=expected):
                layout = self.build(loaders, {"n": torch.randn(3)}, dtypes, **{n: (3,) for n in dtypes})
                self.assertEqual([t["dtype"] for t in layout.tensors], [travels])
                self.assertEqual({n: install for n, (install, _) in self.installs(layout).items()}, expected)

    def test_a_parameter_that_the_engine_replaced_after_loading(self):
        model = Model({"w": plain}, w=(4, 2))
        specs = {"w": TensorSpec("w", (4, 2), torch.float32)}
        model.inner.w = torch.nn.Parameter(torch.zeros(2, 4), requires_grad=False)
        layout = _build(model, trace(model, list(specs.values())), specs, lambda name, box: torch.zeros(4, 2))
        self.assertRegex(self.installs(layout)["w"][1], r"keeps it as \[2, 4\] torch.float32, it is loaded as \[4, 2\]")
        del model.inner.w
        layout = _build(model, trace(model, list(specs.values())), specs, lambda name, box: torch.zeros(4, 2))
        self.assertEqual(self.installs(layout)["w"], ("loader", "the engine keeps no such parameter after loading"))


if __name__ == "__main__":
    unittest.main()
