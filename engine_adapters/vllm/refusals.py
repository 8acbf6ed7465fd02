"""What the host is configured to do that Headrace cannot serve. Refused when a session begins, before any write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.errors import StateError
from headrace.vllm.liveness import PROBED, has_processing

# Ways of drafting that have no weights of their own.
_WEIGHTLESS_DRAFTS = ("ngram", "ngram_gpu", "suffix")


def check(vllm_config: Any) -> None:
    """Raises for the first feature of `vllm_config` (a vllm.config.VllmConfig) that is on and not supported.

    StateError invalid_option, saying what to switch off.
    """
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    if model.enable_sleep_mode:
        raise _refused("sleep mode is on: a sleeping engine has no weights to write", "--enable-sleep-mode")
    if parallel.enable_eplb:
        raise _refused("expert load balancing is on: it moves experts between workers", "--enable-eplb")
    if vllm_config.lora_config is not None:
        raise _refused("LoRA is on: its layers wrap the weights", "--enable-lora")
    draft = vllm_config.speculative_config
    if draft is not None and draft.method not in _WEIGHTLESS_DRAFTS:
        raise _refused(
            f'speculative decoding by "{draft.method}" is on: its draft keeps old weights', "--speculative-config"
        )
    if parallel.pipeline_parallel_size > 1:
        raise _refused(f"the pipeline has {parallel.pipeline_parallel_size} stages", "--pipeline-parallel-size")
    if vllm_config.quant_config is not None or model.quantization is not None:
        raise _refused(f'the model is quantized ("{model.quantization}")', "--quantization, or serve it unquantized")
    offload = vllm_config.offload_config
    if offload.uva.cpu_offload_gb > 0 or offload.prefetch.offload_group_size > 0:
        raise _refused("weights are offloaded", "--cpu-offload-gb and --offload-group-size")


def check_loader_modules(modules: Iterable[tuple[str, Any, Any]]) -> None:
    """modules: those that would go through the loader, as Layout.loader_modules has them.

    StateError invalid_option for one whose processing after loading is not known to give the same when it is run
    again on new weights: vLLM's reload leaves packed experts on CPUs unpacked, and answers with success.
    """
    for name, module, _ in modules:
        if has_processing(module) and not isinstance(module, PROBED):
            kind = type(module).__name__
            raise StateError(
                "invalid_option",
                f"not supported yet: {name!r} ({kind}) processes its weights after loading, and a reload is not proven "
                "to do that again",
                buffer=name,
            )


def _refused(what: str, switch: str) -> StateError:
    return StateError(
        "invalid_option", f"not supported yet: {what}. Switch it off ({switch}) and start the server again"
    )
