"""For tests: a function run by the ranks of a real gloo process group.

The test's own process must not load the core: its threads do not survive a fork.
"""

import multiprocessing
import multiprocessing.connection
import os
import tempfile
import time
import traceback
from typing import Any, Callable

import torch
import torch.distributed as dist


def run_ranks(ranks: int, function: Callable[..., Any], *args: Any, timeout: float = 300.0) -> list[Any]:
    """Calls function(rank, *args) in `ranks` forked processes that share a gloo group; returns what each returned.

    Raises AssertionError with the traceback of the first rank that raised, died or did not return in `timeout` seconds;
    no process outlives the call. Results must be picklable.
    """
    return _run(ranks, _rank, function, args, timeout)


def run_alone(function: Callable[..., Any], *args: Any, timeout: float = 300.0) -> Any:
    """Calls function(*args) in one forked process, without torch.distributed. The rest as run_ranks."""
    return _run(1, _alone, function, args, timeout)[0]


def _run(
    ranks: int, main: Callable[..., None], function: Callable[..., Any], args: tuple[Any, ...], timeout: float
) -> list[Any]:
    context = multiprocessing.get_context("fork")  # spawned ones would import torch again, 5 s each
    with tempfile.TemporaryDirectory() as directory:
        pipes, processes = [], []
        for rank in range(ranks):
            reader, writer = context.Pipe(duplex=False)
            store = os.path.join(directory, "store")
            process = context.Process(target=main, args=(rank, ranks, store, writer, function, args), daemon=True)
            process.start()
            writer.close()
            pipes.append(reader)
            processes.append(process)
        try:
            return _results(pipes, timeout)
        finally:
            for process in processes:
                process.join(timeout=5)
                if process.is_alive():
                    process.kill()
                    process.join()


def _results(pipes: list[Any], timeout: float) -> list[Any]:
    """In the order in which ranks finish: the first failure is the cause of the others."""
    results: dict[int, Any] = {}
    deadline = time.monotonic() + timeout
    while len(results) < len(pipes):
        waiting = {pipe: rank for rank, pipe in enumerate(pipes) if rank not in results}
        ready = multiprocessing.connection.wait(list(waiting), max(0, deadline - time.monotonic()))
        if not ready:
            raise AssertionError(f"ranks {sorted(waiting.values())} did not return in {timeout} s")
        for pipe in ready:
            rank = waiting[pipe]
            try:
                failure, results[rank] = pipe.recv()
            except EOFError:
                raise AssertionError(f"rank {rank} died") from None
            if failure is not None:
                raise AssertionError(f"rank {rank} raised:\n{failure}")
    return [results[rank] for rank in range(len(pipes))]


def _rank(rank: int, ranks: int, store: str, pipe: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    def grouped() -> Any:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
        value = function(rank, *args)
        dist.barrier()
        dist.destroy_process_group()
        return value

    _send(pipe, grouped)


def _alone(rank: int, ranks: int, store: str, pipe: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    _send(pipe, lambda: function(*args))


def _send(pipe: Any, call: Callable[[], Any]) -> None:
    torch.set_num_threads(1)
    try:
        pipe.send((None, call()))
    except BaseException:  # the parent shows it, whatever it is
        pipe.send((traceback.format_exc(), None))
