"""The `#include`s and imports against the table of docs/ARCHITECTURE.md: what each part may use."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}

# part -> (parts of this tree it may include, third-party libraries it may include). A part may always include itself.
# Longest prefix wins.
QUERY = {"common", "server/store", "server/query"}
QUERY_ROOMS = QUERY | {
    f"server/query/{room}"
    for room in (
        "answers",
        "captures",
        "cause",
        "compare",
        "diff",
        "logical",
        "noise",
        "pairs",
        "ranks",
        "records",
        "settings",
        "tokens",
        "verdict",
        "zoom",
    )
}
TABLE: dict[str, tuple[set[str], set[str]]] = {
    "common": (set(), set()),
    "tls": ({"common"}, {"openssl"}),
    "proto": ({"common"}, {"protobuf", "json"}),
    "proto/text": ({"common", "proto"}, {"protobuf", "spdlog"}),
    "agent/include": ({"common"}, set()),
    "agent/stats": ({"common"}, set()),
    "agent/stats/cpu": ({"common", "agent/stats"}, set()),
    "agent/stats/cuda": ({"common", "agent/stats"}, {"cuda"}),
    "agent/stats/cuda/plan.cc": ({"common", "agent/stats", "agent/stats/cuda", "agent/stats/cpu"}, {"cuda"}),
    "agent/host": ({"agent/include"}, {"python"}),
    "agent/staging": ({"common"}, set()),
    "agent/export": ({"common", "agent/staging"}, set()),
    "agent/export/grpc_exporter.cc": ({"common", "tls", "agent/staging", "agent/export"}, {"grpc"}),
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
    "server/store/clickhouse": ({"common", "server/store", "server/store/codec"}, {"curl", "xxhash"}),
    "server/access": ({"common"}, {"json", "openssl"}),
    "server/http": ({"common", "tls"}, {"boost", "openssl", "spdlog", "json", "zlib"}),
    "server/page": ({"common", "server/http"}, {"xxhash"}),
    "server/control": ({"common"}, {"curl", "json", "openssl"}),
    "server/transfer": ({"common", "server/store", "server/store/codec"}, {"xxhash"}),
    "server/ingest": (
        {"common", "proto", "server/access", "server/store", "server/transfer", "server/control"},
        {"grpc", "protobuf", "spdlog"},
    ),
    "server/query": ({"common", "server/store"}, set()),
    "server/query/settings": (QUERY, set()),
    "server/query/captures": (QUERY, set()),
    "server/query/compare": (QUERY | {"server/query/settings"}, set()),
    "server/query/pairs": (QUERY | {"server/query/compare", "server/query/settings"}, set()),
    "server/query/tokens": (QUERY | {"server/query/compare", "server/query/pairs"}, set()),
    "server/query/noise": (QUERY | {"server/query/compare", "server/query/pairs"}, set()),
    "server/query/logical": (QUERY | {"server/query/compare"}, {"xxhash"}),  # digests of merged steps
    "server/query/ranks": (
        QUERY | {"server/query/cause", "server/query/compare", "server/query/logical", "server/query/settings"},
        set(),
    ),
    "server/query/cause": (QUERY | {"server/query/compare", "server/query/pairs", "server/query/settings"}, set()),
    "server/query/verdict": (
        QUERY | {"server/query/compare", "server/query/pairs", "server/query/settings", "server/query/cause"},
        set(),
    ),
    "server/query/verdict/noise_threshold.cc": (QUERY | {"server/query/verdict"}, {"boost"}),
    "server/query/diff": (
        QUERY | {"server/query/compare", "server/query/pairs", "server/query/settings", "server/query/verdict"},
        set(),
    ),
    # Queries that fill their messages themselves (docs/decisions/0059-answers-as-messages.md).
    "server/query/answers": (
        QUERY
        | {"proto", "proto/text"}
        | {
            f"server/query/{room}"
            for room in ("captures", "compare", "diff", "logical", "noise", "pairs", "settings", "tokens", "zoom")
        },
        {"protobuf"},
    ),
    "server/query/zoom": (QUERY | {"server/query/compare"}, set()),
    "server/query/records": (QUERY | {"server/query/logical"}, set()),
    "server/query/query.h": (QUERY_ROOMS, set()),
    "server/query/query.cc": (QUERY_ROOMS | {"server/query/query.h"}, set()),
    "server/alarms": (
        {"common", "server/store", "server/query", "server/query/compare", "server/control"},
        {"spdlog"},
    ),
    "server/api": (
        {"common", "proto", "proto/text", "server/access", "server/control", "server/transfer", "server/query/query.h"}
        | QUERY_ROOMS,
        {"grpc", "protobuf", "spdlog", "json"},
    ),
    "server/api/http": (
        {"common", "proto", "server/access", "server/api", "server/control", "server/http"},
        {"grpc", "protobuf", "spdlog", "json"},
    ),
    "server/daemon": (
        {
            "common",
            "tls",
            "proto",
            "server/store",
            "server/store/rocksdb",
            "server/store/clickhouse",
            "server/http",
            "server/page",
            "server/control",
            "server/ingest",
            "server/query",
            "server/query/query.h",
            "server/access",
            "server/alarms",
            "server/api",
            "server/api/http",
        },
        {"grpc", "boost", "spdlog", "cli11", "protobuf"},
    ),
    "client/formats": ({"common"}, {"rapidjson"}),
    # The one place of the client that has values and needs their statistics.
    "client/formats/array_stats.cc": ({"common", "client/formats", "agent/stats", "agent/stats/cpu"}, set()),
    "client/exports": ({"common", "proto", "client/formats"}, {"protobuf", "spdlog"}),
    "client/rpc": ({"common", "tls", "proto"}, {"grpc", "protobuf", "spdlog"}),
    "client/imports": ({"common", "proto", "client/formats", "client/rpc"}, {"protobuf", "spdlog"}),
    "client/render": ({"common", "proto", "proto/text"}, {"protobuf", "json", "spdlog"}),
    "client/values": ({"common"}, {"protobuf"}),
    "client/commands": (
        {
            "common",
            "tls",
            "proto",
            "proto/text",
            "client/rpc",
            "client/render",
            "client/values",
            "client/formats",
            "client/imports",
            "client/exports",
        },
        {"grpc", "protobuf", "json", "spdlog"},
    ),
    "client/command_line": ({"common", "tls", "client/commands", "client/rpc"}, {"cli11", "spdlog"}),
    "client": ({"client/command_line", "client/commands"}, set()),
}
OURS = ("common", "tls", "proto", "agent", "server", "client", "tests", "bench", "statcollect", "statagent")
THIRD_PARTY = [
    (r"(google/protobuf/|statcollect/v1/\w+\.pb\.h)", "protobuf"),
    (r"(grpc|grpcpp|grpc\+\+)/|statcollect/v1/\w+\.grpc\.pb\.h", "grpc"),
    (r"absl/", "abseil"),
    (r"rocksdb/", "rocksdb"),
    (r"boost/", "boost"),
    (r"curl/", "curl"),
    (r"openssl/", "openssl"),
    (r"(spdlog|fmt)/", "spdlog"),
    (r"nlohmann/", "json"),
    (r"rapidjson/", "rapidjson"),
    (r"CLI/", "cli11"),
    (r"(cuda|cuda_\w+\.h|cub/)", "cuda"),
    (r"xxhash\.h", "xxhash"),
    (r"zlib\.h", "zlib"),
    (r"hwy/", "highway"),
    (r"(Python|structmember)\.h", "python"),
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


def included_files(text: str) -> list[str]:
    """The project's own headers that a file includes, as paths from the root."""
    names = re.findall(r'^\s*#\s*include\s*"([^"]+)"', text, re.MULTILINE)
    return [f"agent/include/{name}" if name.startswith("statagent/") else name for name in names]


