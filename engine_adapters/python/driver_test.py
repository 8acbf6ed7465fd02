"""The driver against programmable engines that check, after every call, that no request could meet mixed weights."""

from __future__ import annotations

import itertools
import threading
import unittest
from typing import Any

from headrace.driver import PAUSE_MODES, Driver, describe
from headrace.driver_testing import STEPS, FakeEngine
from headrace.errors import DataLossError, DeadlineError, Error, InputError, InternalError, PeerError, StateError

SHADOWS = ("host", "off")


def driver_of(*engines: FakeEngine, pause_mode: str = "keep", deadline: float = 5.0, **more: Any) -> Driver:
    options = {"shadow": engines[0].shadow, "transport": "host"}
    return Driver(
        list(engines),
        job="j",
        token="t",
        coordinator="c:1",
        options=options,
        pause_mode=pause_mode,
        deadline=deadline,
        **more,
    )


def publish(generation: int, *engines: FakeEngine) -> None:
    for engine in engines:
        engine.publish(generation)


def without_status(engine: FakeEngine) -> list[str]:
    return [call for call in engine.calls if call != "status"]


class SwapTest(unittest.TestCase):
    def test_order(self) -> None:
        for shadow, mode in itertools.product(SHADOWS, PAUSE_MODES):
            with self.subTest(shadow=shadow, mode=mode):
                engine = FakeEngine(shadow=shadow)
                engine.request()
                engine.publish(1)
                report = driver_of(engine, pause_mode=mode).swap(1)
                wanted = [f"pause {mode}", "start", "update", "reset_caches", "finish", "resume"]
                self.assertEqual(without_status(engine), wanted)
                self.assertEqual(engine.version, "1")
                (found,) = report["engines"]
                self.assertEqual((found["outcome"], found["state"]), ("swapped", "serving"))
                self.assertEqual(found["workers"], [{"bytes": 32}, {"bytes": 32}])
                steps = {"pause", "start", "update", "finish", "reset", "resume", "paused"}
                self.assertEqual(set(found["seconds"]), steps | ({"staged"} if shadow == "host" else set()))
                engine.request()

    def test_waits_for_every_vote_before_it_pauses(self) -> None:
        engine = FakeEngine()
        engine.publish(1)
        engine.polls_until_staged = 3
        seen: list[tuple[int, int, list[Any]]] = []
        driver_of(engine, progress=lambda i, g, workers: seen.append((i, g, [w["staged"] for w in workers]))).swap(1)
        self.assertEqual(engine.calls[:5], ["status"] * 4 + ["pause keep"])
        self.assertIn((0, 1, [None, None]), seen)
        self.assertIn((0, 1, [1, 1]), seen)

    def test_one_worker_never_stages(self) -> None:
        engine = FakeEngine()
        engine.faults["status"] = [lambda e: e.workers[1].update(staged=None)]
        engine.polls_until_staged = 10**9
        engine.workers[0]["staged"] = 1
        with self.assertRaises(DeadlineError) as raised:
            driver_of(engine, deadline=0.1).swap(1)
        self.assertIn("engine 0 (fake)", raised.exception.message)
        self.assertIn("worker 1 (waits for publisher rank 3)", raised.exception.message)
        self.assertNotIn("worker 0", raised.exception.message)
        self.assertEqual(without_status(engine), [])
        self.assertEqual(raised.exception.report["engines"][0]["state"], "untouched")

    def test_a_worker_gives_the_generation_up_while_it_streams(self) -> None:
        engine = FakeEngine()
        engine.publish(1)
        engine.polls_until_staged = 10**9
        error = DataLossError("verification_failed", "tile 3", tensor="w")
        engine.faults["status"] = [None, None, lambda e: e.fail_worker(1, error, 0)]
        with self.assertRaises(DataLossError) as raised:
            driver_of(engine).swap(1)
        self.assertEqual((raised.exception.code, raised.exception.tensor), ("verification_failed", "w"))
        self.assertIn("engine 0 (fake): worker 1: tile 3", raised.exception.message)
        self.assertEqual(raised.exception.rank, 1)
        self.assertEqual(without_status(engine), [])

    def test_an_error_of_an_earlier_generation_is_no_error_of_this_one(self) -> None:
        engine = FakeEngine()
        engine.publish(2)
        engine.polls_until_staged = 2
        engine.workers[0]["error"] = DataLossError("verification_failed", "of generation 1").to_json()

        def staged(e: FakeEngine) -> None:
            e.workers[0]["error"] = None

        engine.faults["status"] = [None, None, None, staged]
        driver_of(engine).swap(2)
        self.assertEqual(engine.workers[0]["serving"], 2)

    def test_a_generation_that_was_given_up_before_the_swap_began(self) -> None:
        engine = FakeEngine()
        driver = driver_of(engine)
        driver.init()
        for generation in (1, 2):
            engine.fail_worker(1, DataLossError("verification_failed", f"tile {generation}"), 0)
            with self.assertRaises(DataLossError) as raised:
                driver.swap(generation)
            self.assertIn(f"worker 1: tile {generation}", raised.exception.message)
        self.assertEqual(without_status(engine), ["init"])
        # The last error is still shown while the next generation streams.
        engine.publish(3)
        engine.faults["status"] = [None, None, lambda e: e.workers[1].update(error=None)]
        driver.swap(3)
        self.assertEqual(engine.workers[1]["serving"], 3)

    def test_a_session_that_is_over(self) -> None:
        for shadow in SHADOWS:
            with self.subTest(shadow=shadow):
                engine = FakeEngine(shadow=shadow)
                error = PeerError("peer_lost", "publisher rank 0 died")
                engine.workers[1] |= {"joined": False, "error": error.to_json()}
                with self.assertRaises(PeerError) as raised:
                    driver_of(engine).swap(1)
                self.assertIn("publisher rank 0 died", raised.exception.message)
                engine.workers[1]["error"] = None
                with self.assertRaises(StateError) as raised_state:
                    driver_of(engine).swap(1)
                self.assertIn("init() comes first", raised_state.exception.message)
                self.assertEqual(without_status(engine), [])


