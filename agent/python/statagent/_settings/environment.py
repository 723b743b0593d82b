"""The process's part of the configuration checklist: versions, variables, code, machine, seeds.

Only reads: it does not start a CUDA context, import packages or draw random numbers. What cannot be read is left out. The library leaves
secrets out of what is stored, as of everything else (common/redact.h)."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .._runtime import trackers

VALUE_MAX = 512
VARIABLES_MAX = 200
GIT_SECONDS = 0.9  # all calls of git together

PACKAGES = (
    "torch", "numpy", "transformers", "accelerate", "lightning", "pytorch-lightning", "deepspeed", "flash-attn", "triton", "apex",
    "xformers", "transformer-engine", "datasets", "tokenizers", "peft", "bitsandbytes", "jax", "onnx", "onnxruntime",
    "onnxruntime-training", "mindspore", "torch-npu", "vllm", "sglang",
)  # fmt: skip
# Variables that affect numbers or the order of summation. No other variables are recorded.
VARIABLES = frozenset((
    "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "NVIDIA_TF32_OVERRIDE", "PYTHONHASHSEED",
    "TOKENIZERS_PARALLELISM", "XLA_FLAGS", "ATEN_CPU_CAPABILITY", "HIP_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION",
    "ACCELERATE_MIXED_PRECISION", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "LD_PRELOAD", "OPENBLAS_NUM_THREADS",
))  # fmt: skip
VARIABLE_FAMILIES = (
    "CUBLAS_", "CUBLASLT_", "CUDNN_", "NCCL_", "GLOO_", "NVTE_", "TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "PYTORCH_", "OMP_",
    "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "DNNL_", "ONEDNN_", "TRITON_", "FLASH_ATTENTION_", "FSDP_", "ORTMODULE_", "ORT_",
    "HCCL_", "ASCEND_", "MS_", "MINDSPORE_", "VLLM_", "SGLANG_",
)  # fmt: skip
# If the program sets no seed, torch draws one of at least this size; its older versions use 67280421310721.
_DRAWN_SEED_MIN, _DEFAULT_SEED = 2**40, 67280421310721
_COMMON_SEEDS = (0, 1, 42, 123, 1234, 1337, 2021)
# A generator of Python or NumPy keeps 624 words, and makes new ones once these are drawn. How often that may have happened since a common
# seed, and since NumPy's own one, for the seed to be recognised.
_WORDS, _ROUNDS, _OWN_ROUNDS = 624, 4, 64


def process_checklist(entries_max: int = 1000) -> dict[str, str]:
    """The first `entries_max` entries. Never raises. Takes at most about a second."""
    found: dict[str, str] = {
        "python.version": platform.python_version(),
        "platform": platform.platform(),
        "command_line": shlex.join(sys.argv),
    }
    for part in (
        package_versions,
        variables,
        git_state,
        processor,
        torch_state,
        random_state,
        library_versions,
        gpus,
        tracker_runs,
    ):
        found.update(_guarded(part))
    return dict(list(found.items())[:entries_max])


def tracker_runs() -> dict[str, str]:
    """The active runs of trackers: where `python -m statcollect publish` writes the verdict."""
    return trackers.settings_of(trackers.active())


def text(value: Any) -> str:
    """A setting as text: "true", "false" and "null" as in JSON, else str(value), at most VALUE_MAX characters."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        return str(value)[:VALUE_MAX]
    except Exception as error:
        return f"<{type(value).__name__}: {type(error).__name__}>"


