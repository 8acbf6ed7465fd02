"""One rank of the benchmark's trainer: takes commands (JSON lines on standard input), answers each with a JSON line.

    python ranks.py RANK RANKS STORE MODEL

    {"do": "set", "variant": V}
    {"do": "join", "engine": URL, "shadow": ...}   {"do": "swap", "generation": G, "hold": seconds}   {"do": "close"}
    {"do": "connect", "engine": URL}               {"do": "broadcast", "generation": G}

Replies have "begin" and "end" of the command on the clock that all processes share (time.monotonic).
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # helper threads that spin would be counted too

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE / "plugins"), str(HERE.parents[1] / "tests/vllm")]

import torch
import torch.distributed as dist
from headrace.engines import HttpEngine
from headrace.torch import Publisher

import models
from gloo_broadcast_group import join
from trainer import build


class TimedEngine:
    """An engine that notes when each call began and ended, and takes `hold` seconds before a pause."""

    def __init__(self, url: str) -> None:
        self._engine = HttpEngine(url)
        self.name = self._engine.name
        self.calls: list[tuple[str, float, float]] = []
        self.hold = 0.0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._engine, name)

        def call(*arguments: Any) -> Any:
            if name == "pause":
                time.sleep(self.hold)
            begin = time.monotonic()
            try:
                return method(*arguments)
            finally:
                self.calls.append((name, begin, time.monotonic()))

        return call

    def take_calls(self) -> list[tuple[str, float, float]]:
        calls, self.calls = self.calls, []
        return calls


class Rank:
    def __init__(self, rank: int, directory: str) -> None:
        self._rank = rank
        self._model = build(directory, "fsdp2")
        named = self._model.named_parameters()
        self._base = {name: parameter.to_local().detach().clone() for name, parameter in named}
        self._publisher: Publisher | None = None
        self._engine: TimedEngine | None = None  # Headrace's
        self._server: TimedEngine | None = None  # the broadcast's
        self._group: Any = None
        self._calls = ThreadPoolExecutor(1)

    def set(self, variant: int) -> dict[str, Any]:
        models.set_variant(self._model, self._base, variant)
        return {}

    def join(self, engine: str, shadow: str) -> dict[str, Any]:
        self._engine = TimedEngine(engine)
        self._publisher = Publisher(self._model, [self._engine], shadow=shadow)
        return {"calls": self._engine.take_calls()}

    def swap(self, generation: int, hold: float) -> dict[str, Any]:
        self._engine.hold = hold
        self._publisher.publish(generation)
        published = time.monotonic()
        report = self._publisher.wait()
        return {"published": published, "report": report, "calls": self._engine.take_calls()}

    def close(self) -> dict[str, Any]:
        self._publisher.close()
        return {}

    def connect(self, engine: str) -> dict[str, Any]:
        if self._rank == 0:
            self._server = TimedEngine(engine)
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            init = self._calls.submit(self._server.init, {"port": port})
            self._group = join(port, rank=0)
            init.result()
            self._server.take_calls()
        return {}

    def broadcast(self, generation: int) -> dict[str, Any]:
        """The same steps as a swap; every rank takes part in the gathers."""
        server = self._server
        parameters = [(name, parameter.detach()) for name, parameter in self._model.named_parameters()]
        if server is not None:
            server.pause("keep")
            server.start()
            info = {
                "names": [name for name, _ in parameters],
                "dtypes": [str(parameter.dtype).removeprefix("torch.") for _, parameter in parameters],
                "shapes": [list(parameter.shape) for _, parameter in parameters],
            }
            update = self._calls.submit(server.update, info)
        gather = 0.0
        for _, parameter in parameters:
            begin = time.monotonic()
            full = parameter.full_tensor()
            gather += time.monotonic() - begin
            if server is not None:
                self._group.broadcast(full, 0).wait()
        if server is None:
            return {}
        update.result()
        server.finish(str(generation))
        server.reset_caches()
        server.resume()
        return {"gather": gather, "calls": server.take_calls()}


def main() -> None:
    rank, ranks, store, directory = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5]
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no reply
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    me = Rank(rank, directory)
    print(json.dumps({"ready": True}), file=replies)
    for line in sys.stdin:
        command = json.loads(line)
        begin = time.monotonic()
        try:
            reply = getattr(me, command.pop("do"))(**command)
        except Exception as error:  # ends the benchmark
            reply = {"error": {"code": type(error).__name__, "message": str(error)}}
        print(json.dumps({"begin": begin, **reply, "end": time.monotonic()}), file=replies)


if __name__ == "__main__":
    main()
