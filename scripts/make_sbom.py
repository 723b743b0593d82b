"""Writes what a release contains as CycloneDX 1.6 JSON: the libraries it links, those compiled in, and the page's npm packages.

python scripts/make_sbom.py --build build/release --out statcollect.cdx.json. Names and versions come from dpkg, from the headers' packages,
from the CUDA toolkit of the build, and from web/package-lock.json. The same build gives the same bytes (SOURCE_DATE_EPOCH).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from make_wheels import ROOT, WheelError, commit_time, version

# Debian packages whose code is compiled in: static archives and headers. tests/test_release.py compares them with setup.sh.
COMPILED_IN = (
    "libgrpc++-dev", "libboost-dev", "libcli11-dev", "libfmt-dev", "libspdlog-dev", "nlohmann-json3-dev", "rapidjson-dev", "libxxhash-dev",
)  # fmt: skip
PROGRAMS = ("bin/statcollectord", "bin/statctl", "lib/libstatagent.so")


def output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError as error:
        raise WheelError(
            f"list what is linked: {command[0]} not found; expected a Debian or Ubuntu; install dpkg and binutils"
        ) from error


def installed(package: str) -> tuple[str, str]:
    """Version and architecture of a Debian package; empty if it is not installed."""
    found = output("dpkg-query", "-W", "-f", "${Version} ${Architecture}\n", package).split()
    return (found[0], found[1]) if len(found) >= 2 else ("", "")


def owners(paths: set[str]) -> dict[str, str]:
    """Library -> its Debian package. A package lists its files below /usr, also where the linker finds them below /lib."""
    names = {variant: path for path in sorted(paths) for variant in (path, path.removeprefix("/usr"), f"/usr{path}")}
    said = output("dpkg-query", "-S", *names)
    return {
        names[path]: package
        for package, path in re.findall(r"^([a-z0-9][\w.+-]*)(?::\w+)?: (.*)$", said, re.MULTILINE)
        if path in names
    }


def linked(build: Path) -> dict[str, list[str]]:
    """Debian package -> the programs that link it."""
    of_program = {
        Path(program).name: {os.path.realpath(path) for path in re.findall(r"=> (/\S+)", output("ldd", str(build / program)))}
        for program in PROGRAMS
    }
    package_of = owners(set().union(*of_program.values()))
    packages: dict[str, list[str]] = {}
    for program, libraries in of_program.items():
        for package in {package_of[library] for library in libraries if library in package_of} - {"libc6"}:
            packages.setdefault(package, []).append(program)
    return packages


def distribution() -> str:
    text = Path("/etc/os-release").read_text(encoding="utf-8")
    fields = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE))
    return f"{fields.get('ID', 'debian')}-{fields.get('VERSION_ID', '')}"


def of_debian(package: str, how: str) -> dict[str, Any]:
    number, architecture = installed(package)
    if not number:
        raise WheelError(
            f"list what is linked: {package} is not installed; expected the packages of the build; run scripts/setup.sh"
        )
    distro = distribution()
    url = f"pkg:deb/{distro.partition('-')[0]}/{package.replace('+', '%2B')}@{number.replace('+', '%2B').replace(':', '%3A')}"
    return {
        "type": "library", "bom-ref": f"deb:{package}", "name": package, "version": number,
        "purl": f"{url}?arch={architecture}&distro={distro}", "properties": [{"name": "statcollect:how", "value": how}],
    }  # fmt: skip


def of_page() -> list[dict[str, Any]]:
    """npm packages in the committed bundle: those that are not only for development."""
    locked = json.loads((ROOT / "web/package-lock.json").read_text(encoding="utf-8"))
    found = []
    for path, package in sorted(locked["packages"].items()):
        name = path.rpartition("node_modules/")[2]
        if name and not package.get("dev") and not package.get("devOptional"):
            url = f"pkg:npm/{name.replace('@', '%40')}@{package['version']}"
            found.append(
                {"type": "library", "bom-ref": f"npm:{name}@{package['version']}", "name": name, "version": package["version"], "purl": url,
                 "properties": [{"name": "statcollect:how", "value": "in the page's bundle"}]}
            )  # fmt: skip
    return found


def of_cuda(build: Path) -> list[dict[str, Any]]:
    """The runtime of CUDA, if the build linked it."""
    for record in build.glob("CMakeFiles/*/CMakeCUDACompiler.cmake"):
        found = re.search(r'^set\(CMAKE_CUDA_COMPILER_VERSION "([\d.]+)"\)', record.read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return [
                {"type": "library", "bom-ref": "cuda:cudart", "name": "cudart (static)", "version": found[1], "supplier": {"name": "NVIDIA"},
                 "properties": [{"name": "statcollect:how", "value": "linked statically into libstatagent.so"}]}
            ]  # fmt: skip
    return []


def document(build: Path) -> dict[str, Any]:
    number = version()
    moment = int(os.environ["SOURCE_DATE_EPOCH"])
    components = [of_debian(package, f"linked by {', '.join(users)}") for package, users in sorted(linked(build).items())]
    components += [of_debian(package, "compiled in") for package in COMPILED_IN]
    components += of_cuda(build) + of_page()
    identity = uuid.uuid5(uuid.NAMESPACE_URL, f"statcollect-{number}-{moment}-{json.dumps(components, sort_keys=True)}")
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{identity}", "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment)),
            "component": {
                "type": "application", "bom-ref": "statcollect", "name": "statcollect", "version": number,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": components,
        "dependencies": [{"ref": "statcollect", "dependsOn": [component["bom-ref"] for component in components]}],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release", help="a built tree (default: build/release)")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    options = parser.parse_args()
    os.environ.setdefault("SOURCE_DATE_EPOCH", commit_time())
    try:
        for program in PROGRAMS:
            if not (options.build / program).is_file():
                raise WheelError(
                    f"list what is linked: {options.build / program} is missing; expected a built tree; run scripts/build.sh"
                )
        text = json.dumps(document(options.build), indent=1, ensure_ascii=False) + "\n"
    except WheelError as error:
        print(f"make_sbom.py: {error}", file=sys.stderr)
        return 1
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(text, encoding="utf-8")
    print(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
