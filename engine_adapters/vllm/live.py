"""The tensors that a model holds now, and which of them share memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class LiveTensor:
    """A parameter or buffer. tensor: as it was when the model was looked at."""

    module_name: str
    module: torch.nn.Module
    name: str
    tensor: torch.Tensor

    @property
    def full_name(self) -> str:
        return f"{self.module_name}.{self.name}" if self.module_name else self.name

    @property
    def storage(self) -> int:
        """Equal for tensors that share a storage; differs for all others while they live."""
        return self.tensor.untyped_storage()._cdata

    def look_up(self) -> torch.Tensor | None:
        """What the module holds under this name now."""
        return self.module._parameters.get(self.name, self.module._buffers.get(self.name))

    def is_alias_of(self, other: LiveTensor) -> bool:
        """The same memory, seen the same way."""
        a, b = self.tensor, other.tensor
        return (
            self.storage == other.storage
            and (a.storage_offset(), a.shape, a.stride(), a.dtype) == (b.storage_offset(), b.shape, b.stride(), b.dtype)
        )


def live_tensors(model: torch.nn.Module) -> list[LiveTensor]:
    """Every module's own parameters and buffers, in the model's order; shared ones under each of their names."""
    return [
        LiveTensor(module_name, module, name, tensor)
        for module_name, module in model.named_modules()
        for name, tensor in (*module._parameters.items(), *module._buffers.items())
        if tensor is not None
    ]
