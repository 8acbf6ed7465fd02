"""The pieces of a tensor against torch itself: the values that its own sharding put into the local tensors.

Tensors hold 0, 1, 2, ...; where a piece says that a box lies at a place, the local tensor must hold that box's numbers
there, and every element of it must be in exactly one piece.
"""

import itertools
import unittest

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry, TensorMeta
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard

from headrace.errors import InputError
from headrace.torch import layout
from headrace.torch.testing import run_ranks

_SHAPES = [(0,), (1,), (3,), (8,), (11,), (50,), (3, 0), (7, 3), (4, 6), (5, 3, 2)]


def _numbers(shape):
    count = 1
    for extent in shape:
        count *= extent
    return torch.arange(count).reshape(shape)


def _check(what, full, part):
    """Every element of the part's local tensor is in one piece, at the place of the global tensor that holds it."""
    told = torch.full(part.local.shape, -1, dtype=full.dtype)
    for piece in part.pieces:
        assert piece["tensor"] == part.name and all(extent > 0 for extent in piece["shape"]), (what, piece)
        here = tuple(slice(o, o + n) for o, n in zip(piece["buffer_offset"], piece["shape"]))
        there = tuple(slice(o, o + n) for o, n in zip(piece["tensor_offset"], piece["shape"]))
        assert (told[here] == -1).all(), (what, "an element in two pieces", piece)
        assert told[here].shape == full[there].shape == torch.Size(piece["shape"]), (what, "outside", piece)
        told[here] = full[there]
    assert torch.equal(told, part.local), (what, told, part.local, part.pieces)
    assert tuple(part.global_shape) == tuple(full.shape), what


def _placements(axes):
    yield Replicate()
    for axis in range(axes):
        yield Shard(axis)
        for split_factor in (2, 3):
            yield _StridedShard(axis, split_factor=split_factor)


def _every_placement(rank, meshes):
    """All combinations of placements of all shapes on the meshes; returns how many were compared."""
    compared = strided_gaps = 0
    for ranks in meshes:
        mesh = DeviceMesh("cpu", ranks)
        for shape in _SHAPES:
            if mesh.ndim == 3 and len(shape) > 2:
                continue
            full = _numbers(shape)
            for placements in itertools.product(*[list(_placements(len(shape)))] * mesh.ndim):
                tensor = distribute_tensor(full, mesh, placements, src_data_rank=None)
                part = layout.local_part("t", tensor)
                if mesh.get_coordinate() is None:
                    assert part.pieces == [] and part.local.numel() == 0
                    continue
                _check((ranks, shape, placements), full, part)
                compared += 1
                strided_gaps += len(part.pieces) > 1
    return compared, strided_gaps


def _shard_orders(rank):
    """A tensor whose axis is cut by the last mesh dimension first."""
    mesh = init_device_mesh("cpu", (2, 2))
    for rows in range(1, 12):
        full = _numbers((rows, 2))
        last = distribute_tensor(full, DeviceMesh("cpu", [[0, 2], [1, 3]]), [Shard(0), Shard(0)], src_data_rank=None)
        meta = TensorMeta(full.shape, full.stride(), full.dtype)
        order = (ShardOrderEntry(tensor_dim=0, mesh_dims=(1, 0)),)
        spec = DTensorSpec(mesh, (Shard(0), Shard(0)), tensor_meta=meta, shard_order=order)
        _check(rows, full, layout.local_part("t", DTensor(last.to_local(), spec, requires_grad=False)))


class _Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(x + self.down(torch.relu(self.up(x))))


def _model(width, hidden):
    model = nn.Sequential(_Block(width, hidden), _Block(width, hidden))
    fulls = {}
    with torch.no_grad():
        for index, (name, parameter) in enumerate(model.named_parameters()):
            parameter.copy_(_numbers(parameter.shape) + 1000.0 * index)
            fulls[name] = parameter.clone()
    return model, fulls


def _check_model(what, model, fulls):
    state = model.state_dict()
    assert state.keys() == fulls.keys()
    for name, tensor in state.items():
        assert isinstance(tensor, DTensor), (what, name)
        part = layout.local_part(name, tensor)
        _check((what, name, tensor.placements), fulls[name], part)
        if part.local.numel():
            assert part.local.data_ptr() != 0


