"""How each slice of a checkpoint reaches each parameter: the model's own load_weights, run once without storage.

Every parameter is replaced by a meta tensor in checkpoint format (which vLLM keeps for its layerwise reload), the
tensors of the checkpoint are meta tensors too, and what load_weights does is recorded below torch's dispatcher, by
storage: views share it, whatever they are called, and modules may share parameters.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Iterator, Sequence

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from vllm.model_executor.model_loader.reload.layerwise import (
    _get_original_loader,
    _get_weight_loader,
    get_layerwise_info,
)
from vllm.model_executor.model_loader.reload.meta import SKIP_LOAD_TENSORS, to_meta_tensor
from vllm.model_executor.model_loader.reload.sanitize import restore_layer_refs

from headrace.errors import InputError
from headrace.vllm.pieces import Region

_aten = torch.ops.aten


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of the checkpoint: its name there, its shape, and its dtype there."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Copy:
    """destination.copy_(source): a slice of a tensor into a slice of a parameter, in the same order of elements."""

    tensor: str
    source: Region
    destination: Region


@dataclass
class Written:
    """A parameter (or buffer) in checkpoint format, and what load_weights did to it. Regions count in elements.

    module, name: the module's name in the model and the parameter's in it: the first of those that share it.
    shape, strides, dtype: of the form that load_weights writes.
    copies: in the order of loading. zeros: regions filled with zeros, and how many copies came before.
    computed: why it is no plain copy; None where it is.
    reads: every slice of every tensor that it depends on, tensors in the order of loading.
    elements: by tensor, how many elements were copied from it or from what was computed of it alone.
    """

    module: str
    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    copies: list[Copy] = field(default_factory=list)
    zeros: list[tuple[Region, int]] = field(default_factory=list)
    computed: str | None = None
    reads: dict[str, list[Region]] = field(default_factory=dict)
    elements: dict[str, int] = field(default_factory=dict)

    @property
    def full_name(self) -> str:
        return f"{self.module}.{self.name}" if self.module else self.name


@dataclass
class Trace:
    """written: parameters by full name, in the order in which they were first written. unread: tensors of which no
    parameter of this worker depends (other stages, names that the model skips)."""

    written: dict[str, Written]
    unread: list[str]


def trace(model: torch.nn.Module, tensors: Sequence[TensorSpec]) -> Trace:
    """Runs model.load_weights over `tensors`, without data; the model is as it was afterwards, also after an error.

    No other thread may use the model meanwhile. InputError `unknown_tensor`: the model knows no such tensor;
    `shape_mismatch`: it does not take this shape; `malformed`: it needs values to load it. Each names the tensor.
    """
    with _on_meta(model) as written:
        recorder = _Recorder(written)
        loading = ""

        def weights() -> Iterator[tuple[str, torch.Tensor]]:
            nonlocal loading
            for spec in tensors:
                loading = spec.name
                yield spec.name, recorder.source(spec)

        try:
            with torch.no_grad(), recorder:
                model.load_weights(weights())
        except Exception as error:
            raise _refused(loading, error) from error
        for key, (module, meta, parameter) in recorder.parameters.items():
            now = module._parameters.get(parameter.name, module._buffers.get(parameter.name))
            if now is None or now.untyped_storage()._cdata != key or now.shape != meta.shape:
                parameter.computed = parameter.computed or "the loader puts another tensor in its place"
        replaced = [p for _, _, p in recorder.parameters.values() if p.computed and p not in recorder.order]
        order = recorder.order + replaced
    read = {tensor for p in order for tensor in p.reads}
    return Trace({p.full_name: p for p in order}, [spec.name for spec in tensors if spec.name not in read])


def _refused(tensor: str, error: Exception) -> InputError:
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, KeyError) or "no module or parameter named" in str(error):
        return InputError("unknown_tensor", f"the model has no place for tensor {tensor!r} ({text})", tensor=tensor)
    if isinstance(error, (AssertionError, IndexError)) or (isinstance(error, RuntimeError) and "size" in str(error)):
        return InputError("shape_mismatch", f"the model does not load tensor {tensor!r} ({text})", tensor=tensor)
    message = f"loading tensor {tensor!r} cannot be followed without its values ({text})"
    return InputError("malformed", message, tensor=tensor)


@contextmanager
def _on_meta(model: torch.nn.Module) -> Iterator[list[tuple[torch.nn.Module, torch.Tensor, Written]]]:
    """Replaces all parameters, and the buffers that can be loaded, by meta tensors in checkpoint format; yields them.

    On exit every module has its former attributes, parameters, buffers and children: the identical objects.
    """
    modules = list(model.named_modules())
    tables = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
    saved = [(m, dict(m.__dict__), {name: m.__dict__[name].copy() for name in tables}) for _, m in modules]
    shared: dict[int, torch.Tensor] = {}  # id of the live tensor -> its one meta tensor: tied weights stay tied
    written = []
    try:
        for module_name, module in modules:
            parameters, buffers = get_layerwise_info(module).restore_metadata
            skipped = {n: p for n, p in module._parameters.items() if p is not None and n not in parameters}
            # vLLM leaves some tensors out of its metadata; "bias" and what is a parameter is loaded all the same.
            skipped = {n: p for n, p in skipped.items() if n == "bias" or n in SKIP_LOAD_TENSORS}
            live = {**module._parameters, **module._buffers}
            forms = {**parameters, **skipped}
            kept_buffers = {n: b for n, b in module._buffers.items() if n in SKIP_LOAD_TENSORS}
            metas = {}
            for name, form in {**forms, **buffers}.items():
                meta = shared.get(id(live[name])) if live.get(name) is not None else None
                if meta is None:
                    meta = restore_layer_refs(to_meta_tensor(form), module)
                    if _get_weight_loader(meta).__name__ == "online_process_loader":
                        meta.weight_loader = _get_original_loader(meta)  # a reload leaves its wrapper on its metadata
                    shape = tuple(meta.shape)
                    written.append((module, meta, Written(module_name, name, shape, meta.stride(), meta.dtype)))
                    if live.get(name) is not None:
                        shared[id(live[name])] = meta
                metas[name] = meta
            module._parameters.clear()
            module._parameters.update({n: metas[n] for n in forms})
            module._buffers.clear()
            module._buffers.update({n: metas[n] for n in buffers} | kept_buffers)
        if hasattr(model, "_do_torchao_reload"):
            model._do_torchao_reload = False  # load_weights would start a reload of its own
        yield written
    finally:
        for module, attributes, contents in saved:
            for name in module.__dict__.keys() - attributes.keys():
                del module.__dict__[name]
            module.__dict__.update(attributes)
            for name, content in contents.items():
                module.__dict__[name].clear()
                module.__dict__[name].update(content)


@dataclass
class _Values:
    """What a storage that is neither a tensor nor a parameter was made of, by the operation named.

    slices: all that its values depend on. tensors: those that reached it otherwise than through a parameter.
    """

    slices: dict[tuple[str, Region], None]  # an ordered set
    tensors: set[str]
    by: str


class _Recorder(TorchDispatchMode):
    """Follows slices of tensors through views and operations into parameters."""

    def __init__(self, written: list[tuple[torch.nn.Module, torch.Tensor, Written]]) -> None:
        super().__init__()
        self.parameters = {m.untyped_storage()._cdata: (module, m, w) for module, m, w in written}
        self.order: list[Written] = []
        self._sources: dict[int, TensorSpec] = {}
        self._made: dict[int, _Values] = {}
        self._alive: list[Any] = []  # a freed storage's address would be given to another one

    def source(self, spec: TensorSpec) -> torch.Tensor:
        tensor = torch.empty(spec.shape, dtype=spec.dtype, device="meta")
        self._sources[tensor.untyped_storage()._cdata] = spec
        self._alive.append(tensor)
        return tensor

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001 (torch's signature)
        kwargs = kwargs or {}
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if kwargs.get("device") is not None and any(x.is_meta for x in inputs):
            kwargs = {**kwargs, "device": torch.device("meta")}  # a loader that moves what it got to its device
        result = func(*args, **kwargs)
        targets = [
            x
            for argument, value in zip(func._schema.arguments, args)
            if argument.alias_info is not None and argument.alias_info.is_write
            for x in tree_leaves(value)
            if isinstance(x, torch.Tensor)
        ]
        targets += [x for x in tree_leaves(kwargs.get("out")) if isinstance(x, torch.Tensor)]
        if targets:
            for target in targets:
                self._write(func, target, inputs, args)
        else:
            known = {x.untyped_storage()._cdata for x in inputs}
            values = self._values(func, inputs)
            for x in tree_leaves(result):
                if isinstance(x, torch.Tensor) and x.untyped_storage()._cdata not in known and values.slices:
                    self._made[x.untyped_storage()._cdata] = values
                    self._alive.append(x)
        return result

    def _write(self, func, target: torch.Tensor, inputs: list[torch.Tensor], args: tuple[Any, ...]) -> None:
        key = target.untyped_storage()._cdata
        if key in self.parameters:
            if target.numel() > 0:
                self._write_parameter(func, target, inputs, args)
            return
        values = self._values(func, inputs)
        if values.slices and not (func is _aten.copy_.default and target.numel() == 0):
            self._made[key] = values  # a tensor that is changed in place holds made values from here on, too
            self._alive.append(target)

    def _write_parameter(self, func, target: torch.Tensor, inputs: list[torch.Tensor], args: tuple[Any, ...]) -> None:
        _, meta, written = self.parameters[target.untyped_storage()._cdata]
        if written not in self.order:
            self.order.append(written)
        same_type = target.dtype == meta.dtype
        if func is _aten.zero_.default or (func is _aten.fill_.Scalar and args[1] == 0 and same_type):
            written.zeros.append((_region(target, meta.storage_offset()), len(written.copies)))
            return
        origin = args[1] if func is _aten.copy_.default else None
        values = self._values(func, [origin] if origin is not None else inputs)
        for tensor, region in values.slices:
            known = written.reads.setdefault(tensor, [])
            if region not in known:
                known.append(region)
        if origin is not None and len(values.tensors) == 1:
            (tensor,) = values.tensors
            written.elements[tensor] = written.elements.get(tensor, 0) + target.numel()
        spec = self._sources.get(origin.untyped_storage()._cdata) if origin is not None else None
        if spec is None or origin.untyped_storage()._cdata in self._made:
            made = self._made.get(origin.untyped_storage()._cdata) if origin is not None else None
            written.computed = written.computed or f"its values are computed ({made.by if made else func})"
        elif origin.dtype != spec.dtype or not same_type:
            written.computed = written.computed or f"bytes of tensor {spec.name!r} are read as another dtype"
        else:
            copy = Copy(spec.name, _region(origin.expand(target.shape), 0), _region(target, meta.storage_offset()))
            written.copies.append(copy)

    def _values(self, func, inputs: list[torch.Tensor]) -> _Values:
        slices: dict[tuple[str, Region], None] = {}
        tensors: set[str] = set()
        by = str(func)
        for x in inputs:
            key = x.untyped_storage()._cdata
            if key in self._made:
                slices |= self._made[key].slices
                tensors |= self._made[key].tensors
                by = self._made[key].by if func is _aten.copy_.default else by
            if key in self._sources and x.numel() > 0:
                # Of another dtype than the tensor's: offsets do not count its elements, take the whole.
                spec = self._sources[key]
                region = _region(x, 0) if x.dtype == spec.dtype else _whole(spec.shape)
                slices[spec.name, region] = None
                tensors.add(spec.name)
            elif key in self.parameters:
                reads = self.parameters[key][2].reads
                slices |= {(tensor, region): None for tensor, regions in reads.items() for region in regions}
        return _Values(slices, tensors, by)


def _region(view: torch.Tensor, origin: int) -> Region:
    return Region(view.storage_offset() - origin, tuple(view.shape), tuple(view.stride()))


def _whole(shape: tuple[int, ...]) -> Region:
    dense = torch.empty(shape, device="meta")
    return Region(0, shape, tuple(dense.stride()))
