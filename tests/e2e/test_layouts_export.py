"""What leaves the collector of runs that are cut over ranks: whole tensors for people, the ranks' records with their places for programs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Collector
from layouts.cuts import LAYOUTS
from layouts.runs import jobs, record

WEIGHT = "blocks.0.mlp.fc1.weight"
RUNS = ["plain", "ddp2", "fsdp1_flat", "fsdp2", "tp2", "dp2_tp2"]
CUT = ["fsdp1_flat", "fsdp2", "tp2", "dp2_tp2"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("layouts_export")
    collector = Collector(folder / "data").start()
    record(collector, jobs(RUNS, [], steps=3), folder)
    yield collector
    collector.stop()


def _ratios(collector: Collector, run: str, *options: str) -> list[dict[str, Any]]:
    rows = collector.json("series", run, WEIGHT, "--stat", "update_ratio", *options)["records"]
    return [row for row in rows if row["name"].endswith("/update_ratio")]


@pytest.mark.parametrize("run", CUT)
def test_update_ratio_is_of_the_whole_weight(recorded: Collector, run: str) -> None:
    whole, merged = _ratios(recorded, "plain"), _ratios(recorded, run)
    ranks = list(range(LAYOUTS[run].ranks))
    assert [row["step"] for row in merged] == [row["step"] for row in whole] and all(row["ranks"] == ranks for row in merged)
    # The change itself is rounded where gradients are small, so that it differs more than the weight does.
    assert [row["value"] for row in merged] == pytest.approx([row["value"] for row in whole], rel=0.02)
    parts = _ratios(recorded, run, "--by-rank")
    assert {row["rank"] for row in parts} == set(ranks) and not any(row["ranks"] for row in parts)
    assert _ratios(recorded, run, "--rank", "1") == [row for row in parts if row["rank"] == 1]
    text = recorded.statctl("series", run, WEIGHT, "--stat", "update_ratio").out
    assert f"0-{ranks[-1]}" in text or "0, 1" in text, text


def test_update_ratio_of_ranks_without_parts_is_each_ranks(recorded: Collector) -> None:
    rows = _ratios(recorded, "ddp2")
    assert {row["rank"] for row in rows} == {0, 1} and rows == _ratios(recorded, "ddp2", "--by-rank")


def test_summary_is_of_whole_tensors(recorded: Collector) -> None:
    def shapes(run: str, *options: str) -> list[str]:
        done = recorded.statctl("summary", run, "--step", "1", *options)
        assert done.code == 0, done.err
        return [line for line in done.out.splitlines() if "shape" in line and ".mlp.drop" not in line]

    assert shapes("tp2") == shapes("plain") and len(shapes("plain")) > 20
    assert sorted(shapes("tp2", "--like", "plain")) == sorted(shapes("plain"))
    assert shapes("tp2", "--rank", "0") != shapes("plain")
    assert shapes("ddp2") == shapes("ddp2", "--rank", "0")


def test_folders_of_other_tools_hold_whole_tensors(recorded: Collector, tmp_path: Path) -> None:
    for export, options in (("merged", ()), ("parts", ("--by-rank",)), ("one", ("--ranks", "1"))):
        done = recorded.statctl("export", "ort", "tp2", str(tmp_path / export), "--steps", "0", *options)
        assert done.code == 0, done.err
    assert sorted(path.name for path in (tmp_path / "merged").iterdir()) == ["rank_0", "rank_1", "whole"]
    rest = {path.name.split("[")[0] for path in (tmp_path / "merged/rank_1/step_0").glob("*_forward")}
    assert rest == {"blocks.0.mlp.drop", "blocks.1.mlp.drop"}  # of which nothing says how they are cut
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["rank_0", "rank_1"]
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["step_0"]
    done = recorded.statctl("export", "ort", "plain", str(tmp_path / "plain"), "--steps", "0")
    assert done.code == 0, done.err
    name = "step_0/blocks.0.mlp.fc1[0]_forward"
    whole, plain = ((tmp_path / folder / name).read_text(encoding="utf-8") for folder in ("merged/whole", "plain"))
    counts = [[line for line in text.splitlines() if line.startswith(("nan:", "neg:"))] for text in (whole, plain)]
    assert counts[0] == counts[1] and whole.splitlines()[0] == plain.splitlines()[0] and "128" in whole, (whole, plain)
    done = recorded.statctl("export", "ort", "tp2", str(tmp_path / "merged"), "--steps", "0", "--overwrite")
    assert done.code == 0, done.err
    done = recorded.statctl("import", "ort", str(tmp_path / "merged/whole"), "--run", "back")
    assert done.code == 0, done.err


def test_tensorboard_has_a_run_of_whole_tensors_and_the_ranks_scalars(recorded: Collector, tmp_path: Path) -> None:
    done = recorded.statctl("export", "tensorboard", "fsdp2", str(tmp_path / "logs"))
    assert done.code == 0, done.err
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["rank_0", "rank_1", "whole"]

    def texts(folder: str) -> bytes:
        return b"".join(path.read_bytes() for path in (tmp_path / "logs" / folder).iterdir())

    assert WEIGHT.encode() in texts("whole") and WEIGHT.encode() not in texts("rank_0")
    assert b"loss" in texts("rank_0") and b"loss" not in texts("whole")


def _csv(collector: Collector, run: str, *options: str) -> list[dict[str, str]]:
    done = collector.statctl("export", "csv", run, "-", "--steps", "0", *options)
    assert done.code == 0, done.err
    return [row for row in csv.DictReader(io.StringIO(done.out)) if row["activation"] == WEIGHT and row["kind"] == "weight"]


def _norm(rows: list[dict[str, Any]]) -> float:
    """Of a whole tensor from its parts; replicas count once."""
    parts = {str(row["boxes"] or row["ranges"]): float(row["l2"]) for row in rows if row["mode"] == "train"}
    return sum(norm**2 for norm in parts.values()) ** 0.5


@pytest.mark.parametrize("run", CUT)
def test_csv_says_where_each_part_lies_and_whole_puts_them_together(recorded: Collector, run: str) -> None:
    (plain,) = (row for row in _csv(recorded, "plain") if row["mode"] == "train")
    assert not any(plain[name] for name in ("global_shape", "boxes", "ranges", "piece", "pieces", "partial", "ranks"))
    parts = _csv(recorded, run)
    assert {row["rank"] for row in parts} == {str(rank) for rank in range(LAYOUTS[run].ranks)}
    assert {row["global_shape"] for row in parts} == {plain["shape"]} and all(row["boxes"] or row["ranges"] for row in parts)
    assert _norm(parts) == pytest.approx(float(plain["l2"]), rel=1e-3)
    (whole,) = (row for row in _csv(recorded, run, "--whole") if row["mode"] == "train")
    assert (whole["shape"], whole["rank"]) == (plain["shape"], "0")
    assert json.loads(whole["ranks"]) == list(range(LAYOUTS[run].ranks))
    assert float(whole["l2"]) == pytest.approx(float(plain["l2"]), rel=1e-3)


def test_json_and_parquet_say_the_same(recorded: Collector, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    for options in ((), ("--whole",)):
        for format_ in ("json", "parquet"):
            done = recorded.statctl(
                "export", format_, "fsdp1_flat", str(tmp_path / format_), "--kinds", "weight", "--overwrite", *options
            )
            assert done.code == 0, done.err
        lines = [json.loads(line) for line in (tmp_path / "json").read_text(encoding="utf-8").splitlines()][1:]
        rows = parquet.read_table(tmp_path / "parquet").to_pylist()
        places = ("global_shape", "boxes", "ranges", "piece", "pieces", "partial", "ranks")
        assert [[line.get(name) for name in places] for line in lines] == [[row[name] for name in places] for row in rows]
        assert any(row["ranks"] for row in rows) == bool(options) and any(row["ranges"] for row in rows) == (not options)


def test_whole_json_keeps_the_ranks_scalars_and_ends(recorded: Collector, tmp_path: Path) -> None:
    def others(*options: str) -> list[dict[str, Any]]:
        done = recorded.statctl("export", "json", "fsdp2", "-", *options)
        assert done.code == 0, done.err
        return [line for line in map(json.loads, done.out.splitlines()) if line["record"] != "stats"]

    assert others() == others("--whole") and {line["record"] for line in others()} >= {"scalar", "step_end"}


def test_whole_and_ranks_exclude_each_other(recorded: Collector) -> None:
    done = recorded.statctl("export", "csv", "tp2", "-", "--whole", "--ranks", "0")
    assert done.code == 2 and "--whole" in done.err
    done = recorded.statctl("export", "csv", "tp2", "-", "--whole", "--by-rank")
    assert done.code == 2 and "--by-rank" in done.err
