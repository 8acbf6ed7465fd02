#!/usr/bin/env python3
"""The demo's oracle: what each engine worker must hold, by slicing the checkpoint with numpy alone.

It shares nothing with the planner: the layout of the engine's buffers and the weights of each generation are written
here from their definitions.

Usage: oracle.py check JOB.json     compares files of live buffers; exits 1 at a difference, 2 if the job is unsound
       oracle.py digest JOB.json    prints the XXH3-64 of each worker's buffers, a JSON object a line

JOB.json: {"model": DIR, "scenario": "megatron" | "fsdp", "vocab_rows": N,
           "generation": G                                          (check)
           "generations": [G, ...]                                  (digest)
           "workers": [{"engine": NAME, "tp": T, "rank": R,
                        "file": FILE, "index": FILE.json}]}         (file and index: check only)
FILE holds the worker's buffers, FILE.json says where: {"buffers": [{"name", "offset", "bytes"}]}. Bytes of FILE outside
of all buffers must be 0xA5. Where the output head is tied to the embedding, it may be listed at the embedding's place.
The digest runs over the buffers' bytes in the order of their names, a tied head left out.

The buffers of rank r of T (H query heads, K key/value heads, all rows and columns those of the checkpoint's tensors):
  self_attn.qkv_proj   rows of query heads [r*H/T, (r+1)*H/T), then of its key heads, then of its value heads:
                       [r*K/T, (r+1)*K/T) if K >= T, else head r // (T/K); the biases alike
  self_attn.o_proj     columns of the rank's query heads
  mlp.gate_up_proj     the rank's T-th of the gate rows, then of the up rows
  mlp.down_proj        the rank's T-th of the columns
  embed_tokens, lm_head (if not tied)   the rank's T-th of the rows, after padding with zero rows to vocab_rows
  norms                whole

Weights of generation g, from the checkpoint's pattern b, with flip = (g - 1) mod 8:
  megatron  b XOR flip
  fsdp      FP32 masters (b XOR flip) << 16 | low, rounded to nearest even; low: see master_low_bits()
"""

import functools
import json
import pathlib
import sys

import numpy as np
import xxhash

import safetensors_np

_GUARD = 0xA5
# Elements worked on at once: the temporaries stay in the processor's cache.
_CHUNK = 1 << 16


class JobError(ValueError):
    """A job, checkpoint or index that the oracle cannot work with; the message says what is wrong."""


