"""Retention in a real collector: what is too old goes, with a reason in log and status; what is kept stays."""

from __future__ import annotations

from conftest import Collector, wait_until
from test_bad_input import ONE_RECORD


def test_old_runs_go_kept_ones_stay_and_the_status_tells(collector: Collector) -> None:
    for run in ("old", "keeper"):
        collector.python(ONE_RECORD, run)
    assert "off; statcollectord --retention" in collector.statctl("status").out
    done = collector.statctl("keep", "keeper")
    assert done.code == 0 and "retention does not remove it" in done.out + done.err
    assert collector.stop() == 0
    collector.extra = ["--retention", "1s", "--max-disk", "80%"]
    collector.start()

    def runs() -> list[str]:
        return [r["run"] for r in collector.json("runs")["runs"]]

    wait_until(lambda: runs() == ["keeper"], what="the removal")
    # It is counted after it is done, and written into the log after that.
    log = collector.data_dir.parent / "collector.err"
    wait_until(lambda: "retention: removed run 'old': last written" in log.read_text(), what="the line in the log")
    status = collector.json("status")["retention"]
    assert int(status["runs_removed"]) == 1 and status["kept"] == ["keeper"] and int(status["disk_bytes_max"]) > 0
    assert "statcollect_retention_runs_removed_total 1" in collector.get("/metrics")
    assert collector.stop() == 0
    collector.start()
    assert runs() == ["keeper"]
    wait_until(lambda: "kept            keeper" in collector.statctl("status").out, what="the first look")
