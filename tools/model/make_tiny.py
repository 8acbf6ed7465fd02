#!/usr/bin/env python3
"""Writes a tiny random llama-like checkpoint (BF16) whose shapes can be cut for 1, 3 and 6 ranks: for fast tests.

The hidden size differs from heads x head_dim, and the vocabulary has to be padded for 3 and 6 ranks. The embedding
starts with the patterns that break roundings: zeros of both signs, the least and greatest numbers.
"""

import argparse
import json
import pathlib

import numpy as np

import safetensors_np

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCABULARY, LAYERS = 36, 6, 3, 4, 24, 50, 2
SPECIAL = (0x0000, 0x8000, 0x0001, 0x007F, 0x7F7F, 0xFF7F)


def shapes(untied=False, qk_norm=False, bias=False):
    """{name: shape} of the checkpoint's tensors."""
    result = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}
    if untied:
        result["lm_head.weight"] = (VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        result[prefix + "input_layernorm.weight"] = (HIDDEN,)
        result[prefix + "post_attention_layernorm.weight"] = (HIDDEN,)
        for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            result[f"{prefix}self_attn.{name}_proj.weight"] = (heads * HEAD_DIM, HIDDEN)
            if bias:
                result[f"{prefix}self_attn.{name}_proj.bias"] = (heads * HEAD_DIM,)
        if qk_norm:
            result[prefix + "self_attn.q_norm.weight"] = (HEAD_DIM,)
            result[prefix + "self_attn.k_norm.weight"] = (HEAD_DIM,)
        result[prefix + "self_attn.o_proj.weight"] = (HIDDEN, HEADS * HEAD_DIM)
        result[prefix + "mlp.gate_proj.weight"] = (INTERMEDIATE, HIDDEN)
        result[prefix + "mlp.up_proj.weight"] = (INTERMEDIATE, HIDDEN)
        result[prefix + "mlp.down_proj.weight"] = (HIDDEN, INTERMEDIATE)
    return result


def make(directory, untied=False, qk_norm=False, bias=False, seed=1):
    """Writes model.safetensors and config.json into `directory`; the same arguments give the same bytes."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    tensors = {}
    for name, shape in sorted(shapes(untied, qk_norm, bias).items()):
        values = random.standard_normal(shape, np.float32)
        tensors[name] = ("BF16", (values.view(np.uint32) >> 16).astype("<u2"))
    tensors["model.embed_tokens.weight"][1][0, :len(SPECIAL)] = SPECIAL
    family = "Qwen3" if qk_norm else "Qwen2" if bias else "Llama"
    config = {
        "architectures": [f"{family}ForCausalLM"],
        "attention_bias": bias,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": 64,
        "model_type": family.lower(),
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "tie_word_embeddings": not untied,
        "torch_dtype": "bfloat16",
        "vocab_size": VOCABULARY,
    }
    safetensors_np.write(directory / "model.safetensors", tensors)
    with safetensors_np.atomic_file(directory / "config.json") as file:
        file.write(json.dumps(config, indent=1).encode() + b"\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", metavar="OUT_DIR")
    parser.add_argument("--untied", action="store_true", help="with an lm_head.weight of its own")
    parser.add_argument("--qk-norm", action="store_true", help="with q_norm and k_norm weights")
    parser.add_argument("--bias", action="store_true", help="with biases of q, k and v")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    make(options.directory, options.untied, options.qk_norm, options.bias, options.seed)


if __name__ == "__main__":
    main()
