"""One rank of a trainer for tests: takes commands (JSON lines on standard input), answers each with a JSON line.

    python trainer.py RANK RANKS STORE MODEL LAYOUT     LAYOUT: fsdp2, or fsdp2_tp2 (FSDP over tensor parallel)

    {"do": "join", "engines": [...], "shadow": ..., "pause_mode": ..., "drop": [...], "rename": {...}}
    {"do": "set", "variant": V}      {"do": "publish", "generation": G, "wait": true}      {"do": "wait"}
    {"do": "publish", "generation": G, "stop": RANK}     that rank stops (SIGSTOP) before it answers
    {"do": "close"}
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import AutoModelForCausalLM

import models
from headrace.errors import Error
from headrace.torch import Publisher


def build(directory: str, layout: str) -> torch.nn.Module:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    if layout == "fsdp2":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    else:
        mesh_2d = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
        mesh = mesh_2d["dp"]
        columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
        plan: dict[str, Any] = {name: ColwiseParallel() for name in columns}
        plan |= {name: RowwiseParallel() for name in ("self_attn.o_proj", "mlp.down_proj")}
        for layer in model.model.layers:
            parallelize_module(layer, mesh_2d["tp"], plan)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def main() -> None:
    rank, ranks, store, directory, layout = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:6]
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no reply
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    model = build(directory, layout)
    base = {n: (p.to_local() if hasattr(p, "to_local") else p).detach().clone() for n, p in model.named_parameters()}
    publisher: Publisher | None = None
    print(json.dumps({"ready": True}), file=replies)
    for line in sys.stdin:
        command = json.loads(line)
        reply: dict[str, Any] = {}
        try:
            match command.pop("do"):
                case "join":
                    drop, rename = command.pop("drop", []), command.pop("rename", {})
                    offered = model
                    if drop or rename:
                        offered = {rename.get(n, n): p for n, p in model.state_dict().items() if n not in drop}
                        if model.config.tie_word_embeddings:
                            offered.pop("lm_head.weight", None)
                    publisher = Publisher(offered, timeout=120.0, join_timeout=60.0, **command)
                case "set":
                    models.set_variant(model, base, command["variant"])
                case "publish":
                    reply["report"] = publisher.publish(command["generation"], wait=command.get("wait", False))
                    if command.get("stop") == rank:
                        os.kill(os.getpid(), signal.SIGSTOP)
                case "wait":
                    reply["report"] = publisher.wait()
                case "close":
                    publisher.close()
        except Error as error:
            reply["error"] = error.to_json()
        except Exception as error:  # a defect; the test shows it
            reply["error"] = {"code": type(error).__name__, "message": str(error)}
        print(json.dumps(reply), file=replies)


if __name__ == "__main__":
    main()
