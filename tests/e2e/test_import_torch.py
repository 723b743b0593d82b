"""`statctl move import` of what SGLang's dumper, PyTorch's DebugMode and TransformerEngine's debug features write: the first tensor that
differs is named, and what cannot be read is said. The first two are written by torch itself, TransformerEngine's log as its logger does."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import STATCTL, Collector, run_command
from torch.utils._debug_mode import DebugMode


def sglang_file(folder: Path, value: Any, *, rank: int = 0, step: int = 0, index: int = 1, name: str = "x", **tags: Any) -> Path:
    """A tensor as SGLang's dumper saves it: its tags are the file's name, and again beside the value."""
    full = {"step": step, "rank": rank, "dump_index": index, "name": name, "recompute_status": "disabled", **tags}
    path = folder / ("___".join(f"{tag}={text}" for tag, text in full.items()) + ".pt")
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(
        {"value": value, "meta": {**full, "world_rank": rank, "world_size": 2, "sglang_parallel_info": {"tp_rank": rank}}}, path
    )
    return path


def sglang_dump(folder: Path, wrong: tuple[int, int, int] = (-1, -1, -1), nan: bool = False) -> Path:
    """Two steps of three layers on two ranks; of `wrong` (rank, step, layer), one element of what the layer gets is another."""
    for rank in range(2):
        index = 0
        for step in range(2):
            generator = torch.Generator().manual_seed(10 * rank + step)
            for layer in range(3):
                index += 1
                value = torch.randn(2, 5, 16, generator=generator).bfloat16()
                if (rank, step, layer) == wrong:
                    value[1, 2, 3] = float("nan") if nan else value[1, 2, 3] + 1
                sglang_file(
                    folder, value, rank=rank, step=step, index=index, name="layer_start__hidden_states", layer_id=layer
                )  # fmt: skip
    return folder


def imported(collector: Collector, path: Path, run: str, *options: str) -> Any:
    return collector.json("move", "import", str(path), "--run", run, *options)


@pytest.mark.parametrize(("nan", "reason"), [(False, "numeric"), (True, "nonfinite")])
def test_two_sglang_dumps_are_compared_and_the_first_tensor_is_named(
    shared_collector: Collector, tmp_path: Path, nan: bool, reason: str
) -> None:
    answer = imported(shared_collector, sglang_dump(tmp_path / "a" / "dump_1"), f"sg-a-{reason}")
    assert (answer["format"], answer["ranks"], answer["records"], answer["steps"]["count"]) == ("sglang", [0, 1], 12, 2)
    imported(shared_collector, sglang_dump(tmp_path / "b", wrong=(1, 1, 1), nan=nan), f"sg-b-{reason}")
    first = shared_collector.diff(f"sg-a-{reason}", f"sg-b-{reason}")["first"]
    assert (first["rank"], first["step"], first["activation"], first["kind"], first["reason"]) == (
        1, 1, "layer_start__hidden_states[layer_id=1]", "inspect", reason
    )  # fmt: skip


def test_tensors_of_torch_are_what_the_agent_would_have_recorded(shared_collector: Collector, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    ordinary = torch.randn(3, 40, 7, generator=generator)
    values = {
        "rows": ordinary,
        "strided": ordinary.transpose(0, 2),
        "expanded": torch.tensor([1.5]).expand(3, 4),
        "large": torch.randn(300_000, generator=generator),
        "bf16": ordinary.bfloat16(),
        "f8": ordinary.to(torch.float8_e4m3fn),
        "complex": torch.complex(ordinary, -ordinary),
        "whole": torch.arange(11),
        "flags": torch.tensor([True, False]),
        "nothing": torch.zeros(0, 4),
        "single": torch.tensor(float("inf")),
        "parameter": torch.nn.Parameter(ordinary.double()),
    }
    for index, (name, value) in enumerate(values.items()):
        sglang_file(tmp_path / "dump", value, index=index, name=name)
    torch.save(values, tmp_path / "values.pt")
    imported(shared_collector, tmp_path / "dump", "pt")
    shared_collector.python(
        f"import torch, statagent\nstatagent.init(run='pt-agent')\n"
        f"for name, value in torch.load({str(tmp_path / 'values.pt')!r}).items():\n"
        f"    statagent.inspect(name, value.detach())\n"
        f"statagent.close()"
    )
    report = shared_collector.diff("pt", "pt-agent", "--exact")
    assert (report["verdict"], report["compared"]["records"]) == ("identical", len(values)), report["first"]
    read, recorded = (
        {row["activation"]: row for row in exported(shared_collector, run, tmp_path) if row["record"] == "stats"}
        for run in ("pt", "pt-agent")
    )
    assert read == recorded and len(read["rows"]["sketch"]) == 16


def exported(collector: Collector, run: str, folder: Path) -> list[dict[str, Any]]:
    done = collector.statctl("move", "export", "json", run, str(folder / f"{run}.jsonl"), "--sketch")
    assert done.code == 0, done.err
    return [json.loads(line) for line in (folder / f"{run}.jsonl").read_text().splitlines()]


def test_names_of_sglang_say_module_kind_and_call(shared_collector: Collector, tmp_path: Path) -> None:
    ones = torch.ones(2)
    names = [
        ("non_intrusive__model.layers.3.mlp.output", {"layer_id": 3}, ("model.layers.3.mlp", "output", "", 0)),
        ("non_intrusive__model.layers.3.mlp.inputs.1", {}, ("model.layers.3.mlp", "input", "1", 0)),
        ("grad__non_intrusive__model.norm.output.0", {}, ("model.norm", "grad_output", "0", 0)),
        ("non_intrusive__output.next_token_logits", {}, ("model", "output", "next_token_logits", 0)),
        ("param__model.norm.weight", {}, ("model.norm.weight", "weight", "", 0)),
        ("grad__param__model.norm.weight", {}, ("model.norm.weight", "weight_grad", "", 0)),
        ("attn", {"layer_id": 1, "tp_rank": 0}, ("attn[layer_id=1]", "inspect", "", 0)),
        ("again", {}, ("again", "inspect", "", 0)),
        ("again", {}, ("again", "inspect", "", 1)),
        ("a/b ___ c=ü '\"", {}, ("a/b ___ c=ü '\"", "inspect", "", 0)),
    ]
    for index, (name, tags, _) in enumerate(names):
        sglang_file(tmp_path / "dump", ones, index=index, name=name, **tags)
    sglang_file(tmp_path / "dump", [ones, {"k": ones}, 1.5], index=90, name="nested")
    sglang_file(tmp_path / "dump", ["request"], index=91, name="rids")
    answer = imported(shared_collector, tmp_path / "dump", "sg-names")
    assert answer["skipped"] == {"value that is no tensor (str)": 1}
    rows = [r for r in exported(shared_collector, "sg-names", tmp_path) if r["record"] != "run"]
    found = [(r["activation"], r["kind"], r["output_path"], r["call"]) for r in rows if r["record"] == "stats"]
    assert sorted(found) == sorted(
        [expected for _, _, expected in names] + [("nested", "inspect", "0", 0), ("nested", "inspect", "1.k", 0)]
    )
    assert [(r["name"], r["value"]) for r in rows if r["record"] == "scalar"] == [("nested.2", 1.5)]


def test_sglang_files_of_whole_passes_are_read_by_rank(shared_collector: Collector, tmp_path: Path) -> None:
    for rank in range(2):
        folder = tmp_path / f"TP{rank}_PP0_Rank{rank}_pid7{rank}"
        folder.mkdir()
        for forward in range(2):
            tensors = {"model.layers.0.mlp": torch.ones(3), "model.norm": [torch.ones(1), torch.ones(2)]}
            torch.save({**tensors, "model.forward_batch_info.input_ids": torch.arange(3)}, folder / f"Pass{forward:05d}.pt")
    answer = imported(shared_collector, tmp_path, "passes")
    assert (answer["ranks"], answer["steps"]["count"], answer["records"]) == ([0, 1], 2, 16)
    only = imported(shared_collector, tmp_path / "TP1_PP0_Rank1_pid71", "pass", "--world-size", "2")
    assert only["ranks"] == [1] and only["records"] == 8


class Evil:
    """Pickled, it would touch a file where it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.system, (f"touch {self.path}",))


