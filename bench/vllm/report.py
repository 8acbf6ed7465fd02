"""The benchmark's document of one kind of server, and its summary."""

from __future__ import annotations

import statistics
from typing import Any

STEPS = (
    *("total", "stall", "snapshot", "staged", "paused", "pause", "start", "update", "finish", "reset", "resume"),
    *("transfer", "verify", "decision", "copy_to_live", "worker_loader", "worker_load_weights", "worker_repack"),
    *("gather", "worker_broadcast", "cpu", "cpu_trainers", "cpu_server"),
)


def document(
    samples: dict[str, list[dict[str, float]]],
    sessions: dict[str, list[dict[str, Any]]],
    memory: dict[str, Any],
    decode: list[dict[str, float]],
) -> dict[str, Any]:
    """See bench/README.md for the fields."""
    median = {kind: _medians(of) for kind, of in samples.items()}
    broadcast, started = median["broadcast"]["cpu"], memory["broadcast"]
    peaks = {"first_peak": [memory["first_broadcast"]], "peak": memory["after_broadcast"]}
    return {
        "medians": median,
        "ratios": {f"{kind}_cpu_over_broadcast": median[kind]["cpu"] / broadcast for kind in sessions},
        "init": {kind: _medians([_numbers(session) for session in of]) for kind, of in sessions.items()},
        "first": {kind: _medians([session["first"] for session in of]) for kind, of in sessions.items()},
        "memory": {
            **{kind: _session_memory(of, memory["headrace"]) for kind, of in sessions.items()},
            "broadcast": {name: _middle([m["peak"] - started["all"] for m in of]) for name, of in peaks.items()},
        },
        "decode": _decode(decode),
        "samples": {**samples, "sessions": sessions, "memory": memory, "decode": decode},
    }


def summary(result: dict[str, Any]) -> str:
    median = result["medians"]
    lines = [f"{'medians, ms':<22}" + "".join(f"{kind:>12}" for kind in median)]
    for step in STEPS:
        values = [median[kind].get(step) for kind in median]
        lines.append(f"{step:<22}" + "".join(f"{'-' if v is None else f'{v * 1e3:.1f}':>12}" for v in values))
    for kind, init in result["init"].items():
        first = result["first"][kind]
        lines.append(f"{kind}: init {init['init_seconds']:.2f} s, first refit {first['total']:.2f} s")
    for kind, sizes in result["memory"].items():
        lines.append(f"{kind}, MiB: " + ", ".join(f"{name} {size / 2**20:.0f}" for name, size in sizes.items()))
    lines += [f"{name}: {ratio:.3f}" for name, ratio in result["ratios"].items()]
    lines.append("decode: " + ", ".join(f"{name} {value:.3f}" for name, value in result["decode"].items()))
    idle = ", ".join(f"{kind} {seconds:.3f}" for kind, seconds in result["idle_cpu_per_second"].items())
    lines.append(f"idle, CPU-seconds a second: {idle}")
    lines.append(f"outputs equal the broadcast's: {result['outputs_equal']}")
    return "\n".join(lines)


def _decode(swaps: list[dict[str, float]]) -> dict[str, float]:
    """Of sums, so that a token which came early in one span and late in the next evens out."""
    if not swaps:
        raise SystemExit("bench: no swap fell into a running request")
    span, lost = (sum(swap[name] for swap in swaps) for name in ("span", "lost"))
    alone = 1 / statistics.mean(swap["token"] for swap in swaps)
    streaming = alone * max(0.0, span - lost) / span
    return {
        "swaps": len(swaps),
        "stream_seconds": span / len(swaps),
        "lost_seconds": lost / len(swaps),
        "tokens_per_second_alone": alone,
        "tokens_per_second_streaming": streaming,
        "streaming_over_alone": streaming / alone,
    }


def _session_memory(sessions: list[dict[str, Any]], started: dict[str, int]) -> dict[str, int]:
    """Bytes of the engine's process above what it had when it was started, medians of the sessions."""

    def above(point: str, kind: str) -> int:
        return _middle([session[point][kind] - started["all" if kind == "peak" else kind] for session in sessions])

    return {
        "shadow": _middle([session["shadow_bytes"] for session in sessions]),
        "loader": _middle([session["loader_bytes"] for session in sessions]),
        "init_peak": above("after_init", "peak"),
        "init_private": above("after_init", "private"),
        "first_peak": above("after_first", "peak"),
        "swaps_peak": above("after_swaps", "peak"),
        "swaps_private": above("after_swaps", "private"),
        "swaps_shared": above("after_swaps", "shared"),
        "closed_private": above("after_close", "private"),
        "closed_shared": above("after_close", "shared"),
    }


def _numbers(session: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in session.items() if isinstance(value, float)} | session["init_calls"]


def _medians(samples: list[dict[str, float]]) -> dict[str, float]:
    """Of each step that all samples have."""
    steps = [step for step in samples[0] if all(step in sample for sample in samples)]
    return {step: _middle([sample[step] for sample in samples]) for step in steps}


def _middle(values: list[Any]) -> Any:
    return statistics.median_low(values) if isinstance(values[0], int) else statistics.median(values)
