"""The fraction of each input that is not padding: elements that differ from the padding index of their embedding, and labels that differ
from the ignore index of the loss.

While a model is watched, the functions that torch.nn.functional's embedding, cross_entropy and nll_loss call are wrapped, to read both
indexes where they are used. A wrapper calls the wrapped function with unchanged arguments. TorchScript replaces the wrapper with the wrapped
function; torch.compile leaves an operator in the graph. Cost: one comparison and one sum over the input. Counts on a GPU are copied
asynchronously."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from .._compile import padded_inputs, tracing
from .._runtime.agent import Agent
from .._runtime.callbacks import WeakList
from .._torch.autograd import in_backward
from .._torch.modules import Named
from .._torch.passing import passes_on
from ..errors import InvalidArgumentError

IGNORE_INDEX = -100  # torch's own default
_SAMPLES_MAX = 4096  # of a batch, whose counts are recorded one by one
_INT64 = range(-(2**63), 2**63)


def check_density(density: Any) -> dict[str, int] | None:
    """The argument `density` of `watch` as explicit padding indexes by input; None if densities are not recorded."""
    if density is None or density is False:
        return None
    if density is True:
        return {}
    good = isinstance(density, Mapping) and all(
        isinstance(name, str) and name and isinstance(pad, int) and not isinstance(pad, bool) and pad in _INT64
        for name, pad in density.items()
    )
    if not good:
        raise InvalidArgumentError(
            f"watch: density is {density!r}; expected True, False, or padding indexes by the name of the input, as {{'input_ids': 0}}"
        )
    return dict(density)


class DensityObserver:
    """Records the densities of one watched model's inputs. `training`: whether the current or last pass is recorded as training.
    Never raises while training. Threads: any."""

    def __init__(
        self,
        agent: Agent,
        parameters: list[Named],
        given: Mapping[str, int],
        training: Callable[[], bool],
        is_here: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_here`: whether the model was run last by the thread that asks."""
        self._agent, self._given, self._training, self.is_here = agent, given, training, is_here
        self._weights = {id(named.value): named for named in parameters}
        self._names: dict[int, str] = {}  # address of an input's memory -> its name, in this micro-batch
        self._recorded: set[tuple[str, str]] = set()  # input and type, in this micro-batch
        self._place = (-1, -1)  # step and micro-batch
        agent.clock.batch_listeners.append(self.note_input)
        agent.clock.step_listeners.append(self._step_changed)
        _observers.append(self)
        _wrap()
        weakref.finalize(self, _unwrap_unused).atexit = False

    def remove(self) -> None:
        """Stops observing. Counts that are still being copied from a GPU are recorded when they arrive."""
        self._agent.clock.batch_listeners.remove(self.note_input)
        self._agent.clock.step_listeners.remove(self._step_changed)
        _observers.remove(self)
        _unwrap_unused()

    def _step_changed(self) -> None:
        if self._agent.closed:
            self.remove()

    # --- what it observes ---------------------------------------------------------------------------------------------------

    def note_input(self, name: str, tensor: Any) -> None:
        """The step has an input of this name."""
        try:
            if not _is_index(tensor):
                return
            self._begin_micro_batch()
            self._names.setdefault(tensor.untyped_storage().data_ptr(), name)
            if name in self._given:
                self._record(name, _kind_of(name), self._given[name], tensor)
        except Exception as error:
            self._agent.refuse(f"density of '{name}': {error}")

    def see(self, kind: str, tensor: Any, pad: int, weight: Any = None) -> None:
        """The tensor goes into an embedding (with this weight) or a loss."""
        try:
            if not _is_index(tensor) or not self._training():
                return
            self._begin_micro_batch()
            name = self._names.get(tensor.untyped_storage().data_ptr())
            if name is None:
                name = "labels" if kind == "label" else self._name_of_weight(weight)
            if name is not None and name not in self._given:
                self._record(name, kind, pad, tensor)
        except Exception as error:
            self._agent.refuse(f"density: {error}")

    # --- inside ------------------------------------------------------------------------------------------------------------

    def _begin_micro_batch(self) -> None:
        place = (self._agent.current_step(), self._agent.clock.next_micro_batch())
        if place != self._place:
            self._place = place
            self._names.clear()
            self._recorded.clear()

    def _name_of_weight(self, weight: Any) -> str | None:
        """The name of the embedding's module; None for a weight of another model."""
        named = self._weights.get(id(weight))
        return named.parent or named.name if named is not None else None

    def _record(self, name: str, kind: str, pad: int, tensor: Any) -> None:
        if (name, kind) in self._recorded or not self._agent.clock.inputs_wanted:
            return
        self._recorded.add((name, kind))
        samples = tensor.shape[0] if kind == "embed" and tensor.dim() > 1 else 0
        listed = 0 < samples <= _SAMPLES_MAX
        total, (step, micro_batch) = tensor.numel(), self._place

        def record(found: Any) -> None:
            counts = found.tolist()
            self._agent.log_density(
                name, kind, pad, sum(counts), total, counts if listed else [], micro_batch=micro_batch, step=step
            )

        import torch

        with torch.no_grad():
            counts = (tensor.detach() != pad).reshape(samples if listed else 1, -1).sum(dim=1)
        self._agent.deferred.add(f"density of '{name}'", counts, record)


