"""Runs a training script with its arguments, then writes this rank's counters into a folder: FOLDER SCRIPT [ARGUMENTS].

The last records may have to wait for a replica that is away, so the agent's end waits longer than the script asks."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path

import statagent

CLOSE_SECONDS = 120.0

folder, script = Path(sys.argv[1]), sys.argv[2]
close = statagent.close
statagent.close = lambda timeout=0.0: close(timeout=max(timeout, CLOSE_SECONDS))
sys.path.insert(0, str(Path(script).parent))
sys.argv = sys.argv[2:]
runpy.run_path(script, run_name="__main__")
(folder / f"rank{os.environ.get('RANK', '0')}.json").write_text(json.dumps(statagent.counters()))
