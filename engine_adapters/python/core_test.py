from __future__ import annotations

import gc
import json
import multiprocessing
import pickle
import struct
import subprocess
import tempfile
import threading
import time
import unittest
import weakref
from pathlib import Path
from typing import Any

from headrace import core, errors
from headrace.core_testing import TOKEN, Job, Live, Source, box, destination_part, source_part, together


def manifest() -> dict[str, Any]:
    """Both sides of the job."""
    parts = [source_part(0), source_part(1)], [destination_part(0), destination_part(1)]
    return {
        "tensors": parts[0][0]["tensors"],
        "source": [b for p in parts[0] for b in p["source"]],
        "destination": [b for p in parts[1] for b in p["destination"]],
    }


def run_worker(worker: int, address: str, generations: int, results: Any) -> None:
    """A receiver in a process of its own: reports its live memory after each generation, or its error."""
    try:
        live = Live(worker)
        with core.Receiver(
            destination_part(worker),
            live.memory,
            coordinator=address,
            token=TOKEN,
            job="job",
            engine=0,
            worker=worker,
            shadow="host",
        ) as receiver:
            for _ in range(generations):
                generation = receiver.next_generation(60)
                receiver.stage(generation, live.memory)
                receiver.commit(generation)
                results.put((worker, generation, live.content()))
    except errors.Error as e:
        results.put((worker, -1, e))


class PlanTest(unittest.TestCase):
    def test_figures(self) -> None:
        figures = core.plan(manifest())
        self.assertEqual(figures["tensors"], 3)
        self.assertEqual(figures["needed_bytes"], 5 * 6 * (2 + 1 + 4))
        self.assertEqual(figures["wire_bytes"], figures["needed_bytes"])
        self.assertEqual(len(figures["digest"]), 64)
        self.assertEqual(figures["digest"], core.plan(manifest())["digest"])

    def test_policies(self) -> None:
        self.assertEqual(core.plan(manifest())["policy"], "auto")
        self.assertEqual(core.plan(manifest(), "hybrid")["policy"], "hybrid")
        with self.assertRaisesRegex(errors.InputError, "best"):
            core.plan(manifest(), "best")  # type: ignore[arg-type]

    def assertRefused(self, broken: Any, code: str) -> errors.Error:
        with self.assertRaises(errors.InputError) as caught:
            core.plan(broken)
        self.assertEqual(caught.exception.code, code)
        return caught.exception

    def test_errors_name_their_place(self) -> None:
        m = manifest()
        m["source"] = [b for b in m["source"] if not (b["rank"] == 1 and b["buffer"] == "narrow")]
        self.assertEqual(self.assertRefused(m, "uncovered").tensor, "narrow")
        m = manifest()
        m["destination"][3]["dtype"] = "F16"
        error = self.assertRefused(m, "dtype_mismatch")
        self.assertEqual((error.tensor, error.buffer, error.rank), ("wide", "wide", 1))
        m = manifest()
        m["destination"][0]["pieces"][0]["tensor_offset"] = [0, 5]
        error = self.assertRefused(m, "out_of_bounds")
        self.assertEqual((error.tensor, error.buffer, error.rank), ("wide", "wide", 0))
        m = manifest()
        m["destination"][0]["pieces"][0]["tensor"] = "nobody"
        self.assertRefused(m, "unknown_tensor")
        m = manifest()
        del m["source"]
        self.assertRefused(m, "malformed")

    def test_no_json(self) -> None:
        self.assertRefused({"tensors": object()}, "malformed")
        self.assertRefused({"tensors": float("nan")}, "malformed")
        self.assertRefused({"\udc80": 1}, "malformed")