def circle(graph: dict[str, list[str]]) -> list[str]:
    """Names of which each leads to the next and the last to the first; [] if there are none."""
    done: set[str] = set()

    def visit(name: str, above: list[str]) -> list[str]:
        if name in above:
            return above[above.index(name) :]
        if name not in done:
            for target in graph.get(name, []):
                if found := visit(target, [*above, name]):
                    return found
            done.add(name)
        return []

    return next((found for name in graph if (found := visit(name, []))), [])


def test_no_header_includes_itself_through_others() -> None:
    graph = {f.relative_to(ROOT).as_posix(): included_files(f.read_text(encoding="utf-8")) for f in sources()}
    assert sum(target in graph for targets in graph.values() for target in targets) > 1000, "found too few includes"
    assert circle(graph) == []


def ways_to(target: str, rooms: tuple[str, ...], but: str = "-") -> list[list[str]]:
    """From each file of these rooms that includes, itself or through others, what matches the pattern: the way there."""
    texts = {f.relative_to(ROOT).as_posix(): f.read_text(encoding="utf-8") for f in sources()}

    def way(path: str, seen: set[str]) -> list[str]:
        seen.add(path)
        if re.search(rf'#\s*include\s*[<"]{target}', texts[path]):
            return [path]
        for name in included_files(texts[path]):
            if name in texts and name not in seen and (found := way(name, seen)):
                return [path, *found]
        return []

    of_rooms = [path for path in texts if path.startswith(rooms) and not path.startswith(but)]
    assert len(of_rooms) > 100, "found too few files to mean anything"
    return [found for path in of_rooms if (found := way(path, set()))]


