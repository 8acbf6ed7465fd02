"""A llama forward pass in numpy, float32 from BF16 weights, and a byte-level BPE: enough to see a model write."""

import json
import pathlib
import re

import numpy as np

import safetensors_np

# GPT-2's split with single digits, in what `re` has in place of Unicode classes.
_WORDS = re.compile(r"'(?:[sdmt]|ll|ve|re)|\d| ?[^\W\d_]+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")


def _byte_letters():
    """GPT-2's printable letter for each byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(other)}}


class Tokenizer:
    """Encodes and decodes text by the vocabulary and merges of a tokenizer.json."""

    def __init__(self, path):
        model = json.loads(pathlib.Path(path).read_text())["model"]
        self._ids = model["vocab"]
        self._tokens = {i: token for token, i in self._ids.items()}
        self._ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(model["merges"])}
        self._letters = _byte_letters()
        self._bytes = {letter: byte for byte, letter in self._letters.items()}

    def encode(self, text):
        ids = []
        for word in _WORDS.findall(text):
            parts = [self._letters[byte] for byte in word.encode()]
            while len(parts) > 1:
                pairs = list(zip(parts, parts[1:]))
                at = min(range(len(pairs)), key=lambda i: self._ranks.get(pairs[i], len(self._ranks)))
                if pairs[at] not in self._ranks:
                    break
                parts[at:at + 2] = [parts[at] + parts[at + 1]]
            ids += [self._ids[part] for part in parts]
        return ids

    def decode(self, ids):
        letters = "".join(self._tokens[i] for i in ids)
        return bytes(self._bytes[letter] for letter in letters).decode("utf-8", "replace")


def load(directory):
    """Returns (config, {name: float32 array}) of a BF16 checkpoint."""
    directory = pathlib.Path(directory)
    config = json.loads((directory / "config.json").read_text())
    weights = {}
    for name, (dtype, _, bits) in safetensors_np.read_checkpoint(directory).items():
        if dtype != "BF16":
            raise ValueError(f"{name}: {dtype}, not BF16")
        weights[name] = (bits.astype(np.uint32) << 16).view(np.float32)
    return config, weights


def _norm(x, weight, epsilon):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight


def _rotate(x, cos, sin):
    """x: [tokens, heads, head_dim]; dimension i turns with i + head_dim/2."""
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def logits(config, weights, ids):
    """The scores of the token that follows `ids`: [vocab_size]."""
    count, epsilon = len(ids), config["rms_norm_eps"]
    heads, kv_heads, head_dim = (config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    half = head_dim // 2
    angles = np.arange(count)[:, None] / config["rope_theta"] ** (np.arange(half) / half)
    cos, sin = (f(angles).astype(np.float32)[:, None, :] for f in (np.cos, np.sin))
    future = np.triu(np.full((count, count), -np.inf, np.float32), 1)
    embedding = weights["model.embed_tokens.weight"]
    x = embedding[ids]
    for layer in range(config["num_hidden_layers"]):
        weight = {name.removeprefix(f"model.layers.{layer}."): w for name, w in weights.items()
                  if name.startswith(f"model.layers.{layer}.")}
        y = _norm(x, weight["input_layernorm.weight"], epsilon)
        q, k, v = (y @ weight[f"self_attn.{name}_proj.weight"].T for name in "qkv")
        q = _rotate(q.reshape(count, heads, head_dim), cos, sin)
        k = np.repeat(_rotate(k.reshape(count, kv_heads, head_dim), cos, sin), heads // kv_heads, axis=1)
        v = np.repeat(v.reshape(count, kv_heads, head_dim), heads // kv_heads, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(head_dim).astype(np.float32) + future
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        y = np.einsum("hqk,khd->qhd", scores, v).reshape(count, heads * head_dim)
        x = x + y @ weight["self_attn.o_proj.weight"].T
        y = _norm(x, weight["post_attention_layernorm.weight"], epsilon)
        gate, up = (y @ weight[f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weight["mlp.down_proj.weight"].T
    return weights.get("lm_head.weight", embedding) @ _norm(x[-1], weights["model.norm.weight"], epsilon)


def generate(config, weights, ids, count):
    """The `count` likeliest tokens after `ids`, one by one."""
    ids = list(ids)
    for _ in range(count):
        ids.append(int(np.argmax(logits(config, weights, ids))))
    return ids[-count:]