def _guarded(part: Callable[[], dict[str, str]]) -> dict[str, str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return part()
    except Exception as error:
        return {f"checklist.{part.__name__}": f"unknown: {type(error).__name__}"}


def read_each(getters: Iterable[tuple[str, Callable[[], Any]]]) -> dict[str, str]:
    """The results of the getters as text, without those that fail or return None."""
    found = {}
    for key, get in getters:
        try:
            value = get()
        except Exception:
            continue
        if value is not None:
            found[key] = text(value)
    return found


# --- packages, variables, command line -------------------------------------------------------------------------------------


def package_versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        version = _version(package)
        if version:
            found[f"{package}.version"] = version
    return found


def _version(package: str) -> str:
    loaded = getattr(sys.modules.get(package.replace("-", "_")), "__version__", "")
    if loaded:
        return str(loaded)
    try:
        return (_torch_version() if package == "torch" else "") or importlib.metadata.version(package)
    except Exception:
        return ""


def _torch_version() -> str:
    """torch.__version__ with its build ("2.15.0+cu132"), without importing torch; "" if its files do not contain it. Distributions from PyPI
    omit the build from their metadata."""
    with contextlib.suppress(Exception):
        spec = importlib.util.find_spec("torch")
        for folder in (spec and spec.submodule_search_locations) or ():
            match = re.search(r"^__version__\s*=\s*['\"]([^'\"]+)['\"]", (Path(folder) / "version.py").read_text(), re.MULTILINE)
            if match:
                return match.group(1)
    return ""


def variables() -> dict[str, str]:
    names = [name for name in sorted(os.environ) if name in VARIABLES or name.startswith(VARIABLE_FAMILIES)]
    return {f"env.{name}": os.environ[name] for name in names[:VARIABLES_MAX]}


# --- code ------------------------------------------------------------------------------------------------------------------


def git_state() -> dict[str, str]:
    """The commit of the training script's folder, whether tracked files have changes, and a hash of the changes."""
    script = Path(sys.argv[0]).resolve() if sys.argv and sys.argv[0] not in ("", "-c", "-m") else Path.cwd()
    folder = script if script.is_dir() else script.parent
    deadline = time.monotonic() + GIT_SECONDS

    def run(*arguments: str) -> bytes | None:
        command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments]
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=max(0.0, deadline - time.monotonic()), stdin=subprocess.DEVNULL, check=False,
                env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout if done.returncode == 0 else None

    commit = run("rev-parse", "HEAD")
    if not commit:
        return {}
    found = {"git.commit": commit.decode().strip()}
    changed = run("status", "--porcelain", "--untracked-files=no")
    found["git.dirty"] = "unknown" if changed is None else text(bool(changed.strip()))
    if changed and changed.strip():
        difference = run("diff", "--no-ext-diff", "--no-textconv", "--no-color", "HEAD")
        found["git.diff"] = "unknown" if difference is None else _hash(difference)
    return found


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


# --- machine ---------------------------------------------------------------------------------------------------------------


def processor() -> dict[str, str]:
    def model() -> str | None:
        match = re.search(
            r"^(?:model name|Hardware)\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(errors="replace"), re.MULTILINE
        )
        return match.group(1) if match else platform.processor() or None

    return read_each(
        (
            ("hardware.cpu", model),
            ("hardware.cpu.count", os.cpu_count),
            ("hardware.cpu.usable", lambda: len(os.sched_getaffinity(0))),
        )
    )


def library_versions() -> dict[str, str]:
    """Versions of the libraries below torch. Does not touch a device."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return {}

    def nccl() -> str | None:
        found = torch.cuda.nccl.version()
        return ".".join(map(str, found)) if isinstance(found, tuple) else str(found)

    return read_each(
        (
            ("cuda.version", lambda: torch.version.cuda),
            ("hip.version", lambda: getattr(torch.version, "hip", None)),
            ("cudnn.version", lambda: torch.backends.cudnn.version()),
            ("nccl.version", nccl),
            ("gpu.driver.version", _driver),
        )
    )


def _driver() -> str | None:
    match = re.search(r"(\d+\.\d+(?:\.\d+)?)", Path("/proc/driver/nvidia/version").read_text(errors="replace"))
    return match.group(1) if match else None


def gpus() -> dict[str, str]:
    """Names and capabilities of the visible GPUs, if the process already uses CUDA; otherwise reading them would start a context."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    count = torch.cuda.device_count()
    found = {"hardware.gpu.count": str(count)}
    seen: dict[str, int] = {}
    for index in range(count):
        properties = torch.cuda.get_device_properties(index)
        memory = properties.total_memory / 2**30
        name = f"{properties.name}, capability {properties.major}.{properties.minor}, {memory:.0f} GiB"
        seen[name] = seen.get(name, 0) + 1
    found["hardware.gpu"] = "; ".join(name if n == count else f"{name} x {n}" for name, n in seen.items())
    return found


# --- torch and random numbers ----------------------------------------------------------------------------------------------


