"""Checkpoints on disk, swapped through the real core into engines whose workers live in this process."""

from __future__ import annotations

import ctypes
import json
import random
import struct
import tempfile
import threading
import unittest
from pathlib import Path
from typing import Any

from headrace import core
from headrace.errors import Error, InputError, PeerError
from headrace.publish import checkpoint_part, publish

ROWS, COLUMNS = 6, 4


def write_checkpoint(directory: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    header: dict[str, Any] = {}
    data = b""
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def floats(values: list[float]) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


class RealEngine:
    """Implements Engine. Worker i of n holds rows [i * ROWS / n, ...) of "w" and the whole of "norm" in BF16."""

    def __init__(self, name: str, workers: int, shadow: str | None = None) -> None:
        self.name = name
        self.count = workers
        self.shadow = shadow
        self.rows = ROWS // workers
        self.w = [(ctypes.c_float * (self.rows * COLUMNS))() for _ in range(workers)]
        self.norm = [(ctypes.c_uint16 * COLUMNS)() for _ in range(workers)]
        self.receivers: list[core.Receiver] = []
        self.staged: list[int | None] = [None] * workers
        self.carried: list[Any] = [None] * workers
        self.committed = False  # in this session
        self.version: str | None = None
        self.paused = False
        self.left = False
        self.info: dict[str, Any] = {}

    def describe(self) -> list[dict[str, Any]]:
        tensors = [
            {"name": "w", "shape": [ROWS, COLUMNS], "dtype": "F32"},
            {"name": "norm", "shape": [COLUMNS], "dtype": "BF16"},
        ]
        return [
            {"worker": i, "workers": self.count, "tensors": tensors, "unread": [], "shadow": self.shadow} for i in range(self.count)
        ]

    def memory(self, i: int) -> dict[str, core.BufferMemory]:
        return {
            "w": core.BufferMemory(ctypes.addressof(self.w[i]), [self.rows, COLUMNS], [COLUMNS, 1]),
            "norm": core.BufferMemory(ctypes.addressof(self.norm[i]), [COLUMNS], [1]),
        }

    def part(self, i: int) -> dict[str, Any]:
        rank = i + 10 * self.info["engine"]

        def buffer(name: str, dtype: str, shape: list[int], offset: list[int]) -> dict[str, Any]:
            piece = {"tensor": name, "tensor_offset": offset, "shape": shape, "buffer_offset": [0] * len(shape)}
            return {"rank": rank, "buffer": name, "dtype": dtype, "shape": shape, "pieces": [piece]}

        return {
            "tensors": [],
            "source": [],
            "destination": [
                buffer("w", "F32", [self.rows, COLUMNS], [i * self.rows, 0]),
                buffer("norm", "BF16", [COLUMNS], [0]),
            ],
            "topology": {"source": [], "destination": [{"rank": rank, "engine": f"e{self.info['engine']}"}]},
        }

    def each(self, call: Any) -> None:
        errors: list[Error] = []

        def guarded(i: int) -> None:
            try:
                call(i)
            except Error as error:
                errors.append(error)

        threads = [threading.Thread(target=guarded, args=(i,)) for i in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def init(self, info: dict[str, Any]) -> None:
        self.info, self.committed = info, False
        joined: dict[int, core.Receiver] = {}

        def join(i: int) -> None:
            joined[i] = core.Receiver(
                self.part(i),
                self.memory(i),
                coordinator=info["coordinator"],
                token=info["token"],
                job=info["job"],
                engine=info["engine"],
                worker=i,
                shadow=info["shadow"],
                transport=info["transport"],
                connect_timeout=info["join_timeout"],
                carried=self.carried[i],
            )

        self.each(join)
        self.receivers = [joined[i] for i in range(self.count)]
        self.left = False
        if info["shadow"] == "host":
            self.streaming = threading.Thread(target=lambda: self.each(self.stage))
            self.streaming.start()

    def stage(self, i: int) -> None:
        generation = self.receivers[i].next_generation(30.0)
        self.receivers[i].stage(generation, self.memory(i))
        self.staged[i] = generation

    def status(self) -> list[dict[str, Any]]:
        return [
            {
                "worker": i,
                "joined": bool(self.receivers),
                "serving": self.serving(i),
                "inherited": not self.committed,
                "job": self.info["job"] if self.receivers else None,
                "staged": self.staged[i],
                "error": None,
                "waiting_for": "",
                "streamed_bytes": self.receivers[i].stats["streamed_bytes"] if self.receivers else 0,
                "needed_bytes": self.receivers[i].stats["needed_bytes"] if self.receivers else 0,
                "stats": self.receivers[i].stats if self.receivers else {},
            }
            for i in range(self.count)
        ]

    def serving(self, i: int) -> int | None:
        if self.receivers:
            return self.receivers[i].serving
        return self.carried[i]["committed_generation"] if self.carried[i] else 0

    def pause(self, mode: str) -> None:
        self.paused = True

    def start(self) -> None:
        pass

    def update(self, info: dict[str, Any]) -> None:
        assert self.paused
        if self.info["shadow"] == "off":
            self.each(self.stage)
        self.each(lambda i: self.receivers[i].commit(info["generation"]))
        self.committed = True
        self.staged = [None] * self.count

    def finish(self, weight_version: str | None) -> None:
        self.version = weight_version

    def set_version(self, weight_version: str) -> None:
        self.version = weight_version

    def reset_caches(self) -> None:
        pass

    def resume(self) -> None:
        self.paused = False

    def shutdown(self) -> None:
        self.carried = [receiver.carry() for receiver in self.receivers]
        self.each(lambda i: self.receivers[i].close(10.0))
        self.receivers = []
        self.left = True


class PublishTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.directory = Path(folder.name)
        self.seed = random.randrange(2**32)
        self.random = random.Random(self.seed)

    def write(self, **more: Any) -> tuple[list[float], list[int]]:
        """Writes a checkpoint in F32; returns w's values and norm's as BF16 bits, rounded here to nearest even."""
        w = [struct.unpack("<f", struct.pack("<f", self.random.uniform(-9, 9)))[0] for _ in range(ROWS * COLUMNS)]
        norm = [self.random.uniform(-9, 9) for _ in range(COLUMNS)]
        bits = [struct.unpack("<I", struct.pack("<f", value))[0] for value in norm]
        tensors = {"norm": ("F32", [COLUMNS], floats(norm)), "w": ("F32", [ROWS, COLUMNS], floats(w))} | more
        write_checkpoint(self.directory, tensors)
        return w, [(b + 0x7FFF + (b >> 16 & 1)) >> 16 for b in bits]

    def check(self, engine: RealEngine, w: list[float], norm: list[int]) -> None:
        self.assertEqual([v for worker in engine.w for v in worker], w, f"seed {self.seed}")
        for worker in engine.norm:
            self.assertEqual(list(worker), norm, f"seed {self.seed}")

    def test_two_engines_and_two_generations(self) -> None:
        for shadow in ("host", "off"):
            with self.subTest(shadow=shadow):
                engines = [RealEngine("a", 2), RealEngine("b", 3)]
                for generation in (1, 2):
                    wanted = self.write()
                    seen: list[tuple[int, int]] = []
                    report = publish(
                        self.directory,
                        engines,
                        shadow=shadow,
                        timeout=30.0,
                        progress=lambda engine, g, workers: seen.append((engine, g)),
                    )
                    self.assertEqual(report["generation"], generation)
                    self.assertEqual({g for _, g in seen}, {generation})
                    self.assertIn("snapshot_seconds", report["publisher"])
                    for engine, found in zip(engines, report["engines"]):
                        self.check(engine, *wanted)
                        self.assertEqual(engine.version, str(generation))
                        self.assertFalse(engine.paused)
                        self.assertTrue(engine.left)
                        self.assertEqual(found["notes"], [])
                        self.assertGreater(found["workers"][0]["bytes"], 0)

    def test_shadow_and_generation(self) -> None:
        self.write()
        with self.assertRaises(InputError) as raised:
            publish(self.directory, [RealEngine("a", 1, "host"), RealEngine("b", 1)], timeout=30.0)
        self.assertIn("with: host, none", raised.exception.message)
        engine = RealEngine("a", 1, "off")
        report = publish(self.directory, [engine], generation=41, timeout=30.0)
        self.assertEqual((report["generation"], engine.info["shadow"]), (41, "off"))
        with self.assertRaises(InputError) as raised:
            publish(self.directory, [engine], generation=41, timeout=30.0)
        self.assertIn("serve 41 already", raised.exception.message)
        self.assertEqual(publish(self.directory, [engine], timeout=30.0)["generation"], 42)

    def test_refused_before_anything_is_joined(self) -> None:
        extra = ("F32", [1], floats([1.0]))
        cases: list[tuple[dict[str, Any], str, str]] = [
            ({f"x{i:02}": extra for i in range(23)}, "unwanted", "x19 and 3 more"),
            ({"w": ("F32", [COLUMNS, ROWS], bytes(4 * ROWS * COLUMNS))}, "shape_mismatch", '"w"'),
            ({"norm": ("I32", [COLUMNS], bytes(4 * COLUMNS))}, "dtype_mismatch", "has I32, the engines read BF16"),
        ]
        for more, code, said in cases:
            with self.subTest(code=code):
                self.write(**more)
                engine = RealEngine("a", 1, "host")
                with self.assertRaises(InputError) as raised:
                    publish(self.directory, [engine], timeout=30.0)
                self.assertEqual(raised.exception.code, code)
                self.assertIn(said, raised.exception.message)
                self.assertEqual(engine.info, {})
        write_checkpoint(self.directory, {"w": ("F32", [ROWS, COLUMNS], bytes(4 * ROWS * COLUMNS))})
        with self.assertRaises(InputError) as raised:
            publish(self.directory, [RealEngine("a", 1, "host")], timeout=30.0)
        self.assertEqual((raised.exception.code, raised.exception.tensor), ("uncovered", "norm"))
        (self.directory / "model.safetensors").unlink()
        with self.assertRaises(InputError) as raised:
            publish(self.directory, [RealEngine("a", 1, "host")], timeout=30.0)
        self.assertEqual(raised.exception.code, "io")

    def test_an_engine_that_cannot_join_ends_the_wait_of_all(self) -> None:
        self.write()
        engines = [RealEngine("a", 1, "host"), RealEngine("b", 1, "host")]

        def refuse(info: dict[str, Any]) -> None:
            raise InputError("invalid_option", "no such transport")

        engines[1].init = refuse  # type: ignore[method-assign]
        with self.assertRaises(InputError) as raised:
            publish(self.directory, engines, timeout=30.0)
        self.assertIn("engine 1 (b): no such transport", raised.exception.message)

    def test_the_token_is_in_no_error(self) -> None:
        self.write()
        engine = RealEngine("a", 1, "host")
        seen: dict[str, Any] = {}

        def refuse(info: dict[str, Any]) -> None:
            seen.update(info)
            raise PeerError("peer_lost", "gone")

        engine.init = refuse  # type: ignore[method-assign]
        with self.assertRaises(PeerError) as raised:
            publish(self.directory, [engine], timeout=30.0)
        self.assertGreaterEqual(len(seen["token"]), 64)
        self.assertNotIn(seen["token"], repr(raised.exception))


class PartTest(unittest.TestCase):
    def test_conversions(self) -> None:
        kinds = ("F16", "BF16", "F32", "F64", "F8_E4M3", "I32")
        for have in kinds:
            for want in kinds:
                part = {
                    "tensors": [{"name": "t", "shape": [2], "dtype": have}],
                    "source": [{"rank": 0, "buffer": "t", "dtype": have, "shape": [2], "pieces": []}],
                }
                wanted = {"t": {"shape": [2], "dtype": want}}
                with self.subTest(have=have, want=want):
                    if have == want or {have, want} <= {"F16", "BF16", "F32", "F64"}:
                        made = checkpoint_part(part, wanted)
                        self.assertEqual(made["tensors"][0]["dtype"], want)
                        self.assertEqual(made["source"][0]["dtype"], have)
                        self.assertEqual(made["source"][0].get("convert"), None if have == want else "rne")
                    else:
                        with self.assertRaises(InputError) as raised:
                            checkpoint_part(part, wanted)
                        self.assertEqual(raised.exception.code, "dtype_mismatch")


if __name__ == "__main__":
    unittest.main()
