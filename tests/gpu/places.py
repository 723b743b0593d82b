"""Paths in the source tree and in a bundle (scripts/bundle.sh)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUNDLED = (ROOT / "MANIFEST").is_file()
PACKAGE = ROOT / "python" if BUNDLED else ROOT / "agent" / "python"
BINARIES = ROOT / "bin" if BUNDLED else Path(os.environ.get("STATCOLLECT_BUILD_DIR", ROOT / "build" / "release")) / "bin"
if str(PACKAGE) not in sys.path:
    sys.path.insert(0, str(PACKAGE))