def test_judgements_and_alarms_never_see_messages() -> None:
    """Answers are filled in one room; what it shares with the rooms that compare and judge, and with alarms, has none."""
    rooms = ("server/alarms/", "server/query/", "server/store/")
    assert ways_to("(google/protobuf/|statcollect/v1/)", rooms, but="server/query/answers/") == []


def test_queries_and_alarms_never_see_the_whole_store() -> None:
    """They read, and write documents and events: none can remove a run, or claim a rank of another collector."""
    assert ways_to("server/store/store.h", ("server/alarms/", "server/query/")) == []


def test_a_circle_is_seen() -> None:
    assert circle({"a": ["b", "d"], "b": ["c"], "c": ["b"], "d": []}) == ["b", "c"]
    assert circle({"a": ["b", "c"], "b": ["c"], "c": []}) == []


def test_no_part_may_use_another_that_may_use_it() -> None:
    assert circle({part: sorted(parts - {part}) for part, (parts, _) in TABLE.items()}) == []


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
                if framework in ("transformers", "accelerate", "lightning", "jax") and not getattr(node, "level", None):
                    assert (file.parent.name, file.stem) == ("integrations", framework), f"{file}: imports {name}"


def test_the_python_package_installs_all_of_its_folders() -> None:
    """pyproject.toml lists packages by hand: one that is missing there is missing after `pip install`."""
    text = (ROOT / "agent/python/pyproject.toml").read_text(encoding="utf-8")
    listed = re.findall(r'"(statagent[\w.]*)"', re.search(r"^packages = \[(.*?)\]", text, re.M | re.S)[1])  # type: ignore[index]
    folders = {file.parent.relative_to(ROOT / "agent/python") for file in (ROOT / "agent/python/statagent").rglob("__init__.py")}
    assert sorted(listed) == sorted(".".join(folder.parts) for folder in folders)


# --- the Python package: no import circles, no private names of other modules ----------------------------------------------

PACKAGE = ROOT / "agent/python"
CLIENT = ROOT / "client/python"
# What a module may import of the package, by folder; a module may always import its own folder. The longest prefix wins.
PYTHON_BASE = {"statagent.errors", "statagent.flatten"}
PYTHON_TABLE: dict[str, set[str]] = {
    "statagent.errors": set(),
    "statagent.flatten": set(),
    "statagent._layouts.placement": set(),  # data alone, below the rest of its folder
    "statagent._native": {"statagent.errors", "statagent._layouts.placement"},
    "statagent._torch": {"statagent.errors"},
    "statagent._layouts": {"statagent.errors", "statagent._torch", "statagent._layouts.placement"},
    "statagent._runtime": PYTHON_BASE
    | {"statagent._native", "statagent._torch", "statagent._layouts", "statagent._layouts.placement"},
    "statagent._settings": {"statagent.errors", "statagent._torch", "statagent._runtime"},
    "statagent._compile": {"statagent._torch", "statagent._runtime"},
    "statagent._tokens": {"statagent._native", "statagent._torch", "statagent._runtime", "statagent._compile"},
    "statagent._watch": PYTHON_BASE
    | {
        "statagent._tokens",
        "statagent._native",
        "statagent._torch",
        "statagent._runtime",
        "statagent._settings",
        "statagent._compile",
        "statagent._layouts",
        "statagent._layouts.placement",
    },
    "statagent.compute": {"statagent.errors", "statagent._native", "statagent._layouts.placement"},
}
# Attributes of torch's modules that have the same names as private attributes of this package.
TORCH_ATTRIBUTES = {"_modules", "_parameters", "_version"}


def python_modules(folder: Path) -> dict[str, ast.Module]:
    """Name -> syntax tree of each module below a folder of sys.path."""
    found = {}
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(folder).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(file.read_text(encoding="utf-8"))
    return found


def is_package(name: str, modules: dict[str, ast.Module]) -> bool:
    return any(other.startswith(name + ".") for other in modules)


def imports_of(name: str, modules: dict[str, ast.Module]) -> list[tuple[str, str, int]]:
    """(module, name taken from it or "", line) of every import of one of the modules, wherever in the file it stands."""
    found = []
    for node in ast.walk(modules[name]):
        if isinstance(node, ast.Import):
            found += [(alias.name, "", node.lineno) for alias in node.names if alias.name in modules]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = name.split(".") if is_package(name, modules) else name.split(".")[:-1]
                parts = parts[: len(parts) - node.level + 1]
                base = ".".join([*parts, node.module] if node.module else parts)
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                if whole in modules:
                    found.append((whole, "", node.lineno))
                elif base in modules:
                    found.append((base, alias.name, node.lineno))
    return found


def import_circle(modules: dict[str, ast.Module]) -> list[str]:
    """Modules of which each imports the next and the last the first; [] if there are none."""
    return circle({name: sorted({target for target, _, _ in imports_of(name, modules)} - {name}) for name in modules})


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def private_names(tree: ast.Module) -> set[str]:
    """Private names that a module makes itself: functions, classes, variables, attributes of self, fields."""
    names = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            names.add(node.attr)
    return {name for name in names if is_private(name)}


