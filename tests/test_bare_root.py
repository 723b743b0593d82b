"""The wheel and the Debian packages in a bare Debian, entered by chroot: nothing of a build is there, only Python.

Needs root, debootstrap and a mirror of Debian; skipped, with the reason, where one is missing. The wheel comes first: the packages bring
the libraries that it has to do without.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from bare_root import BareRoot, why_not
from made_packages import make, wheels

ROOT = Path(__file__).resolve().parent.parent
NOT_OF_DEBIAN = "bogus-mail-host,bogus-mail-host-in-debian-changelog,initial-upload-closes-no-bugs"
ONE_PACKAGE = (
    "link-to-shared-library-in-wrong-package,package-name-doesnt-match-sonames,pkg-config-unavailable-for-cross-compilation"
)

# Two ranks without NumPy; in run "ort" the layer "hidden" goes wrong at step 3.
TRAIN = """
import array, sys, statagent
run, wrong = sys.argv[1], float(sys.argv[2])
statagent.init(run=run, required=True)
for step in range(5):
    x = [((step * 31 + statagent.rank() * 7 + i * 13) % 17) / 17 for i in range(64)]
    statagent.inspect("input", array.array("f", x))
    statagent.inspect("hidden", array.array("f", [v * v + (wrong if step >= 3 else 0.0) for v in x]))
    statagent.step()
