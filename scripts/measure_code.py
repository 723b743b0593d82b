#!/usr/bin/env python3
"""Measures the house beside its goals: lines, rooms, headers, comments, words.

scripts/measure_code.py           # prints the table
scripts/measure_code.py --write   # also writes it into CONTRIBUTING.md

Lines are those of C++ sources, as wc counts them. An arrow is a pair of rooms of server/query of which one includes the
other (the folder itself is a room). Words are those of wc over the pages that git knows, without CHANGELOG and tests/."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

CPP = {".h", ".cc", ".cu", ".cuh", ".inc"}
COLUMNS = 100
QUERY_REST = ("answers", "captures", "logical", "noise", "pairs", "ranks", "records", "tokens", "zoom")
# What house-2 allows each room of the server.
ROOMS = {
    "query: compare, diff": (5_000, ["server/query/compare", "server/query/diff"]),
    "query: verdict, cause, settings": (4_000, [f"server/query/{room}" for room in ("verdict", "cause", "settings")]),
    "query: the rest": (7_300, ["server/query/*", *(f"server/query/{room}" for room in QUERY_REST)]),
    "store": (9_500, ["server/store"]),
    "api": (3_600, ["server/api"]),
    "all other rooms": (
        12_000,
        [f"server/{room}" for room in ("access", "alarms", "control", "daemon", "http", "ingest", "page", "transfer")],
    ),
}
# Sources that implement a header of another name, by the beginning of their paths.
OTHER_HEADERS = {
    "agent/c_api.cc": "the functions of the public C header",
    "agent/stats/cpu/kernels_": "one source, compiled for an instruction set each",
    "agent/stats/cuda/": "parts of the engine's class, and what stands in where CUDA is not compiled in",
    "client/command_line/": "a group of commands each, declared in one list",
    "client/commands/": "a command each, declared in one list",
    "client/exports/": "a format each, declared in one list",
    "client/formats/": "a format each, declared in one list",
    "client/imports/run_copy_check.cc": "a long class in two parts: RunCopier copies, and checks the copy",
    "client/rpc/collector_transfer.cc": "a long class in two parts: a client's calls, and those that copy runs",
    "proto/convert/": "a message each, declared in one list",
    "server/api/convert/": "an answer each, declared in one list",
    "server/ingest/registry_": "a long class in three parts: its sessions, copies of runs, what runs are told",
    "server/query/cause/": "a finder of causes each, declared in one list",
    "server/query/diff/": "a part of the report each, declared in one list",
    "server/query/verdict/": "parts of the judge's explanation",
}
COMMENTED = ("server/query/verdict", "server/query/compare", "server/query/logical", "server/store")
BEGIN, END = "<!-- goals: written by scripts/measure_code.py -->", "<!-- /goals -->"


@dataclass(frozen=True)
class Measure:
    what: str
    now: float
    goal: float
    at_least: bool = False
    unit: str = ""

    def met(self) -> bool:
        return self.now >= self.goal if self.at_least else self.now <= self.goal

    def cells(self) -> tuple[str, str, str, str]:
        goal = f"{'>=' if self.at_least else '<='} {self.goal:,.0f}{self.unit}" if self.goal else "0"
        now = f"{self.now:,.1f}" if self.unit else f"{self.now:,.0f}"
        return self.what, f"{now}{self.unit}", goal, "yes" if self.met() else "**no**"


class Tree:
    """The files that git knows below a folder, or would add."""

    def __init__(self, root: Path) -> None:
        command = ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard"]
        listed = subprocess.run(command, capture_output=True, text=True, check=True)
        self.root = root
        self.names = sorted(name for name in set(listed.stdout.splitlines()) if (root / name).is_file())

    def lines(self, name: str) -> list[str]:
        return (self.root / name).read_text(encoding="utf-8").splitlines()

    def cpp(self, folders: Iterable[str] = ("",)) -> list[str]:
        """C++ sources below the folders, without tests and benchmarks; of `folder/*`, those in it and not below."""
        found = []
        for name in self.names:
            if Path(name).suffix in CPP and not name.startswith(("tests/", "bench/")):
                parent = Path(name).parent.as_posix()
                if any(parent == f[:-2] if f.endswith("/*") else f"{parent}/".startswith(f and f + "/") for f in folders):
                    found.append(name)
        return found

    def count(self, folders: Iterable[str]) -> int:
        return sum(len(self.lines(name)) for name in self.cpp(folders))


def of_other_headers(tree: Tree) -> list[str]:
    """Sources, programs aside, that include no header of their own name."""
    found = []
    for name in tree.cpp():
        own_header_or_main = rf'#include [<"]([^">]*/)?{Path(name).stem}\.h[>"]|^int main\('
        if name.endswith(".cc") and not re.search(own_header_or_main, "\n".join(tree.lines(name)), re.MULTILINE):
            found.append(name)
    return found


def without_header(tree: Tree) -> list[str]:
    """Those of them that OTHER_HEADERS does not list."""
    return [name for name in of_other_headers(tree) if not name.startswith(tuple(OTHER_HEADERS))]


def arrows(tree: Tree) -> int:
    found = set()
    for name in tree.cpp(["server/query"]):
        room = Path(name).parent.as_posix()
        for included in re.findall(r'#include "(server/query/[^"]+)"', "\n".join(tree.lines(name))):
            found.add((room, Path(included).parent.as_posix()))
    return sum(room != other for room, other in found)


def comments(tree: Tree, folder: str) -> float:
    """The share, in percent, of lines of the headers that hold a comment and nothing else."""
    lines = [line.strip() for name in tree.cpp([folder]) if name.endswith(".h") for line in tree.lines(name)]
    return 100 * sum(line.startswith("//") for line in lines) / len(lines) if lines else 0


def words(tree: Tree) -> int:
    pages = [name for name in tree.names if name.endswith(".md") and "CHANGELOG" not in name and "tests/" not in name]
    return sum(len((tree.root / name).read_text(encoding="utf-8").split()) for name in pages)


def measure(root: Path) -> list[Measure]:
    tree = Tree(root)
    long = sum(len(line) > COLUMNS for name in tree.cpp() for line in tree.lines(name))
    return [
        Measure("lines of server", tree.count(["server"]), 46_000),
        Measure("lines of server/query", tree.count(["server/query"]), 17_000),
        *(Measure(f"lines of {room}", tree.count(folders), goal) for room, (goal, folders) in ROOMS.items()),
        Measure("`.cc` files without their own header", len(without_header(tree)), 0),
        Measure("arrows among query's rooms", arrows(tree), 60),
        *(Measure(f"comments in headers of {folder}", comments(tree, folder), 15, True, " %") for folder in COMMENTED),
        Measure(f"lines over {COLUMNS} columns", long, 0),
        Measure("words of documentation", words(tree), 50_000),
    ]


def markdown(measures: list[Measure]) -> str:
    rows = [("measure", "now", "goal", "met"), ("---", "---:", "---:", "---"), *(one.cells() for one in measures)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def write(page: Path, table: str) -> None:
    before, begins, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, ends, after = rest.partition(END)
    if not begins or not ends:
        sys.exit(f"write the goals: {page} has no lines '{BEGIN}' and '{END}'; add both where the table belongs")
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent, help="the repository")
    parser.add_argument("--write", action="store_true", help="write the table into CONTRIBUTING.md, too")
    arguments = parser.parse_args()
    table = markdown(measure(arguments.root))
    print(table)
    if arguments.write:
        write(arguments.root / "CONTRIBUTING.md", table)
        # The table has words of its own.
        write(arguments.root / "CONTRIBUTING.md", markdown(measure(arguments.root)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
