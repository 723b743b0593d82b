"""Runs each job in a fork of this process, which has imported torch: importing takes longer than training.

python each.py FOLDER JOBS     JOBS: JSON, a list of {"run", "arguments", "env"}. FOLDER gets RUN.out, RUN.err and RUN.code.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch  # noqa: F401


def become(job: dict[str, Any], folder: Path) -> None:
    """The rest of this process is the job."""
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{job['run']}.{name}", os.O_WRONLY | os.O_CREAT, 0o600), stream)
    os.environ |= {**job["env"], "STATAGENT_RUN": job["run"]}
    sys.argv = job["arguments"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


for each in json.loads(sys.argv[2]):
    child = os.fork()
    if not child:
        become(each, Path(sys.argv[1]))
        break
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    Path(sys.argv[1], f"{each['run']}.code").write_text(f"{code}")
