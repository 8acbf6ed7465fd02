"""Generation zero: do the live bytes equal what Headrace would write from what is loaded?

Equal shapes do not prove equal layouts: kernels repack their weights in place. So values are compared, bit for bit.
"""

from __future__ import annotations

import hashlib
from typing import Any, Callable, Iterator, Sequence

import torch
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from headrace.vllm.pieces import Box, buffer_box
from headrace.vllm.trace import TensorSpec

# (tensor, box along its axes or None for all of it) -> values
Read = Callable[[str, "Box | None"], torch.Tensor]


@torch.no_grad()
def first_difference(live: torch.Tensor, pieces: Sequence[dict[str, Any]], read: Read) -> str | None:
    """None when every element of `live` that `pieces` (of a manifest) write is what they would write, to the bit, from
    what `read` gives, converted to live's dtype; else where it differs. Elements to be kept are not looked at.

    Holds one piece of one tensor at a time, twice.
    """
    for piece in pieces:
        if piece.get("fill") == "keep":
            continue
        begin, extents = buffer_box(piece)
        found = live.detach()[tuple(slice(b, b + n) for b, n in zip(begin, extents))]
        if "fill" in piece:
            expected, what = torch.zeros_like(found), "zero"
        else:
            expected, what = _piece_values(piece, read).to(device=live.device, dtype=live.dtype), piece["tensor"]
        if not torch.equal(_bits(found), _bits(expected)):
            return f"live values at {list(begin)} of shape {list(extents)} are not those of {what}"
    return None


def _piece_values(piece: dict[str, Any], read: Read) -> torch.Tensor:
    """The values of a piece, their axes in the order of the buffer's."""
    begin, extents = piece["tensor_offset"], piece["shape"]
    if "view" in piece:
        box = tuple(slice(b, b + n) for b, n in zip(begin, extents))
        values = read(piece["tensor"], None).reshape(piece["view"])[box]
    else:
        values = read(piece["tensor"], (tuple(begin), tuple(extents)))
    if "axes" in piece:
        values = values.permute([piece["axes"].index(axis) for axis in range(len(extents))])
    return values


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().reshape(-1).view(torch.uint8)


def probe_values(spec: TensorSpec, box: Box | None = None) -> torch.Tensor:
    """Made-up values of a tensor, the same whenever they are asked for; small, and different from place to place."""
    seed = int.from_bytes(hashlib.sha256(spec.name.encode()).digest()[:8], "little") >> 1
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(spec.shape, generator=generator).sub_(0.5).div_(8).to(spec.dtype)
    return values if box is None else values[tuple(slice(b, b + n) for b, n in zip(*box))]


@torch.no_grad()
def load_probe(model: torch.nn.Module, model_config: Any, tensors: Sequence[TensorSpec]) -> None:
    """Pushes probe values through the engine's own reload, in place of a dummy load's: they stay.

    Call it under set_current_vllm_config while the engine is idle. It raises what the model's loader raises.
    """

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        for spec in tensors:
            yield spec.name, probe_values(spec)

    initialize_layerwise_reload(model)
    model.load_weights(weights())
    finalize_layerwise_reload(model, model_config)
