"""Loads libraries in a given order in one process, then has each do real work; run by neighbours_test.py.

    python neighbours.py HOST:PORT headrace torch grpc protobuf ray

HOST:PORT is where a gcs_server of ray listens.

Every library is loaded before the first works, then all work, twice over, so that what one of them left in the process
meets the others. Ends with "ok".
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from concurrent import futures


def use_headrace() -> Callable[[], None]:
    from headrace import core

    core.plan({"tensors": [], "source": [], "destination": []})  # loads the library

    def work() -> None:
        shape, size = [33, 5], 33 * 5 * 2
        piece = {"tensor": "t", "tensor_offset": [0, 0], "shape": shape, "buffer_offset": [0, 0]}
        buffer = {"rank": 0, "buffer": "b", "dtype": "BF16", "shape": shape, "pieces": [piece]}
        tensors = [{"name": "t", "shape": shape, "dtype": "BF16"}]
        content = bytes(i * 37 % 251 for i in range(size))
        source = ctypes.create_string_buffer(content, size)
        live = ctypes.create_string_buffer(size)
        memory = {"b": core.BufferMemory(ctypes.addressof(live), shape, [5, 1])}
        with core.Coordinator(job="j", publishers=1, workers=[1], token="a-token", incarnation="n") as coordinator:
            where = {"coordinator": coordinator.address, "token": "a-token", "job": "j"}
            with futures.ThreadPoolExecutor() as pool:
                joining = pool.submit(
                    core.Receiver,
                    {"tensors": [], "source": [], "destination": [buffer], "topology": {"destination": [{"rank": 0}]}},
                    memory,
                    engine=0,
                    worker=0,
                    shadow="host",
                    **where,
                )
                publisher = core.Publisher(
                    {"tensors": tensors, "source": [buffer], "destination": [], "topology": {"source": [{"rank": 0}]}},
                    {"b": ctypes.addressof(source)},
                    rank=0,
                    **where,
                )
                receiver = joining.result()
            publisher.publish(1, 30)
            receiver.stage(receiver.next_generation(30), memory)
            receiver.commit(1)
            publisher.await_commit(1, 30)
            receiver.close()
            publisher.close()
        assert live.raw == content

    return work


def use_torch() -> Callable[[], None]:
    import torch

    def work() -> None:
        a = torch.arange(64, dtype=torch.float32).reshape(8, 8)
        assert torch.equal(a @ torch.eye(8), a)
        try:
            torch.ones(2) @ torch.ones(3)  # an exception crosses its C++
        except RuntimeError:
            return
        raise AssertionError("torch multiplied what does not fit")

    return work


def use_grpc() -> Callable[[], None]:
    import grpc

    def work() -> None:
        server = grpc.server(futures.ThreadPoolExecutor())
        turn = grpc.unary_unary_rpc_method_handler(lambda request, context: request[::-1])
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", {"turn": turn}),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert channel.unary_unary("/s/turn")(b"water", timeout=30) == b"retaw"
        server.stop(None).wait()

    return work


def use_protobuf() -> Callable[[], None]:
    from google.protobuf import struct_pb2
    from google.protobuf.internal import api_implementation

    assert api_implementation.Type() == "upb"

    def work() -> None:
        message = struct_pb2.Struct()
        message.update({"name": "q", "shape": [3, 4], "nested": {"yes": True}})
        again = struct_pb2.Struct.FromString(message.SerializeToString())
        assert again == message and again["shape"][1] == 4

    return work


def use_ray(gcs: str) -> Callable[[], None]:
    import ray._raylet

    def work() -> None:
        identity = ray._raylet.ObjectID(bytes(range(28)))
        assert ray._raylet.ObjectID(bytes.fromhex(identity.hex())) == identity
        client = ray._raylet.GcsClient(address=gcs)  # its own gRPC, to its own server
        client.internal_kv_put(b"key", b"water", True, timeout=30)
        assert client.internal_kv_get(b"key", timeout=30) == b"water"

    return work


def main(gcs: str, names: list[str]) -> None:
    uses = {
        "headrace": use_headrace,
        "torch": use_torch,
        "grpc": use_grpc,
        "protobuf": use_protobuf,
        "ray": lambda: use_ray(gcs),
    }
    works = [uses[name]() for name in names]
    for work in works + works[::-1]:
        work()
    # All at once.
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    print("ok")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