def splitmix64(x):
    """The splitmix64 output for each uint64 state before its increment."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def master_low_bits(number, first, patterns):
    """The low 16 bits of the FP32 masters of elements first, first + 1, ... of tensor `number`.

    The top 16 bits of splitmix64(number * 2^40 + element); where its top 8 bits are below 16, the tie 0x8000; and 0
    under infinities and NaNs, which stay what they are.
    """
    count = len(patterns)
    mixed = splitmix64(np.arange(count, dtype=np.uint64) + np.uint64(number * 2**40 + first))
    low = (mixed >> np.uint64(48)).astype(np.uint32)
    low[low < (16 << 8)] = 0x8000
    low[(patterns & 0x7F80) == 0x7F80] = 0
    return low


def round_to_bf16(masters):
    """FP32 patterns (uint32) -> BF16 patterns, to nearest, ties to even. Infinities and NaNs must have no low bits."""
    return ((masters + np.uint32(0x7FFF) + ((masters >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")


def weights_of(scenario, generation, number, patterns):
    """The patterns of generation `generation` of a tensor: `number` is its place among the sorted names, from 0."""
    flip = np.uint16((generation - 1) & 7)
    if scenario == "megatron":
        return patterns ^ flip
    flat = patterns.reshape(-1)
    result = np.empty_like(flat)
    for first in range(0, flat.size, _CHUNK):
        high = flat[first:first + _CHUNK] ^ flip
        masters = (high.astype(np.uint32) << np.uint32(16)) | master_low_bits(number, first, high)
        result[first:first + _CHUNK] = round_to_bf16(masters)
    return result.reshape(patterns.shape)


class Model:
    """A llama-like checkpoint and its generations."""

    def __init__(self, directory, scenario, vocab_rows):
        directory = pathlib.Path(directory)
        config = _read_json(directory / "config.json")
        self.scenario, self.vocab_rows = scenario, vocab_rows
        try:
            self.layers = config["num_hidden_layers"]
            self.heads = config["num_attention_heads"]
            self.kv_heads = config.get("num_key_value_heads", self.heads)
            self.head_dim = config.get("head_dim") or config["hidden_size"] // self.heads
            tied = config.get("tie_word_embeddings", False)
        except KeyError as error:
            raise JobError(f"{directory / 'config.json'}: no {error}") from None
        self.tensors = safetensors_np.read_checkpoint(directory)
        self.numbers = {name: number for number, name in enumerate(sorted(self.tensors))}
        for name, (dtype, shape, _) in self.tensors.items():
            if dtype != "BF16" and not (dtype == "F16" and scenario == "megatron"):
                raise JobError(f"tensor {name!r} is {dtype}: the scenario {scenario} needs BF16")
            if len(shape) not in (1, 2):
                raise JobError(f"tensor {name!r} has {len(shape)} axes, not one or two")
        self.tied = "lm_head.weight" not in self.tensors
        if not self.tied and tied:
            raise JobError("the configuration ties the output head to the embedding, but there is an 'lm_head.weight'")
        self._generation = functools.lru_cache(maxsize=4)(self._compute_generation)

    def shape(self, name):
        """[rows, columns]; a vector is a column."""
        if name not in self.tensors:
            raise JobError(f"the checkpoint has no tensor {name!r}")
        shape = self.tensors[name][1]
        return shape if len(shape) == 2 else (shape[0], 1)

    def _compute_generation(self, generation, name):
        patterns = self.tensors[name][2].reshape(self.shape(name))
        return weights_of(self.scenario, generation, self.numbers[name], patterns)

    def generation(self, generation, name):
        """The whole tensor in a generation, [rows, columns]; the last few are remembered."""
        return self._generation(generation, name)


def _share(what, count, tp, rank):
    if count % tp:
        raise JobError(f"{what}: {count} cannot be split evenly over {tp} ranks")
    return rank * (count // tp), (rank + 1) * (count // tp)


def buffer_parts(model, tp, rank):
    """{buffer: [(tensor, (first row, end), (first column, end))]} of one worker: the parts lie below each other.

    A tensor of None stands for zeros.
    """
    rows = lambda name: (0, model.shape(name)[0])
    columns = lambda name: (0, model.shape(name)[1])
    whole = lambda name: [(name, rows(name), columns(name))]
    head_rows = lambda heads: (heads[0] * model.head_dim, heads[1] * model.head_dim)

    query = _share("query heads", model.heads, tp, rank)
    if model.kv_heads >= tp:
        key = _share("key/value heads", model.kv_heads, tp, rank)
    elif tp % model.kv_heads == 0:
        key = (rank // (tp // model.kv_heads), rank // (tp // model.kv_heads) + 1)
    else:
        raise JobError(f"{model.kv_heads} key/value heads cannot be replicated evenly on {tp} ranks")
    parts = {"model.norm.weight": whole("model.norm.weight")}
    for layer in range(model.layers):
        prefix = f"model.layers.{layer}."
        for norm in ("input_layernorm.weight", "post_attention_layernorm.weight"):
            parts[prefix + norm] = whole(prefix + norm)
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        for norm in ("q_norm.weight", "k_norm.weight"):
            if attention + norm in model.tensors:
                parts[attention + norm] = whole(attention + norm)
        for kind in ("weight", "bias"):
            names = [f"{attention}{which}_proj.{kind}" for which in "qkv"]
            if kind == "weight" or any(name in model.tensors for name in names):
                for name, heads in zip(names, (model.heads, model.kv_heads, model.kv_heads)):
                    if model.shape(name)[0] != heads * model.head_dim:
                        raise JobError(f"tensor {name!r} has {model.shape(name)[0]} rows, "
                                       f"not {heads} heads of {model.head_dim}")
                parts[f"{attention}qkv_proj.{kind}"] = [
                    (name, head_rows(heads), columns(name)) for name, heads in zip(names, (query, key, key))]
        output = attention + "o_proj.weight"
        if model.shape(output)[1] != model.heads * model.head_dim:
            raise JobError(f"tensor {output!r} has {model.shape(output)[1]} columns, "
                           f"not {model.heads} heads of {model.head_dim}")
        parts[output] = [(output, rows(output), head_rows(query))]
        parts[mlp + "gate_up_proj.weight"] = [
            (name, _share(f"rows of {name}", model.shape(name)[0], tp, rank), columns(name))
            for name in (mlp + "gate_proj.weight", mlp + "up_proj.weight")]
        down = mlp + "down_proj.weight"
        parts[down] = [(down, rows(down), _share(f"columns of {down}", model.shape(down)[1], tp, rank))]
    for name in ("model.embed_tokens.weight",) + (() if model.tied else ("lm_head.weight",)):
        vocabulary = model.shape(name)[0]
        if model.vocab_rows < vocabulary:
            raise JobError(f"vocab_rows {model.vocab_rows} is less than the {vocabulary} rows of {name!r}")
        first, end = _share("vocab_rows", model.vocab_rows, tp, rank)
        real = min(max(vocabulary, first), end)
        parts[name] = [(name, (first, real), columns(name)), (None, (0, end - real), columns(name))]
        parts[name] = [part for part in parts[name] if part[1][0] < part[1][1]]
    unused = set(model.tensors) - {part[0] for pieces in parts.values() for part in pieces}
    # A rank may hold none of the real vocabulary.
    unused -= {"model.embed_tokens.weight", "lm_head.weight"}
    if unused:
        raise JobError(f"no rule says where tensor {min(unused)!r} goes ({len(unused)} such tensors)")
    return parts


def buffer_values(model, generation, parts):
    """What a buffer of these parts holds: [rows, columns] patterns."""
    arrays = []
    for tensor, (row, row_end), (column, column_end) in parts:
        if tensor is None:
            arrays.append(np.zeros((row_end - row, column_end - column), "<u2"))
        else:
            arrays.append(model.generation(generation, tensor)[row:row_end, column:column_end])
    return np.ascontiguousarray(arrays[0]) if len(arrays) == 1 else np.concatenate(arrays)


def locate(parts, element):
    """Words for the tensor element that lies at flat index `element` of a buffer."""
    width = parts[0][2][1] - parts[0][2][0]
    row, column = divmod(element, width)
    for tensor, (first, end), (left, _) in parts:
        if row < end - first:
            return "the zero padding" if tensor is None else f"{tensor}[{first + row}, {left + column}]"
        row -= end - first
    raise AssertionError("element outside of the buffer")


class WorkerFile:
    """One worker's file of live buffers and its index."""

    def __init__(self, label, path, index_path):
        self.label = label
        entries = _read_json(index_path)
        if not isinstance(entries, dict) or not isinstance(entries.get("buffers"), list):
            raise JobError(f"{index_path}: not an object with a list 'buffers'")
        size = pathlib.Path(path).stat().st_size
        self.data = np.memmap(path, np.uint8, "r") if size else np.empty(0, np.uint8)
        self.places = {}
        for entry in entries["buffers"]:
            if not isinstance(entry, dict) or not {"name", "offset", "bytes"} <= set(entry):
                raise JobError(f"{index_path}: an entry without name, offset or bytes: {entry!r}")
            name, offset, count = entry["name"], entry["offset"], entry["bytes"]
            if name in self.places:
                raise JobError(f"{index_path}: buffer {name!r} stands twice")
            if not (isinstance(offset, int) and isinstance(count, int) and 0 <= offset <= offset + count <= size):
                raise JobError(f"{index_path}: buffer {name!r} at {offset}, {count} bytes, "
                               f"is not inside the file of {size} bytes")
            self.places[name] = (offset, count)

    def faults_of_places(self, model, parts):
        """Sentences about buffers that are missing, unknown, of a wrong size or overlapping."""
        places = dict(self.places)
        embedding = places.get("model.embed_tokens.weight")
        if model.tied and "lm_head.weight" in places and places.pop("lm_head.weight") != embedding:
            return ["lm_head.weight is tied, but does not lie where model.embed_tokens.weight does"]
        faults = [f"buffer {name} is not there" for name in parts if name not in places]
        for name, (offset, count) in places.items():
            if name not in parts:
                faults.append(f"buffer {name} is unknown")
                continue
            elements = sum((row[1] - row[0]) * (column[1] - column[0]) for _, row, column in parts[name])
            if count != 2 * elements:
                faults.append(f"buffer {name} has {count} bytes, not {2 * elements}")
        ordered = sorted((offset, offset + count, name) for name, (offset, count) in places.items())
        for (_, end, name), (offset, _, other) in zip(ordered, ordered[1:]):
            if offset < end:
                faults.append(f"buffers {name} and {other} overlap at byte {offset}")
        return faults

    def guard_fault(self):
        """A sentence about the bytes outside of all buffers, or None."""
        at, first, count = 0, None, 0
        for offset, end in sorted((o, o + c) for o, c in self.places.values()) + [(len(self.data), len(self.data))]:
            wrong = np.flatnonzero(self.data[at:offset] != _GUARD)
            if wrong.size and first is None:
                first = at + int(wrong[0])
            count += wrong.size
            at = max(at, end)
        if count == 0:
            return None
        return f"{count} bytes outside of all buffers are not 0xA5, the first at byte {first} ({self.data[first]:#04x})"


