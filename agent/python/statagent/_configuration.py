"""What is stored with a run: the user's configuration, flattened, and what the process can say about itself."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import InvalidArgumentError

ENTRIES_MAX = 4000  # the library takes 4096; the rest is for the automatic ones
DEPTH_MAX = 16
COMMAND_LINE_MAX = 4096
GIT_SECONDS = 1.0
_ENVIRONMENT = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES",
    "NVIDIA_TF32_OVERRIDE", "NCCL_ALGO", "NCCL_PROTO", "PYTHONHASHSEED", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)  # fmt: skip


def flatten_configuration(config: Any) -> dict[str, str]:
    """Nested mappings, sequences and dataclasses as {"model.layers": "4"}."""
    if config is None:
        return {}
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        config = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    if not isinstance(config, Mapping):
        raise InvalidArgumentError(
            f"read the configuration: found a {type(config).__name__}; expected a mapping, as config={{'lr': 0.1}}"
        )
    flat: dict[str, str] = {}
    _flatten_into(flat, "", config, 0)
    return flat


def _flatten_into(flat: dict[str, str], key: str, value: Any, depth: int) -> None:
    if len(flat) >= ENTRIES_MAX:
        raise InvalidArgumentError(f"read the configuration: more than {ENTRIES_MAX} entries; expected fewer; leave the data out")
    if depth >= DEPTH_MAX:
        raise InvalidArgumentError(f"read the configuration: '{key}' is nested deeper than {DEPTH_MAX} levels; expected fewer")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping) and (value or not key):
        items: Any = value.items()
    elif isinstance(value, (list, tuple)) and value:
        items = enumerate(value)
    else:
        flat[key] = _text(value)
        return
    for name, child in items:
        _flatten_into(flat, f"{key}.{name}" if key else str(name) or "_", child, depth + 1)


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__}: {type(error).__name__}>"


def environment_configuration() -> dict[str, str]:
    """STATAGENT_CONFIG: a JSON object, or @FILE with one."""
    text = os.environ.get("STATAGENT_CONFIG", "")
    if not text:
        return {}
    source = "STATAGENT_CONFIG"
    try:
        if text.startswith("@"):
            source = f"STATAGENT_CONFIG={text}"
            text = Path(text[1:]).read_text(encoding="utf-8")
        found = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"read {source}: {error}; expected a JSON object, or @FILE with one") from error
    if not isinstance(found, dict):
        raise InvalidArgumentError(f'read {source}: found a JSON {type(found).__name__}; expected an object, as {{"lr": 0.1}}')
    return flatten_configuration(found)


def automatic_configuration() -> dict[str, str]:
    """Versions, platform, command line, commit, threads, determinism. Never raises."""
    found = {
        "python.version": platform.python_version(),
        "platform": platform.platform(),
        "command_line": shlex.join(sys.argv)[:COMMAND_LINE_MAX],
    }
    for package in ("torch", "numpy"):
        version = _version(package)
        if version:
            found[f"{package}.version"] = version
    found.update((f"env.{name}", os.environ[name]) for name in _ENVIRONMENT if name in os.environ)
    for part in (_git, _torch):
        try:
            found.update(part())
        except Exception as error:
            found[f"{part.__name__[1:]}.unknown"] = type(error).__name__
    return found


def _version(package: str) -> str:
    loaded = getattr(sys.modules.get(package), "__version__", "")
    if loaded:
        return str(loaded)
    try:
        return importlib.metadata.version(package)
    except Exception:
        return ""


def _torch() -> dict[str, str]:
    """Of torch only if the program uses it already."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return {}
    return {
        "torch.num_threads": str(torch.get_num_threads()),
        "torch.deterministic_algorithms": _text(torch.are_deterministic_algorithms_enabled()),
        "torch.cudnn.deterministic": _text(torch.backends.cudnn.deterministic),
        "torch.cudnn.benchmark": _text(torch.backends.cudnn.benchmark),
        "torch.float32_matmul_precision": torch.get_float32_matmul_precision(),
        "torch.default_dtype": str(torch.get_default_dtype()),
    }


def _git() -> dict[str, str]:
    """Commit of the folder that the training script lies in, and whether tracked files are changed."""
    script = Path(sys.argv[0]).resolve() if sys.argv and sys.argv[0] not in ("", "-c", "-m") else Path.cwd()
    folder = script if script.is_dir() else script.parent

    def run(*arguments: str) -> str | None:
        command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=GIT_SECONDS / 2, stdin=subprocess.DEVNULL, check=False,
                env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = run("rev-parse", "HEAD")
    if not commit:
        return {}
    changed = run("status", "--porcelain", "--untracked-files=no")
    return {"git.commit": commit, "git.dirty": "unknown" if changed is None else _text(bool(changed))}
