"""Does a layer compute with the parameter that it shows, or with a copy that was packed from it at load time?

Equal values do not tell: oneDNN's packing keeps `lm_head.weight` as it was, and computes with something else.
"""

from __future__ import annotations

import torch
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

# Layers whose apply(layer, input, bias) is known.
PROBED = (LinearBase, VocabParallelEmbedding)

_ROWS = 2  # of the probe's input


def has_processing(module: torch.nn.Module) -> bool:
    """Whether the module's quant_method does something after loading."""
    method = getattr(module, "quant_method", None)
    if method is None:
        return False
    return type(method).process_weights_after_loading is not QuantizeMethodBase.process_weights_after_loading


@torch.no_grad()
def why_not_live(module: torch.nn.Module) -> str | None:
    """None when writing `module.weight` is what changes the layer's results; else the reason why that is not proven.

    Modules without processing after loading (norms, activations) compute with what they show. Of the others, linear
    layers and embeddings are probed: with the weight zeroed the layer's own `apply` must give zeros, with ones it must
    not. The weight's bits are put back, also after an error. The engine must be idle: no step may run meanwhile.
    """
    if not has_processing(module):
        return None
    kind = type(module.quant_method).__name__
    weight = module._parameters.get("weight")
    if not isinstance(module, PROBED) or weight is None:
        return f"not provable: {kind} of {type(module).__name__} has processing after loading and no known probe"
    if weight.numel() == 0 or weight.is_meta:
        return f"the layer computes with a packed copy: {kind} left its weight without elements"
    if weight.dim() != 2 or not weight.is_floating_point():
        return f"not provable: {kind} made the weight {list(weight.shape)} {weight.dtype}"
    saved = weight.detach().clone()
    try:
        results = []
        for value in (0, 1):
            weight.data.fill_(value)
            results.append(_apply(module, weight))
    except Exception as error:  # whatever a layer's kernel raises for an input that it does not take
        return f"not provable: {kind}.apply raised {type(error).__name__}: {error}"
    finally:
        weight.data.copy_(saved)
    zeros, ones = results
    if bool((zeros == 0).all()) and bool((ones > 0).all()):
        return None
    return f"the layer computes with a packed copy: its results do not follow the weight ({kind})"


def _apply(module: torch.nn.Module, weight: torch.Tensor) -> torch.Tensor:
    if isinstance(module, VocabParallelEmbedding) and not isinstance(module, ParallelLMHead):
        rows = torch.tensor([0, weight.shape[0] - 1], device=weight.device)
        return module.quant_method.embedding(module, rows)
    ones = torch.ones(_ROWS, weight.shape[1], dtype=weight.dtype, device=weight.device)
    return module.quant_method.apply(module, ones, bias=None)
