"""Modules that are unlike those of torch.nn: `watch` raises nothing because of them, the training computes the same, the rest is recorded."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.nn.utils import prune

import statagent
from statagent import Agent
from statagent.watch import KINDS

from .models import data, seeded
from .support import Recording

STEPS = 3
MAKERS: dict[str, Callable[[], nn.Module]] = {}


class Base(nn.Module):
    """What is exotic is beside the layer that computes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.fc(x)


def maker(function: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    MAKERS[function.__name__] = function
    return function


def beside(name: str, **values: Any) -> None:
    """A maker of a Base with parameters, buffers (tensors) and children (modules)."""

    def make() -> nn.Module:
        model = Base()
        for key, make_value in values.items():
            value = make_value()
            if isinstance(value, nn.Parameter):
                model.register_parameter(key, value)
            elif isinstance(value, torch.Tensor):
                model.register_buffer(key, value)
            else:
                model.add_module(key, value)
        return model

    MAKERS[name] = make


# --- lazy modules


@maker
def lazy_linear() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 1))


@maker
def lazy_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.LazyBatchNorm1d(), nn.Linear(8, 1))


@maker
def lazy_instance_norm() -> nn.Module:
    norm = nn.LazyInstanceNorm1d(affine=True, track_running_stats=True)
    return nn.Sequential(nn.Unflatten(1, (2, 4)), norm, nn.Flatten(), nn.Linear(8, 1))


@maker
def lazy_convolution() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 8)), nn.LazyConv1d(2, 3), nn.Flatten(), nn.LazyLinear(1))


beside("uninitialised", parameter=UninitializedParameter, buffer=UninitializedBuffer)

# --- attributes and methods that raise


class Raising(Base):
    @property
    def eps(self) -> float:
        raise ValueError("eps")

    @property
    def config(self) -> Any:
        raise RuntimeError("config")


class RaisingTraining(Base):
    @property
    def training(self) -> bool:
        raise ValueError("training")

    @training.setter
    def training(self, value: bool) -> None: ...


class RaisingGetattr(Base):
    def __getattr__(self, name: str) -> Any:
        if name == "fc" or name.startswith("_"):
            return super().__getattr__(name)
        raise ValueError(name)


class RaisingIterators(Base):
    def modules(self, remove_duplicate: bool = True) -> Any:
        raise ValueError("modules")

    named_modules = parameters = named_parameters = buffers = named_buffers = children = state_dict = modules  # type: ignore[assignment]


class RaisingEquality(Base):
    def __eq__(self, other: object) -> bool:
        raise ValueError("eq")

    def __bool__(self) -> bool:
        raise ValueError("bool")

    __hash__ = nn.Module.__hash__


class Unhashable(Base):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


class NoHooks(Base):
    def register_forward_hook(self, *_: Any, **__: Any) -> Any:
        raise ValueError("no hooks")

    register_forward_pre_hook = register_forward_hook


class OldHooks(Base):
    """As written before torch had `with_kwargs` and `always_call`."""

    def register_forward_hook(self, hook: Any) -> Any:  # type: ignore[override]
        return super().register_forward_hook(hook)

    def register_forward_pre_hook(self, hook: Any) -> Any:  # type: ignore[override]
        return super().register_forward_pre_hook(hook)


class NotInitialised(nn.Module):
    def __init__(self) -> None: ...  # without super().__init__()


class Unreadable:
    """An attribute that says nothing about itself."""

    def __repr__(self) -> str:
        raise ValueError("repr")

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        raise ValueError("eq")

    __hash__ = None  # type: ignore[assignment]


for raising in (Raising, RaisingTraining, RaisingGetattr, RaisingIterators, RaisingEquality, Unhashable, NoHooks, OldHooks):
    MAKERS[f"root_{raising.__name__}"] = raising
    MAKERS[f"child_{raising.__name__}"] = lambda made=raising: nn.Sequential(nn.Linear(8, 8), made())  # type: ignore[misc]


