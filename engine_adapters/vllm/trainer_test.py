"""The trainer's twin, by vLLM's factory, with real ranks and receivers; the server behind the client is a test's."""

from __future__ import annotations

import time
import unittest
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from vllm.distributed.weight_transfer.base import ModuleSource, WeightSource
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

from headrace.errors import DataLossError, Error, InputError, InternalError
from headrace.torch.testing import run_alone, run_ranks
from headrace.torch.testing_engine import TestEngine
from headrace.vllm.plugin import register
from headrace.vllm.trainer import HeadraceTrainerEngine, HeadraceTrainerInitInfo, _asked


class _Client:
    """vLLM's four methods over a test's engine."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.calls: list[str] = []

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.calls.append("init")
        self.engine.init(init_info)

    def start_weight_update(self) -> None:
        self.calls.append("start")
        self.engine.start()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.calls.append("update")
        end = time.monotonic() + 60.0
        while any(w["staged"] != update_info["generation"] and w["joined"] for w in self.engine.status()):
            assert time.monotonic() < end, self.engine.status()  # a worker waits for its generation
            time.sleep(0.01)
        self.engine.update(update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.calls.append("finish")
        self.engine.finish(weight_version)


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3, bias=False))


def _change(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5).add_(0.25)


def _full(model: nn.Module) -> dict[str, torch.Tensor]:
    fulls = {name: p.full_tensor() if hasattr(p, "full_tensor") else p for name, p in model.named_parameters()}
    return {name: full.detach().clone() for name, full in fulls.items()}


def _trainer(rank: int, model: nn.Module, held: torch.dtype = torch.float32, **more: Any) -> Any:
    """(the trainer's engine, the client), made by vLLM's own factory. The client of ranks above 0 has no server."""
    register()
    tensors = {name: (tuple(p.shape), held) for name, p in model.named_parameters()}
    client = _Client(TestEngine(tensors, workers=2)) if rank == 0 else None
    info = HeadraceTrainerInitInfo(rank=rank, world_size=2, shadow="host", timeout=60.0, **more)
    try:
        return WeightTransferTrainerFactory.trainer_init(info, client=client, source=ModuleSource(model)), client
    except Error:
        if client:
            client.engine.close()
        raise


def _sharded(rank: int, cast: bool) -> Any:
    model = _model()
    fully_shard(model)
    dtype = torch.bfloat16 if cast else torch.float32
    trainer, client = _trainer(rank, model, dtype, **({"dtype": dtype} if cast else {}))
    for version in ("1", "2"):
        _change(model)
        if version == "2":
            with torch.no_grad():
                model(torch.ones(1, 5))  # leaves the root's parameters as full tensors, until they are put back
        full = _full_of_state(model)
        trainer.send_weights()
        if client:
            client.engine.check(full)
            assert client.engine.version == version, client.engine.version
    trainer.shutdown()
    if client:
        client.engine.close()
    return client and client.calls


def _full_of_state(model: nn.Module) -> dict[str, torch.Tensor]:
    model.reshard()
    return _full(model)


def _fails_and_heals(rank: int) -> list[str]:
    model = _model()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    trainer, client = _trainer(rank, model)
    seen = []
    failures = {"update": DataLossError("verification_failed", "tile 3"), "start": InternalError("internal", "x")}
    for step, error in failures.items():
        if client:
            client.engine.fail[step] = error
        try:
            trainer.send_weights()
        except Error as raised:  # on every rank
            seen.append(raised.code)
        _change(model)
        trainer.send_weights()  # joins anew
        if client:
            client.engine.check(_full(model))
    with torch.no_grad():  # a parameter that moves
        model[1].weight = nn.Parameter(model[1].weight * 2)
    trainer.send_weights()
    if client:
        client.engine.check(_full(model))
        seen.append(str(client.engine.inits))
    trainer.shutdown()
    if client:
        client.engine.close()
    return seen


def _refused() -> list[tuple[str, str]]:
    class Other(WeightSource):
        def metadata(self) -> Any:
            raise AssertionError("the source must not be asked")

        def __iter__(self) -> Any:
            raise AssertionError("the source must not be iterated")

    found = []

    def refused(call: Any) -> None:
        try:
            call()
        except InputError as error:
            found.append((error.code, error.message))

    client = _Client(None)
    info = HeadraceTrainerInitInfo(rank=0, world_size=1, shadow="host")
    refused(lambda: HeadraceTrainerEngine.trainer_init(info, client=client, source=Other()))
    refused(lambda: _with(rank=1))
    refused(lambda: _with(shadow="disk"))
    refused(lambda: _trainer(0, _model(), torch.bfloat16))  # the parameters are F32, and nobody said that they differ
    return found


def _with(**changes: Any) -> None:
    info = HeadraceTrainerInitInfo(**{"rank": 0, "world_size": 1, "shadow": "host"} | changes)
    HeadraceTrainerEngine.trainer_init(info, client=_Client(None), source=ModuleSource(_model()))


def _http_errors() -> list[tuple[str, str]]:
    class Response:
        def __init__(self, body: Any) -> None:
            self.body = body

        def json(self) -> Any:
            if self.body is None:
                raise ValueError("no JSON")
            return self.body

    found = []
    for body in (
        {"error": DataLossError("verification_failed", "tile 3").to_json()},
        {"error": {"message": "EngineCore failed", "code": 500}},
        None,
    ):
        failure = RuntimeError("500 Server Error")
        failure.response = Response(body)

        def fail(failure: Exception = failure) -> None:
            raise failure

        try:
            _asked("update_weights", fail)
        except Error as error:
            found.append((error.code, error.message))
    return found


class TrainerTest(unittest.TestCase):
    def test_shards_go_over_as_they_lie(self) -> None:
        for cast in (False, True):
            with self.subTest(cast=cast):
                calls, nothing = run_ranks(2, _sharded, cast)
                self.assertEqual(calls, ["init"] + ["start", "update", "finish"] * 2)
                self.assertIsNone(nothing)

    def test_failures_reach_every_rank_and_heal(self) -> None:
        first, second = run_ranks(2, _fails_and_heals)
        self.assertEqual(first, ["verification_failed", "internal", "4"])
        self.assertEqual(second, ["verification_failed", "internal"])

    def test_refused(self) -> None:
        found = run_alone(_refused)
        self.assertEqual([code for code, _ in found], ["invalid_option"] * 3 + ["dtype_mismatch"])
        for said, (_, message) in zip(("ModuleSource", "rank 1", "shadow", "F32"), found):
            self.assertIn(said, message)

    def test_replies_of_an_http_client(self) -> None:
        found = run_alone(_http_errors)
        self.assertEqual(found[0], ("verification_failed", "update_weights: tile 3"))
        self.assertEqual([code for code, _ in found[1:]], ["internal"] * 2)
        self.assertIn("500 Server Error", found[2][1])


if __name__ == "__main__":
    unittest.main()
