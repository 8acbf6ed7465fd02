"""What /proc says about the benchmark's processes."""

from __future__ import annotations

import os
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def tree(root: int) -> list[int]:
    """The process and its descendants."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            children.setdefault(int(_stat(path)[1]), []).append(int(path.name))
        except OSError:
            pass  # it ended
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu_seconds(pids: list[int]) -> float:
    """User and system time so far, of all threads; in steps of a tick (10 ms) for each process."""
    fields = [_stat(Path(f"/proc/{pid}")) for pid in pids]
    return sum(int(f[11]) + int(f[12]) for f in fields) * _TICK_S


def memory(pid: int) -> dict[str, int]:
    """Resident bytes: "all"; "private" (anonymous); "shared" (of others too: publishers' slots); "peak" of all."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    keys = {"all": "VmRSS", "private": "RssAnon", "shared": "RssShmem", "peak": "VmHWM"}
    return {name: int(lines[key].split()[0]) * 1024 for name, key in keys.items()}


def reset_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def largest(pids: list[int]) -> int:
    """The one that holds most memory: of a server with one worker, the engine."""
    return max(pids, key=lambda pid: memory(pid)["all"])


def _stat(process: Path) -> list[str]:
    """The fields of its stat after the name, which may have spaces: state, parent, ..."""
    return (process / "stat").read_text().rpartition(")")[2].split()