assert statagent.close(timeout=10)
counts = statagent.counters()
assert counts["produced"] == counts["acked"] > 0, counts
"""
TRAIN_BOTH = """
for run in base:0 ort:0.25; do
  for rank in 0 1; do
    RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$rank TORCHELASTIC_RUN_ID=$run $PYTHON /root/train.py ${run%%:*} ${run##*:} & eval "p$rank=$!"
  done
  wait $p0; wait $p1
done
"""
# Takes the file away, so that the next collector is not taken to be ready by this one's line.
WAIT = "for i in $(seq 100); do grep -qs ready /root/out && break; sleep 0.2; done; cat /root/out; rm /root/out\n"


def in_memory() -> Path | None:
    """A folder in memory, because dpkg syncs each file to disk; None if /dev/shm is too small or does not allow programs."""
    shared = Path("/dev/shm")
    if not shared.is_dir():
        return None
    place = os.statvfs(shared)
    if place.f_flag & (os.ST_NOEXEC | os.ST_NODEV | os.ST_NOSUID) or place.f_bavail * place.f_frsize < 4 << 30:
        return None
    folder = Path(tempfile.mkdtemp(prefix="bare-root-", dir=shared))
    folder.chmod(0o755)  # not only root is in there
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareRoot]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    bare = BareRoot(in_memory() or tmp_path_factory.mktemp("bare") / "root")
    failed = bare.make("ca-certificates", "python3-venv")
    if failed:
        shutil.rmtree(bare.folder, ignore_errors=True)
        pytest.skip(failed)
    bare.path("/root/train.py").write_text(TRAIN)
    yield bare
    shutil.rmtree(bare.folder, ignore_errors=True)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels(tmp_path_factory)["statcollect"]


def test_the_wheel_needs_nothing_but_python(root: BareRoot, wheel: Path) -> None:
    shutil.copy(wheel, root.path("/root"))
    root.run("python3 -m venv /root/environment", network=True)
    assert "rocksdb" not in root.run("ldconfig -p"), "the root is not bare"
    before = files(root.path("/root/environment"))
    said = root.run(
        f"cd /root; export PATH=/root/environment/bin:$PATH PYTHON=/root/environment/bin/python\n"
        f"pip install --quiet --no-index --disable-pip-version-check /root/{wheel.name}\n"
        "statcollectord --data-dir /root/data > /root/out 2> /root/err & daemon=$!\n" + WAIT + TRAIN_BOTH +
        "statctl diff --run-a base --run-b ort || test $? = 1\n"
        "statctl diff --run-a base --run-b base\n"
        "$PYTHON -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:7434/\").read().decode()[:2000])'\n"
        "pip uninstall --quiet -y statcollect\n"  # while it runs
        "$PYTHON -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:7434/readyz\").status)'\n"
        "kill $daemon; wait $daemon; echo ended with $?\n"
    )  # fmt: skip
    assert (
        "DIVERGED (possible) at step 3, rank 0, forward, hidden" in said or "DIVERGED at step 3, rank 0, forward, hidden" in said
    ), said
    assert "IDENTICAL" in said
    assert "<!doctype html>" in said.lower()
    assert "200\nended with 0" in said
    assert files(root.path("/root/environment")) == before, "the uninstalled wheel left something behind"
    assert root.path("/root/data/FORMAT").is_file(), "the data stays"
    shutil.rmtree(root.path("/root/data"))


def test_tls_works_from_the_wheel(root: BareRoot, wheel: Path) -> None:
    shutil.copy(wheel, root.path("/root"))
    said = root.run(
        f"cd /root; python3 -m venv /root/secure; export PATH=/root/secure/bin:$PATH\n"
        f"pip install --quiet --no-index --disable-pip-version-check /root/{wheel.name}\n"
        "statcollectord --data-dir /root/data --tls-auto > /root/out 2> /root/err & daemon=$!\n" + WAIT +
        'eval "$(grep -h "^  export" /root/err)"\n'  # as the log says
        "RANK=0 WORLD_SIZE=1 python /root/train.py secure 0\n"
        "statctl runs; kill $daemon; wait $daemon\n"
    )  # fmt: skip
    assert "secure " in said
    shutil.rmtree(root.path("/root/data"))


def test_the_image_builds_from_packages_and_serves_without_root(root: BareRoot, debs: dict[str, Path], tmp_path: Path) -> None:
    """With buildah, in chroot isolation, over the bare root; what its first stage compiles are the packages of this build."""
    if shutil.which("buildah") is None:
        pytest.skip("buildah is not installed; scripts/setup.sh --for test installs it")
    storage = ["buildah", "--storage-driver", "vfs", "--root", str(tmp_path / "storage"), "--runroot", str(tmp_path / "run")]

    def buildah(*arguments: str | Path) -> str:
        done = subprocess.run(
            [*storage, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"buildah {arguments}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout.strip()

    base = buildah("from", "scratch")
    buildah("add", "--quiet", base, root.folder, "/")
    buildah("commit", "--quiet", "--rm", base, "localhost/base")
    folder = next(iter(debs.values())).parent
    buildah(
        "bud", "--isolation", "chroot", "--format", "docker", "--pull-never", "-f", "deploy/Containerfile", "--build-context", f"build={folder}",
        "--build-arg", "PACKAGES=/", "--build-arg", "BASE=localhost/base", "-t", "localhost/statcollect", ".",
    )  # fmt: skip
    configuration = json.loads(buildah("inspect", "--type", "image", "localhost/statcollect"))["Docker"]["config"]
    assert configuration["User"] == "10001:10001"
    (kind, check) = configuration["Healthcheck"]["Test"]
    assert kind == "CMD-SHELL"
    command = " ".join([*configuration["Entrypoint"], *configuration["Cmd"]])
    container = buildah("from", "--pull-never", "localhost/statcollect")
    image = BareRoot(Path(buildah("mount", container)))
    script = (
        f"{command} > /tmp/out 2> /tmp/err & daemon=$!\n" + WAIT.replace("/root/out", "/tmp/out") + f"{check}\nstatctl runs\n"
        "kill $daemon; wait $daemon; echo ended with $?\n"
        "statcollectord --data-dir /tmp/secure --listen 0.0.0.0:7433 --http 0.0.0.0:7434 --tls-auto > /tmp/out 2> /tmp/err & daemon=$!\n"
        + WAIT.replace("/root/out", "/tmp/out") + f"{check} && echo healthy over TLS\nkill $daemon; wait $daemon\n({check}) || echo no health\n"
    )  # fmt: skip
    image.path("/tmp/script").write_text(script)
    said = image.run("setpriv --reuid 10001 --regid 10001 --clear-groups bash -e /tmp/script")
    assert '{"status":"ok"}' in said and "ended with 0" in said and "healthy over TLS" in said, said
    assert "no health" in said.partition("healthy over TLS")[2]
    buildah("rm", container)


def test_the_packages_are_clean_and_two_builds_are_equal(debs: dict[str, Path], tmp_path: Path) -> None:
    (again,) = make("make_debs.py", tmp_path, "--only", "statcollect-client")
    assert again.read_bytes() == debs["statcollect-client"].read_bytes()
    if shutil.which("lintian") is None:
        pytest.skip("lintian is not installed; scripts/setup.sh --for test installs it")
    done = subprocess.run(
        ["lintian", "--no-cfg", "--allow-root", "--fail-on", "error,warning", "--suppress-tags", f"{NOT_OF_DEBIAN},{ONE_PACKAGE}", *debs.values()],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def debs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = make("make_debs.py", tmp_path_factory.mktemp("debs"))
    return {path.name.partition("_")[0]: path for path in made}


def install(root: BareRoot, *packages: Path) -> str:
    for package in packages:
        shutil.copy(package, root.path("/root"))
    names = " ".join(f"/root/{package.name}" for package in packages)
    return root.run(f"apt-get install -y -q --no-install-recommends {names}", timeout=600, network=True)


# The daemon as the unit starts it: the package's user and configuration.
SERVE = (
    "setpriv --reuid statcollect --regid statcollect --init-groups statcollectord --config /etc/statcollect/statcollectord.toml "
    "> /root/out 2> /root/err & daemon=$!\n" + WAIT
)


def test_packages_install_upgrade_and_leave_with_the_data_kept(root: BareRoot, debs: dict[str, Path], tmp_path: Path) -> None:
    (second,) = make("make_debs.py", tmp_path, "--only", "statcollect-server", "--revision", "2")
    root.run("apt-get update -q", network=True)
    install(root, *debs.values())
    assert "statcollect:statcollect 750" in root.run("stat -c '%U:%G %a' /var/lib/statcollect")
    assert "statctl" in root.run("statctl --version; zcat /usr/share/man/man1/statctl.1.gz")
    if shutil.which("systemd-analyze"):
        checked = subprocess.run(
            ["systemd-analyze", "verify", f"--root={root.folder}", "/lib/systemd/system/statcollectord.service"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        # The root has no other units.
        wrong = [
            line for line in checked.stderr.splitlines() if "statcollectord.service" in line and "sysinit.target" not in line
        ]
        assert not wrong, checked.stderr

    shutil.copytree(ROOT / "agent/python/statagent", root.path("/root/python/statagent"), dirs_exist_ok=True)
    said = root.run(
        SERVE + "export PYTHONPATH=/root/python STATAGENT_LIBRARY=/usr/lib/libstatagent.so.0 PYTHON=python3\n" + TRAIN_BOTH +
        "statctl diff --run-a base --run-b ort || test $? = 1\nkill $daemon; wait $daemon\n"
    )  # fmt: skip
    assert "at step 3, rank 0, forward, hidden" in said

    # An upgrade keeps configuration and data.
    with root.path("/etc/statcollect/statcollectord.toml").open("a") as configuration:
        configuration.write("# changed by the administrator\n")
    install(root, second)
    assert "0.1.0-2" in root.run("dpkg-query -W -f '${Version}' statcollect-server")
    assert "# changed by" in root.path("/etc/statcollect/statcollectord.toml").read_text()
    assert "base" in root.run(SERVE + "statctl runs\nkill $daemon; wait $daemon")

    # So does a removal, even while the collector runs (a chroot has no systemd to stop it).
    said = root.run(
        SERVE + "apt-get remove -y -q statcollect-server >/root/apt; statctl runs; kill $daemon; wait $daemon; echo ended with $?"
    )
    assert "base" in said and "ended with 0" in said
    assert not root.path("/usr/bin/statcollectord").exists()
    assert root.path("/etc/statcollect/statcollectord.toml").is_file()
    assert root.path("/var/lib/statcollect/FORMAT").is_file()

    # Purge: configuration goes; data stays unless somebody says otherwise.
    said = root.run("apt-get purge -y -q statcollect-server")
    assert "kept the runs in /var/lib/statcollect" in said
    assert not root.path("/etc/statcollect").exists()
    install(root, second)
    assert "base" in root.run(SERVE + "statctl runs\nkill $daemon; wait $daemon")
    root.run(
        "echo 'statcollect-server statcollect-server/remove-data boolean true' | debconf-set-selections\n"
        "apt-get purge -y -q statcollect-server statcollect-client libstatagent-dev"
    )
    assert not root.path("/var/lib/statcollect").exists()
    assert not list(root.path("/usr").rglob("*statcollect*")), "the packages left something behind"
    assert not list(root.path("/usr/lib").glob("libstatagent*"))
