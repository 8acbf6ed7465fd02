"""The wheel beside torch, grpcio, protobuf and ray in one process, loaded in different orders."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

NEIGHBOURS = ("torch", "grpc", "protobuf", "ray")
# Each neighbour stands before headrace and behind it.
ORDERS = (
    ("headrace", "torch", "grpc", "protobuf", "ray"),
    ("ray", "protobuf", "grpc", "torch", "headrace"),
    ("grpc", "ray", "headrace", "torch", "protobuf"),
    ("protobuf", "torch", "headrace", "ray", "grpc"),
)


def _await_port(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    while True:
        if server.poll() is not None:
            raise RuntimeError(f"gcs_server ended: {log.read_text()}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return


class NeighboursTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        spec = importlib.util.find_spec("ray")
        assert spec is not None and spec.origin is not None, "run this in .venv-wheel (tools/wheel/venv.sh)"
        binary = Path(spec.origin).parent / "core/src/ray/gcs/gcs_server"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        cls.gcs = f"127.0.0.1:{port}"
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        log = Path(folder) / "out"
        with log.open("wb") as out:
            server = subprocess.Popen(
                [
                    str(binary),
                    f"--gcs_server_port={port}",
                    "--node-ip-address=127.0.0.1",
                    "--config_list=e30=",  # {}
                    "--session-name=headrace-test",
                    f"--log_dir={folder}",
                ],
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        cls.addClassCleanup(server.wait)
        cls.addClassCleanup(server.kill)
        _await_port(server, port, log)

    def test_orders(self) -> None:
        for name in NEIGHBOURS:
            self.assertEqual({order.index(name) < order.index("headrace") for order in ORDERS}, {False, True}, name)
        for order in ORDERS:
            with self.subTest(" ".join(order)):
                self.assertWorks(order)

    def assertWorks(self, order: tuple[str, ...]) -> None:
        script = Path(__file__).with_name("neighbours.py")
        run = subprocess.run(
            [sys.executable, "-X", "faulthandler", str(script), self.gcs, *order],
            capture_output=True,
            text=True,
            timeout=300,
        )
        self.assertEqual((run.returncode, run.stdout.splitlines()[-1:]), (0, ["ok"]), run.stdout + run.stderr)


if __name__ == "__main__":
    unittest.main()
