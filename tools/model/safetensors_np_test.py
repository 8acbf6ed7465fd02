"""Sound files read as they were built by hand; every kind of damage is named."""

import json
import pathlib
import tempfile
import unittest

import numpy as np

import safetensors_np


def build(header, data, pad=0):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * pad
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


SOUND = {"b": entry("U8", [2], 0, 2), "a": entry("BF16", [1, 2], 2, 6)}


class SafetensorsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.path = self.folder / "model.safetensors"

    def assert_refused(self, content, words):
        self.path.write_bytes(content)
        with self.assertRaisesRegex(safetensors_np.SafetensorsError, words) as caught:
            safetensors_np.read(self.path)
        self.assertIn(str(self.path), str(caught.exception))

    def test_reads_by_the_format(self):
        for pad in (0, 1, 3):  # The data may start at any address.
            self.path.write_bytes(build({**SOUND, "__metadata__": {"format": "pt"}}, bytes([7, 8, 1, 2, 3, 4]), pad))
            tensors = safetensors_np.read(self.path)
            self.assertEqual(set(tensors), {"a", "b"})
            dtype, shape, view = tensors["a"]
            self.assertEqual((dtype, shape, view.tolist()), ("BF16", (1, 2), [[0x0201, 0x0403]]))
            self.assertEqual(tensors["b"][2].tolist(), [7, 8])
            with self.assertRaises(ValueError):
                view[0, 0] = 1

    def test_empty_tensors_and_scalars(self):
        self.path.write_bytes(build({"none": entry("F32", [0, 3], 0, 0), "one": entry("F32", [], 0, 4)}, b"\1\0\0\0"))
        tensors = safetensors_np.read(self.path)
        self.assertEqual(tensors["none"][2].shape, (0, 3))
        self.assertEqual(int(tensors["one"][2]), 1)
        self.path.write_bytes(build({}, b""))
        self.assertEqual(safetensors_np.read(self.path), {})

    def test_every_truncation_is_refused(self):
        sound = build(SOUND, bytes(6))
        for size in range(len(sound)):
            self.assert_refused(sound[:size], "truncated")

    def test_damage_is_named(self):
        for header, data, words in (
                (b"{", b"", "not JSON"),
                (b"\xff", b"", "not JSON"),
                (b"[]", b"", "not a JSON object"),
                (b'{"a": 1, "a": 2}', b"", "'a' stands twice"),
                ({"a": 3}, b"", "'a' must have exactly"),
                ({"a": {**entry("U8", [1], 0, 1), "more": 1}}, b"1", "'a' must have exactly"),
                ({"a": entry("BF17", [1], 0, 2)}, b"12", "unknown dtype 'BF17'"),
                ({"a": entry("U8", [-1], 0, 1)}, b"1", "bad shape"),
                ({"a": entry("U8", [True], 0, 1)}, b"1", "bad shape"),
                ({"a": entry("U8", [1], -1, 0)}, b"", "bad data_offsets"),
                ({"a": entry("U8", [1], 1, 0)}, b"", "needs 1 bytes"),
                ({"a": entry("BF16", [2], 0, 3)}, b"123", "needs 4 bytes, .* hold 3"),
                ({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, b"123", "'a' and 'b' overlap at data"),
                ({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 0, 2)}, b"12", "overlap at data byte 0"),
                ({"a": entry("U8", [1], 0, 1), "b": entry("U8", [1], 2, 3)}, b"123", "bytes 1 to 2, before tensor 'b'"),
                ({"a": entry("U8", [1], 0, 1)}, b"12", "1 bytes after the last tensor"),
                ({"__metadata__": {"a": 1}}, b"", "__metadata__ must map"),
        ):
            with self.subTest(words):
                self.assert_refused(build(header, data), words)
        self.assert_refused((1 << 40).to_bytes(8, "little"), "over the limit")

    def test_writes_the_same_bytes_sorted_and_padded(self):
        a, b = np.array([[1, 2]], "<u2"), np.array([7, 8, 9], "u1")
        safetensors_np.write(self.path, {"b": ("U8", b), "a": ("BF16", a)})
        content = self.path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        self.assertEqual(size % 8, 0)
        self.assertEqual(json.loads(content[8:8 + size]),
                         {"a": entry("BF16", [1, 2], 0, 4), "b": entry("U8", [3], 4, 7)})
        self.assertEqual(content[8 + size:], bytes([1, 0, 2, 0, 7, 8, 9]))
        safetensors_np.write(self.path, {"a": ("BF16", a), "b": ("U8", b)})
        self.assertEqual(self.path.read_bytes(), content)
        self.assertEqual([p.name for p in self.folder.iterdir()], ["model.safetensors"])

    def test_a_failed_write_leaves_the_old_file(self):
        self.path.write_bytes(b"old")
        with self.assertRaises(ZeroDivisionError):
            with safetensors_np.atomic_file(self.path) as file:
                file.write(b"new")
                1 / 0
        self.assertEqual(self.path.read_bytes(), b"old")
        self.assertEqual([p.name for p in self.folder.iterdir()], ["model.safetensors"])

    def test_shards_by_their_index(self):
        (self.folder / "one").write_bytes(build({"a": entry("U8", [1], 0, 1)}, b"1"))
        (self.folder / "two").write_bytes(build({"b": entry("U8", [1], 0, 1)}, b"2"))
        index = self.folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": {"a": "one", "b": "two"}}))
        self.assertEqual(set(safetensors_np.read_checkpoint(self.folder)), {"a", "b"})
        for weight_map, words in (({"a": "one", "c": "two"}, "'b', which the index places in None"),
                                  ({"a": "one", "b": "two", "c": "two"}, "'c' of the index is not there"),
                                  ({"a": "../one"}, "not a file name"), (3, "no weight_map")):
            index.write_text(json.dumps({"weight_map": weight_map}))
            with self.assertRaisesRegex(safetensors_np.SafetensorsError, words):
                safetensors_np.read_checkpoint(self.folder)


if __name__ == "__main__":
    unittest.main()
