"""Real training runs with planted faults, and where `statctl diff` must find each."""

import sys
from pathlib import Path

# statagent, wherever this is imported: in pytest, from the command line, in a training process.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "agent" / "python"))