def private_accesses(modules: dict[str, ast.Module]) -> list[str]:
    """Uses of another module's private names: imports, and attributes that only other modules define."""
    own = {name: private_names(tree) for name, tree in modules.items()}
    of_others = set().union(*own.values()) - TORCH_ATTRIBUTES
    found = []
    for name, tree in modules.items():
        for target, taken, line in imports_of(name, modules):
            # A package's __init__ may show names of its own folder under the names that users know.
            if is_private(taken) and not (is_package(name, modules) and target.startswith(name + ".")):
                found.append(f"{name}:{line} imports {taken} of {target}")
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or node.attr not in of_others or node.attr in own[name]:
                continue
            if not is_own(node.value):
                found.append(f"{name}:{node.lineno} uses {ast.unparse(node)}")
    return found


def test_the_python_package_has_no_import_circles() -> None:
    modules = python_modules(PACKAGE)
    assert len(modules) > 40, "found too few modules to mean anything"
    assert import_circle(modules) == []


def test_the_client_package_needs_the_standard_library_only() -> None:
    """It is installed without dependencies; what turns answers into tables is imported where it is asked for."""
    modules = python_modules(CLIENT)
    assert len(modules) > 5 and import_circle(modules) == []
    found = []
    for name, tree in modules.items():
        for node in ast.walk(tree):
            if not isinstance(node, (ast.Import, ast.ImportFrom)) or getattr(node, "level", None):
                continue
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            for imported in (each.split(".")[0] for each in names):
                if imported in sys.stdlib_module_names or imported == "statcollect":
                    continue
                if imported == "statagent" and name.startswith(("statcollect.demo", "statcollect.pytest_plugin")):
                    continue
                if imported == "pytest" and name == "statcollect.pytest_plugin":  # which only pytest loads
                    continue
                if imported == "mcp" and name == "statcollect.bridges.mcp_server":  # which only `statctl mcp` loads
                    continue
                if imported in ("pandas", "polars", "pyarrow") and name in (
                    "statcollect.tables",
                    "statcollect.rows",
                ):  # the latter for types only
                    continue
                found.append(f"{name}:{node.lineno} imports {imported}")
    assert found == []


def test_the_benchmarks_have_no_import_circles() -> None:
    assert import_circle(python_modules(ROOT / "bench")) == []


def test_python_modules_take_no_private_names_of_each_other() -> None:
    modules = {**python_modules(PACKAGE), **python_modules(CLIENT), **python_modules(ROOT / "bench")}
    assert private_accesses(modules) == []


def test_every_import_of_the_python_package_follows_the_table() -> None:
    modules = python_modules(PACKAGE)
    found = []
    for name in modules:
        part = next((p for p in PYTHON_TABLE if name == p or name.startswith(p + ".")), None)
        if part is None:
            continue  # what users import stands above the rest
        for target, _, line in imports_of(name, modules):
            below = next((p for p in PYTHON_TABLE if target == p or target.startswith(p + ".")), target)
            if below != part and below not in PYTHON_TABLE[part]:
                found.append(f"{name}:{line} imports {target}: {part} may not use {below}")
    assert found == []


def parsed(**texts: str) -> dict[str, ast.Module]:
    return {name.replace("__", "."): ast.parse(text) for name, text in texts.items()}


@pytest.mark.parametrize(
    "modules",
    [
        parsed(p="", p__a="from . import b", p__b="from .a import x"),
        parsed(p="from .a import x", p__a="from . import b", p__b="def f():\n    from p import x"),
        parsed(p="", p__a="import p.b", p__b="from . import c", p__c="from .a import x"),
        parsed(p="", p__q="", p__q__a="from ..b import x", p__b="from .q import a"),
    ],
)
def test_an_import_circle_is_seen(modules: dict[str, ast.Module]) -> None:
    assert import_circle(modules)


def test_imports_in_one_direction_are_no_circle() -> None:
    assert not import_circle(parsed(p="from .a import x", p__a="from . import b\nfrom .b import y", p__b="import torch"))


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("from .a import _f", True),
        ("from . import a\na._f()", True),
        ("def g(x): return x._field", True),
        ("def g(x): return x.field._field", True),
        ("class B:\n    def g(self): return self._field", False),
        ("class B:\n    def __init__(self): self._field = 1\ndef g(x: B): return x._field", False),
        ("def g(tensor): return tensor._of_torch", False),
    ],
)
def test_a_private_name_of_another_module_is_seen(text: str, seen: bool) -> None:
    other = "class A:\n    def __init__(self): self._field = 1\ndef _f(): pass"
    assert bool(private_accesses(parsed(p="", p__a=other, p__b=text))) == seen
