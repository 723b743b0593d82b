"""Zooms into what lies outside of modules: between two of them, from the model's output to `backward()`, and an optimizer's update."""

from __future__ import annotations

from typing import Any

from .._compile import tracing
from .._compile.inert_hook import InertHook
from .._torch.autograd import in_backward
from .._torch.modules import Named
from .._torch.passing import passes_on
from ..flatten import flatten
from .zoom_operators import Budget, Operators, make_mode, pop, push

UPDATE = "update"


class Region:
    """A part of the step that something begins and something else ends. `zoom`: the Zoom; `spec`: its ZoomSpec."""

    phase = "forward"
    never = ""  # what has to happen

    def __init__(self, zoom: Any, named: Named, spec: Any) -> None:
        self.zoom, self.named, self.spec = zoom, named, spec
        self.current: tuple[Operators, Any] | None = None
        self.removables: list[Any] = []
        self._epoch, self._calls = -1, 0

    def remove(self) -> None:
        self.abandon()
        for each in self.removables:
            each.remove()
        self.removables = []

    def next_call(self, epoch: int) -> int:
        if self._epoch != epoch:
            self._epoch, self._calls = epoch, 0
        self._calls += 1
        return self._calls - 1

    def make(self, micro_batch: int, call: int, budget: Budget) -> Operators:
        return Operators(self.zoom.agent, self.named, self.phase, micro_batch, call, budget)

    def start(self, call: int | None = None) -> Operators | None:
        """Records from now on, if it may. May raise."""
        operators: Operators | None = self.zoom.claim(self, call)
        if operators is not None:
            mode = make_mode(operators)
            push(mode)
            self.current = operators, mode
        return operators

    def start_behind(self, output: Any) -> None:
        """Records what is computed from a module's output. May raise."""
        self.stop()
        operators = self.start()
        if operators is not None:
            operators.name((named.name, named.value) for named in self.zoom.parameters)
            operators.name((f"output {path}", tensor) for path, tensor in flatten(output))

    def stop(self) -> Operators | None:
        """Records no more, in this thread."""
        if self.current is None:
            return None
        (operators, mode), self.current = self.current, None
        pop(mode)
        self.zoom.release(self)
        return operators

    def finish(self) -> None:
        """Ends and sends what is recorded. Never raises."""
        self.attempt(self._finish)

    def abandon(self) -> None:
        """It does not end as it should: what is recorded is not sent."""
        self.attempt(self.stop)

    def _finish(self) -> None:
        operators = self.stop()
        if operators is not None and operators.count:
            self.zoom.send(self.spec, operators)

    def attempt(self, function: Any, *arguments: Any) -> None:
        try:
            function(*arguments)
        except Exception as error:
            self.zoom.refuse(self.named, error)

    def step_ends(self) -> None:
        self.abandon()


class Between(Region):
    """From the end of one module to the start of another, which then has what it is called with."""

    def __init__(self, zoom: Any, before: Named, after: Named, root: Any, spec: Any) -> None:
        super().__init__(zoom, Named(spec.target, after.value, "", "", 1), spec)
        self.never = f"no training pass in which '{after.name}' ran after '{before.name}'"
        self.removables += [
            before.value.register_forward_hook(InertHook(self._begin)),
            after.value.register_forward_pre_hook(InertHook(self._end), with_kwargs=True),
            root.register_forward_hook(InertHook(self._root_ends), always_call=True),
        ]

    def _root_ends(self, *_: Any) -> None:
        if not in_backward():
            self.abandon()

    def _begin(self, _: Any, __: Any, output: Any) -> None:
        if not in_backward():
            self.attempt(self.start_behind, output)

    def _end(self, _: Any, args: Any, kwargs: Any) -> None:
        if self.current is not None and not in_backward():
            self.attempt(self._hand_over, {**{str(index): value for index, value in enumerate(args)}, **kwargs})

    def _hand_over(self, given: Any) -> None:
        operators = self.stop()
        if operators is None:
            return
        for path, tensor in flatten(given):
            operators.hand_on(f"input {path}", tensor)
        self.zoom.send(self.spec, operators)


