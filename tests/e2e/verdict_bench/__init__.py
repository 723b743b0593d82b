"""A benchmark of verdicts: what `statctl diff` says of runs that only round differently, and of planted bugs on top of them.

Small model families, changes that only round differently (`legal`), and bugs of swept size (`bugs`), each alone and on top of each legal change."""

import sys
from pathlib import Path

# statagent and the helpers of the tests, wherever this is imported: in pytest, from the command line, in a recording process.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "agent" / "python"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