def _kind_of(name: str) -> str:
    return "label" if any(word in name.lower() for word in ("label", "target")) else "embed"


def _is_index(tensor: Any) -> bool:
    """Whether this is a plain tensor of whole numbers with memory."""
    import torch

    if (
        type(tensor) is not torch.Tensor
        or tensor.dtype.is_floating_point
        or tensor.dtype.is_complex
        or tensor.dtype is torch.bool
    ):
        return False
    functorch = getattr(torch._C, "_functorch", None)
    if functorch is not None and functorch.is_functorch_wrapped_tensor(tensor):  # of vmap and others, which has no memory
        return False
    return tensor.layout is torch.strided and tensor.device.type in ("cpu", "cuda") and tensor.numel() > 0


# --- the wrapped functions -------------------------------------------------------------------------------------------------

_observers = WeakList()
_wrapped: list[tuple[Any, str, Any, Any]] = []  # place, name, original, wrapper


def _seen(kind: str, tensor: Any, pad: Any, weight: Any = None) -> None:
    import torch

    if isinstance(pad, int) and torch.is_grad_enabled() and not in_backward():
        seen(kind, tensor, pad, weight)


def seen(kind: str, tensor: Any, pad: int, weight: Any = None) -> None:
    """The tensor goes into an embedding or a loss of some model, in a pass with gradients that is not a recomputation."""
    for observer in _observers:
        if observer.is_here():
            observer.see(kind, tensor, pad, weight)


def _of_embedding(original: Any) -> Any:
    @functools.wraps(original)
    @passes_on
    def embedding(weight: Any, indices: Any, padding_idx: int = -1, *args: Any, **kwargs: Any) -> Any:
        if padding_idx >= 0:
            if _traced():
                tracing.trace_padded("embed", indices, padding_idx)
            else:
                _seen("embed", indices, padding_idx, weight)
        return original(weight, indices, padding_idx, *args, **kwargs)

    return embedding


def _of_loss(original: Any) -> Any:
    @functools.wraps(original)
    @passes_on
    def loss(*args: Any, **kwargs: Any) -> Any:  # values, target, weight, reduction, ignore_index, ...
        if len(args) > 1:
            pad = kwargs.get("ignore_index", args[4] if len(args) > 4 else IGNORE_INDEX)
            if _traced():
                tracing.trace_padded("label", args[1], pad)
            else:
                _seen("label", args[1], pad)
        return original(*args, **kwargs)

    return loss


def _traced() -> bool:
    import torch

    return bool(torch.compiler.is_compiling()) if hasattr(torch, "compiler") else False


def _wrap() -> None:
    """Wraps the functions that torch.nn.functional calls. Its own functions are imported by name and pickled by identity."""
    if _wrapped:
        return
    import torch

    padded_inputs.report_to(seen)
    places = [
        (torch, "embedding", _of_embedding),
        (torch._C._nn, "cross_entropy_loss", _of_loss),
        (torch._C._nn, "nll_loss_nd", _of_loss),
    ]
    for place, name, wrapper in places:
        original = getattr(place, name, None)
        if original is None:
            continue
        made = wrapper(original)
        try:  # TorchScript treats it as the wrapped function
            from torch.jit._builtins import _find_builtin, _register_builtin

            _register_builtin(made, _find_builtin(original))
        except Exception:
            continue
        _wrapped.append((place, name, original, made))
        setattr(place, name, made)


def _unwrap_unused() -> None:
    if not _observers:
        _unwrap()


def _unwrap() -> None:
    for entry in list(_wrapped):
        place, name, original, made = entry
        if getattr(place, name) is made:  # otherwise another wrapper was added: ours stays, and does nothing
            setattr(place, name, original)
            _wrapped.remove(entry)
