"""Measures hot swaps of SmolLM2-135M from two FSDP2 ranks into a real vLLM server; see bench/README.md."""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path += [str(ROOT / "tests/vllm"), str(ROOT / "bench")]

import support  # noqa: E402
from decode import Decoding, lost_seconds, token_seconds  # noqa: E402
from measure import cpu_seconds, largest, memory, reset_peak, tree  # noqa: E402
from models import SMOLLM2  # noqa: E402
from refit import machine  # noqa: E402
from report import document, summary  # noqa: E402

SHADOWS = ("off", "host")
RANKS = 2
# Whether vLLM repacks linear layers, as it does on CPUs (then they go through its loader), or computes with the live
# weights, as on GPUs (then Headrace writes them itself).
LINEARS = ("packed", "live")
SWAPS = 3  # measured ones of a session, after its first
# Before a swap that is measured in the decoding part: the request runs alone. Before its pause: the stream has ended.
ALONE_S, HOLD_S = 2.0, 0.5


class Trainer(support.Trainer):
    """The processes of ranks.py."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-trainer-")
        store = Path(self._folder.name) / "store"
        command = [sys.executable, "-W", "ignore", str(HERE / "ranks.py")]
        self.processes = [
            subprocess.Popen(
                [*command, str(rank), str(RANKS), str(store), str(SMOLLM2)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            for rank in range(RANKS)
        ]
        for process in self.processes:
            support._reply(process)

    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]


class Server(support.Server):
    """A server that runs the benchmark's plugin too. `engine` is the process with the weights."""

    def __init__(self, backend: str, prepacking: bool) -> None:
        probe = ("--worker-extension-cls", "headrace_bench_host.Probe")
        config = json.dumps({"backend": backend})
        super().__init__(SMOLLM2, "--weight-transfer-config", config, *probe, prepacking=prepacking)

    def ready(self, timeout: float = 600) -> "Server":
        super().ready(timeout)
        self.pids = tree(self._process.pid)
        self.engine = largest(self.pids)
        self.rpc("bench_watch")
        return self

    def spent(self) -> dict[str, float]:
        return self.rpc("bench_spent")[0]


class Bench:
    def __init__(self, trainer: Trainer, headrace: Server, broadcast: Server) -> None:
        self.trainer, self.headrace, self.broadcast = trainer, headrace, broadcast
        self.generation = 0
        self.samples: dict[str, list[dict[str, float]]] = {"off": [], "host": [], "broadcast": []}
        self.sessions: dict[str, list[dict[str, Any]]] = {"off": [], "host": []}
        # Of each server's engine before anything was sent, and after each broadcast.
        self.memory: dict[str, Any] = {"headrace": memory(headrace.engine), "broadcast": memory(broadcast.engine)}
        self.memory["after_broadcast"] = []
        self.idle_cpu = {"no_session": self.idle(headrace)}

    def warm_up(self) -> None:
        """A broadcast that is not counted: the allocator's first touch."""
        self._next()
        reset_peak(self.broadcast.engine)
        self.update()
        self.memory["first_broadcast"] = self.memory["after_broadcast"].pop()

    def round(self) -> None:
        """A session of each kind; broadcasts in turns with its swaps."""
        for shadow in SHADOWS:
            session = self.join(shadow)
            for _ in range(SWAPS):
                self.samples[shadow].append(self.swap())
                self.samples["broadcast"].append(self.update())
            session["after_swaps"] = memory(self.headrace.engine)
            self.idle_cpu.setdefault(shadow, self.idle(self.headrace))
            self.trainer.call("close")
            session["after_close"] = memory(self.headrace.engine)
            self.sessions[shadow].append(session)

    def join(self, shadow: str) -> dict[str, Any]:
        """A new session and its first swap."""
        engine = self.headrace.engine
        session: dict[str, Any] = {}
        reset_peak(engine)
        before = self._cpu(self.headrace)
        reply = self.trainer.call("join", engine=self.headrace.url, shadow=shadow)
        session["init_seconds"] = reply["end"] - reply["begin"]
        session["init_calls"] = _by_name(reply["calls"])
        session["init_cpu_seconds"] = sum(self._cpu(self.headrace)) - sum(before)
        session["after_init"] = memory(engine)
        self.headrace.spent()
        reset_peak(engine)
        session["first"] = self.swap()
        session["after_first"] = memory(engine)
        explained = self.headrace.rpc("headrace_explain")[0]
        session |= {name: explained[name] for name in ("loader_bytes", "shadow_bytes")}
        reset_peak(engine)
        return session

    def swap(self) -> dict[str, float]:
        """One generation by Headrace. Seconds, but for what says otherwise."""
        self._next()
        before = self._cpu(self.headrace)
        reply = self.trainer.call("swap", generation=self.generation, hold=0.0)
        cpu = self._spent_since(before, self.headrace)
        report, engine = reply["report"], reply["report"]["engines"][0]
        worker, ranks = engine["workers"][0], report["trainer"]
        sample = dict(engine["seconds"])
        sample |= {
            "total": reply["end"] - reply["begin"],
            "stall": max(rank["publish_seconds"] for rank in ranks),
            "snapshot": max(rank["snapshot_seconds"] for rank in ranks),
            **{name: worker[f"{name}_seconds"] for name in ("transfer", "verify", "decision")},
            "copy_to_live": worker["commit_seconds"],
        }
        return sample | _in_worker(self.headrace.spent()) | cpu

    def update(self) -> dict[str, float]:
        """The same weights by a broadcast."""
        reset_peak(self.broadcast.engine)
        before = self._cpu(self.broadcast)
        reply = self.trainer.call("broadcast", generation=self.generation)
        cpu = self._spent_since(before, self.broadcast)
        calls = _by_name(reply["calls"])
        calls["reset"] = calls.pop("reset_caches")
        total = reply["end"] - reply["begin"]
        sample = {"total": total, "stall": total, "paused": total, "gather": reply["gather"], **calls}
        self.memory["after_broadcast"].append(memory(self.broadcast.engine))
        return sample | _in_worker(self.broadcast.spent()) | cpu

    def decode(self, swaps: int) -> list[dict[str, float]]:
        """A request runs while generations stream; seconds, for each swap. A pause is held back for a while after its
        stream is over."""
        self.join("host")
        decoding = Decoding(self.headrace.url)
        decoding.wait_for_tokens(20)
        found: list[dict[str, float]] = []
        spans: list[tuple[tuple[float, float], ...]] = []
        for _ in range(swaps):
            self._next()
            begin = time.monotonic()
            time.sleep(ALONE_S)
            alone = (begin, time.monotonic())
            reply = self.trainer.call("swap", generation=self.generation, hold=HOLD_S)
            worker = reply["report"]["engines"][0]["workers"][0]
            streamed = reply["published"] + worker["transfer_seconds"] + worker["verify_seconds"]
            calls = {name: (begin, end) for name, begin, end in reply["calls"]}
            spans.append((alone, (reply["begin"], streamed), (calls["pause"][0], calls["resume"][1])))
        decoding.wait_for_tokens(len(decoding.requests[-1]) + 2)
        decoding.stop()
        self.trainer.call("close")
        for alone, span, frozen in spans:
            for times in decoding.requests:
                tokens = token_seconds(times, alone)
                lost = lost_seconds(times, span, frozen, statistics.mean(tokens)) if tokens else None
                if lost is not None:
                    found.append({"token": statistics.mean(tokens), "span": span[1] - span[0], "lost": lost})
        return found

    def idle(self, server: Server, seconds: float = 2.0) -> float:
        """CPU-seconds that the server and the trainers take each second while nothing happens."""
        before = sum(self._cpu(server))
        time.sleep(seconds)
        return (sum(self._cpu(server)) - before) / seconds

    def rpc_seconds(self) -> float:
        """A call to the worker over HTTP that does nothing; the least of some."""
        found = []
        for _ in range(10):
            begin = time.monotonic()
            self.headrace.rpc("bench_spent")
            found.append(time.monotonic() - begin)
        return min(found)

    def _next(self) -> None:
        self.generation += 1
        self.trainer.call("set", variant=self.generation)

    def _cpu(self, server: Server) -> tuple[float, float]:
        return cpu_seconds(self.trainer.pids()), cpu_seconds(server.pids)

    def _spent_since(self, before: tuple[float, float], server: Server) -> dict[str, float]:
        trainers, servers = self._cpu(server)
        parts = {"cpu_trainers": trainers - before[0], "cpu_server": servers - before[1]}
        return {**parts, "cpu": sum(parts.values())}


