"""What was recorded by the release that introduced a format is read for ever: a session as it went over the wire, and a store.

tests/data/compatibility has both, with what `statctl show` and `export json` said of them; its folder zoom has them of a run that zooms,
with what `statctl zoom` says, and tokens of one that records tokens. When a format grows, a folder of its own is added (`python
tests/e2e/test_compatibility.py FOLDER [zoom|tokens]` writes one), and the old ones stay.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shutil
import struct
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Collector, agent_environment, run_command

grpc = pytest.importorskip("grpc")
STREAM = "/statcollect.v1.Ingest/Stream"
FOLDER = ROOT / "tests" / "data" / "compatibility"
RUN = "recorded"
STORE_ID = 7  # of Welcome: the first field that the first collectors did not send
TRAINING = """
import os, statagent, torch
torch.manual_seed(7)
agent = statagent.init(required=True, samples=4, captures=["0@1"], exponents=["2@0-"], config={"lr": 0.1, "data": {"name": "toy"}})
model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
statagent.watch(model, optimizer=optimizer)
for step in range(3):
    optimizer.zero_grad()
    x = torch.randn(4, 6)
    statagent.log_batch(x=x)
    loss = model(x).square().mean()
    loss.backward()
    statagent.log_scalar("loss", loss)
    if os.environ.get("TOKENS"):
        keys = statagent.token_keys([step, 1, 2, 3])
        agent.record_rows("0", model[0](x), keys, range(4))
        agent.record_rows("logprob", -x[:, :1].abs(), keys, range(4), call=1)
    optimizer.step()
