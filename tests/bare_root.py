"""A Debian as debootstrap makes it, without any package of a build, to be entered by chroot."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

# What scripts/try_fresh.sh copies, too: how this machine reaches its packages.
REACH = ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def why_not() -> str:
    """Why this machine cannot make and enter one; "" if it can."""
    if os.geteuid() != 0:
        return "making a bare root needs root (debootstrap, chroot, mount)"
    missing = [tool for tool in ("debootstrap", "unshare", "chroot", "ip") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found; scripts/setup.sh --for test installs them"
    tried = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "mount", "-t", "proc", "proc", "/proc"],
        capture_output=True,
        check=False,
    )
    return "" if tried.returncode == 0 else f"namespaces are not allowed here: {tried.stderr.decode().strip()}"


def release() -> tuple[str, str]:
    """This machine's release of Debian and a mirror of it; a mirror "" if apt names none."""
    lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    suite = next((line.partition("=")[2].strip('"') for line in lines if line.startswith("VERSION_CODENAME=")), "")
    asked = [
        "apt-get",
        "indextargets",
        "--format",
        "$(REPO_URI)",
        "Created-By: Packages",
        f"Codename: {suite}",
        "Component: main",
    ]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()
    return suite, found[0] if found else ""


class BareRoot:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self, *packages: str, timeout: float = 900) -> str:
        """Why it failed; "" if it did not."""
        suite, mirror = release()
        if not mirror:
            return f"apt of this machine names no mirror of '{suite}'"
        command = ["debootstrap", "--variant=minbase", "--cache-dir=/var/cache/apt/archives"]
        command += [f"--include={','.join(packages)}", suite, str(self.folder), mirror]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        if done.returncode:
            return f"debootstrap of {suite} from {mirror} failed: {done.stdout[-1000:]}{done.stderr[-1000:]}"
        for name in REACH:
            if Path(name).exists():
                (self.folder / name[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(name, self.folder / name[1:])
        for folder in ("/etc/apt/apt.conf.d", "/etc/apt/auth.conf.d"):
            if Path(folder).is_dir():
                shutil.copytree(folder, self.folder / folder[1:], dirs_exist_ok=True)
        return ""

    def run(self, script: str, timeout: float = 300, code: int = 0, network: bool = False) -> str:
        """What a shell script printed inside, under `set -e`. Without network it has a loopback interface of its own, so that any port is
        free. Its processes and mounts end with it."""
        enter = f'mount -t proc proc "{self.folder}/proc"; mount --rbind /dev "{self.folder}/dev"; '
        enter += "ip link set lo up; " if not network else ""
        enter += f'exec chroot "{self.folder}" /bin/bash -ec "$SCRIPT"'
        command = [
            "unshare",
            "--mount",
            *([] if network else ["--net"]),
            "--pid",
            "--fork",
            "--kill-child=SIGKILL",
            "bash",
            "-ec",
            enter,
        ]
        environment = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", "SCRIPT": script}
        environment |= {k: v for k, v in os.environ.items() if network and k.lower() in ("http_proxy", "https_proxy", "no_proxy")}
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"exit code {done.returncode} instead of {code} of:\n{script}\n\nIt said:\n{done.stdout}"
        return done.stdout

    def path(self, name: str) -> Path:
        return self.folder / name.lstrip("/")
