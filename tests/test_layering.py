"""The `#include`s and imports against the table of docs/ARCHITECTURE.md: what each part may use."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}

# part -> (other parts of ours it may include, third-party libraries it may include). A part may always include itself.
# Longest prefix wins.
TABLE: dict[str, tuple[set[str], set[str]]] = {
    "common": (set(), set()),
    "proto": ({"common"}, {"protobuf", "json"}),
    "agent/include": ({"common"}, set()),
    "agent/stats": ({"common"}, set()),
    "agent/stats/cuda": ({"common", "agent/stats"}, {"cuda"}),
    "agent/staging": ({"common"}, set()),
    "agent/export": ({"common", "agent/staging"}, set()),
    "agent/export/grpc_exporter.cc": ({"common", "agent/staging", "agent/export", "proto"}, {"grpc", "protobuf"}),
    "agent": ({"common", "agent/include", "agent/stats", "agent/stats/cuda", "agent/staging", "agent/export"}, set()),
    "server/store": ({"common"}, {"xxhash"}),
    "server/store/rocksdb": ({"common", "server/store"}, {"rocksdb"}),
    "server/store/rocksdb_store.cc": ({"common", "server/store", "server/store/rocksdb"}, {"rocksdb", "spdlog"}),
    "server/runtime": ({"common"}, {"boost", "spdlog", "json", "cli11"}),
    "server/ingest": ({"common", "proto", "server/store", "server/runtime"}, {"grpc", "protobuf", "spdlog"}),
    "server/query": ({"common", "server/store"}, set()),
    "server/alarms": ({"common", "server/store", "server/query", "server/runtime"}, {"spdlog"}),
    "server/api": ({"common", "proto", "server/query", "server/runtime"}, {"grpc", "protobuf", "spdlog", "json"}),
    "server/main.cc": (
        {
            "common",
            "proto",
            "server/store",
            "server/runtime",
            "server/ingest",
            "server/query",
            "server/alarms",
            "server/api",
        },
        {"grpc", "boost", "spdlog", "cli11"},
    ),
    "client/formats": ({"common"}, {"rapidjson"}),
    "client": ({"common", "proto", "client/formats"}, {"grpc", "protobuf", "json", "cli11", "spdlog"}),
    "client/exports/parquet_module.cc": ({"common", "client"}, {"arrow"}),
}
OURS = ("common", "proto", "agent", "server", "client", "tests", "bench", "statcollect", "statagent")
THIRD_PARTY = [
    (r"(google/protobuf/|statcollect/v1/\w+\.pb\.h)", "protobuf"),
    (r"(grpc|grpcpp|grpc\+\+)/|statcollect/v1/\w+\.grpc\.pb\.h", "grpc"),
    (r"absl/", "abseil"),
    (r"rocksdb/", "rocksdb"),
    (r"boost/", "boost"),
    (r"(spdlog|fmt)/", "spdlog"),
    (r"nlohmann/", "json"),
    (r"rapidjson/", "rapidjson"),
    (r"CLI/", "cli11"),
    (r"(cuda|cuda_\w+\.h|cub/)", "cuda"),
    (r"xxhash\.h", "xxhash"),
    (r"hwy/", "highway"),
    (r"(arrow|parquet)/", "arrow"),
]


def part_of(path: str) -> str:
    """The longest entry of TABLE that `path` (from the root, with slashes) lies in; "" if none."""
    best = ""
    for part in TABLE:
        if (path == part or path.startswith(part + "/")) and len(part) > len(best):
            best = part
    return best


def included_part(path: str) -> str:
    """Which part a header of ours belongs to, files with an entry of their own counted to their folder."""
    part = part_of(path)
    return part if "." not in part else part_of(part.rsplit("/", 1)[0])


def sources() -> list[Path]:
    files = []
    for top in ("common", "proto", "agent", "server", "client"):
        files += [p for p in (ROOT / top).rglob("*") if p.suffix in SOURCE_SUFFIXES]
    return sorted(files)


def violations(path: str, text: str) -> list[str]:
    """What the file at `path` includes and must not."""
    part = part_of(path)
    if not part:
        return [f"{path}: belongs to no part of the table"]
    own_part = included_part(path)
    may_parts, may_libraries = TABLE[part]
    found = []
    for line, include in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*([<"])([^">]+)[">]', include)
        if not match:
            continue
        name = match.group(2)
        where = f"{path}:{line} includes {name}"
        library = next((lib for pattern, lib in THIRD_PARTY if re.match(pattern, name)), None)
        if library:
            if library == "protobuf" and name.startswith("statcollect/v1") and own_part == "proto":
                continue
            if library not in may_libraries:
                found.append(f"{where}: {part} may not use {library}")
            continue
        top = name.split("/")[0]
        if "/" not in name or top not in OURS:
            continue  # standard library or system header
        if top in ("tests", "bench"):
            found.append(f"{where}: nothing may include {top}/")
            continue
        target = "agent/include" if top == "statagent" else included_part(name)
        if target not in may_parts | {part, own_part}:
            found.append(f"{where}: {part} may not use {target}")
    return found


def test_every_include_follows_the_table() -> None:
    files = sources()
    assert len(files) > 40, "found too few sources to mean anything"
    found = [v for f in files for v in violations(f.relative_to(ROOT).as_posix(), f.read_text(encoding="utf-8"))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "include"),
    [
        ("common/names.cc", "<grpcpp/grpcpp.h>"),
        ("server/query/diff.cc", '"statcollect/v1/query.pb.h"'),
        ("server/ingest/session.cc", '"server/query/diff.h"'),
        ("server/store/key.cc", "<rocksdb/db.h>"),
        ("agent/staging/ring.h", '"agent/stats/stats.h"'),
        ("agent/agent.cc", "<grpcpp/channel.h>"),
        ("client/main.cc", '"server/query/query.h"'),
        ("client/main.cc", '"agent/stats/stats.h"'),
        ("client/exports/csv.cc", "<arrow/api.h>"),
        ("server/main.cc", '"tests/support/fake_store.h"'),
        ("agent/include/statagent/agent.h", '"absl/status/status.h"'),
    ],
)
def test_a_forbidden_include_is_seen(path: str, include: str) -> None:
    assert violations(path, f"#include {include}\n")


def test_public_agent_headers_include_only_the_standard_library_and_each_other() -> None:
    for header in (ROOT / "agent/include/statagent").glob("*.h"):
        for name in re.findall(r"#\s*include\s*[<\"]([^\">]+)", header.read_text(encoding="utf-8")):
            assert "/" not in name or name.startswith("statagent/"), f"{header.name} includes {name}"


def test_the_python_package_uses_the_c_interface_only() -> None:
    for file in (ROOT / "agent/python").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                top = name.split(".")[0]
                assert top not in ("grpc", "google", "tests", "bench"), f"{file}: imports {name}"
                framework = {"pytorch_lightning": "lightning"}.get(top, top)
                if framework in ("transformers", "accelerate", "lightning", "jax") and not getattr(node, "level", 0):
                    assert (file.parent.name, file.stem) == ("integrations", framework), f"{file}: imports {name}"


def test_the_python_package_installs_all_of_its_folders() -> None:
    """pyproject.toml lists packages by hand: one that is missing there is missing after `pip install`."""
    text = (ROOT / "agent/python/pyproject.toml").read_text(encoding="utf-8")
    listed = re.findall(r'"(statagent[\w.]*)"', re.search(r"^packages = \[(.*?)\]", text, re.M | re.S)[1])  # type: ignore[index]
    folders = {file.parent.relative_to(ROOT / "agent/python") for file in (ROOT / "agent/python/statagent").rglob("__init__.py")}
    assert sorted(listed) == sorted(".".join(folder.parts) for folder in folders)
