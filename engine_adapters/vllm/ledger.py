"""Counts what a model's own loading code really copies.

The host answers 200 to an update that filled a third of a fused parameter. The ledger watches every copy into the
parameters of the modules that are being loaded, and compares the elements with what generation zero's trace saw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from headrace.errors import InternalError


class Ledger(TorchDispatchMode):
    """Counts elements by (tensor, parameter) while it is entered; for one batch of modules.

    sources: the checkpoint tensors that will be loaded, by name. What is computed from one (a transpose, a cast,
    -exp) counts as that tensor, too. Storages that were seen are kept until the ledger goes.
    """

    def __init__(self, modules: Mapping[str, torch.nn.Module], sources: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.copied: Counter[tuple[str, str]] = Counter()
        self._seen: set[Any] = set()
        self._modules = modules
        self._source_of: dict[int, str] = {}
        self._parameter_of: dict[int, str] = {}
        self._kept: list[Any] = []  # an address means one storage only while that storage lives
        for name, tensor in sources.items():
            self._source_of[self._key(tensor)] = name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.copy_.default:
            self._count(args[0], args[1])
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        names = {
            self._source_of[key]
            for value in tree_iter((args, kwargs))
            if isinstance(value, torch.Tensor) and (key := self._peek(value)) in self._source_of
        }
        if len(names) == 1:
            self._attribute(tree_iter(result), names.pop())
        return result

    def check(self, expected: Mapping[tuple[str, str], int]) -> None:
        """InternalError uncovered or overlap unless exactly the `expected` elements were copied."""
        for (tensor, parameter), elements in expected.items():
            copied = self.copied[tensor, parameter]
            if copied != elements:
                raise InternalError(
                    "uncovered" if copied < elements else "overlap",
                    f'the engine\'s own loader copied {copied} elements of tensor "{tensor}" into "{parameter}", '
                    f"and {elements} when it was traced",
                    tensor=tensor,
                    buffer=parameter,
                )
        for tensor, parameter in self.copied:
            if (tensor, parameter) not in expected:
                raise InternalError(
                    "overlap",
                    f'the engine\'s own loader copied tensor "{tensor}" into "{parameter}", and did not when it was '
                    "traced",
                    tensor=tensor,
                    buffer=parameter,
                )

    def _count(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        if destination.is_meta:
            return  # the reload's rehearsal on tensors without storage
        name = self._source_of.get(self._peek(source))
        if name is None:
            return
        parameter = self._parameter(destination)
        if parameter is not None:
            # The host rehearses a load, on what is live where that is not on meta (every `bias`): the same elements
            # are copied twice.
            at = (name, parameter, destination.storage_offset(), tuple(destination.shape), tuple(destination.stride()))
            if at not in self._seen:
                self._seen.add(at)
                self.copied[name, parameter] += destination.numel()
        else:
            self._attribute([destination], name)  # an intermediate

    def _parameter(self, tensor: torch.Tensor) -> str | None:
        key = self._peek(tensor)
        if key not in self._parameter_of:
            # A reload puts new tensors into a module when its last weight has come.
            for prefix, module in self._modules.items():
                for name, value in _tensors_of(module):
                    if not value.is_meta and value.numel() > 0:
                        self._parameter_of[self._key(value)] = f"{prefix}.{name}" if prefix else name
        return self._parameter_of.get(key)

    def _attribute(self, values: Iterable[Any], name: str) -> None:
        for value in values:
            if isinstance(value, torch.Tensor) and not value.is_meta and self._parameter(value) is None:
                self._source_of[self._key(value)] = name

    def _key(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        self._kept.append(storage)
        return storage._cdata

    @staticmethod
    def _peek(tensor: torch.Tensor) -> int:
        return tensor.untyped_storage()._cdata


def _tensors_of(module: torch.nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
