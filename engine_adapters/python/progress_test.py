from __future__ import annotations

import io
import unittest
from typing import Any

from headrace.progress import ProgressBar, human_bytes, human_seconds, table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def worker(streamed: int, needed: int, staged: int | None = None) -> dict[str, Any]:
    return {"streamed_bytes": streamed, "needed_bytes": needed, "staged": staged, "serving": 0}


class FiguresTest(unittest.TestCase):
    def test_bytes(self) -> None:
        cases = {0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 3 << 30: "3.0 GiB", 1 << 60: "1024.0 PiB"}
        for count, said in cases.items():
            self.assertEqual(human_bytes(count), said)

    def test_seconds(self) -> None:
        for seconds, said in {8e-6: "8 us", 0.0123: "12.3 ms", 1.2: "1.20 s"}.items():
            self.assertEqual(human_seconds(seconds), said)

    def test_table(self) -> None:
        wanted = "  name     bytes\n  a            1\n  longer      22"
        self.assertEqual(table([["name", "bytes"], ["a", "1"], ["longer", "22"]]), wanted)


class ProgressTest(unittest.TestCase):
    def test_lines(self) -> None:
        out = io.StringIO()
        bar = ProgressBar(out)
        for streamed in range(0, 101):
            bar.update(0, 7, [worker(streamed, 100), worker(0, 100)])
        bar.update(0, 7, [worker(0, 100, staged=7), worker(60, 100)])
        bar.update(0, 7, [worker(0, 100, staged=7), worker(10, 100)])  # never goes back
        bar.close()
        lines = out.getvalue().splitlines()
        self.assertEqual(lines[0], "generation 7    0%  0 B of 200 B")
        self.assertEqual(lines[-1], "generation 7   80%  160 B of 200 B")
        self.assertEqual(len(lines), 7)

    def test_terminal(self) -> None:
        out = Terminal()
        bar = ProgressBar(out)
        bar.update(0, 1, [worker(0, 0)])
        self.assertEqual(out.getvalue(), "")
        bar.update(0, 1, [worker(512, 1024)])
        bar.update(1, 1, [worker(512, 1024, staged=1)])
        bar.close()
        first, second = out.getvalue().rstrip("\n").split("\r\x1b[K")[1:]
        self.assertEqual(first, "  " + "█" * 12 + " " * 12 + "  generation 1   50%  512 B of 1.0 KiB")
        self.assertEqual(second, "  " + "█" * 18 + " " * 6 + "  generation 1   75%  1.5 KiB of 2.0 KiB")
        self.assertTrue(out.getvalue().endswith("\n"))


if __name__ == "__main__":
    unittest.main()
