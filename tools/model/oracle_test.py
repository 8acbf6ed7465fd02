"""The oracle against element-by-element loops over tiny checkpoints, and against damaged files."""

import contextlib
import io
import itertools
import json
import pathlib
import tempfile
import unittest

import numpy as np
import xxhash

import make_tiny
import oracle
import safetensors_np

_MASK = 2**64 - 1
_VOCAB_ROWS = 60


def splitmix64(x):
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def element(scenario, generation, number, e, b):
    """The pattern of one element, in Python integers."""
    high = b ^ ((generation - 1) & 7)
    if scenario == "megatron":
        return high
    z = splitmix64(number * 2**40 + e)
    low = z >> 48
    if z >> 56 < 16:
        low = 0x8000
    if high & 0x7F80 == 0x7F80:
        low = 0
    if low > 0x8000 or (low == 0x8000 and high % 2 == 1):
        high += 1
    return high


def values_of(directory, scenario, generation):
    """{name: rows of columns of patterns} of a generation."""
    tensors = safetensors_np.read(directory / "model.safetensors")
    values = {}
    for number, name in enumerate(sorted(tensors)):
        view = tensors[name][2]
        rows = view.reshape(view.shape[0], -1).tolist()
        values[name] = [[element(scenario, generation, number, r * len(row) + c, b) for c, b in enumerate(row)]
                        for r, row in enumerate(rows)]
    return values


