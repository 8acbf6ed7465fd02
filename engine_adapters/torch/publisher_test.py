"""The publisher of real process groups, into engines with real receivers."""

import itertools
import os
import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from headrace.errors import Error, InternalError, PeerError
from headrace.torch import Publisher
from headrace.torch.testing import run_alone, run_ranks
from headrace.torch.testing_engine import TestEngine

_WIDTH, _HIDDEN, _VOCABULARY = 6, 10, 13


class _Tiny(nn.Module):
    """A language model without attention, with tied embeddings where asked for."""

    def __init__(self, tied):
        super().__init__()
        torch.manual_seed(7)
        self.embed = nn.Embedding(_VOCABULARY, _WIDTH)
        self.up = nn.Linear(_WIDTH, _HIDDEN)
        self.down = nn.Linear(_HIDDEN, _WIDTH, bias=False)
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, _VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(self.norm(x + self.down(torch.relu(self.up(x)))))


def _wanted(dtype, tied):
    shapes = {name: tuple(tensor.shape) for name, tensor in _Tiny(tied).state_dict().items()}
    if tied:
        del shapes["head.weight"]
    return {name: (shape, dtype) for name, shape in shapes.items()}


def _train(model):
    """One step on the same batch everywhere; returns the full tensors, gathered by torch for the oracle alone."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(torch.arange(_VOCABULARY)[None]).square().mean().backward()
    optimizer.step()


def _fulls(model):
    return {
        name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.clone()
        for name, tensor in model.state_dict().items()
    }


def _fsdp(model, world):
    return fully_shard(model)


def _fsdp_bf16(model, world):
    return fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))


def _hsdp(model, world):
    return fully_shard(model, mesh=init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard")))


def _fsdp_over_tp(model, world):
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("fsdp", "tp"))
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return fully_shard(model, mesh=mesh["fsdp"])


def _replicated(model, world):
    return model


def _engine(rank, *args, **kwargs):
    """Rank 0's engine; the others drive none."""
    return TestEngine(*args, **kwargs) if rank == 0 else None


def _generations(rank, world, place, dtype, tied, workers, publishing="snapshot"):
    model = place(_Tiny(tied), world)
    engine = _engine(rank, _wanted(dtype, tied), workers)
    publisher = Publisher(model, [engine] if engine else [], shadow="host", publishing=publishing, timeout=60)
    for generation in (1, 2, 5):
        _train(model)
        if generation == 2:
            with torch.no_grad():
                model(torch.arange(3)[None])  # FSDP2 leaves full tensors in the root's parameters
        fulls = _fulls(model)
        if generation == 2:
            with torch.no_grad():
                model(torch.arange(3)[None])
        report = publisher.publish(generation, wait=True)
        assert [stats["rank"] for stats in report["trainer"]] == list(range(world))
        assert report["joined"] == ("the first time" if generation == 1 else None), report["joined"]
        if engine:
            engine.check(fulls)
            assert engine.version == str(generation)
    publisher.close()
    if engine:
        assert engine.inits == 1
        engine.close()


def _caught(call):
    try:
        call()
    except Error as error:
        return type(error).__name__, error.code, error.message
    return None


