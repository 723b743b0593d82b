"""A file is an idea with its header, of less than 800 lines; a function has less than 60 (80 in TypeScript, where markup is most of it).
Outside tests and generated code; what is otherwise is listed here with its reason."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import measure_code
import pytest

ROOT = Path(__file__).resolve().parent.parent
FILE_MAX, FUNCTION_MAX, TYPESCRIPT_FUNCTION_MAX = 800, 60, 80
CPP, TYPESCRIPT = {".h", ".cc", ".cu", ".cuh"}, {".ts", ".tsx"}
LINES = {*CPP, *TYPESCRIPT, ".py", ".sh", ".proto"}
GENERATED = {"client/python/statcollect/answers.py", "web/src/api/schema.ts"}
LONG_FILES = {"proto/statcollect/v1/query.proto": "one file a service: clients import it by that name"}
REASONS = {
    ("agent/stats/cuda/kernel.cuh", "ReduceUnits"): "one loop over values in registers, which functions would have to hand on",
}


def product_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    kept = [name for name in listed if Path(name).suffix in LINES and not name.startswith(("tests/", "web/tests/"))]
    return [name for name in kept if name not in GENERATED and (ROOT / name).exists()]


def cpp_functions(text: str) -> Iterator[tuple[str, int]]:
    """Name and lines of the functions in a file that clang-format has laid out: from the declaration to the brace at its depth."""
    lines = text.splitlines()
    for opens, line in enumerate(lines):
        if not line.endswith("{"):
            continue
        first = opens
        while first and re.search(r"[\w,&*>():\]=]$", lines[first - 1]) and not re.match(r"\s*(#|//|\w+:$)", lines[first - 1]):
            first -= 1
        head = " ".join(part.strip() for part in lines[first : opens + 1])
        depth = re.match(r"\s*", lines[first])[0]  # type: ignore[index]
        named = re.search(r"([~\w]+(?:::[~\w]+)*|operator\W+)\(", head)
        if (
            len(depth) > 2
            or not named
            or re.match(r"(namespace|class|struct|enum|union|extern|if|for|while|switch|STATCOLLECT_\w+)\b", head)
        ):
            continue
        closes = next((at for at in range(opens, len(lines)) if re.match(rf"{depth}}}[;,) ]*(//.*)?$", lines[at])), opens)
        yield named[1], closes - first + 1


def python_functions(text: str) -> Iterator[tuple[str, int]]:
    """Name and lines of code of each function. Parameters and documentation do not count: users read those, and they may be long."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            yield node.name, (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


# A declaration, a constant that is a function, or a method, up to the brace that opens its body.
TYPESCRIPT_FUNCTION = re.compile(
    r"(?P<depth> {0,2})(?:(?:export |default |async )*function\*? (?P<declared>\w+)\b.*"
    r"|(?:export )?const (?P<constant>\w+)\b.*=>"
    r"|(?:(?:private|public|static|async|get|set) )*(?P<method>(?!(?:if|for|while|switch|catch|return)\b)\w+)\(.*\)(?:: .*)?) \{$"
)


def typescript_functions(text: str) -> Iterator[tuple[str, int]]:
    """Name and lines of functions and methods that are not nested deeper than in one other: to the brace at their depth."""
    lines = text.splitlines()
    for opens, line in enumerate(lines):
        if not (found := TYPESCRIPT_FUNCTION.match(line)):
            continue
        end = re.compile(rf"{found['depth']}}}[;,)]*$")
        closes = next((at for at in range(opens + 1, len(lines)) if end.match(lines[at])), opens)
        yield found["declared"] or found["constant"] or found["method"], closes - opens + 1


def function_max(name: str) -> int:
    return TYPESCRIPT_FUNCTION_MAX if Path(name).suffix in TYPESCRIPT else FUNCTION_MAX


def functions(name: str, text: str) -> Iterator[tuple[str, int]]:
    if Path(name).suffix in CPP:
        yield from cpp_functions(text)
    elif Path(name).suffix in TYPESCRIPT:
        yield from typescript_functions(text)
    elif name.endswith(".py"):
        yield from python_functions(text)


