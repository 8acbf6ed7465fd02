import unittest
from types import SimpleNamespace

from headrace.errors import StateError
from headrace.vllm import refusals


def config(**changes):
    """The part of vllm.config.VllmConfig that is looked at, with dotted names changed."""
    made = SimpleNamespace(
        model_config=SimpleNamespace(enable_sleep_mode=False, quantization=None),
        parallel_config=SimpleNamespace(enable_eplb=False, pipeline_parallel_size=1),
        lora_config=None,
        speculative_config=None,
        quant_config=None,
        offload_config=SimpleNamespace(
            uva=SimpleNamespace(cpu_offload_gb=0), prefetch=SimpleNamespace(offload_group_size=0)
        ),
    )
    for path, value in changes.items():
        *owners, name = path.split("__")
        owner = made
        for part in owners:
            owner = getattr(owner, part)
        assert hasattr(owner, name)
        setattr(owner, name, value)
    return made


class RefusalsTest(unittest.TestCase):
    def test_what_is_supported(self):
        refusals.check(config())
        refusals.check(config(speculative_config=SimpleNamespace(method="ngram")))

    def test_each_feature_says_what_to_switch_off(self):
        for change, switch in (
            ({"model_config__enable_sleep_mode": True}, "--enable-sleep-mode"),
            ({"parallel_config__enable_eplb": True}, "--enable-eplb"),
            ({"lora_config": object()}, "--enable-lora"),
            ({"speculative_config": SimpleNamespace(method="eagle3")}, "--speculative-config"),
            ({"parallel_config__pipeline_parallel_size": 2}, "--pipeline-parallel-size"),
            ({"model_config__quantization": "fp8"}, "--quantization"),
            ({"quant_config": object()}, "--quantization"),
            ({"offload_config__uva__cpu_offload_gb": 1}, "--cpu-offload-gb"),
            ({"offload_config__prefetch__offload_group_size": 8}, "--offload-group-size"),
        ):
            with self.subTest(change=change):
                with self.assertRaises(StateError) as raised:
                    refusals.check(config(**change))
                self.assertEqual(raised.exception.code, "invalid_option")
                self.assertIn(switch, raised.exception.message)


if __name__ == "__main__":
    unittest.main()
