"""A vLLM plugin for tests: faults and ways of the host that a test switches on in the server's own processes.

    HEADRACE_TEST_PREPACKING=off   linear layers keep their live weights, as on GPUs; on CPUs vLLM packs them otherwise
    HEADRACE_TEST_FAULT=FILE       while FILE exists, the end of a layer's reload raises
"""

from __future__ import annotations

import hashlib
import os
from typing import Any


def register() -> None:
    if os.environ.get("HEADRACE_TEST_PREPACKING") == "off":
        from vllm import _custom_ops
        from vllm.model_executor.layers import utils

        _custom_ops._supports_onednn = False
        utils.check_cpu_sgl_kernel = lambda *_: False
    fault = os.environ.get("HEADRACE_TEST_FAULT")
    if fault:
        from vllm.model_executor.model_loader import reload

        finalize = reload.finalize_layerwise_processing
        if not getattr(finalize, "is_headrace_test", False):

            def finalize_or_raise(*args: Any, **kwargs: Any) -> None:
                if os.path.exists(fault):
                    raise RuntimeError("a fault of the host, switched on by a test")
                finalize(*args, **kwargs)

            finalize_or_raise.is_headrace_test = True  # type: ignore[attr-defined]
            reload.finalize_layerwise_processing = finalize_or_raise


class Probe:
    """For --worker-extension-cls: what a test asks of, and does to, a worker's model."""

    def probe_tensors(self) -> dict[str, Any]:
        """{name: [address, digest of the bytes]} of each parameter and buffer."""
        import torch

        model = self.model_runner.get_model()  # type: ignore[attr-defined]
        found = {}
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            data = tensor.detach().contiguous().view(torch.uint8) if tensor.dim() else tensor.detach().clone()
            found[name] = [tensor.data_ptr(), hashlib.sha256(data.numpy().tobytes()).hexdigest()]
        return found

    def probe_move(self, name: str) -> None:
        """Gives a parameter's bytes another address, as an engine does that rebinds its storage."""
        parameter = self.model_runner.get_model().get_parameter(name)  # type: ignore[attr-defined]
        parameter.data = parameter.data.clone()
