"""What this trainer rank offers: a module's or a state dict's tensors as its part of the manifest."""

from dataclasses import dataclass
from typing import Any, Mapping, Sequence

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor

from headrace.errors import InputError
from headrace.torch.layout import local_part
from headrace.torch.names import Names, checkpoint_names
from headrace.torch.streams import gpu_of

# What engines read: {name: {"shape": [...], "dtype": spelling}}.
Wanted = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Sources:
    """One rank's offer. `tensors` keeps the memory alive whose addresses are in `memory`."""

    part: dict[str, Any]
    memory: dict[str, int]  # the first element of each buffer
    gpu: int | None  # on which some of them are
    tensors: list[torch.Tensor]
    unwanted: set[str]  # what this rank has under names that no engine reads
    offered: set[str]  # all names that this rank has


def current_tensors(model: nn.Module | Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors as they are now, parameters and persistent buffers, by the trainer's names.

    A module is asked for its state dict: that also puts FSDP2's parameters back into shards, which are plain full
    tensors after a forward without gradient. Nothing is copied or gathered. Raises InputError `malformed` for FSDP1,
    whose state dict gathers, and for entries that are no tensors.
    """
    if isinstance(model, nn.Module):
        for module in model.modules():
            if isinstance(module, FullyShardedDataParallel):
                raise InputError(
                    "malformed",
                    "FullyShardedDataParallel gathers full tensors into its state dict; use fully_shard (FSDP2), or "
                    "give a dict of DTensors",
                )
        tensors = dict(model.state_dict(keep_vars=True))
    else:
        tensors = dict(model)
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise InputError("malformed", f'"{name}" is a {type(tensor).__name__}, not a tensor', tensor=name)
    return tensors


def places(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[Any, ...]]:
    """Where each tensor lies now, and how it is cut. A later difference means that what was declared is stale."""
    found = {}
    for name, tensor in tensors.items():
        local, cut = tensor, None
        if isinstance(tensor, DTensor):
            with torch.no_grad():
                local = tensor.to_local()
            cut = (tensor.device_mesh, tuple(tensor.placements))
        found[name] = (local.data_ptr(), local.dtype, tuple(local.shape), local.stride(), tuple(tensor.shape), cut)
    return found


def sources(tensors: Mapping[str, torch.Tensor], wanted: Wanted, names: Names | None, rank: int) -> Sources:
    """This rank's part: a buffer for each tensor that engines read.

    A tensor of another dtype than theirs is converted into the snapshot. A name that no engine reads is in `unwanted`,
    unless its memory is that of a tensor which one does read: the second name of tied weights. Raises InputError:
    those of `local_part`, `checkpoint_names` and `gpu_of`; `shape_mismatch` when an engine reads another shape.
    """
    named = {name: tensors[own] for own, name in checkpoint_names(tensors, names).items()}
    parts = {name: local_part(name, tensor) for name, tensor in named.items() if name in wanted}
    buffers, memory = [], {}
    for name, part in sorted(parts.items()):
        shape = list(wanted[name]["shape"])
        if list(part.global_shape) != shape:
            raise InputError(
                "shape_mismatch",
                f'tensor "{name}" is {list(part.global_shape)} in the trainer (rank {rank}) and {shape} in the engines',
                tensor=name,
                rank=rank,
            )
        if part.pieces:
            buffers.append(part.buffer(rank, wanted[name]["dtype"]))
            memory[name] = part.local.data_ptr()
    tied = {_identity(named[name]) for name in parts}
    return Sources(
        part={
            "tensors": [
                {"name": name, "shape": list(tensor["shape"]), "dtype": tensor["dtype"]}
                for name, tensor in sorted(wanted.items())
            ],
            "source": buffers,
            "destination": [],
            "topology": {"source": [{"rank": rank}], "destination": []},
        },
        memory=memory,
        gpu=gpu_of([parts[name].local for name in memory], f"trainer rank {rank}"),
        tensors=[part.local for part in parts.values()],
        unwanted={name for name in named if name not in wanted and _identity(named[name]) not in tied},
        offered=set(named),
    )


def refuse_unwanted(ranks: Sequence[tuple[set[str], set[str]]]) -> None:
    """InputError `unwanted` when every rank that has a tensor has it under a name that no engine reads.

    ranks: (unwanted, offered) of each. A rank whose shard is empty cannot tell that the tensor is tied to another one.
    """
    names = set().union(*[unwanted for unwanted, _ in ranks])
    found = sorted(n for n in names if all(n in unwanted for unwanted, offered in ranks if n in offered))
    if found:
        raise InputError(
            "unwanted",
            f"no engine reads {', '.join(found[:10])}{', ...' if len(found) > 10 else ''} ({len(found)} tensors of the "
            "trainer). `names` maps parameters to the checkpoint's names, or to None to leave them out",
            tensor=found[0],
        )


def _identity(tensor: torch.Tensor) -> Any:
    """Equal for two names of the same weight."""
    with torch.no_grad():
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    if local.numel() == 0:
        return id(tensor)
    return (local.data_ptr(), local.dtype, tuple(local.shape), local.stride(), tuple(tensor.shape))
