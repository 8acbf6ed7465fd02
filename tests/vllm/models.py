"""Models for tests against real servers, and how their weights change from generation to generation."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from headrace.vllm import testing
from safetensors import safe_open
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parents[2]
SMOLLM2 = ROOT / ".models/smollm2"


def make_qwen3(directory: Path, tied: bool) -> Path:
    """A tiny random Qwen3 (grouped queries) with a tokenizer of one word per token id."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    config = {**testing.QWEN3, "tie_word_embeddings": tied, "max_position_embeddings": 2048}
    testing.make_model(directory, config, seed=7)
    words = {f"w{i}": i for i in range(config["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0", "eos_token": "w2"})
    )
    return directory


def scale(name: str, variant: int) -> float:
    """What variant `variant` of the weights multiplies tensor `name` by; variant 0 is the checkpoint."""
    return 1.0 if variant == 0 else random.Random(f"{name} {variant}").uniform(0.7, 1.3)


def write_variant(source: Path, variant: int, directory: Path) -> Path:
    """The checkpoint that a fresh engine loads for a variant, in FP32."""
    directory.mkdir(parents=True, exist_ok=True)
    with safe_open(source / "model.safetensors", "pt") as checkpoint:
        tensors = {n: checkpoint.get_tensor(n).float() * scale(n, variant) for n in checkpoint.keys()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "torch_dtype": "float32"}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (source / name).exists():
            (directory / name).write_bytes((source / name).read_bytes())
    return directory


@torch.no_grad()
def set_variant(model: torch.nn.Module, base: dict[str, torch.Tensor], variant: int) -> None:
    """Sets each rank's own shards; `base` holds their first values. The products round as write_variant's do."""
    for name, parameter in model.named_parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        local.copy_(base[name] * scale(name, variant))
