"""statctl admin audit: who was refused, and who changed what."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import Collector
from test_tokens import Tokens, http, statctl


def test_the_audit_log_is_read_with_scope_admin_and_filtered(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "data")
    admin = {"STATCTL_TOKEN_FILE": str(tokens.file("admin.token", tokens.create("admin")))}
    reader_token = tokens.create("read,control")
    reader = {"STATCTL_TOKEN_FILE": str(tokens.file("reader.token", reader_token))}
    collector = Collector(tokens.data_dir).start()
    try:
        assert "audit log is empty" in statctl(collector, "audit", **admin).out
        refused = statctl(collector, "audit", **reader)
        assert refused.code == 2 and "token create --scope admin" in refused.err
        assert statctl(collector, "keep", "none", **reader).code == 2  # no such run
        assert statctl(collector, "runs").code == 2

        def audit(*filters: str) -> list[tuple[str, str]]:
            done = statctl(collector, "audit", "--format", "json", *filters, **admin)
            assert done.code == 0, done.err
            return [(row["method"].rsplit("/", 1)[1], row["outcome"].split(":")[0]) for row in done.json()["records"]]

        everything = audit()
        assert everything[:4] == [
            ("ListAudit", "ok"), ("ListAudit", "permission_denied"), ("KeepRun", "error 5"), ("ListRuns", "unauthenticated"),
        ]  # fmt: skip
        assert audit("--method", "KeepRun") == [("KeepRun", "error 5")]
        assert audit("--principal", reader_token.split("_")[1]) == everything[1:3]
        assert audit("--outcome", "unauthenticated") == [("ListRuns", "unauthenticated")]
        assert audit("--since", "2h", "--principal", "nobody") == [("ListRuns", "unauthenticated")]
        assert audit("--since", "2100-01-01T00:00") == []
        assert audit("--limit", "1") == [("ListAudit", "ok")]
        assert "There are older ones" in statctl(collector, "audit", "--limit", "1", **admin).out
        assert "No calls of that selection" in statctl(collector, "audit", "--since", "2100-01-01", **admin).out
        for bad, word in ((["--since", "soon"], "2h"), (["--limit", "0"], "limit"), (["--limit", "20000"], "limit")):
            done = statctl(collector, "audit", *bad, **admin)
            assert done.code == 2 and word in done.err, done.err

        # Hostile text in the file is escaped, and lines that do not parse are skipped.
        with (tokens.data_dir / "audit.jsonl").open("a") as log:
            log.write(
                '{"time":"9' + "9" * 30 + '","principal":"\\u001b[31mred","method":"/x\\n| y","object":"=cmd()","outcome":"ok"}\n'
            )
            log.write("{half a line\n[1,2]\n")
        for form in ("table", "csv", "markdown"):
            shown = statctl(collector, "audit", "--format", form, **admin)
            assert shown.code == 0 and "red" in shown.out and "\x1b" not in shown.out, form
        csv = statctl(collector, "audit", "--format", "csv", **admin).out
        assert csv.splitlines()[0] == "time,principal,address,method,object,outcome,left_out"

        status, body = http(collector, "/api/v1/audit?limit=2&outcome=ok", Path(admin["STATCTL_TOKEN_FILE"]).read_text().strip())
        assert status == 200 and len(json.loads(body)["records"]) == 2 and json.loads(body)["more"]
        assert http(collector, "/api/v1/audit", reader_token)[0] == 403
        assert http(collector, "/api/v1/audit")[0] == 401
    finally:
        collector.stop()


def test_an_admin_of_one_project_reads_its_own_lines_and_makes_no_checkpoint(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "data")
    whole = {"STATCTL_TOKEN_FILE": str(tokens.file("whole.token", tokens.create("admin,control,delete")))}
    audio_token = tokens.create("admin,control,read", "--project", "audio")
    audio = {"STATCTL_TOKEN_FILE": str(tokens.file("audio.token", audio_token))}
    (tmp_path / "backup").mkdir()
    collector = Collector(tokens.data_dir, extra=["--checkpoint-root", str(tmp_path / "backup")]).start()
    try:
        for project, run in (("video", "secret-run"), ("audio", "own-run"), ("default", "plain-run")):
            assert statctl(collector, "--project", project, "keep", run, **whole).code == 2  # no such run; audited
        assert statctl(collector, "--project", "audio", "runs").code == 2  # nobody, about audio
        assert statctl(collector, "--project", "video", "runs").code == 2
        assert statctl(collector, "--project", "video", "runs", **audio).code == 2  # a token for audio, about video

        refused = statctl(collector, "checkpoint", "stolen", **audio)
        assert refused.code == 2 and "is for project 'audio'" in refused.err and "without --project" in refused.err
        assert list((tmp_path / "backup").iterdir()) == []
        made = statctl(collector, "checkpoint", "whole", **whole)
        assert made.code == 0, made.err

        def seen(**who: str) -> set[tuple[str, str]]:
            done = statctl(collector, "audit", "--format", "json", **who)
            assert done.code == 0, done.err
            return {(row["method"].rsplit("/", 1)[1], row["object"]) for row in done.json()["records"]}

        assert seen(**audio) <= {("KeepRun", "own-run"), ("ListRuns", ""), ("ListAudit", "")}
        assert ("KeepRun", "own-run") in seen(**audio) and ("ListRuns", "") in seen(**audio)
        assert {("KeepRun", "secret-run"), ("KeepRun", "plain-run"), ("Checkpoint", "whole")} <= seen(**whole)
        assert "secret-run" not in http(collector, "/api/v1/audit", audio_token)[1]
        refusals = statctl(collector, "audit", "--format", "json", "--outcome", "permission_denied", **audio).json()["records"]
        assert refusals == [], "the refused call was about video, the refused checkpoint about all"
    finally:
        collector.stop()
