"""Strided regions of tensors and parameters as boxes: the pieces of docs/manifest.md. Pure arithmetic on integers.

All offsets, sizes and strides count elements. A tensor is row-major; a buffer has any strides that do not overlap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Iterator, Sequence

Box = tuple[tuple[int, ...], tuple[int, ...]]  # where it begins, extents


class NoBox(Exception):
    """The region is no box; str() says why."""


@dataclass(frozen=True)
class Region:
    """What torch says of a view: the elements offset + sum(index[i] * stride[i]) of a storage, index[i] < size[i]."""

    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.size)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a dense tensor: (12, 4, 1) for (2, 3, 4)."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def make_piece(
    tensor: str,
    shape: Sequence[int],
    source: Region,
    destination: Region,
    buffer_shape: Sequence[int],
    buffer_strides: Sequence[int],
) -> dict[str, Any]:
    """The piece that says what `destination.copy_(source)` does.

    source: a region of the row-major tensor of `shape`; destination: one of the buffer, of the same size (offset 0 is
    the buffer's first element). Raises NoBox when one piece cannot say it. Examples, tensor [4, 6], buffer row-major:
      rows 2..3 into rows 0..1          tensor_offset [2, 0], shape [2, 6], buffer_offset [0, 0]
      transposed into a [6, 4]          shape [4, 6], axes [1, 0]
      into [1] of a [3, 4, 6]           view [1, 4, 6], buffer_offset [1, 0, 0]
      every second row into a [2, 6]    view [2, 12], shape [2, 6]
      every second column into a [4, 3] NoBox: it takes the view [4, 3, 2], an axis more than the buffer has
    """
    if source.size != destination.size:
        raise NoBox(f"sizes differ: {list(source.size)} and {list(destination.size)}")
    at = _coordinates(destination.offset, buffer_shape, buffer_strides)
    if at is None:
        raise NoBox("it begins between the parameter's elements")
    along = _along_buffer(source, destination, at, buffer_shape, buffer_strides)
    for view in _views(shape, along):
        piece = _fit(tensor, shape, source.offset, view, at, along)
        if piece is not None:
            return piece
    raise NoBox(f"the slice (size {list(source.size)}, stride {list(source.stride)}) is no box of the tensor")


def _along_buffer(
    source: Region, destination: Region, at: Sequence[int], shape: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    """For each axis of the buffer: the extent written, and the step in the tensor along it (0 where that is 1)."""
    runs: list[list[int]] = []  # [extent, step in the tensor, step in the buffer], merged where both sides allow it
    dims = [d for d in zip(destination.size, source.stride, destination.stride) if d[0] > 1]
    for extent, step, buffer_step in sorted(dims, key=lambda d: -d[2]):
        if step == 0 or buffer_step == 0:
            raise NoBox("one element goes to many places")
        if runs and runs[-1][1] == step * extent and runs[-1][2] == buffer_step * extent:
            runs[-1] = [runs[-1][0] * extent, step, buffer_step]
        else:
            runs.append([extent, step, buffer_step])
    axis_of = {stride: axis for axis, stride in enumerate(strides) if shape[axis] > 1}
    along = [(1, 0)] * len(shape)
    for extent, step, buffer_step in runs:
        while extent > 1:
            axis = axis_of.get(buffer_step)
            if axis is None or along[axis][0] > 1:
                raise NoBox(f"it is written with a step of {buffer_step} elements, which is no axis of the parameter")
            room = shape[axis] - at[axis]
            if extent <= room:
                along[axis] = (extent, step)
                break
            if at[axis] != 0 or extent % shape[axis] != 0:
                raise NoBox("it is written across the parameter's rows")
            along[axis] = (shape[axis], step)
            extent, step, buffer_step = extent // shape[axis], step * shape[axis], buffer_step * shape[axis]
    return along


def _coordinates(offset: int, shape: Sequence[int], strides: Sequence[int]) -> list[int] | None:
    at = [0] * len(shape)
    for axis in sorted(range(len(shape)), key=lambda a: -strides[a]):
        if shape[axis] > 1:
            at[axis], offset = divmod(offset, strides[axis])
            if at[axis] >= shape[axis]:
                return None
    return at if offset == 0 else None


def _views(shape: Sequence[int], along: list[tuple[int, int]]) -> Iterator[tuple[int, ...]]:
    """Shapes of the tensor with as many axes as the buffer, the tensor's own first."""
    rank, own = len(along), tuple(shape)
    if len(own) <= rank:
        yield (1,) * (rank - len(own)) + own
        yield own + (1,) * (rank - len(own))
    squeezed = tuple(extent for extent in own if extent > 1)
    if len(squeezed) <= rank:
        yield (1,) * (rank - len(squeezed)) + squeezed
    # An axis for each step, and one for what lies between the smallest steps.
    steps = sorted((step for extent, step in along if extent > 1), reverse=True)
    if not steps or steps[-1] > 1:
        steps.append(1)
    extents, above = [], math.prod(own)
    for step in steps:
        if above % step != 0:
            return
        extents.append(above // step)
        above = step
    if len(extents) <= rank:
        yield (1,) * (rank - len(extents)) + tuple(extents)


def _fit(
    tensor: str,
    shape: Sequence[int],
    offset: int,
    view: tuple[int, ...],
    at: Sequence[int],
    along: list[tuple[int, int]],
) -> dict[str, Any] | None:
    strides = row_major(view)
    begin = _coordinates(offset, view, strides)
    if begin is None:
        return None
    axis_of = {stride: axis for axis, stride in enumerate(strides) if view[axis] > 1}
    axes: list[int | None] = [None] * len(view)
    extents = [1] * len(view)
    for buffer_axis, (extent, step) in enumerate(along):
        if extent == 1:
            continue
        axis = axis_of.get(step)
        if axis is None or axes[axis] is not None or begin[axis] + extent > view[axis]:
            return None
        axes[axis], extents[axis] = buffer_axis, extent
    free = iter([axis for axis, (extent, _) in enumerate(along) if extent == 1])
    order = [next(free) if axis is None else axis for axis in axes]
    piece = {"tensor": tensor, "tensor_offset": begin, "shape": extents, "buffer_offset": list(at)}
    if order != sorted(order):
        piece["axes"] = order
    if view != tuple(shape):
        piece["view"] = list(view)
    return piece


def buffer_box(piece: dict[str, Any]) -> Box:
    """Where a piece or a fill lies in its buffer, along the buffer's axes."""
    extents = piece["shape"]
    if "axes" in piece:
        extents = [piece["shape"][piece["axes"].index(axis)] for axis in range(len(extents))]
    return tuple(piece["buffer_offset"]), tuple(extents)


def zero_box(region: Region, buffer_shape: Sequence[int], buffer_strides: Sequence[int]) -> Box:
    """The box of a buffer that a region of it is. Raises NoBox."""
    at = _coordinates(region.offset, buffer_shape, buffer_strides)
    if at is None:
        raise NoBox("it begins between the parameter's elements")
    along = _along_buffer(region, region, at, buffer_shape, buffer_strides)
    return tuple(at), tuple(extent for extent, _ in along)


def bounding_box(region: Region, shape: Sequence[int]) -> Box:
    """A box of the row-major tensor of `shape` that holds the region; the smallest where its steps run along axes."""
    try:
        return zero_box(region, shape, row_major(shape))
    except NoBox:
        inner = math.prod(shape[1:])
        last = region.offset + sum((n - 1) * s for n, s in zip(region.size, region.stride))
        first_row = region.offset // inner
        return (first_row,) + (0,) * (len(shape) - 1), (last // inner + 1 - first_row,) + tuple(shape[1:])


def intersect(a: Box, b: Box) -> Box | None:
    """The common box, None where they have no element in common."""
    begin = tuple(max(x, y) for x, y in zip(a[0], b[0]))
    end = [min(x + n, y + m) for x, n, y, m in zip(a[0], a[1], b[0], b[1])]
    if any(e <= x for x, e in zip(begin, end)):
        return None
    return begin, tuple(e - x for x, e in zip(begin, end))


def subtract(boxes: Sequence[Box], cut: Box) -> list[Box]:
    """What is left of `boxes` (disjoint) without `cut`, as disjoint boxes."""
    left: list[Box] = []
    for box in boxes:
        common = intersect(box, cut)
        if common is None:
            left.append(box)
            continue
        begin, extents = list(box[0]), list(box[1])
        for axis in range(len(begin)):
            before = common[0][axis] - begin[axis]
            if before > 0:
                left.append((tuple(begin), tuple(extents[:axis] + [before] + extents[axis + 1 :])))
            behind = begin[axis] + extents[axis] - common[0][axis] - common[1][axis]
            if behind > 0:
                begin_behind = list(begin)
                begin_behind[axis] = common[0][axis] + common[1][axis]
                left.append((tuple(begin_behind), tuple(extents[:axis] + [behind] + extents[axis + 1 :])))
            begin[axis], extents[axis] = common[0][axis], common[1][axis]
    return left


def merge_overlapping(boxes: Sequence[Box]) -> list[Box]:
    """Disjoint boxes that hold all of `boxes`: those with common elements become the one box around them."""
    merged: list[Box] = []
    for box in boxes:
        again = True
        while again:
            again = False
            for other in merged:
                if intersect(box, other) is not None:
                    merged.remove(other)
                    begin = tuple(map(min, box[0], other[0]))
                    ends = [max(x + n, y + m) for x, n, y, m in zip(box[0], box[1], other[0], other[1])]
                    box, again = (begin, tuple(e - x for x, e in zip(begin, ends))), True
                    break
        merged.append(box)
    return merged
