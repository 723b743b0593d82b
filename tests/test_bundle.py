"""The release folder: everything it needs of the system packages travels with it, wherever it is moved."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# What must be the machine's own.
SYSTEM = re.compile(r"^(linux-vdso|ld-linux|libc\.|libm\.|libdl\.|libpthread\.|librt\.|libresolv\.|libutil\.|libcuda\.)")


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """In an environment with nothing but PATH and what is given."""
    environment = {"PATH": "/usr/bin:/bin", **environment}
    return subprocess.run(
        [str(part) for part in command], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of the build tree, moved to a place with a space in its name."""
    made = tmp_path_factory.mktemp("bundle") / "made"
    done = subprocess.run(
        [ROOT / "scripts" / "bundle.sh", "--output", str(made)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(made)
    moved = made.with_name("moved here")
    shutil.move(made, moved)
    return moved


def elf_files(bundle: Path) -> list[Path]:
    files = [path for folder in ("bin", "lib") for path in (bundle / folder).iterdir() if path.is_file()]
    return [path for path in files if path.read_bytes()[:4] == b"\x7fELF"]


def test_every_library_comes_from_the_bundle_or_is_the_machines_own(bundle: Path) -> None:
    assert {"statcollectord", "statctl"} <= {path.name for path in elf_files(bundle)}
    for path in elf_files(bundle):
        for line in run("/usr/bin/ldd", path).stdout.splitlines():
            name, _, place = line.strip().partition(" => ")
            assert "not found" not in place, (path, line)
            if place and not SYSTEM.match(name):
                assert place.startswith(str(bundle)), (path, line)


def test_no_file_knows_where_it_was_built(bundle: Path) -> None:
    for path in elf_files(bundle):
        dynamic = run("/usr/bin/readelf", "-d", path).stdout
        paths = re.findall(r"R(?:UN)?PATH.*\[(.*)\]", dynamic)
        assert paths, path
        assert all(part.startswith("$ORIGIN") for part in paths[0].split(":")), (path, paths)


def test_programs_start(bundle: Path) -> None:
    for program in ("statcollectord", "statctl"):
        done = run(bundle / "bin" / program, "--version")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(program)


def test_the_python_package_finds_its_library(bundle: Path) -> None:
    program = "import statagent, numpy; print(statagent.compute(numpy.arange(9.0))['mean'])"
    done = run(sys.executable, "-c", program, PYTHONPATH=str(bundle / "python"))
    assert done.stdout.strip() == "4.0", done.stderr


def test_the_manifest_says_what_it_needs(bundle: Path) -> None:
    manifest = (bundle / "MANIFEST").read_text()
    assert re.search(r"^statcollect \d+\.\d+\.\d+$", manifest, re.M)
    assert re.search(r"^needs GLIBC \d+\.\d+ or later$", manifest, re.M)


def test_programs_have_no_debug_information(bundle: Path) -> None:
    for path in elf_files(bundle):
        sections = run("/usr/bin/readelf", "-SW", path).stdout
        assert ".symtab" not in sections, path
        assert ".debug_info" not in sections, path


def test_a_bundle_for_gpu_check_needs_a_build_with_cuda(tmp_path: Path) -> None:
    if (ROOT / "build" / "release" / "tests" / "gpu_test").is_file():
        pytest.skip("the release build has the CUDA engine")
    done = subprocess.run(
        [ROOT / "scripts" / "bundle.sh", "--gpu-check", "--output", str(tmp_path / "made")],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "expected a build with CUDA, tests and benchmarks" in done.stderr


def test_refuses_to_replace_what_is_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    done = subprocess.run(
        [ROOT / "scripts" / "bundle.sh", "--output", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "it exists and is not a bundle" in done.stderr
    assert (tmp_path / "precious").read_text() == "kept"