class FailureTest(unittest.TestCase):
    """Every step fails in every way, with each shadow and pause mode, beside an engine that is well."""

    def cases(self) -> Any:
        for step in STEPS[1:]:
            for fault in ("before", "after") + (("torn", "half") if step == "update" else ()):
                for forever in (False, True):
                    for shadow, mode in itertools.product(SHADOWS, PAUSE_MODES):
                        if step != "set_version":  # only called when finish has failed
                            yield {step: fault}, forever, shadow, mode
                        else:
                            yield {"finish": "before", step: fault}, forever, shadow, mode

    def test_every_failure(self) -> None:
        for faults, forever, shadow, mode in self.cases():
            with self.subTest(faults=faults, forever=forever, shadow=shadow, mode=mode):
                bad, good = FakeEngine("bad", shadow=shadow), FakeEngine("good", shadow=shadow)
                publish(1, bad, good)
                driver = driver_of(bad, good, pause_mode=mode, deadline=0.15)
                driver.swap(1)
                bad.request()
                good.request()
                publish(2, bad, good)
                bad.faults = {step: [fault] for step, fault in faults.items()}
                bad.forever = set(faults) if forever else set()
                error: Error | None = None
                try:
                    driver.swap(2)
                except Error as e:
                    error = e
                # Whatever happened, the other engine has the new weights and answers.
                self.assertEqual([w["serving"] for w in good.workers], [2, 2])
                self.assertFalse(good.paused)
                good.request()
                serving = [w["serving"] for w in bad.workers]
                if None in serving or len(set(serving)) > 1:
                    self.assertTrue(bad.paused)
                    self.assertIsInstance(error, StateError)
                    self.assertEqual(error.code, "poisoned")
                    self.assertEqual(error.rank, 0 if None in serving else None)
                elif not forever:
                    self.assertFalse(bad.paused, f"it could serve {serving}")
                if "finish" not in faults:
                    self.assertFalse(any(worker["session"] for worker in bad.workers), "a session was left open")
                if error is None:
                    self.assertEqual(serving, [2, 2])
                    self.assertEqual(bad.version, "2")
                    self.assertFalse(bad.paused)
                else:
                    self.assertIn("engine 0 (bad)", error.message)
                    outcomes = [(e["engine"], e["outcome"]) for e in error.report["engines"]]
                    self.assertEqual(outcomes, [(0, "failed"), (1, "swapped")])
                    state = "unknown" if "resume" in faults else "paused" if bad.paused else "serving"
                    self.assertEqual(error.report["engines"][0]["state"], state)
                # It heals by a following full generation, without a restart.
                bad.faults.clear()
                bad.announced = [g for g in bad.announced if g > 2]
                for worker in bad.workers:
                    worker |= {"staged": None, "error": None}
                publish(3, bad, good)
                driver_of(bad, good, pause_mode=mode).swap(3)
                for engine in (bad, good):
                    self.assertEqual([w["serving"] for w in engine.workers], [3, 3])
                    self.assertEqual(engine.version, "3")
                    engine.request()

    def test_which_failures_are_mended(self) -> None:
        """A single lost response of a step that was done, or a step that may be repeated, fails no swap."""
        mended = {("update", "after"), ("finish", "before"), ("finish", "after"), ("reset_caches", "before")}
        mended |= {("reset_caches", "after"), ("resume", "before"), ("resume", "after"), ("start", "after")}
        steps = ("pause", "start", "update", "finish", "reset_caches", "resume")
        for step, fault in itertools.product(steps, ("before", "after")):
            with self.subTest(step=step, fault=fault):
                engine = FakeEngine()
                engine.publish(1)
                engine.faults[step] = [fault]
                if (step, fault) in mended:
                    report = driver_of(engine).swap(1)
                    self.assertEqual(engine.workers[1]["serving"], 1)
                    self.assertEqual(engine.version, "1")
                    if step in ("start", "update", "finish"):
                        self.assertIn("by plan", report["engines"][0]["notes"][0])
                else:
                    with self.assertRaises(Error) as raised:
                        driver_of(engine).swap(1)
                    self.assertEqual(engine.workers[1]["serving"], 0)
                    self.assertIn("it serves generation 0 on", raised.exception.message)

    def test_poisoned_stays_paused_and_names_the_worker_and_the_cause(self) -> None:
        engine = FakeEngine(shadow="off")
        engine.publish(1)
        engine.faults["update"] = ["torn"]
        with self.assertRaises(StateError) as raised:
            driver_of(engine).swap(1)
        self.assertEqual((raised.exception.code, raised.exception.rank), ("poisoned", 0))
        self.assertIn("worker 0: tile 3 of tensor w", raised.exception.message)
        self.assertIn("worker 0 nothing, worker 1 0", raised.exception.message)
        self.assertTrue(engine.paused)
        self.assertNotIn("resume", engine.calls)
        # The next generation fails before it touches anything: still paused.
        engine.faults["pause"] = ["before"]
        engine.publish(2)
        engine.workers[0]["error"] = None
        with self.assertRaises(StateError):
            driver_of(engine).swap(2)
        self.assertTrue(engine.paused)
        driver_of(engine).swap(2)
        engine.request()

    def test_workers_that_disagree_after_an_update_without_an_error(self) -> None:
        engine = FakeEngine()
        engine.publish(1)
        engine.faults["status"] = [None, None, lambda e: e.workers[1].update(serving=0, staged=1)]
        with self.assertRaises(StateError) as raised:
            driver_of(engine).swap(1)
        self.assertIn("worker 0 1, worker 1 0", raised.exception.message)
        self.assertTrue(engine.paused)
        self.assertEqual(engine.version, "unset")

    def test_nobody_knows_what_is_served(self) -> None:
        engine = FakeEngine()
        engine.publish(1)
        engine.faults["update"] = [lambda e: e.faults.update(status=["before"])]
        engine.forever = {"status"}
        with self.assertRaises(InternalError) as raised:
            driver_of(engine, deadline=0.1).swap(1)
        self.assertIn("did not say what they serve", raised.exception.message)
        self.assertTrue(engine.paused)
        # The commit had been made: the same swap again completes it.
        engine.faults.clear()
        engine.calls.clear()
        driver_of(engine).swap(1)
        self.assertNotIn("update", engine.calls)
        self.assertEqual(engine.version, "1")
        engine.request()

    def test_caches_that_cannot_be_reset(self) -> None:
        engine = FakeEngine()
        engine.publish(1)
        engine.faults["reset_caches"] = ["before"]
        engine.forever = {"reset_caches"}
        with self.assertRaises(InternalError) as raised:
            driver_of(engine, deadline=0.1).swap(1)
        self.assertIn("caches were not reset", raised.exception.message)
        self.assertTrue(engine.paused)
        self.assertGreater(engine.calls.count("reset_caches"), 1)

    def test_an_open_session_of_before_is_closed(self) -> None:
        engine = FakeEngine()
        for worker in engine.workers:
            worker["session"] = True
        engine.publish(1)
        report = driver_of(engine).swap(1)
        self.assertEqual(without_status(engine)[1:5], ["start", "finish", "start", "update"])
        self.assertIn("already active", report["engines"][0]["notes"][0])

    def test_several_engines_fail(self) -> None:
        engines = [FakeEngine(f"e{i}") for i in range(3)]
        publish(1, *engines)
        for engine in engines[1:]:
            engine.faults["pause"] = ["before"]
        with self.assertRaises(InternalError) as raised:
            driver_of(*engines).swap(1)
        self.assertIn("engine 1 (e1)", raised.exception.message)
        self.assertIn("; also: internal: engine 2 (e2)", raised.exception.message)
        self.assertEqual(engines[0].workers[0]["serving"], 1)


