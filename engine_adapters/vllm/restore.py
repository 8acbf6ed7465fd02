"""Puts back layers that a weight reload left half done.

vLLM's layerwise reload takes a layer's live tensors away (it keeps them as "kernel tensors" and puts tensors without
storage in their place) until the layer's last weight has come. An error in between leaves the layer like that: the
next reload then fails, or is silently wrong, and a forward kills the engine.
"""

from __future__ import annotations

import torch
from vllm.model_executor.model_loader.reload import layerwise
from vllm.model_executor.model_loader.reload.utils import get_layer_tensors


def restore(model: torch.nn.Module) -> list[str]:
    """Every layer of `model` has its live tensors again, at their old addresses, with whatever bytes they hold.

    Returns the names of the layers that had to be restored. Does nothing where no reload was left open. Call it from
    the thread that runs the model.
    """
    restored = []
    for name, layer in model.named_modules():
        info = layerwise.LAYERWISE_INFO.get(layer)
        if info is None or not info.can_load():
            continue
        if info.kernel_tensors is not None:
            _place(layer, *info.kernel_tensors, info.kernel_non_persistent_buffers)
            restored.append(name)
        info.reset()
    layerwise.LOADING_LAYERS.clear()
    return restored


def _place(
    layer: torch.nn.Module,
    parameters: dict[str, torch.Tensor],
    buffers: dict[str, torch.Tensor],
    non_persistent: set[str],
) -> None:
    for name in get_layer_tensors(layer):
        delattr(layer, name)
    for name, parameter in parameters.items():
        layer.register_parameter(name, parameter)
    for name, buffer in buffers.items():
        layer.register_buffer(name, buffer, persistent=name not in non_persistent)
