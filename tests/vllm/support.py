"""Real vLLM servers and real trainer processes for tests; every process ends with its owner."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# The first number is the prompt's length: one token, a part of a block, several blocks.
PROMPTS = [[5], [3 + i % 50 for i in range(11)], [7 + (i * i) % 80 for i in range(37)]]
TOKENS = 12


class Server:
    """A vLLM server of one model. `start` returns at once; `ready` waits."""

    def __init__(self, model: Path, *arguments: str, prepacking: bool = True, tp: int = 1, fault: Path | None = None):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        environment = {
            **os.environ,
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_CI_ENV": "1",
            "PYTHONPATH": os.pathsep.join([str(HERE / "plugins"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            "HEADRACE_TEST_PREPACKING": "on" if prepacking else "off",
            "HEADRACE_TEST_FAULT": str(fault or ""),
        }
        if tp == 2:
            environment["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        command += ["--served-model-name", "model", "--dtype", "float32", "--enforce-eager", "--max-num-seqs", "4"]
        command += ["--port", str(port), "--host", "127.0.0.1", "--tensor-parallel-size", str(tp)]
        command += ["--max-model-len", "1024", "--enable-prefix-caching", "--enable-prompt-tokens-details"]
        command += ["--enable-scale-out"]  # its route says which weights computed each token
        command += ["--worker-extension-cls", "headrace_test_host.Probe"]
        command += ["--weight-transfer-config", '{"backend": "headrace"}', *arguments]
        self.log = tempfile.NamedTemporaryFile("w+", prefix="headrace-vllm-", suffix=".log")
        self._process = subprocess.Popen(
            command, env=environment, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True
        )

    def ready(self, timeout: float = 600) -> "Server":
        end = time.monotonic() + timeout
        while self.call("/health", method="GET")[0] != 200:
            if self._process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise RuntimeError("the server did not start; its log ends:\n" + self.tail())
            time.sleep(0.5)
        return self

    def tail(self, lines: int = 60) -> str:
        return "\n".join(Path(self.log.name).read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def call(self, path: str, body: Any = None, method: str = "POST", timeout: float = 300) -> tuple[int, Any]:
        """(HTTP status, JSON or text); status 0: no answer."""
        data = json.dumps(body or {}).encode() if method == "POST" else None
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                status, text = response.status, response.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        except OSError as error:
            return 0, str(error)
        try:
            return status, json.loads(text) if text else None
        except ValueError:
            return status, text.decode(errors="replace")

    def rpc(self, method: str, *arguments: str) -> list[Any]:
        status, body = self.call("/collective_rpc", {"method": method, "args": list(arguments)})
        assert status == 200, (method, status, body)
        return body["results"]

    def status(self) -> list[dict[str, Any]]:
        return self.rpc("headrace_status")

    def complete(self, prompt: list[int], tokens: int = TOKENS, **options: Any) -> tuple[int, Any]:
        body = {"model": "model", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 1}
        return self.call("/v1/completions", {**body, "ignore_eos": True, "return_token_ids": True, **options})

    def outputs(self) -> list[list[list[float]]]:
        """[[tokens, log-probabilities] of each prompt], greedy."""
        found = []
        for prompt in PROMPTS:
            status, body = self.complete(prompt)
            assert status == 200, (status, body)
            choice = body["choices"][0]
            found.append([choice["token_ids"], choice["logprobs"]["token_logprobs"]])
        return found


class Trainer:
    """The ranks of a trainer. A call goes to all ranks and returns their replies, or raises what the first one says."""

    def __init__(self, model: Path, layout: str = "fsdp2", ranks: int = 2):
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-trainer-")
        store = Path(self._folder.name) / "store"
        self.processes = [
            subprocess.Popen(
                [sys.executable, str(HERE / "trainer.py"), str(rank), str(ranks), str(store), str(model), layout],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            for rank in range(ranks)
        ]
        for process in self.processes:
            _reply(process)

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, *_: Any) -> None:
        self.kill()

    def tell(self, do: str, **command: Any) -> None:
        for process in self.processes:
            process.stdin.write(json.dumps({"do": do, **command}) + "\n")
            process.stdin.flush()

    def replies(self) -> list[dict[str, Any]]:
        return [_reply(process) for process in self.processes]

    def reply(self, rank: int) -> dict[str, Any]:
        return _reply(self.processes[rank])

    def call(self, do: str, **command: Any) -> dict[str, Any]:
        """Rank 0's reply. Raises Failed with the first rank's error."""
        self.tell(do, **command)
        replies = self.replies()
        for reply in replies:
            if "error" in reply:
                raise Failed(reply["error"], [r.get("error") for r in replies])
        return replies[0]

    def swap(self, variant: int, generation: int) -> dict[str, Any]:
        self.call("set", variant=variant)
        return self.call("publish", generation=generation, wait=True)["report"]

    def kill(self, *ranks: int) -> None:
        for rank in ranks or range(len(self.processes)):
            process = self.processes[rank]
            process.kill()
            process.wait()
            process.stdout.close()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        if not ranks:
            self._folder.cleanup()


def _reply(process: subprocess.Popen) -> dict[str, Any]:
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a trainer rank ended with status {process.wait()}")
    return json.loads(line)


class Failed(Exception):
    """What a trainer's call raised: its code and message, and the errors of all ranks."""

    def __init__(self, error: dict[str, Any], errors: list[Any]):
        super().__init__(f"{error['code']}: {error['message']}")
        self.code, self.error, self.errors = error["code"], error, errors


def fresh_outputs(checkpoints: list[Path], prepacking: bool, tp: int = 1) -> list[Any]:
    """What engines that are started on the checkpoints say to PROMPTS; one process, one engine after the other."""
    command = [sys.executable, str(HERE / "fresh.py"), "on" if prepacking else "off", str(tp), *map(str, checkpoints)]
    with tempfile.NamedTemporaryFile("w+", suffix=".log") as log:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, timeout=1200)
        if done.returncode != 0:
            log.seek(0)
            raise RuntimeError("fresh engines: " + log.read()[-4000:])
    return json.loads(done.stdout.splitlines()[-1])
