"""direct or loader: each parameter's install, with the reason."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from headrace.vllm import liveness, proof
from headrace.vllm.live import LiveTensor
from headrace.vllm.pieces import Box, NoBox, buffer_box, intersect, make_piece, subtract, zero_box
from headrace.vllm.trace import TensorSpec, Trace, Written

# The publisher converts between these, rounding to nearest even, as torch does.
_CONVERTIBLE = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


@dataclass(frozen=True)
class Decisions:
    """reasons: by full name of each parameter that load_weights writes: why it goes through the loader, None: direct.
    pieces: of the direct ones, whole buffers. dtypes: what each tensor travels in."""

    reasons: dict[str, str | None]
    pieces: dict[str, list[dict[str, Any]]]
    dtypes: dict[str, torch.dtype]


def decide(traced: Trace, specs: dict[str, TensorSpec], live: Sequence[LiveTensor], read: proof.Read) -> Decisions:
    """specs: of the checkpoint, by name. read: its values (proof.py). Probes layers: the engine must be idle."""
    by_name = {t.full_name: t for t in live}
    owners: dict[int, list[LiveTensor]] = {}
    for tensor in live:
        owners.setdefault(tensor.storage, []).append(tensor)
    dtypes = {name: _travels_in(spec, traced) for name, spec in specs.items()}
    probe = functools.cache(liveness.why_not_live)
    reasons: dict[str, str | None] = {}
    pieces: dict[str, list[dict[str, Any]]] = {}
    for name, written in traced.written.items():
        found = by_name.get(name)
        try:
            reason = written.computed or _not_the_same(written, found)
            if reason is None:
                pieces[name] = make_pieces(written, specs)
                reason = next((w for o in owners[found.storage] if (w := _not_live(o, probe)) is not None), None)
            if reason is None:
                others = [t for t in written.reads if dtypes[t] != written.dtype]
                reason = _dtype_reason(others[0], dtypes[others[0]], written) if others else None
            reasons[name] = reason or proof.first_difference(found.tensor, pieces[name], read)
        except NoBox as no_box:
            reasons[name] = str(no_box)
    _spread(traced, reasons)
    return Decisions(reasons, {n: p for n, p in pieces.items() if reasons[n] is None}, dtypes)


def make_pieces(written: Written, specs: dict[str, TensorSpec]) -> list[dict[str, Any]]:
    """What load_weights wrote into a parameter as the pieces of a buffer of its shape, its whole extent: copies, zero
    fills, and `keep` for what was not written. Raises NoBox."""
    shape = written.shape
    pieces: list[dict[str, Any]] = []
    rest: list[Box] = [((0,) * len(shape), shape)]
    for index, copy in enumerate(written.copies):
        try:
            made = make_piece(
                copy.tensor, specs[copy.tensor].shape, copy.source, copy.destination, shape, written.strides
            )
        except NoBox as error:
            raise NoBox(f"tensor {copy.tensor!r}: {error}") from None
        box = buffer_box(made)
        if any(before > index and _meet(zero_box(z, shape, written.strides), box) for z, before in written.zeros):
            raise NoBox(f"what tensor {copy.tensor!r} wrote is set to zero afterwards")
        if made in pieces:
            continue
        left = subtract(rest, box)
        if _elements(rest) - _elements(left) != copy.destination.elements:
            raise NoBox(f"tensor {copy.tensor!r} writes over what was written before")
        rest = left
        pieces.append(made)
    for region, _ in written.zeros:
        zero = zero_box(region, shape, written.strides)
        for box in rest:
            common = intersect(box, zero) if shape else box
            if common is not None:
                pieces.append({"fill": "zero", "shape": list(common[1]), "buffer_offset": list(common[0])})
        rest = subtract(rest, zero)
    pieces += [{"fill": "keep", "shape": list(extents), "buffer_offset": list(begin)} for begin, extents in rest]
    return pieces


def _meet(a: Box, b: Box) -> bool:
    return intersect(a, b) is not None


def _elements(boxes: Sequence[Box]) -> int:
    return sum(functools.reduce(lambda a, b: a * b, box[1], 1) for box in boxes)


def _travels_in(spec: TensorSpec, traced: Trace) -> torch.dtype:
    """The dtype of the parameters where the tensor lands, the widest of several; its own where one is computed of it or
    there is no conversion."""
    dtypes = set()
    for written in traced.written.values():
        if spec.name in written.reads:
            dtypes.add(spec.dtype if written.computed else written.dtype)
    if len(dtypes) == 0 or not (dtypes | {spec.dtype}) <= _CONVERTIBLE:
        return spec.dtype
    return functools.reduce(torch.promote_types, dtypes)


def _dtype_reason(tensor: str, travels: torch.dtype, written: Written) -> str:
    return f"tensor {tensor!r} travels as {travels} and the parameter is {written.dtype}"


def _not_the_same(written: Written, found: LiveTensor | None) -> str | None:
    """Why the live tensor cannot be what load_weights writes, from its geometry."""
    if found is None:
        return "the engine keeps no such parameter after loading"
    live = found.tensor
    if live.numel() == 0 and 0 not in written.shape:
        packed = liveness.why_not_live(found.module)
        return packed or "the engine keeps the parameter without elements"
    if tuple(live.shape) != written.shape or live.dtype != written.dtype:
        loaded = f"{list(written.shape)} {written.dtype}"
        return f"the engine keeps it as {list(live.shape)} {live.dtype}, it is loaded as {loaded}"
    if any(stride == 0 for extent, stride in zip(live.shape, live.stride()) if extent > 1):
        return "the engine keeps one element for many"
    return None


def _not_live(owner: LiveTensor, probe: Any) -> str | None:
    """Why a module that holds a parameter (under its own name or another) may compute with something else."""
    if not liveness.has_processing(owner.module):
        return None
    if owner.name == "bias" and isinstance(owner.module, liveness.PROBED):
        return None  # these layers hand their bias to apply() in each call; a copy of another dtype was seen before
    reason = (
        probe(owner.module)
        if owner.name == "weight"
        else f"not provable: {type(owner.module.quant_method).__name__} has processing after loading"
    )
    return reason and f"{reason} [{owner.module_name}]"


def _spread(traced: Trace, reasons: dict[str, str | None]) -> None:
    """A reload works by module, and load_weights gives a tensor to all that want it: what shares a module or a tensor
    with a loader parameter goes through the loader, too."""
    changed = True
    while changed:
        changed = False
        modules = {w.module: n for n, w in reversed(traced.written.items()) if reasons[n] is not None}
        tensors = {t: n for n, w in reversed(traced.written.items()) if reasons[n] is not None for t in w.reads}
        for name, written in traced.written.items():
            if reasons[name] is not None:
                continue
            shared = next((t for t in written.reads if t in tensors), None)
            if written.module in modules:
                reasons[name] = f"its module is reloaded for {modules[written.module]!r}"
            elif shared is not None:
                reasons[name] = f"tensor {shared!r} also goes through the loader for {tensors[shared]!r}"
            changed |= reasons[name] is not None
