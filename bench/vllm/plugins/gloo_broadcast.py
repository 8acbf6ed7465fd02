"""The usual update, for comparison: full tensors broadcast over gloo, loaded by the model's own load_weights.

The worker's half, in the shape of vLLM's NCCL engine without its packing: one broadcast for each tensor.
"""

from __future__ import annotations

import dataclasses

import torch
from gloo_broadcast_group import join
from headrace_bench_host import timed
from vllm.distributed.weight_transfer.base import WeightTransferEngine


@dataclasses.dataclass(frozen=True)
class InitInfo:
    port: int


@dataclasses.dataclass(frozen=True)
class UpdateInfo:
    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]


class GlooBroadcastEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        self._group = join(init_info.port, rank=1)
        self._receive = timed("broadcast", lambda weight: self._group.broadcast(weight, 0).wait())
        self._load = timed("load_weights", self.model.load_weights)

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        timed("initialize", initialize_layerwise_reload)(self.model)

    def receive_weights(self, update_info: UpdateInfo) -> None:
        for name, dtype, shape in zip(update_info.names, update_info.dtypes, update_info.shapes):
            weight = torch.empty(shape, dtype=getattr(torch, dtype), device=self.device)
            self._receive(weight)
            self._load([(name, weight)])

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        timed("finalize", finalize_layerwise_reload)(self.model, self.model_config)

    def shutdown(self) -> None:
        self._group = None
