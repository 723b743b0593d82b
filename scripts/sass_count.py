#!/usr/bin/env python3
"""Counts the machine instructions of the CUDA kernels, and prints what docs/engine.md says of them.

Compiles the kernels with nvcc, disassembles them with nvdisasm (both from pip: scripts/setup.sh --for cuda, and
`pip install nvidia-cuda-nvdisasm`, or the one that Triton brings), and counts the instructions of each loop. A loop over the rows of a piece is known by
what it does: only the second pass multiplies words by keys (IMAD.WIDE.U32). What is done once a piece is followed along the
usual path: of a whole, aligned piece without zeros, whose mean is not far from 0 and after which the sketch's slots are not
added up (which happens once in eight pieces). A branch is taken if what it leaves out calls a function (but for what stages
the next piece, and what finds a shard's run) or clears the slots; other forward branches are not.

Columns "shard": pieces of a shard whose blocks are blocks of the logical tensor, one run of it each. Columns "rows": whole, aligned
blocks of the rows of a matrix.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent
PIECE_BYTES = 8192
LANES = 32
ROWS_SOURCE = "kernels_matrix_rows.cu"
# dtype: component type in components.h, source file, bytes of a component
KERNELS = {
    "f32": ("F32", "kernels_float.cu", 4),
    "bf16": ("Bf16", "kernels_half.cu", 2),
    "f16": ("F16", "kernels_half.cu", 2),
    "f32 shard": ("F32", "kernels_float_shards.cu", 4),
    "bf16 shard": ("Bf16", "kernels_half_shards.cu", 2),
    "f32 rows": ("F32", ROWS_SOURCE, 4),
    "bf16 rows": ("Bf16", ROWS_SOURCE, 2),
}
ROW_BLOCK_BYTES = 2048
ROWS_AT_ONCE = 4  # of a loop over rows
RUN_OF_ONE_DIMENSION = 58  # instructions of RunOf::At without its division and its search, by hand

Instruction = tuple[int, str]  # address, text


def find_tool(name: str, given: str | None, optional: bool) -> str:
    if given:
        return given
    packages = ROOT / ".venv"
    found = sorted(packages.glob(f"lib/python3*/site-packages/nvidia/cu*/bin/{name}"))
    found = found or sorted(packages.glob(f"lib/python3*/site-packages/triton/backends/nvidia/bin/{name}"))
    if not found and optional:
        print(f"sass_count: not counted: {name} is not in .venv")
        sys.exit(0)
    if not found:
        sys.exit(
            f"sass_count: {name} was not found in .venv; expected it from pip (scripts/setup.sh --for cuda, "
            f"nvidia-cuda-nvdisasm); install it, or pass --{name} PATH"
        )
    return str(found[-1])


def key_of(tools: list[str], arch: str) -> str:
    """Changes with everything that the count depends on: sources, compiler, this script."""
    sums = hashlib.sha256(arch.encode())
    sources = [path for folder in ("agent/stats/cuda", "agent/stats", "common") for path in (ROOT / folder).iterdir()]
    for path in [*sorted(sources), pathlib.Path(__file__)]:
        if path.suffix in (".cu", ".cuh", ".h", ".py"):
            sums.update(path.name.encode() + b"\0" + path.read_bytes())
    for tool in tools:
        sums.update(subprocess.run([tool, "--version"], capture_output=True, check=True).stdout)
    return sums.hexdigest()


def disassemble(nvcc: str, nvdisasm: str, source: str, arch: str, folder: str) -> tuple[str, str]:
    """The listing, and what ptxas says about registers and stack."""
    cubin = os.path.join(folder, source + ".cubin")
    command = [nvcc, "-std=c++17", "-O3", "-fmad=false", f"-arch={arch}", "-cubin", f"-I{ROOT}", "-Xptxas", "-v"]
    command += [str(ROOT / "agent/stats/cuda" / source), "-o", cubin]
    environment = dict(os.environ, PATH=f"{os.path.dirname(nvcc)}:{os.environ['PATH']}")
    compiled = subprocess.run(command, capture_output=True, text=True, env=environment)
    if compiled.returncode != 0:
        sys.exit(f"sass_count: {' '.join(command)} failed:\n{compiled.stderr}")
    listing = subprocess.run([nvdisasm, "-c", cubin], capture_output=True, text=True, check=True).stdout
    return listing, compiled.stderr


class Function:
    """Instructions by address, with the targets of branches."""

    def __init__(self, lines: list[str]):
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        pending: list[str] = []
        for line in lines:
            if label := re.match(r"\s*(\S+):\s*$", line):
                pending.append(label[1])
            elif found := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?);", line):
                address = int(found[1], 16)
                self.labels.update(dict.fromkeys(pending, address))
                pending = []
                self.instructions.append((address, found[2].strip()))

    def loops(self) -> list[tuple[int, int]]:
        """First and last address of each loop: a branch back to a label, outside the code for lanes that have diverged,
        which ptxas puts at the end."""
        diverged = [self.labels.get(t[1], 0) for _, text in self.instructions if (t := re.search(r"BRA\.DIV.*`\((\S+?)\)", text))]
        end = min(diverged, default=self.instructions[-1][0] + 1)
        out = set()
        for address, text in self.instructions:
            target = re.search(r"BRA .*`\((\S+?)\)", text)
            if target and address < end and self.labels.get(target[1], address + 1) <= address:
                out.add((self.labels[target[1]], address))
        return sorted(out)

    def body(self, loop: tuple[int, int]) -> list[str]:
        return [text for address, text in self.instructions if loop[0] <= address <= loop[1]]


def functions_of(listing: str) -> dict[str, Function]:
    out = {}
    for section in re.split(r"^\s*\.section\s+\.text\.", listing, flags=re.MULTILINE)[1:]:
        lines = section.split("\n")
        parts: dict[str, list[str]] = {"": []}
        name = ""
        for line in lines[1:]:
            # Functions that are called, not inlined, follow the kernel in its section.
            if called := re.match(r"\s*\$(\S+)\$(\S+):\s*$", line):
                name = called[2]
                parts[name] = []
            parts[name].append(line)
        kernel = lines[0].split(",")[0].strip('"')
        out[kernel] = Function(parts.pop(""))
        for called_name, body in parts.items():
            out[kernel + "$" + called_name] = Function(body)
    return out


def counted(body: list[str]) -> int:
    return sum(1 for text in body if not re.match(r"(@!?U?P\d+ )?NOP", text))


def usual_path(kernel: Function, pieces: tuple[int, int], loops: list[tuple[int, int]]) -> int:
    """Instructions of the loop over pieces outside the two passes, along the usual path."""
    texts = dict(kernel.instructions)
    addresses = sorted(texts)
    ends = dict(loops)

    def is_rare(begin: int, end: int) -> bool:
        if any(begin <= first < end for first in ends):
            return False  # it leaves out the passes themselves
        body = [texts[a] for a in addresses if begin <= a < end]
        calls = [t for t in body if "CALL" in t and "RunOf" not in t]
        if any("StageUnusual" not in t for t in calls):
            return True
        if any("LDGSTS" in t for t in body):
            return False  # the next piece
        clears = sum(bool(re.search(r"STS.*, RZ", t)) for t in body)
        return bool(calls) or any("REDUX" in t for t in body) or clears > 2

    at, count, seen = pieces[0], 0, set()
    while pieces[0] <= at <= pieces[1] and at not in seen:
        seen.add(at)
        if at in ends:
            at = ends[at] + 0x10
            continue
        text = texts[at]
        count += counted([text])
        branch = re.search(r"BRA (?:U?!?U?P\d+, )?`\((\S+?)\)", text)
        target = kernel.labels.get(branch[1], 0) if branch else 0
        unconditional = branch and not text.startswith("@") and ", `" not in text
        if target > at and (unconditional or is_rare(at + 0x10, target)):
            at = target
        else:
            at += 0x10
    return count


def measure(functions: dict[str, Function], component: str, component_bytes: int) -> dict[str, object]:
    mangled = f"{len(component)}{component}E"
    kernel = next(
        f
        for name, f in functions.items()
        if re.search("ReduceTensors|ReduceShards", name) and mangled in name and "$" not in name
    )
    loops = kernel.loops()

    def count(loop: tuple[int, int]) -> int:
        return counted(kernel.body(loop))

    def inside(loop: tuple[int, int], outer: tuple[int, int]) -> bool:
        return loop != outer and outer[0] <= loop[0] and loop[1] <= outer[1]

    def has(loop: tuple[int, int], name: str) -> int:
        return sum(bool(re.search(name, text)) for text in kernel.body(loop))

    inner = [a for a in loops if not any(inside(b, a) for b in loops)]
    second = max((a for a in inner if has(a, r"IMAD\.WIDE\.U32") >= 8), key=count)
    first = max((a for a in inner if a[1] < second[0] and has(a, r"LDS\.128") == ROWS_AT_ONCE and not has(a, "FADD")), key=count)
    pieces = min((a for a in loops if inside(first, a) and inside(second, a)), key=count)
    outermost = [a for a in loops if inside(a, pieces) and not any(inside(a, b) and inside(b, pieces) for b in loops)]
    block = next(a for a in outermost if a == second or inside(second, a))  # of the sketch
    blocks = 1 if component_bytes == 4 else 8192 // (2048 * component_bytes)
    fold = count(block) - count(second)
    runs = RUN_OF_ONE_DIMENSION if has(pieces, "CALL.*RunOf") else 0
    once = usual_path(kernel, pieces, [first, block]) + fold * blocks + runs
    per_lane = PIECE_BYTES // component_bytes // LANES
    at_once = ROWS_AT_ONCE * 16 // component_bytes
    parts = {
        "first_pass": count(first) / at_once,
        "second_pass": count(second) / at_once,
        "once_a_piece": once / per_lane,
    }
    return {
        **{key: round(value, 2) for key, value in parts.items()},
        "sum": round(sum(parts.values()), 2),
        "instructions": {"first_pass": count(first), "second_pass": count(second), "once_a_piece": once},
        "local_memory_in_loops": sum(has(a, r"\b(LDL|STL)\b") for a in (first, second)),
    }


def measure_rows(functions: dict[str, Function], component: str, component_bytes: int) -> dict[str, object]:
    """The loop over a row's blocks is the longest one; the loop in it is for blocks that are not whole."""
    mangled = f"ReduceMatrixRowsINS1_{len(component)}{component}E"
    kernel = next(f for name, f in functions.items() if mangled in name and "$" not in name)
    blocks = max(kernel.loops(), key=lambda loop: counted(kernel.body(loop)))
    unusual = [loop for loop in kernel.loops() if loop != blocks and blocks[0] <= loop[0] and loop[1] <= blocks[1]]
    count = counted(kernel.body(blocks)) - sum(counted(kernel.body(loop)) for loop in unusual)
    per_lane = ROW_BLOCK_BYTES // component_bytes // LANES
    return {"sum": round(count / per_lane, 2), "instructions": {"once_a_block": count}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--nvcc")
    parser.add_argument("--nvdisasm")
    parser.add_argument("--json", help="write the figures there, too")
    parser.add_argument("--listing", help="write the disassembly into this folder")
    parser.add_argument("--optional", action="store_true", help="do nothing if nvcc or nvdisasm is not in .venv")
    parser.add_argument("--cache", type=pathlib.Path, help="file that keeps the table; it is printed while nothing has changed")
    arguments = parser.parse_args()
    nvcc = find_tool("nvcc", arguments.nvcc, arguments.optional)
    nvdisasm = find_tool("nvdisasm", arguments.nvdisasm, arguments.optional)
    key = ""
    if arguments.cache:
        key = key_of([nvcc, nvdisasm], arguments.arch)
        kept = arguments.cache.read_text() if arguments.cache.is_file() else ""
        if kept.startswith(key) and not arguments.json:
            print(kept[len(key) :].strip())
            return
    results = count_all(arguments, nvcc, nvdisasm)
    table = table_of(results, arguments.arch)
    print(table)
    if arguments.cache:
        arguments.cache.parent.mkdir(parents=True, exist_ok=True)
        arguments.cache.write_text(f"{key}\n{table}\n")
    if arguments.json:
        write_json(arguments, nvcc, results)


def count_all(arguments: argparse.Namespace, nvcc: str, nvdisasm: str) -> dict[str, dict[str, object]]:
    results: dict[str, dict[str, object]] = {}
    sources = sorted({source for _, source, _ in KERNELS.values()})
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        made = pool.map(lambda source: disassemble(nvcc, nvdisasm, source, arguments.arch, folder), sources)
        listings = dict(zip(sources, made, strict=True))
        for dtype, (component, source, component_bytes) in KERNELS.items():
            listing, ptxas = listings[source]
            if arguments.listing:
                (pathlib.Path(arguments.listing) / (source + ".sass")).write_text(listing)
            of_source = measure_rows if source == ROWS_SOURCE else measure
            results[dtype] = of_source(functions_of(listing), component, component_bytes)
            entry = ptxas[re.search(rf"Reduce(Tensors|Shards|MatrixRows)INS1_{len(component)}{component}E", ptxas).start() :]  # type: ignore[union-attr]
            registers = re.search(r"Used (\d+) registers", entry)
            stack = re.search(r"(\d+) bytes stack frame", entry)
            results[dtype]["registers"] = int(registers[1]) if registers else None
            results[dtype]["stack_bytes"] = int(stack[1]) if stack else None
    return results


def table_of(results: dict[str, dict[str, object]], arch: str) -> str:
    lines = [f"| lane-instructions per component, {arch} | " + " | ".join(results) + " |", "|---|" + "---:|" * len(results)]
    for key in ("first_pass", "second_pass", "once_a_piece", "sum"):
        lines.append(
            f"| {key.replace('_', ' ')} | " + " | ".join(f"{r[key]:.1f}" if key in r else "" for r in results.values()) + " |"
        )
    for key in ("registers", "stack_bytes", "local_memory_in_loops"):
        lines.append(f"| {key.replace('_', ' ')} | " + " | ".join(str(r.get(key, "")) for r in results.values()) + " |")
    return "\n".join(lines)


def write_json(arguments: argparse.Namespace, nvcc: str, results: dict[str, dict[str, object]]) -> None:
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True)
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"release [\d.]+, V([\d.]+)", version)
    document = {
        "what": "sass",
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "nvcc": found[1] if found else None,
        "arch": arguments.arch,
        "unit": "lane-instructions per component",
        "rows": [{"dtype": dtype, **row} for dtype, row in results.items()],
    }
    pathlib.Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
