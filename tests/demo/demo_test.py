"""The demo on tiny checkpoints and on the real model: what it reports, and what is left of it when one of its processes
is killed at a random moment.

Run by test.sh from the workspace's root, after the command was built and the model converted:
    .venv/bin/python -m unittest discover -s tests/demo -p '*_test.py'
HEADRACE_KILLS sets the number of kills (10), HEADRACE_KILL_MODEL the checkpoint that they meet (a tiny one),
HEADRACE_BINARY the command.
"""
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BINARY = os.environ.get("HEADRACE_BINARY") or os.path.join(ROOT, ".bazel", "bin", "cli", "headrace")
REAL_MODEL = os.path.join(ROOT, ".models", "smollm2")
SURVIVORS_END_WITHIN = 10.0

_TESTING = os.path.join(ROOT, ".bazel", "bin", "loader", "testing")
_CHECKER = os.path.join(_TESTING, "nccl_checker", "libheadrace_nccl_checker.so")
CHECKER = {
    "HEADRACE_CUDA_RUNTIME": _CHECKER,
    "HEADRACE_CUDA_DRIVER": _CHECKER,
    "HEADRACE_NCCL": _CHECKER,
    "HEADRACE_CUDA_KERNELS": os.path.join(_TESTING, "checker_kernels", "libheadrace_checker_kernels.so"),
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
}


def command(model, *words):
    return [BINARY, "demo", "--model", model, "--oracle", os.path.join(ROOT, "tools", "model", "oracle.py"),
            "--python", sys.executable, "--json", *words]


def make_tiny(folder, *words):
    subprocess.run([sys.executable, os.path.join(ROOT, "tools", "model", "make_tiny.py"), folder, *words],
                   check=True, stdout=subprocess.DEVNULL)
    return folder


