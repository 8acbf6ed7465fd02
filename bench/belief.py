"""Tests the time model against real refits of this machine: calibrates, runs all cases in turns, predicts, compares.

bench/README.md describes the JSON document. Standard library only.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from refit import machine

TARGET = 0.2
# Medians of alternatives that are nearer to each other have no order that a run would repeat.
TIE = 0.05


def go_ahead() -> None:
    """In a process that begins: its session runs before all others of the machine."""
    Path("/proc/self/autogroup").write_text("-20")


def run(command: list[str], ahead: bool = False) -> dict | list:
    # The scheduler shares the cores between sessions first, so that `nice` alone would not do.
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, start_new_session=ahead,
                          preexec_fn=go_ahead if ahead else None)
    if done.returncode != 0:
        raise SystemExit(f"belief: {Path(command[0]).name} failed with status {done.returncode} (see above)")
    return json.loads(done.stdout)


def merge(documents: list) -> dict | list | float:
    """The medians of all numbers of documents of one shape; anything else is the first one's."""
    first = documents[0]
    if isinstance(first, dict):
        return {key: merge([d[key] for d in documents]) for key in first}
    if isinstance(first, list):
        return [merge(list(items)) for items in zip(*documents)]
    if isinstance(first, (int, float)):
        # Of an even number of whole ones the lower one, so that they stay whole.
        return statistics.median_low(documents) if isinstance(first, int) else statistics.median(documents)
    return first


def quiet(command: list[str], args: argparse.Namespace, repeated: list[float]) -> dict:
    """Runs a command until others kept few enough cores busy meanwhile; after args.tries the quietest run."""
    best = None
    for _ in range(args.tries):
        result = run(command, args.ahead)
        if best is None or result["foreign_cores"] < best["foreign_cores"]:
            best = result
        if best["foreign_cores"] <= args.foreign:
            break
        repeated.append(result["foreign_cores"])
    return best


def sample(result: dict) -> float:
    return statistics.median(g["seconds"] for g in result["samples"])


def refits(cases: list[dict], results: dict[str, list[dict]], predicted: dict[str, dict], limit: float) -> list[dict]:
    out = []
    for case in cases:
        of = results[case["case"]]
        seconds = sorted(sample(r) for r in of)
        quarters = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
        simulated = predicted[case["case"]]["simulated_seconds"]
        median = statistics.median(seconds)
        out.append({
            **case,
            "measured_seconds": median,
            "quartiles": [quarters[0], quarters[2]],
            "simulated_seconds": simulated,
            "error": simulated / median - 1,
            "disturbed_rounds": sum(r["foreign_cores"] > limit for r in of),
            "by_phase": predicted[case["case"]]["by_phase"],
        })
    return out


def order(found: list[dict]) -> dict:
    """Whether alternatives, which move the same weights, are predicted in the order in which they were measured."""
    pairs, ties, wrong = 0, 0, []
    for a, b in itertools.combinations(found, 2):
        if a["weights"] != b["weights"]:
            continue
        if abs(a["measured_seconds"] / b["measured_seconds"] - 1) < TIE:
            ties += 1
            continue
        pairs += 1
        if (a["measured_seconds"] < b["measured_seconds"]) != (a["simulated_seconds"] < b["simulated_seconds"]):
            wrong.append([a["case"], b["case"]])
    return {"pairs": pairs, "ties": ties, "wrong": wrong}


def summary(document: dict) -> str:
    lines = [f"{'refit':<40}{'measured':>10}{'quartiles':>18}{'simulated':>11}{'error':>8}"]
    for r in document["refits"]:
        low, high = (f"{q * 1e3:.1f}" for q in r["quartiles"])
        lines.append(f"{r['case']:<40}{r['measured_seconds'] * 1e3:>10.1f}{low + ' .. ' + high:>18}"
                     f"{r['simulated_seconds'] * 1e3:>11.1f}{r['error'] * 100:>7.0f}%")
    o = document["order"]
    lines += ["", f"milliseconds; medians of {document['rounds']} rounds. Worst error {document['worst_error']:.0%}, "
                  f"target {TARGET:.0%}: {'met' if document['met']['error'] else 'MISSED'}",
              f"order of alternatives: {o['pairs'] - len(o['wrong'])} of {o['pairs']} pairs as measured"
              f" ({o['ties']} more within {TIE:.0%} of each other): {'met' if document['met']['order'] else 'MISSED'}"]
    lines += [f"  wrong: {a}; {b}" for a, b in o["wrong"]]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, help="the binary belief_bench")
    parser.add_argument("--calibrate", required=True, help="the binary calibrate")
    parser.add_argument("--output", type=Path, default=Path(".bazel/belief.json"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calibrations", type=int, default=3, help="spread over the rounds; medians count")
    parser.add_argument("--foreign", type=float, default=0.1, help="cores that others may keep busy during a run")
    parser.add_argument("--tries", type=int, default=3, help="of a run that others disturb")
    parser.add_argument("--ahead", action="store_true", help="before all other work of the machine (root; autogroups)")
    args = parser.parse_args()
    described = machine()
    cases = run([args.bench, "--list"])
    results: dict[str, list[dict]] = {case["case"]: [] for case in cases}
    calibrations, repeated = [], []
    due = {round(i * (args.rounds - 1) / max(args.calibrations - 1, 1)) for i in range(args.calibrations)}
    for number in range(args.rounds):
        if number in due:
            calibrations.append(quiet([args.calibrate], args, repeated))
        print(f"belief: round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
        # In turns, beginning with another one each time.
        first = number % len(cases)
        for case in cases[first:] + cases[:first]:
            results[case["case"]].append(quiet([args.bench, "--case", case["case"]], args, repeated))
    calibration = merge(calibrations)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    calibrated = args.output.with_suffix(".calibration.json")
    calibrated.write_text(json.dumps(calibration, indent=2) + "\n")
    predicted = {p["case"]: p for p in run([args.bench, "--predict", str(calibrated)])}
    found = refits(cases, results, predicted, args.foreign)
    alternatives = order(found)
    worst = max((r["error"] for r in found), key=abs)
    described["load_at_end"] = os.getloadavg()[0]
    document = {
        "format": 1,
        "machine": described,
        "rounds": args.rounds,
        "ahead": args.ahead,
        "foreign_cores_allowed": args.foreign,
        "runs_repeated": len(repeated),
        "refits": found,
        "order": alternatives,
        "worst_error": worst,
        "target": TARGET,
        "met": {"error": abs(worst) <= TARGET, "order": not alternatives["wrong"]},
        "calibration": calibration,
        "calibrations": calibrations,
        "samples": results,
    }
    args.output.write_text(json.dumps(document, indent=2) + "\n")
    print(summary(document) + f"\n\nbelief: all figures are in {args.output}")


if __name__ == "__main__":
    main()
