"""For tests: tiny random models on disk, and vLLM engines in this process that serve them."""

from __future__ import annotations

import gc
import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

# Read when vLLM is imported: the engine's core in this process, a small cache, no warm-up.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_CI_ENV", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from safetensors.torch import save_file

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 32,  # the least that attention on CPUs takes
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": 96,  # vLLM pads it to 128
}
QWEN3_MOE = {
    **QWEN3,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}


def qwen3_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors of a Qwen3 or Qwen3-MoE checkpoint of this config, by name."""
    hidden, head = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}

    def mlp(prefix: str, inner: int) -> None:
        shapes[f"{prefix}.gate_proj.weight"] = (inner, hidden)
        shapes[f"{prefix}.up_proj.weight"] = (inner, hidden)
        shapes[f"{prefix}.down_proj.weight"] = (hidden, inner)

    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        shapes[f"{layer}.self_attn.q_proj.weight"] = (queries, hidden)
        shapes[f"{layer}.self_attn.k_proj.weight"] = (keys, hidden)
        shapes[f"{layer}.self_attn.v_proj.weight"] = (keys, hidden)
        shapes[f"{layer}.self_attn.o_proj.weight"] = (hidden, queries)
        shapes[f"{layer}.self_attn.q_norm.weight"] = (head,)
        shapes[f"{layer}.self_attn.k_norm.weight"] = (head,)
        shapes[f"{layer}.input_layernorm.weight"] = (hidden,)
        shapes[f"{layer}.post_attention_layernorm.weight"] = (hidden,)
        if "num_experts" in config:
            shapes[f"{layer}.mlp.gate.weight"] = (config["num_experts"], hidden)
            for expert in range(config["num_experts"]):
                mlp(f"{layer}.mlp.experts.{expert}", config["moe_intermediate_size"])
        else:
            mlp(f"{layer}.mlp", config["intermediate_size"])
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def random_weights(
    config: dict[str, Any], dtype: torch.dtype = torch.float32, seed: int = 0
) -> dict[str, torch.Tensor]:
    """Weights with which the model generates finite, varied tokens. Norms lie around 1, the rest around 0."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in qwen3_shapes(config).items():
        values = torch.randn(shape, generator=generator)
        weights[name] = (1 + 0.1 * values if "norm" in name else 0.2 * values).to(dtype)
    return weights


def make_model(directory: Path, config: dict[str, Any], dtype: torch.dtype = torch.float32, seed: int = 0) -> Path:
    """Writes config.json and model.safetensors (random weights of `dtype`); returns the directory. No tokenizer: start
    the engine with skip_tokenizer_init and give it token ids."""
    return save_model(directory, config, random_weights(config, dtype, seed))


def save_model(directory: Path, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> Path:
    """As make_model, with the weights given (all of one dtype)."""
    directory.mkdir(parents=True, exist_ok=True)
    dtype = next(iter(weights.values())).dtype
    config = {**config, "torch_dtype": str(dtype).removeprefix("torch.")}
    (directory / "config.json").write_text(json.dumps(config))
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@contextmanager
def prepacking(on: bool) -> Iterator[None]:
    """Engines that are built inside pack their linear layers' weights (vLLM's way on CPUs), or keep them live."""
    from vllm import _custom_ops
    from vllm.model_executor.layers import utils

    saved = _custom_ops._supports_onednn, utils.check_cpu_sgl_kernel
    if not on:
        _custom_ops._supports_onednn = False
        utils.check_cpu_sgl_kernel = lambda *_: False
    try:
        yield
    finally:
        _custom_ops._supports_onednn, utils.check_cpu_sgl_kernel = saved


@contextmanager
def engine(model: Path | str, **options: Any) -> Iterator[Any]:
    """A vllm.LLM in this process. It takes 4 to 20 s; share it between tests. Options go to vllm.LLM."""
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    defaults = {"skip_tokenizer_init": True, "enforce_eager": True, "max_model_len": 64, "max_num_seqs": 4}
    llm = LLM(model=str(model), **{**defaults, **options})
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        cleanup_dist_env_and_memory()
        gc.collect()


def model_of(llm: Any) -> torch.nn.Module:
    """The model inside an engine of this process."""
    return worker_of(llm).model_runner.model


def worker_of(llm: Any) -> Any:
    """vLLM's worker object inside an engine of this process."""
    return llm.llm_engine.model_executor.driver_worker.worker


@contextmanager
def as_rank(rank: int, size: int) -> Iterator[None]:
    """Layers that are built inside believe that they are `rank` of `size` tensor-parallel ranks. They can load their
    weights, and not compute together. Needs an engine in this process, whose group is changed meanwhile."""
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    saved = group.world_size, group.rank_in_group
    group.world_size, group.rank_in_group = size, rank
    try:
        yield
    finally:
        group.world_size, group.rank_in_group = saved


def load_unprocessed(llm: Any) -> torch.nn.Module:
    """A second model of the engine's process, loaded by vLLM's own loader and not processed afterwards: its parameters
    hold what load_weights wrote."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    vllm_config = llm.llm_engine.vllm_config
    compilation = vllm_config.compilation_config
    layers = compilation.static_forward_context
    compilation.static_forward_context = {}  # layers refuse to be registered twice
    try:
        with set_current_vllm_config(vllm_config), set_default_torch_dtype(vllm_config.model_config.dtype):
            made = initialize_model(vllm_config)
            get_model_loader(vllm_config.load_config).load_weights(made, vllm_config.model_config)
    finally:
        compilation.static_forward_context = layers
    return made
