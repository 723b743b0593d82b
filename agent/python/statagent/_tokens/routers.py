"""What routers of mixtures of experts choose for each token: which experts, and by what margin.

A router has two taps: its logits under its own name, and NAME:chosen, a matrix with a row for each token: the margin, then the numbers of the
experts, ascending. The margin is how far the least of the chosen experts' logits lies above the largest other one; below 0, and -1 where the
logits are not known, the router does not choose by them alone. The matrix is recorded in parts of 8 columns, so that a row's 8 sums are its
values, up to their signs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .._compile.inert_hook import InertHook
from .._native.rows import SKETCH
from .._runtime.log import warn_once
from .._torch.autograd import in_backward

CHOSEN = ":chosen"


@dataclass(frozen=True)
class RouterTap:
    """matrix: the module whose output are the logits. chooser: the one that may return the choice, it or one around it. experts, chosen: of all,
    and for each token; None: not known. tapped: its output is recorded already."""

    name: str
    matrix: Any
    chooser: Any
    experts: int | None
    chosen: int | None
    tapped: bool = False


def hook_routers(recorder: Any, routers: Iterable[RouterTap]) -> list[Any]:
    """Hooks that record the choices of these routers, if the pass has rows."""
    removables = []
    for router in routers:
        hooks = _Hooks(recorder, router)
        removables.append(router.matrix.register_forward_hook(InertHook(hooks.see_logits)))
        if router.chooser is not router.matrix:
            removables.append(router.chooser.register_forward_hook(InertHook(hooks.see_choice)))
    return removables


class _Hooks:
    """Of one router. Threads: that of the model."""

    def __init__(self, recorder: Any, router: RouterTap) -> None:
        self._recorder, self._router = recorder, router
        self._logits: Any = None  # of the pass that runs

    def see_logits(self, _: Any, __: Any, output: Any) -> None:
        self._see(self._take_logits, output)
        if self._router.chooser is self._router.matrix:
            self._see(self._choose, output)

    def see_choice(self, _: Any, __: Any, output: Any) -> None:
        self._see(self._choose, output)

    def _see(self, take: Any, output: Any) -> None:
        if self._recorder.rows is None or in_backward():
            return
        begun = time.perf_counter_ns()
        try:
            take(self._recorder.rows, list(_tensors(output)))
        except Exception as error:
            self._recorder.agent.refuse(str(error), self._router.name, "tokens")
        self._recorder.agent.clock.note_spent(begun)

    def _take_logits(self, rows: Any, outputs: list[Any]) -> None:
        self._logits = None
        for each in outputs:
            found = rows.of(each) if each.is_floating_point() else None
            if found is not None and found.shape[1] == (self._router.experts or found.shape[1]):
                self._logits = found
                break
        if self._logits is not None and not self._router.tapped:
            self._recorder.record(self._router.name, self._logits, rows.keys, rows.positions, rows.chosen)

    def _choose(self, rows: Any, outputs: list[Any]) -> None:
        logits, self._logits = self._logits, None
        chosen = next((found for found in map(rows.of_whole, outputs) if found is not None), None)
        if chosen is None:
            if logits is None:
                return
            if self._router.chosen is None:
                name = self._router.name
                warn_once(
                    f"router {name}",
                    f"watch: tokens: {name} is a router, but how many experts it chooses was not found; expected an attribute such as "
                    f'top_k; its choices are not recorded; pass routers={{"{name}": 2}}',
                )
                return
            chosen = logits.topk(min(self._router.chosen, logits.shape[1]), dim=1).indices
        values = _values(logits, chosen.long())
        for first in range(0, values.shape[1], SKETCH):
            part = values[:, first : first + SKETCH].contiguous()
            self._recorder.record(self._router.name + CHOSEN, part, rows.keys, rows.positions, rows.chosen, first)


def _values(logits: Any, chosen: Any) -> Any:
    """The margin, and the experts, of each row."""
    import torch

    if logits is None or logits.shape[1] <= chosen.shape[1]:
        margin = torch.full((len(chosen), 1), -1.0, device=chosen.device)
    else:
        known, at = logits.float(), chosen.clamp(0, logits.shape[1] - 1)
        others = known.scatter(1, at, -torch.inf).amax(1, keepdim=True)
        margin = known.gather(1, at).amin(1, keepdim=True) - others
    return torch.cat([margin, chosen.sort(dim=1).values.float()], dim=1)


def _tensors(output: Any) -> Iterable[Any]:
    import torch

    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, (tuple, list)):
        for each in output:
            yield from _tensors(each)
