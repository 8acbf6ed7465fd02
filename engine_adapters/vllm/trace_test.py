"""The recorder, on small modules with loaders of every kind. Needs vLLM's packages, no engine."""

import unittest

import torch
from torch import nn
from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

from headrace.errors import InputError
from headrace.vllm.decide import make_pieces
from headrace.vllm.pieces import NoBox, Region
from headrace.vllm.trace import TensorSpec, trace


class Model(nn.Module):
    """Parameters by name, each with a loader function(model, parameter, tensor); tensors are named as parameters."""

    def __init__(self, loaders, **shapes):
        super().__init__()
        self.loaders = loaders
        self.inner = nn.Module()
        for name, shape in shapes.items():
            self.inner.register_parameter(name, nn.Parameter(torch.zeros(shape), requires_grad=False))
        record_metadata_for_reloading(self)

    def load_weights(self, weights):
        parameters = dict(self.named_parameters())
        for name, tensor in weights:
            if name != "skipped":
                self.loaders[name](self, parameters["inner." + name.split(":")[0]], tensor)


def specs(dtype=torch.float32, **shapes):
    return [TensorSpec(name, tuple(shape), dtype) for name, shape in shapes.items()]


def state(model):
    """Everything that a trace could leave changed, the tensors by identity."""
    return [
        (name, {k: id(v) for k, v in module.__dict__.items()}, list(module._parameters), list(module._buffers),
         [id(v) for v in (*module._parameters.values(), *module._buffers.values(), *module._modules.values())],
         set(module._non_persistent_buffers_set))
        for name, module in model.named_modules()
    ]


def plain(model, parameter, tensor):
    parameter.data.copy_(tensor)


