"""The C interface as a program that is already compiled sees it: functions, and where each field of each structure lies.

python tests/agent/c_abi.py            prints what this tree's headers say
python tests/agent/c_abi.py --update   writes it to c_abi.txt, and says whether compiled programs go on working
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HEADER = ROOT / "agent/include/statagent/statagent.h"
TYPES = ROOT / "common/types.h"
GOLDEN = HERE / "c_abi.txt"
# Enumerations whose numbers cross the interface: the header names them.
ENUMS = ("DType", "Kind", "Mode", "MemoryPhase", "MemoryQuantity", "DensityType")


def source(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL))


def one_line(text: str) -> str:
    return re.sub(r" ?([(),]) ?", lambda found: {",": ", "}.get(found[1], found[1]), re.sub(r"\s+", " ", text)).strip()


def functions(text: str) -> dict[str, str]:
    """Name and prototype of each exported function."""
    found = {}
    for prototype in re.findall(r"^STATAGENT_C_API (.*?);", text, re.MULTILINE | re.DOTALL):
        name = re.search(r"(statagent_\w+)\s*\(", prototype)
        assert name, prototype
        found[name[1]] = one_line(prototype)
    return found


def structures(text: str) -> dict[str, list[tuple[str, str]]]:
    """Fields of each structure, type and name, in their order."""
    found = {}
    for body, name in re.findall(r"typedef struct \{(.*?)\} (\w+);", text, re.DOTALL):
        fields: list[tuple[str, str]] = []
        for declaration in filter(None, (part.strip() for part in body.split(";"))):
            first, *others = (one_line(each) for each in declaration.split(","))
            of_type, field = first.rsplit(" ", 1)
            fields += [(of_type, field), *((of_type, other) for other in others)]
        found[name] = fields
    return found


def layout(structs: dict[str, list[tuple[str, str]]]) -> dict[str, dict[str, tuple[int, int]]]:
    """Offset and size of each field, in bytes, as a C compiler sees them; "" has the structure's size."""
    lines = ["#include <statagent/statagent.h>", "#include <stdio.h>", "int main(void) {"]
    for name, fields in structs.items():
        lines.append(f'  printf("{name} . 0 %zu\\n", sizeof({name}));')
        for _, field in fields:
            lines.append(f'  printf("{name} {field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name}*)0)->{field}));')
    lines += ["  return 0;", "}"]
    with tempfile.TemporaryDirectory(prefix="statcollect-abi-") as work:
        program = Path(work) / "layout"
        program.with_suffix(".c").write_text("\n".join(lines))
        compiler = ["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{ROOT / 'agent/include'}"]
        subprocess.run([*compiler, "-o", str(program), f"{program}.c"], check=True)
        printed = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for line in printed.splitlines():
        name, field, offset, size = line.split()
        found.setdefault(name, {})[field.strip(".")] = (int(offset), int(size))
    return found


def enumerations(text: str) -> dict[str, list[str]]:
    return {
        name: [one_line(value) for value in body.split(",") if value.strip()]
        for name, body in re.findall(r"enum class (\w+) : [\w:]+ \{(.*?)\};", text, re.DOTALL)
        if name in ENUMS
    }


def describe(header: str, types: str) -> str:
    lines = [
        "# The C interface of libstatagent.so on 64-bit Linux. Made by tests/agent/c_abi.py --update; docs/upgrading.md says what may change."
    ]
    lines += [f"function {prototype}" for _, prototype in sorted(functions(header).items())]
    structs = structures(header)
    places = layout(structs)
    for name, fields in structs.items():
        lines.append(f"struct {name}: {places[name][''][1]} bytes")
        lines += [f"  {places[name][field][0]:>4} +{places[name][field][1]} {of_type} {field}" for of_type, field in fields]
    for name, values in enumerations(types).items():
        lines.append(f"enum {name}")
        lines += [f"  {value}" for value in values]
    return "\n".join(lines) + "\n"


def parts(description: str) -> dict[str, list[str]]:
    """Lines below each heading: of functions none, of structures and enumerations their members."""
    found: dict[str, list[str]] = {}
    heading = ""
    for line in description.splitlines():
        if line.startswith("  "):
            found[heading].append(line)
        elif not line.startswith("#"):
            heading = line.partition(":")[0] if line.startswith("struct") else line
            found[heading] = []
    return found


def breaks(before: str, after: str) -> list[str]:
    """What a program compiled with `before` would stumble over in `after`: all but new functions, and members added at the end."""
    old, new = parts(before), parts(after)
    found = []
    for heading, members in old.items():
        if heading not in new:
            found.append(f"gone or changed: {heading}")
        elif new[heading][: len(members)] != members:
            first = next((at for at, member in enumerate(members) if new[heading][at : at + 1] != [member]), 0)
            found.append(f"{heading}: '{members[first].strip()}' was moved, changed or removed")
    return found


def main() -> int:
    now = describe(source(HEADER), source(TYPES))
    if sys.argv[1:] != ["--update"]:
        print(now, end="")
        return 2 if sys.argv[1:] else 0
    before = GOLDEN.read_text(encoding="utf-8") if GOLDEN.exists() else ""
    broken = breaks(before, now)
    GOLDEN.write_text(now, encoding="utf-8")
    print(
        "\n".join(["Programs that are compiled already would break; docs/upgrading.md says what that means:", *broken])
        if broken
        else "Only additions."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