class Loops:
    """What a worker holds, by loops over elements; built from make_tiny's constants, not from the configuration."""

    def __init__(self, values, tp, rank):
        self.values, self.tp, self.rank = values, tp, rank

    def heads_of(self, count):
        return [h for h in range(count) if h * self.tp // count == self.rank] if count >= self.tp else [
            self.rank * count // self.tp]

    def lines_of_heads(self, count):
        return [h * make_tiny.HEAD_DIM + i for h in self.heads_of(count) for i in range(make_tiny.HEAD_DIM)]

    def lines_of_share(self, count):
        return [i for i in range(count) if i * self.tp // count == self.rank]

    def take(self, name, rows=None, columns=None):
        all_rows = self.values[name]
        rows = range(len(all_rows)) if rows is None else rows
        columns = range(len(all_rows[0])) if columns is None else columns
        return [all_rows[r][c] for r in rows for c in columns]

    def buffers(self):
        result = {}
        for name in self.values:
            base, _, last = name.rpartition(".")
            stem, _, kind = base.rpartition(".")
            if kind == "q_proj":
                names = [name.replace("q_proj", f"{letter}_proj") for letter in "qkv"]
                counts = make_tiny.HEADS, make_tiny.KV_HEADS, make_tiny.KV_HEADS
                result[f"{stem}.qkv_proj.{last}"] = sum(
                    (self.take(n, rows=self.lines_of_heads(count)) for n, count in zip(names, counts)), [])
            elif kind == "gate_proj":
                rows = self.lines_of_share(make_tiny.INTERMEDIATE)
                result[f"{stem}.gate_up_proj.{last}"] = (
                    self.take(name, rows=rows) + self.take(name.replace("gate", "up"), rows=rows))
            elif kind == "o_proj":
                result[name] = self.take(name, columns=self.lines_of_heads(make_tiny.HEADS))
            elif kind == "down_proj":
                result[name] = self.take(name, columns=self.lines_of_share(make_tiny.INTERMEDIATE))
            elif kind in ("embed_tokens", "lm_head") or base == "lm_head":
                width = len(self.values[name][0])
                rows = self.lines_of_share(_VOCAB_ROWS)
                result[name] = sum((self.take(name, rows=[r]) if r < make_tiny.VOCABULARY else [0] * width
                                    for r in rows), [])
            elif kind not in ("k_proj", "v_proj", "up_proj"):
                result[name] = self.take(name)
        return result


def run(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = oracle.main([str(argument) for argument in arguments])
    return code, out.getvalue(), err.getvalue()


class OracleTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def make_worker(self, values, tp, rank, engine="e"):
        """Writes a right file with gaps of 0xA5 between the buffers; returns the job's entry."""
        data, entries = bytearray(b"\xa5" * 5), []
        for name, values in Loops(values, tp, rank).buffers().items():
            content = np.array(values, "<u2").tobytes()
            entries.append({"name": name, "offset": len(data), "bytes": len(content)})
            data += content + b"\xa5" * (len(entries) % 4)
        file, index = self.folder / f"{engine}.{tp}.{rank}.bin", self.folder / f"{engine}.{tp}.{rank}.json"
        file.write_bytes(data)
        index.write_text(json.dumps({"buffers": entries}))
        return {"engine": engine, "tp": tp, "rank": rank, "file": str(file), "index": str(index)}

    def make_job(self, model, scenario, generation, workers):
        path = self.folder / "job.json"
        path.write_text(json.dumps({"model": str(model), "scenario": scenario, "generation": generation,
                                    "generations": [1, generation], "vocab_rows": _VOCAB_ROWS, "workers": workers}))
        return path

    def tiny(self, **options):
        directory = self.folder / "model"
        make_tiny.make(directory, **options)
        return directory

    def test_agrees_with_element_loops(self):
        for untied, qk_norm, bias in itertools.product((False, True), repeat=3):
            model = self.tiny(untied=untied, qk_norm=qk_norm, bias=bias)
            for scenario, generation in (("megatron", 1), ("megatron", 2), ("fsdp", 1), ("fsdp", 2), ("fsdp", 12)):
                values = values_of(model, scenario, generation)
                workers = [self.make_worker(values, tp, rank, f"e{tp}") for tp in (1, 3, 6) for rank in range(tp)]
                job = self.make_job(model, scenario, generation, workers)
                with self.subTest(untied=untied, qk_norm=qk_norm, bias=bias, scenario=scenario, generation=generation):
                    code, out, err = run("check", job)
                    self.assertEqual((code, err), (0, ""), out)
                    self.assertEqual(len(out.splitlines()), len(workers))

    def test_digest_is_over_sorted_buffers(self):
        model = self.tiny(untied=True, bias=True)
        for scenario in ("megatron", "fsdp"):
            workers = [{"engine": "e", "tp": 3, "rank": rank} for rank in range(3)]
            code, out, _ = run("digest", self.make_job(model, scenario, 4, workers))
            self.assertEqual(code, 0)
            values = {generation: values_of(model, scenario, generation) for generation in (1, 4)}
            wanted = []
            for rank in range(3):
                for generation in (1, 4):
                    buffers = Loops(values[generation], 3, rank).buffers()
                    content = b"".join(np.array(buffers[name], "<u2").tobytes() for name in sorted(buffers))
                    wanted.append({"engine": "e", "rank": rank, "generation": generation,
                                   "digest": f"{xxhash.xxh3_64_intdigest(content):016x}"})
            self.assertEqual([json.loads(line) for line in out.splitlines()], wanted)

    def test_every_changed_byte_is_caught(self):
        model = self.tiny()
        worker = self.make_worker(values_of(model, "fsdp", 2), 3, 1)
        job = self.make_job(model, "fsdp", 2, [worker])
        path = pathlib.Path(worker["file"])
        sound = path.read_bytes()
        places = json.loads(pathlib.Path(worker["index"]).read_text())["buffers"]
        for at in range(0, len(sound), 97):
            path.write_bytes(sound[:at] + bytes([sound[at] ^ 0x10]) + sound[at + 1:])
            code, out, _ = run("check", job)
            self.assertEqual(code, 1, at)
            owner = [p for p in places if p["offset"] <= at < p["offset"] + p["bytes"]]
            if owner:
                number = (at - owner[0]["offset"]) // 2
                self.assertIn(f"1 elements in 1 of {len(places)} buffers differ", out)
                self.assertIn(f"buffer {owner[0]['name']} element {number} (", out)
            else:
                self.assertIn(f"1 bytes outside of all buffers are not 0xA5, the first at byte {at} ", out)

    def test_difference_names_the_tensor(self):
        model = self.tiny()
        worker = self.make_worker(values_of(model, "megatron", 1), 3, 2)
        places = {p["name"]: p["offset"] for p in json.loads(pathlib.Path(worker["index"]).read_text())["buffers"]}
        path = pathlib.Path(worker["file"])
        sound = path.read_bytes()
        hidden = make_tiny.HIDDEN
        for buffer, number, words in (
                # Rank 2 of 3 has query heads 4 and 5 (rows 16 to 23), then key head 2, then value head 2.
                ("layers.1.self_attn.qkv_proj.weight", 0, "model.layers.1.self_attn.q_proj.weight[16, 0]"),
                ("layers.1.self_attn.qkv_proj.weight", 9 * hidden + 3, "model.layers.1.self_attn.k_proj.weight[9, 3]"),
                ("layers.0.self_attn.qkv_proj.weight", 12 * hidden, "model.layers.0.self_attn.v_proj.weight[8, 0]"),
                ("layers.0.mlp.gate_up_proj.weight", 8 * hidden + 1, "model.layers.0.mlp.up_proj.weight[16, 1]"),
                ("layers.0.mlp.down_proj.weight", 9, "model.layers.0.mlp.down_proj.weight[1, 17]"),
                ("embed_tokens.weight", 10 * hidden, "the zero padding"),
        ):
            at = places["model." + buffer] + 2 * number
            path.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1:])
            code, out, _ = run("check", self.make_job(model, "megatron", 1, [worker]))
            self.assertEqual(code, 1)
            self.assertIn(f"from {words},", out)

    def test_another_generation_or_scenario_is_wrong(self):
        model = self.tiny()
        worker = self.make_worker(values_of(model, "fsdp", 2), 1, 0)
        for scenario, generation in (("fsdp", 1), ("fsdp", 3), ("megatron", 2)):
            self.assertEqual(run("check", self.make_job(model, scenario, generation, [worker]))[0], 1)

    def test_faults_of_the_index(self):
        model = self.tiny()
        worker = self.make_worker(values_of(model, "megatron", 1), 1, 0)
        job = self.make_job(model, "megatron", 1, [worker])
        index = pathlib.Path(worker["index"])
        sound = json.loads(index.read_text())["buffers"]
        embedding = next(p for p in sound if p["name"] == "model.embed_tokens.weight")
        cases = (
            (1, sound[1:], "is not there"),
            (1, sound + [{"name": "x", "offset": 0, "bytes": 2}], "buffer x is unknown"),
            (1, [{**sound[0], "bytes": 2}] + sound[1:], f"has 2 bytes, not {sound[0]['bytes']}"),
            (1, [{**sound[0], "offset": sound[1]["offset"]}] + sound[1:], "overlap at byte"),
            (1, sound + [{**embedding, "name": "lm_head.weight", "offset": 0}], "is tied, but does not lie"),
            (0, sound + [{**embedding, "name": "lm_head.weight"}], "are right"),
            (2, sound + [sound[0]], "stands twice"),
            (2, [{**sound[0], "offset": 1 << 40}] + sound[1:], "is not inside the file"),
            (2, [{"name": "x"}], "without name, offset or bytes"),
        )
        for wanted, buffers, words in cases:
            index.write_text(json.dumps({"buffers": buffers}))
            code, out, err = run("check", job)
            self.assertEqual(code, wanted, words)
            self.assertIn(words, out + err)

    def test_unsound_jobs_are_named(self):
        model = self.tiny()
        worker = {"engine": "e", "tp": 1, "rank": 0, "file": "none", "index": "none"}
        sound = {"model": str(model), "scenario": "fsdp", "generation": 1, "generations": [1], "vocab_rows": 60,
                 "workers": [worker]}
        for change, words in (
                ({"scenario": "other"}, "unknown scenario"), ({"model": "none"}, "none/config.json"),
                ({"generation": 0}, "'generation'"), ({"vocab_rows": 49}, "vocab_rows 49 is less"),
                ({"workers": []}, "'workers'"), ({"workers": [worker, worker]}, "stands twice"),
                ({"workers": [{**worker, "rank": 1}]}, "rank 1"),
                ({"workers": [{**worker, "tp": 4}]}, "query heads: 6 cannot be split evenly over 4"),
                ({"workers": [{**worker, "tp": 2}]}, "key/value heads: 3 cannot be split evenly over 2"),
                ({}, "none")):
            path = self.folder / "job.json"
            path.write_text(json.dumps({**sound, **change}))
            code, _, err = run("check", path)
            self.assertEqual(code, 2, words)
            self.assertIn(words, err)

    def test_special_patterns(self):
        # Published outputs of splitmix64 from the states 0 and 1234567.
        self.assertEqual(oracle.splitmix64(np.array([0, 1234567], np.uint64)).tolist(),
                         [0xE220A8397B1DCDAF, 6457827717110365317])
        # Ties go to even, either way; greatest finite numbers round to infinity; infinities and NaNs stay.
        self.assertEqual(oracle.round_to_bf16(np.array([0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001, 0x7F7F8000,
                                                        0x7F800000, 0xFF810000], np.uint32)).tolist(),
                         [0x3F80, 0x3F82, 0x3F80, 0x3F81, 0x7F80, 0x7F80, 0xFF81])
        patterns = np.array([0x7F80, 0xFF81, 0x7F7F] * 3000, "<u2")
        low = oracle.master_low_bits(5, 7, patterns)
        self.assertFalse(low[0::3].any() or low[1::3].any())
        ties = int((low[2::3] == 0x8000).sum())
        self.assertTrue(120 < ties < 260, ties)  # 3000 / 16 = 188

    def test_chunks_do_not_show(self):
        patterns = np.random.default_rng(3).integers(0, 2**16, (3, 50_000), np.uint16).astype("<u2")
        patterns[(patterns & 0x7F80) == 0x7F80] = 0
        got = oracle.weights_of("fsdp", 2, 9, patterns)
        for row, column in ((0, 0), (1, 15_535), (1, 15_536), (2, 31_071), (2, 31_072), (2, 49_999)):
            self.assertEqual(int(got[row, column]),
                             element("fsdp", 2, 9, row * 50_000 + column, int(patterns[row, column])))


if __name__ == "__main__":
    unittest.main()