@maker
def not_initialised() -> nn.Module:
    model = Base()
    model._modules["odd"] = NotInitialised()
    return model


@maker
def unreadable_attribute() -> nn.Module:
    model = Base()
    model.odd = Unreadable()  # type: ignore[assignment]
    return model


# --- dictionaries with other things in them


@maker
def strange_entries() -> nn.Module:
    model = Base()
    model._modules.update({"nothing": None, "function": lambda x: x})  # type: ignore[dict-item]
    model._modules[3] = nn.Linear(8, 8)  # type: ignore[index]
    model._parameters.update({"nothing": None, "text": "text", "tensor": torch.ones(3)})  # type: ignore[dict-item]
    model._parameters[7] = nn.Parameter(torch.ones(2))  # type: ignore[index]
    model._buffers.update({"nothing": None, "text": "text", "number": 3})  # type: ignore[dict-item]
    model._buffers[5] = torch.ones(2)  # type: ignore[index]
    return model


@maker
def dictionary_that_raises() -> nn.Module:
    class Raises(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            raise ValueError("items")

    model = Base()
    model._buffers = Raises(odd=torch.ones(3))
    return nn.Sequential(nn.Linear(8, 8), model)


@maker
def module_that_contains_itself() -> nn.Module:
    model = Base()
    model._modules["me"] = model
    return model


@maker
def odd_names() -> nn.Module:
    names = ["a b", "ü*[?", "x" * 2000, "new\nline", "\ud800", "0", "s/\\t", "\0"]
    return nn.Sequential(nn.ModuleDict({name: nn.Linear(2, 2) for name in names}).apply(_identity), nn.Linear(8, 1))


def _identity(module: nn.Module) -> None:
    if isinstance(module, nn.ModuleDict):
        module.forward = lambda x: x


# --- TorchScript, quantised and traced modules, parametrisations


@maker
def scripted_child() -> nn.Module:
    return nn.Sequential(torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))), nn.Linear(8, 1))


@maker
def traced_child() -> nn.Module:
    return nn.Sequential(torch.jit.trace(nn.Linear(8, 8), torch.ones(2, 8)), nn.Linear(8, 1))


@maker
def quantised_child() -> nn.Module:
    inner = nn.Sequential(nn.Linear(8, 8))
    return nn.Sequential(torch.ao.quantization.quantize_dynamic(inner, {nn.Linear}, dtype=torch.qint8), nn.Linear(8, 1))


@maker
def prepared_for_quantisation() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    model.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
    return torch.ao.quantization.prepare_qat(model)


@maker
def symbolically_traced() -> nn.Module:
    return torch.fx.symbolic_trace(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)))


@maker
def parametrised() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1))
    nn.utils.parametrizations.weight_norm(model[0])
    nn.utils.parametrizations.spectral_norm(model[1])
    nn.utils.parametrizations.orthogonal(model[2])
    return model


@maker
def parametrised_in_the_old_way() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1))
    nn.utils.weight_norm(model[0])
    nn.utils.spectral_norm(model[1])
    prune.l1_unstructured(model[2], "weight", 0.5)
    return model


# --- tensors of other sorts


class Refusing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") == "__get__":
            return super().__torch_function__(function, types, args, kwargs or {})
        raise ValueError(getattr(function, "__name__", "function"))


def frozen(make: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    return lambda: nn.Parameter(make(), requires_grad=False)


def nested(**options: Any) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2, 2), torch.ones(3, 2)], **options)


TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "meta": lambda: torch.ones(3, device="meta"),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse_rows": lambda: torch.eye(3).to_sparse_csr(),
    "nested": nested,
    "jagged": lambda: nested(layout=torch.jagged),
    "complex": lambda: torch.tensor([1j, 2.0]),
    "integer": lambda: torch.arange(3),
    "unsigned": lambda: torch.arange(3).to(torch.uint16),
    "boolean": lambda: torch.tensor([True, False]),
    "float8": lambda: torch.ones(3).to(torch.float8_e4m3fn),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "mkldnn": lambda: torch.ones(2, 3).to_mkldnn(),
    "scalar": lambda: torch.tensor(1),
    "empty": lambda: torch.empty(0, 3),
    "refusing": lambda: torch.ones(3).as_subclass(Refusing),
}
for tensor_name, make_tensor in TENSORS.items():
    beside(f"buffer_{tensor_name}", odd=make_tensor)
    if tensor_name not in ("mkldnn", "refusing"):  # not made into parameters
        beside(f"parameter_{tensor_name}", odd=frozen(make_tensor))


@maker
def parameter_refusing() -> nn.Module:
    model = Base()
    model._parameters["odd"] = torch.ones(3).as_subclass(Refusing)  # type: ignore[assignment]
    return model


@maker
def sparse_gradient() -> nn.Module:
    class Bag(Base):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(5, 8, sparse=True)

        def forward(self, x: torch.Tensor) -> Any:
            return self.fc(x + self.bag(torch.tensor([[0, 1]] * len(x))))

    return Bag()


# --- the tests


def trained(make: Callable[[], nn.Module], watched: bool) -> tuple[list[str], list[torch.Tensor]]:
    """Losses of the steps, and the final weights of the layers that compute."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = seeded(make)
        parameters = [p for module in layers(model) for p in module._parameters.values() if p is not None]
        optimizer = torch.optim.SGD([*parameters, nn.Parameter(torch.zeros(1))], lr=0.1)
        if watched:
            statagent.watch(model, optimizer, kinds=set(KINDS), memory=["modules"], between=True, eval=True)
        torch.manual_seed(7)
        losses = []
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = model(data(seed=step)).float().square().mean()
            loss.backward()
            optimizer.step()
            losses.append(f"{float(loss)}")
        return losses, [p.detach().clone() for p in parameters]


def layers(model: nn.Module) -> list[nn.Module]:
    """The linear layers, found without asking the modules, which may raise."""
    found: dict[int, nn.Module] = {}

    def visit(module: Any) -> None:
        if id(module) in found or not isinstance(module, nn.Module):
            return
        found[id(module)] = module
        for child in getattr(module, "_modules", {}).values():
            visit(child)

    visit(model)
    return [module for module in found.values() if type(module) is nn.Linear]


@pytest.mark.parametrize("case", MAKERS)
def test_watch_raises_nothing_because_of_a_layer(agent: Agent, recording: Recording, case: str) -> None:
    plain, watched = (trained(MAKERS[case], on) for on in (False, True))
    assert watched[0] == plain[0]
    assert all(torch.equal(a, b) for a, b in zip(plain[1], watched[1], strict=True))
    refused = statagent.counters().get("dropped_refused", 0)
    told = [fields["reason"] for _, kind, _, fields in recording.events if kind == "not_recorded"]
    assert not refused or told, "what is not recorded is told"
    if "NoHooks" not in case and "OldHooks" not in case:
        assert recording.of("output", STEPS - 1), "the layers that compute are recorded"


def test_a_lazy_model_is_recorded_from_its_first_pass_on(agent: Agent, recording: Recording) -> None:
    trained(MAKERS["lazy_batch_norm"], True)
    for step in range(STEPS):
        assert recording.names("output", step) == ["0", "1", "2", "Sequential"]
        assert recording.names("buffer", step)[-2:] == ["1.running_mean", "1.running_var"]


@pytest.mark.parametrize("make", [nn.ReLU, nn.Sequential, nn.Identity])
def test_a_module_without_parameters_is_watched(agent: Agent, recording: Recording, make: Callable[[], nn.Module]) -> None:
    model = make()
    statagent.watch(model)
    model(data())
    assert recording.names("output") == [type(model).__name__]


def test_a_scripted_root_is_an_error_that_says_what_to_do(agent: Agent) -> None:
    with pytest.raises(statagent.InvalidArgumentError, match="watch the module that was scripted"):
        statagent.watch(torch.jit.script(Base()))