def check(job):
    """Compares every worker of the job; prints a line for each and returns whether all were right."""
    model = _model(job)
    generation = _natural(job, "generation")
    workers = []
    for worker in _workers(job):
        label = f"{worker['engine']} rank {worker['rank']} of {worker['tp']}"
        parts = buffer_parts(model, worker["tp"], worker["rank"])
        file = WorkerFile(label, _text(worker, "file"), _text(worker, "index"))
        workers.append((file, parts, file.faults_of_places(model, parts)))
    first, wrong_elements, wrong_buffers = {}, {}, {}
    # Buffer by buffer over all workers: each tensor's generation is computed once.
    for name in sorted({name for _, parts, _ in workers for name in parts}):
        for file, parts, faults in workers:
            if faults or name not in parts:
                continue
            wanted = buffer_values(model, generation, parts[name]).reshape(-1)
            offset, count = file.places[name]
            found = file.data[offset:offset + count].view("<u2")
            differs = np.flatnonzero(found != wanted)
            if differs.size == 0:
                continue
            at = int(differs[0])
            first.setdefault(file.label, f"buffer {name} element {at} (byte {offset + 2 * at} of the file), from "
                             f"{locate(parts[name], at)}, is {found[at]:#06x}, not {wanted[at]:#06x}")
            wrong_elements[file.label] = wrong_elements.get(file.label, 0) + differs.size
            wrong_buffers[file.label] = wrong_buffers.get(file.label, 0) + 1
    right = True
    for file, parts, faults in workers:
        if not faults:
            if file.label in first:
                faults.append(f"{wrong_elements[file.label]} elements in {wrong_buffers[file.label]} of {len(parts)} "
                              f"buffers differ; the first: {first[file.label]}")
            faults += filter(None, [file.guard_fault()])
        if faults:
            right = False
            more = f" (and {len(faults) - 1} more faults)" if len(faults) > 1 else ""
            print(f"{file.label}: generation {generation}: WRONG: {faults[0]}{more}")
        else:
            used = sum(file.places[name][1] for name in parts)
            print(f"{file.label}: generation {generation}: {used} bytes in {len(parts)} buffers are right, "
                  f"{len(file.data) - used} bytes between them untouched")
    return right