class InitTest(unittest.TestCase):
    def test_engines_of_a_job_that_has_others(self) -> None:
        engines = [FakeEngine("a"), FakeEngine("b")]
        driver = Driver(
            list(engines), job="j", token="t", coordinator="c:1", options={"shadow": "host", "engine": 3}, deadline=5.0
        )
        driver.init()
        self.assertEqual([engine.info["engine"] for engine in engines], [3, 4])
        engines[1].faults["init"] = ["before"]
        with self.assertRaises(InternalError) as raised:
            driver.init()
        self.assertIn("engine 4 (b)", raised.exception.message)
        publish(1, *engines)
        self.assertEqual([found["engine"] for found in driver.swap(1)["engines"]], [3, 4])
        for wrong in (-1, "0", True):
            with self.subTest(wrong), self.assertRaises(InputError):
                Driver(list(engines), options={"shadow": "host", "engine": wrong})

    def test_an_engine_that_was_lost_joins_again(self) -> None:
        for shadow in SHADOWS:
            with self.subTest(shadow=shadow):
                engines = [FakeEngine("a", shadow=shadow), FakeEngine("b", shadow=shadow)]
                driver = driver_of(*engines)
                driver.init()
                publish(1, *engines)
                driver.swap(1, rejoin=True)
                lost = PeerError("peer_lost", "engine 1 worker 0 fell silent").to_json()
                for worker in engines[1].workers:
                    worker |= {"joined": False, "error": lost}

                def joined(engine: FakeEngine) -> None:
                    for worker in engine.workers:
                        worker |= {"joined": True, "error": None, "inherited": True}

                publish(2, *engines)
                with self.assertRaises(PeerError):
                    driver_of(engines[1]).swap(2)  # it was not told to
                engines[1].faults["init"] = [joined]
                report = driver.swap(2, rejoin=True)
                self.assertEqual([engine.calls.count("init") for engine in engines], [1, 2])
                self.assertEqual(report["engines"][0]["notes"], [])
                (note,) = report["engines"][1]["notes"]
                self.assertIn("joined the job again", note)
                self.assertIn("engine 1 worker 0 fell silent", note)
                self.assertEqual([w["serving"] for engine in engines for w in engine.workers], [2] * 4)

    def test_an_engine_that_cannot_join_again_hurts_no_other(self) -> None:
        engines = [FakeEngine("a"), FakeEngine("b")]
        driver = driver_of(*engines)
        publish(1, *engines)
        engines[0].workers[1]["joined"] = False
        engines[0].faults["init"] = ["before"]
        with self.assertRaises(InternalError) as raised:
            driver.swap(1, rejoin=True)
        self.assertEqual(raised.exception.message.count("engine 0 (a)"), 1)
        self.assertEqual(engines[1].workers[0]["serving"], 1)
        self.assertFalse(engines[0].paused)
        with self.assertRaises(InputError):
            Driver([engines[0]], options={"shadow": "host"}).swap(2, rejoin=True)

    def test_each_engine_gets_its_index(self) -> None:
        engines = [FakeEngine("a"), FakeEngine("b")]
        driver_of(*engines).init()
        for i, engine in enumerate(engines):
            wanted = {"job": "j", "token": "t", "coordinator": "c:1", "shadow": "host", "transport": "host"}
            self.assertEqual(engine.info, wanted | {"engine": i})

    def test_errors_name_the_engine(self) -> None:
        engines = [FakeEngine("a"), FakeEngine("b")]
        engines[1].faults["init"] = ["before"]
        with self.assertRaises(InternalError) as raised:
            driver_of(*engines).init()
        self.assertIn("engine 1 (b)", raised.exception.message)

    def test_an_engine_that_fails_is_told_while_others_still_wait_for_it(self) -> None:
        engines = [FakeEngine("a"), FakeEngine("b")]
        stopped = threading.Event()
        self.addCleanup(stopped.set)
        engines[0].init = lambda info: stopped.wait(60)  # type: ignore[assignment,method-assign]
        engines[1].faults["init"] = ["before"]
        with self.assertRaises(InternalError):
            driver_of(*engines).init()
        self.assertFalse(stopped.is_set())

    def test_a_number_that_an_earlier_job_served(self) -> None:
        engine = FakeEngine(shadow="off")
        for worker in engine.workers:
            worker["serving"] = 1
        engine.cached = {1}
        driver = driver_of(engine)
        driver.init()
        engine.publish(1)
        driver.swap(1)
        self.assertIn("update", engine.calls)

    def test_a_number_of_an_earlier_job_is_known_without_an_init(self) -> None:
        engine = FakeEngine()
        for worker in engine.workers:
            worker["serving"] = 5
        engine.cached = {5}
        engine.publish(5)
        Driver([engine], options={"shadow": "host"}, deadline=5.0).swap(5)  # another driver had it join
        self.assertIn("update", engine.calls)

    def test_an_engine_that_another_job_took(self) -> None:
        engine = FakeEngine()
        engine.publish(1)
        driver = Driver([engine], job="mine", options={"shadow": "host"}, deadline=5.0)
        with self.assertRaises(StateError) as raised:
            driver.swap(1)
        self.assertEqual(raised.exception.code, "wrong_job")
        self.assertNotIn("pause", engine.calls)

    def test_after_a_commit_it_is_resumed_only_with_the_new_version(self) -> None:
        engine = FakeEngine()
        engine.publish(1)
        engine.faults |= {"finish": ["before"], "set_version": ["before"]}
        driver = driver_of(engine)
        try:
            driver.swap(1)
        except Error:
            pass
        self.assertEqual((engine.paused, engine.version), (False, "1"))

    def test_options(self) -> None:
        bad: list[dict[str, Any]] = [
            {"options": {}},
            {"options": {"shadow": "disk"}},
            {"options": {"shadow": "host"}, "pause_mode": "stop"},
            {"options": {"shadow": "host"}, "deadline": 0},
        ]
        for options in bad:
            with self.subTest(options=options), self.assertRaises(InputError) as raised:
                Driver([FakeEngine()], **options)
            self.assertEqual(raised.exception.code, "invalid_option")
        with self.assertRaises(InputError):
            Driver([], options={"shadow": "host"})
        with self.assertRaises(InputError) as raised:
            Driver([FakeEngine()], options={"shadow": "host"}).init()
        self.assertIn("job, token, coordinator", raised.exception.message)
        with self.assertRaises(InputError):
            driver_of(FakeEngine()).swap(0)


