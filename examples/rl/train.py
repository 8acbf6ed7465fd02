#!/usr/bin/env python3
"""Reinforcement learning with weights that go from a torch trainer into a running vLLM server after every step.

SmolLM2-135M is trained with FSDP2 (two processes, gloo, FP32) by a policy gradient on a reward that can be seen in the
text: the share of the letter "s". Rollouts come from one vLLM server, which is started once and never restarted; after
each step Headrace swaps the new weights into it. See README.md.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

import headrace.torch

RANKS = 2
PROMPTS = ["Once upon a time", "The weather today is", "My favourite food is", "In the city there"]
SAMPLES = 4
TOKENS = 16
LEARNING_RATE = 1e-4
_MODEL = pathlib.Path(__file__).resolve().parents[2] / ".models" / "smollm2"
_SERVER_START_S = 600
_REQUEST_S = 300
_HEADER = (
    "version   reward     stall     pause  transfer    verify   log-probability gap   a rollout\n"
    "{version:7d} {reward:8.3f} {stall:>9} {pause:>9} {transfer:>9} {verify:>9}   {gap:19.1e}   {text}"
)


@dataclass
class Rollout:
    prompt_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]  # the engine's, of token_ids
    text: str

    @property
    def reward(self) -> float:
        return self.text.lower().count("s") / max(1, len(self.text))


@contextlib.contextmanager
def vllm_server(model: pathlib.Path, log: pathlib.Path):
    """Yields the address of a server of the model in `model`; it and all its processes end with the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--host", "127.0.0.1", "--port", str(port), "--model", str(model), "--served-model-name", "policy"),
        *("--dtype", "float32", "--max-model-len", "256", "--enforce-eager"),
        *("--weight-transfer-config", '{"backend": "headrace"}'),
        *("--additional-config", '{"headrace": {"shadow": "host"}}'),
    ]
    # The update calls are open in this mode alone. The others: a small KV cache, no warm-up.
    mode = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_CI_ENV": "1"}
    with open(log, "wb") as output:
        server = subprocess.Popen(
            command, env=os.environ | mode, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + _SERVER_START_S
        while not _answers(address):
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server did not start; the end of its log:\n{log.read_text()[-4000:]}")
            time.sleep(1)
        yield address
    finally:
        _end_group(server)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=5):
            return True
    except OSError:
        return False


def _end_group(server: subprocess.Popen) -> None:
    """The server and its engine processes: asked first, then killed."""
    for how, patience in ((signal.SIGTERM, 15), (signal.SIGKILL, 15)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(patience)


def rollouts(address: str, prompt: str, step: int) -> list[Rollout]:
    """SAMPLES completions of `prompt` by the server's weights as they are."""
    request = {
        "model": "policy",
        "prompt": prompt,
        "n": SAMPLES,
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "temperature": 1.0,
        "seed": step,
        "logprobs": 0,
        "return_token_ids": True,
    }
    http = urllib.request.Request(
        f"{address}/v1/completions", json.dumps(request).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(http, timeout=_REQUEST_S) as response:
        choices = json.load(response)["choices"]
    return [
        Rollout(c["prompt_token_ids"], c["token_ids"], c["logprobs"]["token_logprobs"], c["text"]) for c in choices
    ]


def sharded_model(model: pathlib.Path) -> torch.nn.Module:
    disable_progress_bar()
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    for layer in policy.model.layers:
        fully_shard(layer)
    fully_shard(policy)
    return policy


def token_logprobs(policy: torch.nn.Module, group: list[Rollout]) -> torch.Tensor:
    """The trainer's log-probabilities [samples, TOKENS] of the tokens of rollouts of one prompt."""
    ids = torch.tensor([rollout.prompt_ids + rollout.token_ids for rollout in group])
    prompt = len(group[0].prompt_ids)
    logits = policy(input_ids=ids[:, :-1], use_cache=False).logits[:, prompt - 1 :]
    return torch.log_softmax(logits, dim=-1).gather(-1, ids[:, prompt:, None]).squeeze(-1)


def train_step(policy: torch.nn.Module, optimizer: torch.optim.Optimizer, groups: list[list[Rollout]]):
    """One policy gradient step on this rank's groups, one per prompt. Returns (reward, gap), means over all ranks."""
    optimizer.zero_grad()
    rewards, gaps = [], []
    for group in groups:
        reward = torch.tensor([rollout.reward for rollout in group])
        advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
        logprobs = token_logprobs(policy, group)
        (-(advantage[:, None] * logprobs).mean() / len(groups)).backward()
        rewards.append(reward.mean())
        engine = torch.tensor([rollout.logprobs for rollout in group])
        gaps.append((logprobs.detach() - engine).abs().mean())
    optimizer.step()
    means = torch.tensor([sum(rewards), sum(gaps)]) / len(groups)
    dist.all_reduce(means)
    return (means / dist.get_world_size()).tolist()


def train(rank: int, store: str, address: str, model: pathlib.Path, steps: int) -> None:
    """One trainer process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    policy = sharded_model(model)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    header, row = _HEADER.split("\n")
    with headrace.torch.Publisher(policy, [address], shadow="host") as publisher:
        if rank == 0:
            print(header, flush=True)
        for version in range(1, steps + 1):
            groups = [rollouts(address, prompt, version) for prompt in PROMPTS[rank::RANKS]]
            reward, gap = train_step(policy, optimizer, groups)
            report = publisher.publish(version, wait=True)
            if rank == 0:
                engine = report["engines"][0]
                print(
                    row.format(
                        version=version,
                        reward=reward,
                        gap=gap,
                        stall=_time(max(stats["stall_seconds"] for stats in report["trainer"])),
                        pause=_time(engine["seconds"]["paused"]),
                        transfer=_time(max(worker["transfer_seconds"] for worker in engine["workers"])),
                        verify=_time(max(worker["verify_seconds"] for worker in engine["workers"])),
                        text=repr(groups[0][0].text),
                    ),
                    flush=True,
                )
    dist.destroy_process_group()


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.0f} us"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=pathlib.Path, default=_MODEL, help="its checkpoint (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--log", type=pathlib.Path, default=pathlib.Path("vllm.log"), help="the server's output")
    options = parser.parse_args()
    # A terminated run ends its server too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    directory = pathlib.Path(tempfile.mkdtemp(prefix="headrace-rl-"))
    try:
        with vllm_server(options.model, options.log) as address:
            arguments = (str(directory / "store"), address, options.model, options.steps)
            torch.multiprocessing.spawn(train, arguments, nprocs=RANKS)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
