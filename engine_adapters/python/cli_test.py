"""The command as its users meet it: what it prints, where, and its exit status."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from headrace import cli, core
from headrace.driver_testing import FakeEngine, FakeServer
from headrace.errors import DataLossError


def run(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch("sys.stdin", io.StringIO(stdin)):
        status = cli.main(arguments)
    return status, out.getvalue(), err.getvalue()


class ServersTest(unittest.TestCase):
    def setUp(self) -> None:
        self.fakes = [FakeEngine("a"), FakeEngine("b", workers=1)]
        self.servers = [FakeServer(fake) for fake in self.fakes]
        for server in self.servers:
            self.addCleanup(server.close)
        self.engines = [argument for server in self.servers for argument in ("--engine", server.url)]
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def publish(self, generation: int) -> None:
        for fake in self.fakes:
            fake.announced = [generation]
            for worker in fake.workers:
                worker["staged"] = None

    def test_drive(self) -> None:
        self.publish(1)
        status, out, err = run("drive", *self.engines, "--generation", "1", "--pause", "wait")
        self.assertEqual((status, err), (0, ""))
        self.assertIn("Generation 1 is live.", out)
        for fake, server in zip(self.fakes, self.servers):
            self.assertEqual(fake.version, "1")
            self.assertIn("pause wait", fake.calls)
            self.assertIn(server.url, out)

    def test_drive_joins_first(self) -> None:
        job = {"coordinator": "c:1", "token": "s3cret", "job": "j", "shadow": "host", "chunk_bytes": 4096}
        self.publish(1)
        status, out, err = run(
            "drive", *self.engines, "--generation", "1", "--init", "-", "--json", stdin=json.dumps(job)
        )
        self.assertEqual((status, err), (0, ""))
        document = json.loads(out)
        self.assertEqual((document["outcome"], document["generation"], len(document["engines"])), ("ok", 1, 2))
        for i, fake in enumerate(self.fakes):
            self.assertEqual(fake.info, job | {"engine": i})
        self.assertNotIn("s3cret", out)

    def test_a_failed_swap(self) -> None:
        self.publish(1)
        self.fakes[1].faults["update"] = ["torn"]
        status, out, err = run("drive", *self.engines, "--generation", "1", "--shadow", "host")
        self.assertEqual((status, out), (1, ""))
        self.assertTrue(err.startswith(f"headrace: poisoned: engine 1 ({self.servers[1].url}): "), err)
        self.publish(2)
        self.fakes[1].fail_worker(0, DataLossError("verification_failed", "tile 4"), None)
        status, out, err = run("drive", *self.engines, "--generation", "2", "--json", "--timeout", "0.2")
        document = json.loads(out)
        self.assertEqual((status, err, document["outcome"]), (1, "", "failed"))
        outcomes = [engine["outcome"] for engine in document["report"]["engines"]]
        self.assertEqual(outcomes, ["swapped", "failed"])

    def test_status(self) -> None:
        self.fakes[0].paused = True
        self.fakes[0].fail_worker(1, DataLossError("verification_failed", "tile 3"), None)
        status, out, _ = run("status", self.servers[0].url)
        self.assertEqual(status, 0)
        lines = out.splitlines()
        self.assertEqual(len(lines), 3)
        self.assertIn("8 B of 32 B", lines[1])
        self.assertIn("nothing", lines[2])
        self.assertIn("verification_failed: tile 3", lines[2])
        status, out, _ = run("status", self.servers[0].url, "--json")
        self.assertEqual([worker["serving"] for worker in json.loads(out)["workers"]], [0, None])

    def test_explain(self) -> None:
        status, out, _ = run("explain", self.servers[0].url)
        self.assertEqual(status, 0)
        self.assertRegex(out, r"packed +loader +2.0 KiB +a, b +prepacked")
        self.assertRegex(out, r"direct +1 parameters +32 B")
        self.assertIn("memory: shadow 32 B, loader 2.0 KiB", out)
        status, out, _ = run("explain", self.servers[0].url, "--json")
        self.assertEqual(json.loads(out)["workers"], self.fakes[0].explain())

    def test_key(self) -> None:
        key = self.folder / "key"
        key.write_text("k3y\n")
        run("status", self.servers[0].url, "--api-key-file", str(key))
        self.assertEqual(self.servers[0].headers[-1]["Authorization"], "Bearer k3y")

    def test_publish_hands_its_options_on(self) -> None:
        report: dict[str, Any] = {"generation": 3, "engines": [], "publisher": {}}
        with mock.patch("headrace.publish.publish", return_value=report) as publish:
            arguments = ["--shadow", "off", "--transport", "ucx", "--generation", "3", "--listen", "h:1"]
            arguments += ["--pause", "abort", "--timeout", "9", "--json"]
            status, out, _ = run("publish", "DIR", *self.engines, *arguments)
        self.assertEqual((status, json.loads(out)), (0, {"outcome": "ok"} | report))
        (directory, engines), options = publish.call_args
        self.assertEqual(directory, "DIR")
        self.assertEqual([engine.name for engine in engines], [server.url for server in self.servers])
        wanted = {"shadow": "off", "transport": "ucx", "generation": 3, "pause_mode": "abort", "listen": "h:1"}
        wanted |= {"tls": None, "coordinator_tls": None, "trust_network": False}
        self.assertEqual(options, wanted | {"timeout": 9.0, "progress": None})

    def test_publish_with_tls(self) -> None:
        report: dict[str, Any] = {"generation": 3, "engines": [], "publisher": {}}
        files = {"--tls-certificate": "own.crt", "--tls-key": "own.key", "--tls-ca": "ca.crt"}
        words = [word for option in files.items() for word in option]
        with mock.patch("headrace.publish.publish", return_value=report) as publish:
            self.assertEqual(run("publish", "DIR", *self.engines, *words, "--trust-network", "--json")[0], 0)
        options = publish.call_args.kwargs
        self.assertEqual(options["coordinator_tls"], core.ServerTls("own.crt", "own.key"))
        self.assertEqual((options["tls"], options["trust_network"]), (core.ClientTls("ca.crt"), True))
        for option in files:
            some = [word for pair in files.items() if pair[0] != option for word in pair]
            with self.subTest(option):
                self.assertEqual(run("publish", "DIR", *self.engines, *some)[0], 2)


class CommandTest(unittest.TestCase):
    def test_bad_input(self) -> None:
        cases = [
            [],
            ["swim"],
            ["drive", "--engine", "http://a"],
            ["drive", "--generation", "1"],
            ["drive", "--engine", "http://a", "--generation", "one"],
            ["drive", "--engine", "http://a", "--generation", "1", "--pause", "stop"],
            ["drive", "--engine", "a", "--generation", "1"],
            ["drive", "--engine", "http://a", "--generation", "1", "--init", "/no/such/file"],
            ["drive", "--engine", "http://a", "--generation", "1", "--init", "/dev/null"],
            ["publish", "--engine", "http://a"],
            ["status"],
            ["status", "ftp://a"],
            ["status", "http://a", "--timeout", "0"],
        ]
        for arguments in cases:
            with self.subTest(arguments=arguments):
                status, out, err = run(*arguments)
                self.assertEqual((status, out), (2, ""))
                self.assertRegex(err, r"^headrace: (invalid_option|io|malformed): .+\n$")
                status, out, err = run(*arguments, "--json")
                self.assertEqual((status, err, json.loads(out)["outcome"]), (2, "", "error"))

    def test_nobody_answers(self) -> None:
        status, _, err = run("status", "http://127.0.0.1:1")
        self.assertEqual(status, 1)
        self.assertTrue(err.startswith("headrace: peer_lost: http://127.0.0.1:1/collective_rpc"), err)

    def test_the_binary_gets_the_rest(self) -> None:
        with mock.patch("os.execv") as execv:
            for command in ("plan", "rehearse", "demo", "demo-trainer", "demo-worker", "rehearse-rank"):
                run(command, "--json", "FILE")
                (path, arguments), _ = execv.call_args
                self.assertEqual(path, Path(cli.__file__).resolve().parent / "bin" / "headrace")
                self.assertEqual(arguments, [str(path), command, "--json", "FILE"])
        with mock.patch.object(cli, "_BINARY", Path("/no/such/binary")):
            status, out, err = run("plan", "FILE")
        self.assertEqual((status, out), (2, ""))
        self.assertIn("io: /no/such/binary cannot be run", err)

    def test_one_help_lists_all(self) -> None:
        found = subprocess.run([sys.executable, "-m", "headrace.cli", "--help"], capture_output=True, text=True)
        self.assertEqual((found.returncode, found.stderr), (0, ""))
        for command in ("publish", "drive", "status", "explain", "plan", "rehearse", "demo"):
            self.assertRegex(found.stdout, rf"(?m)^ +{command} ")

    def test_steering_needs_no_library(self) -> None:
        code = "import sys, headrace.cli; sys.exit('headrace.core' in sys.modules or 'torch' in sys.modules)"
        self.assertEqual(subprocess.run([sys.executable, "-c", code]).returncode, 0)


if __name__ == "__main__":
    unittest.main()
