"""The refit of refit_bench by gather-and-broadcast over gloo, as trainers without Headrace do it, in CPU-seconds.

Four FSDP trainers hold Shard(0) by ceil chunks; two tensor-parallel engine workers hold fused buffers. For each bucket
of whole tensors (256 MiB unless told otherwise):

  1. every trainer packs its shards of the bucket into one flat tensor;
  2. collect: `all_gather` (what full_tensor() of a sharded parameter does: every trainer gets all shards) or `gather`
     (only rank 0 gets them), one collective for the bucket;
  3. rank 0 lays the whole tensors one after the other in a flat bucket;
  4. the bucket is broadcast to both workers, who copy their slices of each tensor into their buffers.

Buffers are allocated once, before the warm-up. One thread a process: helper threads that spin would be counted too.
Prints one JSON document: {"collect", "bucket_bytes", "bytes", "torch", "samples": [CPU-seconds of all processes, ...]}.
"""

import argparse
import json
import os
import socket
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402

TRAINERS, WORKERS = 4, 2
HIDDEN, EXPERTS, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 1024, 32, 1280, 16, 4, 64, 32768
DTYPE = torch.bfloat16


def tensors(layers):
    """The tensors of refit_model.h, in its order: (name, shape)."""
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for n in range(layers):
        layer = f"model.layers.{n}."
        yield layer + "input_layernorm.weight", (HIDDEN,)
        yield layer + "self_attn.q_proj.weight", (HEADS * HEAD_DIM, HIDDEN)
        yield layer + "self_attn.k_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN)
        yield layer + "self_attn.v_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN)
        yield layer + "self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD_DIM)
        yield layer + "post_attention_layernorm.weight", (HIDDEN,)
        yield layer + "mlp.gate.weight", (EXPERTS, HIDDEN)
        for e in range(EXPERTS):
            yield layer + f"mlp.experts.{e}.gate_proj.weight", (INTERMEDIATE, HIDDEN)
            yield layer + f"mlp.experts.{e}.up_proj.weight", (INTERMEDIATE, HIDDEN)
            yield layer + f"mlp.experts.{e}.down_proj.weight", (HIDDEN, INTERMEDIATE)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCAB, HIDDEN)