def digest(job):
    """Prints {"engine", "rank", "generation", "digest"} for each worker and generation of the job."""
    model = _model(job)
    generations = job.get("generations")
    if not isinstance(generations, list) or not all(isinstance(g, int) and g >= 1 for g in generations):
        raise JobError("'generations' must be a list of numbers from 1")
    runs = []
    for worker in _workers(job):
        parts = buffer_parts(model, worker["tp"], worker["rank"])
        runs += [(worker, parts, generation, xxhash.xxh3_64()) for generation in generations]
    # Sorted by generation, so that each tensor's generation is computed once for all workers.
    by_generation = sorted(runs, key=lambda run: run[2])
    for name in sorted({name for _, parts, _, _ in runs for name in parts}):
        for _, parts, generation, state in by_generation:
            if name in parts:
                state.update(buffer_values(model, generation, parts[name]))
    for worker, _, generation, state in runs:
        print(json.dumps({"engine": worker["engine"], "rank": worker["rank"], "generation": generation,
                          "digest": state.hexdigest()}))
    return True


def _read_json(path):
    try:
        return json.loads(pathlib.Path(path).read_text())
    except ValueError as error:
        raise JobError(f"{path}: not JSON: {error}") from None


def _text(value, key):
    if not isinstance(value.get(key), str):
        raise JobError(f"{key!r} must be a string, not {value.get(key)!r}")
    return value[key]


def _natural(value, key):
    number = value.get(key)
    if not isinstance(number, int) or number < 1:
        raise JobError(f"{key!r} must be a number from 1, not {number!r}")
    return number


def _model(job):
    if _text(job, "scenario") not in ("megatron", "fsdp"):
        raise JobError(f"unknown scenario {job['scenario']!r}: megatron or fsdp")
    return Model(_text(job, "model"), job["scenario"], _natural(job, "vocab_rows"))


def _workers(job):
    workers = job.get("workers")
    if not isinstance(workers, list) or not workers or not all(isinstance(worker, dict) for worker in workers):
        raise JobError("'workers' must be a list of at least one object")
    seen = set()
    for worker in workers:
        _text(worker, "engine"), _natural(worker, "tp")
        if not isinstance(worker.get("rank"), int) or not 0 <= worker["rank"] < worker["tp"]:
            raise JobError(f"rank {worker.get('rank')!r} of engine {worker['engine']!r} is not below its tp")
        if (worker["engine"], worker["rank"]) in seen:
            raise JobError(f"rank {worker['rank']} of engine {worker['engine']!r} stands twice")
        seen.add((worker["engine"], worker["rank"]))
    return workers


def main(arguments):
    commands = {"check": check, "digest": digest}
    if len(arguments) != 2 or arguments[0] not in commands:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        job = _read_json(arguments[1])
        if not isinstance(job, dict):
            raise JobError(f"{arguments[1]}: not a JSON object")
        return 0 if commands[arguments[0]](job) else 1
    except (JobError, safetensors_np.SafetensorsError, OSError) as error:
        print(f"oracle: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
