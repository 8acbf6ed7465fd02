"""On which GPU tensors are, and the stream that torch works on there."""

from typing import Iterable

import torch

from headrace.errors import InputError


def gpu_of(tensors: Iterable[torch.Tensor], whose: str) -> int | None:
    """The CUDA device number of the tensors that are on a GPU; None: all are the host's. InputError `malformed` when
    they are on several; `whose` begins its message: "trainer rank 3"."""
    gpus = {tensor.device.index for tensor in tensors if tensor.device.type == "cuda"}
    if len(gpus) > 1:
        raise InputError("malformed", f"{whose} has weights on the GPUs {sorted(gpus)}; they must be on one")
    return next(iter(gpus), None)


def current_stream(gpu: int | None) -> int:
    """The handle of this thread's current stream there, for the core; 0 without a GPU."""
    return 0 if gpu is None else torch.cuda.current_stream(gpu).cuda_stream


def use_gpu(gpu: int | None) -> None:
    """Makes it this thread's current one."""
    if gpu is not None:
        torch.cuda.set_device(gpu)
