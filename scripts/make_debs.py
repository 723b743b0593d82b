"""Makes the three Debian packages from a built tree: statcollect-server, statcollect-client and libstatagent-dev.

python scripts/make_debs.py --build build/release --out build/dist. Needs dpkg-dev, patchelf and strip: scripts/setup.sh --for wheel.
They belong to the release of Debian or Ubuntu on which they are made: dpkg-shlibdeps finds what they depend on. Two runs over the same
build give the same bytes: SOURCE_DATE_EPOCH, by default the time of the last commit, is the time of every file in them.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from make_wheels import ROOT, WheelError, commit_time, version

DEBIAN = ROOT / "deploy/debian"
MAINTAINER = os.environ.get("STATCOLLECT_MAINTAINER", "statcollect developers <statcollect@localhost.localdomain>")
COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: statcollect

Files: *
Copyright: 2026 the statcollect authors
License: Apache-2.0
 On Debian systems the text of the Apache License, version 2.0, is in /usr/share/common-licenses/Apache-2.0.
"""


@dataclass(frozen=True)
class Package:
    name: str
    section: str
    summary: str
    description: str  # one paragraph a line
    fill: Callable[[Path, Path], None]  # (build, root): copies the files
    fields: tuple[str, ...] = ()
    depends: tuple[str, ...] = ()


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WheelError(f"run {' '.join(map(str, command))}: it failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def install(source: Path, target: Path, mode: int = 0o644) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def install_manual(program: Path, root: Path, summary: str) -> None:
    """A manual page that has what --help says."""
    name, said = program.name, run(program, "--help")
    text = "\n".join("\\&" + line.replace("\\", "\\e").replace("-", "\\-") for line in said.splitlines())
    page = (
        f'.TH {name.upper()} 1 "" "statcollect {version()}"\n.SH NAME\n{name} \\- {summary}\n.SH DESCRIPTION\n.nf\n{text}\n.fi\n'
    )
    place = root / f"usr/share/man/man1/{name}.1.gz"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(gzip.compress(page.encode(), 9, mtime=0))


def install_program(source: Path, target: Path) -> None:
    """Without symbols, and without the folders of a build among those where it looks for libraries."""
    install(source, target, 0o755)
    run("strip", "--strip-unneeded", "--remove-section=.comment", "--remove-section=.note", target)
    run("patchelf", "--remove-rpath", target)


def unit() -> str:
    """deploy/statcollectord.service for a package: program in /usr/bin, and the package's own user."""
    text = (ROOT / "deploy/statcollectord.service").read_text(encoding="utf-8")
    text = text[text.index("[Unit]") :]
    for old, new in (
        ("/usr/local/bin/", "/usr/bin/"),
        ("# A user of its own, made by systemd; the data lies in /var/lib/statcollect.\nDynamicUser=yes\nUser=statcollect\n",
         "User=statcollect\nGroup=statcollect\n"),
    ):  # fmt: skip
        if old not in text:
            raise WheelError(f"make the packages' unit: deploy/statcollectord.service has no {old!r}; adapt scripts/make_debs.py")
        text = text.replace(old, new)
    return text


def fill_server(build: Path, root: Path) -> None:
    install_program(build / "bin/statcollectord", root / "usr/bin/statcollectord")
    install_manual(build / "bin/statcollectord", root, "collector of the statistics of training runs")
    install(ROOT / "deploy/statcollectord.toml", root / "etc/statcollect/statcollectord.toml")
    place = root / "lib/systemd/system/statcollectord.service"
    place.parent.mkdir(parents=True)
    place.write_text(unit(), encoding="utf-8")
    install(ROOT / "deploy/alerts.yml", root / "usr/share/doc/statcollect-server/examples/alerts.yml")
    control = root / "DEBIAN"
    for script in ("config", "postinst", "prerm", "postrm"):
        install(DEBIAN / f"statcollect-server.{script}", control / script, 0o755)
    install(DEBIAN / "statcollect-server.templates", control / "templates")
    (control / "conffiles").write_text("/etc/statcollect/statcollectord.toml\n", encoding="ascii")


def fill_client(build: Path, root: Path) -> None:
    install_program(build / "bin/statctl", root / "usr/bin/statctl")
    install_manual(build / "bin/statctl", root, "finds where two training runs diverge")


def fill_agent(build: Path, root: Path) -> None:
    run("cmake", "--install", build, "--component", "agent", "--prefix", root / "usr", "--strip")
    soname = next((root / "usr/lib").glob("libstatagent.so.?")).name
    number = soname.rpartition(".")[2]
    control = root / "DEBIAN"
    control.mkdir(exist_ok=True)
    (control / "shlibs").write_text(f"libstatagent {number} libstatagent-dev (>= {version()})\n", encoding="ascii")
    (control / "triggers").write_text("activate-noawait ldconfig\n", encoding="ascii")


PACKAGES = (
    Package(
        "statcollect-server", "net", "collector of the statistics of training runs",
        "The collector statcollectord receives the statistics that agents in training processes stream, stores them, and answers where "
        "two runs diverge: over gRPC to statctl, over HTTP to browsers and other programs.\n"
        "It runs as a systemd service of its own user, listens on loopback addresses until configured otherwise, and keeps its data in "
        "/var/lib/statcollect.",
        fill_server, ("Recommends: statcollect-client",), ("adduser", "debconf (>= 0.5) | debconf-2.0", "init-system-helpers (>= 1.54~)"),
    ),
    Package(
        "statcollect-client", "utils", "finds where two training runs diverge",
        "The command line statctl asks a collector for runs, series, alarms, and for the first step, rank, layer and pass at which two "
        "training runs diverge.",
        fill_client, ("Suggests: statcollect-server",),
    ),
    Package(
        "libstatagent-dev", "libdevel", "agent of statcollect for C and C++ programs",
        "The library libstatagent computes statistics of a training program's tensors and streams them to a collector. "
        "This package has the library, its headers, and files for CMake and pkg-config.",
        fill_agent,
    ),
)  # fmt: skip


def documents(package: Package, root: Path, number: str) -> None:
    folder = root / "usr/share/doc" / package.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "copyright").write_text(COPYRIGHT, encoding="utf-8")
    date = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"])))
    entry = f"statcollect ({number}) unstable; urgency=medium\n\n  * Version {number}; changelog.gz says what changed.\n\n -- {MAINTAINER}  {date}\n"
    for name, text in (("changelog.Debian.gz", entry), ("changelog.gz", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))):
        (folder / name).write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def dependencies(root: Path, work: Path) -> str:
    """What dpkg-shlibdeps finds that the programs and libraries below `root` need."""
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF"]
    (work / "debian").mkdir(exist_ok=True)
    (work / "debian/control").write_text("Source: statcollect\n\nPackage: statcollect\nArchitecture: any\n", encoding="ascii")
    said = run("dpkg-shlibdeps", "-O", *(f"-e{path}" for path in files), cwd=work)
    return said.strip().removeprefix("shlibs:Depends=")


