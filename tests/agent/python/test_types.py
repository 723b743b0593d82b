"""A type checker's verdict on calls of the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from .support import ROOT

GOOD = """
import torch
import statagent
from torch import nn

model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
statagent.watch(model, optimizer=optimizer, kinds=["output", "weight"], memory="modules", include="blocks.*")
statagent.watch(torch.compile(model), optimizer=[optimizer], kinds="output", memory=["modules", "peaks"])
"""
BAD = {
    "statagent.watch(3)": "arg-type",
    'statagent.watch(model, kinds=["outputs"])': "list-item",
    'statagent.watch(model, kinds="outputs")': "arg-type",
    'statagent.watch(model, optimizer="adam")': "arg-type",
    'statagent.watch(model, memory="module")': "arg-type",
    "statagent.watch(model, scaler=1.0)": "arg-type",
}


def test_type_checker_sees_wrong_arguments_and_accepts_right_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = pytest.importorskip("mypy.api")
    monkeypatch.setenv("MYPY_CONFIG_FILE_DIR", "")  # mypy sets it in this process: so it is taken back
    script = tmp_path / "script.py"
    script.write_text(GOOD + "\n".join(BAD) + "\n")
    first = len(GOOD.splitlines()) + 1
    options = [
        "--config-file",
        str(ROOT / "pyproject.toml"),
        "--cache-dir",
        str(ROOT / ".mypy_cache"),
        "--follow-imports",
        "silent",
    ]
    out, err, _ = api.run([*options, str(script)])
    errors = [line for line in out.splitlines() if ": error:" in line]
    found = {int(line.split(":")[1]): line.rpartition("[")[2].rstrip("]") for line in errors}
    assert found == {first + index: code for index, code in enumerate(BAD.values())}, out + err
