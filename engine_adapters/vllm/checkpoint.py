"""The checkpoint that an engine was started from: what its files say, and lazy reads of it."""

from __future__ import annotations

from typing import Any, Sequence

import torch
from safetensors import safe_open
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from headrace.errors import InputError
from headrace.torch.dtypes import torch_dtype
from headrace.vllm.pieces import Box
from headrace.vllm.trace import TensorSpec


class Checkpoint:
    """The safetensors files that vLLM's loader picks for this model, in its order. Nothing but headers is read before
    read(). Keep it no longer than needed: the files are mapped."""

    def __init__(self, model: torch.nn.Module, model_config: Any, load_config: Any) -> None:
        """InputError `io`: weights that are not in safetensors files, or are in none at all."""
        loader = get_model_loader(load_config)
        if not isinstance(loader, DefaultModelLoader):
            raise InputError(
                "io",
                f"cannot read what load_format {load_config.load_format!r} loaded; start the engine from safetensors "
                "files, or with load_format dummy and the trainer's names and shapes",
            )
        patterns = getattr(model, "allow_patterns_overrides", None)
        sources = [
            DefaultModelLoader.Source(model_config.model, model_config.revision, allow_patterns_overrides=patterns)
        ]
        sources += getattr(model, "secondary_weights", ())
        self._files: dict[str, tuple[Any, str]] = {}
        self.tensors: list[TensorSpec] = []
        for source in sources:
            _, paths, safetensors, _ = loader._prepare_weights(
                source.model_or_path, source.subfolder, source.revision, False, source.allow_patterns_overrides
            )
            if not safetensors:
                raise InputError("io", f"the weights of {source.model_or_path} are not in safetensors files")
            for path in sorted(paths):
                self._open(path, source.prefix)

    def _open(self, path: str, prefix: str) -> None:
        file = safe_open(path, framework="pt")
        for name in file.keys():
            entry = file.get_slice(name)
            self._files[prefix + name] = (file, name)
            self.tensors.append(TensorSpec(prefix + name, tuple(entry.get_shape()), torch_dtype(entry.get_dtype())))

    def read(self, tensor: str, box: Box | None = None) -> torch.Tensor:
        """The tensor, or a box of it along its own axes; a view of the mapped file where that is possible."""
        file, name = self._files[tensor]
        if box is None or not box[0]:
            return file.get_tensor(name)
        return file.get_slice(name)[tuple(slice(b, b + n) for b, n in zip(*box))]


def given_tensors(tensors: Sequence[dict[str, Any]]) -> list[TensorSpec]:
    """[{"name", "shape", "dtype"}] (dtypes as in a manifest) as specs. InputError `malformed`, `dtype_mismatch`."""
    specs = {}
    for t in tensors:
        if not isinstance(t.get("name"), str) or not isinstance(t.get("shape"), (list, tuple)) or "dtype" not in t:
            raise InputError("malformed", f"a tensor is {{name, shape, dtype}}, not {t!r}")
        if t["name"] in specs:
            raise InputError("malformed", f"tensor {t['name']!r} is given twice", tensor=t["name"])
        specs[t["name"]] = TensorSpec(t["name"], tuple(t["shape"]), torch_dtype(t["dtype"]))
    return list(specs.values())
