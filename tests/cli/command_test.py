"""The command as its users meet it: output, exit statuses, bad input, machines that refuse.

usage: command_test.py HEADRACE FOLDER_OF_CASES
"""
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import unittest

BINARY, CASES = sys.argv[1:3]
GOOD = os.path.join(CASES, "22-fsdp-over-tp-strided.json")
HOSTS = os.path.join(CASES, "238-replicated-over-another-host.json")
BAD = os.path.join(CASES, "39-missing-tensor.json")


def run(*words, **kwargs):
    return subprocess.run([BINARY, *words], capture_output=True, text=True, timeout=120, **kwargs)


class CommandTest(unittest.TestCase):
    def test_plan_for_people(self):
        r = run("plan", GOOD)
        self.assertEqual(r.returncode, 0, r.stderr)
        for word in ("proven", "copies", "digest", "source 3", "destination 0"):
            self.assertIn(word, r.stdout)
        self.assertEqual(r.stderr, "")

    def test_plan_for_machines(self):
        r = run("plan", GOOD, "--json")
        self.assertEqual(r.returncode, 0)
        figures = json.loads(r.stdout)
        self.assertEqual(figures["outcome"], "planned")
        self.assertEqual(figures["needed_bytes"], 24)
        self.assertEqual(figures["wire_bytes"], 24)
        self.assertEqual(figures["reshard_bytes"], 24)
        self.assertEqual(figures["direct_bytes"], 24)
        self.assertEqual(len(figures["digest"]), 64)
        again = json.loads(run("plan", GOOD, "--json").stdout)
        self.assertEqual(again["digest"], figures["digest"])

    def test_reads_standard_input(self):
        with open(GOOD) as f:
            r = run("plan", "-", "--json", stdin=f)
        self.assertEqual(json.loads(r.stdout)["outcome"], "planned")

    def test_rehearse_for_people(self):
        r = run("rehearse", GOOD)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("Every byte", r.stdout)
        self.assertIn("4 publishers, 1 engines, 1 workers", r.stdout)

    def test_policies(self):
        """Relays and broadcasts are streams; more tensors take them by hybrid. The bytes are as many."""
        streamed = {}
        for policy in ("auto", "hybrid"):
            figures = json.loads(run("plan", HOSTS, "--json", "--policy", policy).stdout)
            self.assertEqual(figures["policy"], policy)
            streamed[policy] = figures["broadcast_bytes"]
            r = run("rehearse", HOSTS, "--json", "--policy", policy, "--transport", "ucx")
            moved = json.loads(r.stdout)
            self.assertEqual((r.returncode, moved["policy"]), (0, policy), r.stdout)
            self.assertGreater(moved["streams"], 0)
            self.assertEqual(moved["streams"], figures["streams"])
            self.assertEqual(moved["needed_bytes"], figures["needed_bytes"])
        self.assertEqual(streamed["auto"], 0)
        self.assertGreater(streamed["hybrid"], 0)
        for verb in ("plan", "rehearse"):
            r = run(verb, HOSTS, "--json", "--policy", "best")
            self.assertEqual((r.returncode, json.loads(r.stdout)["code"]), (2, "invalid_option"))
            self.assertIn("policy", r.stdout)

    def test_bad_input(self):
        for verb in ("plan", "rehearse"):
            r = run(verb, BAD, "--json")
            self.assertEqual(r.returncode, 2)
            error = json.loads(r.stdout)
            self.assertEqual((error["outcome"], error["code"]), ("error", "uncovered"))
            self.assertEqual(list(error), ["outcome", "code", "message"])
            r = run(verb, BAD)
            self.assertEqual((r.returncode, r.stdout), (2, ""))
            self.assertIn("headrace: uncovered: ", r.stderr)

    def test_files_that_cannot_be_read(self):
        for path in ("/no/such/file", "/", ""):
            r = run("plan", path, "--json")
            self.assertEqual(r.returncode, 2, path)
            self.assertEqual(json.loads(r.stdout)["outcome"], "error")

    def test_not_json(self):
        for text in ("", "{", "[]", "nul", "\x00\xff", "[" * 100000, '{"tensors": 3}', '{"a": 1, "a": 2}'):
            with tempfile.NamedTemporaryFile("w", encoding="latin-1") as f:
                f.write(text)
                f.flush()
                r = run("plan", f.name, "--json")
            self.assertEqual(r.returncode, 2, text[:20])
            self.assertEqual(json.loads(r.stdout)["code"], "malformed", text[:20])

    def test_usage(self):
        for words in ([], ["plan"], ["nonsense"], ["plan", GOOD, "--nonsense"], ["rehearse", GOOD, "--transport", "x"]):
            r = run(*words)
            self.assertEqual((r.returncode, r.stdout), (2, ""), words)
            self.assertIn("headrace: invalid_option: ", r.stderr)
        r = run("rehearse", GOOD, "--transport", "x", "--json")
        self.assertEqual((r.returncode, json.loads(r.stdout)["code"]), (2, "invalid_option"))
        r = run("--help")
        self.assertEqual(r.returncode, 0)
        for verb in ("plan", "rehearse", "demo"):
            self.assertIn(verb, r.stdout)

    def test_a_model_that_is_not_there(self):
        r = run("demo", "--model", "/no/such/model", "--oracle", "x", "--json")
        self.assertEqual(r.returncode, 2)
        self.assertEqual(json.loads(r.stdout)["code"], "io")

    def test_snapshot_memory_refused(self):
        """A file-size limit below the snapshot: typed, names the bytes, nothing hangs."""
        manifest = {"tensors": [{"name": "w", "shape": [1 << 20], "dtype": "U8"}]}
        piece = {"tensor": "w", "tensor_offset": [0], "shape": [1 << 20], "buffer_offset": [0]}
        manifest["source"] = manifest["destination"] = [
            {"rank": 0, "buffer": "w", "dtype": "U8", "shape": [1 << 20], "pieces": [piece]}]
        with tempfile.NamedTemporaryFile("w") as f:
            json.dump(manifest, f)
            f.flush()
            self.assertEqual(run("rehearse", f.name, "--transport", "host").returncode, 0)
            limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))
            r = run("rehearse", f.name, "--transport", "host", "--json", preexec_fn=limit)
        self.assertEqual(r.returncode, 1, r.stdout + r.stderr)
        error = json.loads(r.stdout)
        self.assertEqual((error["outcome"], error["code"]), ("failed", "out_of_memory"))
        self.assertRegex(error["message"], r"1\d{6}")  # the bytes that were needed

    def test_hidden_verbs_do_not_crash(self):
        for verb in ("rehearse-rank", "demo-trainer", "demo-worker"):
            for text in ("", "{}\n", "nonsense\n"):
                r = run(verb, input=text)
                self.assertNotEqual(r.returncode, 0)
                self.assertGreater(r.returncode, 0, "killed by a signal")


if __name__ == "__main__":
    signal.alarm(280)
    unittest.main(argv=[sys.argv[0]], verbosity=1)