class DescribeTest(unittest.TestCase):
    def test_merges(self) -> None:
        a, b = FakeEngine("a"), FakeEngine("b", workers=1, shadow="off")
        b.tensors = [*a.tensors, {"name": "head", "shape": [8], "dtype": "BF16"}]
        merged = describe([a, b])
        self.assertEqual(merged["workers"], [2, 1])
        self.assertEqual(merged["shadow"], ["host", "off"])
        wanted = {"w": {"shape": [4, 2], "dtype": "F32"}, "head": {"shape": [8], "dtype": "BF16"}}
        self.assertEqual(merged["tensors"], wanted)

    def test_engines_that_disagree(self) -> None:
        for field, value in (("shape", [4, 3]), ("dtype", "BF16")):
            with self.subTest(field=field):
                a, b = FakeEngine("a"), FakeEngine("b")
                b.tensors = [a.tensors[0] | {field: value}]
                with self.assertRaises(InputError) as raised:
                    describe([a, b])
                self.assertEqual(raised.exception.code, f"{field}_mismatch")
                self.assertEqual(raised.exception.tensor, "w")
                self.assertIn("engine 1 (b), worker 0", raised.exception.message)

    def test_a_worker_that_does_not_answer(self) -> None:
        engine = FakeEngine()
        all_of_them = engine.describe()
        engine.describe = lambda: all_of_them[:1]  # type: ignore[method-assign]
        with self.assertRaises(InputError) as raised:
            describe([engine])
        self.assertIn("has 2 workers", raised.exception.message)


if __name__ == "__main__":
    unittest.main()
