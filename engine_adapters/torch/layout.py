"""From a torch tensor to the source buffer that offers this rank's part of it (docs/manifest.md).

The buffer is the rank's local tensor with its own strides; its pieces are the boxes of the global tensor that lie in
it. A plain tensor is its own local tensor. For a DTensor every axis of the global tensor is cut by mesh dimensions,
from left to right (or in the tensor's own shard order, where it has another one):

    Shard            what this rank has of the axis so far is cut as torch.chunk does: ceil(n / ranks) each, the last
                     chunks shorter or empty
    _StridedShard    it is first cut into `split_factor` parts; each part is cut as above, and the rank holds its
                     chunk of every part, one behind the other
    Replicate        nothing is cut: all replicas offer the same bytes and the planner shares the load

For example, FSDP over a column-wise TP of 2 gives [_StridedShard(0, split_factor=2), Shard(0)] on the mesh (fsdp, tp).
Of 38 rows on 2x2 the coordinates (0,0) (0,1) (1,0) (1,1) hold 10, 10, 9, 9 rows from 0, 19, 10, 29: TP cuts first.

What a rank holds of an axis is a list of runs, not one range: with strided shards the runs do not adjoin in general.
torch's compute_local_shape_and_global_offset gives one offset for them all, and is wrong there without saying so.

Pure functions: nothing is communicated, nothing is gathered, no element is read.
"""

import itertools
from dataclasses import dataclass, field
from typing import Any, Iterable, Sequence

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from headrace.errors import InputError
from headrace.torch import dtypes

# [first, first + count) of an axis of the global tensor.
Run = tuple[int, int]


@dataclass(frozen=True)
class LocalPart:
    """What this rank holds of one tensor."""

    name: str
    global_shape: tuple[int, ...]
    local: torch.Tensor  # the memory: a plain strided tensor; empty where the rank holds nothing
    pieces: list[dict[str, Any]] = field(default_factory=list)  # of the manifest; none when `local` is empty

    def buffer(self, rank: int, wire_dtype: str) -> dict[str, Any]:
        """The manifest's source buffer of manifest rank `rank`, under the tensor's name.

        The publisher converts to `wire_dtype` (the tensor's dtype in the manifest) where this memory has another one.
        Raises InputError `dtype_mismatch` for a dtype that the manifest cannot say.
        """
        dtype = dtypes.spelling(self.local.dtype)
        buffer = {
            "rank": rank,
            "buffer": self.name,
            "dtype": dtype,
            "shape": list(self.local.shape),
            "strides": list(self.local.stride()),
            "pieces": self.pieces,
        }
        if dtype != wire_dtype:
            buffer["convert"] = "rne"
        return buffer


def local_part(name: str, tensor: torch.Tensor) -> LocalPart:
    """What this rank holds of `tensor`, whose name in the manifest is `name`.

    Raises InputError: `malformed` for a Partial or unknown placement (its local values are no part of the tensor), a
    tensor subclass other than DTensor, a tensor that is not strided or has no memory of its own on the host;
    `shape_mismatch` when the local tensor is not as large as its placements say.
    """
    if isinstance(tensor, DTensor):
        shape = tuple(tensor.shape)
        with torch.no_grad():
            local = tensor.to_local()
        _check_memory(name, local)
        mesh = tensor.device_mesh
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            return LocalPart(name, shape, local)  # this rank is not in the mesh
        spec = tensor._spec
        order = getattr(spec, "shard_order", None)  # torch before 2.10 has none
        runs = axis_runs(name, shape, tuple(mesh.shape), tuple(coordinate), tensor.placements, order)
    else:
        shape = tuple(tensor.shape)
        local = tensor.detach()
        _check_memory(name, local)
        runs = [[(0, extent)] if extent else [] for extent in shape]
    expected = tuple(sum(count for _, count in axis) for axis in runs)
    empty = local.numel() == 0 and 0 in expected  # along which axis it is empty depends on who cut it
    if tuple(local.shape) != expected and not empty:
        placed = f", placed {tensor.placements} on {tensor.device_mesh}" if isinstance(tensor, DTensor) else ""
        raise InputError(
            "shape_mismatch",
            f'tensor "{name}" of shape {list(shape)}{placed}: this rank holds {list(local.shape)}, its placements say '
            f"{list(expected)}; its layout is not one that can be told from its placements",
            tensor=name,
        )
    return LocalPart(name, shape, local, [] if empty else _pieces(name, runs))


