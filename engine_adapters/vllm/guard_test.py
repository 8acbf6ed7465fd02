import inspect
import types
import unittest

from headrace.errors import StateError
from headrace.vllm.guard import refuse_when_poisoned


class Engine:
    def __init__(self, may_serve):
        self.may_serve = may_serve


class Worker:
    """What the guard sees of vLLM's worker."""

    rank = 3

    def __init__(self, engine):
        self.weight_transfer_engine = engine
        self.steps = []

    def execute_model(self, scheduler_output, *extra, **named):
        """The host's words."""
        self.steps.append((scheduler_output, extra, named))
        return "output"

    execute_model = refuse_when_poisoned(execute_model)


class Derived(Worker):
    """As the worker for CPUs is."""


def step(tokens):
    return types.SimpleNamespace(total_num_scheduled_tokens=tokens)


class GuardTest(unittest.TestCase):
    def test_a_poisoned_worker_computes_nothing(self):
        for kind in (Worker, Derived):
            worker = kind(Engine(False))
            with self.assertRaises(StateError) as raised:
                worker.execute_model(step(1))
            self.assertEqual((raised.exception.code, raised.exception.rank), ("poisoned", 3))
            self.assertEqual(worker.steps, [])

    def test_a_step_without_tokens_passes(self):
        worker = Worker(Engine(False))
        self.assertEqual(worker.execute_model(step(0)), "output")

    def test_it_asks_anew_in_each_step(self):
        worker = Worker(Engine(True))
        worker.execute_model(step(1))
        worker.weight_transfer_engine.may_serve = False
        self.assertRaises(StateError, worker.execute_model, step(1))
        worker.weight_transfer_engine.may_serve = True
        worker.execute_model(step(1))
        self.assertEqual(len(worker.steps), 2)

    def test_workers_that_are_none_of_ours(self):
        for engine in (None, object()):
            self.assertEqual(Worker(engine).execute_model(step(1)), "output")

    def test_the_call_goes_on_as_it_came(self):
        worker, asked = Worker(Engine(True)), step(2)
        worker.execute_model(asked, 1, named=2)
        self.assertEqual(worker.steps, [(asked, (1,), {"named": 2})])
        self.assertEqual(Worker.execute_model.__doc__, "The host's words.")

    def test_the_host_has_what_it_looks_at(self):
        from vllm.v1.core.sched.output import SchedulerOutput
        from vllm.v1.worker.cpu_worker import CPUWorker
        from vllm.v1.worker.gpu_worker import Worker as HostWorker

        self.assertEqual(list(inspect.signature(HostWorker.execute_model).parameters), ["self", "scheduler_output"])
        self.assertNotIn("execute_model", vars(CPUWorker))
        self.assertIn("weight_transfer_engine", inspect.getsource(HostWorker.__init__))
        self.assertIn("total_num_scheduled_tokens", SchedulerOutput.__dataclass_fields__)


if __name__ == "__main__":
    unittest.main()