class _LossOperators(Operators):
    """Until a backward pass begins."""

    over = False

    @passes_on
    def run(self, function: Any, args: Any, kwargs: Any, frame: Any) -> Any:
        if not self.over and self._begins_backward(function, args, frame):
            self.over = True
        return function(*args, **kwargs) if self.over else super().run(function, args, kwargs, frame)

    def _begins_backward(self, function: Any, args: Any, frame: Any) -> bool:
        if in_backward():
            return True
        if str(function) != "aten.ones_like.default":
            return False
        while frame is not None and frame.f_code.co_name != "_make_grads":
            frame = frame.f_back if self._is_of_torch(frame) else None
        if frame is None:
            return False
        try:
            self.hand_on("loss", args[0])
        except Exception as error:
            self._refuse(function, error)
        return True

    def _is_of_torch(self, frame: Any) -> bool:
        return bool(frame.f_code.co_filename.startswith(self._torch_folder))


class Loss(Region):
    """What comes after the output of the watched model, up to `backward()`."""

    never = "no operator ran between a training pass of the model and backward()"

    def __init__(self, zoom: Any, name: str, root: Any, spec: Any) -> None:
        super().__init__(zoom, Named(name, root, "", "", 1), spec)
        self.removables += [
            root.register_forward_pre_hook(InertHook(self._next)),
            root.register_forward_hook(InertHook(self._begin)),
        ]

    def make(self, micro_batch: int, call: int, budget: Budget) -> Operators:
        return _LossOperators(self.zoom.agent, self.named, self.phase, micro_batch, call, budget)

    def _next(self, *_: Any) -> None:
        if not in_backward():
            self.finish()

    def _begin(self, _: Any, __: Any, output: Any) -> None:
        if not in_backward() and not tracing.exporting() and self.zoom.passes.training_in_full():
            self.attempt(self.start_behind, output)

    def begin(self, *_: Any) -> None:
        """An update begins."""
        self.finish()

    def end(self) -> None:
        """An update has ended."""

    step_ends = Region.finish


class _UpdateOperators(Operators):
    """The line is that of the user's own optimizer; an optimizer of torch has none."""

    step: Any = None  # the frame that calls it

    def is_outermost(self, frame: Any) -> bool:
        return frame is self.step

    def place_of_torch(self, function: str) -> tuple[str, str]:
        return "", function


class Update(Region):
    """What an optimizer's update does with one parameter, in one step. Of operators on lists, the parameter's items."""

    phase = UPDATE
    never = "no watched optimizer updated the parameter"

    def __init__(self, zoom: Any, parameter: Named, spec: Any) -> None:
        super().__init__(zoom, Named(f"optimizer:{parameter.name}", parameter.value, parameter.parent, "", parameter.depth), spec)
        self._parameter = parameter
        self._optimizer: Any = None

    def make(self, micro_batch: int, call: int, budget: Budget) -> Operators:
        return _UpdateOperators(self.zoom.agent, self.named, self.phase, micro_batch, call, budget)

    def begin(self, optimizers: Any, step: Any, call: int) -> None:
        """An update begins. `step`: the frame that calls the hooks. Never raises."""
        self.attempt(self._begin, optimizers, step, call)

    def _begin(self, optimizers: Any, step: Any, call: int) -> None:
        self.stop()  # after an update that failed
        parameter = self._parameter.current()
        for optimizer in optimizers:
            if any(each is parameter for group in optimizer.param_groups for each in group["params"]):
                break
        else:
            return
        operators = self.start(call)
        if not isinstance(operators, _UpdateOperators):
            return
        operators.step, self._optimizer = step, optimizer
        operators.named = Named(self.named.name, parameter, self.named.parent, type(optimizer).__name__, self.named.depth)
        tensors = [("parameter", parameter), *self._state()]
        if parameter.grad is not None:
            tensors.append(("gradient", parameter.grad))
        operators.name(tensors)
        operators.concentrate(tensor for _, tensor in tensors)

    def _state(self) -> list[tuple[str, Any]]:
        return [(f"state {path}", tensor) for path, tensor in flatten(self._optimizer.state.get(self._parameter.current(), {}))]

    def end(self) -> None:
        """The update has ended. Never raises."""
        self.attempt(self._end)

    def _end(self) -> None:
        operators = self.stop()
        if operators is None or not operators.count:
            return
        for label, tensor in [("parameter", self._parameter.current()), *self._state()]:
            if operators.computed(tensor):
                operators.hand_on(label, tensor)
        self._optimizer = None
        self.zoom.send(self.spec, operators)
