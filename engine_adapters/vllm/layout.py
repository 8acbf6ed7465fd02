"""What a worker of an engine wants of each tensor, where it goes, how it is installed and why.

    layout = analyse(model, vllm_config.model_config, vllm_config.load_config)
    part, memory = layout.part(rank=0, engine=0, worker=0), layout.memory()

Nothing here is known by name: the model's own load_weights says what is a plain copy (trace), values say whether the
engine keeps it that way (proof), a probe says whether it computes with it (liveness). What fails any of them is loaded
by the engine's own code, module by module, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from headrace.errors import InputError, StateError
from headrace.torch.dtypes import spelling
from headrace.torch.streams import gpu_of
from headrace.vllm import proof
from headrace.vllm.checkpoint import Checkpoint, given_tensors
from headrace.vllm.decide import Decisions, decide
from headrace.vllm.live import LiveTensor, live_tensors
from headrace.vllm.pieces import Box, bounding_box, merge_overlapping
from headrace.vllm.trace import TensorSpec, Trace, trace

if TYPE_CHECKING:
    from headrace.core import BufferMemory

@dataclass(frozen=True)
class Parameter:
    """One line of `headrace explain`. name: in the model; module: the module's; tensors: of the checkpoint, that it
    depends on; install: "direct", "loader" or "kept"; bytes: of the parameter."""

    name: str
    module: str
    tensors: list[str]
    install: str
    reason: str
    bytes: int


@dataclass(frozen=True)
class _Buffer:
    """A live tensor of the engine as a buffer of the manifest."""

    live: LiveTensor
    storage: str
    alias_of: str | None
    pieces: list[dict[str, Any]]


class Layout:
    """The result of analyse(). Methods from the thread that runs the model.

    parameters: all parameters and buffers of the model.
    tensors: [{"name", "shape", "dtype"}] that this worker reads, in the order of loading; the dtype is that of the
      parameter where it lands (the checkpoint's own where the parameter is computed from it).
    unread: names of the checkpoint that nothing here depends on.
    staging: host memory for loader tensors by buffer name, just the slices that the loader was seen to read.
    loader_modules: (module name, module, names of its tensors) to be loaded by the engine's code, in order of loading.
    expected_copies: (tensor, parameter) -> elements that load_weights copies from one into the other.
    """

    def __init__(
        self,
        parameters: list[Parameter],
        specs: dict[str, TensorSpec],
        unread: list[str],
        buffers: list[_Buffer],
        slices: dict[str, list[Box]],
        loader_modules: list[tuple[str, torch.nn.Module, list[str]]],
        expected_copies: dict[tuple[str, str], int],
    ) -> None:
        """specs: tensors that are read, with the dtypes that travel. slices: of loader tensors, disjoint boxes."""
        self.parameters = parameters
        self.tensors = [{"name": s.name, "shape": list(s.shape), "dtype": spelling(s.dtype)} for s in specs.values()]
        self.unread = unread
        self.loader_modules = loader_modules
        self.expected_copies = expected_copies
        self._specs = specs
        self._buffers = buffers
        self._slices = {
            tensor: [(f"loader:{tensor}" + (f":{i}" if i else ""), box) for i, box in enumerate(boxes)]
            for tensor, boxes in slices.items()
        }
        self.staging: dict[str, torch.Tensor] = {
            name: torch.empty(box[1], dtype=specs[tensor].dtype)
            for tensor, named in self._slices.items()
            for name, box in named
        }

    @property
    def loader_bytes(self) -> int:
        """Host memory that is held for tensors which go through the loader."""
        return sum(t.nbytes for t in self.staging.values())

    @property
    def direct_bytes(self) -> int:
        """Live bytes that are written in place: what a shadow of them takes."""
        return sum(b.live.tensor.nbytes for b in self._buffers if b.alias_of is None)

    @property
    def gpu(self) -> int | None:
        """On which the live tensors are that are written in place. InputError: on several."""
        return gpu_of((b.live.tensor for b in self._buffers), "this worker")

    def part(self, rank: int, engine: int, worker: int) -> dict[str, Any]:
        """This worker's side of the manifest. 

        rank: its destination rank in the manifest, which no other worker of any engine may have. engine, worker: its
        number in the session.
        """
        destination = []
        for b in self._buffers:
            t = b.live.tensor
            entry = {
                "rank": rank,
                "buffer": b.live.full_name,
                "dtype": spelling(t.dtype),
                "shape": list(t.shape),
                "strides": list(t.stride()),
                "storage": {"id": b.storage, "offset_bytes": t.storage_offset() * t.element_size()},
                "pieces": b.pieces,
            }
            destination.append(entry if b.alias_of is None else {**entry, "alias_of": b.alias_of})
        for tensor, named in self._slices.items():
            for name, (begin, extents) in named:
                piece = {"tensor": tensor, "tensor_offset": list(begin), "shape": list(extents)}
                piece["buffer_offset"] = [0] * len(begin)
                dtype = spelling(self._specs[tensor].dtype)
                entry = {"rank": rank, "buffer": name, "dtype": dtype, "shape": list(extents), "pieces": [piece]}
                destination.append(entry)
        placement = {"rank": rank, "engine": f"engine {engine}"}
        return {
            "tensors": self.tensors,
            "source": [],
            "destination": destination,
            "topology": {"source": [], "destination": [placement]},
        }

    def memory(self) -> dict[str, BufferMemory]:
        """Where every buffer of part() lies now, as the live model has it. A parameter that was moved or replaced since
        analyse() shows up by its address. StateError `destination_moved`: it is gone or has another dtype."""
        from headrace.core import BufferMemory

        now = {b.live.full_name: b.live.look_up() for b in self._buffers}
        for b in self._buffers:
            found = now[b.live.full_name]
            if found is None or found.dtype != b.live.tensor.dtype:
                what = "is gone" if found is None else f"is {found.dtype}, was {b.live.tensor.dtype}"
                raise StateError(
                    "destination_moved",
                    f"parameter {b.live.full_name!r} {what}; start a new session",
                    buffer=b.live.full_name,
                )
        return {
            name: BufferMemory(t.data_ptr(), list(t.shape), list(t.stride()), live=live)
            for tensors, live in ((now, True), (self.staging, False))
            for name, t in tensors.items()
        }

    def checkpoint_tensor(self, name: str) -> torch.Tensor:
        """The loader tensor `name` in its full shape, for load_weights. Slices that were received are filled from
        staging; the rest, which the loader does not read, is undefined. No copy where the slice is the whole."""
        shape = self._specs[name].shape
        slices = self._slices[name]
        if [box[1] for _, box in slices] == [shape]:
            return self.staging[slices[0][0]]
        full = torch.empty(shape, dtype=self._specs[name].dtype)
        for buffer, (begin, extents) in slices:
            full[tuple(slice(b, b + n) for b, n in zip(begin, extents))] = self.staging[buffer]
        return full


def analyse(
    model: torch.nn.Module, model_config: Any, load_config: Any, tensors: Sequence[dict[str, Any]] | None = None
) -> Layout:
    """Works out the layout of a loaded model whose engine is idle. Once per engine, before its weights were changed:
    afterwards the live values are no longer those of the checkpoint, and nothing could be proven.

    tensors: [{"name", "shape", "dtype"}] of the trainer, for an engine with load_format dummy (required there, where
    the weights are replaced by probe values; call it under set_current_vllm_config); not looked at otherwise.
    Errors: InputError, see trace() and Checkpoint; `malformed` for a dummy load without tensors. The model is then as
    it was (with a dummy load: the weights are made up).
    """
    if load_config.load_format == "dummy":
        if not tensors:
            raise InputError("malformed", "load_format dummy needs the names and shapes of the trainer's tensors")
        specs = {s.name: s for s in given_tensors(tensors)}
        traced = trace(model, list(specs.values()))
        proof.load_probe(model, model_config, list(specs.values()))
        return _build(model, traced, specs, lambda tensor, box: proof.probe_values(specs[tensor], box))
    checkpoint = Checkpoint(model, model_config, load_config)
    specs = {s.name: s for s in checkpoint.tensors}
    return _build(model, trace(model, checkpoint.tensors), specs, checkpoint.read)


def _build(model: torch.nn.Module, traced: Trace, specs: dict[str, TensorSpec], read: proof.Read) -> Layout:
    live = live_tensors(model)
    decisions = decide(traced, specs, live, read)
    loaded = {n: w for n, w in traced.written.items() if decisions.reasons[n] is not None}
    slices: dict[str, list[Box]] = {}
    modules: dict[str, list[str]] = {}
    for written in loaded.values():
        names = modules.setdefault(written.module, [])
        names += [tensor for tensor in written.reads if tensor not in names]
        for tensor, regions in written.reads.items():
            slices.setdefault(tensor, []).extend(bounding_box(region, specs[tensor].shape) for region in regions)
    order = [tensor for written in traced.written.values() for tensor in written.reads]
    return Layout(
        list(_parameters(traced, decisions, live)),
        {tensor: replace(specs[tensor], dtype=decisions.dtypes[tensor]) for tensor in order},
        traced.unread,
        list(_buffers(decisions, live)),
        {tensor: merge_overlapping(boxes) for tensor, boxes in slices.items()},
        [(name, model.get_submodule(name), tensors) for name, tensors in modules.items()],
        {(t, name): n for name, written in traced.written.items() for t, n in written.elements.items()},
    )


def _buffers(decisions: Decisions, live: list[LiveTensor]) -> Iterator[_Buffer]:
    direct = [t for t in live if t.full_name in decisions.pieces]
    storages: dict[int, str] = {}
    for t in direct:
        storage = storages.setdefault(t.storage, f"s{len(storages)}")
        yield _Buffer(t, storage, None, decisions.pieces[t.full_name])
        for other in live:
            if other.full_name not in decisions.pieces and other.is_alias_of(t):
                yield _Buffer(other, storage, t.full_name, [])


def _parameters(traced: Trace, decisions: Decisions, live: list[LiveTensor]) -> Iterator[Parameter]:
    listed = {t.full_name: t for t in live}
    for name, written in traced.written.items():
        reason = decisions.reasons[name]
        nbytes = math.prod(written.shape) * written.dtype.itemsize  # the engine may keep it packed elsewhere
        why = reason or "a plain copy, equal to what is loaded"
        yield Parameter(name, written.module, list(written.reads), "loader" if reason else "direct", why, nbytes)
    for name, t in listed.items():
        if name in traced.written:
            continue
        shares = next((o for o in live if o.full_name in traced.written and o.storage == t.storage), None)
        if shares is not None and t.tensor.numel() > 0:
            reason = decisions.reasons[shares.full_name]
            tensors = list(traced.written[shares.full_name].reads)
            why = f"shares the memory of {shares.full_name!r}"
            yield Parameter(name, t.module_name, tensors, "loader" if reason else "direct", why, t.tensor.nbytes)
        else:
            why = "no tensor of the checkpoint is loaded into it"
            yield Parameter(name, t.module_name, [], "kept", why, t.tensor.nbytes)
