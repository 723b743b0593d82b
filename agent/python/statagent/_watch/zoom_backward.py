"""The backward pass of a zoomed call: the operators that autograd dispatches for the nodes of the call's forward operators."""

from __future__ import annotations

import bisect
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from .._torch.passing import passes_on
from ..flatten import flatten
from .zoom_operators import Operators, Origin, make_mode, pop, push, sequence_number

_CHECKPOINT = os.path.join("torch", "utils", "checkpoint.py")
_ENGINE = "_engine_run_backward"  # torch's function that runs the graph
_SUM = "autograd.sum"  # what the engine adds up between two nodes; no operator is dispatched for it


class BackwardOperators(Operators):
    """An operator takes the line of the user's own code, in a Function's backward or a hook; else that of the forward operator of its node."""

    def __init__(self, forward: Operators) -> None:
        super().__init__(
            forward.agent, forward.named, "backward", forward.micro_batch, forward.call, forward.budget, forward
        )  # fmt: skip
        self.node_name = ""
        self._node_of: Origin | None = None
        self._origins = forward.origins
        self._sequences = [each.sequence for each in forward.origins]  # ascending

    def enter_node(self, node: Any, sequence: int) -> None:
        """The operators that follow are of this node."""
        self.node_name = str(node.name()).rpartition("::")[2]
        at = bisect.bisect_left(self._sequences, sequence)
        if at == len(self._sequences) or self._sequences[at] != sequence:
            at -= 1  # a node that belongs to the operator before, as for what is written into a view
        self._node_of = self._origins[at] if at >= 0 else None

    def is_outermost(self, frame: Any) -> bool:
        return bool(frame.f_code.co_name == _ENGINE)

    def is_repeated(self, source: str) -> bool:
        return source.endswith(_CHECKPOINT)

    def place_of_torch(self, function: str) -> tuple[str, str]:
        if self._node_of is None:
            return "", self.node_name
        return self._node_of.place, f"{self._node_of.function} ({self.node_name})"

    def gradient_label(self) -> str:
        """Of a gradient that no operator of the call has computed as it is."""
        place = "" if self._node_of is None else f" of {self._node_of.place}"
        return f"gradient into {self.node_name}{place}, summed or changed by a hook"

    def add_up(self, parts: list[str], gradient: Any, written: bool) -> None:
        """The engine has added up gradients of the call, into one of them if `written`; a hook may have changed the sum. `parts`: their texts."""
        if written:
            self.count_write(gradient)
        if self.budget.spent() or self.computed(gradient):
            return
        place, function = self.place_of_torch("")
        arguments = [f"{number}^{part}" for number, part in enumerate(parts)]
        self._note(_SUM, (place, f"{function}, or a hook"), arguments, "", gradient, [], view=False)