class TraceTest(unittest.TestCase):
    def trace_one(self, loader, shape, tensor_shape, dtype=torch.float32):
        model = Model({"w": loader}, w=shape)
        before = state(model)
        result = trace(model, specs(w=tensor_shape, dtype=dtype))
        self.assertEqual(state(model), before)
        self.assertFalse(model.inner.w.is_meta)
        return result

    def pieces(self, loader, shape, tensor_shape):
        written = self.trace_one(loader, shape, tensor_shape).written["inner.w"]
        self.assertIsNone(written.computed)
        return make_pieces(written, {"w": specs(w=tensor_shape)[0]})

    def test_plain_transposed_and_narrowed(self):
        self.assertEqual(
            self.pieces(plain, (4, 6), (4, 6)),
            [{"tensor": "w", "tensor_offset": [0, 0], "shape": [4, 6], "buffer_offset": [0, 0]}],
        )
        turned = self.pieces(lambda m, p, t: p.data.copy_(t.t()), (6, 4), (4, 6))
        self.assertEqual(turned[0]["axes"], [1, 0])
        cut = self.pieces(lambda m, p, t: p.data[1:].copy_(t.narrow(1, 2, 3)), (5, 3), (4, 6))
        self.assertEqual(
            cut,
            [
                {"tensor": "w", "tensor_offset": [0, 2], "shape": [4, 3], "buffer_offset": [1, 0]},
                {"fill": "keep", "shape": [1, 3], "buffer_offset": [0, 0]},
            ],
        )

    def test_padding_is_zero(self):
        def padded(model, parameter, tensor):
            parameter[:4].data.copy_(tensor)
            parameter[4:].data.fill_(0)

        def cleared_first(model, parameter, tensor):
            parameter.data.zero_()
            parameter[:4].data.copy_(tensor)

        for loader in (padded, cleared_first):
            pieces = self.pieces(loader, (6, 3), (4, 3))
            self.assertEqual(pieces[1:], [{"fill": "zero", "shape": [2, 3], "buffer_offset": [4, 0]}])

    def test_what_was_written_twice_is_no_piece(self):
        def twice(model, parameter, tensor):
            parameter.data.copy_(tensor)
            parameter[1:].data.copy_(tensor[:1])

        def cleared_after(model, parameter, tensor):
            parameter.data.copy_(tensor)
            parameter[1:].data.zero_()

        for loader, message in ((twice, "writes over"), (cleared_after, "set to zero afterwards")):
            written = self.trace_one(loader, (2, 3), (2, 3)).written["inner.w"]
            with self.assertRaisesRegex(NoBox, message):
                make_pieces(written, {"w": specs(w=(2, 3))[0]})

    def test_fused_from_several_tensors(self):
        def part(begin):
            return lambda m, p, t: p.data.narrow(0, begin, t.shape[0]).copy_(t)

        model = Model({"qkv:q": part(0), "qkv:k": part(4)}, qkv=(6, 2))
        result = trace(model, [TensorSpec("qkv:k", (2, 2), torch.float32), TensorSpec("qkv:q", (4, 2), torch.float32)])
        written = result.written["inner.qkv"]
        self.assertEqual(list(written.reads), ["qkv:k", "qkv:q"])
        self.assertEqual(written.elements, {"qkv:k": 4, "qkv:q": 8})
        self.assertEqual([c.destination.offset for c in written.copies], [8, 0])

    def test_computed(self):
        def into_new(model, parameter, tensor):
            parameter.data.copy_(-torch.exp(tensor))

        def in_place(model, parameter, tensor):
            parameter.data.copy_(tensor)
            parameter.data.copy_(-torch.exp(parameter))

        def added(model, parameter, tensor):
            parameter.data.add_(tensor)

        def constant(model, parameter, tensor):
            parameter.data.copy_(torch.ones(3, device="meta"))

        def another(model, parameter, tensor):
            model.inner.w = nn.Parameter(tensor, requires_grad=False)

        def other_bits(model, parameter, tensor):
            parameter.data.copy_(tensor.view(torch.int32))

        def source_changed(model, parameter, tensor):
            parameter.data.copy_(tensor.mul_(2))

        cases = [
            (into_new, "computed .*(exp|neg)", {"w": 3}),
            (in_place, "computed .*(exp|neg)", {"w": 3}),
            (added, "computed .*add_", {}),
            (constant, "computed", {}),
            (another, "another tensor in its place", {}),
            (other_bits, "read as another dtype", {"w": 3}),
            (source_changed, "computed .*mul_", {"w": 3}),
        ]
        for loader, message, elements in cases:
            with self.subTest(loader.__name__):
                result = self.trace_one(loader, (3,), (3,))
                written = result.written["inner.w"]
                self.assertRegex(written.computed, message)
                self.assertEqual(written.elements, elements)
                reads = {} if loader in (constant, another) else {"w": [Region(0, (3,), (1,))]}
                self.assertEqual(written.reads, reads)
                self.assertEqual(result.unread, [] if reads else ["w"])

    def test_only_the_slice_that_was_used_counts_as_read(self):
        written = self.trace_one(lambda m, p, t: p.data.copy_(t[2:5].exp()), (3,), (8,)).written["inner.w"]
        self.assertEqual(written.reads, {"w": [Region(2, (3,), (1,))]})

    def test_a_loader_that_moves_its_tensor_to_a_device(self):
        written = self.trace_one(lambda m, p, t: p.data.copy_(t.to("cpu")), (3,), (3,)).written["inner.w"]
        self.assertRegex(written.computed, "_to_copy")
        self.assertEqual(written.reads, {"w": [Region(0, (3,), (1,))]})

    def test_conversion_by_copy_is_plain(self):
        written = self.trace_one(plain, (3,), (3,), dtype=torch.bfloat16).written["inner.w"]
        self.assertIsNone(written.computed)
        self.assertEqual(written.dtype, torch.float32)

    def test_tensors_that_nobody_reads(self):
        model = Model({"w": plain}, w=(3,), v=(2,))
        result = trace(model, specs(w=(3,), skipped=(5,)))
        self.assertEqual(result.unread, ["skipped"])
        self.assertEqual(list(result.written), ["inner.w"])

    def test_shared_parameters_stay_shared(self):
        model = Model({"w": plain}, w=(3,))
        model.tied = nn.Module()
        model.tied.w = model.inner.w
        record_metadata_for_reloading(model)
        model.loaders["w"] = lambda m, p, t: m.tied.w.data.copy_(t)
        self.assertEqual(list(trace(model, specs(w=(3,))).written), ["inner.w"])

    def test_errors_name_the_tensor_and_leave_the_model(self):
        def breaks(error):
            def loader(model, parameter, tensor):
                model.inner.extra = 1
                model.inner.register_parameter("new", nn.Parameter(torch.zeros(1)))
                parameter.data.copy_(tensor)
                raise error

            return loader

        def value(model, parameter, tensor):
            if tensor[0].item() > 0:
                parameter.data.copy_(tensor)

        cases = [
            (breaks(KeyError("w")), "unknown_tensor"),
            (breaks(ValueError("There is no module or parameter named 'w' in M.")), "unknown_tensor"),
            (breaks(AssertionError()), "shape_mismatch"),
            (breaks(ZeroDivisionError()), "malformed"),
            (value, "malformed"),
        ]
        for loader, code in cases:
            model = Model({"v": plain, "w": loader}, v=(2,), w=(3,))
            model.inner.register_buffer("b", torch.ones(2), persistent=False)
            record_metadata_for_reloading(model)
            before = state(model)
            with self.subTest(code), self.assertRaises(InputError) as caught:
                trace(model, specs(v=(2,), w=(3,)))
            self.assertEqual((caught.exception.code, caught.exception.tensor), (code, "w"))
            self.assertEqual(state(model), before)
            self.assertTrue(torch.equal(model.inner.v, torch.zeros(2)))

    def test_a_bias_that_the_host_leaves_out_of_its_metadata(self):
        model = Model({"bias": plain}, bias=(3,))
        self.assertIn("inner.bias", trace(model, specs(bias=(3,))).written)
        self.assertTrue(torch.equal(model.inner.bias, torch.zeros(3)))


if __name__ == "__main__":
    unittest.main()