def test_code_in_a_pickle_is_named_and_never_run(shared_collector: Collector, tmp_path: Path) -> None:
    sglang_file(tmp_path / "dump", torch.ones(2), index=1, name="good")
    sglang_file(tmp_path / "dump", Evil(tmp_path / "executed"), index=2, name="evil")
    sglang_file(tmp_path / "dump", [torch.ones(3), Evil(tmp_path / "executed")], index=3, name="mixed")
    answer = imported(shared_collector, tmp_path / "dump", "evil")
    assert answer["skipped"] == {"value that is no tensor (posix.system)": 2} and answer["records"] == 2
    assert not (tmp_path / "executed").exists()


def bad_files(folder: Path) -> Iterable[tuple[str, bytes, str]]:
    whole = sglang_file(folder, torch.ones(100)).read_bytes()
    yield "cut", whole[: len(whole) // 2], "no zip directory"
    yield "empty", b"", "an empty file"
    yield "text", b"no torch\n", "no zip directory"
    old = io.BytesIO()
    torch.save(torch.ones(2), old, _use_new_zipfile_serialization=False)
    yield "before torch 1.6", old.getvalue(), "a pickle without a zip file around it"
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as read, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as write:
        for name in read.namelist():
            write.writestr(name, read.read(name))
    yield "compressed", packed.getvalue(), "which is compressed"
    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as read, zipfile.ZipFile(changed, "w") as write:
        for name in read.namelist():
            write.writestr(name, read.read(name)[:17] if name.endswith("/data/0") else read.read(name))
    yield "storage cut", changed.getvalue(), "a tensor beyond its storage"


def test_bad_torch_files_are_named_and_what_else_is_there_is_kept(shared_collector: Collector, tmp_path: Path) -> None:
    for what, content, expected in bad_files(tmp_path / "whole"):
        dump = tmp_path / what
        sglang_file(dump, torch.ones(2), index=1, name="before")
        bad = sglang_file(dump, torch.ones(2), index=2, name="bad")
        bad.write_bytes(content)
        sglang_file(dump, torch.ones(2), index=3, name="after")
        run = "bad-" + what.replace(" ", "-")
        done = shared_collector.statctl("move", "import", str(dump), "--run", run)
        assert done.code == 2 and f"{bad}: found " in done.err and expected in done.err, done.err
        assert "stored so far: 1 records" in done.err
        answer = imported(shared_collector, dump, f"{run}-going", "--keep-going")
        assert (answer["records"], answer["skipped"]) == (2, {"bad file": 1}), what


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def debug_log(path: Path, nudge: float = 0.0, hashes: Any = "norm", layer: int = 1) -> Path:
    """A forward and backward pass; a weight of a layer is off by `nudge`."""
    torch.manual_seed(0)
    net = Net()
    with torch.no_grad():
        next(net.layers[layer].parameters())[0, 0] += nudge
    x = torch.randn(4, 8)
    with DebugMode(record_nn_module=True) as mode, DebugMode.log_tensor_hashes(hash_fn=hashes, hash_inputs=True):
        net(x).sum().backward()
    path.parent.mkdir(parents=True, exist_ok=True)
    DebugMode.save_logs(mode.logs, path)
    return path


@pytest.mark.parametrize(("hashes", "nudge"), [("norm", 0.25), ("norm", float("nan")), ("hash_tensor", 1e-3)])
def test_two_logs_of_debug_mode_are_compared_and_the_first_call_is_named(
    shared_collector: Collector, tmp_path: Path, hashes: str, nudge: float
) -> None:
    run = f"debug-{hashes}-{nudge}"
    answer = imported(shared_collector, debug_log(tmp_path / "a.json", hashes=hashes), f"{run}-a")
    assert answer["format"] == "debugmode" and answer["skipped"] == {}
    imported(shared_collector, debug_log(tmp_path / "same.json", hashes=hashes), f"{run}-same")
    imported(shared_collector, debug_log(tmp_path / "b.json", nudge, hashes), f"{run}-b")
    exact = ("--exact",) if hashes == "hash_tensor" else ()
    same = shared_collector.diff(f"{run}-a", f"{run}-same", *exact)
    assert (same["verdict"], same["compared"]["diverged"]) == ("identical", 0) and same["compared"]["records"] == answer[
        "records"
    ]
    first = shared_collector.diff(f"{run}-a", f"{run}-b", *exact)["first"]
    assert (first["activation"], first["kind"], first["a"]["shape"]) == ("Net.layers.1.aten::t", "input", [8, 8])
    assert first["reason"] == ("bitwise" if exact else "nonfinite" if nudge != nudge else "numeric")


def test_the_norm_of_debug_mode_is_the_l1_norm(shared_collector: Collector, tmp_path: Path) -> None:
    imported(shared_collector, debug_log(tmp_path / "log.json", hashes=["norm", "hash_tensor"]), "norms")
    torch.manual_seed(0)
    weight = next(Net().layers[0].parameters()).detach()
    point = shared_collector.json("tensor", "norms", "Net.layers.0.aten::t", "--kind", "input")["records"][0]
    assert point["stats"]["l1"] == pytest.approx(weight.double().abs().sum().item(), rel=1e-15)
    assert point["stats"]["hash_kind"] == "xor64" and point["stats"]["max"] is None


def test_the_text_of_debug_mode_says_what_its_saved_log_does(shared_collector: Collector, tmp_path: Path) -> None:
    x, net = torch.randn(4, 8), Net()
    with (
        DebugMode(record_nn_module=True, record_stack_trace=True, record_ids=True) as mode,
        DebugMode.log_tensor_hashes(hash_fn=["norm", "hash_tensor"], hash_inputs=True),
    ):
        net(x).max(dim=1).values.sum().backward()
        torch.full((2,), float("nan"))
    DebugMode.save_logs(mode.logs, tmp_path / "log.json")
    text = mode.debug_string()
    (tmp_path / "log.txt").write_text(text + "\n")
    (tmp_path / "cut.txt").write_text(text[: text.rindex(")})") - 3] if ")})" in text else text[:-3])
    saved, printed, cut = (
        imported(shared_collector, tmp_path / f"{name}", f"text-{name}") for name in ("log.json", "log.txt", "cut.txt")
    )
    assert saved["records"] == printed["records"] > 50 and printed["skipped"] == saved["skipped"] == {}
    report = shared_collector.diff("text-log.json", "text-log.txt", "--exact")
    assert (report["verdict"], report["compared"]["records"]) == ("identical", saved["records"])
    assert cut["skipped"] == {"line that was cut": 1} and cut["records"] < saved["records"]


def test_logs_of_debug_mode_are_ranks_and_steps_by_their_names(shared_collector: Collector, tmp_path: Path) -> None:
    for rank in range(2):
        for step in (3, 10):
            debug_log(tmp_path / f"rank{rank}" / f"step_{step}.json")
    (tmp_path / "config.json").write_text("{}")
    answer = imported(shared_collector, tmp_path, "debug-ranks")
    assert (answer["ranks"], answer["steps"]) == ([0, 1], {"count": 2, "first": 3, "last": 10})
    assert answer["skipped"] == {"other file or folder": 1}
    (tmp_path / "rank1" / "step3.json").write_bytes((tmp_path / "rank1" / "step_3.json").read_bytes())
    done = shared_collector.statctl("move", "import", str(tmp_path), "--run", "debug-twice")
    assert done.code == 2 and "two logs of rank 1 and step 3" in done.err


def test_bad_logs_of_debug_mode_are_named(shared_collector: Collector, tmp_path: Path) -> None:
    log = debug_log(tmp_path / "log.json")
    whole = log.read_text()
    with DebugMode() as mode:
        torch.ones(2)
    DebugMode.save_logs(mode.logs, tmp_path / "plain.json")
    for text, expected in (
        (whole[: len(whole) // 2], "the end of the file"),
        (whole.replace('"version": 1', '"version": 2'), "found version 2; expected version 1"),
        ((tmp_path / "plain.json").read_text(), "found a log without hashes; expected one that was recorded within"),
    ):
        log.write_text(text)
        done = shared_collector.statctl("move", "import", str(log), "--run", "debug-bad", "--if-exists", "replace")
        assert done.code == 2 and str(log) in done.err and expected in done.err, done.err


def engine_line(name: str, step: int, value: float) -> str:
    """As nvdlfw_inspect's logger writes it."""
    return f"2026-01-31 12:00:00,123 - INFO - {name} \t\t\t\t iteration={step:06d} \t\t\t\t value={value:.4f}\n"


def engine_log(folder: Path, factor: float = 1.0, ranks: int = 2, extra: str = "") -> Path:
    """Two iterations of two layers; the second layer's gradient on the last rank is off by a factor from the second iteration on."""
    logs = folder / "nvdlfw_inspect_statistics_logs"
    logs.mkdir(parents=True)
    for rank in range(ranks):
        lines = []
        for step in (0, 5):
            for layer in range(2):
                for tensor in ("activation", "weight", "gradient"):
                    scale = factor if (rank, step, layer, tensor) == (ranks - 1, 5, 1, "gradient") else 1.0
                    for stat, value in (("min", -1.5), ("max", 2.5), ("mean", 0.25), ("std", 1.0), ("l2_norm", 8.0)):
                        lines.append(engine_line(f"decoder.layers.{layer}.fc1_{tensor}_{stat}", step, value * scale))
                lines.append(engine_line(f"decoder.layers.{layer}.fc1_activation_mxfp8_underflows%", step, 1.5))
                lines.append(engine_line(f"decoder.layers.{layer}.fc1_activation_mxfp8_scale_inv_min", step, 0.5))
        (logs / f"nvdlfw_inspect_globalrank-{rank}.log").write_text("".join(lines) + extra)
    (folder / "nvdlfw_inspect_logs").mkdir()
    (folder / "nvdlfw_inspect_logs" / "nvdlfw_inspect_globalrank-0.log").write_text("2026 - INFO - Default logging\n")
    return folder


@pytest.mark.parametrize(("factor", "reason"), [(1.5, "numeric"), (float("nan"), "nonfinite"), (float("inf"), "nonfinite")])
def test_two_logs_of_transformer_engine_are_compared_by_rank_and_iteration(
    shared_collector: Collector, tmp_path: Path, factor: float, reason: str
) -> None:
    run = f"engine-{factor}"
    answer = imported(shared_collector, engine_log(tmp_path / "a"), f"{run}-a")
    assert (answer["format"], answer["ranks"]) == ("transformerengine", [0, 1])
    assert answer["steps"] == {"count": 2, "first": 0, "last": 5} and answer["records"] == 2 * 2 * 2 * (3 + 2)
    imported(shared_collector, engine_log(tmp_path / "b", factor), f"{run}-b")
    report = shared_collector.diff(f"{run}-a", f"{run}-b")
    first = report["first"]
    assert (first["step"], first["rank"], first["activation"], first["kind"], first["reason"]) == (
        5, 1, "decoder.layers.1.fc1", "grad_output", reason
    )  # fmt: skip
    assert report["compared"]["diverged"] == 1
    scalars = {row["name"] for row in exported(shared_collector, f"{run}-a", tmp_path) if row["record"] == "scalar"}
    assert scalars == {
        f"decoder.layers.{i}.fc1_activation_mxfp8_{name}" for i in (0, 1) for name in ("underflows%", "scale_inv_min")
    }


def test_a_log_of_transformer_engine_that_was_cut_loses_its_last_line_only(shared_collector: Collector, tmp_path: Path) -> None:
    cut = engine_line("decoder.layers.0.fc1_activation_max", 6, 123.4567).removesuffix("67\n")
    answer = imported(shared_collector, engine_log(tmp_path / "cut", extra=cut, ranks=1), "engine-cut")
    assert answer["skipped"] == {"last line that was cut": 1, "other file or folder": 1} and answer["steps"]["last"] == 5
    for extra, expected in (
        (engine_line("fc1_activation_max", 2, 1.0), ":69: found iteration 2 after iteration 5"),
        (cut + "\n" + engine_line("fc1_activation_max", 6, 1.0), ":69: found '2026-01-31"),
        (engine_line("fc1_activation_max", 6, 1.0) + engine_line("fc1_activation_min", 6, 2.0), ":70: found min above max"),
    ):
        folder = tmp_path / str(len(expected))
        done = shared_collector.statctl(
            "move", "import", str(engine_log(folder, extra=extra, ranks=1)), "--run", folder.name + "-bad"
        )
        assert done.code == 2 and f"globalrank-0.log{expected}" in done.err, done.err


def test_what_a_folder_holds_is_recognised_or_asked_for(tmp_path: Path) -> None:
    def refused(*arguments: str) -> str:
        done = run_command([str(STATCTL), "--collector", "127.0.0.1:1", "move", "import", *arguments, "--run", "r", "--dry-run"])
        assert done.code == 2 and not done.out, done.out
        return done.err

    empty, odd = tmp_path / "empty", tmp_path / "odd"
    empty.mkdir()
    assert "found no files; expected a dump of ort, mindspore, msprobe, sglang, debugmode or transformerengine" in refused(
        str(empty)
    )
    sglang_file(odd, torch.ones(1))
    engine_log(odd / "te", ranks=1)
    assert "found files of sglang ('step=0" in (said := refused(str(odd))) and "and of transformerengine ('te/" in said
    sglang_file(tmp_path / "two" / "dump_1", torch.ones(1))
    sglang_file(tmp_path / "two" / "dump_2", torch.ones(1))
    assert "found two dumps of rank 0, in 'dump_1' and 'dump_2'; expected one: name its folder" in refused(str(tmp_path / "two"))
    assert "expected none, as each file of such a dump says its rank" in refused(str(tmp_path / "two"), "--rank-pattern", "r{}")
    assert "found two paths" in refused(str(empty), str(odd))
    assert "expected a dump that is there" in refused(str(tmp_path / "nowhere"))
    (empty / "secret.pt").symlink_to(sglang_file(tmp_path / "elsewhere", torch.ones(1)))
    assert "found no files" in refused("sglang", str(empty)), "links inside a dump are not followed"
