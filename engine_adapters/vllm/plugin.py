"""What vLLM runs in each of its processes when it starts (entry point group vllm.general_plugins).

Nothing heavy is imported here: the engine, the trainer's twin and the gate are given by module name.
"""

from __future__ import annotations

from typing import Any

from headrace.vllm import replies

BACKEND = "headrace"


def register() -> None:
    """Makes `--weight-transfer-config '{"backend": "headrace"}'` work, puts the gate into an API server that is
    started with it, and mends how executors take their workers' replies. May be called any number of times."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, "headrace.vllm.engine", "HeadraceWeightTransferEngine")
    if BACKEND not in WeightTransferTrainerFactory._registry:
        WeightTransferTrainerFactory.register_engine(BACKEND, "headrace.vllm.trainer", "HeadraceTrainerEngine")
    _attach_gate()
    replies.keep_in_step()


class _GatePlugin:
    """An endpoint plugin of vLLM (see vllm/plugins/endpoint_plugins/interface.py) that adds no endpoint."""

    name = BACKEND
    required_tasks = None

    def attach_router(self, app: Any) -> None:
        config = getattr(app.state.args, "weight_transfer_config", None)
        backend = config.get("backend") if isinstance(config, dict) else getattr(config, "backend", None)
        if backend == BACKEND:
            from headrace.vllm.gate import Gate

            app.add_middleware(Gate)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        pass


def _attach_gate() -> None:
    """vLLM takes endpoint plugins only from those whom VLLM_PLUGINS names, since they add routes. The gate adds none
    and must not depend on a flag, so it is put where the loaded plugins come from."""
    import vllm.plugins

    load = vllm.plugins.load_endpoint_plugins
    if getattr(load, "has_headrace_gate", False):
        return

    def load_with_gate(supported_tasks: Any = None) -> list[Any]:
        return [*load(supported_tasks), _GatePlugin()]

    load_with_gate.has_headrace_gate = True  # type: ignore[attr-defined]
    vllm.plugins.load_endpoint_plugins = load_with_gate
