"""What both ends of the broadcast share. Imports no vLLM: the trainer is one of them."""

from __future__ import annotations

import datetime

import torch.distributed as dist

TIMEOUT = datetime.timedelta(seconds=120)


def join(port: int, rank: int) -> dist.ProcessGroupGloo:
    """A group of the sender (rank 0) and the one worker (rank 1), beside the process's own groups."""
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0, timeout=TIMEOUT, wait_for_workers=False)
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = TIMEOUT
    return dist.ProcessGroupGloo(store, rank, 2, options)