class PublisherTest(unittest.TestCase):
    def test_a_single_process_without_torch_distributed(self):
        for dtype, tied, workers in itertools.product([torch.float32, torch.bfloat16], [True, False], [1, 2]):
            with self.subTest(dtype=dtype, tied=tied, workers=workers):
                run_alone(_generations, 0, 1, _replicated, dtype, tied, workers)

    def test_weights_that_are_held(self):
        for place in (_fsdp, _fsdp_over_tp):
            with self.subTest(place=place.__name__):
                run_ranks(2, _generations, 2, place, torch.float32, True, 2, "hold")

    def test_two_ranks(self):
        for place, dtype in [(_fsdp, torch.bfloat16), (_fsdp_bf16, torch.float32), (_fsdp_over_tp, torch.float32)]:
            with self.subTest(place=place.__name__):
                run_ranks(2, _generations, 2, place, dtype, True, 2)

    def test_four_ranks(self):
        for place in (_hsdp, _fsdp_over_tp, _replicated):
            with self.subTest(place=place.__name__):
                run_ranks(4, _generations, 4, place, torch.bfloat16, False, 2)

    def test_training_goes_on_while_engines_swap(self):
        def rank(rank):
            model = _fsdp(_Tiny(True), 2)
            engine = _engine(rank, _wanted(torch.float32, True))
            with Publisher(model, [engine] if engine else [], shadow="host", timeout=60) as publisher:
                for generation in range(1, 6):
                    fulls = _fulls(model)
                    publisher.publish(generation)
                    _train(model)
                publisher.wait()
                if engine:
                    engine.check(fulls)
            if engine:
                engine.close()

        run_ranks(2, rank)

    def test_a_state_dict_under_other_names(self):
        def alone():
            model = nn.Module()
            model.lm = torch.compile(nn.Linear(3, 2))
            model.value = nn.Linear(2, 1)
            engine = TestEngine({"out.w": ((2, 3), torch.float32), "lm.bias": ((2,), torch.float32)})
            names = {"lm.weight": "out.w", "value.weight": None, "value.bias": None}
            with Publisher(dict(model.state_dict()), [engine], shadow="host", names=names) as publisher:
                publisher.publish(1, wait=True)
            engine.check({"out.w": model.lm.weight, "lm.bias": model.lm.bias})
            engine.close()

        run_alone(alone)

    def test_widening_is_exact(self):
        def alone():
            model = _Tiny(True).to(torch.bfloat16)
            engine = TestEngine(_wanted(torch.float32, True))
            with Publisher(model, [engine], shadow="host") as publisher:
                publisher.publish(1, wait=True)
            engine.check(model.state_dict())
            engine.close()

        run_alone(alone)

    def test_moved_storage_joins_anew(self):
        def rank(rank):
            model = _fsdp(_Tiny(True), 2)
            engine = _engine(rank, _wanted(torch.float32, True))
            publisher = Publisher(model, [engine] if engine else [], shadow="host", timeout=60)
            publisher.publish(1)
            state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            state["embed.weight"] = state["head.weight"] = state["embed.weight"] + 1
            model.load_state_dict(state, assign=True)
            fulls = _fulls(model)
            report = publisher.publish(2, wait=True)
            assert "has moved" in report["joined"], report
            if engine:
                assert engine.inits == 2
                engine.check(fulls)
            publisher.close()
            if engine:
                engine.close()

        run_ranks(2, rank)

    def test_a_lost_worker_is_joined_again_by_the_next_publish(self):
        def rank(rank):
            model = _fsdp(_Tiny(True), 2)
            engine = _engine(rank, _wanted(torch.float32, True), 2)
            publisher = Publisher(model, [engine] if engine else [], shadow="host", timeout=60)
            publisher.publish(1, wait=True)
            if engine:
                engine.lose_worker()
                while any(worker["joined"] for worker in engine.status()):  # the news is on its way
                    pass
            dist.barrier()
            _train(model)
            fulls = _fulls(model)
            report = publisher.publish(2, wait=True)
            assert report["joined"] is None, report
            (note,) = report["engines"][0]["notes"]
            assert "joined the job again" in note and "the test lost this worker" in note, note
            if engine:
                engine.check(fulls)
                assert engine.inits == 2, engine.inits
            publisher.close()
            if engine:
                engine.close()

        run_ranks(2, rank)

    def test_what_fails_in_an_engine_is_raised_on_every_rank(self):
        def rank(rank):
            model = _fsdp(_Tiny(True), 2)
            engine = _engine(rank, _wanted(torch.float32, True))
            seen = []
            for step in ("describe", "init"):
                if engine:
                    engine.fail[step] = InternalError("internal", f"no {step} today")
                seen.append(_caught(lambda: Publisher(model, [engine] if engine else [], shadow="host", timeout=60)))
            publisher = Publisher(model, [engine] if engine else [], shadow="host", timeout=60)
            if engine:
                engine.fail["update"] = InternalError("internal", "no update today")
            seen.append(_caught(lambda: publisher.publish(1, wait=True)))
            if engine:
                engine.fail["update"] = InternalError("internal", "no update again")
            publisher.publish(1)
            if engine:
                publisher._swap.exception()
            dist.barrier()
            seen.append(_caught(lambda: publisher.publish(2)))  # what wait() was not asked for
            fulls = _fulls(model)
            publisher.publish(2, wait=True)
            if engine:
                engine.check(fulls)
            publisher.close()
            if engine:
                engine.close()
            return seen

        for seen in run_ranks(2, rank):
            self.assertEqual([code for _, code, _ in seen], ["internal"] * 4)
            for (_, _, message), said in zip(seen, ["no describe", "no init", "no update today", "no update again"]):
                self.assertIn(said, message)

    def test_declarations_that_do_not_fit(self):
        def rank(rank):
            wanted = _wanted(torch.float32, True)
            seen = []

            def refused(change, model=None, **options):
                changed = dict(wanted)
                change(changed)
                engine = _engine(rank, changed)
                model = model or _fsdp(_Tiny(True), 2)
                seen.append(_caught(lambda: Publisher(model, [engine] if engine else [], shadow="host", **options)))

            refused(lambda w: w.pop("norm.bias"))
            refused(lambda w: w.update({"rope.weight": ((4,), torch.float32)}))
            refused(lambda w: w.update({"norm.bias": ((7,), torch.float32)}))
            refused(lambda w: w.update({"norm.bias": ((_WIDTH,), torch.int32)}))
            refused(lambda w: None, names={"norm.wait": "norm.weight"})
            refused(lambda w: None, names=lambda name: "norm.bias" if name == "norm.weight" else name)
            alone = _fsdp(_Tiny(True), 2)
            if rank == 1:
                alone = dict(alone.state_dict(), extra=7)
            refused(lambda w: None, model=alone)
            return seen

        expected = [
            ("unwanted", "norm.bias"),
            ("uncovered", "rope.weight"),
            ("shape_mismatch", "norm.bias"),
            ("dtype_mismatch", "norm.bias"),
            ("unknown_tensor", "norm.wait"),
            ("malformed", "norm.bias"),
            ("malformed", "extra"),
        ]
        for seen in run_ranks(2, rank):
            for (kind, code, message), (wanted, mentions) in zip(seen, expected, strict=True):
                self.assertEqual((kind, code), ("InputError", wanted), message)
                self.assertIn(mentions, message)

    def test_states(self):
        def alone():
            engine = TestEngine(_wanted(torch.float32, True))
            publisher = Publisher(_Tiny(True), [engine], shadow="host", timeout=60)
            seen = [_caught(publisher.wait)]
            publisher.publish(3, wait=True)
            seen.append(_caught(lambda: publisher.publish(3)))
            assert publisher.publish(4, wait=True)["joined"] is None
            publisher.close()
            publisher.close()
            seen.append(_caught(lambda: publisher.publish(5)))
            engine.close()
            return [error[:2] for error in seen]

        codes = ["invalid_option", "generation_not_growing", "closed"]
        self.assertEqual(run_alone(alone), [("StateError", code) for code in codes])

    def test_a_rank_that_dies_leaves_no_other_waiting(self):
        def rank(rank):
            model = _fsdp(_Tiny(True), 2)
            engine = _engine(rank, _wanted(torch.float32, True))
            publisher = Publisher(model, [engine] if engine else [], shadow="host", timeout=60)
            if rank == 1:
                os._exit(1)
            try:
                publisher.publish(1, wait=True)
            except PeerError as error:
                os._exit(0 if error.code == "peer_lost" else 2)
            os._exit(3)

        with self.assertRaises(AssertionError) as caught:
            run_ranks(2, rank)
        self.assertIn("died", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
