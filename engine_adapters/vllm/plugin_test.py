import subprocess
import sys
import unittest
from types import SimpleNamespace

from headrace.vllm import plugin


class App:
    def __init__(self, config):
        self.state = SimpleNamespace(args=SimpleNamespace(weight_transfer_config=config))
        self.middleware = []

    def add_middleware(self, middleware):
        self.middleware.append(middleware)


class PluginTest(unittest.TestCase):
    def setUp(self):
        plugin.register()
        plugin.register()

    def test_both_sides_are_registered_once(self):
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory

        self.assertIn("headrace", WeightTransferEngineFactory._registry)
        self.assertIn("headrace", WeightTransferTrainerFactory._registry)

    def test_the_gate_goes_where_the_backend_is_used(self):
        import vllm.plugins

        from headrace.vllm.gate import Gate

        plugins = vllm.plugins.load_endpoint_plugins(("generate",))
        self.assertEqual([p.name for p in plugins], ["headrace"])
        for config, expected in (
            (SimpleNamespace(backend="headrace"), [Gate]),
            ({"backend": "headrace"}, [Gate]),
            (SimpleNamespace(backend="nccl"), []),
            (None, []),
        ):
            app = App(config)
            plugins[0].attach_router(app)
            self.assertEqual(app.middleware, expected)

    def test_it_is_an_endpoint_plugin(self):
        import vllm.plugins
        from vllm.plugins.endpoint_plugins.interface import EndpointPlugin

        self.assertIsInstance(vllm.plugins.load_endpoint_plugins()[0], EndpointPlugin)

    def test_registering_imports_nothing_of_the_engine(self):
        code = (
            "import sys; import vllm.plugins, vllm.distributed.weight_transfer.factory; before = set(sys.modules); "
            "from headrace.vllm.plugin import register; register(); print(*sorted(set(sys.modules) - before))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        imported = done.stdout.splitlines()[-1].split()
        self.assertEqual(imported, ["headrace", "headrace.vllm", "headrace.vllm.plugin", "headrace.vllm.replies"])


if __name__ == "__main__":
    unittest.main()
