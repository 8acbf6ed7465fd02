"""Reads and writes safetensors files with numpy alone, strictly.

The format (https://huggingface.co/docs/safetensors): 8 bytes little-endian header length, a JSON header
{name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {...}}, then the data the offsets count in.
"""

import json
import math
import os
import pathlib

import numpy as np

# Raw patterns only: numpy has no BF16, and the users of this file compare bits.
_PATTERNS = {
    "BOOL": "u1", "U8": "u1", "I8": "u1", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1",
    "U16": "<u2", "I16": "<u2", "F16": "<u2", "BF16": "<u2",
    "U32": "<u4", "I32": "<u4", "F32": "<u4",
    "U64": "<u8", "I64": "<u8", "F64": "<u8",
}
_MAX_HEADER_BYTES = 100_000_000


class SafetensorsError(ValueError):
    """A file that is not a sound safetensors file; the message names the file, the tensor and the fault."""


def _unique(pairs):
    result = {}
    for key, value in pairs:
        if key in result:
            raise SafetensorsError(f"{key!r} stands twice")
        result[key] = value
    return result


def _natural(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_entry(where, name, entry):
    """Returns (dtype, shape, begin, end) of one header entry."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise SafetensorsError(f"{where}: tensor {name!r} must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _PATTERNS:
        raise SafetensorsError(f"{where}: tensor {name!r} has the unknown dtype {dtype!r}")
    if not isinstance(shape, list) or not all(_natural(n) for n in shape):
        raise SafetensorsError(f"{where}: tensor {name!r} has a bad shape {shape!r}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_natural(n) for n in offsets):
        raise SafetensorsError(f"{where}: tensor {name!r} has bad data_offsets {offsets!r}")
    begin, end = offsets
    needed = math.prod(shape) * np.dtype(_PATTERNS[dtype]).itemsize
    if end - begin != needed:
        raise SafetensorsError(f"{where}: tensor {name!r} ({dtype} {shape}) needs {needed} bytes, "
                               f"but its data_offsets {offsets} hold {end - begin}")
    return dtype, tuple(shape), begin, end


def read(path):
    """Returns {name: (dtype, shape, view)}: views are read-only, memory-mapped unsigned integers of the tensor's shape.

    Every byte of the data must belong to exactly one tensor. Raises SafetensorsError, or OSError if unreadable.
    """
    where = str(path)
    size = os.path.getsize(path)
    if size < 8:
        raise SafetensorsError(f"{where}: truncated: {size} bytes, not even the 8 of the header length")
    with open(path, "rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if header_bytes > _MAX_HEADER_BYTES:
            raise SafetensorsError(f"{where}: header length {header_bytes} is over the limit of {_MAX_HEADER_BYTES}")
        if header_bytes > size - 8:
            raise SafetensorsError(f"{where}: truncated: the header needs {header_bytes} bytes, {size - 8} are there")
        text = file.read(header_bytes)
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except SafetensorsError as error:
        raise SafetensorsError(f"{where}: header: {error}") from None
    except (ValueError, RecursionError) as error:
        raise SafetensorsError(f"{where}: the header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise SafetensorsError(f"{where}: the header is not a JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise SafetensorsError(f"{where}: __metadata__ must map strings to strings")

    entries = {name: _check_entry(where, name, entry) for name, entry in header.items()}
    at, previous = 0, None
    for name, (_, _, begin, end) in sorted(entries.items(), key=lambda item: item[1][2:]):
        if begin < at:
            raise SafetensorsError(f"{where}: tensors {previous!r} and {name!r} overlap at data byte {begin}")
        if begin > at:
            raise SafetensorsError(f"{where}: data bytes {at} to {begin}, before tensor {name!r}, belong to no tensor")
        at, previous = end, name
    data_bytes = size - 8 - header_bytes
    if at > data_bytes:
        raise SafetensorsError(f"{where}: truncated: tensor {previous!r} ends at data byte {at}, "
                               f"{data_bytes} are there")
    if at < data_bytes:
        raise SafetensorsError(f"{where}: {data_bytes - at} bytes after the last tensor belong to no tensor")

    if data_bytes == 0:
        data = np.empty(0, np.uint8)
    else:
        data = np.memmap(path, np.uint8, "r", offset=8 + header_bytes, shape=(data_bytes,))
    return {name: (dtype, shape, data[begin:end].view(_PATTERNS[dtype]).reshape(shape))
            for name, (dtype, shape, begin, end) in entries.items()}


def read_checkpoint(directory):
    """Like read() for a checkpoint directory: model.safetensors, or the files of model.safetensors.index.json."""
    directory = pathlib.Path(directory)
    index_path = directory / "model.safetensors.index.json"
    if not index_path.exists():
        return read(directory / "model.safetensors")
    try:
        weight_map = json.loads(index_path.read_text())["weight_map"]
        names = sorted(set(weight_map.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SafetensorsError(f"{index_path}: no weight_map of strings: {error!r}") from None
    result = {}
    for file_name in names:
        if pathlib.PurePath(file_name).name != file_name:
            raise SafetensorsError(f"{index_path}: {file_name!r} is not a file name in this directory")
        for name, tensor in read(directory / file_name).items():
            if weight_map.get(name) != file_name:
                raise SafetensorsError(f"{directory / file_name}: holds tensor {name!r}, which the index places in "
                                       f"{weight_map.get(name)!r}")
            result[name] = tensor
    for name in weight_map:
        if name not in result:
            raise SafetensorsError(f"{directory / weight_map[name]}: tensor {name!r} of the index is not there")
    return result


def write(path, tensors):
    """Writes {name: (dtype, array of patterns)} sorted by name: the same input gives the same bytes.

    Goes through a temporary file beside `path` and a rename: whoever reads `path` sees all of it or nothing.
    """
    header, at = {}, 0
    for name in sorted(tensors):
        dtype, array = tensors[name]
        if array.dtype != np.dtype(_PATTERNS[dtype]):
            raise ValueError(f"{name}: {dtype} needs {_PATTERNS[dtype]} patterns, not {array.dtype}")
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    # Padded with spaces, so that the data starts aligned.
    text += b" " * (-len(text) % 8)
    with atomic_file(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in sorted(tensors):
            file.write(np.ascontiguousarray(tensors[name][1]).data)


class atomic_file:
    """A binary file to write that appears under `path` only when the `with` block ends without an exception."""

    def __init__(self, path):
        self._path = pathlib.Path(path)
        self._temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")

    def __enter__(self):
        self._file = open(self._temporary, "wb")
        return self._file

    def __exit__(self, kind, value, trace):
        self._file.close()
        if kind is None:
            os.replace(self._temporary, self._path)
        else:
            self._temporary.unlink()