def processes_of(session):
    """Living processes of a session: {pid: command line}."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % entry) as f:
                fields = f.read().rsplit(")", 1)[1].split()
            if int(fields[3]) != session or fields[0] == "Z":
                continue
            with open("/proc/%s/cmdline" % entry, "rb") as f:
                found[int(entry)] = f.read().replace(b"\0", b" ").decode()
        except (OSError, IndexError, ValueError):
            continue
    return found


class Reports(unittest.TestCase):
    def check(self, model, *words):
        r = subprocess.run(command(model, *words), capture_output=True, text=True, timeout=600)
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
        report = json.loads(r.stdout)
        self.assertEqual(report["outcome"], "ok")
        for s in report["scenarios"]:
            self.assertEqual(s["wire_bytes"], s["needed_bytes"])
            self.assertEqual(s["broadcast_bytes"], 0)
            self.assertEqual(s["loader_bytes"], 0)
            self.assertLessEqual(s["peak_staging_bytes"], 64 << 20)
            self.assertEqual(sum(map(sum, s["traffic"])), s["wire_bytes"])
            self.assertEqual(sum(e["generations"]["2"]["bytes"] for e in s["engines"]), s["wire_bytes"])
            self.assertGreaterEqual(s["checked_bytes"], 2 * s["needed_bytes"])
            for e in s["engines"]:
                self.assertEqual(e["torn"], 0)
                for generation in "012":
                    self.assertGreaterEqual(e["requests"][generation], 3)
        return report

    def test_tiny_models_in_every_way(self):
        shapes = ([], ["--untied"], ["--qk-norm"], ["--bias"])
        for i, shape in enumerate(shapes):
            with self.subTest(shape=shape), tempfile.TemporaryDirectory() as folder:
                make_tiny(folder, *shape)
                report = self.check(folder, "--transport", ("host", "ucx")[i % 2], "--shadow", ("host", "off")[i // 2])
                self.assertEqual([s["name"] for s in report["scenarios"]], ["megatron", "fsdp"])

    def test_the_real_model(self):
        report = self.check(REAL_MODEL, "--scenario", "megatron")
        s = report["scenarios"][0]
        self.assertEqual((s["tensors"], s["trainers"], [e["tp"] for e in s["engines"]]), (272, 6, [3, 1]))
        self.assertLessEqual(s["sender_max_over_mean"], 1.02)

    def test_a_tiny_model_over_nccl(self):
        """Over what stands for NCCL where there is no GPU (loader/testing/nccl_checker), in all processes."""
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.dict(os.environ, CHECKER):
            report = self.check(make_tiny(folder), "--transport", "nccl")
        self.assertEqual([s["name"] for s in report["scenarios"]], ["megatron", "fsdp"])

    def test_a_tiny_model_in_gpu_memory(self):
        """On what stands for GPUs where there is none: CUDA and NCCL, and the kernels, in all processes."""
        ways = ((("cuda",), "device"), (("cuda", "--shadow", "off"), "off"), (("nccl",), "device"), (("host",), "host"))
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.dict(os.environ, CHECKER):
            make_tiny(folder)
            for words, shadow in ways:
                with self.subTest(words=words):
                    report = self.check(folder, "--gpu", "--transport", *words)
                    self.assertEqual([s["name"] for s in report["scenarios"]], ["megatron", "fsdp"])
                    self.assertEqual((report["gpu"], report["shadow"]), (True, shadow))

    def test_gpu_memory_that_is_not_there(self):
        refused = (({}, ["--transport", "cuda"], 2, "invalid_option", "--gpu"),
                   ({}, ["--gpu", "--shadow", "off"], 2, "invalid_option", "--shadow host"),
                   ({"HEADRACE_CUDA_RUNTIME": "/nonexistent/libcudart.so"}, ["--gpu"], 1, "transport",
                    "install the CUDA runtime"))
        with tempfile.TemporaryDirectory() as folder:
            make_tiny(folder)
            for environment, words, status, code, advice in refused:
                with self.subTest(words=words), unittest.mock.patch.dict(os.environ, environment):
                    r = subprocess.run(command(folder, *words), capture_output=True, text=True, timeout=10)
                    self.assertEqual(r.returncode, status, r.stdout + r.stderr)
                    failure = json.loads(r.stdout)
                    self.assertEqual(failure["code"], code)
                    self.assertIn(advice, failure["message"])

    def test_the_real_model_over_ucx(self):
        report = self.check(REAL_MODEL, "--scenario", "fsdp", "--transport", "ucx")
        self.assertEqual(report["scenarios"][0]["trainers"], 5)


class Kills(unittest.TestCase):
    """SIGKILL of any one process: the others end by themselves, nobody served a mixture, and the dead rank is named."""

    def test_kills(self):
        seed = int(os.environ.get("HEADRACE_SEED", random.SystemRandom().randrange(1 << 32)))
        kills = int(os.environ.get("HEADRACE_KILLS", "10"))
        print("HEADRACE_SEED=%d, %d kills" % (seed, kills))
        rng = random.Random(seed)
        with tempfile.TemporaryDirectory() as tiny:
            model = os.environ.get("HEADRACE_KILL_MODEL") or make_tiny(tiny)
            begin = time.monotonic()
            subprocess.run(command(model, "--scenario", "megatron"), check=True, stdout=subprocess.DEVNULL)
            whole = time.monotonic() - begin
            done = attempts = 0
            slowest = 0.0
            while done < kills:
                attempts += 1
                self.assertLess(attempts, kills * 10, "the kills never met a running demo")
                words = ["--scenario", rng.choice(["megatron", "fsdp"]), "--transport", rng.choice(["host", "ucx"]),
                         "--shadow", rng.choice(["host", "host", "off"])]
                seconds = self.kill_one(model, words, rng.uniform(0, whole), rng)
                if seconds is not None:
                    done += 1
                    slowest = max(slowest, seconds)
        print("%d kills, the slowest survivors ended after %.1f s" % (done, slowest))

    def kill_one(self, model, words, moment, rng):
        demo = subprocess.Popen(command(model, *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                start_new_session=True)
        try:
            time.sleep(moment)
            running = processes_of(demo.pid)
            if not running:
                return None
            victim = rng.choice(sorted(running))
            what = "%s, %s (pid %d) killed after %.2f s" % (" ".join(words), running[victim], victim, moment)
            os.kill(victim, signal.SIGKILL)
            killed_at = time.monotonic()
            while processes_of(demo.pid) and time.monotonic() - killed_at < SURVIVORS_END_WITHIN + 5:
                time.sleep(0.05)
            seconds = time.monotonic() - killed_at
            left = processes_of(demo.pid)
            self.assertFalse(left, "%s: still there after %.1f s: %s" % (what, seconds, left))
            self.assertLessEqual(seconds, SURVIVORS_END_WITHIN, what)
            out, err = demo.communicate(timeout=10)
        finally:
            for pid in processes_of(demo.pid):
                os.kill(pid, signal.SIGKILL)
            demo.communicate()
        if demo.returncode == 0:
            return None  # the victim was on its way out: the demo was complete
        if victim == demo.pid:
            return seconds
        self.assertEqual(demo.returncode, 1, what + "\n" + out + err)
        failure = json.loads(out)
        self.assertEqual(failure["outcome"], "failed", what)
        self.assertIn("killed by signal 9", failure["message"], what)
        if "oracle.py" not in running[victim]:
            self.assertEqual(failure["code"], "peer_lost", what + "\n" + out)
            self.assertIn("(pid %d)" % victim, failure["message"], what)
            self.assertRegex(failure["message"], r"(publisher rank|engine \d+ worker) \d+", what)
        self.assertIn(", 0 torn", failure["message"], what)
        return seconds


if __name__ == "__main__":
    unittest.main()