def _fully_sharded(rank, world):
    """FSDP2, HSDP and FSDP over TP as their own functions place the parameters, uneven and with empty shards."""
    placed = set()
    for width, hidden in [(8, 16), (3, 5), (2, 1), (6, 38)]:
        model, fulls = _model(width, hidden)
        for block in model:
            fully_shard(block)
        fully_shard(model)
        _check_model("fsdp", model, fulls)
        model(torch.zeros(2, width)).sum().backward()
        _check_model("fsdp after a backward", model, fulls)
        with torch.no_grad():
            model(torch.zeros(2, width))
        _check_model("fsdp after a forward without gradient", model, fulls)
        if world < 4:
            continue
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
        model, fulls = _model(width, hidden)
        fully_shard(model, mesh=mesh)
        _check_model("hsdp", model, fulls)
        model, fulls = _model(width, hidden)
        for block in model:
            parallelize_module(block, mesh["inner"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
            fully_shard(block, mesh=mesh["outer"])
        state = model.state_dict()
        for name, tensor in state.items():
            placed.add(tuple(str(p) for p in tensor.placements))
            _check(("fsdp over tp", name), fulls[name], layout.local_part(name, tensor))
    return placed


class LayoutTest(unittest.TestCase):
    def test_two_ranks(self):
        counts = run_ranks(2, _every_placement, [[0, 1], [1, 0], [[0, 1]], [[0], [1]]])
        self.assertTrue(all(compared > 500 and gaps > 10 for compared, gaps in counts), counts)

    def test_four_ranks(self):
        meshes = [[0, 1, 2, 3], [[0, 1], [2, 3]], [[0, 2], [1, 3]], [2, 0, 1]]
        counts = run_ranks(4, _every_placement, meshes)
        self.assertTrue(all(compared > 700 and gaps > 10 for compared, gaps in counts), counts)

    def test_three_mesh_dimensions(self):
        run_ranks(4, _every_placement, [[[[0, 1]], [[2, 3]]]])

    def test_a_shard_order_that_is_not_left_to_right(self):
        run_ranks(4, _shard_orders)

    def test_modules_as_fsdp_and_tp_place_them(self):
        run_ranks(2, _fully_sharded, 2)
        for placed in run_ranks(4, _fully_sharded, 4):
            self.assertIn(("_S(0, 2)", "S(0)"), placed)
            self.assertIn(("S(0)", "S(1)"), placed)

    def test_the_runs_of_fsdp_over_column_wise_tp(self):
        held = {
            (f, t): layout.axis_runs("w", [38], [2, 2], [f, t], [_StridedShard(0, split_factor=2), Shard(0)])
            for f in range(2)
            for t in range(2)
        }
        self.assertEqual(held, {(0, 0): [[(0, 10)]], (0, 1): [[(19, 10)]], (1, 0): [[(10, 9)]], (1, 1): [[(29, 9)]]})

    def test_a_strided_shard_by_itself_has_several_runs(self):
        self.assertEqual(
            layout.axis_runs("w", [12], [2], [1], [_StridedShard(0, split_factor=3)]), [[(2, 2), (6, 2), (10, 2)]]
        )

    def test_negative_axes(self):
        self.assertEqual(layout.axis_runs("w", [2, 6], [2], [1], [Shard(-1)]), [[(0, 2)], [(3, 3)]])

    def test_plain_tensors_and_views(self):
        base = _numbers((8, 6))
        for full in [base, base.t(), base[::2, 1:4], torch.tensor(7), _numbers((0, 3))]:
            part = layout.local_part("t", full)
            _check(full.shape, full, part)
            self.assertEqual(part.local.data_ptr(), full.data_ptr())
        buffer = layout.local_part("t", _numbers((4, 6)).t().float()).buffer(3, "F32")
        self.assertEqual((buffer["rank"], buffer["shape"], buffer["strides"]), (3, [6, 4], [1, 6]))
        self.assertNotIn("convert", buffer)

    def test_another_dtype_is_converted(self):
        buffer = layout.local_part("t", torch.zeros(2)).buffer(0, "BF16")
        self.assertEqual((buffer["dtype"], buffer["convert"]), ("F32", "rne"))

    def assert_refused(self, code, mentions, call):
        with self.assertRaises(InputError) as caught:
            call()
        self.assertEqual((caught.exception.code, caught.exception.tensor), (code, "w"))
        self.assertIn(mentions, caught.exception.message)

    def test_refusals(self):
        self.assert_refused(
            "malformed", "partial sums", lambda: layout.axis_runs("w", [4], [2], [0], [Partial()])
        )
        self.assert_refused("malformed", "no axis 1", lambda: layout.axis_runs("w", [4], [2], [0], [Shard(1)]))
        self.assert_refused(
            "malformed", "sparse", lambda: layout.local_part("w", torch.eye(3).to_sparse())
        )
        self.assert_refused("malformed", "meta", lambda: layout.local_part("w", torch.empty(3, device="meta")))
        self.assert_refused(
            "malformed", "conjugated", lambda: layout.local_part("w", torch.zeros(3, dtype=torch.complex64).conj())
        )

        class Other(torch.Tensor):
            pass

        self.assert_refused("malformed", "Other", lambda: layout.local_part("w", torch.zeros(3).as_subclass(Other)))

    def test_a_local_tensor_that_its_placements_do_not_explain(self):
        def ragged(rank):
            mesh = init_device_mesh("cpu", (2,))
            local = torch.zeros(3 if rank == 0 else 1)
            tensor = DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=torch.Size([4]), stride=(1,))
            try:
                layout.local_part("w", tensor)
            except InputError as error:
                return error.code, error.tensor

        self.assertEqual(run_ranks(2, ragged), [("shape_mismatch", "w")] * 2)


if __name__ == "__main__":
    unittest.main()
