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
QUERY = {"common", "server/store", "server/query"}
QUERY_ROOMS = QUERY | {
    f"server/query/{room}" for room in ("captures", "cause", "compare", "diff", "noise", "ranks", "settings", "verdict")
}
TABLE: dict[str, tuple[set[str], set[str]]] = {
    "common": (set(), set()),
    "proto": ({"common"}, {"protobuf", "json"}),
    "agent/include": ({"common"}, set()),
    "agent/stats": ({"common"}, set()),
    "agent/stats/cpu": ({"common", "agent/stats"}, set()),
    "agent/stats/cuda": ({"common", "agent/stats"}, {"cuda"}),
    "agent/stats/cuda/plan.cc": ({"common", "agent/stats", "agent/stats/cuda", "agent/stats/cpu"}, {"cuda"}),
    "agent/staging": ({"common"}, set()),
    "agent/export": ({"common", "agent/staging"}, set()),
    "agent/export/grpc_exporter.cc": ({"common", "agent/staging", "agent/export"}, {"grpc"}),
    "agent/cuda": ({"common", "agent/stats", "agent/stats/cuda", "agent/staging"}, set()),
    "agent": (
        {
            "common",
            "agent/include",
            "agent/stats",
            "agent/stats/cpu",
            "agent/stats/cuda",
            "agent/staging",
            "agent/export",
            "agent/cuda",
        },
        set(),
    ),
    "server/store": ({"common"}, {"xxhash"}),
    "server/store/codec": ({"common", "server/store"}, {"xxhash"}),
    "server/store/rocksdb": ({"common", "server/store", "server/store/codec"}, {"rocksdb", "spdlog"}),
    "server/http": ({"common"}, {"boost", "spdlog", "json"}),
    "server/control": ({"common"}, {"curl", "json"}),
    "server/ingest": ({"common", "proto", "server/store", "server/control"}, {"grpc", "protobuf", "spdlog"}),
    "server/query": ({"common", "server/store"}, set()),
    "server/query/settings": (QUERY, set()),
    "server/query/captures": (QUERY, set()),
    "server/query/compare": (QUERY | {"server/query/settings"}, set()),
    "server/query/noise": (QUERY | {"server/query/compare"}, set()),
    "server/query/ranks": (QUERY | {"server/query/compare", "server/query/settings"}, set()),
    "server/query/cause": (QUERY | {"server/query/compare", "server/query/settings"}, set()),
    "server/query/verdict": (QUERY | {"server/query/compare", "server/query/settings", "server/query/cause"}, set()),
    "server/query/diff": (QUERY | {"server/query/compare", "server/query/settings", "server/query/verdict"}, set()),
    "server/query/query.h": (QUERY_ROOMS, set()),
    "server/query/query.cc": (QUERY_ROOMS | {"server/query/query.h"}, set()),
    "server/alarms": (
        {"common", "server/store", "server/query", "server/query/compare", "server/control"},
        {"spdlog"},
    ),
    "server/api": (
        {"common", "proto", "server/control", "server/query/query.h"} | QUERY_ROOMS,
        {"grpc", "protobuf", "spdlog", "json"},
    ),
    "server/api/http": (
        {"common", "proto", "server/api", "server/control", "server/http"},
        {"grpc", "protobuf", "spdlog", "json"},
    ),
    "server/daemon": (
        {
            "common",
            "proto",
            "server/store",
            "server/store/rocksdb",
            "server/http",
            "server/control",
            "server/ingest",
            "server/query",
            "server/query/query.h",
            "server/alarms",
            "server/api",
            "server/api/http",
        },
        {"grpc", "boost", "spdlog", "cli11"},
    ),
    "client/formats": ({"common"}, {"rapidjson"}),
    "client/exports": ({"common", "proto", "client/formats"}, {"protobuf", "spdlog"}),
    "client/rpc": ({"common", "proto"}, {"grpc", "protobuf", "spdlog"}),
    "client/imports": ({"common", "proto", "client/formats", "client/rpc"}, {"protobuf", "spdlog"}),
    "client/render": ({"common", "proto"}, {"protobuf", "json", "spdlog"}),
    "client/values": ({"common"}, {"protobuf"}),
    "client/commands": (
        {
            "common",
            "proto",
            "client/rpc",
            "client/render",
            "client/values",
            "client/formats",
            "client/imports",
            "client/exports",
        },
        {"grpc", "protobuf", "json", "spdlog"},
    ),
    "client/commands/list_options.cc": ({"common", "client/commands", "client/commands/list_options.h"}, {"cli11"}),
    "client/commands/list_options.h": ({"common", "client/commands"}, {"cli11"}),
    "client": (
        {"common", "client/commands", "client/commands/list_options.h"},
        {"cli11", "grpc", "protobuf", "spdlog"},
    ),
}
OURS = ("common", "proto", "agent", "server", "client", "tests", "bench", "statcollect", "statagent")
THIRD_PARTY = [
    (r"(google/protobuf/|statcollect/v1/\w+\.pb\.h)", "protobuf"),
    (r"(grpc|grpcpp|grpc\+\+)/|statcollect/v1/\w+\.grpc\.pb\.h", "grpc"),
    (r"absl/", "abseil"),
    (r"rocksdb/", "rocksdb"),
    (r"boost/", "boost"),
    (r"curl/", "curl"),
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
    """Which part a file belongs to for those that include it: a header with an entry of its own is a part, a source counts
    to its folder."""
    part = part_of(path)
    return part if "." not in part or part.endswith(".h") else part_of(part.rsplit("/", 1)[0])


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


def test_no_part_may_use_another_that_may_use_it() -> None:
    graph = {part: {p for p in parts if p != part} for part, (parts, _) in TABLE.items()}
    done: set[str] = set()

    def visit(part: str, above: list[str]) -> None:
        assert part not in above, " -> ".join([*above[above.index(part) :], part])
        if part not in done:
            for below in graph.get(part, set()):
                visit(below, [*above, part])
            done.add(part)

    for part in graph:
        visit(part, [])


@pytest.mark.parametrize("part", TABLE)
def test_every_part_of_the_table_exists(part: str) -> None:
    assert (ROOT / part).exists()


@pytest.mark.parametrize(
    ("path", "include"),
    [
        ("common/names.cc", "<grpcpp/grpcpp.h>"),
        ("server/query/diff/diff.cc", '"statcollect/v1/query.pb.h"'),
        ("server/ingest/session.cc", '"server/query/diff/diff.h"'),
        ("server/store/key.cc", "<rocksdb/db.h>"),
        ("agent/staging/ring.h", '"agent/stats/stats.h"'),
        ("agent/agent.cc", "<grpcpp/channel.h>"),
        ("server/query/diff/diff.h", '"server/query/query.h"'),
        ("server/query/compare/origin.h", '"server/query/diff/diff.h"'),
        ("client/render/table.h", '"client/commands/commands.h"'),
        ("client/main.cc", '"server/query/query.h"'),
        ("client/main.cc", '"agent/stats/stats.h"'),
        ("client/exports/csv.cc", "<arrow/api.h>"),
        ("server/daemon/main.cc", '"tests/support/fake_store.h"'),
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
