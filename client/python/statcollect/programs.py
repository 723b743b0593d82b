"""The programs in this package: where they are, and the commands that start them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

from .errors import ProgramNotFoundError

PACKAGE = Path(__file__).resolve().parent


def find(name: str) -> Path:
    """The program's path: in the package, as a wheel has it; in the source tree's build; else on PATH. Raises ProgramNotFoundError."""
    tree = PACKAGE.parents[2]
    places = [PACKAGE / "bin" / name]
    if (tree / "CMakePresets.json").is_file():
        places.append(tree / "build" / "release" / "bin" / name)
    for place in places:
        if place.is_file():
            return place
    # Not our own command of that name, which would only look here again.
    own = Path(sys.argv[0]).resolve().parent
    elsewhere = os.pathsep.join(p for p in os.environ.get("PATH", "").split(os.pathsep) if p and Path(p).resolve() != own)
    found = shutil.which(name, path=elsewhere)
    if found and not _is_script(Path(found)):
        return Path(found)
    raise ProgramNotFoundError(
        f"find {name}: it is not at {', '.join(map(str, places))} nor on PATH; expected the program of the wheel; install the wheel "
        "again (pip install --force-reinstall), or build the source tree (scripts/build.sh)"
    )


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def _become(name: str) -> NoReturn:
    """Replaces this process, so that signals, exit codes and the terminal are the program's own."""
    try:
        program = str(find(name))
        # statctl starts this Python for what only Python can write (Parquet).
        if name == "statctl":
            os.environ.setdefault("STATCTL_PYTHON", sys.executable)
        os.execv(program, [name, *sys.argv[1:]])
    except (OSError, ProgramNotFoundError) as error:
        text = str(error)
        if isinstance(error, OSError):
            text = f"start {program}: {error.strerror}; expected a program that this user may run; install the wheel again"
        print(f"{name}: {text}", file=sys.stderr)
        sys.exit(2)


def statcollectord() -> NoReturn:
    """The command `statcollectord`."""
    _become("statcollectord")


def statctl() -> NoReturn:
    """The command `statctl`."""
    _become("statctl")
