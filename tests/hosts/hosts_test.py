#!/usr/bin/env python3
"""Jobs whose trainer and engines are on two hosts (two_hosts.py), over ucx and an encrypted control service.

usage: hosts_test.py MEMBER [unittest arguments]
"""
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import unittest

from two_hosts import ENGINE, TRAINER, TwoHosts, Unable

MEMBER = os.path.abspath(sys.argv.pop(1))
TOKEN = "a-token-that-nobody-may-read"
# Far beyond what is waited for: a heartbeat's timeout of 6 s, a second for retransmissions.
LONG = 120

ROWS, COLUMNS = 1024, 768
SEED = int(os.environ.get("HEADRACE_TEST_SEED", "1"))


def manifest() -> dict:
    """Two trainer ranks hold rows. Engine e0 wants columns in two workers, e1 everything in one."""
    names = ["a", "b"]
    whole = {"tensors": [{"name": n, "shape": [ROWS, COLUMNS], "dtype": "BF16"} for n in names],
             "source": [], "destination": [], "topology": {"source": [], "destination": []}}

    def add(side: str, rank: int, name: str, offset: list[int], shape: list[int]) -> None:
        whole[side].append({"rank": rank, "buffer": name, "dtype": "BF16", "shape": shape,
                            "pieces": [{"tensor": name, "tensor_offset": offset, "shape": shape,
                                        "buffer_offset": [0, 0]}]})

    for name in names:
        add("source", 0, name, [0, 0], [700, COLUMNS])
        add("source", 1, name, [700, 0], [ROWS - 700, COLUMNS])
        add("destination", 0, name, [0, 0], [ROWS, 500])
        add("destination", 1, name, [0, 500], [ROWS, COLUMNS - 500])
        add("destination", 2, name, [0, 0], [ROWS, COLUMNS])
    whole["topology"]["source"] = [{"rank": r, "host": TRAINER} for r in (0, 1)]
    whole["topology"]["destination"] = [{"rank": r, "host": ENGINE, "engine": e}
                                        for r, e in ((0, "e0"), (1, "e0"), (2, "e1"))]
    return whole


class Member:
    """A process on a host."""

    def __init__(self, net: TwoHosts, host: str, order: dict):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("UCX_")}
        self.name = f"{order['role']} {order.get('rank', '')} on {host}"
        self.process = subprocess.Popen(net.command(host, MEMBER), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=environment)
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.ask(order)

    def _read(self) -> None:
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def ask(self, order: dict) -> None:
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict:
        line = self._lines.get(timeout=LONG)
        if line is None:
            raise AssertionError(f"{self.name} ended with status {self.process.wait(LONG)}")
        return json.loads(line)

    def leave(self) -> dict:
        """Closes the session; what it says about that."""
        self.process.stdin.close()
        answer = self.answer()
        status = self.process.wait(LONG)
        if status != 0:
            raise AssertionError(f"{self.name} ended with status {status}")
        return answer

    def end(self) -> None:
        self.process.kill()
        self.process.wait(LONG)
        self._reader.join()
        self.process.stdin.close()
        self.process.stdout.close()