class Backward:
    """The nodes of one forward call. Each is recorded the first time that it runs; nodes that never run are left out. Threads: autograd's, one
    node at a time."""

    def __init__(
        self, forward: Operators, first: int, inputs: Iterable[tuple[str, Any]], output: Any, done: Callable[[Backward], None]
    ) -> None:
        """`first`: the sequence number when the call began. `inputs`: labels and edges of the gradients that go out. May raise."""
        self.operators = BackwardOperators(forward)
        self._mode, self._done = make_mode(self.operators), done
        self._nodes: dict[int, _Node] = {}
        # By node and number: from how many nodes of the call its gradient comes, and what they have given so far.
        self._givers: Counter[tuple[int, int]] = Counter()
        self._given: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
        self._versions: dict[tuple[Any, ...], int] = {}
        self._sequence = range(first, sequence_number())
        tensors = [(f"gradient of output {path}", tensor) for path, tensor in flatten(output)]
        tensors += [("", tensor) for tensor in (reference() for reference in forward.made) if tensor is not None]
        self._labels: dict[tuple[int, int], str] = {}  # of gradients that come in, by node and number
        roots = []
        for label, tensor in tensors:
            if tensor.requires_grad and tensor.grad_fn is not None:
                roots.append(tensor.grad_fn)
                if label:
                    self._labels.setdefault((id(tensor.grad_fn), tensor.output_nr), label)
        outgoing = {(id(node), number): (f"gradient of {label}", node) for label, (node, number) in inputs}
        names = {id(parameter): name for name, parameter in forward.named.value.named_parameters()}
        self._kept = [*roots, *(node for _, node in outgoing.values())]  # so that ids stay theirs
        self._find(roots, {key: label for key, (label, _) in outgoing.items()}, names)
        self.waiting = set(self._nodes)

    def _find(self, roots: list[Any], outgoing: dict[tuple[int, int], str], names: dict[int, str]) -> None:
        while roots:
            node = roots.pop()
            if id(node) in self._nodes or node._sequence_nr() not in self._sequence:
                continue
            found = self._nodes[id(node)] = _Node(self, node)
            for after, number in node.next_functions:
                label = None
                if after is not None and after._sequence_nr() in self._sequence:
                    roots.append(after)
                    self._givers[id(after), number] += 1
                elif after is not None:
                    variable = getattr(after, "variable", None)
                    label = outgoing.get((id(after), number)) or f"gradient of {names.get(id(variable), 'a tensor from outside')}"
                found.outgoing.append(label)

    def remove(self) -> None:
        """Nothing is recorded any more. Releases the graph."""
        for each in self._nodes.values():
            each.remove()
        self._nodes, self._kept, self.waiting = {}, [], set()
        self._given.clear()

    def enter(self, node: _Node, gradients: Any) -> None:
        """A node is about to run. May raise."""
        operators = self.operators
        operators.enter_node(node.node, node.sequence)
        for number, gradient in enumerate(gradients):
            if gradient is None:
                continue
            written = self._versions.get(operators.identity(gradient), gradient._version) != gradient._version
            label, parts = self._labels.get((id(node.node), number)), self._given.pop((id(node.node), number), [])
            if len(parts) > 1 and label is None:
                operators.add_up(parts, gradient, written)
            else:
                operators.come_in(label or operators.gradient_label(), gradient, written)
        push(self._mode)

    def leave(self, node: _Node, gradients: Any) -> None:
        """It has run. May raise."""
        pop(self._mode)
        for label, (after, number), gradient in zip(node.outgoing, node.node.next_functions, gradients):
            if gradient is None:
                continue
            if label is not None:
                self.operators.hand_on(label, gradient)
            elif self._givers[id(after), number] > 1:
                self._given[id(after), number].append(self.operators.text_of(gradient))
            self._versions[self.operators.identity(gradient)] = gradient._version

    def over(self, node: _Node) -> None:
        pop(self._mode)
        node.remove()
        self.waiting.discard(id(node.node))
        if not self.waiting:
            self._done(self)


class _Node:
    """Hooks of one node."""

    def __init__(self, backward: Backward, node: Any) -> None:
        self._backward, self.node, self.sequence = backward, node, int(node._sequence_nr())
        self.outgoing: list[str | None] = []  # labels of the gradients that leave the module
        self._entered = False
        self._removables = [node.register_prehook(self._before), node.register_hook(self._after)]

    def remove(self) -> None:
        removables, self._removables = self._removables, []
        for each in removables:
            each.remove()

    def _before(self, gradients: Any) -> None:
        if self._entered:
            return
        self._entered = True
        try:
            self._backward.enter(self, gradients)
        except Exception as error:
            self._backward.operators.refuse_node(error)

    def _after(self, gradients: Any, _: Any) -> None:
        try:
            self._backward.leave(self, gradients)
        except Exception as error:
            self._backward.operators.refuse_node(error)
        self._backward.over(self)


class Recomputed(Operators):
    """The same operators once more, in a reentrant checkpoint: only their nodes matter."""

    def __init__(self, forward: Operators) -> None:
        super().__init__(
            forward.agent, forward.named, "forward", forward.micro_batch, forward.call, forward.budget, forward
        )  # fmt: skip
        self.forward = forward

    @passes_on
    def run(self, function: Any, args: Any, kwargs: Any, frame: Any) -> Any:
        place = self._place(frame)
        if place is not None and len(self.origins) < len(self.forward.origins):
            of = self.forward.origins[len(self.origins)]
            self.origins.append(Origin(sequence_number() - 1, of.name, of.place, of.function))
        return function(*args, **kwargs)