def described(text: str) -> list[str]:
    """The long description: paragraphs, with a dot between them."""
    paragraphs = [textwrap.wrap(paragraph, 76) for paragraph in text.splitlines()]
    lines = [line for paragraph in paragraphs for line in (".", *paragraph)][1:]
    return [f" {line}" for line in lines]


def control(package: Package, root: Path, number: str, work: Path) -> str:
    size = sum((path.stat().st_size + 1023) // 1024 for path in root.rglob("*") if path.is_file() and "DEBIAN" not in path.parts)
    needed = ", ".join(filter(None, [*package.depends, dependencies(root, work)]))
    lines = [
        f"Package: {package.name}", f"Version: {number}", f"Architecture: {run('dpkg', '--print-architecture').strip()}",
        f"Maintainer: {MAINTAINER}", f"Installed-Size: {size}", f"Depends: {needed}", *package.fields, f"Section: {package.section}",
        "Priority: optional", f"Description: {package.summary}", *described(package.description),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def make(package: Package, build: Path, out: Path, number: str) -> Path:
    with tempfile.TemporaryDirectory(prefix="statcollect-deb-") as folder:
        work, root = Path(folder), Path(folder) / "root"
        (root / "DEBIAN").mkdir(parents=True)
        package.fill(build, root)
        documents(package, root, number)
        (root / "DEBIAN/control").write_text(control(package, root, number, work), encoding="utf-8")
        files = sorted(
            path for path in root.rglob("*") if path.is_file() and not path.is_symlink() and "DEBIAN" not in path.parts
        )
        sums = "".join(f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n" for path in files)
        (root / "DEBIAN/md5sums").write_text(sums, encoding="utf-8")
        for path in (root, *root.rglob("*")):  # whatever the umask of who builds
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or (os.access(path, os.X_OK) and ".so" not in path.name) else 0o644)
        moment = int(os.environ["SOURCE_DATE_EPOCH"])
        for path in (root, *root.rglob("*")):
            os.utime(path, (moment, moment), follow_symlinks=False)
        made = out / f"{package.name}_{number}_{run('dpkg', '--print-architecture').strip()}.deb"
        run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", root, made)
        return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release", help="a built tree (default: build/release)")
    parser.add_argument("--out", type=Path, default=ROOT / "build/dist", help="folder for the packages (default: build/dist)")
    parser.add_argument("--only", choices=[package.name for package in PACKAGES], help="make one of them")
    parser.add_argument(
        "--revision", default="1", help="Debian revision, higher for another packaging of the same version (default: 1)"
    )
    options = parser.parse_args()
    try:
        if not re.fullmatch(r"[0-9a-z.+~]+", options.revision):
            raise WheelError(f"make packages: --revision {options.revision!r}: expected digits and lower-case letters, such as 2")
        missing = [tool for tool in ("dpkg-deb", "dpkg-shlibdeps", "patchelf", "strip", "cmake") if shutil.which(tool) is None]
        if missing:
            raise WheelError(
                f"make packages: {', '.join(missing)} not found; expected all of them; run scripts/setup.sh --for wheel"
            )
        for path in (options.build / "bin/statcollectord", options.build / "bin/statctl", options.build / "lib/libstatagent.so"):
            if not path.is_file():
                raise WheelError(f"make packages: {path} is missing; expected a built tree; run scripts/build.sh first")
        os.environ.setdefault("SOURCE_DATE_EPOCH", commit_time())
        options.out.mkdir(parents=True, exist_ok=True)
        for package in (each for each in PACKAGES if options.only in (None, each.name)):
            print(make(package, options.build.resolve(), options.out.resolve(), f"{version()}-{options.revision}"))
    except WheelError as error:
        print(f"make_debs.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