def shard(shape, rank):
    """First row and number of rows of a trainer's ceil chunk."""
    chunk = -(-shape[0] // TRAINERS)
    first = min(shape[0], rank * chunk)
    return first, min(shape[0] - first, chunk)


def row_elements(shape):
    return shape[1] if len(shape) == 2 else 1


def buckets(all_tensors, bucket_bytes):
    """Whole tensors in order; a bucket ends before the tensor that would overfill it."""
    out, size = [[]], 0
    for name, shape in all_tensors:
        n = shape[0] * row_elements(shape) * DTYPE.itemsize
        if out[-1] and size + n > bucket_bytes:
            out.append([])
            size = 0
        out[-1].append((name, shape))
        size += n
    return out


def values(name, shape, generation, first=0, count=None):
    """Rows of a tensor in a generation: different in each tensor and row, and a generation flips one bit of each."""
    width = row_elements(shape)
    count = shape[0] - first if count is None else count
    bits = torch.arange(first * width, (first + count) * width, dtype=torch.int32)
    bits.mul_(40503).add_(hash_name(name)).bitwise_and_(0x3FFE).bitwise_or_(generation & 1)
    return bits.to(torch.int16).view(DTYPE).view((count, *shape[1:]))


def hash_name(name):
    h = 5381
    for c in name.encode():
        h = (h * 33 + c) & 0xFFFFFF
    return h


class Engine:
    """One worker's buffers, and where the slices of each tensor go: what the engine's weight loader does."""

    def __init__(self, rank, layers):
        q, kv, half = HEADS * HEAD_DIM // WORKERS, KV_HEADS * HEAD_DIM // WORKERS, INTERMEDIATE // WORKERS
        vocab, self.place = VOCAB // WORKERS, {}

        def zeros(*shape):
            return torch.zeros(shape, dtype=DTYPE)

        def rows(count):
            return slice(rank * count, (rank + 1) * count)

        def add(name, destination, of_tensor=slice(None)):
            self.place[name] = (destination, of_tensor)

        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            add(name, zeros(vocab, HIDDEN), rows(vocab))
        add("model.norm.weight", zeros(HIDDEN))
        for n in range(layers):
            layer = f"model.layers.{n}."
            qkv = zeros(q + 2 * kv, HIDDEN)
            add(layer + "self_attn.q_proj.weight", qkv[:q], rows(q))
            add(layer + "self_attn.k_proj.weight", qkv[q : q + kv], rows(kv))
            add(layer + "self_attn.v_proj.weight", qkv[q + kv :], rows(kv))
            o = HEADS * HEAD_DIM // WORKERS
            add(layer + "self_attn.o_proj.weight", zeros(HIDDEN, o), (slice(None), rows(o)))
            add(layer + "mlp.gate.weight", zeros(EXPERTS, HIDDEN))
            add(layer + "input_layernorm.weight", zeros(HIDDEN))
            add(layer + "post_attention_layernorm.weight", zeros(HIDDEN))
            w13, w2 = zeros(EXPERTS, 2 * half, HIDDEN), zeros(EXPERTS, HIDDEN, half)
            for e in range(EXPERTS):
                expert = layer + f"mlp.experts.{e}."
                add(expert + "gate_proj.weight", w13[e, :half], rows(half))
                add(expert + "up_proj.weight", w13[e, half:], rows(half))
                add(expert + "down_proj.weight", w2[e], (slice(None), rows(half)))
        for destination, _ in self.place.values():
            destination.fill_(1)  # touched before the warm-up

    def load(self, name, tensor):
        destination, of_tensor = self.place[name]
        destination.copy_(tensor[of_tensor])

    def check(self, name, tensor):
        destination, of_tensor = self.place[name]
        return torch.equal(destination.view(torch.int16), tensor[of_tensor].view(torch.int16))


class Refit:
    def __init__(self, rank, layers, bucket_bytes, collect):
        self.rank, self.collect = rank, collect
        self.tensors = list(tensors(layers))
        self.buckets = buckets(self.tensors, bucket_bytes)
        self.trainers = dist.new_group(range(TRAINERS))
        self.receivers = dist.new_group([0] + list(range(TRAINERS, TRAINERS + WORKERS)))
        # A trainer's part of a bucket has room for rank 0's shards, the largest: collectives want equal sizes.
        largest = max(sum(s[0] * row_elements(s) for _, s in b) for b in self.buckets)
        part = max(sum(shard(s, 0)[1] * row_elements(s) for _, s in b) for b in self.buckets)
        self.whole = self.part = self.parts = self.engine = None
        if rank < TRAINERS:
            self.shards = {n: values(n, s, 0, *shard(s, rank)) for n, s in self.tensors}
            self.part = torch.ones(part, dtype=DTYPE)
            if rank == 0 or collect == "all_gather":
                self.parts = torch.ones(TRAINERS * part, dtype=DTYPE)
        else:
            self.engine = Engine(rank - TRAINERS, layers)
        if rank == 0 or rank >= TRAINERS:
            self.whole = torch.ones(largest, dtype=DTYPE)

    def change(self):
        """A training step: every weight changes. values() of the next generation."""
        if self.engine is None:
            for weights in self.shards.values():
                weights.view(torch.int16).bitwise_xor_(1)

    def check(self, generation):
        if self.engine is None:
            return
        wrong = [n for n, s in self.tensors if not self.engine.check(n, values(n, s, generation))]
        if wrong:
            raise SystemExit(f"rank {self.rank}: {len(wrong)} tensors are wrong, the first is {wrong[0]}")

    def run(self):
        for bucket in self.buckets:
            if self.rank < TRAINERS:
                self.gather(bucket)
            if self.whole is not None:
                whole = self.whole[: sum(s[0] * row_elements(s) for _, s in bucket)]
                dist.broadcast(whole, src=0, group=self.receivers)
                if self.engine:
                    at = 0
                    for name, shape in bucket:
                        n = shape[0] * row_elements(shape)
                        self.engine.load(name, whole[at : at + n].view(shape))
                        at += n

    def gather(self, bucket):
        size = sum(shard(s, 0)[1] * row_elements(s) for _, s in bucket)
        part, at = self.part[:size], 0
        for name, _ in bucket:
            flat = self.shards[name].view(-1)
            part[at : at + flat.numel()].copy_(flat)
            at += flat.numel()
        parts = None if self.parts is None else self.parts[: TRAINERS * size]
        if self.collect == "all_gather":
            dist.all_gather_into_tensor(parts, part, group=self.trainers)
        else:
            dist.gather(part, list(parts.split(size)) if self.rank == 0 else None, dst=0, group=self.trainers)
        if self.rank != 0:
            return
        at, from_part = 0, [r * size for r in range(TRAINERS)]
        for _, shape in bucket:
            for r in range(TRAINERS):
                n = shard(shape, r)[1] * row_elements(shape)
                self.whole[at : at + n].copy_(parts[from_part[r] : from_part[r] + n])
                at += n
                from_part[r] += n


def run_rank(rank, args, port):
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=TRAINERS + WORKERS)
    refit = Refit(rank, args.layers, args.bucket_mib << 20, args.collect)
    samples = []
    for generation in range(1, args.warmup + args.generations + 1):
        refit.change()
        dist.barrier()
        begin = time.process_time()
        refit.run()
        cpu = torch.tensor(time.process_time() - begin, dtype=torch.float64)
        dist.all_reduce(cpu)
        if generation > args.warmup:
            samples.append(cpu.item())
    refit.check(args.warmup + args.generations)
    dist.barrier()
    if rank == 0:
        size = sum(s[0] * row_elements(s) for _, s in refit.tensors) * DTYPE.itemsize
        json.dump({"collect": args.collect, "bucket_bytes": args.bucket_mib << 20, "bytes": size,
                   "torch": torch.__version__, "samples": samples}, sys.stdout)
        print()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--generations", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--bucket-mib", type=int, default=256)
    parser.add_argument("--collect", choices=["all_gather", "gather"], default="all_gather")
    args = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    mp.start_processes(run_rank, (args, port), nprocs=TRAINERS + WORKERS, start_method="fork")


if __name__ == "__main__":
    main()
