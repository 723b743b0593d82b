"""The package beside pip's grpcio and protobuf and beside torch, imported in either order, each really used."""

from __future__ import annotations

import pytest

from .support import python

USE = {
    "statagent": """
import statagent
statagent.init(run="imports", collector="127.0.0.1:1", connect_timeout=0.3)
statagent.log_scalar("loss", 1.0)
statagent.flush(timeout=0.2)
import numpy
assert statagent.compute(numpy.arange(4.0))["mean"] == 1.5
""",
    "grpc": """
import grpc
channel = grpc.insecure_channel("127.0.0.1:1")
try:
    channel.unary_unary("/a.B/C")(b"", timeout=1)
    raise SystemExit("somebody answered")
except grpc.RpcError as error:
    assert error.code() == grpc.StatusCode.UNAVAILABLE, error
channel.close()
""",
    "protobuf": """
from google.protobuf import descriptor_pb2, timestamp_pb2, json_format
stamp = timestamp_pb2.Timestamp.FromString(timestamp_pb2.Timestamp(seconds=7, nanos=3).SerializeToString())
assert stamp.seconds == 7 and json_format.MessageToJson(stamp)
file = descriptor_pb2.FileDescriptorProto()
timestamp_pb2.DESCRIPTOR.CopyToProto(file)
assert file.name == "google/protobuf/timestamp.proto"
""",
    "torch": """
import torch
layer = torch.nn.Linear(4, 4)
layer(torch.ones(2, 4)).sum().backward()
assert torch.jit.script(torch.nn.ReLU())(torch.ones(1)).item() == 1
""",
}


@pytest.mark.parametrize("other", ["grpc", "protobuf", "torch"])
@pytest.mark.parametrize("order", ["first", "second"])
def test_works_beside(other: str, order: str) -> None:
    parts = [USE["statagent"], USE[other]]
    if order == "second":
        parts.reverse()
    # Each is used again once both are loaded.
    again = "\nstatagent.close(timeout=0.1)\n" + USE[other] + USE["statagent"]
    python("\n".join(parts) + again, cold=True)


@pytest.mark.parametrize("order", ["statagent torch grpc protobuf", "protobuf grpc torch statagent"])
def test_works_beside_all_of_them(order: str) -> None:
    script = "\n".join(USE[name] for name in order.split())
    python(
        script
        + "\nstatagent.watch(layer)\nlayer(torch.ones(2, 4)).sum().backward()\nassert statagent.counters()['produced'] > 2",
        cold=True,
    )


def test_import_needs_neither_torch_nor_numpy_nor_the_library() -> None:
    script = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "numpy"):
            raise ImportError(name + " is not here")
sys.meta_path.insert(0, Nothing())
import statagent
statagent.log_scalar("loss", 1.0)
assert "torch" not in sys.modules and "numpy" not in sys.modules
print(statagent.__version__)
"""
    assert python(script, cold=True, STATAGENT_LIBRARY="/nowhere/libstatagent.so").stdout.strip()


def test_agent_works_without_torch_and_numpy() -> None:
    script = """
import array, sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "numpy"):
            raise ImportError(name + " is not here")
sys.meta_path.insert(0, Nothing())
import statagent
statagent.init(run="bare", collector="127.0.0.1:1", connect_timeout=0)
statagent.log_scalar("loss", 1.0)
statagent.step()
assert statagent.counters()["produced"] == 2, statagent.counters()
assert statagent.compute(array.array("d", [1.0]))["mean"] == 1
try:
    statagent.compute([1.0])
except statagent.TensorTypeError as error:
    print("refused:", error)
"""
    assert "refused:" in python(script, cold=True).stdout
