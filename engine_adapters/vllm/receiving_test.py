import logging
import os
import threading
import unittest
from unittest import mock

from headrace.errors import DataLossError, DeadlineError, Error, InternalError, PeerError, StateError
from headrace.vllm import receiving
from headrace.vllm.receiving import Receiving
from headrace.vllm.receiving_testing import FakeReceiver

_LOST = PeerError("peer_lost", "publisher 0 is gone", peer="publisher 0")


class ReceivingTest(unittest.TestCase):
    def session(self, shadow: bool = True, timeout: float = 30.0, restate=dict) -> Receiving:
        self.receiver = FakeReceiver("host" if shadow else "off")
        self.errors: list[Error] = []
        session = Receiving(
            self.receiver, restate, shadow=shadow, transfer_timeout=timeout, on_error=self.errors.append
        )
        self.addCleanup(self.end, session)
        return session

    def end(self, session: Receiving) -> None:
        self.receiver.may_stage.set()
        if not self.receiver.closed:
            session.close(10)

    def test_streams_in_order_and_waits_for_each_commit(self):
        session = self.session()
        for generation in (1, 2, 3):
            self.receiver.announced.put(generation)
        for generation in (1, 2, 3):
            session.obtain(generation)
            self.assertEqual(session.staged, generation)
            session.commit(generation)
            self.assertEqual(session.serving, generation)
        expected = [f"{what} {g}" for g in (1, 2, 3) for what in ("stage", "commit")]
        self.assertEqual(self.receiver.log, expected)

    def test_nobody_looks_at_the_live_buffers_between_staging_and_commit(self):
        looks = []
        session = self.session(restate=lambda: looks.append(self.receiver.log.copy()) or {})
        for generation in (1, 2):
            self.receiver.announced.put(generation)
        session.obtain(1)
        session.apply(1)
        self.assertIsNone(session.serving)
        self.assertEqual(len(looks), 1)
        self.receiver.log.append("loader")
        session.commit(1)
        session.obtain(2)
        self.assertEqual(looks, [[], ["stage 1", "apply 1", "loader", "commit 1"]])

    def test_the_first_live_write_is_told_the_stream_of_the_engines_steps(self):
        self.receiver = FakeReceiver()
        entered: list[tuple[str, list[str]]] = []
        session = Receiving(
            self.receiver,
            dict,
            shadow=True,
            transfer_timeout=30.0,
            on_error=self.fail,
            stream=lambda: 77,
            use_gpu=lambda: entered.append((threading.current_thread().name, self.receiver.log.copy())),
        )
        self.addCleanup(self.end, session)
        self.receiver.announced.put(1)
        session.obtain(1)
        session.apply(1)
        session.commit(1)
        self.assertEqual(self.receiver.log, ["stage 1", "apply 1 after 77", "commit 1"])
        self.assertEqual(entered, [("headrace-stream", [])])

    def test_in_place_does_nothing_before_it_is_asked(self):
        session = self.session(shadow=False)
        self.receiver.announced.put(1)
        self.assertEqual(self.receiver.log, [])
        session.obtain(1)
        session.commit(1)
        self.assertEqual(self.receiver.log, ["stage 1", "commit 1"])

    def test_another_generation_comes_first(self):
        for shadow in (True, False):
            with self.subTest(shadow=shadow):
                session = self.session(shadow)
                self.receiver.announced.put(1)
                with self.assertRaisesRegex(StateError, "malformed: generation 2 .* but 1 comes first"):
                    session.obtain(2)
                session.obtain(1)  # nothing was lost
                session.commit(1)
                self.assertEqual(session.serving, 1)

    def test_a_stale_version_is_refused(self):
        for shadow in (True, False):
            with self.subTest(shadow=shadow):
                session = self.session(shadow)
                self.receiver.announced.put(5)
                session.obtain(5)
                session.commit(5)
                for stale in (4, 5):
                    with self.assertRaises(StateError) as raised:
                        session.obtain(stale)
                    self.assertEqual(raised.exception.code, "generation_not_growing")
                self.assertTrue(session.joined)

    def test_a_generation_that_nobody_publishes(self):
        for shadow in (True, False):
            with self.subTest(shadow=shadow):
                session = self.session(shadow, timeout=0.05)
                self.receiver.waiting_for = "publisher rank 1"
                with self.assertRaisesRegex(DeadlineError, "generation 1 was not published .*publisher rank 1"):
                    session.obtain(1)
                self.assertTrue(session.joined)

    def test_a_generation_that_was_given_up_and_the_next(self):
        for shadow in (True, False):
            with self.subTest(shadow=shadow):
                session = self.session(shadow)
                self.receiver.stage_errors[1] = DataLossError("verification_failed", "t differs", tensor="t")
                self.receiver.announced.put(1)
                with self.assertRaises(DataLossError) as raised:
                    session.obtain(1)
                self.assertEqual(raised.exception.tensor, "t")
                self.assertEqual([error.code for error in self.errors], ["verification_failed"])
                self.assertTrue(session.joined)
                self.receiver.announced.put(2)
                session.obtain(2)
                session.commit(2)
                self.assertEqual(session.serving, 2)

    def test_death_while_the_host_waits(self):
        session = self.session()
        self.receiver.may_stage.clear()
        self.receiver.announced.put(1)
        raised: list[Error] = []

        def wait() -> None:
            try:
                session.obtain(1)
            except Error as error:
                raised.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        self.receiver.end(_LOST)
        self.receiver.may_stage.set()
        waiting.join(30)
        self.assertEqual(raised, [_LOST])
        self.assertFalse(session.joined)
        self.assertEqual(session.serving, 0)
        self.assertEqual(self.errors, [_LOST])
        with self.assertRaises(PeerError):
            session.obtain(2)

    def test_death_between_staging_and_commit_is_seen_and_serves_on(self):
        session = self.session()
        self.receiver.announced.put(1)
        session.obtain(1)
        self.receiver.end(_LOST)
        self.assertFalse(session.joined)
        self.assertEqual(self.errors, [_LOST])
        with self.assertRaises(PeerError):
            session.commit(1)
        self.assertEqual(session.serving, 0)

    def test_a_lost_member_is_waited_for_while_the_session_stands(self):
        session = self.session()
        self.receiver.wait_errors = [_LOST, _LOST]
        while self.receiver.wait_errors:
            pass
        self.receiver.announced.put(1)
        session.obtain(1)
        session.commit(1)
        self.assertEqual((session.serving, self.errors), (1, []))
        self.receiver.wait_errors = [PeerError("aborted", "publisher 0 left")]  # none can come any more
        with self.assertRaises(PeerError):
            session.obtain(2)
        self.assertFalse(session.joined)

    def test_a_commit_that_fails_in_a_session_that_stands(self):
        for shadow in (True, False):
            with self.subTest(shadow=shadow):
                session = self.session(shadow)
                self.receiver.survives = True
                self.receiver.commit_errors[1] = PeerError("peer_lost", "engine 0 worker 1 fell silent")
                self.receiver.announced.put(1)
                session.obtain(1)
                session.apply(1)
                with self.assertRaises(PeerError):
                    session.commit(1)
                self.assertTrue(session.joined)
                self.assertIsNone(session.serving)
                self.assertEqual([error.code for error in self.errors], ["peer_lost"])
                self.receiver.announced.put(1)  # the engine is whole again
                while shadow and session.staged is None:
                    pass
                session.obtain(1)
                session.apply(1)
                session.commit(1)
                self.assertEqual(session.serving, 1)

    def test_abandon_poisons_and_ends(self):
        for applied in (False, True):
            with self.subTest(applied=applied):
                session = self.session()
                self.receiver.announced.put(1)
                session.obtain(1)
                if applied:
                    session.apply(1)
                session.abandon(InternalError("uncovered", "half a layer"))
                self.assertIsNone(session.serving)
                self.assertFalse(session.joined)
                self.assertTrue(session.close(10)["poisoned"])

    def test_moved_buffers_are_the_restatement_s_to_tell(self):
        def gone():
            raise StateError("destination_moved", "w is gone", buffer="w")

        for shadow in (True, False):
            with self.subTest(shadow=shadow):
                session = self.session(shadow, restate=gone)
                self.receiver.memory = {"w": 1}
                self.receiver.announced.put(1)
                with self.assertRaises(StateError) as raised:
                    session.obtain(1)
                self.assertEqual(raised.exception.buffer, "w")
                self.assertEqual([error.buffer for error in self.errors], ["w"])
                self.assertEqual(self.receiver.log, [])  # it refused, so that it could vote
                self.assertEqual(self.receiver.refused, [1])

    def test_a_defect_in_the_thread_reaches_the_host(self):
        session = self.session(restate=lambda: 1 / 0)
        self.receiver.announced.put(1)
        with self.assertRaisesRegex(InternalError, "ZeroDivisionError"):
            session.obtain(1)

    def test_closing_while_it_streams_waits_for_the_stream(self):
        session = self.session()
        self.receiver.may_stage.clear()
        self.receiver.announced.put(1)
        carried = []
        closing = threading.Thread(target=lambda: carried.append(session.close(10)))
        closing.start()
        self.receiver.may_stage.set()
        closing.join(30)
        self.assertEqual(carried[0]["poisoned"], False)
        self.assertTrue(self.receiver.closed)

    @mock.patch.object(receiving, "_POLL", 0.001)
    def test_a_thousand_sessions_leave_nothing(self):
        threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
        for i in range(1000):
            receiver = FakeReceiver()
            session = Receiving(receiver, dict, shadow=True, transfer_timeout=10, on_error=lambda error: None)
            if i % 3 == 0:
                receiver.end(_LOST)
            elif i % 3 == 1:
                receiver.announced.put(1)
                session.obtain(1)
            session.close(10)
        self.assertEqual(threading.active_count(), threads)
        self.assertEqual(len(os.listdir("/proc/self/fd")), files)


def setUpModule() -> None:
    logging.getLogger("vllm.headrace").setLevel(logging.CRITICAL)


if __name__ == "__main__":
    unittest.main()
