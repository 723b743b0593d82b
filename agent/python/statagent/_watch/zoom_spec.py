"""What a zoom is asked for: STATAGENT_ZOOM, as "blocks.1.ln2@3", "blocks.1.attn..blocks.1.ln2@3", "loss@3" or "optimizer:head.weight@3"."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from .._torch.modules import Named
from ..errors import InvalidArgumentError

VARIABLE = "STATAGENT_ZOOM"
LOSS = "loss"
BETWEEN = ".."
OPTIMIZER = "optimizer:"
_SHOWN_NAMES = 12
_STEP_MAX = (1 << 63) - 1


@dataclass(frozen=True)
class ZoomSpec:
    """The part of one step whose operators are recorded."""

    target: str  # names are as `watch` records them, or patterns as in the shell
    step: int

    def text(self) -> str:
        return f"{self.target}@{self.step}"

    def matching(self, modules: Iterable[Named]) -> list[Named]:
        """The outermost modules that match. Operators of the modules inside are recorded as theirs."""
        found = matching(modules, self.target)
        names = {named.name for named in found}
        return [named for named in found if not any(named.name.startswith(f"{name}.") for name in names)]

    @property
    def ends(self) -> tuple[str, str] | None:
        """The modules between which it is."""
        before, between, after = self.target.partition(BETWEEN)
        return (before, after) if between else None

    @property
    def parameter(self) -> str | None:
        """Of which an update is recorded."""
        return self.target.removeprefix(OPTIMIZER) if self.target.startswith(OPTIMIZER) else None


def matching(all_of_them: Iterable[Named], pattern: str) -> list[Named]:
    return [named for named in all_of_them if fnmatchcase(named.name, pattern)]


def why_not(what: str, wanted: str, all_of_them: Iterable[Named]) -> str:
    """Why nothing matches. `what`: "module", "parameter"."""
    names = [named.name for named in all_of_them]
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
    shown = ", ".join(names[:_SHOWN_NAMES]) + (f", ... ({len(names)} in all)" if len(names) > _SHOWN_NAMES else "")
    hint = f"did you mean {' or '.join(near)}?" if near else f"expected one of: {shown}"
    return f"{VARIABLE}: the model has no {what} '{_printable(wanted)}'; {hint}"


def find_zooms() -> list[ZoomSpec]:
    """Those of STATAGENT_ZOOM, separated by ';'. Raises InvalidArgumentError."""
    return [_parse(part.strip()) for part in os.environ.get(VARIABLE, "").split(";") if part.strip()]


def _parse(text: str) -> ZoomSpec:
    target, at, step = text.rpartition("@")
    target, step = target.strip(), step.strip()
    spec = ZoomSpec(target, int(step) if re.fullmatch("[0-9]{1,19}", step) else _STEP_MAX + 1)
    if not at or not target or spec.step > _STEP_MAX or spec.parameter == "" or (spec.ends and not all(spec.ends)):
        raise InvalidArgumentError(
            f"watch: {VARIABLE} has {text!r:.200}; expected MODULE@STEP, the module's name as in a diff and one step, such as "
            f"'blocks.1.ln2@3', or MODULE{BETWEEN}MODULE@STEP, {LOSS}@STEP, {OPTIMIZER}PARAMETER@STEP; several are separated by ';'"
        )
    return spec


def _printable(text: str) -> str:
    return text if text.isprintable() else repr(text)[1:-1]