def test_no_file_is_too_long() -> None:
    files = product_files()
    assert len(files) > 500, "found too few files to mean anything"
    lengths = {name: len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in files}
    assert {name: lines for name, lines in lengths.items() if lines > FILE_MAX and name not in LONG_FILES} == {}


def test_a_source_has_a_header_of_its_own_or_a_reason() -> None:
    tree = measure_code.Tree(ROOT)
    without, others = measure_code.without_header(tree), measure_code.OTHER_HEADERS
    assert without == [], "merge it into the source that it was cut from, or give it its header"
    used = {path for path in others for name in measure_code.of_other_headers(tree) if name.startswith(path)}
    assert used == set(others), "a reason for nothing"


def test_no_function_is_too_long_without_a_reason() -> None:
    seen, found = 0, {}
    for name in product_files():
        for function, lines in functions(name, (ROOT / name).read_text(encoding="utf-8")):
            seen += 1
            if lines > function_max(name):
                found[name, function.split("::")[-1]] = lines
    assert seen > 5000, "found too few functions to mean anything"
    assert {place: lines for place, lines in found.items() if place not in REASONS} == {}
    assert set(REASONS) <= set(found), "a reason for a function that is short by now"


LONG = "  Do();\n" * FUNCTION_MAX
LONG_TYPESCRIPT = "  run();\n" * TYPESCRIPT_FUNCTION_MAX


@pytest.mark.parametrize(
    ("name", "text", "function"),
    [
        ("a.cc", f"void F(int a,\n       int b) {{\n{LONG}}}\n", "F"),
        ("a.cc", f"namespace a {{\nStatus C::Run(std::span<int> a) const {{\n{LONG}}}\n}}  // namespace a\n", "C::Run"),
        ("a.h", "class C {\n public:\n  int f() {\n" + LONG.replace("  Do", "    Do") + "  }\n};\n", "f"),
        ("a.cu", f"template <typename T>\n__global__ void\n    Kernel(T a) {{\n{LONG}}}\n", "Kernel"),
        ("a.cc", f"C::C(int a)\n    : a_(a),\n      b_(2) {{\n{LONG}}}\n", "C::C"),
        ("a.py", "class C:\n    def f(self):\n" + "        do()\n" * (FUNCTION_MAX + 1), "f"),
        ("a.ts", f"export async function load(a: string): Promise<A> {{\n{LONG_TYPESCRIPT}}}\n", "load"),
        ("a.tsx", f"export function View({{ a, b }}: Props) {{\n{LONG_TYPESCRIPT}}}\n", "View"),
        ("a.ts", f"export const load = (a: string) => {{\n{LONG_TYPESCRIPT}}};\n", "load"),
        ("a.ts", "export class C {\n  look(a: A): void {\n" + LONG_TYPESCRIPT.replace("  run", "    run") + "  }\n}\n", "look"),
    ],
)
def test_a_long_function_is_seen(name: str, text: str, function: str) -> None:
    assert [(found, lines > function_max(name)) for found, lines in functions(name, text)] == [(function, True)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.cc", "void F() {\n" + "  Do();\n" * (FUNCTION_MAX - 2) + "}\n\n" + "int x;\n" * FUNCTION_MAX),
        ("a.cc", f"struct S {{\n{LONG}}};\n"),
        ("a.py", 'def f():\n    """\n' + "    Text.\n" * FUNCTION_MAX + '    """\n    return 1\n'),
        (
            "a.ts",
            "export function f() {\n"
            + "  run();\n" * (TYPESCRIPT_FUNCTION_MAX - 2)
            + "}\n\nconst a = {\n"
            + LONG_TYPESCRIPT
            + "};\n",
        ),
    ],
)
def test_what_is_not_a_long_function_passes(name: str, text: str) -> None:
    assert all(lines <= function_max(name) for _, lines in functions(name, text))
