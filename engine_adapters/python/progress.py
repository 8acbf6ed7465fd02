"""Figures for people: bytes, seconds, tables, and how far a generation has come."""

from __future__ import annotations

import threading
from typing import Any, Sequence, TextIO

_BAR_CELLS = 24
_EIGHTHS = " ▏▎▍▌▋▊▉"
_LINES = 10  # at most so many steps where the stream is no terminal


def human_bytes(count: float) -> str:
    """"12 B", "1.5 GiB"."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    value, unit = float(count), 0
    while value >= 1024 and unit + 1 < len(units):
        value, unit = value / 1024, unit + 1
    return f"{int(count)} B" if unit == 0 else f"{value:.1f} {units[unit]}"


def human_seconds(seconds: float) -> str:
    """"8 us", "12.3 ms", "1.20 s"."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.2f} s"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns under a heading, `rows[0]`; columns that hold figures alone are right-aligned."""
    columns = list(zip(*rows))
    widths = [max(map(len, column)) for column in columns]
    figures = [all(cell == "" or cell[0].isdigit() for cell in column[1:]) for column in columns]
    lines = []
    for row in rows:
        cells = [c.rjust(w) if right else c.ljust(w) for c, w, right in zip(row, widths, figures)]
        lines.append("  " + "   ".join(cells).rstrip())
    return "\n".join(lines)


class ProgressBar:
    """How many bytes of a generation have come in, over all engines: a bar on a terminal, plain lines elsewhere.

    Any thread may call update(). close() ends the bar's line.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._lock = threading.Lock()
        self._engines: dict[int, tuple[int, int]] = {}
        self._shown = -1  # terminal: 1000ths, otherwise steps
        self._open = False

    def update(self, engine: int, generation: int, workers: list[dict[str, Any]]) -> None:
        """What headrace_status of each of the engine's workers says. Draws where there is news."""
        streamed = needed = 0
        for worker in workers:
            whole = worker["needed_bytes"]
            needed += whole
            streamed += whole if generation in (worker["staged"], worker["serving"]) else worker["streamed_bytes"]
        with self._lock:
            self._engines[engine] = (streamed, needed)
            streamed = sum(s for s, _ in self._engines.values())
            needed = sum(n for _, n in self._engines.values())
            if needed == 0:
                return
            share = min(streamed / needed, 1.0)
            step = int(share * (1000 if self._terminal else _LINES))
            if step <= self._shown:
                return
            self._shown = step
            come = f"{human_bytes(streamed)} of {human_bytes(needed)}"
            self._draw(share, f"generation {generation}  {share:4.0%}  {come}")

    def close(self) -> None:
        with self._lock:
            if self._open:
                self._stream.write("\n")
                self._stream.flush()
                self._open = False

    def _draw(self, share: float, said: str) -> None:
        if self._terminal:
            eighths = int(share * _BAR_CELLS * 8)
            part = _EIGHTHS[eighths % 8] if eighths % 8 else ""
            bar = ("█" * (eighths // 8) + part).ljust(_BAR_CELLS)
            self._stream.write(f"\r\x1b[K  {bar}  {said}")
            self._open = True
        else:
            self._stream.write(said + "\n")
        self._stream.flush()