def _by_name(calls: list[tuple[str, float, float]]) -> dict[str, float]:
    """Seconds of the calls of each name."""
    found: dict[str, float] = {}
    for name, begin, end in calls:
        found[name] = found.get(name, 0.0) + end - begin
    return found


def _in_worker(spent: dict[str, float]) -> dict[str, float]:
    return {f"worker_{step}": seconds for step, seconds in spent.items()}


def measure(prepacking: bool, rounds: int, decode: int) -> dict[str, Any]:
    servers: list[Server] = []
    trainer = None
    try:
        print(f"bench: two servers and a trainer of {RANKS} ranks start", flush=True)
        servers += [Server(backend, prepacking) for backend in ("headrace", "gloo_broadcast")]
        trainer = Trainer()
        for server in servers:
            server.ready()
        bench = Bench(trainer, *servers)
        trainer.call("connect", engine=servers[1].url)
        bench.warm_up()
        for number in range(rounds):
            print(f"bench: round {number + 1} of {rounds}", flush=True)
            bench.round()
        outputs = [server.outputs() for server in servers]
        print("bench: decoding", flush=True)
        decoded = bench.decode(decode)
        return document(bench.samples, bench.sessions, bench.memory, decoded) | {
            "idle_cpu_per_second": bench.idle_cpu,
            "rpc_seconds": bench.rpc_seconds(),
            "outputs_equal": outputs[0] == outputs[1],
        }
    finally:
        if trainer is not None:
            trainer.kill()
        for server in servers:
            server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", default=str(ROOT / ".bazel/vllm.json"), help="where the JSON goes")
    parser.add_argument("--rounds", type=int, default=3, help=f"each measures {SWAPS} swaps of each kind")
    parser.add_argument("--decode", type=int, default=8, help="swaps during which a request is decoded")
    parser.add_argument("--linears", choices=LINEARS, action="append", help="only this kind of server; default: both")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: stopped"))  # so that the servers are stopped too
    plugins = [str(HERE / "plugins"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(plugins).rstrip(os.pathsep)
    result: dict[str, Any] = {"format": 1, "machine": machine(), "model": "SmolLM2-135M"}
    for linears in args.linears or LINEARS:
        print(f"bench: linear layers {linears}", flush=True)
        result[linears] = measure(linears == "packed", args.rounds, args.decode)
        print(summary(result[linears]), flush=True)
    result["machine"]["load_at_end"] = os.getloadavg()[0]
    Path(args.output).parent.mkdir(parents=True, exist_ok=True)
    Path(args.output).write_text(json.dumps(result, indent=1) + "\n")
    print(f"bench: wrote {args.output}")


if __name__ == "__main__":
    main()
