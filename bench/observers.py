"""Observers of a model for the overhead benchmark: the agent, and the tools that it is compared with.

An observer is created once for a model. `attach` and `detach` add and remove its hooks; their time is not measured. `before_step` and
`after_step` are part of the measured step, and call what the tool's documentation asks for."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch


class Observer(Protocol):
    def attach(self) -> None: ...
    def before_step(self) -> None: ...
    def after_step(self) -> None: ...
    def detach(self) -> None: ...
    def close(self) -> dict[str, Any]:
        """Ends the observer; returns facts for the result."""
        ...


class _Hooks:
    """All module hooks of a model, to remove and restore them for any tool."""

    _TABLES = (
        "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks", "_forward_hooks_with_kwargs",
        "_forward_hooks_always_called", "_backward_pre_hooks", "_backward_hooks",
    )  # fmt: skip

    def __init__(self, model: torch.nn.Module) -> None:
        self._tables = [getattr(module, name) for module in model.modules() for name in self._TABLES if hasattr(module, name)]
        self._kept = [table.copy() for table in self._tables]

    def take_off(self) -> None:
        for table in self._tables:
            table.clear()

    def put_back(self) -> None:
        for table, kept in zip(self._tables, self._kept):
            table.update(kept)


class Nothing:
    """No observer. Measures what the method itself adds; smaller differences are not significant."""

    def attach(self) -> None:
        pass

    before_step = after_step = detach = attach

    def close(self) -> dict[str, Any]:
        return {}


class EmptyHooks:
    """A hook of each module that hooks the gradient of its output, and nothing else: what PyTorch itself costs any observer of both."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model, self._removable = model, list[Any]()

    def attach(self) -> None:
        self._removable = [module.register_forward_hook(self._seen) for module in self._model.modules()]

    @staticmethod
    def _seen(_module: Any, _arguments: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor) and output.requires_grad:
            output.register_hook(EmptyHooks._gradient)

    @staticmethod
    def _gradient(_: torch.Tensor) -> None:
        pass

    def before_step(self) -> None:
        pass

    after_step = before_step

    def detach(self) -> None:
        for removable in self._removable:
            removable.remove()

    def close(self) -> dict[str, Any]:
        return {}


class Statagent:
    """The agent in every step, with arguments of `watch` from SETUPS."""

    _BARE = {"memory": False, "density": False, "fingerprints": False}
    _ALL_KINDS = ("output", "input", "grad_output", "grad_input", "weight", "weight_grad", "optimizer_state")
    # Name: whether the optimizer is watched, arguments.
    SETUPS: dict[str, tuple[bool, dict[str, Any]]] = {
        "statagent_bare": (False, {"kinds": {"output", "grad_output"}, **_BARE}),
        "statagent": (False, {"kinds": {"output", "grad_output"}}),
        "statagent_all": (True, {}),
        "statagent_everything": (True, {"kinds": set(_ALL_KINDS), "memory": ["modules"], "input_sizes": True}),
    }

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, collector: str, run: str, setup: str) -> None:
        import statagent

        self._statagent, self._model, self._optimizer = statagent, model, optimizer
        self._with_optimizer, self._arguments = self.SETUPS[setup]
        self._agent = statagent.init(run=run, collector=collector, required=True)
        self._watch: Any = None

    def attach(self) -> None:
        optimizer = self._optimizer if self._with_optimizer else None
        self._watch = self._statagent.watch(self._model, optimizer=optimizer, **self._arguments)

    def before_step(self) -> None:
        pass

    def after_step(self) -> None:
        if not self._with_optimizer:  # otherwise the optimizer ends the step
            self._agent.step()

    def time_calls(self, steps: Callable[[], Any]) -> float:
        """Milliseconds of this thread in the library's observe calls while `steps` runs."""
        agent, inside = self._agent, [0.0]
        before = agent.native_observe, agent.native_observe_large

        def timed(observe: Callable[..., int]) -> Callable[..., int]:
            def call(*arguments: Any) -> int:
                started = time.thread_time()
                code = observe(*arguments)
                inside[0] += time.thread_time() - started
                return code

            return call

        agent.native_observe, agent.native_observe_large = map(timed, before)
        steps()
        agent.native_observe, agent.native_observe_large = before
        return 1000 * inside[0]

    def detach(self) -> None:
        self._watch.remove()
        if not self._agent.flush(timeout=30):
            raise RuntimeError("flush: records are still pending after 30 s; expected the collector to store them")

    def close(self) -> dict[str, Any]:
        self._agent.close(timeout=30)
        return {"counters": {name: n for name, n in self._agent.counters().items() if n or name in ("produced", "acked")}}


class OnnxRuntime:
    """ONNX Runtime's StatisticsSubscriber, subscribed as in its documentation."""

    def __init__(self, model: torch.nn.Module, folder: Path) -> None:
        import onnxruntime
        from onnxruntime.training.utils.hooks import GlobalSubscriberManager, StatisticsSubscriber

        if not torch.cuda.is_available():  # its markers for NVIDIA's profiler raise in a build of PyTorch without CUDA
            torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *_: 0  # type: ignore[assignment]
        self._folder, self._version = folder / "ort", onnxruntime.__version__
        GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber(output_dir=str(self._folder))])
        self._hooks = _Hooks(model)
        self._hooks.take_off()

    def attach(self) -> None:
        self._hooks.put_back()

    def before_step(self) -> None:
        pass

    after_step = before_step

    def detach(self) -> None:
        self._hooks.take_off()

    def close(self) -> dict[str, Any]:
        return {"version": self._version, "files": _expect_files(self._folder, "*_forward")}


