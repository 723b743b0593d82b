"""Whatever CMake asks for and the sources include is installed by setup.sh and, for the product, in the Containerfile."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# What CMake names, and the package of Debian and Ubuntu that has it.
OF_CMAKE = {
    "Threads": "build-essential", "Protobuf": "libprotobuf-dev", "PkgConfig": "pkg-config", "grpc++": "libgrpc++-dev",
    "re2": "libre2-dev", "Boost": "libboost-dev", "CURL": "libcurl4-openssl-dev", "OpenSSL": "libssl-dev", "CLI11": "libcli11-dev", "fmt": "libfmt-dev", "spdlog": "libspdlog-dev",
    "nlohmann_json": "nlohmann-json3-dev", "RocksDB": "librocksdb-dev", "grpc_cpp_plugin": "protobuf-compiler-grpc",
    "GTest": "libgtest-dev", "MPI": "libopenmpi-dev", "ZLIB": "zlib1g-dev", "ccache": "ccache", "clang++-14": "clang-14",
}  # fmt: skip
# Headers by the first part of their path.
OF_INCLUDES = {
    "grpc": "libgrpc++-dev", "grpcpp": "libgrpc++-dev", "google": "libprotobuf-dev", "rocksdb": "librocksdb-dev", "boost": "libboost-dev",
    "curl": "libcurl4-openssl-dev", "openssl": "libssl-dev", "zlib.h": "zlib1g-dev",
    "CLI": "libcli11-dev", "fmt": "libfmt-dev", "spdlog": "libspdlog-dev", "nlohmann": "nlohmann-json3-dev",
    "re2": "libre2-dev", "rapidjson": "rapidjson-dev", "xxhash.h": "libxxhash-dev", "gtest": "libgtest-dev",
    "gmock": "libgmock-dev", "mpi.h": "libopenmpi-dev",
}  # fmt: skip
ONLY_TESTS = {"libgtest-dev", "libgmock-dev", "libopenmpi-dev", "clang-14"}
NOT_NEEDED = {"ccache"}  # used where it is there
OWN = {"statagent", "statcollect"}
# Without Python's headers hooks go through ctypes.
OPTIONAL = {"Python3", "CUDAToolkit", "cuda_runtime_api.h", "cuda_runtime.h", "cuda.h", "cuda_bf16.h", "cuda_fp16.h"}
SYSTEM = {"arpa", "net", "netinet", "sys", "linux", "asm", "sanitizer"}  # the last is the compiler's

SOURCES = ("common", "proto", "agent", "server", "client")


def files(*patterns: str, below: tuple[str, ...] = (".",)) -> list[Path]:
    found = [path for folder in below for pattern in patterns for path in (ROOT / folder).rglob(pattern)]
    return [path for path in found if not {"build", ".venv", ".git"} & set(path.relative_to(ROOT).parts)]


def asked_by_cmake() -> set[str]:
    text = "\n".join(path.read_text(encoding="utf-8") for path in files("CMakeLists.txt", "*.cmake"))
    text = re.sub(r"#.*", "", text)
    found = set(re.findall(r"find_package\((\w+)", text))
    found |= set(re.findall(r"pkg_check_modules\(\w+ (?:REQUIRED |IMPORTED_TARGET )*([\w+.-]+)\)", text))
    found |= set(re.findall(r"find_program\(\w+ (?:NAMES )?([\w+.-]+)", text))
    return found


def included(below: tuple[str, ...]) -> set[str]:
    """First parts of what is included with <> and is not of the C or C++ library or the system."""
    found = set()
    for path in files("*.cc", "*.h", "*.cu", "*.cuh", below=below):
        for name in re.findall(r"#include <([\w+./-]+)>", path.read_text(encoding="utf-8")):
            if "/" in name or name in OF_INCLUDES or name in OPTIONAL:
                found.add(name.partition("/")[0])
    return found - SYSTEM


def of_setup(purpose: str) -> set[str]:
    text = (ROOT / "scripts" / "setup.sh").read_text(encoding="utf-8")
    demo = re.search(r"^apt_packages=\((.*?)\)", text, re.DOTALL | re.MULTILINE)
    test = re.search(r"apt_packages\+=\((.*?)\)", text, re.DOTALL)
    assert demo and test
    return set(demo.group(1).split()) | (set(test.group(1).split()) if purpose == "test" else set())


def of_containerfile() -> set[str]:
    build = (ROOT / "deploy" / "Containerfile").read_text(encoding="utf-8").partition("AS build")[2].partition("\nFROM ")[0]
    installed = re.search(r"apt-get install (.*?)&&", build, re.DOTALL)
    assert installed
    return set(installed.group(1).replace("\\\n", " ").split())


def test_every_name_is_known() -> None:
    assert not asked_by_cmake() - set(OF_CMAKE) - OWN - OPTIONAL, "name the package in OF_CMAKE"
    assert not included((*SOURCES, "tests", "bench", "examples")) - set(OF_INCLUDES) - OWN - OPTIONAL, (
        "name the package in OF_INCLUDES"
    )


def needed(product: bool) -> set[str]:
    packages = {OF_CMAKE[name] for name in asked_by_cmake() & set(OF_CMAKE)} - NOT_NEEDED
    packages |= {OF_INCLUDES[name] for name in included(SOURCES if product else (*SOURCES, "tests", "bench")) & set(OF_INCLUDES)}
    return packages - ONLY_TESTS if product else packages


@pytest.mark.parametrize(
    ("place", "installed", "product"),
    [
        ("setup.sh --for demo", of_setup("demo"), True),
        ("setup.sh --for test", of_setup("test"), False),
        ("Containerfile", of_containerfile(), True),
    ],
)
def test_what_is_needed_is_installed(place: str, installed: set[str], product: bool) -> None:
    assert not needed(product) - installed, f"{place} does not install these"