class GenerationsTest(unittest.TestCase):
    def generations(self, shadow: str) -> None:
        job = Job(shadow)
        self.addCleanup(job.close)
        for generation in (1, 7, 2**40):
            job.publish(generation)
            before = [w.content() for w in job.live]
            self.assertEqual(job.stage(), generation)
            if shadow == "host":
                self.assertEqual([w.content() for w in job.live], before)
            job.commit(generation)
            for live, receiver in zip(job.live, job.receivers):
                self.assertEqual(live.content(), live.expected(generation))
                self.assertEqual(receiver.serving, generation)
            for publisher in job.publishers:
                publisher.await_commit(generation, 30)
        self.assertEqual(job.coordinator.status()["engine_committed"], [2**40])
        stats = job.receivers[1].stats
        self.assertEqual(stats["bytes"], 5 * 4 * (2 + 1 + 4))
        self.assertEqual((stats["streamed_bytes"], stats["needed_bytes"]), (stats["bytes"], stats["bytes"]))
        self.assertGreater(job.publishers[0].stats["snapshot_bytes"], 0)

    def test_with_a_shadow(self) -> None:
        self.generations("host")

    def test_in_place(self) -> None:
        self.generations("off")

    def test_weights_that_are_held(self) -> None:
        with core.Coordinator(job="job", publishers=2, workers=[2], token=TOKEN, incarnation="first") as coordinator:
            where = {"coordinator": coordinator.address, "token": TOKEN, "job": "job"}
            sources, live = [Source(0), Source(1)], [Live(0), Live(1)]
            publishers, receivers = [], []
            together(
                lambda: publishers.extend(
                    together(
                        *(
                            lambda s=s: core.Publisher(
                                source_part(s.rank), s.memory, rank=s.rank, publishing="hold", **where
                            )
                            for s in sources
                        )
                    )
                ),
                lambda: receivers.extend(
                    together(
                        *(
                            lambda w=w: core.Receiver(
                                destination_part(w.worker), w.memory, engine=0, worker=w.worker, shadow="host", **where
                            )
                            for w in live
                        )
                    )
                ),
            )
            for member in (*receivers, *publishers):
                self.addCleanup(member.__exit__, Exception, Exception(), None)

            def take(receiver: core.Receiver, worker: Live, generation: int) -> None:
                self.assertEqual(receiver.next_generation(30), generation)
                receiver.stage(generation, worker.memory)
                receiver.commit(generation)

            for generation in (1, 2):
                for source in sources:
                    source.write(generation)
                together(*(lambda p=p: p.publish(generation, 30) for p in publishers))
                together(*(lambda r=r, w=w: take(r, w, generation) for r, w in zip(receivers, live)))
                for publisher in publishers:
                    publisher.await_release(generation, 30)
                    self.assertLess(publisher.stats["snapshot_bytes"], 100)
                self.assertEqual([w.content() for w in live], [w.expected(generation) for w in live])
            for publisher in publishers:
                publisher.publish(3, 30)
            # Nobody takes it. The first publisher that gives up does so for all.
            with self.assertRaisesRegex(errors.DeadlineError, "engine 0 worker"):
                publishers[0].await_release(3, 0)
            for publisher in publishers[1:]:
                publisher.await_release(3, 30)
            self.assertEqual([r.serving for r in receivers], [2, 2])

    def test_an_engine_takes_from_another_one_when_no_trainer_is_left(self) -> None:
        job = Job(standby=True)
        self.addCleanup(job.close)
        job.publish(1)
        job.commit(job.stage())
        together(*(lambda p=p: p.close(30) for p in job.publishers))
        live = [Live(0), Live(1)]
        where = {"coordinator": job.coordinator.address, "token": TOKEN, "job": "job"}
        receivers = together(
            *(
                lambda w=w: core.Receiver(
                    destination_part(w.worker, 2 + w.worker),
                    w.memory,
                    engine=1,
                    worker=w.worker,
                    workers=2,
                    shadow="host",
                    **where,
                )
                for w in live
            )
        )

        def take(receiver: core.Receiver, worker: Live) -> None:
            self.assertEqual(receiver.next_generation(30), 1)
            receiver.stage(1, worker.memory)
            receiver.commit(1)

        together(*(lambda r=r, w=w: take(r, w) for r, w in zip(receivers, live)))
        self.assertEqual([w.content() for w in live], [w.expected(1) for w in live])
        for receiver in receivers:
            receiver.__exit__(Exception, Exception(), None)

    def test_between_processes(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        results = spawn.Queue()
        with core.Coordinator(job="job", publishers=2, workers=[2], token=TOKEN, incarnation="first") as coordinator:
            workers = [
                spawn.Process(target=run_worker, args=(w, coordinator.address, 2, results), daemon=True)
                for w in range(2)
            ]
            for process in workers:
                process.start()
            sources = [Source(0), Source(1)]
            where = {"coordinator": coordinator.address, "token": TOKEN, "job": "job"}
            publishers = together(
                *(lambda s=s: core.Publisher(source_part(s.rank), s.memory, rank=s.rank, **where) for s in sources)
            )
            for generation in (1, 2):
                for source in sources:
                    source.write(generation)
                together(*(lambda p=p: p.publish(generation, 60) for p in publishers))
                together(*(lambda p=p: p.await_commit(generation, 60) for p in publishers))
            got = {(w, g): content for w, g, content in (results.get(timeout=60) for _ in range(4))}
            for worker in range(2):
                for generation in (1, 2):
                    self.assertEqual(got.get((worker, generation)), Live(worker).expected(generation), got)
            for publisher in publishers:
                publisher.close()
            for process in workers:
                process.join(60)
                self.assertEqual(process.exitcode, 0)

    def test_waits_keep_no_other_thread_out(self) -> None:
        job = Job()
        self.addCleanup(job.close)
        waiting = threading.Barrier(3)

        def wait(receiver: core.Receiver) -> int:
            waiting.wait()
            return receiver.next_generation(60)

        def work() -> int:
            waiting.wait()
            count = sum(range(100_000))  # this thread runs while the others are inside the library
            job.publish(1)  # and only it ends their waits
            return count

        self.assertEqual(
            together(lambda: wait(job.receivers[0]), lambda: wait(job.receivers[1]), work), [1, 1, 4999950000]
        )


class ErrorsTest(unittest.TestCase):
    def test_members(self) -> None:
        job = Job()
        self.addCleanup(job.close)
        publisher, receiver, live = job.publishers[0], job.receivers[0], job.live[0]

        with self.assertRaises(errors.DeadlineError) as caught:
            receiver.next_generation(0.01)
        self.assertEqual(caught.exception.code, "deadline")
        job.publish(5)
        with self.assertRaises(errors.StateError) as caught:
            publisher.publish(5, 10)
        self.assertEqual(caught.exception.code, "generation_not_growing")
        self.assertEqual(receiver.next_generation(30), 5)
        with self.assertRaises(errors.InputError) as caught:
            receiver.stage(6, live.memory)
        self.assertEqual(caught.exception.code, "invalid_option")
        for bad in (-1, 2**64):
            with self.assertRaises(errors.InputError):
                publisher.publish(bad, 10)
        for bad in (-1.0, float("nan")):
            with self.assertRaises(errors.InputError):
                receiver.next_generation(bad)
        publisher.status()
        job.coordinator.stop()
        # What was announced is there to be taken until the receiver notices.
        with self.assertRaises(errors.PeerError):
            until = time.monotonic() + 30
            while time.monotonic() < until:
                receiver.status()
        with self.assertRaises(errors.PeerError):
            receiver.next_generation(30)
        self.assertEqual(receiver.serving, 0)

    def test_moved_buffers(self) -> None:
        job = Job("off")
        self.addCleanup(job.close)
        job.publish(1)
        moved = Live(1)

        # Known to both before one gives it up: it is offered no more then.
        generations = [receiver.next_generation(30) for receiver in job.receivers]

        def stage(worker: int, memory: dict[str, core.BufferMemory]) -> errors.Error | None:
            try:
                job.receivers[worker].stage(generations[worker], memory)
            except errors.Error as e:
                return e
            return None

        restated = {**job.live[1].memory, "narrow": moved.memory["narrow"]}
        first, second = together(lambda: stage(0, job.live[0].memory), lambda: stage(1, restated))
        self.assertIsInstance(second, errors.StateError)
        self.assertEqual((second.code, second.buffer), ("destination_moved", "narrow"))
        self.assertEqual(first.code, "destination_moved")  # under the code of the worker that gave up
        self.assertIn("engine 0 worker 1", str(first))
        self.assertEqual(moved.content(), Live(1).content())
        self.assertEqual(job.live[1].content(), Live(1).content())

    def test_abandon(self) -> None:
        job = Job()
        self.addCleanup(job.close)
        job.publish(3)
        job.commit(job.stage())
        before = job.live[0].content()
        self.assertEqual(job.receivers[1].carry(), {
            "committed_generation": 3, "committed_incarnation": "first", "poisoned": False,
        })
        job.publish(4)
        self.assertEqual(job.stage(), 4)
        job.receivers[1].apply(4)
        self.assertEqual(job.live[1].content(), job.live[1].expected(4))
        self.assertIsNone(job.receivers[1].serving)
        job.receivers[1].abandon(errors.DataLossError("verification_failed", "the loader lost a row", tensor="wide"))
        self.assertIsNone(job.receivers[1].serving)
        self.assertTrue(job.receivers[1].carry()["poisoned"])
        with self.assertRaises(errors.PeerError) as caught:
            job.receivers[0].next_generation(30)
        self.assertIn("engine 0 worker 1", str(caught.exception))
        self.assertIn("verification_failed: the loader lost a row", str(caught.exception))
        # The other one had not begun: it goes on with what it has.
        self.assertEqual((job.receivers[0].serving, job.live[0].content()), (3, before))
        job.close()
        carried = [r.carry() for r in job.receivers]
        self.assertEqual([c["poisoned"] for c in carried], [False, True])

    def test_credentials(self) -> None:
        with core.Coordinator(job="job", publishers=1, workers=[1], token=TOKEN, incarnation="n") as coordinator:
            source = Source(0)

            def join(**change: Any) -> None:
                where = {"coordinator": coordinator.address, "token": TOKEN, "job": "job", **change}
                core.Publisher(source_part(0), source.memory, rank=0, **where)

            for change, code in (
                ({"token": "another"}, "unauthenticated"),
                ({"job": "another"}, "wrong_job"),
                ({"incarnation": "another"}, "wrong_job"),
            ):
                with self.subTest(change), self.assertRaises(errors.CredentialsError) as caught:
                    join(**change)
                self.assertEqual(caught.exception.code, code)

    def test_options(self) -> None:
        source, live = Source(0), Live(0)
        where: dict[str, Any] = {"coordinator": "127.0.0.1:1", "token": TOKEN, "job": "job"}
        carried = {"committed_generation": 0, "committed_incarnation": "", "poisoned": False}

        def publisher(**change: Any) -> None:
            core.Publisher(source_part(0), source.memory, **{"rank": 0, **where, **change})

        def receiver(**change: Any) -> None:
            options = {"engine": 0, "worker": 0, "shadow": "host", **where, **change}
            core.Receiver(destination_part(0), live.memory, **options)

        def coordinator(**change: Any) -> None:
            options = {"job": "j", "publishers": 1, "workers": [1], "token": TOKEN, "incarnation": "n", **change}
            core.Coordinator(**options).stop()

        for make, change, word in (
            (publisher, {"transport": "pigeon"}, "pigeon"),
            (publisher, {"rank": -1}, "rank"),
            (publisher, {"publishing": "rent"}, "publishing"),
            (publisher, {"rank": "0"}, "rank"),
            (publisher, {"chunk_bytes": 0}, "chunk_bytes"),
            (publisher, {"staging_bytes": 2**63}, "staging_bytes"),
            (publisher, {"timeouts": core.Timeouts(join=0)}, "timeouts.join"),
            (publisher, {"timeouts": core.Timeouts(rejoin=-1)}, "timeouts.rejoin"),
            (publisher, {"devices": ["lo"]}, "ucx"),  # the transport is host
            (publisher, {"devices": [1], "transport": "ucx"}, "devices"),
            (publisher, {"devices": ["lo,lo"], "transport": "ucx"}, "lo,lo"),
            (publisher, {"tls": core.ClientTls("ca", server_name=3)}, "server_name"),  # type: ignore[arg-type]
            (publisher, {"trust_network": "yes"}, "trust_network"),
            (receiver, {"workers": 0}, "workers"),
            (receiver, {"shadow": "disk"}, "shadow"),
            (receiver, {"transfer_timeout": -1}, "transfer_timeout"),
            (receiver, {"carried": {"poisoned": False}}, "carried.committed_generation"),
            (receiver, {"carried": {**carried, "unheard": 1}}, "carried.unheard"),
            (coordinator, {"workers": ["2"]}, "workers"),
            (coordinator, {"policy": "best"}, "policy"),
            (coordinator, {"tls": core.ServerTls("", "")}, "certificate"),
            (coordinator, {"trust_network": 1}, "trust_network"),
            (coordinator, {"listen": "0.0.0.0:0"}, "TLS"),
            (coordinator, {"workers": [0]}, "workers"),
            (coordinator, {"incarnation": ""}, "incarnation"),
            (coordinator, {"listen": "nowhere"}, "listen"),
            (coordinator, {"listen": "127.0.0.1:70000"}, "listen"),
        ):
            with self.subTest(change), self.assertRaises(errors.InputError) as caught:
                make(**change)
            self.assertEqual(caught.exception.code, "invalid_option")
            self.assertIn(word, caught.exception.message)
        with self.assertRaises(errors.InputError) as caught:
            core.Publisher(source_part(0), {"wide": -1}, rank=0, **where)
        self.assertEqual(caught.exception.buffer, "wide")

    def test_address_in_use(self) -> None:
        options: dict[str, Any] = {"job": "j", "publishers": 1, "workers": [1], "token": TOKEN, "incarnation": "n"}
        with core.Coordinator(**options) as first:
            with self.assertRaises(errors.StateError) as caught:
                core.Coordinator(**options, listen=first.address)
        self.assertEqual(caught.exception.code, "address_in_use")

    def test_round_trips(self) -> None:
        error = errors.StateError("poisoned", "half written", tensor="q", buffer="b", rank=3, peer="publisher rank 1")
        by_json = errors.Error.from_json(json.loads(json.dumps(error.to_json())))
        for again in (by_json, pickle.loads(pickle.dumps(error))):
            self.assertIs(type(again), errors.StateError)
            self.assertEqual(again.to_json(), error.to_json())
            self.assertEqual(str(again), "poisoned: half written")


class MembershipTest(unittest.TestCase):
    def test_an_engine_that_comes_late_takes_the_newest_generation(self) -> None:
        job = Job(workers=[])
        self.addCleanup(job.close)
        self.assertEqual(job.coordinator.status()["phase"], "ready")
        for generation in (1, 2, 3):  # nobody holds the snapshots
            job.publish(generation)
        with self.assertRaises(errors.DeadlineError):
            job.publishers[0].await_commit(3, 0)  # there is no engine yet
        with self.assertRaises(errors.InputError) as caught:
            job.receiver(job.live[0], "host")
        self.assertIn("how many workers", caught.exception.message)
        job.receivers = together(*(lambda w=w: job.receiver(w, "host", workers=2) for w in job.live))
        self.assertEqual(job.stage(), 3)
        job.commit(3)
        for live in job.live:
            self.assertEqual(live.content(), live.expected(3))
        for publisher in job.publishers:
            publisher.await_commit(3, 30)
        status = job.coordinator.status()
        self.assertEqual((status["epoch"], status["engine_committed"]), (2, [3]))

    def test_a_lost_publisher_is_waited_for(self) -> None:
        job = Job(timeouts=core.Timeouts(rejoin=600))
        self.addCleanup(job.close)
        job.publish(1)
        job.commit(job.stage())
        job.publishers[1]._handle.close()  # as a process that dies
        while job.coordinator.status()["phase"] != "suspended":
            pass
        self.assertIn("publisher rank 1", job.coordinator.status()["waiting_for"])
        job.receivers[0].status()
        job.publishers[1] = job.publisher(job.sources[1])
        job.publish(2)
        self.assertEqual(job.stage(), 2)
        job.commit(2)
        for live in job.live:
            self.assertEqual(live.content(), live.expected(2))

    def test_without_a_wait_its_loss_is_the_end(self) -> None:
        job = Job()
        self.addCleanup(job.close)
        job.publishers[1]._handle.close()
        with self.assertRaises(errors.PeerError) as caught:
            job.receivers[0].next_generation(30)
        self.assertIn("publisher rank 1", caught.exception.message)
        self.assertEqual(job.receivers[0].serving, 0)

    def test_a_policy_and_messages(self) -> None:
        """Every tensor is named so that hybrid broadcasts none: what arrives is the same over ucx."""
        try:
            job = Job(policy="hybrid", transport="ucx", devices=["lo"])
        except errors.InternalError as error:
            self.skipTest(str(error))  # no libucp
        self.addCleanup(job.close)
        job.publish(1)
        job.commit(job.stage())
        for live in job.live:
            self.assertEqual(live.content(), live.expected(1))


class TlsTest(unittest.TestCase):
    def test_a_job(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        names = {name: f"{folder.name}/{name}" for name in ("ca.crt", "ca.key", "other.crt", "own.crt", "own.key")}
        make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]

        def openssl(subject: str, certificate: str, key: str, *more: str) -> None:
            words = [*make, "-subj", f"/CN={subject}", "-out", names[certificate], "-keyout", names[key], *more]
            subprocess.run(words, check=True, capture_output=True)

        openssl("other", "other.crt", "ca.key")
        openssl("ca", "ca.crt", "ca.key")
        signed = ("-CA", names["ca.crt"], "-CAkey", names["ca.key"], "-addext", "basicConstraints=critical,CA:FALSE")
        openssl("job", "own.crt", "own.key", "-addext", "subjectAltName=DNS:the-trainer", *signed)
        own = {"certificate": names["own.crt"], "key": Path(names["own.key"])}
        member = core.ClientTls(names["ca.crt"], **own, server_name="the-trainer")
        job = Job(tls=member, coordinator_tls=core.ServerTls(**own, client_ca=names["ca.crt"]))
        self.addCleanup(job.close)
        job.publish(1)
        job.commit(job.stage())
        self.assertEqual(job.live[0].content(), job.live[0].expected(1))
        for tls, code in (
            (core.ClientTls(names["other.crt"], **own, server_name="the-trainer"), "unauthenticated"),
            (core.ClientTls(names["ca.crt"], **own, server_name="another"), "unauthenticated"),
            (core.ClientTls(names["ca.crt"], certificate=names["own.crt"]), "invalid_option"),
            (core.ClientTls(f"{folder.name}/none"), "io"),
        ):
            with self.subTest(tls), self.assertRaises(errors.Error) as caught:
                job.publisher(job.sources[0], tls=tls)
            self.assertEqual(caught.exception.code, code)


class LifetimeTest(unittest.TestCase):
    def test_closed(self) -> None:
        job = Job()
        publisher, receiver = job.publishers[0], job.receivers[0]
        job.publish(4)
        job.commit(job.stage())
        for member in (receiver, job.receivers[1], publisher, job.publishers[1], job.coordinator):
            member.close()
            member.close()
        self.assertEqual(receiver.carry()["committed_generation"], 4)
        for use in (
            lambda: publisher.publish(5, 1),
            publisher.status,
            lambda: publisher.stats,
            lambda: receiver.next_generation(1),
            lambda: receiver.serving,
            lambda: job.coordinator.address,
            job.coordinator.status,
        ):
            with self.assertRaises(errors.StateError) as caught:
                use()
            self.assertEqual(caught.exception.code, "closed")

    def test_collected(self) -> None:
        job = Job()
        receiver = weakref.ref(job.receivers.pop())
        gc.collect()
        self.assertIsNone(receiver())
        with self.assertRaises(errors.PeerError):  # its peers see that it is gone
            job.receivers[0].next_generation(30)
        job.close()

    def test_one_at_a_time(self) -> None:
        job = Job()
        self.addCleanup(job.close)
        receiver = job.receivers[0]
        ended = threading.Event()

        def wait() -> None:
            receiver.next_generation(60)
            ended.set()

        waiter = threading.Thread(target=wait)
        waiter.start()
        while not receiver._turn.locked():  # until the other thread is inside
            self.assertTrue(waiter.is_alive())
        with self.assertRaises(errors.DeadlineError) as caught:
            receiver.close(0.01)
        self.assertIn("another thread", str(caught.exception))
        self.assertFalse(ended.is_set())
        self.assertEqual(receiver.serving, 0)  # not closed, and what any thread may ask still answers
        job.publish(1)
        waiter.join()
        self.assertTrue(ended.is_set())


class CheckpointTest(unittest.TestCase):
    def test_as_a_publisher(self) -> None:
        data = {n: box(n, (0, 5), (0, 6), 9) for n in ("wide", "narrow", "master")}
        dtypes = {"wide": "BF16", "narrow": "F8_E4M3", "master": "F32"}
        header, offset = {}, 0
        for name, content in data.items():
            header[name] = {"dtype": dtypes[name], "shape": [5, 6], "data_offsets": [offset, offset + len(content)]}
            offset += len(content)
        text = json.dumps(header).encode()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.safetensors"
            path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data.values()))
            with (
                core.Checkpoint(folder) as checkpoint,
                core.Coordinator(job="job", publishers=1, workers=[2], token=TOKEN, incarnation="n") as coordinator,
            ):
                where: dict[str, Any] = {"coordinator": coordinator.address, "token": TOKEN, "job": "job"}
                part = checkpoint.part()
                self.assertEqual({t["name"]: t["dtype"] for t in part["tensors"]}, dtypes)
                live = [Live(0), Live(1)]

                def receive(worker: int) -> core.Receiver:
                    return core.Receiver(
                        destination_part(worker),
                        live[worker].memory,
                        engine=0,
                        worker=worker,
                        shadow="off",
                        **where,
                    )

                publisher, *receivers = together(
                    lambda: core.Publisher(part, checkpoint.memory, rank=0, **where),
                    lambda: receive(0),
                    lambda: receive(1),
                )
                publisher.publish(1, 30)

                def take(r: core.Receiver, w: Live) -> None:
                    r.stage(r.next_generation(30), w.memory)
                    r.commit(1)

                together(*(lambda r=r, w=w: take(r, w) for r, w in zip(receivers, live)))
                self.assertEqual([w.content() for w in live], [w.expected(9) for w in live])
                for member in (*receivers, publisher):
                    member.close()
            with self.assertRaises(errors.StateError):
                checkpoint.part()

    def test_errors(self) -> None:
        with tempfile.TemporaryDirectory() as folder, self.assertRaises(errors.InputError) as caught:
            core.Checkpoint(folder)
        self.assertEqual(caught.exception.code, "io")
        self.assertIn(folder, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
