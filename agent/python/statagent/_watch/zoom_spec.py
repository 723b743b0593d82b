"""What a zoom is asked for: STATAGENT_ZOOM, as "blocks.1.ln2@3"."""

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
_SHOWN_NAMES = 12
_STEP_MAX = (1 << 63) - 1


@dataclass(frozen=True)
class ZoomSpec:
    """The module of one forward pass whose operators are recorded, and the step."""

    module: str  # the name as `watch` records it, or a pattern as in the shell
    step: int

    def text(self) -> str:
        return f"{self.module}@{self.step}"

    def matching(self, modules: Iterable[Named]) -> list[Named]:
        """The outermost modules that match. Operators of the modules inside are recorded as theirs."""
        found = [named for named in modules if fnmatchcase(named.name, self.module)]
        names = {named.name for named in found}
        return [named for named in found if not any(named.name.startswith(f"{name}.") for name in names)]

    def why_not(self, modules: Iterable[Named]) -> str:
        """Why nothing matches."""
        names = [named.name for named in modules]
        near = difflib.get_close_matches(self.module, names, n=3, cutoff=0.5)
        shown = ", ".join(names[:_SHOWN_NAMES]) + (f", ... ({len(names)} in all)" if len(names) > _SHOWN_NAMES else "")
        hint = f"did you mean {' or '.join(near)}?" if near else f"expected one of: {shown}"
        return f"{VARIABLE}: the model has no module '{_printable(self.module)}'; {hint}"


def find_zooms() -> list[ZoomSpec]:
    """Those of STATAGENT_ZOOM, separated by ';'. Raises InvalidArgumentError."""
    return [_parse(part.strip()) for part in os.environ.get(VARIABLE, "").split(";") if part.strip()]


def _parse(text: str) -> ZoomSpec:
    module, at, step = text.rpartition("@")
    if not at or not module.strip() or not re.fullmatch("[0-9]{1,19}", step.strip()) or int(step) > _STEP_MAX:
        raise InvalidArgumentError(
            f"watch: {VARIABLE} has {text!r:.200}; expected MODULE@STEP, the module's name as in a diff and one step, such as "
            "'blocks.1.ln2@3'; several are separated by ';'"
        )
    return ZoomSpec(module.strip(), int(step))


def _printable(text: str) -> str:
    return text if text.isprintable() else repr(text)[1:-1]