class Job:
    """A coordinator and two publishers on TRAINER; three workers of two engines on ENGINE, the last one without a
    shadow."""

    def __init__(self, test: "HostsTest", net: TwoHosts, *, tls: bool = True, devices: str = "hr0",
                 transfer_seconds: int = 60):
        self.net = net
        self._test = test
        self._tls, self._devices = tls, devices
        secure = {"certificate": test.file("server.crt"), "key": test.file("server.key"),
                  "client_ca": test.file("ca.crt")} if tls else {"trust_network": True}
        if tls:
            test.issue("server", f"IP:{net.address[TRAINER]}")
            test.issue("member", "DNS:member")
        self.coordinator = self._start(TRAINER, {"role": "coordinator", "host": net.address[TRAINER], "token": TOKEN,
                                                 "publishers": 2, "workers": [2, 1], **secure})
        started = self.coordinator.answer()
        test.assertEqual(started["code"], "", started["message"])
        self.control_port = int(started["address"].rsplit(":", 1)[1])
        self.publishers = [self._member(TRAINER, started["address"], {"role": "publisher", "rank": r}) for r in (0, 1)]
        self.receivers = [self._member(ENGINE, started["address"],
                                       {"role": "receiver", "rank": r, "engine": e, "worker": w, "shadow": r != 2,
                                        "transfer_seconds": transfer_seconds})
                          for r, e, w in ((0, 0, 0), (1, 0, 1), (2, 1, 0))]

    @property
    def members(self) -> list[Member]:
        return self.publishers + self.receivers

    def _start(self, host: str, order: dict) -> Member:
        member = Member(self.net, host, order)
        self._test.addCleanup(member.end)
        return member

    def _member(self, host: str, coordinator: str, order: dict) -> Member:
        secure = {"ca": self._test.file("ca.crt"), "certificate": self._test.file("member.crt"),
                  "key": self._test.file("member.key")} if self._tls else {"trust_network": True}
        return self._start(host, {**order, "coordinator": coordinator, "token": TOKEN, "host": host,
                                  "devices": self._devices, "manifest": manifest(), **secure})

    def join(self) -> None:
        answers = {member.name: member.answer() for member in self.members}  # the first error may be another's echo
        self._test.assertEqual({answer["code"] for answer in answers.values()}, {""}, json.dumps(answers, indent=1))

    def begin(self, generation: int) -> None:
        """Publishes a generation; every worker takes it."""
        for publisher in self.publishers:
            publisher.ask({"generation": generation})
        for receiver in self.receivers:
            receiver.ask({})

    def finish(self, generation: int) -> None:
        """Everybody has it, to the byte."""
        for publisher in self.publishers:
            for step in ("published", "committed"):
                answer = publisher.answer()
                self._test.assertEqual(answer["code"], "", f"{publisher.name}, {step}: {answer['message']}")
        for receiver in self.receivers:
            answer = receiver.answer()
            self._test.assertEqual(answer["code"], "", f"{receiver.name}: {answer['message']}")
            self._test.assertEqual((answer["holds"], answer["serving"]), (generation, generation),
                                   f"{receiver.name}: {answer['difference']}")

    def leave(self) -> None:
        for member in self.receivers + self.publishers:
            answer = member.leave()
            self._test.assertEqual(answer["code"], "", f"{member.name}: {answer['message']}")


class HostsTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="headrace-hosts-")
        self.addCleanup(folder.cleanup)
        self._folder = folder.name
        self._openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1",
                      "-subj", "/CN=authority", "-keyout", self.file("ca.key"), "-out", self.file("ca.crt"))

    def file(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def issue(self, name: str, names: str) -> None:
        self._openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1",
                      "-subj", f"/CN={name}", "-addext", f"subjectAltName={names}", "-CA", self.file("ca.crt"),
                      "-CAkey", self.file("ca.key"), "-keyout", self.file(f"{name}.key"),
                      "-out", self.file(f"{name}.crt"))

    def _openssl(self, *words: str) -> None:
        done = subprocess.run(["openssl", *words], capture_output=True, text=True, timeout=LONG)
        self.assertEqual(done.returncode, 0, done.stderr)

    def hosts(self, **settings: object) -> TwoHosts:
        net = TwoHosts(seed=SEED, secret=TOKEN.encode(), **settings)
        net.__enter__()
        self.addCleanup(net.__exit__, None, None, None)
        return net

    def test_refit_over_ipv4_with_delay_and_loss(self) -> None:
        net = self.hosts()
        job = Job(self, net)
        job.join()
        for generation in (1, 2, 3):
            job.begin(generation)
            job.finish(generation)
        job.leave()
        self.assertGreater(net.wire.lost, 0)
        # Each worker's bytes, and little more, three times.
        self.assertGreater(net.wire.carried, 3 * 2 * 2 * 2 * ROWS * COLUMNS)
        self.assertEqual(net.wire.secrets, 0, "the token could be read on the wire")

    def test_refit_over_ipv6(self) -> None:
        net = self.hosts(ipv6=True)
        job = Job(self, net)
        job.join()
        job.begin(1)
        job.finish(1)
        job.leave()
        self.assertEqual(net.wire.secrets, 0)

    def test_without_tls_the_token_is_there_to_read(self) -> None:
        # What the check above looks for, and what trust_network means.
        net = self.hosts()
        job = Job(self, net, tls=False)
        job.join()
        self.assertGreater(net.wire.secrets, 0)

    def test_a_cut_that_heals_in_time_costs_nothing_but_time(self) -> None:
        net = self.hosts()
        job = Job(self, net)
        job.join()
        job.begin(1)
        job.finish(1)
        net.wire.cut_after(1 << 20)
        job.begin(2)
        self.assertTrue(net.wire.wait_cut(packets=10, timeout=LONG))
        net.wire.heal()
        job.finish(2)
        job.leave()

    def test_a_cut_that_stays_ends_the_engines_alone(self) -> None:
        net = self.hosts()
        job = Job(self, net)
        job.join()
        job.begin(1)
        job.finish(1)
        net.wire.cut_after(1 << 20)
        job.begin(2)
        self.assertTrue(net.wire.wait_cut(packets=1, timeout=LONG))
        for publisher in job.publishers:
            self.assertEqual(publisher.answer()["code"], "", "the snapshot needs no network")
            answer = publisher.answer()
            self.assertEqual(answer["code"], "peer_lost", answer["message"])
        for receiver in job.receivers:
            answer = receiver.answer()
            if receiver is job.receivers[2]:
                self.assertEqual(answer["code"], "poisoned", answer["message"])
                self.assertIsNone(answer["serving"], "written in place, and served all the same")
            else:
                self.assertIn(answer["code"], ("peer_lost", "deadline"), answer["message"])
                self.assertEqual((answer["holds"], answer["serving"]), (1, 1), answer["difference"])
        for publisher in job.publishers:
            self.assertEqual(publisher.leave()["code"], "", "the trainer's side goes on without the engines")
        for receiver in job.receivers:
            self.assertNotIn(receiver.leave()["code"], ("", "internal"))

    def test_a_cut_of_the_weights_alone_costs_a_generation(self) -> None:
        # A firewall that forgets connections: the control service, and its heartbeats, go on.
        net = self.hosts()
        job = Job(self, net, transfer_seconds=10)
        job.join()
        job.begin(1)
        job.finish(1)
        net.wire.cut_after(1 << 20, spare_port=job.control_port)
        job.begin(2)
        for receiver in job.receivers:
            answer = receiver.answer()
            self.assertIn(answer["code"], ("deadline", "peer_lost"), answer["message"])
            if receiver is job.receivers[2]:
                self.assertIsNone(answer["serving"])
            else:
                self.assertEqual((answer["holds"], answer["serving"]), (1, 1), answer["difference"])
        for publisher in job.publishers:
            self.assertEqual(publisher.answer()["code"], "")
            self.assertIn(publisher.answer()["code"], ("deadline", "peer_lost"))
        net.wire.heal()
        # TCP may need as long again to find out, and generations that come too early fail likewise.
        for generation in range(3, 9):
            job.begin(generation)
            answers = [receiver.answer() for receiver in job.receivers]
            awaited = [(publisher.answer(), publisher.answer())[1] for publisher in job.publishers]
            if not any(answer["code"] for answer in answers + awaited):
                break
        self.assertEqual([(answer["holds"], answer["serving"]) for answer in answers], [(generation, generation)] * 3,
                         answers)
        job.leave()

    def test_endpoints_that_listen_on_loopback_reach_nobody_elsewhere(self) -> None:
        job = Job(self, self.hosts(), devices="", transfer_seconds=10)
        job.join()
        job.begin(1)
        for receiver in job.receivers:
            answer = receiver.answer()
            self.assertIn(answer["code"], ("peer_lost", "deadline", "transport"), f"{receiver.name}: {answer['message']}")
        for publisher in job.publishers:
            self.assertEqual(publisher.answer()["code"], "", "the snapshot needs no network")
            answer = publisher.answer()
            self.assertIn(answer["code"], ("peer_lost", "deadline", "transport"), f"{publisher.name}: {answer['message']}")


def main() -> None:
    try:
        with TwoHosts():
            pass
    except Unable as error:
        message = f"SKIPPED, NOTHING WAS TESTED: no network namespaces here (run it as root): {error}"
        print(f"{'=' * 100}\nhosts_test: {message}\n{'=' * 100}", file=sys.stderr)
        if "TEST_WARNINGS_OUTPUT_FILE" in os.environ:  # Bazel shows these
            with open(os.environ["TEST_WARNINGS_OUTPUT_FILE"], "w", encoding="utf-8") as file:
                file.write(message)
        return
    print(f"HEADRACE_TEST_SEED={SEED}", file=sys.stderr)
    unittest.main(verbosity=2)


if __name__ == "__main__":
    main()
