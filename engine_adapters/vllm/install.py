"""The loader install: tensors that are no plain copy go through the model's own load_weights.

Decoder layer by decoder layer, in the order of the trace, each in a reload of its own, so that the peak beyond the
checkpoint tensors is one layer's. (Module by module costs more time: each call of load_weights walks the whole model.)
The ledger proves that each module got all of what it got when it was traced.
What nobody sends (a scalar buffer that is registered but in no checkpoint) keeps its bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.reload import finalize_layerwise_processing, initialize_layerwise_reload

from headrace.vllm.ledger import Ledger


class LoaderInstall:
    """Fills the parameters that `layout` (headrace.vllm.layout.Layout) says go through the loader.

    All calls from the thread that runs the model, under set_current_vllm_config, while no step runs.
    """

    def __init__(self, model: torch.nn.Module, model_config: Any, layout: Any) -> None:
        self._model = model
        self._model_config = model_config
        self._layout = layout
        self._batches = list(_batches(layout.loader_modules))
        self._embeddings = _embeddings(model)

    @torch.no_grad()
    def run(self) -> None:
        """Loads all loader tensors and renews what the engine derives from its weights. All bytes that are not the
        loader's must be live already.

        InternalError uncovered, overlap: the loader copied less or more than when it was traced; anything that the
        model's code raises. The model is then partly filled: call restore.restore(), and serve nothing.
        """
        for modules, tensors in self._batches:
            self._load(modules, tensors)
        self._refresh()

    def _load(self, modules: Mapping[str, torch.nn.Module], tensors: Sequence[str]) -> None:
        expected = {
            (tensor, parameter): elements
            for (tensor, parameter), elements in self._layout.expected_copies.items()
            if tensor in tensors and any(_inside(parameter, name) for name in modules)
        }
        unsent = _Unsent(modules, sent={parameter for _, parameter in expected})
        sources = {tensor: self._layout.checkpoint_tensor(tensor) for tensor in tensors}
        for module in modules.values():
            initialize_layerwise_reload(module)
        with Ledger(modules, sources) as ledger:
            self._model.load_weights(iter(sources.items()))
            for module in modules.values():
                finalize_layerwise_processing(module, self._model_config)
        unsent.put_back()
        ledger.check(expected)

    def _refresh(self) -> None:
        for embedding in self._embeddings:
            embedding.quant_method.process_weights_after_loading(embedding)
        for layer in self._model.modules():
            if is_deferred_attention_layer(layer):
                layer.process_weights_after_loading(self._model_config.dtype)


class _Unsent:
    """The bits of the modules' own tensors that no tensor of the trainer reaches."""

    def __init__(self, modules: Mapping[str, torch.nn.Module], sent: set[str]) -> None:
        self._kept = []
        for prefix, module in modules.items():
            for owner_name, owner in module.named_modules(prefix=prefix):
                for name, tensor in (*owner._parameters.items(), *owner._buffers.items()):
                    full_name = f"{owner_name}.{name}" if owner_name else name
                    if tensor is not None and full_name not in sent:
                        self._kept.append((tensor, tensor.detach().clone()))

    def put_back(self) -> None:
        for tensor, bits in self._kept:
            tensor.data.copy_(bits)


def _batches(
    loader_modules: Sequence[tuple[str, torch.nn.Module, Sequence[str]]],
) -> Iterator[tuple[dict[str, torch.nn.Module], list[str]]]:
    """The modules of a decoder layer are loaded together, and so are modules that share a tensor, since load_weights
    gives a tensor to all that want it."""
    batches: list[tuple[dict[str, torch.nn.Module], list[str]]] = []
    for name, module, tensors in loader_modules:
        joined: tuple[dict[str, torch.nn.Module], list[str]] = ({}, [])
        rest = []
        for batch in batches:
            if set(batch[1]).isdisjoint(tensors) and _layer(name) not in map(_layer, batch[0]):
                rest.append(batch)
            else:
                joined[0].update(batch[0])
                joined[1].extend(batch[1])
        joined[0][name] = module
        joined[1].extend(tensor for tensor in tensors if tensor not in joined[1])
        batches = [*rest, joined]
    yield from batches


def _embeddings(model: torch.nn.Module) -> list[torch.nn.Module]:
    """All that may compute with an embedding. On CPUs each keeps a packed copy for the logits: a head that is tied to
    another module's weight, which the host's reload leaves old, and an embedding that a model uses as its head."""
    return [m for m in model.modules() if isinstance(getattr(m, "quant_method", None), UnquantizedEmbeddingMethod)]


def _layer(module: str) -> str:
    """What a module's batch is named by: the path up to the first index, "model.layers.3"; without one, itself."""
    parts = module.split(".")
    index = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts))
    return ".".join(parts[: index + 1])


def _inside(parameter: str, module: str) -> bool:
    return not module or parameter.startswith(f"{module}.")