statagent.close(timeout=20)
"""
# Folders of FOLDER, and what the training was told. Whoever reads an operator as an output, or leaves events out, is seen.
RECORDED = {"": {}, "zoom": {"STATAGENT_ZOOM": "0@1"}, "tokens": {"TOKENS": "1"}}
# What differs between two readings of the same records: when the collector was told of them.
CHANGING = re.compile(r'"(start|end_unix_nanos|last_write)[a-z_]*": ?("[^"]*"|-?[0-9.e+]+)')


def write_frames(path: Path, messages: list[bytes]) -> None:
    path.write_bytes(b"".join(struct.pack("<I", len(message)) + message for message in messages))


def read_frames(path: Path) -> list[bytes]:
    data, at, messages = path.read_bytes(), 0, []
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at)
        messages.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return messages


class Recorder:
    """Between an agent and a collector: passes messages on as they are, and keeps them."""

    def __init__(self, address: str) -> None:
        self.sent: list[bytes] = []
        self.answers: list[bytes] = []
        self.channel = grpc.insecure_channel(address)
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        handler = grpc.stream_stream_rpc_method_handler(self.pass_on)
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("statcollect.v1.Ingest", {"Stream": handler}),)
        )
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def pass_on(self, messages: Iterator[bytes], _context: Any) -> Iterator[bytes]:
        def keep() -> Iterator[bytes]:
            for message in messages:
                self.sent.append(message)
                yield message

        for answer in self.channel.stream_stream(STREAM)(keep()):
            self.answers.append(answer)
            yield answer

    def stop(self) -> None:
        self.server.stop(1).wait()
        self.channel.close()


def replay(address: str, messages: list[bytes]) -> None:
    """Says what a recorded agent said, and waits until the collector has ended the stream."""
    welcomed = threading.Event()

    def say() -> Iterator[bytes]:
        yield messages[0]
        assert welcomed.wait(20)
        yield from messages[1:]

    with grpc.insecure_channel(address) as channel:
        for _ in channel.stream_stream(STREAM)(say(), timeout=30):
            welcomed.set()


def fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The fields of a serialised protobuf message: number, and bytes or an integer."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = varint()
        wire = tag & 7
        if wire == 0:
            yield tag >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(wire) or varint()
        yield tag >> 3, message[at : at + size]
        at += size


def field(number: int, value: bytes | int) -> bytes:
    """A serialised field; integers are at least 0."""

    def varint(rest: int) -> bytes:
        return bytes([rest]) if rest < 0x80 else bytes([rest & 0x7F | 0x80]) + varint(rest >> 7)

    return varint(number << 3) + varint(value) if isinstance(value, int) else varint(number << 3 | 2) + varint(len(value)) + value


class EarlierCollector:
    """Says what a recorded collector said: its welcome, and acknowledgements in the same form for what it is sent."""

    WELCOME, ACK, DURABLE_SEQ = 1, 2, 1
    HELLO, BATCH, GOODBYE, FIRST_SEQ, COUNT = 1, 2, 3, 1, 2

    def __init__(self, welcome: bytes) -> None:
        self.welcome = welcome
        self.records = 0
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        handler = grpc.stream_stream_rpc_method_handler(self.answer)
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("statcollect.v1.Ingest", {"Stream": handler}),)
        )
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def answer(self, messages: Iterator[bytes], _context: Any) -> Iterator[bytes]:
        for message in messages:
            for body, content in fields(message):
                if body == self.HELLO:
                    yield field(self.WELCOME, self.welcome)
                elif body == self.BATCH:
                    assert isinstance(content, bytes)
                    batch = dict(fields(content))
                    first, count = batch[self.FIRST_SEQ], batch[self.COUNT]
                    assert isinstance(first, int) and isinstance(count, int) and first == self.records + 1
                    self.records += count
                    yield field(self.ACK, field(self.DURABLE_SEQ, self.records))
                elif body == self.GOODBYE:
                    return


def reading(collector: Collector, folder: Path) -> dict[str, str]:
    """What is to stay the same, by the name of the file that has it."""
    show = json.dumps(collector.json("show", RUN), indent=1, ensure_ascii=False)
    path = folder / "export.jsonl"
    path.unlink(missing_ok=True)
    done = collector.statctl("export", "json", RUN, str(path), "--sketch", "--samples")
    assert done.code == 0, done.err
    found = {"show.json": CHANGING.sub(r'"\1": 0', show), "export.jsonl": CHANGING.sub(r'"\1": 0', path.read_text())}
    zoom = collector.statctl("--format", "json", "zoom", RUN, RUN)
    tokens = collector.statctl("--format", "json", "diff", RUN, RUN, "--tokens")
    answers = (("zoom.json", zoom), ("tokens.json", tokens))
    return {**found, **{name: answer.out for name, answer in answers if answer.code == 0}}


def check(found: dict[str, str], of: str) -> None:
    folder = FOLDER / of
    for name in ("zoom.json", "tokens.json"):
        assert (name in found) == (folder / name).exists()
    for name, text in found.items():
        kept = [json.loads(line) for line in (folder / name).read_text().splitlines()] if name.endswith("l") else None
        if kept is None:
            assert_kept(json.loads((folder / name).read_text()), json.loads(text), name)
            continue
        lines = [json.loads(line) for line in text.splitlines()]
        assert len(lines) == len(kept)
        for number, (expected, line) in enumerate(zip(kept, lines, strict=True), 1):
            assert_kept(expected, line, f"{name}:{number}")


def assert_kept(expected: Any, found: Any, place: str) -> None:
    """Every field that was there is there with its value; later releases may add some."""
    if isinstance(expected, dict):
        assert isinstance(found, dict), place
        for key, value in expected.items():
            assert key in found, f"{place}: {key} is gone"
            assert_kept(value, found[key], f"{place}.{key}")
    elif isinstance(expected, list):
        assert isinstance(found, list) and len(found) == len(expected), place
        for i, (old, new) in enumerate(zip(expected, found, strict=True)):
            assert_kept(old, new, f"{place}[{i}]")
    else:
        assert found == expected, place


@pytest.mark.parametrize("of", RECORDED)
def test_a_recorded_session_is_stored_as_it_was(collector: Collector, tmp_path: Path, of: str) -> None:
    replay(collector.address, read_frames(FOLDER / of / "session.frames"))
    check(reading(collector, tmp_path), of)


@pytest.mark.parametrize("of", RECORDED)
def test_a_recorded_session_that_is_cut_off_and_said_again_is_stored_once(collector: Collector, tmp_path: Path, of: str) -> None:
    messages = read_frames(FOLDER / of / "session.frames")
    assert len(messages) > 3
    with grpc.insecure_channel(collector.address) as channel:
        call = channel.stream_stream(STREAM)(iter(messages[:-2]), timeout=30)
        with pytest.raises(grpc.RpcError):  # it ended without a goodbye
            list(call)
    replay(collector.address, messages)
    check(reading(collector, tmp_path), of)


@pytest.mark.parametrize("known", ["all that it said", "what the first collectors said"])
def test_an_agent_delivers_to_a_collector_that_answers_as_it_did(known: str) -> None:
    recorded = read_frames(FOLDER / "answers.frames")
    ((body, welcome),) = fields(recorded[0])
    assert body == EarlierCollector.WELCOME and isinstance(welcome, bytes)
    (acknowledged,) = dict(fields(recorded[1])).values()
    assert isinstance(acknowledged, bytes)
    assert field(EarlierCollector.DURABLE_SEQ, next(iter(dict(fields(acknowledged)).values()))) == acknowledged
    if known != "all that it said":
        welcome = b"".join(field(number, value) for number, value in fields(welcome) if number < STORE_ID)
    collector = EarlierCollector(welcome)
    environment = agent_environment(STATAGENT_COLLECTOR=f"127.0.0.1:{collector.port}", STATAGENT_RUN=RUN, STATAGENT_QUIET="1")
    trained = run_command([sys.executable, "-c", f"{TRAINING}\nprint(statagent.counters())"], env=environment, cold=True)
    collector.server.stop(1).wait()
    assert trained.code == 0 and trained.err == "", trained.err
    counters = ast.literal_eval(trained.out)
    assert counters["produced"] == counters["acked"] == collector.records > 100


@pytest.mark.parametrize("of", RECORDED)
def test_a_store_of_the_format_is_read_as_it_was(tmp_path: Path, of: str) -> None:
    with tarfile.open(FOLDER / of / "store.tar.xz") as archive:
        archive.extractall(tmp_path)
    started = Collector(tmp_path / "store").start()
    try:
        check(reading(started, tmp_path), of)
    finally:
        assert started.stop() == 0
    shutil.rmtree(tmp_path / "store")


def test_a_store_of_the_format_is_exported_in_every_form(tmp_path: Path) -> None:
    with tarfile.open(FOLDER / "store.tar.xz") as archive:
        archive.extractall(tmp_path)
    started = Collector(tmp_path / "store").start()
    try:
        for form in ("csv", "json", "ort", "tensorboard", *(["parquet"] if importlib.util.find_spec("pyarrow") else [])):
            done = started.statctl("export", form, RUN, str(tmp_path / "out" / form))
            assert done.code == 0 and (tmp_path / "out" / form).exists(), done.err
        golden = str(tmp_path / "out" / "recorded.scg")
        assert started.statctl("golden", "save", RUN, golden).code == 0
        assert started.statctl("diff", "--golden", golden, "--run-b", RUN).code == 0
    finally:
        assert started.stop() == 0


def write(to: Path, of: str) -> None:
    """Trains a little, and writes what the tests above read."""
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        collector = Collector(folder / "data").start()
        recorder = Recorder(collector.address)
        environment = agent_environment(STATAGENT_COLLECTOR=f"127.0.0.1:{recorder.port}", STATAGENT_RUN=RUN, **RECORDED[of])
        trained = run_command([sys.executable, "-c", TRAINING], env=environment, cold=True)
        assert trained.code == 0, trained.err
        recorder.stop()
        write_frames(to / "session.frames", recorder.sent)
        write_frames(to / "answers.frames", recorder.answers)
        for file, text in reading(collector, folder).items():
            (to / file).write_text(text)
        made = collector.statctl("checkpoint", str(folder / "store"))
        assert made.code == 0, made.err
        with tarfile.open(to / "store.tar.xz", "w:xz") as archive:
            archive.add(folder / "store", "store")
        collector.stop()


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