class MsProbe:
    """msProbe, statistics of modules (level L0: inputs, outputs and gradients of every module)."""

    def __init__(self, model: torch.nn.Module, folder: Path) -> None:
        from importlib.metadata import version

        from msprobe.pytorch import PrecisionDebugger

        self._folder, self._version, self._model = folder / "msprobe", version("mindstudio-probe"), model
        settings = folder / "msprobe.json"
        configuration = {"task": "statistics", "dump_path": str(self._folder), "rank": [], "step": [], "level": "L0",
                         "async_dump": False, "statistics": {"scope": [], "list": [], "data_mode": ["all"],
                                                             "summary_mode": "statistics"}}  # fmt: skip
        settings.write_text(json.dumps(configuration), encoding="utf-8")
        settings.chmod(0o640)
        self._debugger = PrecisionDebugger(config_path=str(settings))
        self._hooks: _Hooks | None = None

    def attach(self) -> None:
        if self._hooks is not None:
            self._hooks.put_back()

    def before_step(self) -> None:
        self._debugger.start(model=self._model)
        if self._hooks is None:
            self._hooks = _Hooks(self._model)

    def after_step(self) -> None:
        self._debugger.stop()
        self._debugger.step()

    def detach(self) -> None:
        if self._hooks is not None:
            self._hooks.take_off()

    def close(self) -> dict[str, Any]:
        return {"version": self._version, "files": _expect_files(self._folder, "dump.json")}


class TorchCalls:
    """The torch calls that ONNX Runtime's subscriber makes for every tensor, and its text file per tensor: a substitute for machines where it
    cannot be installed."""

    def __init__(self, model: torch.nn.Module, folder: Path) -> None:
        self._folder, self._step = folder / "torch_calls", 0
        for index, (name, module) in enumerate(model.named_modules()):
            module.register_forward_hook(self._hook(f"{type(module).__name__}_{index}_{name}"))
        self._hooks = _Hooks(model)
        self._hooks.take_off()

    def _hook(self, name: str) -> Callable[[Any, Any, Any], None]:
        def seen(_module: Any, _arguments: Any, output: Any) -> None:
            self._write(f"{name}_forward", output)
            if output.requires_grad:
                output.register_hook(lambda gradient: self._write(f"{name}_backward", gradient))

        return seen

    def _write(self, name: str, tensor: torch.Tensor) -> None:
        folder = self._folder / f"step_{self._step}"
        folder.mkdir(parents=True, exist_ok=True)
        flat = tensor.detach().clone().view(-1)
        counts = [int(found.sum().item()) for found in (flat.isnan(), flat.isinf(), flat < 0, flat > 0, flat == 0)]
        low, high, total, std = flat.min().item(), flat.max().item(), flat.sum().item(), flat.std().item()
        with open(folder / name, "w", encoding="utf-8") as file:
            file.write(f">>{name} shape: {tensor.shape} dtype: {tensor.dtype} size: {flat.size()} \n"
                       f"min: {low} max: {high}, mean: {total / flat.numel()}, std: {std} \n"
                       f"nan: {counts[0]}, inf: {counts[1]}\nsamples(top 128): {flat[:128]}\n"
                       f"neg: {counts[2]}, pos: {counts[3]}, zero: {counts[4]},\n{'=' * 16}\n")  # fmt: skip

    def attach(self) -> None:
        self._hooks.put_back()

    def before_step(self) -> None:
        pass

    def after_step(self) -> None:
        self._step += 1

    def detach(self) -> None:
        self._hooks.take_off()

    def close(self) -> dict[str, Any]:
        return {"files": _expect_files(self._folder, "*_forward")}


def _expect_files(folder: Path, pattern: str) -> int:
    """The number of files that the tool wrote. Raises RuntimeError if there are none: a tool that records nothing must not look fast."""
    found = sum(1 for _ in folder.rglob(pattern))
    if not found:
        raise RuntimeError(f"count the recorded files: found no {pattern} below {folder}; expected some")
    return found


def make(name: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer, collector: str, folder: Path) -> Observer:
    """Creates an observer by name: nothing, empty_hooks, one of Statagent.SETUPS, ort, msprobe or torch_calls."""
    if name in Statagent.SETUPS:
        return Statagent(model, optimizer, collector, f"overhead-{folder.name}", name)
    if name == "ort":
        return OnnxRuntime(model, folder)
    if name == "msprobe":
        return MsProbe(model, folder)
    if name == "torch_calls":
        return TorchCalls(model, folder)
    if name == "nothing":
        return Nothing()
    if name == "empty_hooks":
        return EmptyHooks(model)
    sys.exit(
        f"observers: found '{name}'; expected nothing, empty_hooks, {', '.join(Statagent.SETUPS)}, ort, msprobe or torch_calls"
    )
