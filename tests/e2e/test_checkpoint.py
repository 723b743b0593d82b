"""A checkpoint of a running collector, restored, holds what was acknowledged before it began."""

from __future__ import annotations

from pathlib import Path

from conftest import STATCOLLECTORD, Collector, Gates, run_command, wait_until
from test_durability import start
from test_tokens import Tokens, statctl


def records(collector: Collector, run: str) -> int:
    return next((int(r["records"]) for r in collector.json("runs")["runs"] if r["run"] == run), 0)


def test_restored_checkpoint_taken_under_load_is_a_prefix_with_all_that_was_durable(collector: Collector, tmp_path: Path) -> None:
    steps, runs = 60, ("left", "right")
    trainers = [start(collector, run, steps) for run in runs]
    for run in runs:
        wait_until(lambda run=run: records(collector, run) > 300, what=f"records of {run}")
    before = {run: records(collector, run) for run in runs}
    done = collector.statctl("checkpoint", str(tmp_path / "saved"))
    assert done.code == 0, done.err
    assert f"--restore-from {tmp_path / 'saved'}" in done.out
    for trainer in trainers:
        out, err = trainer.communicate(timeout=60)
        assert out.split() == [str(steps * 52), str(steps * 52), "0"], err

    restored = Collector(tmp_path / "restored", extra=["--restore-from", str(tmp_path / "saved")]).start()
    try:
        for run in runs:
            assert before[run] <= records(restored, run) <= steps * 52
            points = restored.json("series", run, "layer.7")["records"]
            assert [(p["step"], p["stats"]["max"]) for p in points] == [(s, s * 100 + 7) for s in range(len(points))]
            assert len(points) >= before[run] // 52
    finally:
        assert restored.stop() == 0
    again = run_command(
        [str(STATCOLLECTORD), "--restore-from", str(tmp_path / "saved"), "--data-dir", str(tmp_path / "restored")]
    )
    assert again.code == 2 and "is not empty" in again.err


def test_checkpoint_refuses_places_that_are_not_empty(collector: Collector, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    for place, word in ((str(tmp_path / "mine"), "not empty"), ("relative", "relative"), (str(collector.data_dir / "x"), "data")):
        done = collector.statctl("checkpoint", place)
        assert done.code == 2 and word in done.err, done.err


def test_agent_sends_again_what_a_restored_checkpoint_lacks(collector: Collector, tmp_path: Path) -> None:
    steps = 60
    gates = Gates(tmp_path / "gates", 20, 50)
    trainer = start(collector, "regress", steps, **gates.environment())
    wait_until(lambda: records(collector, "regress") > 300, what="records")
    done = collector.statctl("checkpoint", str(tmp_path / "saved"))
    assert done.code == 0, done.err
    saved = records(collector, "regress")
    gates.open(20)
    wait_until(lambda: records(collector, "regress") > saved + 500, what="records after the checkpoint")
    collector.kill()
    collector.data_dir = tmp_path / "restored"
    collector.extra = ["--restore-from", str(tmp_path / "saved")]
    collector.start()
    gates.open(50)
    out, err = trainer.communicate(timeout=60)
    assert trainer.returncode == 0, err
    assert out.split() == [str(steps * 52), str(steps * 52), "0"], err
    assert records(collector, "regress") == steps * 52
    for name in ("layer.0", "layer.49"):
        points = collector.json("series", "regress", name)["records"]
        assert [p["step"] for p in points] == list(range(steps))


def test_with_a_root_only_names_below_it_are_taken(tmp_path: Path) -> None:
    root = tmp_path / "backups"
    root.mkdir(mode=0o700)
    collector = Collector(tmp_path / "data", extra=["--checkpoint-root", str(root)]).start()
    try:
        done = collector.statctl("checkpoint", "monday")
        assert done.code == 0 and f"--restore-from {root / 'monday'}" in done.out, done.err
        assert (root / "monday" / "FORMAT").exists()
        (root / "link").symlink_to(tmp_path)
        for asked, word in (
            ("monday", "not empty"), (str(tmp_path / "x"), "expected a name"), ("../x", "expected a name"), ("link", "is a link"),
        ):  # fmt: skip
            refused = collector.statctl("checkpoint", asked)
            assert refused.code == 2 and word in refused.err, refused.err
        root.chmod(0o777)
        assert "others may change it" in collector.statctl("checkpoint", "tuesday").err
        assert sorted(path.name for path in root.iterdir()) == ["link", "monday"]
    finally:
        collector.stop()
    missing = run_command(
        [str(STATCOLLECTORD), "--data-dir", str(tmp_path / "data"), "--checkpoint-root", str(tmp_path / "none")]
    )
    assert missing.code == 2 and "--checkpoint-root" in missing.err


def test_with_tokens_a_root_is_needed(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "data")
    admin = tokens.file("admin.token", tokens.create("admin"))
    collector = Collector(tokens.data_dir).start()
    try:
        refused = statctl(collector, "--token-file", str(admin), "checkpoint", str(tmp_path / "saved"))
        assert refused.code == 2 and "--checkpoint-root" in refused.err
        assert not (tmp_path / "saved").exists()
    finally:
        collector.stop()
