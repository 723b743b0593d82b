"""statagent.inspect inside of a compiled graph. Imports torch, so it may only be imported once torch is there."""

from __future__ import annotations

from typing import Any

from .._runtime.current import current_agent, running_agent
from .registry import Key


class _Inspections:
    """inspect() inside of a graph, a Recorder: the path is the name; a call is (micro-batch, call index)."""

    def active(self) -> bool:
        agent = running_agent()
        return agent is not None and agent.clock.wanted and not agent.clock.muted

    def begin(self, paths: list[str], grad_enabled: bool) -> Any:
        agent = current_agent()
        assert agent is not None
        at = agent.micro_batch
        return at, agent.clock.next_call(paths[0], "inspect", "", at)

    def value(self, call: Any, path: str, tensor: Any) -> None:
        self._observe("inspect", call, path, tensor)

    def gradient(self, call: Any, path: str, gradient: Any) -> None:
        self._observe("inspect_grad", call, path, gradient)

    def _observe(self, kind: str, call: Any, name: str, tensor: Any) -> None:
        agent = running_agent()
        if agent is not None:
            agent.observe_handle(agent.intern(name, kind, "", *call), tensor)

    def unhooked(self) -> Any:
        return None

    def epoch(self) -> int:
        agent = current_agent()
        return agent.current_step() if agent is not None else 0

    def refuse(self, message: str) -> None:
        agent = current_agent()
        if agent is not None:
            agent.refuse(f"inspect: {message}")


inspections = Key(_Inspections())
