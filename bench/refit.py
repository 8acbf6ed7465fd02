"""Runs refit_bench and gather_broadcast.py in turns, prints a summary and writes one JSON document.

bench/README.md describes the document. Standard library only; gather_broadcast.py needs torch in the same interpreter.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
STAGING_CAP_BYTES = 64 << 20
TARGETS = {
    "in_place_over_floor": 1.3,
    "shadow_over_floor": 2.3,
    "broadcast_over_floor": 1.5,
    "in_place_without_snapshot_over_gather_broadcast": 1 / 25,
    "in_place_over_gather_broadcast": 1 / 18,
    "shadow_over_gather_broadcast": 1 / 12,
}
# Bytes per byte of the model: trainers and engine one each, two slots, a shadow; for the floor of a broadcast the whole
# model for each of two workers.
MEMORY_OF_MODEL = {"in_place": 4, "shadow": 5, "broadcast": 6, "gather_broadcast": 3}


def first_line(path, key):
    try:
        for line in Path(path).read_text().splitlines():
            if line.startswith(key):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return "unknown"


def machine():
    flags = first_line("/proc/cpuinfo", "flags").split()
    return {
        "processor": first_line("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "avx2": "avx2" in flags,
        "avx512": "avx512f" in flags,
        "memory_bytes": int(first_line("/proc/meminfo", "MemTotal").split()[0]) * 1024,
        "kernel": platform.release(),
        "load_at_start": os.getloadavg()[0],
    }


def check_memory(layers, what):
    model = (0.13 + 0.2575 * layers) * 1e9
    needed = int(model * MEMORY_OF_MODEL[what] + 1e9)
    available = int(first_line("/proc/meminfo", "MemAvailable").split()[0]) * 1024
    if available < needed:
        raise SystemExit(f"bench: {what} with {layers} layers needs {needed / 1e9:.1f} GB of memory, "
                         f"{available / 1e9:.1f} GB are available. Free memory, or give fewer --layers.")


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"bench: {Path(command[0]).name} failed with status {done.returncode} (see above)")
    return json.loads(done.stdout)


def refit(args, mode):
    check_memory(args.layers, mode)
    print(f"bench: {mode}, {args.generations} generations", flush=True)
    return run([args.binary, "--mode", mode, "--layers", str(args.layers), "--generations", str(args.generations)])


def gather_broadcast(args, collect, generations, into):
    check_memory(args.layers, "gather_broadcast")
    print(f"bench: gather-and-broadcast by {collect}, {generations} generations", flush=True)
    result = run([sys.executable, "-W", "ignore", str(HERE / "gather_broadcast.py"), "--layers", str(args.layers),
                  "--generations", str(generations), "--collect", collect])
    into.setdefault(collect, {**result, "samples": []})["samples"] += result["samples"]


def medians(samples):
    return {phase: statistics.median(s[phase] for s in samples) for phase in samples[0]}


def document(args, described, modes, gathered):
    median = {mode: medians(m["samples"]) for mode, m in modes.items()}
    for m in median.values():
        m["floor"] = min(m["floor_memcpy"], m["floor_kernel"])
    median["gather_broadcast"] = {c: statistics.median(g["samples"]) for c, g in gathered.items()}
    reference = median["gather_broadcast"]["all_gather"]
    in_place, shadow, broadcast = median["in_place"], median["shadow"], median["broadcast"]
    ratios = {
        "in_place_over_floor": (in_place["transfer"] + in_place["verify"]) / in_place["floor"],
        "shadow_over_floor": (shadow["transfer"] + shadow["verify"] + shadow["commit"]) / shadow["floor"],
        "broadcast_over_floor": (broadcast["transfer"] + broadcast["verify"]) / broadcast["floor_broadcast"],
        "broadcast_over_one_copy_floor": (broadcast["transfer"] + broadcast["verify"]) / broadcast["floor"],
        "in_place_without_snapshot_over_gather_broadcast": (in_place["total"] - in_place["snapshot"]) / reference,
        "in_place_over_gather_broadcast": in_place["total"] / reference,
        "shadow_over_gather_broadcast": shadow["total"] / reference,
        "in_place_over_gather_to_one": in_place["total"] / median["gather_broadcast"]["gather"],
        "shadow_over_gather_to_one": shadow["total"] / median["gather_broadcast"]["gather"],
    }
    staging = max(m["peak_staging_bytes"] for m in modes.values())
    met = {name: ratios[name] <= target for name, target in TARGETS.items()}
    met["staging"] = staging <= STAGING_CAP_BYTES
    same = {k: modes["in_place"][k] for k in ("tensors", "copies", "needed_bytes", "wire_bytes", "slot_bytes")}
    return {
        "format": 1,
        "machine": described,
        "layers": args.layers,
        "unit": "CPU-seconds",
        **same,
        "shadow_bytes": modes["shadow"]["shadow_bytes"],
        "peak_staging_bytes": staging,
        "medians": median,
        "ratios": ratios,
        "targets": {**TARGETS, "staging_bytes": STAGING_CAP_BYTES},
        "met": met,
        "samples": {
            **{mode: {"warmup": m["warmup_samples"], "measured": m["samples"]} for mode, m in modes.items()},
            "gather_broadcast": gathered,
        },
    }


def summary(d):
    m, r, gb = d["medians"], d["ratios"], d["needed_bytes"] / 1e9
    modes = ("in_place", "shadow", "broadcast")
    rows = [("CPU-seconds, all processes", "in place", "shadow", "broadcast")]
    for phase in ("snapshot", "transfer", "verify", "commit", "control", "total"):
        rows.append((phase, *(f"{m[mode][phase]:.3f}" for mode in modes)))
    for name, key in (("floor by memcpy", "floor_memcpy"), ("floor by our kernel", "floor_kernel")):
        rows.append((name, *(f"{m[mode][key]:.3f}" for mode in modes)))
    rows.append(("floor of a broadcast", "", "", f"{m['broadcast']['floor_broadcast']:.3f}"))
    lines = [f"{d['tensors']} tensors, {gb:.2f} GB from 4 FSDP trainers to a TP2 engine in {d['copies']} copies; "
             f"medians of {len(d['samples']['in_place']['measured'])}", ""]
    lines += [f"  {a:<28}{b:>10}{c:>10}{e:>11}" for a, b, c, e in rows]
    lines += ["", f"  gather-and-broadcast over gloo: {m['gather_broadcast']['all_gather']:.2f} with all-gather, "
                  f"{m['gather_broadcast']['gather']:.2f} with gather to one rank", ""]
    names = {
        "in_place_over_floor": "in place: transfer and verification / floor",
        "shadow_over_floor": "shadow: the same and commit / floor",
        "broadcast_over_floor": "broadcast: transfer and verification / floor",
        "in_place_without_snapshot_over_gather_broadcast": "in place: the rest / gather-and-broadcast",
        "in_place_over_gather_broadcast": "in place: total / gather-and-broadcast",
        "shadow_over_gather_broadcast": "shadow: total / gather-and-broadcast",
    }
    for key, name in names.items():
        verdict = "met" if d["met"][key] else "MISSED"
        lines.append(f"  {name:<46}{r[key]:>7.3f}   target {d['targets'][key]:.3g}: {verdict}")
    verdict = "met" if d["met"]["staging"] else "MISSED"
    lines.append(f"  {'staging, bytes a rank':<46}{d['peak_staging_bytes']:>7}   target {STAGING_CAP_BYTES}: {verdict}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, help="refit_bench")
    parser.add_argument("--output", type=Path, default=Path(".bazel/refit.json"))
    parser.add_argument("--layers", type=int, default=8, help="of the model; 8 are about 2 GiB")
    parser.add_argument("--generations", type=int, default=7)
    args = parser.parse_args()
    described, modes, gathered = machine(), {}, {}
    half = (args.generations + 1) // 2
    # In turns, so that a machine that slows down or warms up does so for both.
    modes["in_place"] = refit(args, "in_place")
    gather_broadcast(args, "all_gather", half, gathered)
    gather_broadcast(args, "gather", half, gathered)
    modes["shadow"] = refit(args, "shadow")
    modes["broadcast"] = refit(args, "broadcast")
    gather_broadcast(args, "all_gather", max(args.generations - half, 1), gathered)
    gather_broadcast(args, "gather", max(args.generations - half, 1), gathered)
    described["load_at_end"] = os.getloadavg()[0]
    result = document(args, described, modes, gathered)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(result, indent=2) + "\n")
    print("\n" + summary(result) + f"\n\nbench: all figures are in {args.output}")


if __name__ == "__main__":
    main()