def torch_state() -> dict[str, str]:
    """torch's switches that affect numbers, if the program has imported torch."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return {}
    matmul, cudnn, cuda = torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.cuda
    return read_each(
        (
            ("torch.num_threads", torch.get_num_threads),
            ("torch.default_dtype", torch.get_default_dtype),
            ("torch.deterministic_algorithms", torch.are_deterministic_algorithms_enabled),
            ("torch.deterministic_algorithms.warn_only", torch.is_deterministic_algorithms_warn_only_enabled),
            ("torch.deterministic.fill_uninitialized_memory", lambda: torch.utils.deterministic.fill_uninitialized_memory),
            ("torch.cudnn.deterministic", lambda: cudnn.deterministic),
            ("torch.cudnn.benchmark", lambda: cudnn.benchmark),
            ("torch.cudnn.allow_tf32", lambda: cudnn.allow_tf32),
            ("torch.float32_matmul_precision", torch.get_float32_matmul_precision),
            ("torch.cuda.matmul.allow_tf32", lambda: matmul.allow_tf32),
            ("torch.cuda.matmul.fp32_precision", lambda: matmul.fp32_precision),
            ("torch.cuda.matmul.fp16_reduced_precision_reduction", lambda: matmul.allow_fp16_reduced_precision_reduction),
            ("torch.cuda.matmul.bf16_reduced_precision_reduction", lambda: matmul.allow_bf16_reduced_precision_reduction),
            ("torch.cuda.matmul.fp16_accumulation", lambda: matmul.allow_fp16_accumulation),
            ("torch.mkldnn.enabled", lambda: torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled),
            ("torch.sdp.flash", cuda.flash_sdp_enabled),
            ("torch.sdp.mem_efficient", cuda.mem_efficient_sdp_enabled),
            ("torch.sdp.math", cuda.math_sdp_enabled),
            ("torch.sdp.cudnn", lambda: cuda.cudnn_sdp_enabled()),
            ("torch.sdp.math_reduced_precision", lambda: cuda.fp16_bf16_reduction_math_sdp_allowed()),
            ("torch.cpu_capability", lambda: torch.backends.cpu.get_cpu_capability()),
            *_autocast(torch),
        )
    )


def _autocast(torch: Any) -> Iterable[tuple[str, Callable[[], Any]]]:
    """The dtype of autocast in this thread, or False. Since torch 2.4 the functions take a device."""

    def enabled(device: str) -> Any:
        try:
            return torch.is_autocast_enabled(device)
        except TypeError:
            return torch.is_autocast_cpu_enabled() if device == "cpu" else torch.is_autocast_enabled()

    def dtype(device: str) -> Any:
        if hasattr(torch, "get_autocast_dtype"):
            return torch.get_autocast_dtype(device)
        return torch.get_autocast_cpu_dtype() if device == "cpu" else torch.get_autocast_gpu_dtype()

    def state(device: str) -> Any:
        return dtype(device) if enabled(device) else False

    for device in ("cpu", "cuda"):
        yield f"torch.autocast.{device}", functools.partial(state, device)


def random_state() -> dict[str, str]:
    """Seeds, whether the program has set them, and hashes of the generators' states. torch stores its seed. Those of Python and NumPy are found
    only if few numbers have been drawn and the seed is torch's own or a common one; otherwise they are "unknown", as without a seed."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy.random")
    found: dict[str, str] = {}
    candidates = list(_COMMON_SEEDS)
    if torch is not None:
        seed = int(torch.initial_seed())
        drawn = seed >= _DRAWN_SEED_MIN or seed == _DEFAULT_SEED
        found["random.torch.seed"] = "none" if drawn else str(seed)
        found["random.torch.seeded"] = text(not drawn)
        found["random.torch.state"] = _hash(bytes(torch.get_rng_state().tolist()))
        if torch.cuda.is_initialized():
            seed = int(torch.cuda.initial_seed())
            found["random.cuda.seed"] = "none" if seed >= _DRAWN_SEED_MIN else str(seed)
        candidates.insert(0, int(torch.initial_seed()))
    found.update(_python_random(candidates))
    if numpy is not None:
        found.update(_numpy_random(numpy, candidates))
    return found


def _python_random(candidates: list[int]) -> dict[str, str]:
    """Nothing shows that Python's generator was not seeded."""
    import random

    state = random.getstate()

    def descends(seed: int) -> bool:
        generator = random.Random(seed)
        for _ in range(_ROUNDS):
            if generator.getstate()[1][:_WORDS] == state[1][:_WORDS]:
                return True
            generator.getrandbits(32 * _WORDS)
        return False

    seed = next((str(seed) for seed in candidates if descends(seed)), "unknown")
    return {
        "random.python.seed": seed,
        "random.python.seeded": "unknown" if seed == "unknown" else "true",
        "random.python.state": _hash(repr(state).encode()),
    }


def _numpy_random(module: Any, candidates: list[int]) -> dict[str, str]:
    """NumPy's global generator, which older code uses. It keeps the sequence from which it was seeded at first until seed() is called."""
    state = module.get_state()

    def descends(generator: Any, rounds: int) -> bool:
        for _ in range(rounds):
            if generator.get_state()[1].tobytes() == state[1].tobytes():
                return True
            generator.bytes(4 * _WORDS)
        return False

    legal = [seed for seed in candidates if 0 <= seed < 2**32]
    seed = next((str(seed) for seed in legal if descends(module.RandomState(seed), _ROUNDS)), "unknown")
    seeded = "unknown"
    if hasattr(module, "get_bit_generator"):  # from NumPy 1.24 on
        own = getattr(module.get_bit_generator(), "_seed_seq", ...)
        if own is None:
            seeded = "true"
        elif isinstance(own, module.SeedSequence) and descends(module.RandomState(module.MT19937(own)), _OWN_ROUNDS):
            seeded = "false"  # and its state was not set either
    content = state[1].tobytes() + repr(state[2:]).encode() + str(state[0]).encode()
    return {"random.numpy.seed": seed, "random.numpy.seeded": seeded, "random.numpy.state": _hash(content)}
