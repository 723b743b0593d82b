"""Stores what each watch records as settings `recording.*` of the run, so that a diff knows which records a run was not asked to make."""

from __future__ import annotations

from collections.abc import Mapping

from .._runtime.agent import Agent


def report_recording(agent: Agent, name: str, options: Mapping[str, str]) -> None:
    """Stores the options of a watch, and withdraws, with "", those of an earlier watch of the same name.

    The name is part of the keys. Of watches without a name, the first has no name in its keys; the others have +2, +3, ... A watch whose
    options are those of an earlier one has its keys. Settings of the user stand. Never raises."""
    known = [key for key, earlier in agent.watches.recordings.items() if earlier == options and key.startswith("+")]
    unnamed = sum(key.startswith("+") for key in agent.watches.recordings)
    key = name or (known[0] if known else f"+{unnamed + 1}")
    withdrawn = dict.fromkeys(agent.watches.recordings.get(key, ()), "")
    agent.watches.recordings[key] = dict(options)
    prefix = "" if key == "+1" else f"{key}."
    found = {f"recording.{prefix}{option}": value for option, value in {**withdrawn, **options}.items()}
    settings = {key: value for key, value in found.items() if key not in agent.user_settings}
    agent.settings.update(settings)
    agent.add_config(settings)