def axis_runs(
    name: str,
    shape: Sequence[int],
    mesh_shape: Sequence[int],
    coordinate: Sequence[int],
    placements: Sequence[Placement],
    shard_order: Sequence[Any] | None = None,
) -> list[list[Run]]:
    """What the rank at `coordinate` of a mesh holds of each axis of a tensor of `shape`.

    For each axis the runs in the order in which they lie in the local tensor; runs that adjoin are one. `shard_order`
    is that of a DTensorSpec: entries with `tensor_dim` and the `mesh_dims` that cut it, first to last; None is left to
    right. Raises InputError `malformed`, naming the tensor, for placements other than Shard, _StridedShard and
    Replicate.
    """
    runs: list[list[Run]] = [[(0, extent)] if extent else [] for extent in shape]
    for mesh_dim in _cutting_order(len(placements), shard_order):
        placement, ranks, mine = placements[mesh_dim], mesh_shape[mesh_dim], coordinate[mesh_dim]
        if isinstance(placement, Replicate):
            continue
        if not isinstance(placement, (Shard, _StridedShard)):
            why = "its values are partial sums; redistribute it first" if placement.is_partial() else "not known here"
            raise InputError(
                "malformed", f'tensor "{name}" is placed {placement} on mesh dimension {mesh_dim}: {why}', tensor=name
            )
        if not -len(shape) <= placement.dim < len(shape):
            raise InputError(
                "malformed", f'tensor "{name}" of shape {list(shape)} has no axis {placement.dim} to shard', tensor=name
            )
        axis = placement.dim % len(shape)
        parts = [runs[axis]]
        if isinstance(placement, _StridedShard):
            parts = [_chunk(runs[axis], placement.split_factor, i) for i in range(placement.split_factor)]
        runs[axis] = _joined(run for part in parts for run in _chunk(part, ranks, mine))
    return runs


def _cutting_order(mesh_dims: int, shard_order: Sequence[Any] | None) -> list[int]:
    """Mesh dimensions in the order in which they cut. Those that cut no axis by `shard_order` come last."""
    first = [dim for entry in shard_order or () for dim in entry.mesh_dims]
    return first + [dim for dim in range(mesh_dims) if dim not in first]


def _chunk(runs: list[Run], chunks: int, index: int) -> list[Run]:
    """Chunk `index` of what `runs` hold together, as torch.chunk cuts it."""
    total = sum(count for _, count in runs)
    size = -(-total // chunks)
    skip, want = size * index, size
    found = []
    for first, count in runs:
        skipped = min(skip, count)
        taken = min(want, count - skipped)
        if taken:
            found.append((first + skipped, taken))
        skip -= skipped
        want -= taken
    return found


def _joined(runs: Iterable[Run]) -> list[Run]:
    joined: list[Run] = []
    for first, count in runs:
        if joined and sum(joined[-1]) == first:
            joined[-1] = (joined[-1][0], joined[-1][1] + count)
        else:
            joined.append((first, count))
    return joined


def _pieces(name: str, runs: list[list[Run]]) -> list[dict[str, Any]]:
    """The boxes of one run along each axis. A scalar is one box without axes."""
    placed = []
    for axis in runs:
        starts = itertools.accumulate((count for _, count in axis), initial=0)
        placed.append([(first, count, start) for (first, count), start in zip(axis, starts)])
    return [
        {
            "tensor": name,
            "tensor_offset": [first for first, _, _ in box],
            "shape": [count for _, count, _ in box],
            "buffer_offset": [start for _, _, start in box],
        }
        for box in itertools.product(*placed)
    ]


def _check_memory(name: str, local: torch.Tensor) -> None:
    if type(local) not in (torch.Tensor, torch.nn.Parameter) or is_traceable_wrapper_subclass(local):
        what = f"is a {type(local).__name__}, whose memory is not that of a plain tensor"
    elif local.layout != torch.strided:
        what = f"has the layout {local.layout}, not a strided one"
    elif local.is_conj() or local.is_neg():
        what = "is a lazily conjugated or negated view; call resolve_conj() or resolve_neg()"
    elif local.device.type not in ("cpu", "cuda"):
        what = f"is on {local.device}; memory of the host and of CUDA devices is what can be sent"
    else:
        return
    raise InputError("malformed", f'tensor "{name}" {what}', tensor=name)
